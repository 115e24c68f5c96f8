"""The remedies in errors about hand-written descs: they are in a desc's words, and following them mends the desc."""

import dataclasses
import itertools
import re

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.descs import (
    ADD,
    CONVOLUTION,
    CONVOLUTION_INTEGER,
    DEQUANTIZE,
    DEQUANTIZE_BLOCKS,
    DYNAMIC_QUANTIZE,
    MATRIX_MULTIPLY,
    MATRIX_MULTIPLY_INTEGER,
    MATRIX_MULTIPLY_TO_FLOAT,
    OPERATORS,
    POOLING,
    QUANTIZE,
    QUANTIZE_BLOCKS,
    case,
    desc_of,
    example,
    f32,
    i8,
    i32,
    level,
    put,
    refusal,
    right,
    sizes_of,
    tensor_of,
)  # fmt: skip
from helpers.spec_pages import DATA_TYPES
from helpers.spec_tables import table_at
from jaxdml import DataType

LATEST = dml.FeatureLevel.LATEST
CALLS_WORDS = ("jnp.", "jax.", "astype", "reshape", "transpose", "[:, None]", "dequantize it", "quantize it")


def with_tensor(desc, name, **fields):
    """The desc, one of its tensors changed."""
    return put(desc, name, dataclasses.replace(desc.tensors()[name], **fields))


def error_of(desc, feature_level=LATEST):
    try:
        dml.validate(desc, feature_level)
    except dml.DescError as error:
        return error
    return None


def written(error):
    """The remedies that an error offers: [{field of a TensorDesc: value}], one for each choice."""
    _, _, remedy = str(error).rpartition("write ")
    field, _, values = remedy.partition("=")
    if field == "data_type":
        return [{"data_type": DataType[name]} for name in re.findall(r"DataType\.(\w+)", values)]
    assert field == "sizes", str(error)
    sizes = tuple(map(int, re.findall(r"\d+", values.partition(")")[0])))
    return [{"sizes": sizes}]


def assert_mended(desc, steps, feature_level=LATEST):
    """Whichever choice is taken, following the remedy of each error makes the desc valid in this many steps."""
    error = error_of(desc, feature_level)
    if error is None:
        return
    assert steps, str(error)
    if isinstance(error, dml.FeatureLevelError):
        assert_mended(desc, steps - 1, error.minimum_feature_level)
        return
    choices = written(error)
    assert choices
    for choice in choices:
        with case(error, choice):
            assert_mended(with_tensor(desc, error.tensor, **choice), steps - 1, feature_level)


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_wrong_data_type_is_mended_by_what_is_said_to_write(operator):
    """Each tensor with all 14 data types, most of which are invalid there or do not fit the other tensors."""
    for name in table_at(operator, "6_4"):
        for data_type in DATA_TYPES:
            with case(name, data_type):
                desc = with_tensor(right(operator), name, data_type=DataType[data_type])
                if operator == DEQUANTIZE and name == "InputTensor" and data_type in ("INT4", "UINT4"):
                    assert str(refusal(desc)).endswith("; DML_OPERATOR_DEQUANTIZE takes 4-bit types")
                    taken = desc_of(DEQUANTIZE_BLOCKS, example(DEQUANTIZE_BLOCKS, name, data_type=data_type))
                    assert dml.validate(taken)
                else:
                    assert_mended(desc, steps=4)


# The operator, fields that make a valid desc invalid, the tensor at fault, the remedy.
SIZES = (
    (QUANTIZE, {"scale_tensor": f32(3)}, "ScaleTensor", "(2, 3, 1, 2), and strides of 0 where values are shared"),
    (DEQUANTIZE, {"zero_point_tensor": tensor_of("UINT8", 2, 1, 1, 1)}, "ZeroPointTensor",
     "(2, 3, 1, 2), and strides of 0 where values are shared"),
    (MATRIX_MULTIPLY, {"a_scale_tensor": f32(1, 1, 1, 4)}, "AScaleTensor", "(1, 1, 4, 1)"),
    (MATRIX_MULTIPLY, {"a_zero_point_tensor": i8(1, 4, 1, 1)}, "AZeroPointTensor", "(1, 1, 4, 1)"),
    (MATRIX_MULTIPLY, {"b_scale_tensor": f32(1, 1, 6, 1)}, "BScaleTensor", "(1, 1, 1, 6)"),
    (MATRIX_MULTIPLY, {"output_scale_tensor": f32(1, 1, 1, 4)}, "OutputScaleTensor", "(1, 1, 4, 1)"),
    (CONVOLUTION, {"filter_scale_tensor": f32(6, 1, 1, 1)}, "FilterScaleTensor", "(1, 6, 1, 1)"),
    (CONVOLUTION, {"filter_scale_tensor": f32(1, 6)}, "FilterScaleTensor", "(1, 6, 1, 1)"),
    (CONVOLUTION, {"filter_scale_tensor": f32(1, 1, 6)}, "FilterScaleTensor", "(6, 1, 1)"),
    (CONVOLUTION, {"filter_zero_point_tensor": i8(1, 1, 1, 6)}, "FilterZeroPointTensor", "(1, 6, 1, 1)"),
    (CONVOLUTION, {"bias_tensor": i32(1, 1, 1, 6)}, "BiasTensor", "(1, 6, 1, 1)"),
    (CONVOLUTION, {"bias_tensor": i32(6, 1, 1, 1)}, "BiasTensor", "(1, 6, 1, 1)"),
    (MATRIX_MULTIPLY_INTEGER, {"a_zero_point_tensor": i8(4)}, "AZeroPointTensor", "(1, 1, 4, 1)"),
    (MATRIX_MULTIPLY_INTEGER, {"a_zero_point_tensor": i8(1, 1, 1, 4)}, "AZeroPointTensor", "(1, 1, 4, 1)"),
    (MATRIX_MULTIPLY_INTEGER, {"b_zero_point_tensor": i8(6, 1)}, "BZeroPointTensor", "(1, 6)"),
    (MATRIX_MULTIPLY_TO_FLOAT, {"a_scale_tensor": f32(1, 1, 1, 4)}, "AScaleTensor", "(1, 1, 4, 1)"),
    (MATRIX_MULTIPLY_TO_FLOAT, {"b_zero_point_tensor": i32(1, 1, 6, 1)}, "BZeroPointTensor", "(1, 1, 1, 6)"),
    (CONVOLUTION_INTEGER, {"filter_zero_point_tensor": i8(1, 1, 1, 6)}, "FilterZeroPointTensor", "(1, 6, 1, 1)"),
    (CONVOLUTION_INTEGER, {"filter_zero_point_tensor": i8(6, 1, 1, 1)}, "FilterZeroPointTensor", "(1, 6, 1, 1)"),
    (POOLING, {"input_scale_tensor": f32(4)}, "InputScaleTensor", "(1, 4, 1, 1)"),
    (POOLING, {"output_zero_point_tensor": i8(1, 1, 1, 4)}, "OutputZeroPointTensor", "(1, 4, 1, 1)"),
)  # fmt: skip


def test_wrong_sizes_are_mended_by_what_is_said_to_write():
    for operator, fields, name, sizes in SIZES:
        with case(operator, fields):
            desc = right(operator, **fields)
            error = refusal(desc)
            assert error.tensor == name
            assert str(error).endswith(f"; write sizes={sizes}")
            assert_mended(desc, steps=1)


def test_shared_values_are_written_by_strides_of_0():
    """One scale, or one for each index of dimension 1: the error asks for the input's sizes and strides of 0."""
    for strides in ((0, 0, 0, 0), (0, 1, 0, 0)):
        wrong = right(QUANTIZE, scale_tensor=f32(1, max(strides) * 2 + 1, 1, 1))
        (choice,) = written(refusal(wrong))
        assert not error_of(with_tensor(wrong, "ScaleTensor", strides=strides, **choice))


# The operator, fields that make a valid desc invalid, the error's text after "; ", fields that follow it.
REMEDIES = (
    (DEQUANTIZE, {"scale_tensor": None}, "write scale_tensor=TensorDesc(...)", {"scale_tensor": f32(2, 3, 1, 2)}),
    (DEQUANTIZE, {"scale_tensor": 0.1}, "write TensorDesc(DataType.UINT8, (2, 3)) or the like",
     {"scale_tensor": f32(2, 3, 1, 2)}),
    (DEQUANTIZE, {"input_tensor": dml.TensorDesc(np.dtype("uint8"), (2, 3, 1, 2))},
     "write DataType.UINT8 or the like, or DataType.of(dtype)",
     {"input_tensor": dml.TensorDesc(DataType.of(np.dtype("uint8")), (2, 3, 1, 2))}),
    (DEQUANTIZE, {"output_tensor": f32(2, 0, 1, 2)}, "give each dimension 1 or more",
     {"output_tensor": f32(2, 3, 1, 2)}),
    (DEQUANTIZE, {"output_tensor": f32(2, 3, 1, 2, 1, 1, 1, 1, 1)}, "give it 1 to 8 sizes",
     {"output_tensor": f32(2, 3, 1, 2)}),
    (DEQUANTIZE, {"output_tensor": tensor_of("FLOAT32", 2, 3, 1, 2, flags=dml.TensorFlags.OWNED_BY_DML)},
     "leave its flags NONE", {"output_tensor": f32(2, 3, 1, 2)}),
    (QUANTIZE, {"input_tensor": tensor_of("INT32", 2, 3, 1, 2), "scale_tensor": tensor_of("FLOAT16", 2, 3, 1, 2)},
     "write data_type=DataType.FLOAT32", {"scale_tensor": f32(2, 3, 1, 2)}),
    (ADD, {"b_tensor": i8(2, 1, 1, 2)},
     "tensors do not broadcast: write equal sizes, and strides of 0 where values are repeated",
     {"b_tensor": tensor_of("INT8", 2, 3, 1, 2, strides=(2, 0, 1, 1))}),
    (ADD, {"output_tensor": i8(1, 2, 3, 1, 2)}, "give both 5 sizes, or both 4", {"output_tensor": i8(2, 3, 1, 2)}),
    (ADD, {"output_tensor": i8(3, 1, 2)}, "give both 3 sizes, or both 4", {"output_tensor": i8(2, 3, 1, 2)}),
    (ADD, {"a_scale_tensor": f32(1, 1, 1)}, "give it 4 sizes", {"a_scale_tensor": f32(1, 1, 1, 1)}),
    (MATRIX_MULTIPLY, {"a_scale_tensor": f32(1, 1, 4, 1), "b_scale_tensor": f32(1, 1, 1)}, "give it 4 sizes",
     {"b_scale_tensor": f32(1, 1, 1, 1)}),
    (CONVOLUTION, {"filter_tensor": i8(4, 3, 2)}, "give both 3 sizes, or both 4",
     {"filter_tensor": i8(6, 4, 3, 2)}),
    (CONVOLUTION, {"bias_tensor": i32(6, 1, 1)}, "give both 3 sizes, or both 4", {"bias_tensor": i32(1, 6, 1, 1)}),
    (CONVOLUTION, {"bias_tensor": f32(1, 6, 1, 1)},
     "a bias is in units of input_scale * filter_scale: write data_type=DataType.INT32",
     {"bias_tensor": i32(1, 6, 1, 1)}),
    (CONVOLUTION, {"filter_tensor": i8(9, 6, 4, 3, 2)},
     "a stack of filters is not a filter: write a desc for one of them", {"filter_tensor": i8(6, 4, 3, 2)}),
    (CONVOLUTION_INTEGER, {"filter_tensor": i8(9, 6, 4, 3, 2)},
     "a stack of filters is not a filter: write a desc for one of them", {"filter_tensor": i8(6, 4, 3, 2)}),
    (CONVOLUTION_INTEGER, {"filter_tensor": i8(6, 4)}, "give it 3 to 4 sizes", {"filter_tensor": i8(6, 4, 3, 2)}),
    (CONVOLUTION_INTEGER, {"input_tensor": i8(2, 7, 6, 4)},
     "write NCHW Sizes with Strides for NHWC data",
     {"input_tensor": tensor_of("INT8", 2, 4, 7, 6, strides=(168, 1, 24, 4))}),
    (DYNAMIC_QUANTIZE, {"output_scale_tensor": f32(1)}, "give it 4 sizes", {"output_scale_tensor": f32(1, 1, 1, 1)}),
    (DYNAMIC_QUANTIZE, {"output_zero_point_tensor": None}, "write output_zero_point_tensor=TensorDesc(...)",
     {"output_zero_point_tensor": i8(1, 1, 1, 1)}),
    (MATRIX_MULTIPLY_TO_FLOAT, {"bias_tensor": f32(2, 3, 1, 6)},
     "write the output's sizes, and strides of 0 where values are repeated",
     {"bias_tensor": tensor_of("FLOAT32", 2, 3, 4, 6, strides=(0, 0, 0, 1))}),
    (MATRIX_MULTIPLY_TO_FLOAT, {"bias_tensor": f32(6)}, "give it 2 to 4 sizes", {"bias_tensor": f32(2, 3, 4, 6)}),
    (POOLING, {"window_size": (8, 2)}, "pad the input or shrink the window", {"window_size": (3, 2)}),
    (POOLING, {"end_padding": (3, 0), "output_tensor": i8(2, 4, 8, 5)}, "pad less, or set include_padding",
     {"include_padding": True}),
    (QUANTIZE_BLOCKS, {"quantization_type": dml.QuantizationType.NONE},
     "write QuantizationType.SCALE or QuantizationType.SCALE_ZERO_POINT",
     {"quantization_type": dml.QuantizationType.SCALE_ZERO_POINT}),
    (DEQUANTIZE_BLOCKS, {"quantization_tensors": (f32(1, 1), i8(1, 1, 1, 1))}, "give it 4 sizes",
     {"quantization_tensors": (f32(1, 1, 1, 1), i8(1, 1, 1, 1))}),
    (CONVOLUTION, {"input_tensor": i8(2, 7, 6, 4)},
     "write NCHW Sizes with Strides for NHWC data",
     {"input_tensor": tensor_of("INT8", 2, 4, 7, 6, strides=(168, 1, 24, 4))}),
    (CONVOLUTION, {"input_tensor": i8(2, 8, 7, 12), "filter_tensor": i8(12, 2, 3, 2), "bias_tensor": None},
     "write group_count=4, or NCHW Sizes and group_count=6 with Strides for NHWC data",
     {"input_tensor": tensor_of("INT8", 2, 12, 8, 7, strides=(672, 1, 84, 12)), "group_count": 6,
      "output_tensor": i8(2, 12, 6, 6)}),
    (CONVOLUTION, {"filter_tensor": i8(3, 2, 4, 6)},
     "write NCHW Sizes and group_count=3 with Strides for NHWC data, or [O, I, H, W] Sizes with Strides for an HWIO "
     "filter",
     {"filter_tensor": tensor_of("INT8", 6, 4, 3, 2, strides=(1, 6, 48, 24))}),
    (CONVOLUTION, {"filter_tensor": i8(6, 4, 8, 2)}, "pad the input or shrink the kernel",
     {"start_padding": (1, 0), "end_padding": (4, 0)}),
)  # fmt: skip


def test_other_remedies_are_true():
    for operator, fields, remedy, mended in REMEDIES:
        with case(operator, fields):
            error = refusal(right(operator, **fields))
            assert str(error).endswith(f"; {remedy}")
            assert not isinstance(error, dml.FeatureLevelError)
            assert dml.validate(right(operator, **{**fields, **mended}))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_desc_is_not_answered_in_a_calls_words(operator):
    """Each tensor with every data type, with ranks 0 to 9, and absent, at a level of each table."""
    texts = [str(refusal(right(its, **fields))) for its, fields, *_ in SIZES + REMEDIES if its == operator]
    for name in table_at(operator, "6_4"):
        facts = [*itertools.product(DATA_TYPES, range(10)), None]
        for fact, at in itertools.product(facts, ("2_1", "5_0", "6_4")):
            tensor = fact and tensor_of(fact[0], *sizes_of(operator, name, fact[1]))
            error = error_of(put(right(operator), name, tensor), level(at))
            texts += [str(error)] if error else []
    assert len(texts) > 1000
    assert not [text for text in texts if any(word in text for word in CALLS_WORDS)]


X, F = np.zeros((1, 2, 5, 5), np.uint8), np.zeros((3, 2, 3, 3), np.int8)


def test_a_call_and_a_desc_are_told_the_same_facts():
    """The class and all attributes are equal, and so is the text up to the remedy."""
    quantize = example(QUANTIZE)
    convolve = dml.desc_of(dml.quantized_linear_convolution, X, 0.1, None, F, 0.1, None, None, 0.5, None)
    row = np.ones(5, np.float32)
    multiply = dml.desc_of(dml.quantized_linear_matrix_multiply, X, 0.1, None, X, 0.1, None, 0.5, None)
    for call, desc in (
        (lambda: dml.element_wise_quantize_linear(jnp.zeros((2, 3, 1, 2), jnp.uint8), 0.1),
         desc_of(QUANTIZE, {**quantize, "InputTensor": ("UINT8", 4), "ZeroPointTensor": None})),
        (lambda: dml.quantized_linear_convolution(X, 0.1, None, F.transpose(2, 3, 1, 0), 0.1, None, None, 0.5, None),
         with_tensor(convolve, "FilterTensor", sizes=(3, 3, 2, 3))),
        (lambda: dml.quantized_linear_convolution(X, 0.1, None, F, 0.1, None, np.zeros(3, np.float32), 0.5, None),
         dataclasses.replace(convolve, bias_tensor=f32(1, 3, 1, 1))),
        (lambda: dml.quantized_linear_matrix_multiply(X, row, None, X, 0.1, None, 0.5, None),
         dataclasses.replace(multiply, a_scale_tensor=f32(1, 1, 1, 5))),
    ):  # fmt: skip
        theirs = refusal(desc)
        with case(theirs), pytest.raises(dml.DescError) as caught:
            call()
        with case(theirs, caught.value):
            assert type(caught.value) is type(theirs)
            assert vars(caught.value) == vars(theirs)
            told, remedies = zip(*(str(error).rsplit("; ", 1) for error in (caught.value, theirs)), strict=True)
            assert told[0] == told[1]
            assert remedies[0] != remedies[1]
