"""Run by test_sharding.py in a process of its own, with eight CPU devices: integer products, pooling, blocks."""

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from on_eight_devices import COLLECTIVE, A, B, F, X

import jaxdml as dml
from helpers.compare import assert_same_bits
from jaxdml import reference

RNG = np.random.default_rng(1)
BIAS, V = RNG.normal(0, 9, 32).astype(np.float32), RNG.normal(0, 9, A.shape).astype(np.float32)
WORDS = RNG.integers(-(2**15), 2**15, A.shape).astype(np.int16)
BLOCKS = RNG.uniform(0.1, 0.2, (16, 8)).astype(np.float32)
NIBBLES = RNG.integers(0, 16, A.shape).astype(jnp.uint4)
WEIGHTS = RNG.integers(0, 16, (32, A.shape[1])).astype(jnp.uint4)
OF_WEIGHTS = RNG.uniform(0.1, 0.2, (32, A.shape[1] // 16)).astype(np.float32)
THIRDS = {"start_padding": 1, "end_padding": 1, "window_size": 3}


def product(a, b, module=dml):
    return module.matrix_multiply_integer(a, np.uint8(3), b, np.int8(-5))


def convolution(x, f, module=dml):
    return module.convolution_integer(x, np.uint8(3), f, np.int8(-5), start_padding=1)


def to_float(a, b, bias, module=dml):
    return module.matrix_multiply_integer_to_float(a, 0.1, a.dtype.type(3), b, 0.2, np.int8(-5), bias)


def pooled(x, module=dml, **options):
    parameters = np.float32(0.1), np.uint8(3), np.float32(0.07), np.uint8(9)
    return module.quantized_linear_average_pooling(x, *parameters, **(options or THIRDS))


def pooled_whole(x, module=dml):
    return pooled(x, module, window_size=X.shape[2:])


def dynamic(x, module=dml):
    return tuple(module.dynamic_quantize_linear(x))


def quantize(x, scale, module=dml):
    return module.quantize(x, scale, None, output_dtype=np.dtype(jnp.uint4))


def dequantize(x, scale, module=dml):
    return module.dequantize(x, scale)


def by_blocks(a, b, scale, bias, module=dml):
    return module.matrix_multiply_blocks(a, b, scale, bias=bias)


# Operator, arguments, how the arguments are sharded, and the collectives that the program needs.
CASES = {
    "integer product, M and N": (product, (A, B), (P("x"), P(None, "y")), set()),
    "integer product, K": (product, (A, B), (P(None, "x"), P("x")), {"all-reduce"}),
    "integer product, batch and K": (
        product,
        (np.stack([A, ~A]), np.stack([B, ~B])),
        (P("x", None, "y"), P("x", "y")),
        {"all-reduce"},
    ),
    "integer convolution": (convolution, (X, F), (P("x"), P("y")), set()),
    "product in floats": (to_float, (A, B, BIAS), (P("x"), P(None, "y"), P("y")), set()),
    "product of words": (to_float, (WORDS, B, BIAS), (P("x"), P(None, "y"), P("y")), set()),
    "pooling": (pooled, (X,), (P("x", "y"),), set()),
    "pooling of whole images": (pooled_whole, (X,), (P("x", "y"),), set()),
    "dynamic quantization": (dynamic, (V,), (P("x", "y"),), {"all-reduce"}),
    "quantization by blocks": (quantize, (V, BLOCKS), (P("x"), P("x")), set()),
    "dequantization by blocks": (dequantize, (NIBBLES, BLOCKS), (P("x"), P("x")), set()),
    "dequantization by blocks, along them": (dequantize, (NIBBLES, BLOCKS), (P(None, "y"), P(None, "y")), set()),
    "product by blocks, M and N": (
        by_blocks,
        (V, WEIGHTS, OF_WEIGHTS, BIAS),
        (P("x"), P("y"), P("y"), P("y")),
        set(),
    ),
    "product by blocks, K": (
        by_blocks,
        (V, WEIGHTS, OF_WEIGHTS, BIAS),
        (P(None, "y"), P(None, "y"), P(None, "y"), P()),
        {"all-gather"},
    ),
}


def on_mesh(kind):
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind,) * 2)
    with jax.set_mesh(mesh):
        for name, (operator, arguments, specs, expected) in CASES.items():
            sharded = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arguments, specs, strict=True)]
            # jax 0.11 rejects 4-bit arrays in calls of compiled programs, but not in calls of jitted functions.
            program, got = jax.jit(operator).lower(*sharded).compile(), jax.jit(operator)(*sharded)
            right = operator(*arguments, module=reference)
            pairs = zip(got, right, strict=True) if isinstance(right, tuple) else [(got, right)]
            for one, other in pairs:
                assert_same_bits(np.asarray(one), other, name)
            found = set(re.findall(COLLECTIVE, program.as_text()))
            assert found == expected, (name, found)
            print("ok", kind.name, name)
            if operator == by_blocks:
                a, b, scale, bias = sharded
                prepared = dml.prepare_matrix_multiply_blocks(b, scale)
                assert_same_bits(np.asarray(dml.matrix_multiply_blocks(a, prepared, bias=bias)), right, name)
                print("ok", kind.name, name, "prepared")


if __name__ == "__main__":
    assert jax.device_count() == 8, sys.argv
    for kind in (AxisType.Auto, AxisType.Explicit):
        on_mesh(kind)
