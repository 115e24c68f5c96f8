"""Arguments that do not fit: each ends in an error that says why."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from onnx import helper

import jaxdml.onnx
from hostile_models import FLOAT, INT64, model, refused, relu
from jaxdml.errors import ModelError
from jaxdml.onnx import load
from mutated_models import models

ONES = np.ones(4, np.float32)


def test_python_arguments():
    for wrong in (None, 5, 1.5, [1], {}, object(), memoryview(b"")):
        with pytest.raises(TypeError, match=r"expected a path, bytes or an onnx\.ModelProto"):
            load(wrong)
    for call in (load, jaxdml.onnx.check):
        with pytest.raises(ValueError, match="numerics is 'cuda', expected 'directml' or 'onnxruntime'"):
            call(relu(), numerics="cuda")
        with pytest.raises(TypeError, match="limits is of type int"):
            call(relu(), limits=5)


TWO = [("a", FLOAT, ("N", 3)), ("b", FLOAT, ("N", None))]


def two_inputs():
    proto = model([("Concat", ["a", "b"], ["y"])], inputs=TWO, outputs=[("y", FLOAT, ("N", None))])
    proto.graph.node[0].attribute.append(helper.make_attribute("axis", 1))
    return load(proto)


@pytest.mark.parametrize(
    ("arrays", "named", "words"),
    [
        ((), {}, "lacks ['a', 'b']; its inputs are a: float32[N, 3], b: float32[N, ?]"),
        (((2, 3),), {}, "lacks ['b']"),
        (((2, 3),) * 3, {}, "was given 3 inputs, expected a: float32[N, 3]"),
        (((2, 3),), {"c": (2, 3)}, "lacks ['b']"),
        (((2, 3),) * 2, {"c": (2, 3)}, "was given ['c'], which the model has not"),
        (((2, 3),) * 2, {"b": (2, 3)}, "was given ['b'] by position and by name"),
        (((2, 4), (2, 3)), {}, "input a: float32[N, 3] was given float32[2, 4]: dimension 1 is 4, expected 3"),
        (((2, 3), (5, 3)), {}, "input b: float32[N, ?] was given float32[5, 3]: dimension 0 is 5, expected N = 2"),
        (((2,), (2, 3)), {}, "it has 1 dimensions, expected 2"),
    ],
)
def test_wrong_inputs(arrays, named, words):
    made = two_inputs()
    given = [np.ones(shape, np.float32) for shape in arrays]
    with pytest.raises(ModelError, match=re.escape(words)):
        made.apply(made.params, *given, **{name: np.ones(shape, np.float32) for name, shape in named.items()})


def test_inputs_of_wrong_types():
    made = load(relu())
    for wrong in (
        np.ones(4),
        np.ones(4, np.int32),
        [1.0, 2.0, 3.0, 4.0],
        jnp.ones(4, jnp.float16),
        ["a"] * 4,
        [None] * 4,
    ):
        with pytest.raises(ModelError, match=r"input x: float32\[4\] was given .*: convert it to float32"):
            made.apply(made.params, wrong)
    with pytest.raises(ModelError, match=r"input x: float32\[4\] was given a list that is no array"):
        made.apply(made.params, [[1.0], [1.0, 2.0]])


@pytest.mark.parametrize("name", ["params", "self", "names", "arrays"])
def test_inputs_of_any_name(name):
    made = load(model([("Relu", [name], ["y"])], inputs=[(name,)]))
    np.testing.assert_array_equal(made.apply(made.params, **{name: ONES})["y"], ONES)


def test_wrong_params():
    made = load(models()["qoperator"])
    x = np.ones((1, 2, 4, 4), np.float32)
    first = next(iter(made.params))
    for wrong, words in (
        ({}, "lacks or adds"),
        ({**made.params, "more": x}, "lacks or adds ['more']"),
        ({**made.params, first: x}, f"in {first!r} float32[1, 2, 4, 4], expected"),
        ({**made.params, first: None}, repr(first)),
        ({**made.params, first: "text"}, "no array"),
        (None, "params is of type NoneType"),
        ([x], "params is of type list"),
        (load(models()["dynamic"]).params, "lacks or adds"),
    ):
        with pytest.raises(ModelError, match=re.escape(words)):
            made.apply(wrong, x)
    assert made.apply(dict(reversed(made.params.items())), x).keys() == {"y"}


def test_unknown_values():
    made = load(relu())
    with pytest.raises(ModelError, match=r"no values \['z'\]"):
        made.values(made.params, ONES, names=["z"])


def test_shapes_that_depend_on_data():
    proto = model([("Reshape", ["x", "shape"], ["y"])], inputs=[("x",), ("shape", INT64, (1,))])
    refused(proto, "reshape_0", "'shape' depends on data")
