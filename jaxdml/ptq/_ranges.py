"""Grids of integers for ranges of values, weights and biases: one formula for NumPy and JAX, with the same bits.

Arrays of NumPy are computed in NumPy, because eager JAX compiles a program for each shape. A subnormal counts as a
zero, as in the operators.
"""

from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._arithmetic import rounding
from jaxdml._shapes import is_integer
from jaxdml.errors import PtqError, api_boundary

Array = Any
SMALLEST = rounding.SMALLEST_NORMAL
INT32_MIN, INT32_MAX = np.float32(-(2.0**31)), np.float32(2.0**31 - 2.0**7)  # float32 numbers that int32 holds
ACTIVATIONS, WEIGHTS = ("int8", "uint8", "int16", "uint16"), ("int8", "int16")


@api_boundary
def scale_and_zero_point(
    low: chex.Numeric, high: chex.Numeric, dtype: chex.ArrayDType, symmetric: bool = False
) -> tuple[chex.Array, chex.Array]:
    """The grid of an integer type for values in [low, high], which is widened to hold 0.

    Affine: the scale is ``(high - low) / (Max - Min)``, the zero point ``clamp(round(Min - low / scale))``. Symmetric:
    the scale is ``max(-low, high) / Max`` and the zero point 0; an unsigned type has half as many steps on each side,
    ``(Max - 1) / 2``, and the zero point ``(Max + 1) / 2``. Each operation is rounded to float32, ties round to even.
    The scale of an empty range is 1, and no scale lies below 2**-126. The values of traced arrays cannot be checked: a
    NaN gives a NaN scale, a range too wide for float32 an infinite one.

    Args:
      low: the least value, a number or an array with one for each channel.
      high: the greatest value, of low's shape.
      dtype: int8, uint8, int16 or uint16.
      symmetric: whether the grid is symmetric around 0.

    Returns:
      The scale, float32, and the zero point, of dtype, both of low's shape; NumPy arrays unless low or high is of JAX.

    Raises:
      PtqError: if dtype is another type, shapes differ, or known values are NaN, infinite, low > high, or lie further
        apart than the greatest float32 number.
    """
    name = "scale_and_zero_point"
    integers = integer_type(f"{name}: dtype", dtype, ACTIVATIONS)
    shapes = np.shape(low), np.shape(high)
    if shapes[0] != shapes[1]:
        raise PtqError(f"{name}: low has shape {shapes[0]} and high {shapes[1]}, expected the same: broadcast one")
    lows, highs = _same_kind(low, high)
    if isinstance(lows, np.ndarray):
        _check_range(name, lows, highs)
    return _like((low, high), _grid(lows, highs, integers, symmetric))


@api_boundary
def quantize_weights(
    w: chex.Array, axis: int | None = None, dtype: chex.ArrayDType = jnp.int8
) -> tuple[chex.Array, chex.Array]:
    """Weights as integers times a scale: ``round(w / scale)``, ties to even, with the scale ``max(|w|) / Max``.

    The grid is symmetric, with the zero point 0: int8 weights lie in [-127, 127], and -128 is never used. A channel of
    zeros has the scale 1. The values of a traced w cannot be checked: a NaN or infinity gives such a scale.

    Args:
      w: float array of any shape.
      axis: the axis of output channels, each of which has a scale of its own; None for one scale.
      dtype: int8 or int16.

    Returns:
      The integers, of w's shape and dtype, and the scale, float32, of shape [channels] or []; NumPy arrays where w is.

    Raises:
      PtqError: if w holds no floats, has no such axis, or is known and holds NaN or infinity, or dtype is another type.
    """
    name = "quantize_weights"
    integers = integer_type(f"{name}: dtype", dtype, WEIGHTS)
    w = w if isinstance(w, jax.Array) else np.asarray(w)
    if not jnp.issubdtype(w.dtype, jnp.floating):
        raise PtqError(f"{name}: w holds {w.dtype}, expected floats: weights that are integers need no quantization")
    if axis is not None and not is_integer(axis):
        text = "expected an integer or None: axis is that of the output channels, not those that are reduced"
        raise PtqError(f"{name}: axis is {axis!r}, {text}")
    if axis is not None and not -w.ndim <= axis < w.ndim:
        raise PtqError(f"{name}: axis is {axis}, expected one of w, which has rank {w.ndim} and shape {w.shape}")
    form = _weights_of_jax if isinstance(w, jax.Array) else _weights
    quantized, scale = form(w, None if axis is None else axis % w.ndim, integers)
    if _is_known(scale):
        _check_finite(name, np.asarray(scale), "w", "training has diverged, or the weights are not the ones meant")
    return quantized, scale


@api_boundary
def quantize_bias(bias: chex.Array, input_scale: chex.Numeric, filter_scale: chex.Numeric) -> chex.Array:
    """A bias as int32 in steps of the sums that it is added to: ``round(bias / (input_scale * filter_scale))``.

    Each operation is rounded to float32, ties round to even. The values of traced arrays cannot be checked: what int32
    does not hold saturates.

    Args:
      bias: float array [channels].
      input_scale: that of the input, a positive number.
      filter_scale: that of the filter, a positive number or an array [channels].

    Returns:
      int32 array [channels]; a NumPy array unless an argument is of JAX.

    Raises:
      PtqError: if shapes do not fit, or known values are NaN or infinite, a scale or a product of scales is not above
        2**-126, or int32 does not hold the result; the message says which filter scale would do.
    """
    name = "quantize_bias"
    given = bias, input_scale, filter_scale
    shape = np.shape(bias)
    if len(shape) != 1 or np.shape(input_scale) != () or np.shape(filter_scale) not in ((), shape):
        shapes = f"bias has shape {shape}, input_scale {np.shape(input_scale)}, filter_scale {np.shape(filter_scale)}"
        raise PtqError(f"{name}: {shapes}, expected [channels], [] and [channels] or []")
    biases, by_input, by_filter = (_flushed(x) for x in _same_kind(*given))
    xp = _namespace(biases)
    by_input, by_filter = (xp.broadcast_to(x, shape) for x in (by_input, by_filter))
    known = isinstance(biases, np.ndarray)
    if known:
        _check_finite(name, biases, "bias", "training has diverged, or the bias is not the one meant")
        _check_scales(name, by_input, by_filter)
    with np.errstate(over="ignore"):
        steps = _quotient(biases, by_input * by_filter)
    if known:
        _check_bias(name, biases, by_input, steps)
    return _like(given, (_whole(steps, INT32_MIN, INT32_MAX, np.dtype(np.int32)),))[0]


def integer_type(told: str, dtype: Any, allowed: tuple[str, ...]) -> np.dtype:
    """The type that a caller gave; `told` begins the error where it is none of those allowed."""
    try:
        integers = None if dtype is None else np.dtype(dtype)  # NumPy takes None for float64
    except TypeError:
        integers = None
    if integers is None or integers.name not in allowed:
        raise PtqError(f"{told} is {integers or repr(dtype)}, expected {' or '.join(allowed)}")
    return integers


def _is_known(x: Any) -> bool:
    """Whether this process has the values."""
    return not isinstance(x, jax.Array) or (not isinstance(x, jax.core.Tracer) and x.is_fully_addressable)


def _same_kind(*given: Any) -> tuple[Array, ...]:
    """float32 arrays, of NumPy if all values are known, else of JAX."""
    with np.errstate(over="ignore"):
        if all(_is_known(x) for x in given):
            return tuple(np.asarray(x).astype(np.float32) for x in given)
        return tuple(jnp.asarray(x).astype(jnp.float32) for x in given)


def _like(given: tuple[Any, ...], results: tuple[Array, ...]) -> tuple[Array, ...]:
    """results of JAX if one of given is, else of NumPy."""
    is_jax = any(isinstance(x, jax.Array) for x in given)
    return tuple(jnp.asarray(x) if is_jax else np.asarray(x) for x in results)


def _namespace(x: Array) -> Any:
    return jnp if isinstance(x, jax.Array) else np


def _flushed(x: Array) -> Array:
    if isinstance(x, jax.Array):
        return rounding.flushed(x)
    return np.where(np.abs(x) < SMALLEST, np.float32(0), x)


def _quotient(x: Array, y: Array) -> Array:
    """fl(x / y), which XLA turns into no product and merges with no other division."""
    return rounding.quotient(x, y) if isinstance(x, jax.Array) else np.divide(x, y)


def _whole(x: Array, lowest: Any, highest: Any, dtype: np.dtype) -> Array:
    """clamp(round(x)); NaN gives the lowest, so that it is the same everywhere."""
    xp = _namespace(x)
    rounded = xp.rint(x)
    rounded = xp.where(rounded > lowest, rounded, np.float32(lowest))
    return xp.where(rounded < highest, rounded, np.float32(highest)).astype(dtype)


def _scale(extent: Array, steps: int) -> Array:
    """The scale of an extent of that many steps: 1 where it is 0, and never subnormal."""
    xp = _namespace(extent)
    scale = xp.maximum(_quotient(extent, xp.full_like(extent, steps)), SMALLEST)
    return xp.where(extent == np.float32(0), np.float32(1), scale)


def _grid(low: Array, high: Array, dtype: np.dtype, symmetric: bool) -> tuple[Array, Array]:
    xp, limits, zero = _namespace(low), np.iinfo(dtype), np.float32(0)
    low, high = xp.minimum(_flushed(low), zero), xp.maximum(_flushed(high), zero)
    if symmetric:
        middle = (limits.max + limits.min + 1) // 2
        return _scale(xp.maximum(-low, high), limits.max - middle), xp.full_like(low, middle, dtype=dtype)
    scale = _scale(high - low, limits.max - limits.min)
    offset = xp.full_like(low, limits.min) - _quotient(low, scale)
    return scale, _whole(offset, limits.min, limits.max, dtype)


def _weights(w: Array, axis: int | None, dtype: np.dtype) -> tuple[Array, Array]:
    xp, steps = _namespace(w), np.iinfo(dtype).max
    with np.errstate(over="ignore", invalid="ignore"):
        w = _flushed(w.astype(np.float32))
        others = tuple(d for d in range(w.ndim) if d != axis)
        scale = _scale(xp.max(xp.abs(w), axis=others, keepdims=True, initial=0), steps)
        quantized = _whole(_quotient(w, scale), -steps, steps, dtype)
    return quantized, scale.reshape(() if axis is None else (-1,))


_weights_of_jax = partial(jax.jit, static_argnums=(1, 2))(_weights)


def _check_range(name: str, low: np.ndarray, high: np.ndarray) -> None:
    source = "calibrate with finite data; an observer that has seen none has the range [inf, -inf]"
    for argument, values in (("low", low), ("high", high)):
        _check_finite(name, values, argument, source)
    if (low > high).any():
        raise PtqError(f"{name}: low is above high{_where(low > high)}: swap them")
    with np.errstate(over="ignore"):
        is_wide = ~np.isfinite(np.maximum(high, 0) - np.minimum(low, 0))
    if is_wide.any():
        raise PtqError(f"{name}: high - low is no finite float32 number{_where(is_wide)}: clip the range")


def _check_finite(name: str, values: np.ndarray, argument: str, source: str) -> None:
    is_wrong = ~np.isfinite(values)
    if is_wrong.any():
        raise PtqError(f"{name}: {argument} holds NaN or infinity{_where(is_wrong)}: {source}")


def _check_scales(name: str, input_scale: np.ndarray, filter_scale: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        product = input_scale * filter_scale
        is_right = (input_scale > 0) & (filter_scale > 0) & (product > SMALLEST) & np.isfinite(product)
    if not is_right.all():
        rule = "input_scale, filter_scale and their product must be finite and above 2**-126"
        raise PtqError(f"{name}: {rule}, and are not{_where(~is_right)}: take the scales that quantization gave")


def _check_bias(name: str, bias: np.ndarray, input_scale: np.ndarray, steps: np.ndarray) -> None:
    is_large = ~((np.rint(steps) >= INT32_MIN) & (np.rint(steps) <= INT32_MAX))
    if is_large.any():
        enough = (np.abs(bias) / (input_scale * np.float32(2**30)))[is_large]
        raise PtqError(
            f"{name}: bias / (input_scale * filter_scale) does not fit int32{_where(is_large)}. Quantize the filter "
            "with filter_scale = max(filter_scale, |bias| / (input_scale * 2**30)), there at least "
            f"{', '.join(str(x) for x in enough[:8])}"
        )


def _where(is_wrong: np.ndarray) -> str:
    """Where an array is wrong, to be read behind what is wrong."""
    if is_wrong.ndim == 0:
        return ""
    (wrong,) = np.nonzero(is_wrong.reshape(-1))
    listed = ", ".join(str(channel) for channel in wrong[:8]) + (", ..." if len(wrong) > 8 else "")
    return f" in channel{'s' if len(wrong) > 1 else ''} {listed}"
