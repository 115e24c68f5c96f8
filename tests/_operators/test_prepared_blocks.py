"""Prepared matrices in blocks: their contents, saved and loaded, and data that a function changed."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxdml as dml
from helpers.block_cases import LIMITS, floats, matrix
from helpers.compare import assert_same_bits
from helpers.marks import on_both_kernels, rarely_on_xla
from helpers.native_calls import needs_native
from jaxdml._arithmetic import block_panels
from jaxdml._arithmetic.prepared_blocks import blocks_of

RNG = np.random.default_rng(0)
N, K = 70, 100


def of(dtype, **options):
    return matrix(RNG, dtype, (N, K), 32, **options)


@on_both_kernels
@pytest.mark.parametrize("dtype", LIMITS)
def test_a_prepared_matrix_holds_its_arrays(dtype):
    for scales, zero_points in ((np.float32, True), (np.float16, False)):
        b, scale, zero_point = of(dtype, scales=scales, zero_points=zero_points)
        got = dml.prepare_matrix_multiply_blocks(b, scale, zero_point)
        assert (got.shape, got.ndim, got.dtype) == ((N, K), 2, b.dtype)
        assert repr(got) == f"PreparedBlocks({dtype}[70, 100], blocks of 32)"
        assert_same_bits(got.array, b)
        assert_same_bits(got.scale, scale)
        if zero_points:
            assert_same_bits(got.zero_point, zero_point)
        else:
            assert got.zero_point is None
        assert len(jax.tree.leaves(got)) == 1
        with pytest.raises(TypeError, match=r"is a pytree, not an array; save its \.array, or pickle it"):
            np.asarray(got)


@pytest.mark.rare
@needs_native
def test_all_pack_the_same_bytes():
    for dtype in LIMITS:
        for k in (K, 99):  # rows of nibbles that begin in the middle of a byte
            parts = tuple(x[:, :k] if i == 0 else x for i, x in enumerate(of(dtype)))
            native = dml.prepare_matrix_multiply_blocks(*parts)
            assert native.layout == "native"
            with dml.use_kernels("xla"):
                by_numpy = dml.prepare_matrix_multiply_blocks(*parts)
                by_xla = dml.prepare_matrix_multiply_blocks(*map(jnp.asarray, parts))
            assert by_numpy.layout == by_xla.layout == "xla"
            start = block_panels.SEAL
            for other in (by_numpy, by_xla):
                assert_same_bits(other.data[start:], native.data[start:], dtype)
            assert native.data.size == blocks_of(*parts).bytes


def test_packed_bytes_are_few():
    """At most 1.06 times the bytes of MatMulNBits in a file."""
    for block, scales in ((32, np.float32), (128, np.float32), (32, np.float16), (128, np.float16)):
        for zero_points in (False, True):
            b, scale, zero_point = matrix(RNG, "uint4", (256, 512), block, scales=scales, zero_points=zero_points)
            in_file = b.size / 2 + scale.nbytes + (scale.size / 2 if zero_points else 0)
            packed = dml.prepare_matrix_multiply_blocks(b, scale, zero_point).data.nbytes
            assert packed <= 1.06 * in_file


@pytest.mark.sampled(1)
@rarely_on_xla
@pytest.mark.parametrize("copied", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy], ids=["pickle", "deepcopy"])
def test_copies(copied):
    parts, a = of("int4"), floats(RNG, "normal", (2, K))
    prepared = dml.prepare_matrix_multiply_blocks(*parts)
    again = copied(prepared)
    assert_same_bits(again.data, prepared.data)
    assert again.layout == prepared.layout
    assert_same_bits(dml.matrix_multiply_blocks(a, again), dml.matrix_multiply_blocks(a, prepared))
    stack = jax.vmap(dml.prepare_matrix_multiply_blocks)(*(np.stack([x, x]) for x in parts))
    assert_same_bits(copied(stack).data, stack.data)


@needs_native
def test_pickled_with_kernels_of_another_kind():
    prepared = dml.prepare_matrix_multiply_blocks(*of("uint4"))
    with dml.use_kernels("xla"):
        assert pickle.loads(pickle.dumps(prepared)).layout == "xla"
        plain = dml.prepare_matrix_multiply_blocks(*of("uint4"))
    assert pickle.loads(pickle.dumps(plain)).layout == "native"


@on_both_kernels
@pytest.mark.parametrize("spec", [PartitionSpec("x"), PartitionSpec(None, "x")], ids=["N", "K"])
def test_explicit_mesh_axes(spec):
    """JAX cannot join a sharded axis with the seal. The bits are compared in integers_on_eight_devices.py."""
    mesh = jax.sharding.AbstractMesh((2,), ("x",), axis_types=(AxisType.Explicit,))
    sharding = NamedSharding(mesh, spec)
    parts = (jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for x in matrix(RNG, "int4", (N, 128), 32))
    with jax.sharding.use_abstract_mesh(mesh):
        prepared = jax.eval_shape(dml.prepare_matrix_multiply_blocks, *parts)
    assert (prepared.shape, prepared.data.sharding.spec) == ((N, 128), PartitionSpec(None))


@rarely_on_xla
def test_data_that_a_function_changed(kernels):
    a = floats(RNG, "normal", (2, K))
    prepared = dml.prepare_matrix_multiply_blocks(*of("uint4"))
    changed = jax.tree.map(lambda x: x // 2, prepared)
    for attribute in ("array", "scale", "zero_point"):
        with pytest.raises(ValueError, match="is not as it was packed: apply functions to `array`"):
            getattr(changed, attribute)
    if kernels == "native":
        with pytest.raises(Exception, match="the prepared b is not as these kernels packed it"):
            jax.block_until_ready(dml.matrix_multiply_blocks(a, changed))
    with dml.use_kernels("xla"):  # XLA raises no errors
        assert np.isnan(dml.matrix_multiply_blocks(a, changed)).all()
        assert np.isfinite(dml.matrix_multiply_blocks(a, prepared)).all()


@pytest.mark.rare
@rarely_on_xla
def test_prepared_elsewhere_runs_on_these_kernels(kernels):
    parts, a = of("uint4"), floats(RNG, "normal", (2, K))
    expected = dml.matrix_multiply_blocks(a, *parts)
    with dml.use_kernels("xla"):
        plain = dml.prepare_matrix_multiply_blocks(*parts)
    assert_same_bits(dml.matrix_multiply_blocks(a, plain), expected)
    if kernels == "native":
        prepared = dml.prepare_matrix_multiply_blocks(*parts)
        with dml.use_kernels("xla"):
            assert_same_bits(dml.matrix_multiply_blocks(a, prepared), expected)
