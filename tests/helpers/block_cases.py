"""Random products by block-quantized matrices, with the oracle's results."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import jaxdml as dml
from jaxdml import reference

SIZES = (16, 32, 64, 128, 256)
KINDS = ("normal", "wide", "zeros", "ties", "special", "tiny", "huge")  # of the rows of `a`
LIMITS = {"uint4": (0, 16), "int4": (-8, 8), "uint8": (0, 256), "int8": (-128, 128)}
PRECISIONS = ("int8", "int15", "int22")


class Case(NamedTuple):
    """A call: a, b, its scales and zero points, a bias, and the precision."""

    arguments: tuple[Any, ...]
    precision: str
    operator = "matrix_multiply_blocks"

    @property
    def options(self):
        return {"precision": self.precision}

    def call(self, *arguments, module=dml):
        *matrices, bias = arguments or self.arguments
        return module.matrix_multiply_blocks(*matrices, bias=bias, precision=self.precision)

    @property
    def expected(self):
        return self.call(module=reference)

    def __str__(self):
        a, b, scale, zero_point, bias = (None if x is None else f"{x.dtype}{list(x.shape)}" for x in self.arguments)
        return f"{self.precision}, a {a}, b {b}, scales {scale}, zero points {zero_point}, bias {bias}"


def matrix(rng, dtype, shape, size, *, zero_points=True, scales=np.float32):
    """b, its scales and its zero points, in blocks of `size`."""
    low, high = LIMITS[np.dtype(dtype).name]
    counts = (*shape[:-1], -(-shape[-1] // size))
    b, z = (rng.integers(low, high, of).astype(dtype) for of in (shape, counts))
    return b, (rng.uniform(0.5, 1.5, counts) * 0.01).astype(scales), z if zero_points else None


def floats(rng, kind, shape, dtype=np.float32):
    """Rows of `a` of one kind, chosen to be hard for scales, roundings or sums."""
    a = rng.normal(size=shape).astype(np.float32)
    if kind == "wide":  # values and block scales of many magnitudes
        a *= np.exp(rng.normal(0, 8, shape)).astype(np.float32)
    elif kind == "zeros":
        a[rng.random(shape) < 0.7] = 0
        a[0] = 0
    elif kind == "ties":  # halves of the scale of int8
        a = (rng.integers(-254, 255, shape) / 2).astype(np.float32)
        a[..., ::16] = 127
    elif kind == "special":
        a[0, 0], a[-1, -1], a[len(a) // 2, 0] = np.nan, np.inf, -np.inf
    elif kind == "tiny":  # scales next to the smallest normal number, and below
        a *= np.exp2(rng.integers(-149, -105, shape)).astype(np.float32)
    elif kind == "huge":
        a *= np.float32(2.0**125)
    with np.errstate(over="ignore"):
        return a.astype(dtype)


def random_case(rng, number):
    """A case of small, odd sizes; `number` cycles through the kinds of types and values."""
    size, m = int(rng.choice(SIZES)), int(rng.integers(1, 14))
    n, k = int(rng.integers(1, 150)), int(rng.integers(1, 500))
    kind, dtype = KINDS[number % 7], list(LIMITS)[number % 4]
    b, scale, zero_point = matrix(
        rng, dtype, (n, k), size, zero_points=number % 3 > 0, scales=[np.float32, np.float16][number // 2 % 2]
    )
    if kind == "tiny" and scale.dtype == np.float32:
        scale *= np.exp2(rng.integers(-40, -10, scale.shape)).astype(np.float32)
    a = floats(rng, kind, (m, k), [np.float32, np.float32, np.float16, jnp.bfloat16][number // 3 % 4])
    bias = rng.normal(size=n).astype(a.dtype) if number % 2 else None
    return Case((a, b, scale, zero_point, bias), PRECISIONS[number // 2 % 3])


def any_case(rng, m, n, k):
    """A case of these sizes, whose types and values are chosen independently."""
    kind, size, dtype = rng.choice(KINDS), int(rng.choice(SIZES)), rng.choice(list(LIMITS))
    scales, floats_of_a = rng.choice([np.float32, np.float16]), [np.float32, np.float16, jnp.bfloat16][rng.integers(3)]
    weights = matrix(rng, dtype, (n, k), size, zero_points=rng.random() < 0.7, scales=scales)
    a = floats(rng, kind, (m, k), floats_of_a)
    bias = rng.normal(size=n).astype(np.float32) if rng.random() < 0.5 else None
    return Case((a, *weights, bias), str(rng.choice(PRECISIONS)))
