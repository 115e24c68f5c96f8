"""Histograms with bins of equal width over [-2**exponent, 2**exponent]: counted in JAX, evaluated in NumPy.

Bin 0 counts only zeros, because half of the results of a ReLU are 0, and every scale represents 0 exactly. Bin k
counts values in ((k - 1) * width, k * width], and bin -k counts values in [-k * width, -(k - 1) * width). When data
exceed the range, the range doubles, and bins 2k - 1 and 2k merge into bin k. The counts are then the same as if the
histogram had had the wide range from the start.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxdml.ptq._grids import extremes
from jaxdml.ptq._grids.ranges import scale_and_zero_point

Array = Any
LEAST_EXPONENT = -100  # keeps bins / 2**exponent finite in float32
# The search for the best range multiplies the widest ends by powers of two, then the best ends by factors near 1.
OCTAVES = 2.0 ** -np.arange(11)
STEPS = (2.0 ** (np.arange(-12, 13) / 8), 2.0 ** (np.arange(-12, 13) / 8), 2.0 ** (np.arange(-8, 9) / 96))


def exponent_for(x: Array) -> Array:
    """The least exponent, int32, of a range that contains float32 x; meaningless if x holds NaN or infinity."""
    low, high = extremes.of(x)  # XLA computes these once for this function and for the observer
    largest = jnp.maximum(high, -low)
    mantissa, exponent = jnp.frexp(jnp.maximum(largest, np.float32(2.0**LEAST_EXPONENT)))
    return exponent - (mantissa == np.float32(0.5)).astype(jnp.int32)


def counted(x: Array, exponent: Array, bins: int) -> Array:
    """The number of elements of float32 x in each bin, float32 [2 * bins + 1]."""
    # The maximum with 1 keeps small x, for which the product may underflow to 0, out of the bin of zeros.
    steps = jnp.maximum(jnp.ceil(jnp.abs(x) * jnp.ldexp(np.float32(bins), -exponent)), np.float32(1))
    index = np.int32(bins) + (jnp.sign(x) * steps).astype(jnp.int32)
    mesh = jax.typeof(x).sharding.mesh
    on_all = NamedSharding(mesh, PartitionSpec(None)) if AxisType.Explicit in mesh.axis_types else None
    # The counts are int32, because float32 counts stop growing at 2**24. mode="clip" keeps the indices of NaN and
    # infinity in bounds.
    counts = jnp.zeros(2 * bins + 1, jnp.int32).at[index].add(1, mode="clip", out_sharding=on_all)
    return counts.astype(jnp.float32)


def widened(counts: Array, doublings: Array) -> Array:
    """The counts in bins that are 2**doublings times as wide."""
    bins = counts.size // 2
    index = np.arange(-bins, bins + 1, dtype=np.int32)
    merged = lax.shift_right_arithmetic(np.abs(index) - 1, jnp.full_like(index, doublings))
    index = np.sign(index) * (merged + 1) + np.int32(bins)
    return jnp.zeros_like(counts).at[index].add(counts, mode="clip")


def edges_of(bins: int, exponent: Any) -> np.ndarray:
    """The edges between bins, float64 [2 * bins + 2]; 0 appears twice, as both edges of bin 0."""
    sides = [np.arange(-bins, 1), np.arange(bins + 1)]
    return np.concatenate(sides) * (2.0 ** float(exponent) / bins)


def quantile(fraction: float, counts: np.ndarray, edges: np.ndarray, ends: np.ndarray) -> Any:
    """Estimates `numpy.quantile` of values from the counts of bins, and from the least and the greatest value."""
    ranks_after = np.cumsum(counts)
    last = ranks_after[-1] - 1
    rank = fraction * last

    def value(rank: Any) -> Any:
        if rank <= 0 or rank >= last:
            return ends[int(rank > 0)]
        k = np.searchsorted(ranks_after, rank, side="right")
        part = (rank + 0.5 - (ranks_after[k] - counts[k])) / counts[k]
        return edges[k] + part * (edges[k + 1] - edges[k])

    below, above = value(np.floor(rank)), value(np.floor(rank) + 1)
    return np.clip(below + (rank % 1) * (above - below), *ends)


def least_squares(counts: np.ndarray, edges: np.ndarray, ends: np.ndarray, dtype: Any) -> np.ndarray:
    """The range within `ends` with which quantization to dtype has the least squared error."""
    first, last = np.flatnonzero(counts)[[0, -1]]
    counts, edges = counts[first : last + 1], edges[first : last + 2]
    widest = np.asarray([min(ends[0], 0), max(ends[1], 0)], np.float64)
    sides = [side for side in (0, 1) if widest[side]]
    factors = [OCTAVES if side in sides else [1.0] for side in (0, 1)]
    tried = np.asarray(list(itertools.product(*factors))) * widest
    best = tried[_errors(tried, counts, edges, dtype).argmin()]
    for steps, side in itertools.product(STEPS, sides):
        tried = np.tile(best, (len(steps), 1))
        tried[:, side] = np.clip(tried[:, side] * steps, *widest)
        best = tried[_errors(tried, counts, edges, dtype).argmin()]
    return best


def _errors(ranges: np.ndarray, counts: np.ndarray, edges: np.ndarray, dtype: Any) -> np.ndarray:
    """The sum of squared quantization errors for each range; values are assumed to be spread evenly within their bin.

    In units of the scale, the error of x is x - n, where n is the nearest integer within the limits. The integral of
    the squared error from 0 to x is n / 12 + (x - n)**3 / 3: 1 / 12 for each step, and the rest from n to x.
    """
    low, high = ranges.astype(np.float32).T
    scale, zero_point = scale_and_zero_point(low, high, dtype)
    limits, scale = np.iinfo(dtype), np.asarray(scale, np.float64)[:, np.newaxis]
    zero_point = np.asarray(zero_point, np.float64)[:, np.newaxis]
    x = edges / scale
    n = np.clip(np.rint(x), limits.min - zero_point, limits.max - zero_point)
    integral = n / 12 + (x - n) ** 3 / 3
    return (integral @ -np.diff(counts, prepend=0, append=0)) * scale[:, 0] ** 3
