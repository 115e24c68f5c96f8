"""Finds the jaxpr that an equation calls, so that its equations can replace the call."""

from typing import Any

CALLS = frozenset((
    "jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
    "checkpoint", "remat2",
))  # fmt: skip


def called_jaxpr(eqn: Any) -> Any:
    """The jaxpr that an equation calls, with its constants if it has any; None if the equation is not a call."""
    if eqn.primitive.name not in CALLS:
        return None
    return next(value for value in eqn.params.values() if hasattr(value, "eqns"))
