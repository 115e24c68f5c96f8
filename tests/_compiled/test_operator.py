"""Compiled operators: descs as functions, with flat buffers, and the bits of the functions."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from _compiled.bound import ELEMENTWISE, MORE, RNG, A, F, X, described, owning
from helpers.cases import CONVOLUTION, MATRIX_MULTIPLY, Case
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from jaxdml import reference

pytestmark = pytest.mark.oldest

EACH = [ELEMENTWISE, MORE, *rest_rarely(MATRIX_MULTIPLY, 3), *rest_rarely(CONVOLUTION, 3)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("chunk", EACH, ids=lambda chunk: chunk[0].operator)
def test_same_bits_as_the_functions(chunk):
    """Every case of the table, called by its desc; in every other case, the last input is owned."""
    calls = [described(case) for case in chunk]
    operators, given = [], []
    for number, (desc, tensors) in enumerate(calls):
        last = [name for name in tensors if "scale" not in name and "zero_point" not in name][-1]
        desc = owning(desc, last) if number % 2 else desc
        operators.append(dml.compile_operator(desc))
        given.append(tensors)

    @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # there is more to compile than to run
    def together(given):
        outputs = []
        for op, tensors in zip(operators, given, strict=True):
            persistent = op.initialize(**{name: tensors[name] for name in op.owned})
            outputs.append(op(persistent, **{name: tensors[name] for name in op.dispatched}))
        return outputs

    for case, got in zip(chunk, together(given), strict=True):
        expected = case.expected if isinstance(case.expected, tuple) else (case.expected,)
        for one, other in zip(got if isinstance(got, tuple) else (got,), expected, strict=True):
            assert_same_bits(one, other)


def test_strided_inputs_and_outputs():
    """NHWC in and out, a filter with padded rows, a batch that is one image repeated."""
    case = Case(
        "quantized_linear_convolution",
        (X[[0, 0]], np.float32(0.1), np.uint8(3), F, np.float32(0.1), None, None, np.float32(9), np.int8(5)),
        {"strides": 2, "start_padding": 1, "group_count": 2},
    )
    desc, tensors = described(case)
    n, o, h, w = case.expected.shape
    rows = np.pad(F, ((0, 0), (0, 0), (0, 0), (0, 2)))
    desc = owning(
        dataclasses.replace(
            desc,
            input_tensor=dml.TensorDesc(dml.DataType.UINT8, X.shape, (0, 1, 24, 4)),
            filter_tensor=dml.TensorDesc(dml.DataType.INT8, F.shape, (30, 15, 5, 1)),
            output_tensor=dml.TensorDesc(dml.DataType.INT8, (n, o, h, w), (h * w * o, 1, w * o, o)),
        ),
        "filter_tensor",
    )
    op = dml.compile_operator(desc)
    persistent = op.initialize(filter_tensor=rows.ravel())
    assert isinstance(persistent["filter_tensor"], dml.PreparedFilter)
    tensors = {name: tensors[name] for name in op.dispatched} | {"input_tensor": X[0].transpose(1, 2, 0).ravel()}
    expected = case.expected.transpose(0, 2, 3, 1).ravel()
    assert_same_bits(op(persistent, **tensors), expected)
    buffer = RNG.integers(-128, 128, expected.size + 7).astype(np.int8)
    got = jax.jit(op)(persistent, output_tensor=buffer, **tensors)
    assert_same_bits(got, np.concatenate([expected, buffer[-7:]]))


def test_gaps_of_the_output_are_kept():
    desc = dml.desc_of(dml.element_wise_dequantize_linear, A[0], np.full(A[0].shape, 0.5, np.float32))
    desc = dataclasses.replace(desc, output_tensor=dml.TensorDesc(dml.DataType.FLOAT32, A[0].shape, (7, 1)))
    op, tensors = dml.compile_operator(desc), {"input_tensor": A[0], "scale_tensor": np.full(15, 0.5, np.float32)}
    expected = np.zeros((3, 7), np.float32)
    expected[:, :5] = A[0] / 2
    assert_same_bits(op(**tensors), expected.ravel()[:19])
    expected[:, 5:] = -1
    assert_same_bits(op(output_tensor=np.full(21, -1, np.float32), **tensors), expected.ravel())


def test_parameters_of_a_3d_convolution_in_4d():
    x, f, scale = X[:, :, 0], F[..., 0], np.linspace(0.1, 0.2, 6).astype(np.float32)
    rest = (np.float32(0.1), np.uint8(3), f, scale, np.int8([1, 2, 3, 4, 5, 6]), None, np.float32(9), np.uint8(5))
    desc = dml.desc_of(dml.quantized_linear_convolution, x, *rest, group_count=2)
    four = {
        name: dml.TensorDesc(getattr(desc, name).data_type, (1, 6, 1, 1))
        for name in ("filter_scale_tensor", "filter_zero_point_tensor")
    }
    op = dml.compile_operator(dataclasses.replace(desc, **four))
    tensors = dict(zip(op.dispatched, (x, *(v for v in rest if v is not None)), strict=True))
    tensors = {name: np.reshape(value, getattr(op.desc, name).sizes) for name, value in tensors.items()}
    expected = reference.quantized_linear_convolution(x, *rest, group_count=2)
    assert_same_bits(op(**tensors), expected)


def test_through_transformations():
    """vmap over the input, and the gradient with respect to the scale."""
    desc = dml.desc_of(dml.element_wise_dequantize_linear, A[0], np.full(A[0].shape, 0.5, np.float32))
    op, scale = dml.compile_operator(desc), jnp.full(A[0].shape, 0.5, jnp.float32)
    got = jax.vmap(lambda x: op(input_tensor=x, scale_tensor=scale))(A)
    assert_same_bits(got, A / np.float32(2))
    by_scale = jax.grad(lambda scale: op(input_tensor=A[0], scale_tensor=scale).sum())(scale)
    assert_same_bits(by_scale, A[0].astype(np.float32))
    assert hash(op) == hash(dml.compile_operator(desc))
