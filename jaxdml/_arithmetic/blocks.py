"""The product of a float matrix and a matrix that is quantized in blocks. docs/numerics_products.md has the rule.

Each block of a row of `a` is rounded to integers with its own scale. The integers are split into one to three planes of
int8, whose products are exact. `rounding` defines fl.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import planes, platforms, rounding
from jaxdml._arithmetic.kernel_call import Kernel, with_kernel
from jaxdml._arithmetic.native_call import Result, library_call
from jaxdml._arithmetic.prepared_blocks import PreparedBlocks, blocks_of, packed
from jaxdml._arithmetic.sharding import replicated_along, replicated_in_space

Array = jax.Array
ON_CPU, ELSEWHERE = 1, 32  # blocks that one XLA operation multiplies
MOST_SUMS = 2**24  # sums that one XLA operation returns
MIDDLES = {"uint4": 8, "uint8": 128}  # the middles of unsigned ranges


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def multiplied(
    count: int, a: Array, b: Array | PreparedBlocks, scale: Array | None, zero_point: Array | None, bias: Array | None
) -> Array:
    """float [..., K] times b [N, K], in a's type. Integers of `a` have `count` planes; prepared `b` has its own scales.

    The derivatives are those of the product of the unrounded `a` and the dequantized `b`.
    """
    rows = lax.convert_element_type(a, jnp.float32)
    rows = lax.reshape(rows, (math.prod(a.shape[:-1]), a.shape[-1]))
    output = _product(rows, b, scale, zero_point, bias, count=count)
    return rounding.rounded_to(lax.reshape(output, (*a.shape[:-1], output.shape[-1])), a.dtype)


@multiplied.defjvp
def _derivative(count: int, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    _, b, scale, zero_point, _ = primals
    weights, scale_of_b, zero_point = b.parts() if isinstance(b, PreparedBlocks) else (b, scale, zero_point)
    steps = _steps(weights, zero_point, blocks_of(weights, scale_of_b, zero_point).size)

    def floats(a: Array, scale: Array | None, bias: Array | None) -> Array:
        scales = _float32(scale_of_b if scale is None else scale)
        matrix = (steps * scales[:, :, None]).reshape(len(steps), -1)[:, : a.shape[-1]]
        output = _float32(a) @ matrix.T
        return (output if bias is None else output + jnp.broadcast_to(_float32(bias), output.shape)).astype(a.dtype)

    def of_floats(given: tuple[Any, ...]) -> tuple[Any, ...]:
        a, _, scale, _, bias = given  # b and its zero points are integers
        return a, scale, bias

    return multiplied(count, *primals), jax.jvp(floats, of_floats(primals), of_floats(tangents))[1]


def _steps(weights: Array, zero_point: Array | None, size: int) -> Array:
    """b - zero_point in float32, [N, blocks, size]."""
    values, zero_points = _centered(weights), None if zero_point is None else _centered(zero_point)
    values = _in_blocks(values, size)
    return _float32(values) if zero_points is None else _float32(values) - _float32(zero_points)[:, :, None]


def _native(
    rows: Array, b: Any, scale: Any, zero_point: Any, bias: Array | None, *, count: int, leading: int
) -> Array:  # fmt: skip
    if isinstance(b, PreparedBlocks):
        blocks, data = b.blocks, b.data
    else:
        blocks = blocks_of(b, scale, zero_point)
        data = packed(b, scale, zero_point, blocks=blocks, leading=leading)
    if bias is None:
        bias = lax.full((1,) * leading + (0,), 0, jnp.float32)
    attributes = {"columns": blocks.columns, "depth": blocks.depth, "block_size": blocks.size, "bits": blocks.bits}
    attributes |= {"scale_bytes": blocks.scale_bytes, "planes": count}
    numbers: dict[str, Any] = {name: np.int64(value) for name, value in attributes.items()}
    return library_call(
        "matmul_blocks",
        leading,
        ((rows.shape[-2], blocks.columns), jnp.float32),
        (rows, data, _float32(bias)),
        has_zero_points=blocks.has_zero_points,
        **numbers,
    )


def _result(rows: Any, b: Any, *_: Any, count: int) -> Result:
    return (rows.shape[0], b.shape[-2]), jnp.float32


def _takes(rows: Any, b: Any, *_: Any, count: int) -> bool:
    return not isinstance(b, PreparedBlocks) or b.layout == "native"


@with_kernel(Kernel(_native, _result, _takes))
def _product(
    rows: Array, b: Array | PreparedBlocks, scale: Any, zero_point: Array | None, bias: Array | None, *, count: int
) -> Array:  # fmt: skip
    """float32 [M, K] times b [N, K] plus bias [N], float32 [M, N]."""
    weights, scale, zero_point = b.parts() if isinstance(b, PreparedBlocks) else (b, scale, zero_point)
    blocks = blocks_of(weights, scale, zero_point)
    values = _by_block(_in_blocks(_centered(_with_whole_rows(weights)), blocks.size))
    zero_points = None if zero_point is None else _by_block(_int32(_centered(_with_whole_rows(zero_point))))
    scales = _by_block(rounding.flushed(_float32(_with_whole_rows(scale))))
    a_scales, of_a = planes.rounded_rows(_in_blocks(_with_whole_rows(rows), blocks.size), planes.largest(count))
    a_scales, planes_of_a = _by_block(a_scales), planes.split(_by_block(_int32(of_a)), count)

    size = rows.shape[0] * blocks.columns
    at_once = max(1, min(ELSEWHERE, MOST_SUMS // max(1, size))) if isinstance(size, int) else 1  # it may be symbolic
    forms: platforms.Forms = {"cpu": partial(_sum, at_once=ON_CPU)}
    operands = a_scales, scales, planes_of_a, values, zero_points
    output = platforms.by_platform(forms, partial(_sum, at_once=at_once), *operands)
    return output if bias is None else rounding.total(output, rounding.flushed(_float32(bias))[None, :])


def _sum(
    a_scales: Array, scales: Array, planes_of_a: list[Array], values: Array, zero_points: Array | None, *, at_once: int
) -> Array:  # fmt: skip
    """The sum over all blocks of fl(fl(a_scale * scale) * fl(sums of products)), in order.

    One operation of XLA multiplies `at_once` blocks. A GPU would idle between operations that multiply one block each;
    on a CPU, single blocks are faster.
    """

    def added(output: Array | None, first: Any, number: int) -> Array:
        def at(x: Array) -> Array:
            return lax.dynamic_slice_in_dim(x, first, number, 0)

        weights, sums = at(values), []
        for plane in planes_of_a:
            here = at(plane)
            total = platforms.int8_dot(here, weights, "NK")
            if zero_points is not None:
                of_rows = lax.reduce(_int32(here), np.int32(0), lax.add, (2,))
                total -= of_rows[:, :, None] * at(zero_points)[:, None, :]
            sums.append(total)
        scale = rounding.product(at(a_scales)[:, :, None], at(scales)[:, None, :])
        terms = rounding.flushed(lax.mul(scale, planes.combined(sums)))
        for place in range(number):
            term = lax.index_in_dim(terms, place, 0, keepdims=False)
            output = term if output is None else rounding.total(output, term)
        assert output is not None
        return output

    count = values.shape[0]
    at_once = min(at_once, count)
    groups, rest = divmod(count, at_once)
    output = added(None, 0, at_once)
    output = lax.fori_loop(1, groups, lambda group, sum: added(sum, group * at_once, at_once), output)
    return added(output, groups * at_once, rest) if rest else output


def _with_whole_rows(x: Array) -> Array:
    """x [rows, ...], each row on one device, because the sum over the blocks has a fixed order."""
    return replicated_in_space(replicated_along(x, 1), 1)


def _centered(x: Array) -> Array:
    """Weights or zero points as int8, minus the middle of an unsigned range."""
    if x.dtype == jnp.uint8:
        return lax.bitcast_convert_type(lax.bitwise_xor(x, np.uint8(128)), jnp.int8)
    return lax.convert_element_type(x, jnp.int8) - np.int8(MIDDLES.get(x.dtype.name, 0))


def _padded(x: Array, size: int) -> Array:
    """x [rows, K] with zeros that complete the last block."""
    missing = -x.shape[1] % size
    return lax.pad(x, np.zeros((), x.dtype), [(0, 0, 0), (0, missing, 0)]) if missing else x


def _in_blocks(x: Array, size: int) -> Array:
    x = _padded(x, size)
    return lax.reshape(x, (x.shape[0], x.shape[1] // size, size))


def _by_block(x: Array) -> Array:
    """[rows, blocks, ...] as [blocks, rows, ...]."""
    return lax.transpose(x, (1, 0, *range(2, x.ndim)))


def _int32(x: Array) -> Array:
    return lax.convert_element_type(x, jnp.int32)


def _float32(x: Array) -> Array:
    return lax.convert_element_type(x, jnp.float32)
