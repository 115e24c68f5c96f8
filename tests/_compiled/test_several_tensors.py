"""Compiled operators with several tensors in a field, several outputs, or elements of 4 bits, two to a byte."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from _compiled.bound import MORE, NIBBLES, OWNED, RNG, B, V, described, owning
from helpers.cases import Case
from helpers.compare import assert_same_bits, assert_same_values
from jaxdml import reference

SCALES, ZERO_POINTS = np.float16([[1, 2, 3]]), NIBBLES[:2, :1]
DEQUANTIZE = Case("dequantize", (NIBBLES, SCALES, ZERO_POINTS), {})
DYNAMIC = Case("dynamic_quantize_linear", (V,), {})


def packed(array, size=None):
    """The bytes of 4-bit elements, the first of two in the low bits."""
    values = np.ravel(array).astype(np.uint8) & 15
    values = np.append(values, np.zeros(values.size % 2, np.uint8))
    values = values[::2] | values[1::2] << 4
    return np.append(values, np.zeros((size or values.size) - values.size, np.uint8))


def dequantize():
    desc, tensors = described(DEQUANTIZE)
    return dml.compile_operator(desc), tensors


@pytest.mark.parametrize("wrap", [tuple, list])
def test_several_tensors_are_bound_as_a_tuple(wrap):
    op, tensors = dequantize()
    assert op.dispatched == ("input_tensor", "quantization_tensors")
    got = op(input_tensor=NIBBLES, quantization_tensors=wrap(tensors["quantization_tensors"]))
    assert_same_bits(got, DEQUANTIZE.expected)


WRONG = (
    ({"quantization_tensors": None}, "QuantizationTensors", " is not bound; give quantization_tensors to the call"),
    ({"quantization_tensors": SCALES}, "QuantizationTensors", "is bound to a value of type ndarray, expected a tup"),
    ({"quantization_tensors": (SCALES,)}, "QuantizationTensors", "is bound to a value of type tuple, expected a tup"),
    ({"quantization_tensors": (SCALES, ZERO_POINTS, ZERO_POINTS)}, "QuantizationTensors", "expected a tuple of 2"),
    ({"quantization_tensors": (SCALES, 3)}, "QuantizationTensors[1]", "is bound to a value of type int, expected"),
    ({"quantization_tensors": (SCALES, None)}, "QuantizationTensors[1]", "is bound to a value of type NoneType, expe"),
    ({"quantization_tensors": (SCALES.astype(np.float32), ZERO_POINTS)}, "QuantizationTensors[0]",
     " is bound to float32, the desc says FLOAT16"),
    ({"quantization_tensors": (SCALES, ZERO_POINTS.astype(np.int8))}, "QuantizationTensors[1]",
     " is bound to int8, the desc says UINT4"),
    ({"quantization_tensors": (SCALES, NIBBLES[:1, :1])}, "QuantizationTensors[1]",
     " is bound to shape [1, 1], the desc has Sizes [2, 1]"),
    ({"scale_tensor": SCALES}, "scale_tensor", "there is no argument scale_tensor; the call takes input_tensor, "),
    ({"QuantizationTensors": SCALES}, "QuantizationTensors", "there is no argument QuantizationTensors; write quantiz"),
    ({"input_tensor": NIBBLES.astype(np.uint8)}, "InputTensor",
     " is bound to uint8 of shape [4, 6], expected rank 1 for bytes of 4-bit elements; give a flat buffer with "
     "two elements per byte, or an array of jnp.uint4"),
    ({"input_tensor": packed(NIBBLES)[1:]}, "InputTensor", " is bound to a buffer of 11 bytes, the desc needs at "),
    ({"input_tensor": NIBBLES.ravel()[1:]}, "InputTensor", " is bound to a buffer of 23 elements, the desc needs at "),
    ({"input_tensor": NIBBLES.T}, "InputTensor", " is bound to shape [6, 4], the desc has Sizes [4, 6]"),
)  # fmt: skip


def test_wrong_bindings():
    op, tensors = dequantize()
    for changes, tensor, text in WRONG:
        with pytest.raises(dml.DescError) as error:
            op(**{**tensors, **changes})
        assert text in str(error.value), text
        assert (error.value.operator, error.value.tensor) == ("dequantize", tensor)


def test_both_tensors_of_a_field_are_owned_or_none():
    desc, tensors = described(DEQUANTIZE)
    scale, zero_point = desc.quantization_tensors
    mixed = (dataclasses.replace(scale, flags=OWNED), zero_point)
    with pytest.raises(
        dml.DescError, match="QuantizationTensors has tensors with Flags OWNED_BY_DML and without; flag"
    ):
        dml.compile_operator(dataclasses.replace(desc, quantization_tensors=mixed))
    op = dml.compile_operator(owning(desc, "quantization_tensors"))
    assert (op.owned, op.dispatched) == (("quantization_tensors",), ("input_tensor",))
    for zero_points in (ZERO_POINTS, packed(ZERO_POINTS)):
        persistent = op.initialize(quantization_tensors=(SCALES, zero_points))
        assert_same_bits(op(persistent, input_tensor=NIBBLES), DEQUANTIZE.expected)
    with pytest.raises(dml.DescError, match="QuantizationTensors has Flags OWNED_BY_DML, so it goes to initialize"):
        op(persistent, **tensors)
    with pytest.raises(dml.DescError, match=r"QuantizationTensors\[1\] is bound to int8, the desc says UINT4"):
        op.initialize(quantization_tensors=(SCALES, np.int8([[1], [2]])))
    with pytest.raises(dml.DescError, match=r"the result of initialize\(quantization_tensors=...\) for this desc"):
        op({"quantization_tensors": (SCALES,)}, input_tensor=NIBBLES)


def test_nibbles_are_arrays_or_bytes():
    """The same bits from an array of 4-bit elements, from a flat one, and from bytes."""
    op, tensors = dequantize()
    parameters = {"quantization_tensors": (SCALES, packed(ZERO_POINTS))}
    for form in (NIBBLES, jnp.asarray(NIBBLES), NIBBLES.ravel(), packed(NIBBLES), packed(NIBBLES, 16)):
        got = op(input_tensor=form, **parameters)
        assert_same_bits(got, DEQUANTIZE.expected)
    got = jax.jit(lambda x: op(input_tensor=x, **parameters))(packed(NIBBLES))
    assert_same_bits(got, DEQUANTIZE.expected)
    assert tensors["input_tensor"].dtype == NIBBLES.dtype


def test_nibbles_with_strides():
    """Columns first, an odd number of elements, and rows that begin in the middle of a byte."""
    x = NIBBLES[:3, :5]
    scale = dml.TensorDesc(dml.DataType.FLOAT32, (1, 1))
    options = {"quantization_type": dml.QuantizationType.SCALE, "quantization_tensor_count": 1}
    expected = reference.dequantize(x, np.float32(0.5))
    for strides, buffer in (
        ((1, 3), x.T),
        ((5, 1), x),
        ((7, 1), np.pad(x.astype(np.uint8), ((0, 0), (0, 2)), constant_values=9)),
        ((0, 1), x[:1]),
    ):
        desc = dml.DequantizeDesc(
            input_tensor=dml.TensorDesc(dml.DataType.UINT4, (3, 5), strides), **options,
            quantization_tensors=(scale,), output_tensor=dml.TensorDesc(dml.DataType.FLOAT32, (3, 5)),
        )  # fmt: skip
        got = dml.compile_operator(desc)(input_tensor=packed(buffer), quantization_tensors=(np.float32([0.5]),))
        assert_same_bits(got, np.repeat(expected[:1], 3, 0) if strides[0] == 0 else expected, str(strides))


def test_nibbles_are_written_beside_others():
    """Into a buffer of bytes, whose other nibbles stay the same; without a buffer, the gaps are zeros."""
    values = RNG.integers(0, 16, (3, 3)).astype(np.float32)
    desc, tensors = described(Case("quantize", (values, np.float32(1), np.asarray(0, "uint4")), {}))
    assert dml.compile_operator(desc)(**tensors).dtype == jnp.uint4
    output = dml.TensorDesc(dml.DataType.UINT4, (3, 3), (5, 1))
    op = dml.compile_operator(dataclasses.replace(desc, output_tensor=output))
    for fill, target in ((0, None), (7, np.full(8, 0x77, np.uint8))):
        expected = np.full((3, 5), fill, np.uint8)
        expected[:, :3] = values
        expected = packed(expected.ravel()[:13] if target is None else np.append(expected, fill))
        got = op(**tensors) if target is None else op(**tensors, output_tensor=target)
        assert_same_bits(got, expected)
    with pytest.raises(dml.DescError, match="OutputTensor is bound to a buffer of 6 bytes, the desc needs at least 7"):
        op(**tensors, output_tensor=np.zeros(6, np.uint8))


def test_several_outputs_are_a_named_tuple():
    desc, tensors = described(DYNAMIC)
    op = dml.compile_operator(desc)
    got, function = op(**tensors), dml.dynamic_quantize_linear(V)
    assert type(got).__name__ == type(function).__name__ == "Outputs"
    assert got._fields == function._fields == ("output", "output_scale", "output_zero_point")
    for one, other in zip(got, DYNAMIC.expected, strict=True):
        assert_same_bits(one, other)
    shapes = dml.validate(desc)
    assert [(x.shape, x.dtype) for x in shapes] == [(x.shape, x.dtype) for x in got]


def test_each_output_is_written_into_its_own_buffer():
    desc, tensors = described(DYNAMIC)
    strided = dataclasses.replace(desc, output_tensor=dml.TensorDesc(dml.DataType.UINT8, V.shape, (16, 5, 1)))
    op = dml.compile_operator(strided)
    output, scale, zero_point = DYNAMIC.expected
    scales = np.full(5, -1, np.float32)
    got = op(**tensors, output_scale_tensor=scales)
    assert_same_values(got.output_scale, [scale.item(), -1, -1, -1, -1])
    assert_same_bits(got.output_zero_point, zero_point)
    gaps = np.lib.stride_tricks.as_strided(np.asarray(got.output), V.shape, (16, 5, 1))
    assert_same_bits(gaps, output)
    assert got.output.shape == (16 + 2 * 5 + 4,)
    for name, page in (("output_scale_tensor", "OutputScaleTensor"), ("output_tensor", "OutputTensor")):
        with pytest.raises(dml.DescError, match=f"{page} is bound to (int16|a buffer)"):
            op(**tensors, **{name: np.zeros(64, np.int16)})


def test_bias_and_b_of_strides_0():
    """One row of bias, and one B, for a batch of A."""
    case = next(case for case in MORE if case.operator == "matrix_multiply_integer_to_float")
    a, a_scale, a_zero_point, _, b_scale, _, _ = case.arguments
    repeated = np.broadcast_to(B[0], B.shape)
    row = np.float32([1, -2, 3, -4])
    case = case._replace(arguments=(a, a_scale, a_zero_point, repeated, b_scale, None, row))
    desc, tensors = described(case)
    assert desc.bias_tensor.strides == (0, 0, 1)
    b_tensor = dml.TensorDesc(dml.DataType.INT8, B.shape, (0, 4, 1))
    for flags in (dml.TensorFlags.NONE, OWNED):
        op = dml.compile_operator(dataclasses.replace(desc, b_tensor=dataclasses.replace(b_tensor, flags=flags)))
        bound = {**tensors, "b_tensor": B[0].ravel()}
        persistent = op.initialize(**{name: bound[name] for name in op.owned})
        got = op(persistent, **{name: bound[name] for name in op.dispatched})
        assert_same_bits(got, case.expected)


def test_prepared_b_of_a_batch_and_a_bias_that_is_shared():
    """B is owned, and bias has strides of 0 in the batch."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (2, 3, 4), np.uint8), rng.integers(-128, 128, (2, 4, 5), np.int8)
    bias, one = rng.normal(size=5).astype(np.float32), np.ones((1, 1, 1), np.float32)
    desc = dml.desc_of(dml.matrix_multiply_integer_to_float, a, 1.0, None, b, 1.0, None, bias)
    assert desc.bias_tensor.strides == (0, 0, 1)
    owned = dataclasses.replace(desc.b_tensor, flags=dml.TensorFlags.OWNED_BY_DML)
    op = dml.compile_operator(dataclasses.replace(desc, b_tensor=owned))
    scales = {"a_scale_tensor": one, "b_scale_tensor": one}
    got = op(op.initialize(b_tensor=b), a_tensor=a, **scales, bias_tensor=bias)
    expected = reference.matrix_multiply_integer_to_float(a, np.float32(1), None, b, np.float32(1), None, bias)
    assert_same_bits(got, expected)
