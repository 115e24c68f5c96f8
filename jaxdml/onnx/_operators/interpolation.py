"""Resize by linear interpolation.

A result is a weighted sum over the corners of the cell around its coordinates: two pixels along each resized dimension.
The weights, the order of the sum and all roundings are those of ONNX Runtime.
"""

import itertools
from collections.abc import Iterator
from functools import partial, reduce
from typing import Any

import numpy as np

from jaxdml.errors import ModelError
from jaxdml.onnx._limits import check_size
from jaxdml.onnx._operators._arrays import broadcast, computed, is_float, is_known, is_narrow, namespace, sealed
from jaxdml.onnx._operators.resize import TYPES, Axis, extrapolated, options_10, options_11, options_18, resized_axes
from jaxdml.onnx._table import BYTE, FLOAT, SCALE, operator

MOST_AXES = 3
_BITS = 10  # of an integer weight
_ARRAYS = 11  # for a known result, NumPy needs at most this many arrays of its size at once, in float32 or wider
_LINEAR: dict[str, Any] = {"mode": "linear", "is_exact": True}


@operator("Resize", until=10, types=(FLOAT | BYTE, SCALE), known=(1,), options=options_10, **_LINEAR)
def interpolate_by_scales(x: Any, scales: Any, *, coordinates: str, extrapolates: bool = False) -> Any:
    """`interpolate` at opset 10, where the node has only scales."""
    return interpolate(x, None, scales, coordinates=coordinates, extrapolates=extrapolates)


@operator("Resize", since=11, until=17, types=(FLOAT | BYTE, *TYPES), known=(1, 2, 3), options=options_11, **_LINEAR)
@operator("Resize", since=18, types=(FLOAT | BYTE, *TYPES), known=(1, 2, 3), options=options_18, **_LINEAR)
def interpolate(
    x: Any,
    roi: Any = None,
    scales: Any = None,
    sizes: Any = None,
    *,
    coordinates: str,
    extrapolates: bool = False,
    extrapolation_value: float = 0.0,
    axes: tuple[int, ...] | None = None,
    policy: str = "stretch",
) -> Any:
    """x resized by scales or to sizes, by linear interpolation along at most three dimensions.

    If `extrapolates`, pixels outside of x become `extrapolation_value`.
    """
    if not (is_float(x) or x.dtype.name in BYTE):
        raise ModelError(f"input 0 is {x.dtype}; supported with mode 'linear': {', '.join(sorted(FLOAT | BYTE))}")
    resized = resized_axes(x, roi if extrapolates else None, scales, sizes, axes, policy)
    if not resized:
        return x
    if len(resized) > MOST_AXES:
        raise ModelError(f"{len(resized)} dimensions are resized; supported with mode 'linear': {MOST_AXES}")
    if is_known(x):
        of_axes, wide = {axis.place: axis.resized for axis in resized}, np.promote_types(x.dtype, np.float32)
        check_size(x.shape, wide)
        check_size(tuple(of_axes.get(place, size) for place, size in enumerate(x.shape)), wide, _ARRAYS)
    originals = [axis.originals(coordinates) for axis in resized]
    # ONNX Runtime interpolates bytes in integers if the channels are the last of four dimensions.
    by_integers = not is_float(x) and x.ndim == 4 and resized[0].place == 1
    y = (_by_integers if by_integers else _by_floats)(x, resized, originals)
    if extrapolates:
        for axis, original in zip(resized, originals, strict=True):
            y = extrapolated(y, axis, original, extrapolation_value)
    return y


def _by_floats(x: Any, axes: tuple[Axis, ...], originals: list[np.ndarray]) -> Any:
    """The weighted sum in float32, or in float64 if x is float64; integer results are rounded toward zero."""
    wide = x.astype(np.float32) if is_narrow(x) or not is_float(x) else x
    pairs = [_weights(axis, original) for axis, original in zip(axes, originals, strict=True)]
    return reduce(partial(computed, "add"), _terms(wide, axes, pairs)).astype(x.dtype)


def _terms(x: Any, axes: tuple[Axis, ...], pairs: list[Any]) -> Iterator[Any]:
    """Yields x at each corner times the corner's weight. The caller adds each before it takes the next."""
    for corner, weight in _corners(x, axes, pairs):
        weights = namespace(x).asarray(weight.astype(x.dtype))
        yield sealed(computed("multiply", *broadcast(corner, weights)))


def _by_integers(x: Any, axes: tuple[Axis, ...], originals: list[np.ndarray]) -> Any:
    """The weighted sum in int32, with weights of 10 bits along each dimension, rounded toward zero."""
    pairs = [_integer_weights(axis, original) for axis, original in zip(axes, originals, strict=True)]
    total = sum(corner * weight for corner, weight in _corners(x.astype(np.int32), axes, pairs))
    bits = _BITS * len(axes)
    return ((total + ((total >> 31) & (2**bits - 1))) >> bits).astype(x.dtype)


def _corners(x: Any, axes: tuple[Axis, ...], pairs: list[Any]) -> Iterator[tuple[Any, np.ndarray]]:
    """Yields x at each corner, in lexicographic order, and the product of the corner's weights, from the last dimension
    to the first.
    """
    for corner in itertools.product((0, 1), repeat=len(axes)):
        ends = list(zip(axes, pairs, corner, strict=True))
        taken = x
        for axis, (indices, _), end in sorted(ends, key=lambda each: each[0].growth):
            taken = namespace(x).take(taken, indices[end], axis.place)
        yield taken, reduce(np.multiply, [axis.along(weights[end], x.ndim) for axis, (_, weights), end in ends[::-1]])


_Pair = tuple[np.ndarray, np.ndarray]


def _weights(axis: Axis, original: np.ndarray) -> tuple[_Pair, _Pair]:
    """The indices of both pixels around each coordinate, and their weights; at the last pixel, both weights are 0.5."""
    inside, first, second = _neighbors(axis, original)
    near, far = (np.abs(inside - index.astype(np.float32)) for index in (first, second))
    is_last, half = first == second, np.float32(0.5)
    return (first, second), (np.where(is_last, half, far), np.where(is_last, half, near))


def _integer_weights(axis: Axis, original: np.ndarray) -> tuple[_Pair, _Pair]:
    """`_weights` in integers, times 2**10."""
    inside, first, second = _neighbors(axis, original)
    steps = (inside * np.float32(2**_BITS)).astype(np.int32)
    near, far = (np.abs(steps - index * 2**_BITS).astype(np.int32) for index in (first, second))
    is_last, half = first == second, np.int32(2 ** (_BITS - 1))
    return (first, second), (np.where(is_last, half, far), np.where(is_last, half, near))


def _neighbors(axis: Axis, original: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The coordinates, clipped to the input, and the indices of both pixels around each of them."""
    inside = np.clip(original, np.float32(0), np.float32(axis.length - 1))
    first = inside.astype(np.int32)
    return inside, first, np.minimum(first + 1, axis.length - 1).astype(np.int32)
