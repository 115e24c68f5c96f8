"""Calls are inlined in the same way wherever jaxprs are read."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits
from jaxdml._arithmetic.calls import called_jaxpr
from jaxdml._exact.interpreter import problems
from jaxdml.reference import floats


@jax.custom_jvp
def of_jvp(x):
    return jnp.sin(x)


of_jvp.defjvp(lambda primals, tangents: (jnp.sin(*primals), tangents[0]))


@jax.custom_vjp
def of_vjp(x):
    return jnp.sin(x)


of_vjp.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g,))
FUNCTIONS = {"jit": jax.jit(jnp.sin), "jvp": of_jvp, "vjp": of_vjp, "checkpoint": jax.checkpoint(jnp.sin)}
X = np.eye(4, dtype=np.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_equations_of_a_call_take_its_place(name):
    function = FUNCTIONS[name]
    (eqn,) = jax.make_jaxpr(function)(X).eqns
    assert [each.primitive.name for each in called_jaxpr(eqn).eqns] == ["sin"]
    assert not list(problems(jax.make_jaxpr(function)(X).jaxpr))  # a call has no rule of its own
    assert_same_bits(dml.exact(function)(X), dml.exact(jnp.sin)(X))
    model = dml.ptq.quantize(lambda w, x: function(x @ w), X, [X], floats="xla", progress=False)
    assert model.by_xla == ("sin_1",)


def test_one_file_lists_the_primitives():
    files = Path(dml.__file__).parent.rglob("*.py")
    assert [path.name for path in files if "custom_vjp_call" in path.read_text(encoding="utf-8")] == ["calls.py"]


# Operators of floats x and a scale. `exact` does not flush their inputs.
OPERATORS = {
    "quantize": lambda x, scale: dml.element_wise_quantize_linear(x, scale, np.uint8(3)),
    "quantize in blocks": lambda x, scale: dml.quantize(x, scale[None], np.full(1, 3, np.uint8)),
    "multiply": lambda x, scale: dml.quantized_linear_matrix_multiply(
        np.ones((1, 2), np.uint8), scale, np.uint8(0), np.ones((2, 2), np.uint8), np.float32(1), np.uint8(0),
        x[4], np.uint8(3),
    ),
    "add": lambda x, scale: dml.element_wise_quantized_linear_add(
        np.ones(2, np.uint8), scale, np.uint8(0), np.ones(2, np.uint8), x[4], np.uint8(0), np.float32(2e-38),
        np.uint8(3),
    ),
    "dequantize": lambda x, scale: dml.element_wise_dequantize_linear(np.arange(6, dtype=np.uint8), scale, np.uint8(3)),
    "dequantize in blocks": lambda x, scale: dml.dequantize(
        np.arange(6, dtype=np.uint8), scale[None], np.full(1, 3, np.uint8)
    ),
    "multiply to floats": lambda x, scale: dml.matrix_multiply_integer_to_float(
        np.uint8([[0], [1]]), x[3:5, None], np.uint8(0), np.ones((1, 6), np.uint8), scale, np.uint8(0), x
    ),
    "quantize dynamically": lambda x, scale: dml.dynamic_quantize_linear(x[:5])[1],
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("scale", [np.float32(1.1e-38), np.float32(2e-38)])
def test_operators_flush_their_inputs(name, scale):
    """Their bits are those of the same call of flushed inputs, which NumPy flushes here."""
    x = np.float32([0, 1e-40, -1e-40, 1.1e-38, 2e-38, np.nan])
    operator = jax.jit(dml.exact(OPERATORS[name]))
    assert_same_bits(operator(x, scale), OPERATORS[name](floats.flushed(x), floats.flushed(scale)))


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_read_inputs_without_a_pass_before_them(name):
    x, scale = np.zeros(6, np.float32), np.float32(1)
    function = OPERATORS[name]
    jaxpr, of_exact = jax.make_jaxpr(function)(x, scale), jax.make_jaxpr(dml.exact(function))(x, scale)
    assert str(of_exact).count(" select_n ") == str(jaxpr).count(" select_n ")  # a flush is a select
