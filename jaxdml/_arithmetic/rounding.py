"""Every rounding and saturation rule, written once, with guards that keep XLA from changing bits.

`fl` rounds to float32 and `rne` to an integer, ties to even; `sat` clamps. The operators do all float arithmetic with
these functions; quotients and square roots for accelerators have their own files.

Subnormals: DirectX's floating-point rules replace every subnormal operand and result of a float32 operation with a
zero of the same sign. FLOAT16 keeps its subnormals, which are normal numbers in float32. The rule must be explicit,
because XLA:CPU flushes at run time but not in constant folding, and GPUs do not flush. `flushed` is called only where a
subnormal can occur. The product of an integer and a flushed scale, for example, is zero or normal, and needs no call.

Rewrites: XLA and LLVM keep integer results, but they rewrite some float expressions, depending on the whole program.
x / s becomes x * (1 / s) if s is a constant or a broadcast, (a / b) / c becomes a / (b * c), and a product and a sum
become one fused multiply-add. Each rewrite changes bits. An `optimization_barrier` does not help: it costs a pass over
memory, and XLA removes it before LLVM forms the multiply-add. A select does help if no compiler can decide its
predicate. Flushing is such a select.

Source: https://learn.microsoft.com/windows/win32/direct3d11/floating-point-rules
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.division import divided
from jaxdml._arithmetic.sharding import broadcast_like
from jaxdml._shapes import aligned

Array = jax.Array
SMALLEST_NORMAL = np.float32(2.0**-126)


def limits_of(dtype: Any) -> Any:
    """min and max of an integer type of 4 bits or more."""
    return jnp.iinfo(dtype)  # type: ignore[no-untyped-call]


def with_rank(x: Any, rank: int) -> Any:
    """x with leading dimensions of 1 added or removed, so that it broadcasts. None and scalars stay as they are.

    The operation that uses x broadcasts it later, because the operation knows the sharding of its other operands.
    """
    if x is None or x.ndim in (0, rank):
        return x
    return lax.reshape(x, aligned(x.shape, rank))


def flushed(x: Array, below: Any = SMALLEST_NORMAL) -> Array:
    """float32 x with subnormals replaced by zeros of the same sign, by a select that stops rewrites of floats."""
    return lax.select(lax.lt(lax.abs(x), below), lax.mul(x, np.float32(0)), x)


@jax.custom_jvp
def flushed_straight_through(x: Array) -> Array:
    """`flushed` with the derivative of the identity. The select's own derivative is 0 at 0, a common initial bias."""
    return flushed(x)


@flushed_straight_through.defjvp
def _straight_through(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return flushed(*primals), tangents[0]


def sealed(x: Array) -> Array:
    """x, an array of floats, unchanged. A select keeps XLA from merging x's rounding with operations that use x.

    |x| + |x| < |x| is false for every float: rounding is monotonic, inf + inf is inf, and comparisons with NaN are
    false. Neither arm of the select is a constant: LLVM moves an addition into a select with a constant arm.
    """
    magnitude = lax.abs(x)
    twice = lax.add(magnitude, magnitude)
    return lax.select(lax.lt(twice, magnitude), twice, x)


def rounded_to(x: Array, dtype: Any) -> Array:
    """float32 x, or x rounded to float16 and sealed, so that XLA cannot drop the rounding."""
    return x if dtype == jnp.float32 else sealed(lax.convert_element_type(x, dtype))


def product(x: Array, y: Array) -> Array:
    """fl(x * y) of flushed values; zero if x * y, rounded to 24 bits, is below the smallest normal number.

    If a subnormal product rounds up to a normal number, some processors flush it and others do not. So that all agree,
    a product of numbers below 1 is scaled by 2**64. Then every product near the smallest normal number is normal, and
    `flushed` alone decides which of them become zero.
    """
    larger = lax.max(lax.abs(x), lax.abs(y))
    is_small, one = lax.lt(larger, np.float32(1)), lax.full_like(larger, 1)
    factor, inverse = (lax.select(is_small, lax.full_like(larger, power), one) for power in (2.0**64, 2.0**-64))
    large = lax.mul(lax.mul(x, factor), y)
    return lax.mul(flushed(large, lax.mul(factor, SMALLEST_NORMAL)), inverse)


def total(x: Array, y: Array) -> Array:
    """fl(x + y) of flushed values, flushed. A subnormal sum is exact, so rounding and flushing commute."""
    return flushed(lax.add(x, y))


def quotient(x: Array, y: Array) -> Array:
    """fl(x / y) of flushed values: never x * fl(1 / y), and never merged with a division that computed x or y.

    The quotient is not flushed: callers multiply it by at most 2**31 and round to integers, so a subnormal quotient
    gives 0. The divisor is y, or NaN if x + y is NaN: then x / y is NaN, too. Because of this select, the divisor
    is neither a constant nor a broadcast, unless x is a constant or a broadcast, too.
    """
    either = lax.add(x, y)
    return divided(x, lax.select(lax.ne(either, either), either, broadcast_like(y, either)))


def difference(x: Array, zero_point: Array | None) -> Array:
    """fl(x - zero_point), rounded once from the exact difference, which takes 33 bits for 32-bit types."""
    if zero_point is None:
        return _float32(x)
    zero_point = with_rank(zero_point, x.ndim)
    if x.dtype.itemsize < 4:
        return _float32(lax.sub(_int32(x), _int32(zero_point)))
    # |x - zero_point| < 2**32, so the larger minus the smaller, modulo 2**32, is the magnitude.
    wide_x, wide_zero_point = (lax.convert_element_type(z, jnp.uint32) for z in (x, zero_point))
    above, below = lax.sub(wide_x, wide_zero_point), lax.sub(wide_zero_point, wide_x)
    positive = lax.ge(x, zero_point)
    magnitude = _float32(lax.select(positive, above, below))
    return lax.select(positive, magnitude, lax.neg(magnitude))


def scaled(steps: Array, scale: Array) -> Array:
    """fl(steps * scale) of integers in float32, rounded once more if scale is float16; the result has scale's type.

    The product is never subnormal. Flushing it keeps XLA from fusing it with a later sum into a multiply-add.
    """
    wide_scale = flushed(with_rank(_float32(scale), steps.ndim))
    return rounded_to(flushed(lax.mul(steps, wide_scale)), scale.dtype)


def saturate(x: Array, zero_point: Array | None, dtype: Any) -> Array:
    """sat(rne(x) + zero_point) of a float32 x: round, add, clamp. Infinities saturate; NaN gives the minimum."""
    limits = limits_of(dtype)
    rounded = lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)
    if zero_point is None:
        lowest, highest = (lax.full_like(rounded, end) for end in (limits.min, limits.max))
    else:
        zero_point = with_rank(_int32(zero_point), x.ndim)
        lowest, highest = (
            broadcast_like(_float32(lax.sub(np.int32(end), zero_point)), rounded) for end in (limits.min, limits.max)
        )
    # The bounds minus the zero point are integers, so clamping before the addition gives the same values in int32.
    # Comparisons instead of min and max turn NaN into the minimum.
    rounded = lax.select(lax.gt(rounded, lowest), rounded, lowest)
    rounded = _int32(lax.select(lax.lt(rounded, highest), rounded, highest))
    return lax.convert_element_type(rounded if zero_point is None else lax.add(rounded, zero_point), dtype)


def requantize(
    accumulator: Array, a_scale: Array, b_scale: Array, output_scale: Array, zero_point: Array | None, dtype: Any
) -> Array:
    """sat(rne(fl(fl(accumulator) * fl(fl(a_scale * b_scale) / output_scale))) + zero_point).

    The scales broadcast to accumulator's shape.
    """
    a_scale, b_scale, output_scale = (with_rank(scale, accumulator.ndim) for scale in (a_scale, b_scale, output_scale))
    multiplier = quotient(product(flushed(a_scale), flushed(b_scale)), flushed(output_scale))
    return saturate(lax.mul(_float32(accumulator), multiplier), zero_point, dtype)


def multiplied(accumulator: Array, a_scale: Array, b_scale: Array, bias: Array | None) -> Array:
    """fl(fl(fl(accumulator) * fl(a_scale * b_scale)) + bias) in float32.

    accumulator holds integers; scales and bias broadcast to its shape.
    """
    scales = (flushed(with_rank(_float32(scale), accumulator.ndim)) for scale in (a_scale, b_scale))
    # The product is never subnormal; the select of `flushed` keeps XLA from fusing the product and the bias into a
    # multiply-add.
    result = flushed(lax.mul(_float32(accumulator), product(*scales)))
    if bias is not None:
        bias = flushed_straight_through(with_rank(_float32(bias), accumulator.ndim))
        result = flushed_straight_through(lax.add(result, broadcast_like(bias, result)))
    return result


def averaged(
    accumulator: Array, scale: Array, count: Array, output_scale: Array, zero_point: Array | None, dtype: Any
) -> Array:
    """sat(rne(fl(fl(fl(fl(accumulator) * scale) / count) / output_scale)) + zero_point).

    count holds positive integers; count and scales broadcast to accumulator's shape.
    """
    scale, output_scale = (flushed(with_rank(x, accumulator.ndim)) for x in (scale, output_scale))
    mean = flushed(quotient(lax.mul(_float32(accumulator), scale), _float32(count)))
    return saturate(quotient(mean, output_scale), zero_point, dtype)


def range_scale(low: Array, high: Array, dtype: Any) -> tuple[Array, Array]:
    """Scalar scale and zero point of dtype for a float32 range that includes 0.

    The scale is fl(fl(high - low) / fl(Max - Min)), or 1 if that is 0. The zero point is sat(rne(fl(Min - fl(low /
    scale)))). If low and high are NaN, the scale is NaN and the zero point is Min.
    """
    limits = limits_of(dtype)
    low, high = flushed(low), flushed(high)
    scale = flushed(quotient(lax.sub(high, low), lax.full_like(low, limits.max - limits.min)))
    scale = lax.select(lax.eq(scale, np.float32(0)), lax.full_like(scale, 1), scale)
    offset = lax.sub(lax.full_like(low, limits.min), quotient(low, scale))
    return scale, saturate(offset, None, dtype)


def _float32(x: Any) -> Array:
    return lax.convert_element_type(x, jnp.float32)


def _int32(x: Any) -> Array:
    return lax.convert_element_type(x, jnp.int32)
