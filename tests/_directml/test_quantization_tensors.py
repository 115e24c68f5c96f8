"""Fields that hold several tensors, in quantize and dequantize: their number, types and blocks."""

import dataclasses

import pytest

import jaxdml as dml
from helpers.descs import (
    BLOCKED,
    BLOCKS,
    DEQUANTIZE_BLOCKS,
    ELEMENTS,
    QUANTIZE_BLOCKS,
    assert_refused,
    case,
    f32,
    put,
    refusal,
    right,
    tensor_of,
    validated,
    without,
)
from jaxdml import DataType, QuantizationType

NONE, SCALE, BOTH = QuantizationType
SIZES, SCALE_SIZES = ELEMENTS[:4], BLOCKS[:4]
KINDS = (None, 0, 1, 2, "SCALE", True, (SCALE,), DataType.FLOAT32, QuantizationType)
NAMES = ("QuantizationTensors[0]", "QuantizationTensors[1]")


def of(operator, kind, count, own):
    return right(operator, quantization_type=kind, quantization_tensor_count=count, quantization_tensors=own)


@pytest.mark.parametrize("operator", BLOCKED)
def test_the_type_is_a_quantization_type(operator):
    for wrong in KINDS:
        with case(repr(wrong)):
            error = assert_refused(right(operator, quantization_type=wrong), "QuantizationType", "kind")
            expected = "expected QuantizationType.NONE, QuantizationType.SCALE or QuantizationType.SCALE_ZERO_POINT"
            assert expected in str(error)
    error = assert_refused(right(operator, quantization_type=NONE), "QuantizationType", "quantization_type")
    assert str(error).endswith("; write QuantizationType.SCALE or QuantizationType.SCALE_ZERO_POINT")


@pytest.mark.parametrize("operator", BLOCKED)
def test_there_are_as_many_tensors_as_the_type_and_the_count_say(operator):
    scale, zero_point = own = right(operator).quantization_tensors
    for kind, number in ((SCALE, 1), (BOTH, 2)):
        assert validated(of(operator, kind, number, own[:number])) == validated(right(operator))
        for wrong in (own[: 3 - number], (scale, zero_point, zero_point), (scale,) * 8):
            with case(kind, len(wrong)):
                desc = of(operator, kind, len(wrong), wrong)
                error = assert_refused(desc, "QuantizationTensors", "quantization_type")
                assert f"has {len(wrong)} tensors, expected {number}: {kind.name} means a scale" in str(error)
        for wrong in (None, 0, 3 - number, -1, 1.0 * number, str(number), (number,), 2**32):
            with case(kind, wrong):
                desc = of(operator, kind, wrong, own[:number])
                error = assert_refused(desc, "QuantizationTensorCount", "quantization_tensor_count")
                assert f"expected {number}, the number of QuantizationTensors" in str(error)


@pytest.mark.parametrize("operator", BLOCKED)
def test_true_is_no_count(operator):
    """True is rejected, although it equals 1."""
    desc = without(right(operator), NAMES[1])
    desc = dataclasses.replace(desc, quantization_tensor_count=True)
    assert_refused(desc, "QuantizationTensorCount", "quantization_tensor_count")


@pytest.mark.parametrize("operator", BLOCKED)
def test_a_list_is_a_tuple_and_a_tensor_is_none(operator):
    desc = without(right(operator), NAMES[1])
    (scale,) = desc.quantization_tensors
    assert dataclasses.replace(desc, quantization_tensors=[scale]) == desc
    with case("a tensor that is in no tuple"):
        error = refusal(dataclasses.replace(desc, quantization_tensors=scale))
        assert (error.tensor, error.rule) == ("QuantizationTensors", "tensor_desc")


@pytest.mark.parametrize("operator", BLOCKED)
def test_what_is_missing_is_to_be_written_as_a_tuple(operator):
    """The remedy leads to a valid desc, so it writes all tensors in a tuple."""
    for missing in (None, (), []):
        error = assert_refused(right(operator, quantization_tensors=missing), "QuantizationTensors", "required")
        assert "; write quantization_tensors=(TensorDesc(...)," in str(error)


@pytest.mark.parametrize("operator", BLOCKED)
def test_a_place_without_a_tensor(operator):
    """None is not a tensor in a tuple either; the error names the place. JSON cannot represent this."""
    for name in NAMES:
        desc = put(right(operator), name, None)
        with case(name):
            assert_refused(desc, name, "required")
            with pytest.raises(dml.DescError) as error:
                dml.desc_to_dict(desc)
            assert error.value.tensor == name


TYPES = (
    # the operator, a tensor and its wrong type, another tensor and its type, what the other tensor's error says
    (QUANTIZE_BLOCKS, "InputTensor", "FLOAT16", NAMES[0], "FLOAT32", "a scale has the type of InputTensor"),
    (QUANTIZE_BLOCKS, NAMES[0], "FLOAT16", NAMES[0], "FLOAT16", "a scale has the type of InputTensor"),
    (QUANTIZE_BLOCKS, NAMES[0], "INT8", NAMES[0], "INT8", "a scale has the type of InputTensor"),
    (QUANTIZE_BLOCKS, NAMES[1], "FLOAT32", NAMES[1], "FLOAT32", "a zero point has the type of OutputTensor"),
    (QUANTIZE_BLOCKS, NAMES[1], "UINT8", NAMES[1], "UINT8", "a zero point has the type of OutputTensor"),
    (QUANTIZE_BLOCKS, "OutputTensor", "UINT4", NAMES[1], "INT8", "a zero point has the type of OutputTensor"),
    (DEQUANTIZE_BLOCKS, "InputTensor", "UINT4", NAMES[1], "INT8", "a zero point has the type of InputTensor"),
    (DEQUANTIZE_BLOCKS, NAMES[1], "INT4", NAMES[1], "INT4", "a zero point has the type of InputTensor"),
    (DEQUANTIZE_BLOCKS, NAMES[0], "UINT8", NAMES[0], "UINT8", "a scale has the type of OutputTensor"),
    (DEQUANTIZE_BLOCKS, "OutputTensor", "FLOAT16", NAMES[0], "FLOAT32", "a scale has the type of OutputTensor"),
)


def test_a_scale_has_the_type_of_the_floats_and_a_zero_point_that_of_the_integers():
    for operator, name, data_type, at_fault, has, said in TYPES:
        with case(operator, name, data_type):
            desc = right(operator)
            desc = put(desc, name, dataclasses.replace(desc.tensors()[name], data_type=DataType[data_type]))
            error = assert_refused(desc, at_fault, "data_type")
            assert error.received == DataType[has]
            assert f"has data type {has}, expected {error.expected.name}: {said}; " in str(error)
            assert str(error).endswith(f"; write data_type=DataType.{error.expected.name}")
            mended = put(
                desc, at_fault, dataclasses.replace(desc.tensors()[at_fault], data_type=DataType[error.expected.name])
            )
            assert validated(mended)


@pytest.mark.parametrize("operator", BLOCKED)
def test_blocks_are_equally_large(operator):
    """Each size of a scale or zero point divides the input's; scales and zero points may have different sizes."""
    for name, data_type in zip(NAMES, ("FLOAT32", "INT8"), strict=True):
        for sizes in ((1, 1, 1, 1), SIZES, (2, 1, 1, 1), (1, 3, 1, 2), (2, 3, 1, 1)):
            with case(name, sizes):
                assert validated(put(right(operator), name, tensor_of(data_type, *sizes))) == validated(right(operator))
        for sizes, fix in (
            ((1, 2, 1, 1), "pad the input to 4 in dimension 1, or give a number of values that divides 3"),
            ((2, 2, 1, 2), "pad the input to 4 in dimension 1, or give a number of values that divides 3"),
            ((4, 3, 1, 1), "there are more values than elements in dimension 0"),
            ((1, 1, 2, 1), "there are more values than elements in dimension 2"),
            ((2, 1, 3, 1), "there are more values than elements in dimension 2"),
        ):
            with case(name, sizes):
                error = assert_refused(put(right(operator), name, tensor_of(data_type, *sizes)), name, "sizes")
                assert f"has Sizes {list(sizes)}, which do not divide InputTensor's {list(SIZES)}" in str(error)
                assert str(error).endswith(f"; {fix}")


def test_padding_the_input_as_the_error_says_mends_it():
    padded = (2, 4, 1, 2)
    wrong = put(right(QUANTIZE_BLOCKS), NAMES[0], f32(1, 2, 1, 1))
    assert "pad the input to 4 in dimension 1" in str(refusal(wrong))
    mended = dataclasses.replace(without(wrong, NAMES[1]), input_tensor=f32(*padded))
    mended = put(mended, "OutputTensor", tensor_of("INT4", *padded))
    assert validated(mended)[0].shape == padded
