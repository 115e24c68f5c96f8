"""The params of a model: a pytree that is saved and read, moved, replaced and donated; no weight is in the program."""

import copy
import math
import pickle
import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml.onnx
from _onnx.float_models import MOBILENET_V2, encoder, mlp, mobilenet_v2
from _onnx.quantized_models import FORMS, quantized, random_inputs
from _onnx.small_models import residual, reversed_weights
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely

X = random_inputs(residual(), 2, seed=4)["x"]
LARGE = 64  # a constant with this many elements may be a weight
of_each_form = pytest.mark.parametrize("form", rest_rarely(("qdq", "dynamic", "qoperator"), 1))


@cache
def loaded(form, numerics="directml"):
    return jaxdml.onnx.load(quantized(residual(), form), numerics=numerics)


def outputs(model, params):
    return np.asarray(model.apply(params, X)["y"])


def by_leaves_in_a_file(params, folder):
    """Arrays in a file of np.savez; the structure is that of the model that is loaded again."""
    np.savez(folder / "params.npz", *jax.tree.leaves(params))
    with np.load(folder / "params.npz") as file:
        return jax.tree.unflatten(jax.tree.structure(params), [file[name] for name in file.files])


WAYS = {
    "pickle": lambda params, _: pickle.loads(pickle.dumps(params)),
    "copy": lambda params, _: copy.deepcopy(params),
    "leaves in a file": by_leaves_in_a_file,
    "device_put": lambda params, _: jax.device_put(params, jax.devices()[0]),
    "tree.map": lambda params, _: jax.tree.map(np.asarray, params),
}


@of_each_form
@pytest.mark.parametrize("way", WAYS)
def test_params_that_are_saved_and_read_or_moved(way, form, tmp_path):
    model = loaded(form)
    params = WAYS[way](model.params, tmp_path)
    assert jax.tree.structure(params) == jax.tree.structure(model.params)
    jax.tree.map(assert_same_bits, params, model.params)
    assert_same_bits(outputs(model, params), outputs(model, model.params))


@of_each_form
def test_params_of_another_model(form):
    """A model with the same graph and scales, and other weights."""
    model, other = loaded(form), jaxdml.onnx.load(reversed_weights(quantized(residual(), form)))
    assert_same_bits(outputs(model, other.params), outputs(other, other.params))
    assert (outputs(model, other.params) != outputs(model, model.params)).any()


@of_each_form
def test_every_param_is_read(form):
    """Each changes the output: weights are replaced by those of another model, vectors are reversed."""
    model, other = loaded(form), jaxdml.onnx.load(reversed_weights(quantized(residual(), form)))
    expected = outputs(model, model.params)
    for name, value in model.params.items():
        replaced = jnp.flip(value) if isinstance(value, jax.Array) else other.params[name]
        assert (outputs(model, model.params | {name: replaced}) != expected).any(), name


def test_params_that_do_not_fit_are_refused():
    model = loaded("qdq")
    name = next(name for name, value in model.params.items() if isinstance(value, jax.Array))
    value = model.params[name]
    wrong = {
        f"params\\['{name}'\\] is int16\\[8\\], expected int32\\[8\\]": model.params
        | {name: np.asarray(value).astype(np.int16)},
        f"params\\['{name}'\\] is int32\\[7\\], expected int32\\[8\\]": model.params | {name: value[:-1]},
        f"params lacks \\['{name}'\\]; expected": {key: value for key, value in model.params.items() if key != name},
        r"was given \['more'\], which the model does not have": model.params | {"more": value},
        "params is of type list, expected model.params": list(model.params.values()),
    }
    for text, params in wrong.items():
        with pytest.raises(jaxdml.onnx.ModelError, match=text):
            model.apply(params, X)


@of_each_form
def test_params_are_donated_and_given_back(form):
    model = loaded(form)
    step = jax.jit(lambda params, x: (params, model.apply(params, x)["y"]), donate_argnums=0)
    given = jax.tree.map(lambda leaf: leaf + 0, model.params)
    kept, first = step(given, X)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given))
    _, second = step(kept, X)
    for received in (first, second):
        assert_same_bits(received, outputs(model, model.params))


@of_each_form
def test_gradients_by_float_inputs(form):
    """Rounding to integers has no gradient; the scale of a range has the gradient of its ends."""
    model = loaded(form)
    gradient = jax.jit(jax.grad(lambda x: model.apply(model.params, x)["y"].sum()))(X)
    assert (gradient.shape, gradient.dtype) == (X.shape, X.dtype)
    assert np.isfinite(gradient).all()
    assert np.any(gradient) == (form == "dynamic")


def large_constants(function, *arguments):
    """Shapes of the constants of a program that hold many numbers, and the number of its arguments."""
    text = jax.jit(function).lower(*arguments).as_text()
    shapes = re.findall(r"stablehlo\.constant dense(?:<[^>]*[\"\[]|_resource)[^>]*> : tensor<([\dx]+)x\w+>", text)
    assert "func.func public @main" in text
    arguments = re.search(r"func\.func public @main\((.*)\) ->", text)[1].count("%arg")
    sizes = (math.prod(map(int, shape.split("x"))) for shape in shapes)
    return [size for size in sizes if size > LARGE], arguments


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("numerics", ["directml", "onnxruntime"])
def test_no_weight_is_a_constant_of_the_program(form, numerics):
    """Nor a constant that JAX would turn into an argument."""
    model = loaded(form, numerics)
    constants, arguments = large_constants(model.apply, model.params, X)
    assert constants == []
    assert arguments == len(jax.tree.leaves(model.params)) + 1
    constants, arguments = large_constants(lambda x: model.apply(model.params, x), X)
    assert len(constants) >= 4 or arguments > 4  # weights would be seen


NETWORKS = {"MLP": mlp, "encoder": encoder, "MobileNetV2": partial(mobilenet_v2, width=8, stages=MOBILENET_V2[:2])}
TABLES = {"QLinearConcat": 2, "QLinearLeakyRelu": 1, "QLinearSigmoid": 1, "QLinearSoftmax": 1}  # of a node in a network

JOINED = {"MLP": 0, "encoder": 1, "MobileNetV2": 1}  # a division of scores, a hard sigmoid: several nodes, one table


@pytest.mark.parametrize("numerics", ["directml", "onnxruntime"])
@pytest.mark.parametrize("form", rest_rarely(FORMS, 1))
@pytest.mark.parametrize("network", rest_rarely(NETWORKS, 1))
def test_what_is_looked_up_is_all_that_is_constant(network, form, numerics):
    """Where onnxruntime uses a table of 256 entries, the table is computed from scales at trace time."""
    proto = quantized(NETWORKS[network](), form)
    model = jaxdml.onnx.load(proto, numerics=numerics)
    constants, arguments = large_constants(model.apply, model.params, random_inputs(proto, 2)["x"])
    joined = JOINED[network] if form != "dynamic" else 0  # dynamic models compute them in floats
    assert constants == [256] * (sum(TABLES.get(operator, 0) for operator in model.operators) + joined)
    assert arguments == len(jax.tree.leaves(model.params)) + 1
