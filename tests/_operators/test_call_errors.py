"""Errors of calls: what all of them have in common, and the errors of descs with the same mistakes."""

import dataclasses

import jax
import numpy as np
import pytest

import jaxdml as dml
from _operators.calls import GOOD, Bad, call, caught, compilations, problems, s8, steps, u8
from helpers.descs import (
    ADD,
    BLOCKED,
    CONVOLUTION,
    CONVOLUTION_INTEGER,
    DEQUANTIZE,
    DEQUANTIZE_BLOCKS,
    DESCS,
    DYNAMIC_QUANTIZE,
    MATRIX_MULTIPLY,
    MATRIX_MULTIPLY_INTEGER,
    MATRIX_MULTIPLY_TO_FLOAT,
    OPERATORS,
    POOLING,
    QUANTIZE,
    QUANTIZE_BLOCKS,
    f32,
    level,
    refusal,
    tensor_of,
    validated,
)
from jaxdml import DescError


@pytest.mark.parametrize("operator", OPERATORS)
def test_good_calls_are_right(operator):
    """Each wrong call is then wrong only because of its one change."""
    first, *others = jax.tree.leaves(call(operator, GOOD[operator]))
    assert first.dtype in (np.float32, np.uint8, np.int32)
    assert len(others) == (2 if operator == DYNAMIC_QUANTIZE else 0)


def test_right_calls_are_seen_to_compile():
    """Otherwise it would prove nothing that wrong calls do not compile."""
    with compilations() as compiled:
        call(DEQUANTIZE, {**GOOD[DEQUANTIZE], "input": u8(3, 1, 4, 1, 5, 2, 6)})
    assert compiled


def test_problems_are_seen():
    """Otherwise it would prove nothing that none are found."""
    error, wide = (DescError, "InputTensor", "data_type"), np.zeros((2, 3), np.int64)
    for changes, facts, phrase, problem in (
        ({}, error, "", "is not refused"),
        ({"input": wide}, (DescError, "ScaleTensor", "data_type"), "", "raises"),
        ({"input": wide}, error, "FLOAT17", "does not say 'FLOAT17'"),
    ):
        assert problem in problems([Bad(DEQUANTIZE, "case", changes, facts, (phrase,))])
    assert problems([Bad(DEQUANTIZE, "case", {"input": wide}, error, ("INT64",))]) == ""


def test_whole_messages():
    error = caught(CONVOLUTION, {**GOOD[CONVOLUTION], "strides": 1.0})  # nothing about tracing
    assert (
        str(error) == "quantized_linear_convolution: Strides is a float, expected an integer or a tuple of 2 integers"
    )
    error = caught(DEQUANTIZE, {**GOOD[DEQUANTIZE], "input": 3})
    assert str(error) == (
        "element_wise_dequantize_linear: InputTensor is an int, expected an array; write jnp.asarray(input, "
        "dtype), where dtype is jnp.int32 or jnp.int16 or jnp.int8 or jnp.uint32 or jnp.uint16 or jnp.uint8"
    )


def hand_written(operator, **changes):
    """The desc of the valid call, each parameter tensor with the data's rank; `changes` replace its fields."""
    i8, byte, f = (lambda *s: tensor_of("INT8", *s)), (lambda *s: tensor_of("UINT8", *s)), f32
    if operator == DEQUANTIZE:
        tensors = byte(2, 3), f(2, 3), byte(2, 3), f(2, 3)
    elif operator == QUANTIZE:
        tensors = f(2, 3), f(2, 3), byte(2, 3), byte(2, 3)
    elif operator == ADD:
        one = (1, 1)
        tensors = byte(2, 3), f(*one), byte(*one), i8(2, 3), f(*one), i8(*one), f(*one), byte(*one), byte(2, 3)
    elif operator == MATRIX_MULTIPLY:
        one = (1, 1, 1)
        a, b, output = (byte(2, 4, 5), f(*one), byte(*one)), (i8(2, 5, 6), f(*one), i8(*one)), (f(*one), byte(*one))
        tensors = *a, *b, *output, byte(2, 4, 6)
    elif operator == MATRIX_MULTIPLY_INTEGER:
        one, output = (1, 1, 1), tensor_of("INT32", 2, 4, 6)
        tensors = byte(2, 4, 5), byte(*one), i8(2, 5, 6), i8(*one), output
    elif operator == CONVOLUTION_INTEGER:
        one, output, options = (1, 1, 1, 1), tensor_of("INT32", 2, 6, 5, 6), (2, (1, 1), (1, 1), (0, 0), (0, 0), 1)
        tensors = byte(2, 4, 7, 9), byte(*one), i8(6, 4, 3, 4), i8(*one), output, *options
    elif operator == DYNAMIC_QUANTIZE:
        tensors = f(2, 3), byte(2, 3), f(1, 1), byte(1, 1)
    elif operator == MATRIX_MULTIPLY_TO_FLOAT:
        one, bias = (1, 1, 1), tensor_of("FLOAT32", 2, 4, 6, strides=(0, 0, 1))
        tensors = byte(2, 4, 5), f(*one), byte(*one), i8(2, 5, 6), f(*one), i8(*one), bias, f(2, 4, 6)
    elif operator == POOLING:
        one, options = (1, 1, 1, 1), (2, (1, 1), (3, 4), (0, 0), (0, 0), (1, 1), False)
        tensors = byte(2, 4, 7, 9), f(*one), byte(*one), f(*one), byte(*one), byte(2, 4, 5, 6), *options
    elif operator in BLOCKED:
        tensors = f(2, 3), dml.QuantizationType.SCALE_ZERO_POINT, 2, (f(1, 1), byte(1, 1)), byte(2, 3)
        tensors = tensors if operator == QUANTIZE_BLOCKS else (tensors[-1], *tensors[1:-1], tensors[0])
    else:
        one, filter = (1, 1, 1, 1), i8(6, 4, 3, 4)
        image, output = (byte(2, 4, 7, 9), f(*one), byte(*one)), (f(*one), byte(*one), byte(2, 6, 5, 6))
        options = 2, (1, 1), (1, 1), (0, 0), (0, 0), 1
        tensors = *image, filter, f(*one), i8(*one), tensor_of("INT32", 1, 6, 1, 1), *output, *options
    names = [field.name for field in dataclasses.fields(DESCS[operator])]
    return DESCS[operator](**{**dict(zip(names, tensors, strict=True)), **changes})


@pytest.mark.parametrize("operator", OPERATORS)
def test_hand_written_descs_are_right(operator):
    """Their outputs are those of the valid calls, for which they stand."""
    outputs, computed = validated(hand_written(operator)), jax.tree.leaves(call(operator, GOOD[operator]))
    assert [(x.shape, x.dtype) for x in outputs] == [(x.shape, x.dtype) for x in computed]
    arrays, options = {}, {}
    for name, value in GOOD[operator].items():
        (arrays if isinstance(value, np.ndarray) else options)[name] = value
    made = dml.desc_of(getattr(dml, operator), *arrays.values(), **options)
    if operator not in (DEQUANTIZE, QUANTIZE):  # whose desc repeats a number by strides of 0
        assert made == hand_written(operator)


BROADCAST = "; give scale one value, one for each entry of a dimension, or sizes that broadcast to [2, 3]"
REPEATED = "; write sizes=(2, 3), and strides of 0 where values are shared"
NOT_BROADCAST = "; write jnp.broadcast_to(b, (2, 3))"
EQUAL = "; tensors do not broadcast: write equal sizes, and strides of 0 where values are repeated"
FOUR = "; give a filter with 4 input channels"


@pytest.mark.parametrize(
    ("operator", "arguments", "fields", "at", "in_call", "in_desc"),
    [
        (DEQUANTIZE, {"zero_point": np.ones((2, 3), np.int8)}, {"zero_point_tensor": tensor_of("INT8", 2, 3)}, "6_4",
         "; give the UINT8 zero point that InputTensor was quantized with", "; write data_type=DataType.UINT8"),
        (DEQUANTIZE, {"scale": np.ones((2, 2), np.float32)}, {"scale_tensor": f32(2, 2)}, "6_4", BROADCAST, REPEATED),
        (DEQUANTIZE, {"scale": np.ones(2, np.float32)}, {"scale_tensor": f32(1, 2)}, "6_4",
         "; for one value per entry of dimension 0 write scale.reshape(-1, 1)", REPEATED),
        (DEQUANTIZE, {"zero_point": None}, {"zero_point_tensor": None}, "6_1", "", ""),
        (DEQUANTIZE, {}, {}, "1_0", "", ""),
        (QUANTIZE, {"scale": np.ones((2, 3), np.float16)}, {"scale_tensor": tensor_of("FLOAT16", 2, 3)}, "6_4",
         "; write scale.astype(jnp.float32)", "; write data_type=DataType.FLOAT32"),
        (QUANTIZE, {"input": np.ones((2, 3), np.uint8)}, {"input_tensor": tensor_of("UINT8", 2, 3)}, "6_4",
         "; dequantize it first: element_wise_dequantize_linear(input, scale, zero_point)",
         "; write data_type=DataType.FLOAT32, DataType.FLOAT16 or DataType.INT32"),
        (ADD, {"b": np.zeros((1, 3), np.int8)}, {"b_tensor": tensor_of("INT8", 1, 3)}, "6_4", NOT_BROADCAST, EQUAL),
        (ADD, {"a_scale": np.ones(3, np.float32)}, {"a_scale_tensor": f32(1, 3)}, "6_4",
         "; there are 3 values", "; there are 3 values"),
        (ADD, {}, {}, "3_1", "", ""),
        (MATRIX_MULTIPLY, {"b": np.zeros((2, 4, 6), np.int8)}, {"b_tensor": tensor_of("INT8", 2, 4, 6)}, "6_4",
         "; write a.swapaxes(-1, -2)", "; Strides can transpose or repeat data"),
        (MATRIX_MULTIPLY, {"b": np.zeros((2, 3, 6), np.int8)}, {"b_tensor": tensor_of("INT8", 2, 3, 6)}, "6_4", "", ""),
        (MATRIX_MULTIPLY, {"a_scale": np.ones((5, 1), np.float32)}, {"a_scale_tensor": f32(1, 5, 1)}, "6_4",
         "; a value for each column or matrix is not allowed", "; a value for each column or matrix is not allowed"),
        (MATRIX_MULTIPLY, {"a_scale": np.ones(4, np.float32)}, {"a_scale_tensor": f32(1, 1, 4)}, "6_4",
         "; write a_scale[:, None]", "; write sizes=(1, 4, 1)"),
        (MATRIX_MULTIPLY, {"output_scale": np.ones((), np.float64)},
         {"output_scale_tensor": tensor_of("FLOAT64", 1, 1, 1)}, "6_4",
         "; write output_scale.astype(jnp.float32)", "; write data_type=DataType.FLOAT32"),
        (MATRIX_MULTIPLY, {}, {}, "3_1", "", ""),
        (CONVOLUTION, {"strides": 0}, {"strides": (0, 0)}, "6_4", "", ""),
        (CONVOLUTION, {"dilations": (1, 2, 3)}, {"dilations": (1, 2, 3)}, "6_4", "", ""),
        (CONVOLUTION, {"start_padding": -1}, {"start_padding": (-1, -1)}, "6_4", "", ""),
        (CONVOLUTION, {"group_count": 0}, {"group_count": 0}, "6_4", "", ""),
        (CONVOLUTION, {"group_count": 2}, {"group_count": 2}, "6_4", "; write group_count=1", "; write group_count=1"),
        (CONVOLUTION, {"filter": s8(6, 2, 3, 2)}, {"filter_tensor": tensor_of("INT8", 6, 2, 3, 2)}, "6_4",
         "; write group_count=2", "; write group_count=2"),
        (CONVOLUTION, {"filter": s8(5, 2, 3, 2)}, {"filter_tensor": tensor_of("INT8", 5, 2, 3, 2)}, "6_4",
         FOUR, FOUR),  # 5 output channels cannot form two groups
        (CONVOLUTION, {"dilations": 9}, {"dilations": (9, 9)}, "6_4",
         "; pad the input or shrink the kernel", "; pad the input or shrink the kernel"),
        (CONVOLUTION, {"filter_scale": steps(1, 1, 1, 6)}, {"filter_scale_tensor": f32(1, 1, 1, 6)}, "6_4",
         "; write filter_scale.reshape(-1)", "; write sizes=(1, 6, 1, 1)"),
        (CONVOLUTION, {"bias": np.ones(5, np.int32)}, {"bias_tensor": tensor_of("INT32", 1, 1, 1, 5)}, "6_4",
         "; give bias the shape [6]", "; give it 6 values"),
        (CONVOLUTION, {"bias": np.ones(4, np.int32)}, {"bias_tensor": tensor_of("INT32", 1, 1, 1, 4)}, "6_4",
         "; the filter must be [O, I, H, W]: write filter.transpose(3, 2, 0, 1) for an HWIO filter",
         "; the filter must be [O, I, H, W]: Strides can describe an HWIO filter"),
        (MATRIX_MULTIPLY, {"b": s8(2, 7, 5)}, {"b_tensor": tensor_of("INT8", 2, 7, 5)}, "6_4",
         "; write b.swapaxes(-1, -2)", "; Strides can transpose or repeat data"),
        (DEQUANTIZE, {"zero_point": np.ones((2, 3), np.int32)}, {"zero_point_tensor": tensor_of("INT32", 2, 3)}, "6_4",
         "; if all values of zero_point fit UINT8, write zero_point.astype(jnp.uint8)",
         "; write data_type=DataType.UINT8"),
        (CONVOLUTION, {}, {}, "2_0", "", ""),
        (MATRIX_MULTIPLY_INTEGER, {"a_zero_point": u8(4)}, {"a_zero_point_tensor": tensor_of("UINT8", 1, 1, 4)}, "6_4",
         "; write a_zero_point[:, None]", "; write sizes=(1, 4, 1)"),
        (MATRIX_MULTIPLY_INTEGER, {}, {}, "2_0", "", ""),
        (CONVOLUTION_INTEGER, {"group_count": 2}, {"group_count": 2}, "6_4",
         "; write group_count=1", "; write group_count=1"),
        (DYNAMIC_QUANTIZE, {"input": u8(2, 3)}, {"input_tensor": tensor_of("UINT8", 2, 3)}, "6_4",
         "; dequantize it first: element_wise_dequantize_linear(input, scale, zero_point)",
         "; write data_type=DataType.FLOAT32 or DataType.FLOAT16"),
        (MATRIX_MULTIPLY_TO_FLOAT, {"b_scale": np.ones((), np.float16)},
         {"b_scale_tensor": tensor_of("FLOAT16", 1, 1, 1)}, "6_4",
         "; write b_scale.astype(jnp.float32)", "; write data_type=DataType.FLOAT32"),
        (MATRIX_MULTIPLY_TO_FLOAT, {}, {}, "6_1", "", ""),
        (POOLING, {"window_size": (9, 1)}, {"window_size": (9, 1)}, "6_4",
         "; pad the input or shrink the window", "; pad the input or shrink the window"),
        (POOLING, {"input_scale": steps(4, 1)}, {"input_scale_tensor": f32(1, 1, 4, 1)}, "6_4",
         "; write input_scale.reshape(-1, 1, 1)", "; write sizes=(1, 4, 1, 1)"),
        (QUANTIZE_BLOCKS, {"scale": np.ones((1, 1), np.float16)},
         {"quantization_tensors": (tensor_of("FLOAT16", 1, 1), tensor_of("UINT8", 1, 1))}, "6_4",
         "; write scale.astype(jnp.float32)", "; write data_type=DataType.FLOAT32"),
        (QUANTIZE_BLOCKS, {"scale": steps(3)}, {"quantization_tensors": (f32(3), tensor_of("UINT8", 1, 1))}, "6_4",
         "; for blocks along dimension 1 write scale.reshape(1, -1)", "; give it 2 sizes"),
        (DEQUANTIZE_BLOCKS, {"zero_point": s8(1, 3)},
         {"quantization_tensors": (f32(1, 1), tensor_of("INT8", 1, 3))}, "6_4",
         "; give the UINT8 zero point that InputTensor was quantized with", "; write data_type=DataType.UINT8"),
        (DEQUANTIZE_BLOCKS, {}, {}, "6_2", "", ""),
    ],
)  # fmt: skip
def test_a_call_and_a_desc_raise_the_same_error(operator, arguments, fields, at, in_call, in_desc):
    """The same class, message and facts; the remedies differ."""
    ours = caught(operator, {**GOOD[operator], **arguments, "feature_level": level(at)})
    theirs = refusal(hand_written(operator, **fields), level(at))
    assert (type(ours), vars(ours)) == (type(theirs), vars(theirs))
    assert str(ours).endswith(in_call)
    assert str(theirs).endswith(in_desc)
    assert str(ours).removesuffix(in_call) == str(theirs).removesuffix(in_desc)


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        (dml.fake_quantize, (np.ones(2, np.float32), 0.5, 300), "ZeroPointTensor is 300, out of UINT8's range; "),
        (dml.fake_quantize, ([1.0], 0.5), "InputTensor is a list, expected an array; write jnp.asarray(input, "),
        (dml.fake_quantize, (s8(2), 0.5), "InputTensor has type int8, expected FLOAT32 or FLOAT16; dequantize it fi"),
        (dml.prepare_matrix_multiply_b, (np.ones((2, 3), np.float32),), "BTensor has data type FLOAT32, feature "),
        (dml.prepare_matrix_multiply_b, ([[1]],), "BTensor is a list, expected an array; write jnp.asarray(b, "),
        (dml.prepare_convolution_filter, (s8(2, 3),), "FilterTensor has rank 2, feature level 6_4 allows 3 to 4; "),
    ],
)
def test_the_function_that_was_called_is_named(function, arguments, said):
    """The error does not name the operator whose rules the function shares."""
    with pytest.raises(DescError) as caught_error:
        function(*arguments)
    assert str(caught_error.value).startswith(f"{function.__name__}: {said}")
    assert caught_error.value.operator == function.__name__


@pytest.mark.parametrize("group_count", [3, 2.0])
def test_groups_of_a_prepared_filter_name_its_function(group_count):
    with pytest.raises(DescError, match=r"^prepare_convolution_filter: GroupCount is") as caught_error:
        dml.prepare_convolution_filter(s8(4, 2, 3), group_count=group_count)
    assert caught_error.value.operator == "prepare_convolution_filter"


@pytest.mark.parametrize("operator", [CONVOLUTION, CONVOLUTION_INTEGER, POOLING])
def test_padding_that_is_too_large_is_blamed_itself(operator):
    """The error does not blame the output, which a caller does not write."""
    for name, tensor in (("start_padding", "StartPadding"), ("end_padding", "EndPadding")):
        for padding, strides in ((2**31, 1), (2**16, 1), (2**16, 2**14)):
            error = caught(operator, {**GOOD[operator], name: padding, "strides": strides})
            assert (error.tensor, error.rule, error.received) == (tensor, "elements", (padding, padding))
            assert str(error).startswith(f"{operator}: {tensor} pads the input to ")
            assert str(error).endswith(" elements, the limit is 4294967295; pad less")


def test_advice_that_leads_on():
    """Common mistakes, and their remedies."""
    x, f = np.zeros((1, 2, 5, 5), np.uint8), np.zeros((3, 2, 3, 3), np.int8)
    floats = x.astype(np.float32)

    def convolve(x, **options):
        return dml.quantized_linear_convolution(x, 0.1, 3, f, 0.1, None, None, 0.5, None, **options)

    for wrong, advice in [
        (lambda: convolve(x[0]), "; write input[None] for a batch of one"),
        (
            lambda: convolve(x, start_padding=((1, 1), (1, 1))),
            "of each dimension, end_padding for the end",
        ),
        (lambda: jax.jit(lambda s: convolve(x, strides=s))(2), "make it static, for instance with static_argnames"),
        (lambda: jax.jit(dml.element_wise_quantize_linear)(floats, 0.1, 3), "; write jnp.uint8(...)"),
        (
            lambda: dml.quantized_linear_matrix_multiply(x, 0.1, 3, x[0, 0], 0.1, 3, 0.5, 3),
            "; write jnp.broadcast_to(b, (1, 2, 5, 5))",
        ),
        (
            lambda: dml.element_wise_quantize_linear(floats.astype(np.float16), np.float32(0.1).reshape(1)),
            "; write scale.astype(jnp.float16)",
        ),
        (lambda: dml.fake_quantize(floats, 0.1, np.zeros(1, np.float32)), "ZeroPointTensor has data type FLOAT32"),
    ]:
        with pytest.raises(dml.DescError) as error:
            wrong()
        assert advice in str(error.value)
