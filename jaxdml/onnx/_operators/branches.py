"""The operator If: both branches belong to the graph, and the values of one of them are chosen."""

from typing import Any

import jax.numpy as jnp
import onnx
from jax import lax

from jaxdml._graph.evaluate import shown
from jaxdml._graph.graph import CHOICE
from jaxdml.errors import ModelError
from jaxdml.onnx._operators._arrays import is_known
from jaxdml.onnx._table import BOOL, operator


def _branches(*, then_branch: onnx.GraphProto, else_branch: onnx.GraphProto) -> dict[str, Any]:
    """The node's conversion adds the nodes of the branches to the graph."""
    return {"then_branch": then_branch, "else_branch": else_branch}


@operator("If", types=(BOOL,), is_exact=True, only_selects=True, options=_branches, kind=CHOICE)
def choose(condition: Any, *values: Any) -> tuple[Any, ...]:
    """The first half of the values, which are those of one branch, if the condition is true; else the other half.

    Raises:
      ModelError: if the condition does not have one element, or if it depends on data while the branches' types or
        shapes differ.
    """
    if condition.size != 1:
        raise ModelError(f"the condition has {condition.size} elements, expected 1")
    half = len(values) // 2
    if is_known(condition):
        return values[:half] if condition.item() else values[half:]
    pairs = [(jnp.asarray(one), jnp.asarray(other)) for one, other in zip(values[:half], values[half:], strict=True)]
    for place, (one, other) in enumerate(pairs):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            text = "a condition that depends on data needs branches of equal types and shapes"
            raise ModelError(f"output {place} is {shown(one)} or {shown(other)}; {text}")
    return tuple(lax.select(condition.reshape(()), one, other) for one, other in pairs)
