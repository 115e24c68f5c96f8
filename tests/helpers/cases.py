"""The one table of cases for matrix multiply and convolution: random over every option, seeded, with the extremes."""

from typing import Any, NamedTuple

import numpy as np

import jaxdml as dml
from jaxdml import reference

BYTES = (np.uint8, np.int8)


class Case(NamedTuple):
    """One call: an operator's name, its array arguments in order, its static options."""

    operator: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def expected(self):
        return getattr(reference, self.operator)(*self.arguments, **self.options)

    def call(self, *arguments):
        return getattr(dml, self.operator)(*arguments, **self.options)


def data(rng, shape, dtype):
    """Integers of any value, only extremes, or all equal, so that accumulators cover their whole range."""
    limits = np.iinfo(dtype)
    if rng.random() < 0.1:
        return np.full(shape, rng.choice([limits.min, limits.max]), dtype)
    if rng.random() < 0.2:
        return rng.choice([limits.min, limits.max], shape).astype(dtype)
    return rng.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)


def zero_point(rng, dtype, form):
    """None, a scalar or an array of the given shape; the ends of the range are frequent."""
    limits = np.iinfo(dtype)
    kind = rng.integers(3)
    if kind == 0:
        return None
    shape = () if kind == 1 else form
    ends = rng.choice([limits.min, limits.max], shape)
    inner = rng.integers(limits.min, limits.max, shape, endpoint=True)
    return np.asarray(np.where(rng.random(shape) < 0.3, ends, inner), dtype)


def scale(rng, form, magnitude=0.05):
    """A scalar or an array of the given shape, sometimes a power of two."""
    shape = () if rng.random() < 0.5 else form
    values = magnitude * np.exp(rng.normal(0, 0.7, shape))
    return np.asarray(2.0 ** np.round(np.log2(values)) if rng.random() < 0.2 else values, np.float32)


def types(rng):
    """Random types of both operands and of the output."""
    return tuple(BYTES[rng.integers(2)] for _ in range(3))


def matrix_multiply(rng) -> Case:
    dtypes = types(rng)
    sizes = [int(rng.choice([1, 2, 3, 5, 8, 17, 33])) for _ in range(3)]
    batch = tuple(int(size) for size in rng.integers(1, 4, rng.integers(0, 3)))
    return matrix_multiply_of(rng, dtypes, batch, sizes)


def matrix_multiply_of(rng, dtypes, batch, sizes) -> Case:
    """[*batch, M, K] times [*batch, K, N]; `dtypes` has the types of both operands and of the output."""
    (a_dtype, b_dtype, output_dtype), (m, k, n) = dtypes, sizes
    ones = (1,) * len(batch)
    spread = 0.05 * 0.05 * 74 * 74 * np.sqrt(k) / 40
    arguments = (
        data(rng, (*batch, m, k), a_dtype),
        scale(rng, (*ones, m, 1)),
        zero_point(rng, a_dtype, (*ones, m, 1)),
        data(rng, (*batch, k, n), b_dtype),
        scale(rng, (*ones, 1, n)),
        zero_point(rng, b_dtype, (*ones, 1, n)),
        scale(rng, (*ones, m, 1), spread),
        zero_point(rng, output_dtype, (*ones, m, 1)),
    )
    return Case("quantized_linear_matrix_multiply", arguments, {"output_dtype": output_dtype})


def convolution(rng) -> Case:
    dtypes = types(rng)
    spatial = int(rng.integers(1, 3))
    groups = int(rng.choice([1, 1, 2, 3]))
    per_group = int(rng.choice([1, 2, 5]))
    kind = rng.random()
    if kind < 0.2:  # depthwise
        groups, per_group = int(rng.choice([4, 6])), 1
    out_channels = groups * int(rng.integers(1, 4))
    if kind > 0.8:  # as wide as real layers
        per_group, out_channels = int(rng.choice([8, 17])), groups * int(rng.choice([17, 20]))
    kernel = rng.integers(1, 5, spatial)
    strides, dilations = rng.integers(1, 4, spatial), rng.integers(1, 4, spatial)
    start, end = rng.integers(0, 3, spatial), rng.integers(0, 3, spatial)
    extent = np.maximum(1 + (kernel - 1) * dilations - start - end, 1) + rng.integers(0, 8, spatial)
    channel = (1, out_channels) + (1,) * spatial
    channel = channel if rng.random() < 0.5 else (out_channels,)
    options = {"strides": strides, "dilations": dilations, "start_padding": start, "end_padding": end}
    options |= {"group_count": groups}
    return convolution_of(rng, dtypes, extent, (out_channels, per_group, *kernel), channel, options)


def convolution_of(rng, dtypes, extent, filter_shape, channel, options) -> Case:
    """One to three images of this extent; `channel` is the shape of per-channel parameters."""
    (x_dtype, f_dtype, output_dtype), groups = dtypes, options["group_count"]
    spread = 0.05 * 0.05 * 74 * 74 * np.sqrt(np.prod(filter_shape[1:])) / 40
    arguments = (
        data(rng, (int(rng.integers(1, 4)), groups * filter_shape[1], *extent), x_dtype),
        scale(rng, ()),
        zero_point(rng, x_dtype, ()),
        data(rng, filter_shape, f_dtype),
        scale(rng, channel),
        zero_point(rng, f_dtype, channel),
        None if rng.random() < 0.4 else rng.integers(-5000, 5000, channel).astype(np.int32),
        scale(rng, (), spread),
        zero_point(rng, output_dtype, ()),
    )
    numbers = {
        name: value if name == "group_count" else tuple(int(size) for size in value) for name, value in options.items()
    }
    return Case("quantized_linear_convolution", arguments, numbers | {"output_dtype": output_dtype})


def chunks(make, seed: int, count: int, size: int = 20) -> list[list[Case]]:
    """`count` cases in lists of `size`, to be compiled together."""
    rng = np.random.default_rng(seed)
    cases = [make(rng) for _ in range(count)]
    return [cases[start : start + size] for start in range(0, count, size)]


MATRIX_MULTIPLY = chunks(matrix_multiply, seed=1, count=160)
CONVOLUTION = chunks(convolution, seed=2, count=160)
