"""Resize by nearest neighbor; `interpolation` has Resize by linear interpolation, and shares the coordinates.

Coordinates are float32, and computed as in ONNX Runtime: a coordinate's last bit may decide which pixel is nearest.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxdml._quantized.axes import axis_of
from jaxdml.errors import ModelError
from jaxdml.onnx._limits import check_size
from jaxdml.onnx._operators._arrays import integers, is_float, namespace
from jaxdml.onnx._table import FLOAT, SCALE, SIZES, operator

CROP = "tf_crop_and_resize"
TYPES = FLOAT, SCALE, SIZES[1]  # of the region, the scales and the sizes
_NEAREST_FACTS: dict[str, Any] = {"is_exact": True, "kind": "mover"}
_HALF, _ONE, _NEAR = np.float32(0.5), np.float32(1), np.float32(1e-6)


# Coordinates ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """The resizing of one dimension.

    Attributes:
      place: the index of the dimension.
      length: the size of the input.
      resized: the size of the output.
      scale: the node's scale; resized / length may differ slightly from it, because resized is an integer.
      start: where the cropped region starts, as a fraction of the length.
      end: where the cropped region ends, as a fraction of the length.
    """

    place: int
    length: int
    resized: int
    scale: np.float32
    start: np.float32
    end: np.float32

    @property
    def growth(self) -> float:
        """The growth factor. Dimensions that shrink go first: no intermediate is larger than both x and the result."""
        return self.resized / max(self.length, 1)

    def originals(self, coordinates: str) -> np.ndarray:
        """For each output index, its float32 coordinate in the input, which may be outside of the input."""
        return np.asarray(_TRANSFORMATIONS[coordinates](np.arange(self.resized, dtype=np.float32), self))

    def is_outside(self, original: np.ndarray) -> np.ndarray:
        """Whether coordinates are outside of the input."""
        return (original < 0) | (original > np.float32(self.length - 1))

    def along(self, values: np.ndarray, ndim: int) -> np.ndarray:
        """A vector along this dimension of an array with `ndim` dimensions."""
        return values.reshape(tuple(-1 if place == self.place else 1 for place in range(ndim)))


def _asymmetric(x: Any, axis: Axis) -> Any:
    return x / axis.scale


def _half_pixel(x: Any, axis: Axis) -> Any:
    return (x + _HALF) / axis.scale - _HALF


def _pytorch_half_pixel(x: Any, axis: Axis) -> Any:
    return _half_pixel(x, axis) if axis.resized > 1 else np.zeros_like(x)


def _tf_half_pixel_for_nn(x: Any, axis: Axis) -> Any:
    return (x + _HALF) / axis.scale


def _align_corners(x: Any, axis: Axis) -> Any:
    if axis.resized == 1:
        return np.zeros_like(x)
    return x * np.float32(axis.length - 1) / np.float32(axis.resized - 1)


def _crop(x: Any, axis: Axis) -> Any:
    last = np.float32(axis.length - 1)
    if axis.resized > 1:
        return axis.start * last + (x * (axis.end - axis.start) * last) / np.float32(axis.resized - 1)
    return np.full_like(x, 0.5 * float(axis.start + axis.end) * float(last))


def _half_pixel_symmetric(x: Any, axis: Axis) -> Any:
    length = np.float32(axis.length)
    adjustment = np.float32(axis.resized) / (axis.scale * length)
    offset = length / np.float32(2) * (_ONE - adjustment)
    # ONNX Runtime computes the sum in float64, and rounds it once.
    return (np.float64(offset) + (x.astype(np.float64) + 0.5) / np.float64(axis.scale) - 0.5).astype(np.float32)


_TRANSFORMATIONS: Mapping[str, Callable[[Any, Axis], Any]] = {
    "asymmetric": _asymmetric,
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "tf_half_pixel_for_nn": _tf_half_pixel_for_nn,
    "align_corners": _align_corners,
    CROP: _crop,
}


def _rounded(x: Any, *, halves_up: bool) -> Any:
    """Rounds nonnegative x; negative x is clipped to 0 later. Like ONNX Runtime, treats fractions near 0.5 as 0.5."""
    floor = np.floor(x)
    above = x - floor
    is_half = np.abs(above - _HALF) < _NEAR
    return floor + np.where(is_half, np.float32(halves_up), (above > _HALF).astype(np.float32))


_NEAREST: Mapping[str, Callable[[Any, Axis], Any]] = {
    "simple": lambda x, axis: np.ceil(x) if axis.scale < 1 else np.trunc(x),
    "round_prefer_floor": lambda x, axis: _rounded(x, halves_up=False),
    "round_prefer_ceil": lambda x, axis: _rounded(x, halves_up=True),
    "floor": lambda x, axis: np.floor(x),
    "ceil": lambda x, axis: np.ceil(x),
}


def _pixels(axis: Axis, original: np.ndarray, rounding: str) -> np.ndarray:
    """For each coordinate, the index of the nearest input pixel."""
    return np.clip(_NEAREST[rounding](original, axis), 0, axis.length - 1).astype(np.int32)


# Attributes ----------------------------------------------------------------------------------------------------------


def options_10(*, mode: str = "nearest") -> dict[str, Any]:
    return _options(mode, "asymmetric", "simple")


def options_11(
    *,
    mode: str = "nearest",
    coordinate_transformation_mode: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    extrapolation_value: float = 0.0,
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
) -> dict[str, Any]:
    options = _options(mode, coordinate_transformation_mode, nearest_mode, exclude_outside=exclude_outside)
    return options | {"extrapolation_value": extrapolation_value}


def options_18(
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
    options = _options(
        mode, coordinate_transformation_mode, nearest_mode, exclude_outside=exclude_outside, antialias=antialias
    )
    return options | {"extrapolation_value": extrapolation_value, "axes": axes, "policy": keep_aspect_ratio_policy}


def _options(mode: str, coordinates: str, rounding: str, **of_linear: int) -> dict[str, Any]:
    """The options of both modes, and `rounding` for mode "nearest", which ignores the options `of_linear`.

    Raises:
      ModelError: if the node has an option that is not supported with its mode.
    """
    if coordinates not in _TRANSFORMATIONS:
        supported = ", ".join(sorted(_TRANSFORMATIONS))
        raise ModelError(f"coordinate_transformation_mode is {coordinates!r}; supported: {supported}")
    options = {"coordinates": coordinates, "extrapolates": coordinates == CROP}
    if mode == "nearest":
        if rounding not in _NEAREST:
            raise ModelError(f"nearest_mode is {rounding!r}; supported: {', '.join(sorted(_NEAREST))}")
        return options | {"rounding": rounding}
    if mode != "linear":
        raise ModelError(f"mode is {mode!r}; supported: 'nearest' and 'linear'")
    for name, value in of_linear.items():
        if value:
            raise ModelError(f"{name} is {value}; supported with mode 'linear': 0")
    return options


# Operators -----------------------------------------------------------------------------------------------------------


@operator("Resize", until=10, types=(None, SCALE), known=(1,), options=options_10, **_NEAREST_FACTS)
def resize_by_scales(x: Any, scales: Any, *, coordinates: str, rounding: str, extrapolates: bool = False) -> Any:
    """`resize` at opset 10, where the node has only scales."""
    return resize(x, None, scales, coordinates=coordinates, rounding=rounding, extrapolates=extrapolates)


@operator(
    "Resize", since=11, until=17, types=(None, *TYPES), is_exact=True, kind="mover", known=(1, 2, 3), options=options_11
)
@operator("Resize", since=18, types=(None, *TYPES), known=(1, 2, 3), options=options_18, **_NEAREST_FACTS)
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
    """x resized by scales or to sizes.

    If `extrapolates`, pixels outside of x become `extrapolation_value`.
    """
    resized = resized_axes(x, roi if extrapolates else None, scales, sizes, axes, policy)
    for axis in sorted(resized, key=lambda each: each.growth):
        original = axis.originals(coordinates)
        x = _taken(x, _pixels(axis, original, rounding), axis.place)
        if extrapolates:
            x = extrapolated(x, axis, original, extrapolation_value)
    return x


def resized_axes(
    x: Any, roi: Any, scales: Any, sizes: Any, axes: tuple[int, ...] | None, policy: str
) -> tuple[Axis, ...]:
    """The dimensions to resize: those whose scale is not 1, and none if x keeps its shape, as in ONNX Runtime.

    Raises:
      ModelError: if the result is too large, the policy is unknown, or the node has neither scales nor sizes.
    """
    axes = tuple(range(x.ndim)) if not axes else tuple(axis_of(axis, x.ndim) for axis in axes)
    shape, ratios = _resized(x.shape, axes, scales, sizes, policy)
    check_size(shape, x.dtype)
    if shape == x.shape:
        return ()
    region = np.array([0, 1], np.float32).repeat(len(axes)) if roi is None else roi
    return tuple(
        Axis(place, x.shape[place], shape[place], ratio, region[i], region[i + len(axes)])
        for i, (place, ratio) in enumerate(zip(axes, ratios, strict=True))
        if ratio != 1
    )


def _resized(
    shape: tuple[Any, ...], axes: tuple[int, ...], scales: Any, sizes: Any, policy: str
) -> tuple[tuple[Any, ...], list[Any]]:
    """The output's shape, and the scale of each axis; a symbolic dimension can only keep its size."""
    resized = list(shape)
    if scales is not None and scales.size:
        if scales.shape != (len(axes),):
            raise ModelError(f"scales have the shape {scales.shape}, expected {(len(axes),)}: one for each axis")
        ratios = list(scales.astype(np.float32))
        if not all(0 < ratio < np.inf for ratio in ratios):
            raise ModelError(f"scales are {scales.tolist()}, expected finite numbers above 0")
        for axis, ratio in zip(axes, ratios, strict=True):
            resized[axis] = shape[axis] if ratio == 1 else int(ratio * np.float32(shape[axis]))
        return tuple(resized), ratios
    if sizes is None:
        raise ModelError("it has neither scales nor sizes")
    targets = list(zip(axes, integers(sizes) or (), strict=True))
    ratios = [_ratio(size, shape[axis]) for axis, size in targets]
    if policy not in _POLICIES:
        raise ModelError(f"keep_aspect_ratio_policy is {policy!r}; supported: {', '.join(_POLICIES)}")
    if policy != "stretch":
        ratio = _POLICIES[policy](ratios)
        targets = [(axis, int(np.floor(ratio * np.float32(shape[axis]) + np.float32(0.5)))) for axis in axes]
        ratios = [ratio] * len(axes)
    for axis, size in targets:
        resized[axis] = size
    return tuple(resized), ratios


_POLICIES: dict[str, Any] = {"stretch": None, "not_larger": min, "not_smaller": max}


def _ratio(size: Any, length: Any) -> np.float32:
    return np.float32(1) if size is length or size == length else np.float32(size) / np.float32(length)


def _taken(x: Any, indices: np.ndarray, axis: int) -> Any:
    """x at the indices along an axis. For upsampling by an integer, XLA's repeat is faster than a gather."""
    count, rest = divmod(len(indices), max(x.shape[axis], 1))
    if rest == 0 and (indices == np.arange(len(indices)) // max(count, 1)).all():
        return namespace(x).repeat(x, count, axis)
    return namespace(x).take(x, indices, axis)


def extrapolated(x: Any, axis: Axis, original: np.ndarray, value: float) -> Any:
    """The resized x, with the value where the coordinates along an axis are outside of the input.

    Raises:
      ModelError: if there are such coordinates, and x has integers.
    """
    is_outside = axis.is_outside(original)
    if not is_outside.any():
        return x
    if not is_float(x):
        # The integers may be quantized; this operator does not know their zero point.
        raise ModelError("the cropped region reaches beyond an image of integers; supported: floats")
    xp = namespace(x)
    mask = axis.along(is_outside, x.ndim)
    return xp.where(xp.broadcast_to(mask, x.shape), xp.asarray(value).astype(x.dtype), x)
