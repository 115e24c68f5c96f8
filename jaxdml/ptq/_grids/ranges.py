"""Scales and zero points of values, weights and biases: formulas that give the same bits in NumPy and in JAX.

Results for NumPy arrays are computed in NumPy, because eager JAX compiles a program for each shape. Subnormal numbers
count as zero, as in the operators.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._arithmetic import block_panels, rounding
from jaxdml._arithmetic.panels import namespace_of
from jaxdml._shapes import is_integer
from jaxdml.errors import PtqError, api_boundary
from jaxdml.typing import Array, DType, Scale

SMALLEST = rounding.SMALLEST_NORMAL
INT32_MIN, INT32_MAX = np.float32(-(2.0**31)), np.float32(2.0**31 - 2.0**7)  # the limits of int32, as float32
ACTIVATIONS, WEIGHTS = ("int8", "uint8", "int16", "uint16"), ("int8", "int16")
BLOCK_WEIGHTS, BLOCK_SIZES = ("int4", "int8"), block_panels.SIZES
FAR_ABOVE_SUBNORMAL = np.float32(2.0**-100)
STEPS = {"int4": 7, "int8": 127}  # steps on either side of 0
# "mse" tries these multiples of the "minmax" scale, and takes the first one with the least error.
SHARES = 1 - np.arange(16, dtype=np.float32) / 32


@api_boundary
def scale_and_zero_point(low: Scale, high: Scale, dtype: DType, symmetric: bool = False) -> tuple[Array, Array]:
    """The scale and zero point with which an integer type covers [low, high], widened to include 0.

    Min and Max are the limits of dtype. By default the scale is ``(high - low) / (Max - Min)``, and the zero point is
    ``clamp(round(Min - low / scale))``. If symmetric, the scale is ``max(-low, high) / Max`` and the zero point is 0;
    for unsigned types, ``(Max - 1) / 2`` replaces Max, and the zero point is ``(Max + 1) / 2``. Each operation rounds
    to float32, ties to even. The range [0, 0] has the scale 1, and no scale is below 2**-126. Traced arrays are not
    validated: NaN gives a NaN scale, and a range too wide for float32 gives an infinite scale.

    Args:
      low: the least value, a number or an array with one number for each channel.
      high: the greatest value, of low's shape.
      dtype: int8, uint8, int16 or uint16.
      symmetric: whether the range is symmetric around 0.

    Returns:
      The scale, float32, and the zero point, of type dtype, both in low's shape; NumPy arrays unless low or high is a
      JAX array.

    Raises:
      PtqError: if dtype is not one of these types, or if the shapes of low and high differ. If neither is traced, the
        error is also raised if one of them holds NaN or infinity, if low > high, or if high - low is infinite in
        float32.
    """
    name = "scale_and_zero_point"
    integers = integer_type(f"{name}: dtype", dtype, ACTIVATIONS)
    _check_numbers(name, low=low, high=high)
    shapes = np.shape(low), np.shape(high)
    if shapes[0] != shapes[1]:
        raise PtqError(f"{name}: low has shape {shapes[0]} and high {shapes[1]}, expected equal shapes: broadcast one")
    lows, highs = _same_kind(low, high)
    if isinstance(lows, np.ndarray):
        _check_range(name, lows, highs)
    return _like((low, high), _grid(lows, highs, integers, symmetric))


@api_boundary
def quantize_weights(
    w: Array,
    axis: int | None = None,
    dtype: DType = jnp.int8,
    *,
    block_size: int | None = None,
    method: Literal["minmax", "mse"] = "minmax",
) -> tuple[Array, Array]:
    """Quantizes weights to ``round(w / scale)``, ties to even, with the scale ``max(|w|) / Max`` and the zero point 0.

    int8 weights lie in [-127, 127] and int4 weights in [-7, 7]: the least integer is never used. A channel or block of
    zeros has the scale 1. A traced w is not validated: NaN in w gives a NaN scale, and infinity an infinite scale.

    With a `block_size`, w is a matrix, and the results are `b` and `b_scale` of `jaxdml.matrix_multiply_blocks`: each
    block of that many weights in an output channel has its own scale.

    Args:
      w: float array of any shape; a matrix if there is a block_size.
      axis: the axis of output channels, each of which gets a scale; None for one scale for all weights.
      dtype: int8 or int16; int4 or int8 if there is a block_size.
      block_size: the number of a channel's weights in a block: 16, 32, 64, 128 or 256; the last block may have fewer.
        None for no blocks.
      method: how the scale of a block is chosen. "minmax": all weights fit. "mse": 16 scales, from about half of the
        "minmax" scale up to it, are tried, and the one with the least squared error is chosen; weights that do not fit
        are clamped.

    Returns:
      The integers, of type dtype and in w's shape, and the scale, float32 [channels] or []; NumPy arrays unless w is a
      JAX array. With a block_size, the integers are [channels, K] and the scale is [channels, blocks].

    Raises:
      PtqError: if w is not a float array or lacks the axis, or if dtype, block_size or method is not one of those
        listed. If w is not traced, the error is also raised if w holds NaN or infinity.
    """
    name = "quantize_weights"
    allowed = WEIGHTS if block_size is None else BLOCK_WEIGHTS
    integers = integer_type(f"{name}: dtype", dtype, tuple(dict.fromkeys((*allowed, *BLOCK_WEIGHTS))))
    if integers.name not in allowed:
        text = f"dtype is {integers}, expected {' or '.join(allowed)}; write block_size=32 for {integers}"
        raise PtqError(f"{name}: {text}")
    w = w if isinstance(w, jax.Array) else np.asarray(w)
    if not jnp.issubdtype(w.dtype, jnp.floating):
        raise PtqError(f"{name}: w holds {w.dtype}, expected floats: weights that are integers need no quantization")
    if axis is not None and not is_integer(axis):
        text = "expected an integer or None: give the axis of the output channels, not the reduced axes"
        raise PtqError(f"{name}: axis is {axis!r}, {text}")
    if axis is not None and not -w.ndim <= axis < w.ndim:
        raise PtqError(f"{name}: axis is {axis}, expected an axis of w, which has rank {w.ndim} and shape {w.shape}")
    _check_blocks(name, w, axis, block_size, method)
    if block_size is not None:
        rows = w if axis in (0, -2) else w.T
        form: Any = _block_weights_of_jax if isinstance(w, jax.Array) else _block_weights
        quantized, scale = form(rows, block_size, integers, method)
    else:
        form = _weights_of_jax if isinstance(w, jax.Array) else _weights
        quantized, scale = form(w, None if axis is None else axis % w.ndim, integers)
    if block_size is not None and _is_known(scale):
        _check_finite(
            name, np.asarray(scale).max(1, initial=0), "w", "training has diverged, or these are the wrong weights"
        )
    elif _is_known(scale):
        _check_finite(name, np.asarray(scale), "w", "training has diverged, or these are the wrong weights")
    return quantized, scale


@api_boundary
def quantize_bias(bias: Array, input_scale: Scale, filter_scale: Scale) -> Array:
    """Quantizes a bias to int32 with the scale of the sums of products: ``round(bias / (input_scale * filter_scale))``.

    Each operation rounds to float32, ties to even. Traced arrays are not validated: values beyond int32 saturate.

    Args:
      bias: float array [channels].
      input_scale: the scale of the input, a positive number.
      filter_scale: the scale of the filter, a positive number or an array [channels].

    Returns:
      int32 array [channels]; a NumPy array unless an argument is a JAX array.

    Raises:
      PtqError: if shapes do not match. If no argument is traced, the error is also raised if an argument holds NaN or
        infinity, if a scale is not positive, if a product of scales is not above 2**-126, or if the result exceeds
        int32; in the last case, the error suggests a larger filter scale.
    """
    name = "quantize_bias"
    _check_numbers(name, bias=bias, input_scale=input_scale, filter_scale=filter_scale)
    given = bias, input_scale, filter_scale
    shape = np.shape(bias)
    if len(shape) != 1 or np.shape(input_scale) != () or np.shape(filter_scale) not in ((), shape):
        shapes = f"bias has shape {shape}, input_scale {np.shape(input_scale)}, filter_scale {np.shape(filter_scale)}"
        raise PtqError(
            f"{name}: {shapes}, expected a bias [channels], an input_scale of shape (), "
            "and a filter_scale of shape () or [channels]"
        )
    biases, by_input, by_filter = (_flushed(x) for x in _same_kind(*given))
    xp = namespace_of(biases)
    by_input, by_filter = (xp.broadcast_to(x, shape) for x in (by_input, by_filter))
    known = isinstance(biases, np.ndarray)
    if known:
        _check_finite(name, biases, "bias", "training has diverged, or this is the wrong bias")
        _check_scales(name, by_input, by_filter)
    with np.errstate(over="ignore"):
        steps = _quotient(biases, by_input * by_filter)
    if known:
        _check_bias(name, biases, by_input, steps)
    return _like(given, (_whole(steps, INT32_MIN, INT32_MAX, np.dtype(np.int32)),))[0]


def integer_type(argument: str, dtype: Any, allowed: tuple[str, ...], remedy: str = "") -> np.dtype:
    """Validates an argument that names an integer type; errors end with the remedy.

    Raises:
      PtqError: if the type is not allowed.
    """
    try:
        integers = None if dtype is None else np.dtype(dtype)  # NumPy takes None for float64
    except TypeError:
        integers = None
    if integers is None or integers.name not in allowed:
        raise PtqError(f"{argument} is {integers or repr(dtype)}, expected {' or '.join(allowed)}{remedy}")
    return integers


def _check_numbers(name: str, **given: Any) -> None:
    for argument, x in given.items():
        dtype = x.dtype if isinstance(x, jax.Array) else np.asarray(x).dtype
        if not any(jnp.issubdtype(dtype, kind) for kind in (np.bool_, np.integer, np.floating)):
            raise PtqError(f"{name}: {argument} is {x!r:.60}, expected a number or an array of numbers")


def _is_known(x: Any) -> bool:
    """Whether this process can read the values of an argument."""
    return not isinstance(x, jax.Array) or (not isinstance(x, jax.core.Tracer) and x.is_fully_addressable)


def _same_kind(*given: Any) -> tuple[Any, ...]:
    """The arguments as float32: NumPy arrays if this process can read all values, else JAX arrays."""
    with np.errstate(over="ignore"):
        if all(_is_known(x) for x in given):
            return tuple(np.asarray(x).astype(np.float32) for x in given)
        return tuple(jnp.asarray(x).astype(jnp.float32) for x in given)


def _like(given: tuple[Any, ...], results: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results as JAX arrays if an argument is a JAX array, else as NumPy arrays."""
    is_jax = any(isinstance(x, jax.Array) for x in given)
    return tuple(jnp.asarray(x) if is_jax else np.asarray(x) for x in results)


def _flushed(x: Any) -> Any:
    if isinstance(x, jax.Array):
        return rounding.flushed(x)
    return np.where(np.abs(x) < SMALLEST, np.float32(0), x)


def _quotient(x: Any, y: Any) -> Any:
    """fl(x / y), guarded against XLA's rewrites of divisions."""
    return rounding.quotient(x, y) if isinstance(x, jax.Array) else np.divide(x, y)


def _whole(x: Any, lowest: Any, highest: Any, dtype: np.dtype) -> Any:
    """clamp(round(x)); NaN gives `lowest` on every platform."""
    xp = namespace_of(x)
    rounded = xp.rint(x)
    rounded = xp.where(rounded > lowest, rounded, np.float32(lowest))
    return xp.where(rounded < highest, rounded, np.float32(highest)).astype(dtype)


def _scale(extent: Any, steps: int) -> Any:
    """extent / steps, never subnormal; 1 for an extent of 0."""
    xp = namespace_of(extent)
    scale = xp.maximum(_quotient(extent, xp.full_like(extent, steps)), SMALLEST)
    return xp.where(extent == np.float32(0), np.float32(1), scale)


def _grid(low: Any, high: Any, dtype: np.dtype, symmetric: bool) -> tuple[Any, Any]:
    xp, limits, zero = namespace_of(low), np.iinfo(dtype), np.float32(0)
    low, high = xp.minimum(_flushed(low), zero), xp.maximum(_flushed(high), zero)
    if symmetric:
        middle = (limits.max + limits.min + 1) // 2
        return _scale(xp.maximum(-low, high), limits.max - middle), xp.full_like(low, middle, dtype=dtype)
    scale = _scale(high - low, limits.max - limits.min)
    offset = xp.full_like(low, limits.min) - _quotient(low, scale)
    return scale, _whole(offset, limits.min, limits.max, dtype)


def _weights(w: Any, axis: int | None, dtype: np.dtype) -> tuple[Any, Any]:
    xp, steps = namespace_of(w), np.iinfo(dtype).max
    with np.errstate(over="ignore", invalid="ignore"):
        w = _flushed(w.astype(np.float32))
        others = tuple(d for d in range(w.ndim) if d != axis)
        scale = _scale(xp.max(xp.abs(w), axis=others, keepdims=True, initial=0), steps)
        quantized = _whole(_quotient(w, scale), -steps, steps, dtype)
    return quantized, scale.reshape(() if axis is None else (-1,))


_weights_of_jax = partial(jax.jit, static_argnums=(1, 2))(_weights)


def _block_weights(w: np.ndarray, size: int, dtype: np.dtype, method: str) -> tuple[np.ndarray, np.ndarray]:
    """`_in_blocks` for a few rows at a time, so that they stay in the cache."""
    rows, depth = w.shape
    if not w.size:
        return np.zeros(w.shape, dtype), np.ones((rows, -(-depth // size)), np.float32)
    step = max(1, 2**17 // depth)
    parts = [w[first : first + step] for first in range(0, rows, step)]

    def quantized_part(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(over="ignore", invalid="ignore"):
            return _in_blocks(part, size, dtype, method)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(quantized_part, parts))
    quantized, scales = zip(*results, strict=True)
    return np.concatenate(quantized), np.concatenate(scales)


def _in_blocks(w: Any, size: int, dtype: np.dtype, method: str) -> tuple[Any, Any]:
    """The integers [rows, depth] and the scales [rows, blocks] of w [rows, depth]."""
    xp, steps, (rows, depth) = namespace_of(w), STEPS[dtype.name], w.shape
    x = w.astype(np.float32, copy=False)
    x = xp.pad(x, ((0, 0), (0, -depth % size))) if depth % size else x
    x = x.reshape(rows, x.shape[1] // size, size)
    high = _flushed(xp.max(xp.abs(x), axis=2, initial=0))
    if xp is jnp or not (high > FAR_ABOVE_SUBNORMAL).all():  # otherwise subnormal numbers round to 0 anyway
        x = _flushed(x)
    scale = _scale(high, steps)
    if method == "mse":
        scale = _least_error(x, scale, steps)
    quotients = _quotient(x, scale[:, :, None])
    if xp is np and method == "minmax":  # all quotients are in range: no clamp, fewer passes
        quantized = np.rint(quotients, out=quotients).astype(np.int8)
    else:
        quantized = _whole(quotients, -steps, steps, np.dtype(np.int8))
    quantized = quantized.reshape(rows, x.shape[1] * size)[:, :depth]
    if xp is np and dtype.name == "int4":  # faster than NumPy's conversion; the high nibble is 0
        return (quantized & np.int8(15)).view(dtype), scale
    return quantized.astype(dtype), scale


def _least_error(x: Any, largest: Any, steps: int) -> Any:
    """The scale of `largest * SHARES` with the least squared error, which is summed in float32, element by element."""
    xp = namespace_of(x)
    scales = xp.maximum(_flushed(largest[None] * SHARES[:, None, None]), SMALLEST)
    errors = xp.zeros_like(scales)
    for here in xp.moveaxis(x, 2, 0):
        here = xp.broadcast_to(here[None], scales.shape)
        values = _whole(_quotient(here, scales), -steps, steps, np.dtype(np.float32))
        off = _flushed(here - _flushed(values * scales))
        errors = _flushed(errors + _flushed(off * off))
    best = xp.take_along_axis(scales, xp.argmin(errors, axis=0)[None], 0)[0]
    return xp.where(largest == largest, best, largest)


_block_weights_of_jax = partial(jax.jit, static_argnums=(1, 2, 3))(_in_blocks)


def _check_blocks(name: str, w: Any, axis: int | None, block_size: Any, method: Any) -> None:
    if method not in ("minmax", "mse"):
        raise PtqError(f"{name}: method is {method!r}, expected 'minmax' or 'mse'")
    if block_size is None:
        if method != "minmax":
            raise PtqError(f"{name}: method is 'mse', which is for blocks: give a block_size, such as 32")
        return
    if block_size not in BLOCK_SIZES or not is_integer(block_size):
        sizes = ", ".join(map(str, BLOCK_SIZES[:-1]))
        raise PtqError(f"{name}: block_size is {block_size!r}, expected None, {sizes} or {BLOCK_SIZES[-1]}")
    if w.ndim != 2 or axis is None:
        text = "expected a matrix and the axis of its output channels: 1 for weights [inputs, outputs]"
        raise PtqError(f"{name}: block_size is given, w has shape {w.shape} and axis is {axis}, {text}")


def _check_range(name: str, low: np.ndarray, high: np.ndarray) -> None:
    source = "calibrate with finite data; an observer that has seen no data has the range [inf, -inf]"
    for argument, values in (("low", low), ("high", high)):
        _check_finite(name, values, argument, source)
    if (low > high).any():
        raise PtqError(f"{name}: low is above high{_where(low > high)}: swap them")
    with np.errstate(over="ignore"):
        is_wide = ~np.isfinite(np.maximum(high, 0) - np.minimum(low, 0))
    if is_wide.any():
        raise PtqError(f"{name}: high - low is not a finite float32 number{_where(is_wide)}: clip the range")


def _check_finite(name: str, values: np.ndarray, argument: str, source: str) -> None:
    is_wrong = ~np.isfinite(values)
    if is_wrong.any():
        raise PtqError(f"{name}: {argument} holds NaN or infinity{_where(is_wrong)}: {source}")


def _check_scales(name: str, input_scale: np.ndarray, filter_scale: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        product = input_scale * filter_scale
        is_right = (input_scale > 0) & (filter_scale > 0) & (product > SMALLEST) & np.isfinite(product)
    if not is_right.all():
        rule = "input_scale and filter_scale must be above 0, and their product finite and above 2**-126"
        raise PtqError(f"{name}: {rule}; they are not{_where(~is_right)}: take the scales that quantization gave")


def _check_bias(name: str, bias: np.ndarray, input_scale: np.ndarray, steps: np.ndarray) -> None:
    is_large = ~((np.rint(steps) >= INT32_MIN) & (np.rint(steps) <= INT32_MAX))
    if is_large.any():
        enough = (np.abs(bias) / (input_scale * np.float32(2**30)))[is_large]
        raise PtqError(
            f"{name}: bias / (input_scale * filter_scale) does not fit int32{_where(is_large)}. Quantize the filter "
            "with filter_scale = max(filter_scale, |bias| / (input_scale * 2**30)); in these channels the new "
            f"scale is at least {', '.join(str(x) for x in enough[:8])}"
        )


def _where(is_wrong: np.ndarray) -> str:
    """The channels where an array is wrong, as the end of a sentence."""
    if is_wrong.ndim == 0:
        return ""
    (wrong,) = np.nonzero(is_wrong.reshape(-1))
    listed = ", ".join(str(channel) for channel in wrong[:8]) + (", ..." if len(wrong) > 8 else "")
    return f" in channel{'s' if len(wrong) > 1 else ''} {listed}"
