"""Before the graph is built, rewrites special contractions, concatenations, stacks and loops as simpler equations."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxdml.ptq._trace.counters import over_slices

Array = Any


def rewritten(
    eqn: Any, known: Sequence[np.ndarray | None], are_weights: Sequence[bool], are_read: Sequence[bool]
) -> Any:
    """The closed jaxpr that replaces an equation; None if the equation stays as it is.

    Args:
      eqn: the equation.
      known: for each input, its value if it is a literal, a captured array or an iota, else None.
      are_weights: for each input, whether it is a parameter, possibly with its axes moved.
      are_read: for each result, whether anything reads it.
    """
    avals = [atom.aval for atom in eqn.invars]
    if eqn.primitive.name == "scan":
        function = over_slices(eqn, known, are_weights, are_read)
    else:
        rewrite = REWRITES.get(eqn.primitive.name)
        function = None if rewrite is None else rewrite(eqn.params, avals)
    structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    with jax.disable_jit(False):
        return None if function is None else jax.make_jaxpr(function)(*structs)


def _multiplication(params: Mapping[str, Any], _: list[Any]) -> Callable[[Array, Array], Array] | None:
    """Rewrites a dot_general without contracted axes as a product of broadcast operands; None for others."""
    (contract, _), (batch_a, batch_b) = params["dimension_numbers"]
    if contract:
        return None

    def multiply(a: Array, b: Array) -> Array:
        free_a, free_b = (
            [axis for axis in range(x.ndim) if axis not in batch] for x, batch in ((a, batch_a), (b, batch_b))
        )
        a, b = lax.transpose(a, (*batch_a, *free_a)), lax.transpose(b, (*batch_b, *free_b))
        count = len(batch_a)
        shape = (*a.shape, *b.shape[count:])
        dtype = params["preferred_element_type"] or np.result_type(a, b)
        x = lax.broadcast_in_dim(a.astype(dtype), shape, range(a.ndim))
        y = lax.broadcast_in_dim(b.astype(dtype), shape, (*range(count), *range(a.ndim, len(shape))))
        return lax.mul(x, y)

    return multiply


def has_phases(params: Mapping[str, Any]) -> bool:
    """Whether a convolution is transposed, and `_build/phases.py` can compute it without zeros between pixels."""
    groups = params["feature_group_count"], params["batch_group_count"]
    is_plain = all(each == 1 for each in (*params["window_strides"], *params["rhs_dilation"], *groups))
    return is_plain and any(gap > 1 for gap in params["lhs_dilation"])


def _convolution(params: Mapping[str, Any], _: list[Any]) -> Callable[[Array, Array], Array] | None:
    """Rewrites input dilation as a pad, and negative padding as a slice; None for other convolutions.

    Transposed convolutions that `_build/phases.py` computes without zeros between pixels stay as they are.
    """
    gaps, padding = params["lhs_dilation"], params["padding"]
    if has_phases(params):
        return None
    if all(gap == 1 for gap in gaps) and all(size >= 0 for pair in padding for size in pair):
        return None

    def convolve(x: Array, w: Array) -> Array:
        spatial = params["dimension_numbers"].lhs_spec[2:]
        for axis, gap, (low, high) in zip(spatial, gaps, padding, strict=True):
            config = [(0, 0, gap - 1 if each == axis else 0) for each in range(x.ndim)]
            x = lax.pad(x, np.zeros((), x.dtype), config) if gap > 1 else x
            x = lax.slice_in_dim(x, max(-low, 0), x.shape[axis] - max(-high, 0), axis=axis) if min(low, high) < 0 else x
        options = {key: params[key] for key in KEPT}
        added = [tuple(max(size, 0) for size in pair) for pair in padding]
        return lax.conv_general_dilated(x, w, padding=added, **options)

    return convolve


def _concatenation(params: Mapping[str, Any], avals: list[Any]) -> Callable[..., Array] | None:
    """Drops empty operands, such as those of `lax.associative_scan`, because calibration finds no range for them."""
    axis = params["dimension"]
    kept = [
        place for place, aval in enumerate(avals) if not (isinstance(aval.shape[axis], int) and aval.shape[axis] == 0)
    ]
    if len(kept) in (0, len(avals)):
        return None
    return lambda *arrays: lax.concatenate([arrays[place] for place in kept], axis)


def _stack(params: Mapping[str, Any], _: list[Any]) -> Callable[..., Array]:
    """Rewrites a stack as a concatenation, which runs on integers."""
    axis = params["axis"]
    return lambda *arrays: lax.concatenate([lax.expand_dims(x, (axis,)) for x in arrays], axis)


def _unstack(params: Mapping[str, Any], _: list[Any]) -> Callable[[Array], list[Array]]:
    """Rewrites an unstack as a split, which runs on integers."""
    axis = params["axis"]
    return lambda x: [lax.squeeze(part, (axis,)) for part in lax.split(x, (1,) * x.shape[axis], axis)]


KEPT = (
    "window_strides", "rhs_dilation", "dimension_numbers", "feature_group_count", "batch_group_count", "precision",
    "preferred_element_type",
)  # fmt: skip
REWRITES: Mapping[str, Callable[[Mapping[str, Any], list[Any]], Callable[..., Any] | None]] = {
    "concatenate": _concatenation,
    "conv_general_dilated": _convolution,
    "dot_general": _multiplication,
    "stack": _stack,
    "unstack": _unstack,
}
