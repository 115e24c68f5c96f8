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


@pytest.mark.parametrize("scale", [np.float32(1e-40), np.float32(2e-38)])
def test_a_quantize_reads_inputs_that_are_not_flushed_and_gives_the_same_bits(scale):
    x = np.float32([0, 1e-40, -1e-40, 1.1e-38, 2e-38, np.nan])
    quantize = lambda x: dml.element_wise_quantize_linear(x, scale, np.uint8(3))  # noqa: E731
    assert_same_bits(jax.jit(dml.exact(quantize))(x), quantize(x))
