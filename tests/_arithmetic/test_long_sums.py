"""Sums of more products than fit in int32 wrap on every platform, although some matrix instructions do not."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jaxdml as dml
from helpers.compare import assert_same_bits
from jaxdml._arithmetic import cuda, int8

DEPTH = 2 * int8.MOST_TERMS + 5


def wrapped(a, b):
    """The product modulo 2**32."""
    return (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", ["KN", "NK"])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_parts_have_the_sum_of_the_whole(layout, batch):
    a = np.full((*batch, 2, DEPTH), -128, np.int8)
    b = np.full((*batch, DEPTH, 3), -128, np.int8)
    a[..., 1, ::3], b[..., ::7, 2] = 127, 5
    given = b if layout == "KN" else b.swapaxes(-1, -2)
    assert (wrapped(a, b) != a.astype(np.int64) @ b.astype(np.int64)).any()  # it wraps
    assert_same_bits(int8.product_in_parts(jnp.asarray(a), jnp.asarray(given), layout), wrapped(a, b))


def depths(function, platform, *arguments):
    """The number of terms in each contraction of the program that is lowered for a platform."""
    text = export.export(jax.jit(function), platforms=[platform])(*arguments).mlir_module()
    products = re.findall(r"dot_general.*contracting_dims = \[(\d+)\].*: \(tensor<([\dx]+)x(?:i8|bf16)>", text)
    windows = re.findall(r"stablehlo.convolution.*, tensor<([\dx]+)xi8>\)", text)
    assert products or windows
    sizes = [int(shape.split("x")[int(axis)]) for axis, shape in products]
    return sizes + [int(np.prod([int(size) for size in shape.split("x")[1:]])) for shape in windows]


@pytest.mark.parametrize(("platform", "most"), [("cuda", cuda.MOST_TERMS), ("tpu", int8.MOST_TERMS)])
@pytest.mark.parametrize("kind", ["product", "convolution"])
def test_contractions_are_divided(kind, platform, most):
    if kind == "product":
        shapes = (2, DEPTH), (DEPTH, 3)
        function = dml.matrix_multiply_integer
    else:
        shapes = (1, 30_000, 3, 3), (2, 30_000, 3, 3)
        function = dml.convolution_integer
    arguments = [jax.ShapeDtypeStruct(shape, jnp.int8) for shape in shapes]
    found = depths(lambda a, b: function(a, None, b, None), platform, *arguments)
    assert len(found) >= 3
    assert max(found) <= most
    assert int8.MOST_TERMS * 128 * 128 < 2**31


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_a_symbolic_depth_is_not_divided(platform):
    (depth,) = export.symbolic_shape("k")
    arguments = [jax.ShapeDtypeStruct(shape, jnp.int8) for shape in ((2, depth), (depth, 3))]
    multiply = jax.jit(lambda a, b: dml.matrix_multiply_integer(a, None, b, None))
    assert "dot_general" in export.export(multiply, platforms=[platform])(*arguments).mlir_module()
