"""Arguments that do not fit: each ends in an error that says why."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from onnx import TensorProto, helper

import jaxdml.onnx
from _onnx.mutated_models import models
from helpers.compare import assert_same_bits
from helpers.hostile_models import FLOAT, INT64, constant, model, refused, relu
from jaxdml._arithmetic.prepared import PreparedFilter, PreparedMatrix
from jaxdml.errors import ArgumentTypeError, ModelError
from jaxdml.onnx import Limits, load

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


def test_a_model_that_is_called_itself():
    loaded = load(relu())
    for call in (lambda: loaded(ONES), lambda: loaded(x=ONES)):
        with pytest.raises(ArgumentTypeError, match=r"write model\.apply\(model\.params, \*inputs\)"):
            call()
    assert_same_bits(loaded.apply(loaded.params, ONES)["y"], ONES)


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
        (
            ((2, 3),),
            {"c": (2, 3)},
            "lacks ['b'] and was given ['c'], which the model does not have; its inputs are a:",
        ),
        (((2, 3),) * 2, {"c": (2, 3)}, "was given ['c'], which the model does not have"),
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
        np.ones(4, ">f4"),
        [1.0, 2.0, 3.0, 4.0],
        jnp.ones(4, jnp.float16),
        ["a"] * 4,
        [None] * 4,
    ):
        with pytest.raises(ModelError, match=r"input x: float32\[4\] was given .*: convert it to float32"):
            made.apply(made.params, wrong)
    with pytest.raises(ModelError, match=r"input x: float32\[4\] was given a list that is not an array"):
        made.apply(made.params, [[1.0], [1.0, 2.0]])


@pytest.mark.parametrize("name", ["params", "self", "names", "arrays"])
def test_inputs_of_any_name(name):
    made = load(model([("Relu", [name], ["y"])], inputs=[(name,)]))
    assert_same_bits(made.apply(made.params, **{name: ONES})["y"], ONES)


def test_wrong_params():
    made = load(models()["qoperator"])
    x = np.ones((1, 2, 4, 4), np.float32)
    first = next(iter(made.params))
    for wrong, words in (
        ({}, f"params lacks {sorted(made.params)[:5]} and {len(made.params) - 5} more; expected model.params"),
        ({**made.params, "more": x}, "params was given ['more'], which the model does not have; expected"),
        ({**made.params, first: x}, f"params[{first!r}] is float32[1, 2, 4, 4], expected"),
        ({**made.params, first: None}, repr(first)),
        ({**made.params, first: "text"}, "no array"),
        (None, "params is of type NoneType"),
        ([x], "params is of type list"),
        (load(models()["dynamic"]).params, "which the model does not have; expected model.params, or a dict like it"),
    ):
        with pytest.raises(ModelError, match=re.escape(words)):
            made.apply(wrong, x)
    assert made.apply(dict(reversed(made.params.items())), x).keys() == {"y"}


def test_unknown_values():
    made = load(relu())
    for names in (["z"], "z"):
        with pytest.raises(ModelError, match=r"no values \['z'\]; model\.value_names lists"):
            made.values(made.params, names, ONES)


def test_one_name_of_a_value_that_is_text():
    made = load(model([("Relu", ["x"], ["abc"])], outputs=[("abc",)]))
    assert made.values(made.params, "abc", ONES).keys() == {"abc"}


def test_values_of_a_model_with_an_input_called_names():
    made = load(model([("Relu", ["names"], ["y"])], inputs=[("names",)]))
    assert_same_bits(made.values(made.params, ["y"], names=ONES)["y"], ONES)


def test_outputs_come_in_the_order_of_the_model():
    made = load(model([("Relu", ["x"], ["b"]), ("Neg", ["x"], ["a"])], outputs=[("b",), ("a",)]))
    assert list(made.apply(made.params, ONES)) == ["b", "a"]
    assert list(made.values(made.params, ["x", "b", "a"], ONES)) == ["x", "b", "a"]


def test_inputs_that_are_no_arrays():
    made = load(relu())
    with pytest.raises(ModelError, match=re.escape("pass inputs by name: apply(params, **inputs)")):
        made.apply(made.params, {"x": ONES})
    with pytest.raises(ModelError, match=r"input x: float32\[4\] was given None"):
        made.apply(made.params, None)


def test_arrays_in_place_of_prepared_weights():
    """The error says what prepares them."""
    made = load(models()["qoperator"])
    remedies = {
        name: value for name, value in made.params.items() if isinstance(value, PreparedFilter | PreparedMatrix)
    }
    assert {type(value) for value in remedies.values()} == {PreparedFilter, PreparedMatrix}
    for name, value in remedies.items():
        groups = ", group_count=1" if isinstance(value, PreparedFilter) else ""
        function = "convolution_filter" if isinstance(value, PreparedFilter) else "matrix_multiply_b"
        expected = f"expected {value!r}; write jaxdml.prepare_{function}(array{groups})"
        with pytest.raises(ModelError, match=re.escape(f"params[{name!r}] is int8{list(value.shape)}, {expected}")):
            made.apply({**made.params, name: np.zeros(value.shape, np.int8)}, np.ones((1, 2, 4, 4), np.float32))


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ({"file_bytes": "1GB"}, TypeError, "file_bytes is '1GB', expected an int"),
        ({"nodes": 1.5}, TypeError, "nodes is 1.5, expected an int"),
        ({"tensor_bytes": -1}, ValueError, "tensor_bytes is -1, expected at least 0"),
        ({"seconds": -1}, ValueError, "seconds is -1, expected at least 0"),
        ({"seconds": float("nan")}, ValueError, "seconds is nan"),
        ({"seconds": None}, TypeError, "seconds is None, expected a number"),
    ],
)
def test_wrong_limits(wrong, kind, words):
    with pytest.raises(kind, match=words):
        Limits(**wrong)


def test_shapes_that_depend_on_data():
    """The error lists all of them, before anything runs; the shape of an input is known."""
    shape = ("shape", INT64, (1,))
    proto = model([("Reshape", ["x", "shape"], ["y"])], inputs=[("x",), shape])
    refused(proto, "reshape_0", "'shape' depends on data", "if it is constant, make it an initializer")
    assert len(jaxdml.onnx.check(proto)) == 1
    twice = [("Neg", ["shape"], ["n"]), ("Reshape", ["x", "n"], ["y"]), ("NonZero", ["x"], ["z"])]
    proto = model(twice, inputs=[("x",), shape], outputs=[("y",), ("z", INT64, (1, "K"))])
    with pytest.raises(ModelError) as caught:
        load(proto)
    assert caught.value.problems == tuple(jaxdml.onnx.check(proto))
    assert [text.split(":")[1].strip().split(" depends")[0] for text in caught.value.problems] == [
        "input 'n'", "input 'x'"
    ]  # fmt: skip
    nodes = [("Shape", ["shape"], ["s"]), ("Expand", ["x", "s"], ["y"])]
    assert jaxdml.onnx.check(model(nodes, inputs=[("x",), ("shape", INT64, (4,))])) == []


def test_check_tells_what_load_and_apply_raise():
    shape = constant(np.array([3, 3]), "shape")
    reshape = model([("Reshape", ["x", "shape"], ["y"])], [shape], outputs=[("y", FLOAT, (3, 3))])
    (text,) = jaxdml.onnx.check(reshape)
    assert "node 'reshape_0' (Reshape) with inputs (float32[4]" in text
    refused(reshape, text)
    for wide in (np.array([2**40, 1, 1, 1]), np.array([-(2**40)]), np.array(2**31)):
        large = model([("Add", ["x", "w"], ["y"])], [constant(wide, "w")],
                      inputs=[("x", INT64)], outputs=[("y", INT64)])  # fmt: skip
        if jax.config.jax_enable_x64:
            assert jaxdml.onnx.check(large) == []
        else:
            (text,) = jaxdml.onnx.check(large)
            assert "'w' has integers of more than 32 bits; set jax_enable_x64" in text
    volumes = [("x", TensorProto.UINT8, (1, 1, 3, 3, 3)), ("w", TensorProto.UINT8, (1, 1, 1, 1, 1))]
    volume = model([("ConvInteger", ["x", "w"], ["y"])], inputs=volumes, outputs=[("y", TensorProto.INT32, None)])
    assert len(jaxdml.onnx.check(volume)) == 1


def test_wide_integers_that_no_array_holds_are_accepted():
    """Bounds of slices are not arrays in JAX; constants that are outputs are."""
    ends = [constant(np.array([number]), name) for number, name in ((0, "start"), (2**63 - 1, "end"))]
    whole = model([("Slice", ["x", "start", "end"], ["y"])], ends)
    made = load(whole)
    assert made.apply(made.params, np.ones(4, np.float32))["y"].shape == (4,)
    if not jax.config.jax_enable_x64:
        made = load(model([("Identity", ["w"], ["y"])], [constant(np.array(2**31), "w")], outputs=[("y", INT64, ())]))
        with pytest.raises(ModelError, match=r"tensor '\w+' has integers of more than 32 bits; set jax_enable_x64"):
            made.apply(made.params, np.ones(4, np.float32))
