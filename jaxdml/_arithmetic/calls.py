"""Finds the jaxpr that an equation calls, so that its equations can replace the call."""

from functools import partial
from typing import Any

import jax

CALLS = frozenset((
    "jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
    "checkpoint", "remat2", "remat_opt", "custom_vmap_call", "composite", "call_hi_primitive",
))  # fmt: skip


def called_jaxpr(eqn: Any) -> Any:
    """The jaxpr that an equation calls, with its constants if it has any; None if the equation is not a call."""
    if eqn.primitive.name not in CALLS:
        return None
    if eqn.primitive.name == "call_hi_primitive":  # JAX lowers jnp.searchsorted, jnp.nonzero and a few others late
        avals = (var.aval for var in eqn.invars)
        return jax.jit(partial(eqn.primitive.bind, **eqn.params)).trace(*avals).lojax.jaxpr
    return next(value for value in eqn.params.values() if hasattr(value, "eqns"))
