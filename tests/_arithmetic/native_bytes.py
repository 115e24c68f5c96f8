"""Random calls of the kernels on bytes, and what NumPy computes for them."""

import itertools

import numpy as np

from helpers.compare import assert_same_bits
from jaxdml._arithmetic.pooling import greatest_of_windows
from jaxdml._quantized.onnxruntime.lookup import looked_up
from jaxdml._quantized.onnxruntime.mul import qlinear_mul


def random_bytes(rng, shape, dtype=None):
    dtype = dtype or rng.choice([np.uint8, np.int8])
    return rng.integers(0, 256, shape, np.uint8).astype(dtype)


def greatest(x, *, window, strides, dilations, padding):
    """Max pooling, one element of the window at a time."""
    least = np.iinfo(x.dtype).min
    x = np.pad(x, ((0, 0), (0, 0), *padding), constant_values=least)
    reach = [(extent - 1) * dilation + 1 for extent, dilation in zip(window, dilations, strict=True)]
    sizes = [(size - each) // stride + 1 for size, each, stride in zip(x.shape[2:], reach, strides, strict=True)]
    y = np.full((*x.shape[:2], *sizes), least, x.dtype)
    for offset in itertools.product(*map(range, window)):
        each = zip(offset, dilations, strides, sizes, strict=True)
        places = (
            slice(at * dilation, at * dilation + (n - 1) * stride + 1, stride) for at, dilation, stride, n in each
        )
        y = np.maximum(y, x[:, :, *places])
    return y


def random_windows(rng, space):
    window, dilations = rng.integers(1, 5, len(space)), rng.integers(1, 4, len(space))
    start, end = (rng.integers(0, (window - 1) * dilations + 1) for _ in range(2))
    end += np.maximum(0, (window - 1) * dilations + 1 - start - end - space)
    options = {"window": window, "strides": rng.integers(1, 5, len(space)), "dilations": dilations}
    options = {name: tuple(map(int, values)) for name, values in options.items()}
    return options | {"padding": tuple((int(before), int(after)) for before, after in zip(start, end, strict=True))}


def product(a, a_zero_point, b, b_zero_point, multiplier, y_zero_point):
    """sat(rne(fl(fl(steps * multiplier) + y_zero_point)))."""
    steps = (a.astype(np.int32) - a_zero_point) * (b.astype(np.int32) - b_zero_point)
    total = steps.astype(np.float32) * np.float32(multiplier) + np.float32(y_zero_point)
    limits = np.iinfo(a.dtype)
    return np.clip(np.rint(total), limits.min, limits.max).astype(a.dtype)


def check_max_pool(rng, count):
    for _ in range(count):
        space = tuple(map(int, rng.integers(1, 90, rng.integers(1, 3))))
        x, options = random_bytes(rng, (*rng.integers(1, 4, 2), *space)), random_windows(rng, space)
        assert_same_bits(greatest_of_windows(x, **options), greatest(x, **options))


def check_tables(rng, count):
    for _ in range(count):
        of_x, of_y = (rng.choice([np.uint8, np.int8, np.uint16, np.int16]) for _ in range(2))
        x = rng.integers(0, 2**16, rng.integers(1, 30, rng.integers(0, 4)), np.uint16).astype(of_x)
        table = rng.integers(0, 2**16, np.iinfo(of_x).max - np.iinfo(of_x).min + 1, np.uint16).astype(of_y)
        assert_same_bits(looked_up(x, table), table[x.astype(np.int32) - np.iinfo(x.dtype).min])


def check_products(rng, count):
    for _ in range(count):
        shape = rng.integers(1, 20, rng.integers(1, 4))
        a = random_bytes(rng, shape)
        b = random_bytes(rng, np.where(np.arange(len(shape)) < rng.integers(0, 4), shape, 1), a.dtype)
        a, b = (b, a) if rng.random() < 0.3 else (a, b)
        zero_points = random_bytes(rng, 3, a.dtype)
        scale = np.float32(rng.uniform(0.001, 0.02))
        one = np.ones((), np.float32)
        got = qlinear_mul(a, scale, zero_points[0], b, one, zero_points[1], one, zero_points[2])
        of_a, of_b, of_y = zero_points.astype(np.int32)
        assert_same_bits(got, product(a, of_a, b, of_b, scale, of_y))


def check():
    """Runs random calls, in a process whose environment chose the instruction set."""
    rng = np.random.default_rng(0)
    check_max_pool(rng, 12)
    check_tables(rng, 10)
    check_products(rng, 12)
