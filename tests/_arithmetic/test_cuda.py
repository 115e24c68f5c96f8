"""Products for CUDA, in bfloat16 and in int8: their bits, and which products take which type.

Here a CPU computes both; tests/commands/on_device.py has run them on a GPU.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.marks import on_xla_alone
from jaxdml._arithmetic import cuda

pytestmark = on_xla_alone

RNG = np.random.default_rng(0)
TAKES_THE_FIRST = "--xla_gpu_deterministic_ops=true"


def of_bytes(*shape):
    return RNG.integers(-128, 128, shape, np.int8)


def product(a, b):
    return (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)


def computed(a, b, layout="KN"):
    return jax.jit(lambda a, b: cuda.dot(a, b, layout))(a, b if layout == "KN" else b.swapaxes(-1, -2))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("flags", ["", TAKES_THE_FIRST])
@pytest.mark.parametrize("layout", ["KN", "NK"])
@pytest.mark.parametrize("depth", [0, 1, 5, 1024, 1025, 1027, 3000])
def test_bits(depth, layout, flags, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    a, b = of_bytes(2, 3, depth), of_bytes(2, depth, 5)
    assert_same_bits(computed(a, b, layout), product(a, b))


@pytest.mark.parametrize("flags", ["", TAKES_THE_FIRST])
def test_float32_holds_the_largest_sum_of_a_part(flags, monkeypatch):
    """2**24 + 1 is no float32."""
    monkeypatch.setenv("XLA_FLAGS", flags)
    for depth in (1024, 1025):
        a = np.full((2, depth), -128, np.int8)
        a[:, 1024:] = 1
        assert_same_bits(computed(a, a.T), np.full((2, 2), 2**24 + depth - 1024, np.int32))


def lowered(*shapes, layout="KN"):
    """The program of a product for CUDA."""
    structs = [jax.ShapeDtypeStruct(shape, jnp.int8) for shape in shapes]
    return jax.jit(lambda a, b: cuda.dot(a, b, layout)).lower(*structs).as_text()


def contracted(program):
    """The types of a program's products, and their shapes on the left."""
    return re.findall(r"dot_general.*: \(tensor<([\dx?]+)x(\w+)>", program)


@pytest.mark.parametrize(("m", "k", "n", "kind"), [
    (64, 1024, 1024, "bf16"), (1, 1, 1, "bf16"), (2048, 1024, 1024, "bf16"),
    (2048, 1024, 1025, "i8"), (1, 1025, 1, "i8"), (1, 4096, 4096, "i8"),
])  # fmt: skip
def test_small_products_of_few_terms_are_of_bfloat16(m, k, n, kind):
    for b, layout in (((k, n), "KN"), ((n, k), "NK")):
        ((_, dtype),) = contracted(lowered((m, k), b, layout=layout))
        assert dtype == kind


def test_columns_of_several_dimensions_are_counted():
    ((_, dtype),) = contracted(lowered((1, 64, 576), (1, 576, 8, 100, 100)))
    assert dtype == "i8"


@pytest.mark.parametrize(("depth", "padded"), [(1025, 1028), (1028, 1028), (1026, 1028)])
def test_cublas_can_multiply_what_is_of_int8(depth, padded):
    """Both operands are in memory, and have a multiple of 4 terms."""
    program = lowered((2, depth), (depth, 3))
    assert contracted(program) == [(f"2x{padded}", "i8")]
    assert program.count("optimization_barrier") == 2
    assert program.count("stablehlo.pad") == (2 if depth < padded else 0)


@pytest.mark.parametrize(("flags", "compares"), [
    ("", True),
    ("--xla_gpu_autotune_level=4", True),
    ("--xla_gpu_autotune_level=5", True),
    ("--xla_gpu_cublas_fallback=true", True),
    ("--xla_gpu_deterministic_ops=false", True),
    ("--xla_gpu_autotune_level=3", False),
    ("--xla_gpu_autotune_level=0", False),
    ("--xla_gpu_cublas_fallback=false", False),
    ("--xla_gpu_deterministic_ops", False),
    ("--xla_gpu_exclude_nondeterministic_ops=true", False),
])  # fmt: skip
def test_flags_that_keep_xla_from_comparing_its_kernels(flags, compares, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    kinds = {dtype for _, dtype in contracted(lowered((2, 3000), (3000, 3)))}
    assert kinds == ({"i8"} if compares else {"bf16"})


def test_a_depth_that_is_not_known_is_padded():
    (depth,) = export.symbolic_shape("k")
    structs = [jax.ShapeDtypeStruct(shape, jnp.int8) for shape in ((2, depth), (depth, 3))]
    exported = export.export(jax.jit(cuda.dot), platforms=["cpu"])(*structs)
    assert "dynamic_pad" in exported.mlir_module()
    a, b = of_bytes(2, 1027), of_bytes(1027, 3)
    assert_same_bits(exported.call(a, b), product(a, b))


def test_the_operators_for_cuda_multiply_so():
    for call, shapes in (
        (dml.matrix_multiply_integer, ((2, 6), (6, 3))),
        (dml.convolution_integer, ((1, 2, 5, 5), (3, 2, 1, 1))),
        (dml.convolution_integer, ((1, 2, 5, 5), (3, 2, 3, 3))),
    ):
        structs = [jax.ShapeDtypeStruct(shape, jnp.int8) for shape in shapes]
        traced = jax.jit(lambda a, b, call=call: call(a, None, b, None)).trace(*structs)
        assert {kind for _, kind in contracted(traced.lower(lowering_platforms=("cuda",)).as_text())} == {"bf16"}
