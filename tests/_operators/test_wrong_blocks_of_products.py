"""Wrong calls of the product by a matrix in blocks: each error says the rule, and its remedy works."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.block_cases import floats, matrix
from helpers.compare import assert_same_bits
from jaxdml import reference

RNG = np.random.default_rng(0)
N, K = 6, 64
A = floats(RNG, "normal", (2, K))
B, SCALE, ZERO = matrix(RNG, "uint4", (N, K), 32)
RIGHT = {"a": A, "b": B, "b_scale": SCALE, "b_zero_point": ZERO}
EXPECTED = np.asarray(dml.matrix_multiply_blocks(**RIGHT))


def error_of(function=dml.matrix_multiply_blocks, right=RIGHT, **changes):
    with pytest.raises(dml.DescError) as caught:
        function(**{**right, **changes})
    assert caught.value.operator == function.__name__
    return caught.value


def remedied(name, wrong, *needles, right=RIGHT):
    """The result after the error's remedy for the argument is followed."""
    error = error_of(right=right, **{name: wrong})
    for needle in needles:
        assert needle in str(error)
    code = re.search(r"(?:; write |unpack them: )(.*?)(?:, if .*)?$", str(error)).group(1)
    arguments = {**right, name: wrong}
    value = eval(code, {"jax": jax, "jnp": jnp, **arguments})
    return dml.matrix_multiply_blocks(**{**arguments, name: value})


def nibbles(x):
    """Two nibbles to a byte, as in MatMulNBits."""
    x = np.pad(x.astype(np.uint8), ((0, 0), (0, x.shape[1] % 2)))
    return x[:, ::2] | x[:, 1::2] << 4


def test_packed_weights_are_unpacked():
    for packed in (nibbles(B), nibbles(B).reshape(N, 2, 16)):
        got = remedied("b", packed, "BTensor has type uint8 and shape", "two weights to a byte, as in MatMulNBits")
        assert_same_bits(got, EXPECTED)
    odd = B[:, :63]
    right = {**RIGHT, "a": A[:, :63], "b": odd}
    got = remedied("b", nibbles(odd), "two weights to a byte", right=right)
    assert_same_bits(got, dml.matrix_multiply_blocks(**right))


def test_rows_of_one_byte_are_no_nibbles():
    arguments = A[:, :1], np.arange(N, dtype=np.uint8)[:, None], SCALE[:, :1]
    assert_same_bits(dml.matrix_multiply_blocks(*arguments), reference.matrix_multiply_blocks(*arguments))


def test_packed_zero_points_are_unpacked():
    got = remedied("b_zero_point", nibbles(ZERO), "BZeroPointTensor has type uint8", "two zero points to a byte")
    assert_same_bits(got, EXPECTED)


def test_bytes_are_no_nibbles():
    """A matrix of bytes whose sizes do not look like packed nibbles is one of bytes."""
    b, scale, _ = matrix(RNG, "uint8", (N, K), 32)
    assert dml.matrix_multiply_blocks(A, b, scale).shape == (2, N)


def test_types():
    for name, wrong in (("a", A.astype(np.float64)), ("b_scale", SCALE.astype(np.float64))):
        got = remedied(name, wrong, f"has type float64, expected float32{', float16' * (name == 'a')}")
        assert_same_bits(got, EXPECTED)
    swapped = {**RIGHT, "bias": np.ones(N, np.float32)}
    expected = dml.matrix_multiply_blocks(**swapped)
    for name in ("a", "b_scale", "bias"):
        got = remedied(name, swapped[name].astype(">f4"), "has type >f4, expected float32", right=swapped)
        assert_same_bits(got, expected)
    text = "ATensor has type int8, expected float32, float16 or bfloat16; write a.astype(jnp.float32)"
    assert str(error_of(a=A.astype(np.int8))).endswith(text)
    assert_same_bits(remedied("b_zero_point", ZERO.astype(np.int8), "has type int8, expected uint4"), EXPECTED)
    for name in ("a", "b", "b_scale", "b_zero_point", "bias"):
        error = error_of(**{name: [[1.0]]})
        assert isinstance(error, dml.ArgumentTypeError)
        remedy = " of uint4, int4, uint8 or int8" if name == "b" else f"; write jnp.asarray({name}, jnp."
        assert f"is a list, expected an array{remedy}" in str(error)
    for name in ("a", "b", "b_scale"):
        assert f"is None, but required; give {name}" in str(error_of(**{name: None}))


def test_floats_are_quantized():
    kernel = floats(RNG, "normal", (K, N))
    for b, axis in ((kernel.T, 0), (kernel, 1)):
        text = str(error_of(b=b))
        code = re.search(r"quantize it first: b, b_scale = (.*); axis=1 if b is \[K, N\]", text).group(1)
        b, b_scale = eval(code.replace("axis=0", f"axis={axis}"), {"jaxdml": dml, "b": b})
        assert np.abs(dml.matrix_multiply_blocks(A, b, b_scale) - A @ kernel).max() < 0.02 * np.abs(A @ kernel).max()


def test_shapes_of_scales_and_zero_points():
    assert_same_bits(remedied("b_scale", SCALE.T, "has shape [2, 6], but b has shape [6, 64]"), EXPECTED)
    error = error_of(b_scale=SCALE[:, :1].repeat(3, 1), b_zero_point=None)
    listed = "[6, 1] for blocks of 64, [6, 2] for blocks of 32 or [6, 4] for blocks of 16"
    assert f"expected {listed}; the last block may be shorter, but needs a scale, too" in str(error)
    error = error_of(b_scale=SCALE.repeat(4, 1), b_zero_point=None)
    assert "its blocks would have 8 elements: quantize with a size that is listed" in str(error)
    ragged = {**RIGHT, "a": A[:, :40], "b": B[:, :40]}
    assert dml.matrix_multiply_blocks(**ragged).shape == (2, N)
    error = error_of(right=ragged, b_scale=SCALE[:, :1])
    assert dml.matrix_multiply_blocks(**{**ragged, "b_scale": SCALE[:, :1], "b_zero_point": None}).shape == (2, N)
    assert "BZeroPointTensor has shape [6, 2], expected b_scale's, [6, 1]" in str(error)
    for shape in ((6,), (), (5, 2), (6, 0)):
        assert error_of(b_scale=np.ones(shape, np.float32), b_zero_point=None).rule == "blocks"


@pytest.mark.parametrize("wrong", [ZERO.reshape(-1), ZERO.T, ZERO[:, :1], ZERO[:, 0], ZERO[0, :1], ZERO[0, 0, ...]])
def test_zero_points_in_another_shape(wrong):
    rows = {ZERO.size: ZERO, N: ZERO[:, :1], 1: ZERO[:1, :1]}[wrong.size]
    expected = dml.matrix_multiply_blocks(**{**RIGHT, "b_zero_point": np.broadcast_to(rows, SCALE.shape).copy()})
    assert_same_bits(remedied("b_zero_point", wrong, "expected b_scale's, [6, 2]; write"), expected)


def test_zero_points_that_fit_in_no_way_get_no_advice():
    assert str(error_of(b_zero_point=ZERO[:3])).endswith("has shape [3, 2], expected b_scale's, [6, 2]")
    assert str(error_of(b_zero_point=ZERO.astype(np.uint8)[:5])).endswith("astype(b.dtype), if uint4 holds its values")


@pytest.mark.parametrize("shape", [(-1,), (N, 2, 1), (N, 1, 2)])
def test_scales_that_need_another_shape(shape):
    """Such as all scales in one dimension, as in MatMulNBits."""
    got = remedied("b_scale", SCALE.reshape(shape), right={**RIGHT, "b_zero_point": None})
    assert_same_bits(got, dml.matrix_multiply_blocks(A, B, SCALE))


@pytest.mark.parametrize("wrong", [SCALE[0, 0, ...], SCALE[0, :1], SCALE[:1, :1], SCALE[:1], 0.5, np.float32(0.5), 2])
@pytest.mark.parametrize("zero_point", [None, ZERO])
def test_scales_that_all_rows_share(wrong, zero_point):
    right = {**RIGHT, "b_zero_point": zero_point}
    everywhere = np.array(np.broadcast_to(np.float32(wrong), SCALE.shape))
    got = remedied("b_scale", wrong, right=right)
    count = 2 if np.size(wrong) == 2 or zero_point is not None else 1
    assert_same_bits(got, dml.matrix_multiply_blocks(**{**right, "b_scale": everywhere[:, :count]}))


def test_numbers_in_place_of_zero_points_and_bias():
    for name, shape in (("b_zero_point", SCALE.shape), ("bias", (N,))):
        array = np.full(shape, 3, B.dtype if name == "b_zero_point" else np.float32)
        got = remedied(name, 3, "is an int, expected an array; write jnp.full(")
        assert_same_bits(got, dml.matrix_multiply_blocks(**{**RIGHT, name: array}))


def test_scales_of_the_wrong_axis_get_no_shape():
    """K scales, one for each element of a row."""
    error = error_of(b_scale=np.ones(K, np.float32), b=RNG.integers(0, 9, (16, K)).astype("uint4"), b_zero_point=None)
    assert "write" not in str(error)


def test_a_scale_for_each_row():
    a, b, rows = np.tile(A, 5), np.tile(B, 5), SCALE[:, :1]
    expected = dml.matrix_multiply_blocks(a, b, np.repeat(rows, 2, 1))
    for wrong in (rows, rows[:, 0], rows.T):
        assert_same_bits(remedied("b_scale", wrong, right={"a": a, "b": b}), expected)


def test_shapes_of_matrices_and_bias():
    assert "BTensor has shape [64], expected [N, K] with N, K > 0" in str(error_of(b=B[0]))
    assert "use jax.vmap for a stack of matrices" in str(error_of(b=B[None]))
    assert "has no dimension, expected [..., K]; write a[None]" in str(error_of(a=jnp.float32(1)))
    error = error_of(a=A[:, :60])
    assert "ATensor has 60 elements to a row, but b has shape [6, 64], and K is 64; cut or pad `a`" in str(error)
    square = {**RIGHT, "a": A[:, :N]}
    assert "b must be [N, K], not [K, N]; write b.T" in str(error_of(right=square))
    for bias in (np.ones(5, np.float32), np.ones((1, 6), np.float32)):
        assert "expected [6], one number for each row of b" in str(error_of(bias=bias))
    for precision in ("int16", 1, None, np.ones(3)):
        assert "expected 'int8', 'int15' or 'int22'" in str(error_of(precision=precision))


def test_prepared():
    prepared = dml.prepare_matrix_multiply_blocks(B, SCALE, ZERO)
    assert_same_bits(dml.matrix_multiply_blocks(A, prepared), EXPECTED)
    right = {"a": A, "b": prepared}
    for name in ("b_scale", "b_zero_point"):
        error = error_of(right=right, **{name: RIGHT[name]})
        assert f"is an array, but b is prepared, and has its own; leave {name} out" in str(error)
    other = dml.prepare_matrix_multiply_b(RNG.integers(-9, 9, (K, N), np.int8))
    assert "expected an array or a PreparedBlocks" in str(error_of(b=other))
    changed = jax.tree.map(lambda x: x.astype(jnp.float32), prepared)
    assert "whose data changed type or shape; prepare it again" in str(error_of(right=right, b=changed))
    stack = jax.tree.map(lambda x: jnp.stack([x, x]), prepared)
    assert "use jax.vmap for a stack" in str(error_of(right=right, b=stack))
    assert "K is 64" in str(error_of(right=right, a=A[:, :3]))
    with pytest.raises(dml.DescError, match="is a PreparedBlocks, expected an array or a PreparedMatrix"):
        dml.matrix_multiply_integer(np.ones((2, K), np.int8), None, prepared, None)


def test_wrong_matrices_are_not_prepared():
    prepare, right = dml.prepare_matrix_multiply_blocks, {"b": B, "b_scale": SCALE, "b_zero_point": ZERO}
    assert "expected an array; b is already prepared" in str(error_of(prepare, right, b=prepare(**right)))
    assert "expected [6, 1] for blocks of 64" in str(error_of(prepare, right, b_scale=SCALE[:4]))
    with dml.use_kernels("xla"):  # which do not pass NumPy arrays to JAX
        assert "has type >f4, expected float32" in str(error_of(prepare, right, b_scale=SCALE.astype(">f4")))
    assert "reshape(len(b), -1)[:, :K]" in str(error_of(prepare, right, b=nibbles(B).reshape(N, 2, 16)))
