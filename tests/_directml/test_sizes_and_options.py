"""Sizes and options that depend on each other, wrong one at a time; and valid descs with their outputs."""

import numpy as np
import pytest

import jaxdml as dml
from helpers.descs import (
    ADD,
    CONVOLUTION,
    DEQUANTIZE,
    ELEMENTS,
    MATRIX_MULTIPLY,
    QUANTIZE,
    assert_refused,
    case,
    desc_of,
    example,
    f32,
    field_of,
    i8,
    i32,
    linear,
    right,
    tensor_of,
)  # fmt: skip


def parameters(**sizes):
    """Matrix multiply's six parameter tensors; a=, b= and output= give sizes, the others are ones of that rank."""
    rank = len(next(iter(sizes.values())))
    fields = {}
    for name in ("a", "b", "output"):
        size = sizes.get(name, (1,) * rank)
        fields |= {f"{name}_scale_tensor": f32(*size), f"{name}_zero_point_tensor": i8(*size)}
    return fields


def deviating(tensors, sizes):
    """[(id, field, tensor name, the tensor with such sizes)] for each of the tensors and sizes."""
    return [
        (f"{name} {size}", {field_of(name): (i8 if "ZeroPoint" in name else f32)(*size)}, name)
        for name in tensors
        for size in sizes
    ]


SIZE_FAULTS = (
    # Quantize's scale is of the input's type, FLOAT32 for INT32.
    *[
        (f"quantize {x} by {s}", QUANTIZE, {"input_tensor": tensor_of(x, 3), "scale_tensor": tensor_of(s, 3),
         "zero_point_tensor": None, "output_tensor": tensor_of("UINT8", 3)}, "ScaleTensor", "data_type")
        for x, s in (("INT32", "FLOAT16"), ("FLOAT16", "FLOAT32"), ("FLOAT32", "FLOAT16"))
    ],
    # Add's parameters have one element.
    *[
        (f"add {case}", ADD, fields, name, "sizes")
        for case, fields, name in deviating(
            [f"{x}{p}Tensor" for x in ("A", "B", "Output") for p in ("Scale", "ZeroPoint")],
            [(1, 1, 1, 2), (2, 1, 1, 1), ELEMENTS[:4]],
        )
    ],
    # Matrix multiply: {..., M, K} x {..., K, N} = {..., M, N} with M = 4, K = 5, N = 6.
    ("matrices K", MATRIX_MULTIPLY, {"b_tensor": i8(2, 3, 4, 6)}, "BTensor", "sizes"),
    ("matrices B transposed", MATRIX_MULTIPLY, {"b_tensor": i8(2, 3, 6, 5)}, "BTensor", "sizes"),
    ("matrices batch 1", MATRIX_MULTIPLY, {"b_tensor": i8(1, 3, 5, 6)}, "BTensor", "sizes"),
    ("matrices channels 1", MATRIX_MULTIPLY, {"b_tensor": i8(2, 1, 5, 6)}, "BTensor", "sizes"),
    ("matrices A's batch 1", MATRIX_MULTIPLY, {"a_tensor": i8(1, 3, 4, 5)}, "BTensor", "sizes"),
    ("matrices output batch", MATRIX_MULTIPLY, {"output_tensor": i8(1, 3, 4, 6)}, "OutputTensor", "sizes"),
    ("matrices output M", MATRIX_MULTIPLY, {"output_tensor": i8(2, 3, 1, 6)}, "OutputTensor", "sizes"),
    ("matrices output N", MATRIX_MULTIPLY, {"output_tensor": i8(2, 3, 4, 5)}, "OutputTensor", "sizes"),
    ("matrices output transposed", MATRIX_MULTIPLY, {"output_tensor": i8(2, 3, 6, 4)}, "OutputTensor", "sizes"),
    *[
        (f"matrices {case}", MATRIX_MULTIPLY, fields, name, "sizes")
        for tensors, sizes in (
            # per row: another count, per column, per batch, per channel, per row of each matrix
            (("A", "Output"), [(1, 1, 5, 1), (1, 1, 1, 6), (1, 1, 1, 4), (2, 1, 1, 1), (1, 3, 1, 1), (2, 3, 4, 1)]),
            # per column: another count, per row, per batch, per channel, per column of each matrix
            (("B",), [(1, 1, 1, 5), (1, 1, 4, 1), (1, 1, 6, 1), (2, 1, 1, 1), (1, 3, 1, 1), (2, 3, 1, 6)]),
        )
        for case, fields, name in deviating([f"{x}{p}Tensor" for x in tensors for p in ("Scale", "ZeroPoint")], sizes)
    ],
    ("matrices rank 1 per row", MATRIX_MULTIPLY, parameters(a=(4,)), "AScaleTensor", "sizes"),
    ("matrices rank 1 per row of the output", MATRIX_MULTIPLY, parameters(output=(4,)), "OutputScaleTensor", "sizes"),
    # Convolution: {2, 4, 7, 6} with {6, 4, 3, 2} gives {2, 6, 5, 5}.
    *[
        (f"images {case}", CONVOLUTION, fields, name, "sizes")
        for tensors, sizes in (
            (("Input", "Output"), [(1, 4, 1, 1), (1, 6, 1, 1), (6,), (2, 1, 1, 1), (1, 1, 7, 1)]),
            (("Filter",), [(1, 4, 1, 1), (6, 1, 1, 1), (1, 1, 6, 1), (1, 1, 1, 6), (1, 1, 6), (1, 6, 1), (1, 6), (5,)]),
        )
        for case, fields, name in deviating([f"{x}{p}Tensor" for x in tensors for p in ("Scale", "ZeroPoint")], sizes)
    ],
    ("images bias per tensor", CONVOLUTION, {"bias_tensor": i32(1, 1, 1, 1)}, "BiasTensor", "sizes"),
    ("images bias for the input", CONVOLUTION, {"bias_tensor": i32(1, 4, 1, 1)}, "BiasTensor", "sizes"),
    ("images bias per column", CONVOLUTION, {"bias_tensor": i32(1, 1, 1, 6)}, "BiasTensor", "sizes"),
    ("images bias per batch", CONVOLUTION, {"bias_tensor": i32(2, 6, 1, 1)}, "BiasTensor", "sizes"),
    ("images output batch", CONVOLUTION, {"output_tensor": i8(1, 6, 5, 5)}, "OutputTensor", "sizes"),
    ("images output channels", CONVOLUTION, {"output_tensor": i8(2, 4, 5, 5)}, "OutputTensor", "sizes"),
    ("images output height", CONVOLUTION, {"output_tensor": i8(2, 6, 7, 5)}, "OutputTensor", "sizes"),
    ("images output width", CONVOLUTION, {"output_tensor": i8(2, 6, 5, 6)}, "OutputTensor", "sizes"),
    ("images output of a stride", CONVOLUTION, {"strides": (2, 1)}, "OutputTensor", "sizes"),
    ("images output of a dilation", CONVOLUTION, {"dilations": (1, 2)}, "OutputTensor", "sizes"),
    ("images output of padding before", CONVOLUTION, {"start_padding": (1, 0)}, "OutputTensor", "sizes"),
    ("images output of padding after", CONVOLUTION, {"end_padding": (0, 1)}, "OutputTensor", "sizes"),
    ("kernel too high", CONVOLUTION, {"filter_tensor": i8(6, 4, 8, 2)}, "FilterTensor", "kernel"),
    ("kernel too wide", CONVOLUTION, {"filter_tensor": i8(6, 4, 3, 7)}, "FilterTensor", "kernel"),
    ("kernel dilated too high", CONVOLUTION, {"dilations": (4, 1)}, "FilterTensor", "kernel"),
    ("kernel dilated too wide", CONVOLUTION, {"dilations": (1, 6)}, "FilterTensor", "kernel"),
    ("kernel beyond padding", CONVOLUTION,
     {"filter_tensor": i8(6, 4, 11, 2), "start_padding": (1, 0), "end_padding": (2, 0)}, "FilterTensor", "kernel"),
    ("filter channels", CONVOLUTION, {"filter_tensor": i8(6, 3, 3, 2)}, "FilterTensor", "channels"),
    ("filter channels of 2 groups", CONVOLUTION, {"group_count": 2}, "FilterTensor", "channels"),
    ("4 input channels in 3 groups", CONVOLUTION,
     {"group_count": 3, "filter_tensor": i8(6, 1, 3, 2)}, "GroupCount", "channels"),
    ("6 output channels in 4 groups", CONVOLUTION,
     {"group_count": 4, "filter_tensor": i8(6, 1, 3, 2)}, "FilterTensor", "channels"),
    *[
        (f"dimension count {count!r}", CONVOLUTION, {"dimension_count": count}, "DimensionCount", "dimension_count")
        for count in (None, 0, 1, 3, -2, 2.0, "2", (2,), np.array([1, 2]))
    ],
    *[
        (f"{field} {value!r}", CONVOLUTION, {field: value}, name, "values")
        for field, name, least in (
            ("strides", "Strides", 1),
            ("dilations", "Dilations", 1),
            ("start_padding", "StartPadding", 0),
            ("end_padding", "EndPadding", 0),
        )
        for value in (None, 1, (1,), (1, 1, 1), (), (1, -1), (1, True), (1, 1.0), (1, "1"), (1, 2**32), (least - 1, 1))
    ],
    *[
        (f"groups {count!r}", CONVOLUTION, {"group_count": count}, "GroupCount", "group_count")
        for count in (None, 0, -1, True, 1.0, "1", (1,), 2**32)
    ],
)  # fmt: skip


@pytest.mark.parametrize("operator", sorted({fault[1] for fault in SIZE_FAULTS}))
def test_sizes_and_options(operator):
    for words, its_operator, fields, tensor, rule in SIZE_FAULTS:
        if its_operator == operator:
            with case(words):
                assert_refused(right(operator, **fields), tensor, rule)


def test_one_spatial_dimension_is_not_true():
    """True == 1, but True is not a count."""
    error = assert_refused(right(CONVOLUTION, rank=3, dimension_count=True), "DimensionCount", "dimension_count")
    assert "is True, expected 1 for an InputTensor of rank 3" in str(error)


RIGHT = (
    ("dequantize", right(DEQUANTIZE), (2, 3, 1, 2), "float32"),
    *[(f"rank {rank}", right(DEQUANTIZE, rank=rank), ELEMENTS[:rank], "float32") for rank in range(1, 9)],
    ("without a zero point", linear("INT32", 3), (3,), "float32"),
    ("quantize", right(QUANTIZE), (2, 3, 1, 2), "uint8"),
    ("add", right(ADD), (2, 3, 1, 2), "int8"),
    ("add to another type", right(ADD, output_tensor=tensor_of("UINT8", 2, 3, 1, 2), output_zero_point_tensor=None),
     (2, 3, 1, 2), "uint8"),
    ("matrices", right(MATRIX_MULTIPLY), (2, 3, 4, 6), "int8"),
    ("matrices of rank 2", right(MATRIX_MULTIPLY, rank=2), (4, 6), "int8"),
    ("matrices of rank 3", right(MATRIX_MULTIPLY, rank=3), (3, 4, 6), "int8"),
    ("per row", right(MATRIX_MULTIPLY, **parameters(a=(1, 1, 4, 1))), (2, 3, 4, 6), "int8"),
    ("per row, rank 2", right(MATRIX_MULTIPLY, **parameters(a=(4, 1))), (2, 3, 4, 6), "int8"),
    ("per row, rank 2 for matrices of rank 2", right(MATRIX_MULTIPLY, 2, **parameters(a=(4, 1))), (4, 6), "int8"),
    ("per row, rank 4 for matrices of rank 2", right(MATRIX_MULTIPLY, 2, **parameters(a=(1, 1, 4, 1))), (4, 6), "int8"),
    ("per column", right(MATRIX_MULTIPLY, **parameters(b=(1, 1, 1, 6))), (2, 3, 4, 6), "int8"),
    ("per column, rank 1", right(MATRIX_MULTIPLY, **parameters(b=(6,))), (2, 3, 4, 6), "int8"),
    ("per row of the output", right(MATRIX_MULTIPLY, **parameters(output=(1, 1, 4, 1))), (2, 3, 4, 6), "int8"),
    ("only the scale per row", right(MATRIX_MULTIPLY, a_scale_tensor=f32(1, 1, 4, 1)), (2, 3, 4, 6), "int8"),
    ("images", right(CONVOLUTION), (2, 6, 5, 5), "int8"),
    ("images of rank 3", right(CONVOLUTION, rank=3), (2, 6, 5), "int8"),
    *[
        (f"per channel {sizes} at rank {rank}",
         right(CONVOLUTION, rank, filter_scale_tensor=f32(*sizes), filter_zero_point_tensor=i8(*sizes)),
         (2, 6, 5, 5)[:rank], "int8")
        for rank, forms in ((4, [(1, 6, 1, 1), (6, 1, 1), (6,)]), (3, [(1, 6, 1), (6, 1), (6,), (1, 6, 1, 1)]))
        for sizes in forms
    ],
    ("strides", right(CONVOLUTION, strides=(2, 3), output_tensor=i8(2, 6, 3, 2)), (2, 6, 3, 2), "int8"),
    ("strides as a list", right(CONVOLUTION, strides=[2, 3], output_tensor=i8(2, 6, 3, 2)), (2, 6, 3, 2), "int8"),
    ("dilated to the input's size", right(CONVOLUTION, dilations=(3, 5), output_tensor=i8(2, 6, 1, 1)),
     (2, 6, 1, 1), "int8"),
    ("padding", right(CONVOLUTION, start_padding=(1, 0), end_padding=(2, 4), output_tensor=i8(2, 6, 8, 9)),
     (2, 6, 8, 9), "int8"),
    ("kernel of the padded input's size",
     right(CONVOLUTION, filter_tensor=i8(6, 4, 10, 2), start_padding=(1, 0), end_padding=(2, 0),
           output_tensor=i8(2, 6, 1, 5)), (2, 6, 1, 5), "int8"),
    ("groups", right(CONVOLUTION, group_count=2, filter_tensor=i8(6, 2, 3, 2)), (2, 6, 5, 5), "int8"),
    ("depthwise", right(CONVOLUTION, group_count=4, filter_tensor=i8(8, 1, 3, 2), bias_tensor=i32(1, 8, 1, 1),
                        output_tensor=i8(2, 8, 5, 5)), (2, 8, 5, 5), "int8"),
)  # fmt: skip


def test_the_padded_input_may_have_as_many_elements_as_a_tensor():
    """2**32 - 1, and not one more; the stride leaves two of them for the output."""

    def padded(width):
        one, parameter = tensor_of("UINT8", 1, 1, 1, 1), f32(1, 1, 1, 1)
        fields = {f"{name}_scale_tensor": parameter for name in ("input", "filter", "output")}
        options = {
            "end_padding": (0, width - 1),
            "strides": (1, 2**31),
            "start_padding": (0, 0),
            "dilations": (1, 1),
            "dimension_count": 2,
            "group_count": 1,
        }
        return dml.QuantizedLinearConvolutionDesc(
            input_tensor=one, filter_tensor=one, output_tensor=tensor_of("UINT8", 1, 1, 1, 2), **fields, **options
        )

    assert dml.validate(padded(2**32 - 1)).shape == (1, 1, 1, 2)
    with pytest.raises(dml.DescError, match="pads the input to 4294967296 elements, the limit is 4294967295; pad less"):
        dml.validate(padded(2**32))


def test_validate_returns_the_outputs_shape_and_dtype():
    for words, desc, shape, dtype in RIGHT:
        with case(words):
            output = dml.validate(desc)
            assert (output.shape, output.dtype) == (shape, np.dtype(dtype))


def test_the_output_is_of_the_scales_type():
    for data_type in ("FLOAT32", "FLOAT16"):
        with case(data_type):
            desc = desc_of(DEQUANTIZE, example(DEQUANTIZE, "ScaleTensor", data_type=data_type))
            assert dml.validate(desc).dtype == np.dtype(data_type.lower())
