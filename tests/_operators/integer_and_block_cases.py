"""Seeded random cases of the operators that are not in `cases`, over every option, with the extremes."""

import jax.numpy as jnp
import numpy as np

from helpers.cases import BYTES, Case, chunks, convolution, data, matrix_multiply, scale, types, zero_point

INTEGERS = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)
FOUR_BITS = tuple(np.dtype(dtype) for dtype in (jnp.int4, jnp.uint4))
NARROW = (*FOUR_BITS, *map(np.dtype, BYTES))


def product(rng) -> Case:
    a, _, a_zero_point, b, _, b_zero_point, _, _ = matrix_multiply(rng).arguments
    return Case("matrix_multiply_integer", (a, a_zero_point, b, b_zero_point), {})


def convolved(rng) -> Case:
    x, _, x_zero_point, f, _, f_zero_point, *_ = (case := convolution(rng)).arguments
    options = {name: value for name, value in case.options.items() if name != "output_dtype"}
    return Case("convolution_integer", (x, x_zero_point, f, f_zero_point), options)


def to_float(rng) -> Case:
    """Mostly of 8 bits: XLA takes longer to compile wider products."""
    pool = INTEGERS[:2] if rng.random() < 0.7 else INTEGERS
    a_dtype, b_dtype = (pool[i] for i in rng.integers(len(pool), size=2))
    m, k, n = (int(rng.choice([1, 2, 3, 5, 8, 17])) for _ in range(3))
    batch = tuple(int(size) for size in rng.integers(1, 4, rng.integers(0, 3)))
    ones, floats = (1,) * len(batch), [np.float32, np.float16][int(rng.random() < 0.3)]
    bias_shape = [(n,), (*batch, m, n), (m, 1)][rng.integers(3)]
    spread = 0.05 * 0.05 * 74 * 74 * np.sqrt(k)
    arguments = (
        data(rng, (*batch, m, k), a_dtype),
        scale(rng, (*ones, m, 1)).astype(floats),
        zero_point(rng, a_dtype, (*ones, m, 1)),
        data(rng, (*batch, k, n), b_dtype),
        scale(rng, (*ones, 1, n)).astype(floats),
        zero_point(rng, b_dtype, (*ones, 1, n)),
        None if rng.random() < 0.3 else (spread * rng.standard_normal(bias_shape)).astype(floats),
    )
    return Case("matrix_multiply_integer_to_float", arguments, {})


def pooling(rng) -> Case:
    x_dtype, _, output_dtype = types(rng)
    spatial, channels = int(rng.integers(2, 4)), int(rng.choice([1, 2, 5]))
    window, strides, dilations = (rng.integers(1, 4, spatial) for _ in range(3))
    start, end = (rng.integers(0, 3, spatial) for _ in range(2))
    include_padding = bool(rng.random() < 0.5)
    if not include_padding:  # no window may contain only padding
        start, end = (np.minimum(padding, (window - 1) * dilations) for padding in (start, end))
        start, end = (np.where(dilations > 1, 0, padding) for padding in (start, end))
    needed = np.maximum(1 + (window - 1) * dilations - start - end, 1)
    extent = needed + rng.integers(0, 6, spatial)
    if rng.random() < 0.2:
        extent = window = rng.integers(1, 9, spatial)
        strides, dilations, start, end = np.ones((2, spatial), int).tolist() + np.zeros((2, spatial), int).tolist()
    per_channel = (1, channels, *(1,) * spatial)
    arguments = (
        data(rng, (int(rng.integers(1, 4)), channels, *extent), x_dtype),
        scale(rng, per_channel),
        zero_point(rng, x_dtype, per_channel),
        scale(rng, (channels,)),
        zero_point(rng, output_dtype, (channels,)),
    )
    lists = {"window_size": window, "strides": strides, "dilations": dilations}
    lists |= {"start_padding": start, "end_padding": end}
    options = {name: tuple(int(value) for value in values) for name, values in lists.items()}
    options |= {"include_padding": include_padding, "output_dtype": output_dtype}
    return Case("quantized_linear_average_pooling", arguments, options)


def shape(rng):
    return tuple(int(size) for size in rng.choice([1, 2, 3, 4, 6, 12], rng.integers(1, 5)))


def numbers(rng, sizes, dtype):
    """Floats of one order of magnitude, sometimes with a NaN or an infinity, or of one sign."""
    x = rng.standard_normal(sizes) * 10 ** rng.uniform(-3, 3)
    x = np.abs(x) if rng.random() < 0.2 else -np.abs(x) if rng.random() < 0.2 else x
    if rng.random() < 0.2:
        x.flat[rng.integers(x.size)] = rng.choice([np.nan, np.inf, -np.inf])
    return x.astype(dtype)


def floats_of(rng):
    return [np.float32, np.float16][int(rng.random() < 0.3)]


def dynamic(rng) -> Case:
    x = numbers(rng, shape(rng), floats_of(rng))
    return Case("dynamic_quantize_linear", (x,), {"output_dtype": BYTES[rng.integers(2)]})


def blocks(rng, sizes):
    """Sizes of a parameter, each of which divides the tensor's size in its dimension."""
    return tuple(int(rng.choice([n for n in range(1, size + 1) if size % n == 0])) for size in sizes)


def narrow(rng, sizes, dtype):
    """Any values of a type of 4 or 8 bits."""
    limits = jnp.iinfo(dtype)
    return rng.integers(limits.min, limits.max, sizes, endpoint=True).astype(dtype)


def quantization(rng, sizes, dtype, floats):
    """Scale and zero point, numbers or one for each block, often of different sizes."""
    steps = scale(rng, blocks(rng, sizes)).astype(floats) * floats(rng.choice([1, -1], p=[0.8, 0.2]))
    kind = rng.integers(3)
    return steps, None if kind == 0 else narrow(rng, () if kind == 1 else blocks(rng, sizes), dtype)


def quantize(rng) -> Case:
    sizes, dtype, floats = shape(rng), NARROW[rng.integers(4)], floats_of(rng)
    arguments = (numbers(rng, sizes, floats), *quantization(rng, sizes, dtype, floats))
    return Case("quantize", arguments, {"output_dtype": dtype})


def dequantize(rng) -> Case:
    sizes, dtype, floats = shape(rng), NARROW[rng.integers(4)], floats_of(rng)
    return Case("dequantize", (narrow(rng, sizes, dtype), *quantization(rng, sizes, dtype, floats)), {})


MAKERS = (product, convolved, to_float, pooling, dynamic, quantize, dequantize)
BY_OPERATOR = {make.__name__: chunks(make, seed, count=60, size=10) for seed, make in enumerate(MAKERS, 11)}
