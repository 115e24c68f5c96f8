"""Where the pixels of a resized image lie in the image, and which pixels of it are nearest.

Float32, operation by operation, as ONNX Runtime computes: a pixel may change with the last bit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxdml.errors import ModelError

CROP = "tf_crop_and_resize"
_HALF, _ONE, _NEAR = np.float32(0.5), np.float32(1), np.float32(1e-6)


@dataclass(frozen=True)
class Axis:
    """How one dimension is resized.

    Attributes:
      length: its size before.
      resized: its size after.
      scale: the ratio that is meant, which the sizes may not have exactly.
      start: where the part that is kept begins, as a share of the length.
      end: where that part ends.
    """

    length: int
    resized: int
    scale: np.float32
    start: np.float32
    end: np.float32


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
    # Doubles from here on, and one rounding.
    return (np.float64(offset) + (x.astype(np.float64) + 0.5) / np.float64(axis.scale) - 0.5).astype(np.float32)


_ORIGINALS: Mapping[str, Callable[[Any, Axis], Any]] = {
    "asymmetric": _asymmetric,
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "tf_half_pixel_for_nn": _tf_half_pixel_for_nn,
    "align_corners": _align_corners,
    CROP: _crop,
}


def _rounded(x: Any, *, halves_up: bool) -> Any:
    """Positive x rounded; negative ones become pixel 0 anyway. ONNX Runtime takes what is near a half for one."""
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


def check_modes(coordinates: str, rounding: str) -> None:
    """Refuses unknown modes.

    Raises:
      ModelError: if there is no such rule for coordinates, or for the nearest pixel.
    """
    if coordinates not in _ORIGINALS:
        raise ModelError(
            f"coordinate_transformation_mode is {coordinates!r}, supported are {', '.join(sorted(_ORIGINALS))}"
        )
    if rounding not in _NEAREST:
        raise ModelError(f"nearest_mode is {rounding!r}, supported are {', '.join(sorted(_NEAREST))}")


def pixels(axis: Axis, coordinates: str, rounding: str) -> tuple[np.ndarray, np.ndarray]:
    """For each place of a resized dimension the index of the nearest pixel, and whether the place lies outside."""
    original = _ORIGINALS[coordinates](np.arange(axis.resized, dtype=np.float32), axis)
    is_outside = (original < 0) | (original > np.float32(axis.length - 1))
    nearest = np.clip(_NEAREST[rounding](original, axis), 0, axis.length - 1).astype(np.int32)
    return nearest, is_outside
