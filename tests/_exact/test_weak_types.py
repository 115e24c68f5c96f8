"""Results are weakly typed where JAX's are: they take the type of another operand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml

FUNCTIONS = {
    "identity": lambda x: x,
    "constant": lambda x: 1.0,
    "strong": lambda x: jnp.asarray(x, jnp.float32),
    "strong array": lambda x: x + np.ones(2, np.float32),
    "exp": jnp.exp,
    "array": lambda x: jnp.exp(jnp.broadcast_to(x, (2,))),
    "integer": lambda x: x.astype(int),
    "while": lambda x: lax.while_loop(lambda c: c < 3, lambda c: c * 2.0, x),
    "cond": lambda x: lax.cond(x > 0, jnp.exp, lambda x: x, x),
    "scan": lambda x: lax.scan(lambda c, _: (jnp.exp(c), c), x, None, length=2),
    "grad": jax.grad(jnp.exp),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_have_the_types_of_jaxs(name):
    f = FUNCTIONS[name]
    assert types_of(dml.exact(f)) == types_of(f)


@pytest.mark.rare
def test_gradients_of_exact_functions_have_the_types_of_jaxs():
    for f in (jnp.exp, lambda x: jnp.exp(jnp.asarray(x, jnp.float32))):
        assert types_of(jax.grad(dml.exact(f))) == types_of(jax.grad(f))
    assert (jnp.ones(2, jnp.bfloat16) * dml.exact(jnp.exp)(0.5)).dtype == jnp.bfloat16


def types_of(f):
    return jax.tree.map(lambda x: (x.dtype, x.weak_type), jax.jit(f).trace(0.5).out_info)
