"""Operators on images: resizing to the nearest pixels, and blocks of pixels as channels."""

from typing import Any

import numpy as np

from jaxdml.errors import ModelError
from jaxdml.onnx._arrays import axis_of, check_size, integers, namespace
from jaxdml.onnx._operators._coordinates import CROP, Axis, check_modes, pixels
from jaxdml.onnx._operators._floats import is_float
from jaxdml.onnx._table import operator


@operator("DepthToSpace", is_exact=True, kind="mover")
def depth_to_space(x: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    """Images whose pixels are blocks, from images whose channels hold the blocks."""
    batch, channels, height, width = x.shape
    depth, order = channels // blocksize**2, (0, 3, 4, 1, 5, 2)
    split = (batch, blocksize, blocksize, depth, height, width)
    if _mode(mode) == "CRD":
        order, split = (0, 1, 4, 2, 5, 3), (batch, depth, blocksize, blocksize, height, width)
    blocks = x.reshape(split).transpose(order)
    return blocks.reshape((batch, depth, height * blocksize, width * blocksize))


@operator("SpaceToDepth", until=27, is_exact=True, kind="mover")
def space_to_depth_alone(x: Any, *, blocksize: int) -> Any:
    """Images whose channels hold blocks of pixels."""
    return space_to_depth(x, blocksize=blocksize)


@operator("SpaceToDepth", since=28, is_exact=True, kind="mover")
def space_to_depth(x: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    """Images whose channels hold blocks of pixels; the mode says whether blocks or channels come first."""
    batch, channels, height, width = x.shape
    rows, columns = height // blocksize, width // blocksize
    order = (0, 3, 5, 1, 2, 4) if _mode(mode) == "DCR" else (0, 1, 3, 5, 2, 4)
    blocks = x.reshape((batch, channels, rows, blocksize, columns, blocksize)).transpose(order)
    return blocks.reshape((batch, channels * blocksize**2, rows, columns))


def _mode(mode: str) -> str:
    if mode not in ("DCR", "CRD"):
        raise ModelError(f"mode is {mode!r}, supported are DCR and CRD")
    return mode


def _oldest(*, mode: str = "nearest") -> dict[str, Any]:
    return _options(mode, "asymmetric", "simple")


def _older(
    *,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    extrapolation_value: float = 0.0,
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
) -> dict[str, Any]:
    return _options(mode, coordinate_transformation_mode, nearest_mode, extrapolation_value=extrapolation_value)


def _newest(
    *,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    extrapolation_value: float = 0.0,
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    antialias: int = 0,
    axes: tuple[int, ...] | None = None,
    keep_aspect_ratio_policy: str = "stretch",
) -> dict[str, Any]:
    """The options of `resize`; cubic_coeff_a, exclude_outside and antialias are about other modes."""
    more = {"extrapolation_value": extrapolation_value, "axes": axes, "policy": keep_aspect_ratio_policy}
    return _options(mode, coordinate_transformation_mode, nearest_mode, **more)


def _options(mode: str, coordinates: str, rounding: str, **more: Any) -> dict[str, Any]:
    if mode != "nearest":
        raise ModelError(f"mode is {mode!r}, supported is 'nearest'")
    check_modes(coordinates, rounding)
    return {"coordinates": coordinates, "rounding": rounding, "extrapolates": coordinates == CROP, **more}


@operator("Resize", until=10, is_exact=True, kind="mover", known=(1,), options=_oldest)
def resize_by_scales(x: Any, scales: Any, *, coordinates: str, rounding: str, extrapolates: bool = False) -> Any:
    """The image in another size, each pixel the one that is nearest to its place."""
    return resize(x, None, scales, coordinates=coordinates, rounding=rounding, extrapolates=extrapolates)


@operator("Resize", since=11, until=17, is_exact=True, kind="mover", known=(1, 2, 3), options=_older)
@operator("Resize", since=18, is_exact=True, kind="mover", known=(1, 2, 3), options=_newest)
def resize(
    x: Any,
    roi: Any = None,
    scales: Any = None,
    sizes: Any = None,
    *,
    coordinates: str,
    rounding: str,
    extrapolates: bool = False,
    extrapolation_value: float = 0.0,
    axes: tuple[int, ...] | None = None,
    policy: str = "stretch",
) -> Any:
    """The image in another size, by scales or by sizes, each pixel the one that is nearest to its place.

    An image that extrapolates has `extrapolation_value` for what lies outside of x.
    """
    places = tuple(range(x.ndim)) if not axes else tuple(axis_of(axis, x.ndim) for axis in axes)
    shape, ratios = _resized(x.shape, places, scales, sizes, policy)
    check_size(shape, x.dtype)
    if shape == x.shape:
        return x  # ONNX Runtime does not even crop
    kept = np.array([0, 1], np.float32).repeat(len(places)) if not extrapolates else roi
    for place, axis in enumerate(places):
        # ONNX Runtime crops no dimension whose scale is 1.
        if ratios[place] != 1:
            how = Axis(x.shape[axis], shape[axis], ratios[place], kept[place], kept[place + len(places)])
            nearest, is_outside = pixels(how, coordinates, rounding)
            x = _picked(x, nearest, axis)
            if extrapolates and is_outside.any():
                x = _extrapolated(x, is_outside, axis, extrapolation_value)
    return x


def _resized(
    shape: tuple[Any, ...], axes: tuple[int, ...], scales: Any, sizes: Any, policy: str
) -> tuple[tuple[Any, ...], list[Any]]:
    """The shape after, and the scale of each axis; a symbol may only stay as it is."""
    after = list(shape)
    if scales is not None and scales.size:
        ratios = list(scales.astype(np.float32))
        for axis, ratio in zip(axes, ratios, strict=True):
            after[axis] = shape[axis] if ratio == 1 else int(ratio * np.float32(shape[axis]))
        return tuple(after), ratios
    if sizes is None:
        raise ModelError("it has neither scales nor sizes")
    wanted = list(zip(axes, integers(sizes) or (), strict=True))
    ratios = [_ratio(size, shape[axis]) for axis, size in wanted]
    if policy not in _POLICIES:
        raise ModelError(f"keep_aspect_ratio_policy is {policy!r}, supported are {', '.join(_POLICIES)}")
    if policy != "stretch":
        ratio = _POLICIES[policy](ratios)
        wanted = [(axis, int(np.floor(ratio * np.float32(shape[axis]) + np.float32(0.5)))) for axis in axes]
        ratios = [ratio] * len(axes)
    for axis, size in wanted:
        after[axis] = size
    return tuple(after), ratios


_POLICIES: dict[str, Any] = {"stretch": None, "not_larger": min, "not_smaller": max}


def _ratio(size: Any, length: Any) -> np.float32:
    return np.float32(1) if size is length or size == length else np.float32(size) / np.float32(length)


def _picked(x: Any, indices: np.ndarray, axis: int) -> Any:
    """The parts of x at indices along an axis; XLA repeats parts faster than it gathers them."""
    count, rest = divmod(len(indices), max(x.shape[axis], 1))
    if rest == 0 and (indices == np.arange(len(indices)) // max(count, 1)).all():
        return namespace(x).repeat(x, count, axis)
    return namespace(x).take(x, indices, axis)


def _extrapolated(x: Any, is_outside: np.ndarray, axis: int, value: float) -> Any:
    if not is_float(x):
        # They may stand for floats by a zero point that this operator does not know.
        raise ModelError("the part that is cropped reaches beyond an image of integers, supported are floats")
    xp = namespace(x)
    mask = is_outside.reshape(tuple(-1 if a == axis else 1 for a in range(x.ndim)))
    return xp.where(xp.broadcast_to(mask, x.shape), xp.asarray(value).astype(x.dtype), x)
