"""Sizes and options of the seven operators of `spec_more_pages`, wrong one at a time; and valid descs."""

import dataclasses
import re

import numpy as np
import pytest

import jaxdml as dml
from helpers.descs import (
    CONVOLUTION_INTEGER,
    DEQUANTIZE_BLOCKS,
    DYNAMIC_QUANTIZE,
    ELEMENTS,
    MATRIX_MULTIPLY_INTEGER,
    MATRIX_MULTIPLY_TO_FLOAT,
    POOLING,
    QUANTIZE_BLOCKS,
    assert_refused,
    case,
    desc_of,
    example,
    f32,
    field_of,
    i8,
    i32,
    put,
    refusal,
    right,
    tensor_of,
    validated,
)

SPATIAL = {"strides": 1, "dilations": 1, "start_padding": 0, "end_padding": 0}  # and their minimums
PAGE_NAMES = {field: "".join(word.capitalize() for word in field.split("_")) for field in (*SPATIAL, "window_size")}
COUNTS = (None, 1, (1,), (1, 1, 1), (), (1, -1), (1, True), (1, 1.0), (1, "1"), (1, 2**32))


def of_names(operator, names, sizes, rule="sizes"):
    """[(operator, fields, tensor, rule)]: each tensor has each of the sizes."""
    for name in names:
        data_type = example(operator)[name][0]
        for size in sizes:
            yield operator, {field_of(name): tensor_of(data_type, *size)}, name, rule


def products():
    """{2, 3, 4, 5} x {2, 3, 5, 6} = {2, 3, 4, 6}."""
    for operator, suffixes in (
        (MATRIX_MULTIPLY_INTEGER, ("ZeroPoint",)),
        (MATRIX_MULTIPLY_TO_FLOAT, ("Scale", "ZeroPoint")),
    ):
        yield from of_names(operator, ["BTensor"], [(2, 3, 4, 6), (2, 3, 6, 5), (1, 3, 5, 6), (2, 1, 5, 6)])
        # rows of each matrix, of another number; columns; the batch
        of_rows = [(1, 1, 5, 1), (1, 1, 1, 6), (1, 1, 1, 4), (2, 1, 1, 1), (1, 3, 1, 1), (2, 3, 4, 1)]
        of_columns = [(1, 1, 1, 5), (1, 1, 4, 1), (1, 1, 6, 1), (2, 1, 1, 1), (1, 3, 1, 1), (2, 3, 1, 6)]
        yield from of_names(operator, [f"A{suffix}Tensor" for suffix in suffixes], of_rows)
        yield from of_names(operator, [f"B{suffix}Tensor" for suffix in suffixes], of_columns)
    yield from of_names(MATRIX_MULTIPLY_INTEGER, ["OutputTensor"], [(1, 3, 4, 6), (2, 3, 1, 6), (2, 3, 6, 4)])
    for sizes in ((1, 3, 4, 6), (2, 3, 1, 6), (2, 3, 6, 4)):  # with a bias of the output's sizes, or without
        for bias in (f32(*sizes), None):
            fields = {"bias_tensor": bias, "output_tensor": f32(*sizes)}
            yield MATRIX_MULTIPLY_TO_FLOAT, fields, "OutputTensor", "sizes"
    for sizes in ((1, 1, 1, 6), (1, 1, 4, 6), (1, 1, 1, 1)):  # strides of 0 share a bias, sizes of 1 do not
        yield MATRIX_MULTIPLY_TO_FLOAT, {"bias_tensor": f32(*sizes)}, "BiasTensor", "same_sizes"


def convolutions():
    """{2, 4, 7, 6} with {6, 4, 3, 2} gives {2, 6, 5, 5}."""
    operator = CONVOLUTION_INTEGER
    yield from of_names(operator, ["InputZeroPointTensor"], [(1, 4, 1, 1), (1, 6, 1, 1), (2, 1, 1, 1), (1, 1, 7, 1)])
    yield from of_names(operator, ["FilterZeroPointTensor"], [(1, 4, 1, 1), (6, 1, 1, 1), (1, 1, 1, 6), (2, 6, 1, 1)])
    yield from of_names(operator, ["OutputTensor"], [(1, 6, 5, 5), (2, 4, 5, 5), (2, 6, 7, 5), (2, 6, 5, 6)])
    for options in ({"strides": (2, 1)}, {"dilations": (1, 2)}, {"start_padding": (1, 0)}, {"end_padding": (0, 1)}):
        yield operator, options, "OutputTensor", "sizes"
    for fields in (
        {"filter_tensor": i8(6, 4, 8, 2)},
        {"filter_tensor": i8(6, 4, 3, 7)},
        {"dilations": (4, 1)},
        {"dilations": (1, 6)},
        {"filter_tensor": i8(6, 4, 11, 2), "start_padding": (1, 0), "end_padding": (2, 0)},
    ):
        yield operator, fields, "FilterTensor", "kernel"
    yield operator, {"filter_tensor": i8(6, 3, 3, 2)}, "FilterTensor", "channels"
    yield operator, {"group_count": 2}, "FilterTensor", "channels"
    yield operator, {"group_count": 4, "filter_tensor": i8(6, 1, 3, 2)}, "FilterTensor", "channels"
    yield operator, {"group_count": 3, "filter_tensor": i8(6, 1, 3, 2)}, "GroupCount", "channels"
    for count in (None, 0, -1, True, 1.0, "1", (1,), 2**32):
        yield operator, {"group_count": count}, "GroupCount", "group_count"


def pooling():
    """{2, 4, 7, 6} through windows of {3, 2} gives {2, 4, 5, 5}."""
    parameters = [f"{x}{kind}Tensor" for x in ("Input", "Output") for kind in ("Scale", "ZeroPoint")]
    sizes = [(1, 6, 1, 1), (2, 1, 1, 1), (1, 1, 1, 4), (1, 1, 7, 1), (4, 1, 1, 1), (1, 1, 4), (1, 4), (4,), (2,)]
    yield from of_names(POOLING, parameters, sizes)
    yield from of_names(POOLING, ["OutputTensor"], [(1, 4, 5, 5), (2, 1, 5, 5), (2, 4, 7, 5), (2, 4, 5, 6)])
    for options in (
        {"strides": (2, 1)},
        {"dilations": (1, 2)},
        {"start_padding": (1, 0)},
        {"end_padding": (0, 1)},
        {"window_size": (2, 2)},
        {"start_padding": (1, 0), "include_padding": True},
    ):
        yield POOLING, options, "OutputTensor", "sizes"
    for options in ({"window_size": (8, 2)}, {"window_size": (3, 7)}, {"dilations": (4, 1)}, {"dilations": (1, 6)}):
        yield POOLING, options, "WindowSize", "kernel"
    for value in (*COUNTS, (0, 1)):
        yield POOLING, {"window_size": value}, "WindowSize", "values"
    for value in (None, 0, 1, "TRUE", (True,), np.bool_(True), 1.0):
        yield POOLING, {"include_padding": value}, "IncludePadding", "kind"
    output = i8(2, 4, 8, 5)  # the first row of windows covers rows -3 to -1
    yield POOLING, {"start_padding": (3, 0), "output_tensor": output}, "StartPadding", "padding"
    yield POOLING, {"end_padding": (3, 0), "output_tensor": output}, "EndPadding", "padding"


def windows():
    """Cases that convolution and pooling have in common."""
    for operator in (CONVOLUTION_INTEGER, POOLING):
        for count in (None, 0, 1, 3, -2, 2.0, "2", (2,), np.array([1, 2])):
            yield operator, {"dimension_count": count}, "DimensionCount", "dimension_count"
        for field, least in SPATIAL.items():
            for value in (*COUNTS, (least - 1, 1)):
                yield operator, {field: value}, PAGE_NAMES[field], "values"


def dynamic():
    """Scale and zero point have one element, and as many dimensions as the input."""
    names = ["OutputScaleTensor", "OutputZeroPointTensor"]
    yield from of_names(DYNAMIC_QUANTIZE, names, [ELEMENTS[:4], (2, 1, 1, 1), (1, 3, 1, 1)])
    yield from of_names(DYNAMIC_QUANTIZE, names, [(1,), (1, 1, 1, 1, 1)], "same_dimension_count")


FAULTS = (*products(), *convolutions(), *pooling(), *windows(), *dynamic())


@pytest.mark.parametrize("operator", sorted({fault[0] for fault in FAULTS}))
def test_sizes_and_options(operator):
    for its_operator, fields, tensor, rule in FAULTS:
        if its_operator == operator:
            with case(fields):
                assert_refused(right(operator, **fields), tensor, rule)


def test_a_window_in_padding_alone_is_right_if_padding_counts():
    for field, place in (("start_padding", 0), ("end_padding", 7)):
        options = {field: (3, 0), "output_tensor": i8(2, 4, 8, 5)}
        error = assert_refused(right(POOLING, **options), PAGE_NAMES[field], "padding")
        assert f"is [3, 0]: the window at index {place} of the output covers only padding" in str(error)
        assert str(error).endswith("; pad less, or set include_padding")
        assert validated(right(POOLING, **options, include_padding=True))[0].shape == (2, 4, 8, 5)


def test_windows_that_step_over_the_input():
    """Dilation may put elements of a window on both sides of the input, and none inside."""
    options = {"window_size": (2, 2), "dilations": (9, 1), "start_padding": (1, 0), "end_padding": (2, 0)}
    error = assert_refused(right(POOLING, **options, output_tensor=i8(2, 4, 1, 5)), "Dilations", "padding")
    assert "is [9, 1]: the window at index 0 of the output covers only padding; use a dilation no larger" in str(error)
    single = options | {"window_size": (1, 2), "end_padding": (0, 0)}  # a window of one element skips nothing
    assert_refused(right(POOLING, **single, output_tensor=i8(2, 4, 8, 5)), "StartPadding", "padding")
    options |= {"dilations": (7, 1), "output_tensor": i8(2, 4, 3, 5)}
    assert validated(right(POOLING, **options))[0].shape == (2, 4, 3, 5)


def one_row(places, stride, dilation, window):
    """A pooling desc of one input element, which lies in this many windows of distant elements."""
    padding = dilation * (window - 1)
    return right(
        POOLING, input_tensor=i8(1, 1, 1, 1), output_tensor=i8(1, 1, 1, places), strides=(1, stride),
        window_size=(1, window), dilations=(1, dilation), start_padding=(0, padding), end_padding=(0, padding),
    )  # fmt: skip


def test_windows_of_large_options_are_not_looked_at_one_by_one():
    """Four million windows whose starts are equal modulo the dilation, and a hundred thousand whose starts differ."""
    many = 4 * 10**6
    assert validated(one_row(many, 2, 2, many))[0].shape == (1, 1, 1, many)
    fields = {"input_tensor": i8(1, 1, 1, 2**17), "start_padding": (0, 2**18), "end_padding": (0, 0)}
    apart = dataclasses.replace(one_row(2**17, 1, 2**18, 2), **fields)
    assert validated(apart)[0].shape == (1, 1, 1, 2**17)
    fields |= {"input_tensor": i8(1, 1, 1, 2**17 - 1), "end_padding": (0, 1)}
    error = assert_refused(dataclasses.replace(apart, **fields), "Dilations", "padding")
    assert f"the window at index {2**17 - 1} of the output" in str(error)


def test_which_windows_see_the_input():
    """Random small descs against a check of one window after the other."""
    rng, refused = np.random.default_rng(0), 0
    for _ in range(1500):
        size, window, stride, dilation = (int(n) for n in rng.integers(1, (8, 5, 5, 12)))
        start, end = (int(n) for n in rng.integers(0, 25, 2))
        count = 1 + (size + start + end - 1 - (window - 1) * dilation) // stride
        if count < 1:
            continue
        places = [[place * stride - start + i * dilation for i in range(window)] for place in range(count)]
        is_right = all(any(0 <= i < size for i in elements) for elements in places)
        desc = dataclasses.replace(
            one_row(count, stride, dilation, window),
            input_tensor=i8(1, 1, 1, size), start_padding=(0, start), end_padding=(0, end),
        )  # fmt: skip
        with case(size, window, stride, dilation, start, end):
            if is_right:
                validated(desc)
            else:
                error, refused = refusal(desc), refused + 1
                place = int(re.search(r"the window at index (\d+) of", str(error))[1])
                assert not any(0 <= i < size for i in places[place])
    assert refused > 500


def test_the_sum_of_a_window_fits_int32():
    largest = {"input_tensor": i8(1, 1, 2901, 2913), "window_size": (2892, 2912), "output_tensor": i8(1, 1, 10, 2)}
    assert validated(right(POOLING, **largest))[0].shape == (1, 1, 10, 2)
    larger = largest | {"window_size": (2901, 2903), "output_tensor": i8(1, 1, 1, 11)}
    error = assert_refused(right(POOLING, **larger), "WindowSize", "elements")
    assert "has 8421603 elements, but int32 holds the sum of at most 8421504 elements" in str(error)


I8, U8 = "INT8", "UINT8"
RIGHT = (
    ("integer product", right(MATRIX_MULTIPLY_INTEGER), [(2, 3, 4, 6)], ["int32"]),
    ("per row", right(MATRIX_MULTIPLY_INTEGER, a_zero_point_tensor=i8(1, 1, 4, 1)), [(2, 3, 4, 6)], ["int32"]),
    ("per column", right(MATRIX_MULTIPLY_INTEGER, b_zero_point_tensor=i8(6)), [(2, 3, 4, 6)], ["int32"]),
    ("zero points of unlike ranks", right(MATRIX_MULTIPLY_INTEGER, 2, a_zero_point_tensor=i8(1),
                                          b_zero_point_tensor=i8(1, 1, 6)), [(4, 6)], ["int32"]),
    ("of unlike types", desc_of(MATRIX_MULTIPLY_TO_FLOAT, example(MATRIX_MULTIPLY_TO_FLOAT, "ATensor", data_type=U8)),
     [(2, 3, 4, 6)], ["float32"]),
    ("halves", desc_of(MATRIX_MULTIPLY_TO_FLOAT, example(MATRIX_MULTIPLY_TO_FLOAT, "BiasTensor", data_type="FLOAT16")),
     [(2, 3, 4, 6)], ["float16"]),
    ("bias that is shared", right(MATRIX_MULTIPLY_TO_FLOAT, bias_tensor=tensor_of("FLOAT32", 2, 3, 4, 6,
                                  strides=(0, 0, 0, 1))), [(2, 3, 4, 6)], ["float32"]),
    ("integer convolution", right(CONVOLUTION_INTEGER), [(2, 6, 5, 5)], ["int32"]),
    ("of rank 3", right(CONVOLUTION_INTEGER, 3), [(2, 6, 5)], ["int32"]),
    ("per channel", right(CONVOLUTION_INTEGER, filter_zero_point_tensor=i8(1, 6, 1, 1)), [(2, 6, 5, 5)], ["int32"]),
    ("per channel, rank 1", right(CONVOLUTION_INTEGER, input_zero_point_tensor=i8(1), filter_zero_point_tensor=i8(6)),
     [(2, 6, 5, 5)], ["int32"]),
    ("groups", right(CONVOLUTION_INTEGER, group_count=2, filter_tensor=i8(6, 2, 3, 2)), [(2, 6, 5, 5)], ["int32"]),
    ("strides", right(CONVOLUTION_INTEGER, strides=[2, 3], output_tensor=i32(2, 6, 3, 2)), [(2, 6, 3, 2)], ["int32"]),
    ("pooling", right(POOLING), [(2, 4, 5, 5)], ["int8"]),
    ("3-D", right(POOLING, 5), [(2, 4, 5, 5, 2)], ["int8"]),
    ("per channel", right(POOLING, output_scale_tensor=f32(1, 4, 1, 1), input_zero_point_tensor=i8(4, 1, 1)),
     [(2, 4, 5, 5)], ["int8"]),
    ("global", right(POOLING, window_size=(7, 6), output_tensor=i8(2, 4, 1, 1)), [(2, 4, 1, 1)], ["int8"]),
    ("dilated", right(POOLING, dilations=(3, 5), output_tensor=i8(2, 4, 1, 1)), [(2, 4, 1, 1)], ["int8"]),
    ("to another type", right(POOLING, output_zero_point_tensor=None, output_tensor=tensor_of(U8, 2, 4, 5, 5)),
     [(2, 4, 5, 5)], ["uint8"]),
    ("dynamic", right(DYNAMIC_QUANTIZE, 2), [(2, 3), (1, 1), (1, 1)], ["int8", "float32", "int8"]),
    ("halves", put(right(DYNAMIC_QUANTIZE, 1), "InputTensor", tensor_of("FLOAT16", 2)), [(2,), (1,), (1,)],
     ["int8", "float32", "int8"]),
    ("nibbles", desc_of(QUANTIZE_BLOCKS, example(QUANTIZE_BLOCKS, "OutputTensor", data_type="UINT4")),
     [(2, 3, 1, 2)], ["uint4"]),
    ("from nibbles", desc_of(DEQUANTIZE_BLOCKS, example(DEQUANTIZE_BLOCKS, "InputTensor", data_type="INT4")),
     [(2, 3, 1, 2)], ["float32"]),
)  # fmt: skip


def test_validate_returns_the_outputs_shapes_and_dtypes():
    for words, desc, shapes, dtypes in RIGHT:
        with case(desc.operator, words):
            outputs = validated(desc)
            assert [output.shape for output in outputs] == shapes
            assert [output.dtype.name for output in outputs] == dtypes
            assert (type(dml.validate(desc)).__name__ == "Outputs") == (len(shapes) > 1)
