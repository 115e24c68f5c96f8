"""Products for CUDA, in bfloat16: their bits, and that all products take this form.

Here a CPU computes them; tests/commands/on_device.py runs them on a GPU.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from onnx import TensorProto, helper

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.hostile_models import model, node
from helpers.marks import on_xla_alone
from jaxdml._arithmetic import cuda

pytestmark = on_xla_alone

RNG = np.random.default_rng(0)


def of_bytes(*shape):
    return RNG.integers(-128, 128, shape, np.int8)


def product(a, b):
    return (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)


def computed(a, b, layout="KN"):
    return jax.jit(lambda a, b: cuda.dot(a, b, layout))(a, b if layout == "KN" else b.swapaxes(-1, -2))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", ["KN", "NK"])
@pytest.mark.parametrize("depth", [0, 1, 5, 1024, 1025, 3000])
def test_bits(depth, layout):
    a, b = of_bytes(2, 3, depth), of_bytes(2, depth, 5)
    assert_same_bits(computed(a, b, layout), product(a, b))


@pytest.mark.rare
@pytest.mark.parametrize("layout", ["KN", "NK"])
def test_sums_wrap(layout):
    """Sums of so many products that int32 wraps."""
    a = np.full((1, 2**17 + 3), -128, np.int8)
    assert (a.astype(np.int64) @ a.T > 2**31).all()
    assert_same_bits(computed(a, a.T, layout), product(a, a.T))


@pytest.mark.parametrize("rows", [4, 5])
def test_few_rows_by_prepared_weights_take_no_tensor_cores(rows):
    a, b = of_bytes(rows, 1030), of_bytes(1030, 7)
    assert_same_bits(computed(a, b, "NK"), product(a, b))
    depths = [] if rows == 4 else [("bf16", "1024"), ("bf16", "6")]
    assert contracted(lambda a, b: cuda.dot(a, b, "NK"), a.shape, b.T.shape) == depths


@pytest.mark.parametrize("depth", [1024, 1025])
def test_float32_holds_the_largest_sum_of_a_part(depth):
    """2**24 + 1 is not a float32."""
    a = np.full((2, depth), -128, np.int8)
    a[:, 1024:] = 1
    assert_same_bits(computed(a, a.T), np.full((2, 2), 2**24 + depth - 1024, np.int32))


def contracted(function, *shapes):
    """The types and the depths of the products in the program for CUDA."""
    structs = [jax.ShapeDtypeStruct(shape, jnp.int8) for shape in shapes]
    program = jax.jit(function).trace(*structs).lower(lowering_platforms=("cuda",)).as_text()
    found = re.findall(r"dot_general.* = \[(\d)\] x .*: \(tensor<([\dx?]+)x(\w+)>", program)
    return [(dtype, shape.split("x")[int(axis)]) for axis, shape, dtype in found]


@pytest.mark.parametrize(("call", "shapes", "depths"), [
    (dml.matrix_multiply_integer, ((2, 6), (6, 3)), [6]),
    (dml.matrix_multiply_integer, ((2, 1025), (1025, 3)), [1024, 1]),
    (dml.matrix_multiply_integer, ((4096, 4096), (4096, 4096)), [1024] * 4),
    (dml.convolution_integer, ((1, 2, 5, 5), (3, 2, 1, 1)), [2]),
    (dml.convolution_integer, ((1, 2, 5, 5), (3, 2, 3, 3)), [18]),
    (dml.convolution_integer, ((1, 256, 5, 5), (3, 256, 3, 3)), [1024, 1024, 256]),
])  # fmt: skip
def test_the_products_of_operators_are_of_bfloat16(call, shapes, depths):
    found = contracted(lambda a, b: call(a, None, b, None), *shapes)
    assert found == [("bf16", str(depth)) for depth in depths]


def test_a_product_of_a_depth_that_is_not_known_is_of_int32():
    (depth,) = export.symbolic_shape("k")
    shapes = (2, depth), (depth, 3)
    assert contracted(cuda.dot, *shapes) == [("i32", "?")]
    structs = [jax.ShapeDtypeStruct(shape, jnp.int8) for shape in shapes]
    exported = export.export(jax.jit(cuda.dot), platforms=["cpu"])(*structs)
    a, b = of_bytes(2, 1027), of_bytes(1027, 3)
    assert_same_bits(exported.call(a, b), product(a, b))


@pytest.mark.parametrize("dtype", [TensorProto.INT8, TensorProto.UINT8])
def test_einsum_of_onnx_is_of_int32(dtype):
    made = dml.onnx.load(
        model(
            [node("Einsum", ["a", "b"], ["c"], equation="ij,jk->ik")],
            inputs=[("a", dtype, (2, 3)), ("b", dtype, (3, 4))],
            outputs=[("c", dtype, (2, 4))],
        )
    )
    structs = [jax.ShapeDtypeStruct(shape, helper.tensor_dtype_to_np_dtype(dtype)) for shape in ((2, 3), (3, 4))]
    traced = jax.jit(made.apply).trace(made.params, *structs)
    program = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert re.findall(r"dot_general.*: \(tensor<[\dx]+x(\w+)>", program) == ["i32"]
