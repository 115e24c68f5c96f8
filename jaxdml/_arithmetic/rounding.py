"""Every rounding and saturation rule, once, with the guards that keep XLA from changing them.

`fl` rounds once to float32, ties to even. All float arithmetic of the operators is written here.

Subnormals: as DirectX's floating-point rules have it, every float32 operation takes a subnormal operand as a zero of
its sign, and gives such a zero instead of a subnormal result; FLOAT16 keeps its subnormals, which float32 holds as
normal numbers. The rule has to be written, because XLA:CPU flushes when it computes and keeps when it folds constants,
and GPUs keep. It is written where it can matter: a product of an integer and a flushed scale is zero or normal.

Rewrites: XLA and the compilers behind it keep integer results, but rewrite float expressions, depending on what is
compiled together: x / s becomes x * (1 / s) where s is a constant or a broadcast, (a / b) / c becomes a / (b * c), a
product and a sum become one fused multiply-add. Each changes bits. An `optimization_barrier` is no cure: it is gone
before the multiply-add is fused, and costs a pass over memory. What holds is data flow: a value that goes through a
select whose predicate no compiler can decide. Flushing is such a select.

Source: https://learn.microsoft.com/windows/win32/direct3d11/floating-point-rules
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.sharding import broadcast_like
from jaxdml._shapes import aligned

Array = jax.Array
SMALLEST_NORMAL = np.float32(2.0**-126)


def limits_of(dtype: Any) -> Any:
    """min and max of an integer type, those of 4 bits among them."""
    return jnp.iinfo(dtype)  # type: ignore[no-untyped-call]


def with_rank(x: Any, rank: int) -> Any:
    """x with leading ones added or taken away, so that it broadcasts; None stays None, and a scalar one.

    Broadcasting itself is left to the operations, which know how their other operands are sharded.
    """
    if x is None or x.ndim in (0, rank):
        return x
    return lax.reshape(x, aligned(x.shape, rank))


def flushed(x: Array, below: Any = SMALLEST_NORMAL) -> Array:
    """float32 x with subnormals as zeros of their sign, in a form that no float rewrite sees through."""
    return lax.select(lax.lt(lax.abs(x), below), lax.mul(x, np.float32(0)), x)


@jax.custom_jvp
def flushed_straight_through(x: Array) -> Array:
    """`flushed`, with the derivative of the identity: that of the select would be 0 at 0, where a bias begins."""
    return flushed(x)


@flushed_straight_through.defjvp
def _straight_through(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return flushed(*primals), tangents[0]


def sealed(x: Array) -> Array:
    """Floats x, rounded before anything else is done with them, and not flushed.

    |x| + |x| < |x| holds for no float: rounding is monotonic, infinities are equal, NaN compares false. No arm of the
    select is a constant, for LLVM moves an addition into a select that has one.
    """
    magnitude = lax.abs(x)
    twice = lax.add(magnitude, magnitude)
    return lax.select(lax.lt(twice, magnitude), twice, x)


def rounded_to(x: Array, dtype: Any) -> Array:
    """float32 x as it is, or rounded once more to float16, which XLA may not undo in the caller's code."""
    return x if dtype == jnp.float32 else sealed(lax.convert_element_type(x, dtype))


def product(x: Array, y: Array) -> Array:
    """fl(x * y) of flushed values, flushed where its 24 bits lie below the smallest normal number.

    A processor that flushes does so before it would round up to a normal number, another after it. So that both agree,
    a product of numbers below 1 is taken 2**64 times as large, and none is subnormal before it is flushed.
    """
    larger = lax.max(lax.abs(x), lax.abs(y))
    factor = lax.select(lax.lt(larger, np.float32(1)), lax.full_like(larger, 2.0**64), lax.full_like(larger, 1))
    large = lax.mul(lax.mul(x, factor), y)
    return lax.div(flushed(large, lax.mul(factor, SMALLEST_NORMAL)), factor)


def total(x: Array, y: Array) -> Array:
    """fl(x + y) of flushed values, flushed; where it is subnormal, it is exact."""
    return flushed(lax.add(x, y))


def quotient(x: Array, y: Array) -> Array:
    """fl(x / y) of flushed values, not flushed: never x * fl(1 / y), and never merged with a division that made x or y.

    What takes it rounds to integers, after a product with one of at most 2**31: where it is subnormal, it is 0 there.
    The quotient is NaN where x + y is, so that NaN may stand for y there; but then the divisor is no broadcast and no
    constant, unless the dividend is one too.
    """
    either = lax.add(x, y)
    return lax.div(x, lax.select(lax.ne(either, either), either, broadcast_like(y, either)))


def difference(x: Array, zero_point: Array | None) -> Array:
    """fl(x - zero_point), the difference being exact: 32-bit types need 33 bits, which one rounding then sees whole."""
    if zero_point is None:
        return _float32(x)
    zero_point = with_rank(zero_point, x.ndim)
    if x.dtype.itemsize < 4:
        return _float32(lax.sub(_int32(x), _int32(zero_point)))
    # |x - zero_point| < 2**32, so the wrapped difference taken in the right order is the magnitude.
    wide_x, wide_zero_point = (lax.convert_element_type(z, jnp.uint32) for z in (x, zero_point))
    above, below = lax.sub(wide_x, wide_zero_point), lax.sub(wide_zero_point, wide_x)
    positive = lax.ge(x, zero_point)
    magnitude = _float32(lax.select(positive, above, below))
    return lax.select(positive, magnitude, lax.neg(magnitude))


def scaled(steps: Array, scale: Array) -> Array:
    """fl(steps * scale) of whole numbers, rounded once more if scale is FLOAT16; of scale's type.

    Flushed only to guard it: no sum that it goes into, here or in the caller's code, takes the product in unrounded.
    """
    wide_scale = flushed(with_rank(_float32(scale), steps.ndim))
    return rounded_to(flushed(lax.mul(steps, wide_scale)), scale.dtype)


def saturate(x: Array, zero_point: Array | None, dtype: Any) -> Array:
    """sat(rne(x) + zero_point) of a float32 x: round, add, clamp. Infinities saturate, NaN gives the minimum."""
    limits = limits_of(dtype)
    rounded = lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)
    if zero_point is None:
        lowest, highest = (lax.full_like(rounded, end) for end in (limits.min, limits.max))
    else:
        zero_point = with_rank(_int32(zero_point), x.ndim)
        lowest, highest = (
            broadcast_like(_float32(lax.sub(np.int32(end), zero_point)), rounded) for end in (limits.min, limits.max)
        )
    # The bounds are integers, so clamping before the zero point is added clamps the same values, and all of it fits
    # int32. Comparisons, not min and max: NaN must lose.
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


def multiplied(accumulator: Array, a_scale: Array, b_scale: Array, bias: Array | None, dtype: Any) -> Array:
    """fl(fl(fl(accumulator) * fl(a_scale * b_scale)) + bias) in float32, rounded once more if dtype is FLOAT16.

    accumulator holds whole numbers; scales and bias broadcast to its shape.
    """
    scales = (flushed(with_rank(_float32(scale), accumulator.ndim)) for scale in (a_scale, b_scale))
    result = flushed(lax.mul(_float32(accumulator), product(*scales)))
    if bias is not None:
        bias = flushed_straight_through(with_rank(_float32(bias), accumulator.ndim))
        result = flushed_straight_through(lax.add(result, broadcast_like(bias, result)))
    return rounded_to(result, dtype)


def averaged(
    accumulator: Array, scale: Array, count: Array, output_scale: Array, zero_point: Array | None, dtype: Any
) -> Array:
    """sat(rne(fl(fl(fl(accumulator) * scale) / count) / output_scale)) + zero_point).

    count holds positive whole numbers; it and the scales broadcast to accumulator's shape.
    """
    scale, output_scale = (flushed(with_rank(x, accumulator.ndim)) for x in (scale, output_scale))
    mean = flushed(quotient(flushed(lax.mul(_float32(accumulator), scale)), _float32(count)))
    return saturate(quotient(mean, output_scale), zero_point, dtype)


def range_scale(low: Array, high: Array, dtype: Any) -> tuple[Array, Array]:
    """Scale and zero point of dtype for a range of float32 numbers that holds 0: scalars.

    The scale is fl(fl(high - low) / fl(Max - Min)), or 1 where that is 0. The zero point is sat(rne(fl(Min - fl(low /
    scale)))). NaN gives NaN, and Min.
    """
    limits = limits_of(dtype)
    low, high = flushed(low), flushed(high)
    scale = flushed(quotient(flushed(lax.sub(high, low)), lax.full_like(low, limits.max - limits.min)))
    scale = lax.select(lax.eq(scale, np.float32(0)), lax.full_like(scale, 1), scale)
    offset = lax.sub(lax.full_like(low, limits.min), flushed(quotient(low, scale)))
    return scale, saturate(offset, None, dtype)


def _float32(x: Any) -> Array:
    return lax.convert_element_type(x, jnp.float32)


def _int32(x: Any) -> Array:
    return lax.convert_element_type(x, jnp.int32)
