"""Prepared weights: the bits that the array gives, through every transformation, saved and loaded."""

import copy
import io
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.cases import BYTES, CONVOLUTION, MATRIX_MULTIPLY
from helpers.compare import assert_same_bits
from helpers.marks import on_both_kernels, rarely_on_xla
from helpers.modes import UNOPTIMISED, as_jax

RNG = np.random.default_rng(0)
LAYOUTS = {"conv": (24, 8, 3, 3), "dot": (6, 4, 1, 1), "row": (20, 8, 3)}


def name(chunk):
    return chunk[0].operator.split("_")[-1]


def prepared(case):
    """The case's arguments with its weights prepared."""
    arguments = list(as_jax(case.arguments))
    if case.operator == "quantized_linear_matrix_multiply":
        arguments[3] = dml.prepare_matrix_multiply_b(arguments[3])
    else:
        arguments[3] = dml.prepare_convolution_filter(arguments[3], group_count=case.options["group_count"])
    return arguments


@rarely_on_xla
@pytest.mark.parametrize("chunk", [MATRIX_MULTIPLY[0], CONVOLUTION[0]], ids=name)
def test_same_bits(chunk):
    arguments = jax.jit(lambda: [prepared(case) for case in chunk], compiler_options=UNOPTIMISED)()
    got = jax.jit(lambda all: [case.call(*one) for case, one in zip(chunk, all, strict=True)])(arguments)
    for case, one in zip(chunk, got, strict=True):
        assert_same_bits(one, case.expected, case)
        assert one.dtype == case.expected.dtype


def matrix(dtype=np.int8, shape=(16, 12)):
    return RNG.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def multiply(a, b):
    return dml.quantized_linear_matrix_multiply(a, 0.1, 3, b, 0.1, None, 2.0, 5)


def convolve(x, f):
    return dml.quantized_linear_convolution(x, 0.1, 3, f, 0.1, None, None, 2.0, 5)


@pytest.mark.sampled(4)
@on_both_kernels
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("shape", [(16, 12), (3, 16, 12), (2, 3, 16, 12)])
def test_a_prepared_matrix_looks_like_the_array(shape, dtype):
    b = matrix(dtype, shape)
    got = dml.prepare_matrix_multiply_b(b)
    assert isinstance(got, dml.PreparedMatrix)
    assert (got.shape, got.ndim, got.dtype) == (b.shape, b.ndim, b.dtype)
    assert repr(got) == f"PreparedMatrix({b.dtype}{list(shape)})"
    assert_same_bits(got.array, b)
    with pytest.raises(TypeError, match=r"is a pytree, not an array; save its \.array, or pickle it"):
        np.asarray(got)


@on_both_kernels
@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("shape", LAYOUTS.values(), ids=str)
@pytest.mark.parametrize("group_count", [1, 2])
def test_a_prepared_filter_looks_like_the_array(shape, dtype, group_count):
    f = matrix(dtype, shape)
    got = dml.prepare_convolution_filter(f, group_count=group_count)
    assert isinstance(got, dml.PreparedFilter)
    assert (got.shape, got.ndim, got.dtype, got.group_count) == (f.shape, f.ndim, f.dtype, group_count)
    assert repr(got) == f"PreparedFilter({f.dtype}{list(shape)}, group_count={group_count})"
    stack = jax.vmap(lambda f: dml.prepare_convolution_filter(f, group_count=group_count))(np.stack([f, f, f]))
    assert (stack.shape, stack.group_count) == ((3, *f.shape), group_count)
    assert_same_bits(got.array, f)
    assert_same_bits(stack.array, np.stack([f, f, f]))
    for save in (np.asarray, lambda prepared: np.save(io.BytesIO(), prepared)):
        with pytest.raises(TypeError, match=r"is a pytree, not an array; save its \.array, or pickle it"):
            save(got)


def as_leaves(value, path):
    """Saves the arrays, and loads them into the structure that zeros of the same shapes give."""
    np.savez(path, *jax.tree.leaves(value))
    with np.load(path) as file:
        return jax.tree.unflatten(jax.tree.structure(value), [file[key] for key in file.files])


def as_pickle(value, path):
    path.write_bytes(pickle.dumps(value))
    return pickle.loads(path.read_bytes())


@rarely_on_xla
@pytest.mark.parametrize("through", [as_leaves, as_pickle])
def test_saved_and_loaded(through, tmp_path):
    a, b, x, f = matrix(np.uint8, (5, 16)), matrix(), matrix(np.uint8, (2, 8, 6, 6)), matrix(np.int8, LAYOUTS["conv"])
    b_loaded = through(dml.prepare_matrix_multiply_b(b), tmp_path / "b.npz")
    f_loaded = through(dml.prepare_convolution_filter(f), tmp_path / "f.npz")
    assert_same_bits(multiply(a, b_loaded), multiply(a, b))
    assert_same_bits(convolve(x, f_loaded), convolve(x, f))


@pytest.mark.rare
@rarely_on_xla
@pytest.mark.parametrize("copied", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy], ids=["pickle", "deepcopy"])
def test_a_stack_is_packed_again(copied):
    """Stacks of matrices and of filters, under one vmap and under two: the copies are the same arrays."""
    matrices = jax.vmap(dml.prepare_matrix_multiply_b)(matrix(np.int8, (3, 16, 12)))
    filters = jax.vmap(dml.prepare_convolution_filter)(matrix(np.int8, (3, *LAYOUTS["conv"])))
    more = jax.vmap(jax.vmap(dml.prepare_convolution_filter))(matrix(np.uint8, (2, 3, *LAYOUTS["row"])))
    for stack in (matrices, filters, more):
        got = copied(stack)
        assert jax.tree.structure(got) == jax.tree.structure(stack)
        jax.tree.map(assert_same_bits, got, stack)


@rarely_on_xla
def test_vmap_over_prepared_weights():
    a, bs = matrix(np.uint8, (5, 16)), matrix(np.int8, (4, 16, 12))
    prepared = jax.vmap(dml.prepare_matrix_multiply_b)(bs)
    got = jax.jit(jax.vmap(multiply, in_axes=(None, 0)))(a, prepared)
    assert_same_bits(got, np.stack([multiply(a, b) for b in bs]))


@rarely_on_xla
@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", LAYOUTS.values(), ids=str)
def test_vmap_over_prepared_filters(shape):
    fs, x = matrix(np.int8, (4, *shape)), matrix(np.uint8, (2, shape[1], *(6 for _ in shape[2:])))
    prepared = jax.vmap(dml.prepare_convolution_filter)(fs)
    xs = jnp.stack([x, x[::-1], x + 1, x])
    together, apart = jax.jit(lambda *all: (jax.vmap(convolve)(*all), jax.vmap(convolve, (None, 0))(xs[0], all[1])))(
        xs, prepared
    )
    assert_same_bits(together, np.stack([convolve(x, f) for x, f in zip(xs, fs, strict=True)]))
    assert_same_bits(apart, np.stack([convolve(x, f) for f in fs]))


@rarely_on_xla
def test_scan_over_layers():
    a, bs = matrix(np.uint8, (5, 16)), matrix(np.int8, (4, 16, 16))
    layers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(dml.prepare_matrix_multiply_b, bs))
    got, _ = jax.lax.scan(lambda a, b: (multiply(a, b), None), jnp.asarray(a), layers)
    for b in bs:
        a = multiply(a, b)
    assert_same_bits(got, a)


@rarely_on_xla
def test_on_other_backends_nothing_is_repacked():
    """Backends without a form of their own compile one contraction, with XLA's weights in their own layout."""
    for shape in LAYOUTS.values():
        x, f = (
            matrix(np.uint8, (2, shape[1], *(6 for _ in shape[2:]))),
            dml.prepare_convolution_filter(matrix(np.uint8, shape)),
        )
        text = jax.jit(convolve).trace(x, f).lower(lowering_platforms=("rocm",)).as_text()
        assert text.count("stablehlo.convolution") == 1
    traced = jax.jit(multiply).trace(matrix(np.uint8), dml.prepare_matrix_multiply_b(matrix(np.uint8, (12, 16))))
    text = traced.lower(lowering_platforms=("rocm",)).as_text()
    assert re.findall(r"stablehlo\.dot_general.*-> tensor<(\w+)>", text) == ["16x16xi32"]
    assert re.findall(r"stablehlo\.reduce.*-> tensor<(\w+)>", text) == ["16xi32"] * 2  # the sums


def changed(prepared):
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), prepared)


def stacked(prepared):
    return jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), prepared)


@rarely_on_xla
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dml.prepare_matrix_multiply_b(matrix().astype(np.float32)), "BTensor has data type FLOAT32"),
        (lambda: dml.prepare_matrix_multiply_b(matrix()[0]), "BTensor has rank 1"),
        (lambda: dml.prepare_matrix_multiply_b([[1]]), "BTensor is a list, expected an array"),
        (lambda: dml.prepare_matrix_multiply_b(None), "BTensor is None, but required"),
        (lambda: dml.prepare_matrix_multiply_b(np.zeros((0, 3), np.int8)), "no dimension may be empty"),
        (lambda: dml.prepare_convolution_filter(matrix()), "FilterTensor has rank 2"),
        (lambda: dml.prepare_convolution_filter(matrix(shape=(4, 2, 3)), group_count=3), "a divisor of the 4 output"),
        (lambda: dml.prepare_convolution_filter(matrix(shape=(4, 2, 3)), group_count=0), "a divisor of the 4 output"),
        (lambda: dml.prepare_convolution_filter(matrix(shape=(4, 2, 3)), group_count=2.0), "expected an integer"),
        (lambda: multiply(matrix(), dml.prepare_matrix_multiply_b(matrix())), "BTensor has Sizes [16, 12], expected"),
        (
            lambda: multiply(matrix(), dml.prepare_convolution_filter(matrix(shape=(4, 2, 3)))),
            "BTensor is a PreparedFilter, expected an array or a PreparedMatrix; prepare_matrix_multiply_b is for b, "
            "prepare_convolution_filter for filter",
        ),
        (
            lambda: dml.quantized_linear_convolution(
                matrix(shape=(1, 4, 5)), 0.1, 3, dml.prepare_convolution_filter(matrix(shape=(4, 2, 3))),
                0.1, None, None, 2.0, 5, group_count=2,
            ),
            "FilterTensor was prepared for group_count 1, the call has 2; prepare filter.array with group_count=2",
        ),
        (
            lambda: convolve(
                matrix(shape=(1, 4, 5)), dml.prepare_convolution_filter(matrix(shape=(4, 2, 3)), group_count=2)
            ),
            "FilterTensor was prepared for group_count 2, the call has 1; call with group_count=2",
        ),
        (
            lambda: dml.element_wise_dequantize_linear(dml.prepare_matrix_multiply_b(matrix()), 0.1),
            "InputTensor is a PreparedMatrix, expected an array: only b and filter may be prepared, and only once; "
            "write input.array",
        ),
        (
            lambda: dml.prepare_matrix_multiply_b(dml.prepare_matrix_multiply_b(matrix())),
            "BTensor is a PreparedMatrix, expected an array: only b and filter may be prepared, and only once; "
            "write b.array",
        ),
        (
            lambda: multiply(matrix(), changed(dml.prepare_matrix_multiply_b(matrix().T))),
            "BTensor is a PreparedMatrix whose data changed type or shape",
        ),
        (lambda: multiply(matrix(), stacked(dml.prepare_matrix_multiply_b(matrix().T))), "BTensor has"),
        (
            lambda: convolve(matrix(shape=(1, 2, 5)), changed(dml.prepare_convolution_filter(matrix(shape=(4, 2, 3))))),
            "FilterTensor is a PreparedFilter whose data changed type or shape",
        ),
        (
            lambda: convolve(matrix(shape=(1, 2, 5)), stacked(dml.prepare_convolution_filter(matrix(shape=(4, 2, 3))))),
            "FilterTensor is a PreparedFilter whose data changed type or shape; prepare it again. "
            "For a stack, use jax.vmap",
        ),
    ],
)  # fmt: skip
def test_errors(call, message):
    with pytest.raises(dml.DescError) as error:
        call()
    assert message in str(error.value)


@pytest.mark.rare
@rarely_on_xla
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_numpy_arrays_are_prepared_alike(dtype):
    """In NumPy, not in a compiled program: the same arrays in the same structure, and copies."""

    def check(prepare, w, **options):
        known, traced = prepare(w, **options), prepare(jnp.asarray(w), **options)
        assert jax.tree.structure(known) == jax.tree.structure(traced)
        assert_same_bits(known.array, w)
        for x, y in zip(jax.tree.leaves(known), jax.tree.leaves(traced), strict=True):
            assert isinstance(x, jax.Array)
            assert_same_bits(x, y)
        before = [np.array(x) for x in jax.tree.leaves(known)]
        w[...] = 1
        for x, y in zip(jax.tree.leaves(known), before, strict=True):
            assert_same_bits(x, y)

    rng, limits = np.random.default_rng(0), np.iinfo(dtype)
    for shape, groups in (
        ((8, 4, 3, 3), 1),
        ((24, 1, 5, 5), 1),
        ((32, 1, 3, 3), 32),
        ((40, 24, 3, 3), 1),
        ((16, 8, 5), 1),
        ((20, 6, 3, 3), 4),
    ):
        w = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        check(dml.prepare_convolution_filter, w, group_count=groups)
    for shape in ((5, 7), (64, 32), (3, 16, 8), (2, 3, 4, 5)):
        check(dml.prepare_matrix_multiply_b, rng.integers(limits.min, limits.max, shape, dtype, endpoint=True))


@rarely_on_xla
def test_what_a_function_made_of_prepared_weights_can_be_printed():
    prepared = dml.prepare_matrix_multiply_b(np.zeros((5, 7), np.int8))
    with dml.use_kernels("xla"):
        plain = dml.prepare_matrix_multiply_b(np.zeros((5, 7), np.int8))
    assert repr(prepared) == "PreparedMatrix(int8[5, 7])"
    shapes = jax.tree.map(lambda x: x.shape, plain)
    assert repr(shapes) == "PreparedMatrix(data=(7, 5))"
