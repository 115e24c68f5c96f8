"""Rules that hold for every tensor of every operator, broken one at a time."""

import dataclasses
import math

import numpy as np
import pytest

import jaxdml as dml
from helpers.descs import (
    DEQUANTIZE,
    DEQUANTIZE_BLOCKS,
    OPERATORS,
    assert_refused,
    case,
    desc_of,
    example,
    linear,
    may_be_absent,
    put,
    refusal,
    right,
    tensor_of,
    without,
)
from jaxdml import DataType, TensorFlags

TENSOR_FAULTS = (
    ("data type is an int", {"data_type": 5}, "data_type"),
    ("data type is a word", {"data_type": "UINT8"}, "data_type"),
    ("data type is a dtype", {"data_type": np.dtype("uint8")}, "data_type"),
    ("data type is missing", {"data_type": None}, "data_type"),
    ("data type unknown", {"data_type": DataType.UNKNOWN}, "data_type"),
    ("data type of no operator", {"data_type": DataType.UINT64}, "data_type"),
    ("rank 0", {"sizes": ()}, "dimension_count"),
    ("rank 9", {"sizes": (1,) * 9}, "dimension_count"),
    ("sizes missing", {"sizes": None}, "sizes"),
    ("sizes an int", {"sizes": 4}, "sizes"),
    ("sizes a NumPy scalar", {"sizes": np.array(4)}, "sizes"),
    ("sizes a word", {"sizes": "1111"}, "sizes"),
    ("zero size", {"sizes": (1, 1, 0, 1)}, "sizes"),
    ("negative size", {"sizes": (1, 1, -1, 1)}, "sizes"),
    ("bool size", {"sizes": (1, 1, True, 1)}, "sizes"),
    ("float size", {"sizes": (1, 1, 1.0, 1)}, "sizes"),
    ("size beyond a UINT", {"sizes": (1, 1, 2**32, 1)}, "sizes"),
    ("size beyond what Python writes", {"sizes": (1, 1, 10**5000, 1)}, "sizes"),
    ("2**32 elements", {"sizes": (2**16, 1, 2**16, 1)}, "elements"),
    ("one stride too few", {"strides": (1, 1, 1)}, "strides"),
    ("one stride too many", {"strides": (1, 1, 1, 1, 1)}, "strides"),
    ("negative stride", {"strides": (1, 1, -1, 1)}, "strides"),
    ("bool stride", {"strides": (1, 1, True, 1)}, "strides"),
    ("float stride", {"strides": (1, 1, 1.0, 1)}, "strides"),
    ("stride beyond a UINT", {"strides": (1, 1, 2**32, 1)}, "strides"),
    ("strides an int", {"strides": 1}, "strides"),
    ("flags an int", {"flags": 1}, "flags"),
    ("flags a word", {"flags": "NONE"}, "flags"),
    ("flags missing", {"flags": None}, "flags"),
    ("unknown flag", {"flags": TensorFlags(2)}, "flags"),
    ("unknown flag beside a known one", {"flags": TensorFlags(3)}, "flags"),
    ("bytes negative", {"total_tensor_size_in_bytes": -1}, "total_tensor_size_in_bytes"),
    ("bytes too few", {"total_tensor_size_in_bytes": 3}, "total_tensor_size_in_bytes"),
    ("bytes a float", {"total_tensor_size_in_bytes": 4096.0}, "total_tensor_size_in_bytes"),
    ("bytes a bool", {"total_tensor_size_in_bytes": True}, "total_tensor_size_in_bytes"),
    ("bytes beyond a UINT64", {"total_tensor_size_in_bytes": 2**64}, "total_tensor_size_in_bytes"),
    ("alignment no power of two", {"guaranteed_base_offset_alignment": 12}, "guaranteed_base_offset_alignment"),
    ("alignment negative", {"guaranteed_base_offset_alignment": -4}, "guaranteed_base_offset_alignment"),
    ("alignment a float", {"guaranteed_base_offset_alignment": 4.0}, "guaranteed_base_offset_alignment"),
    ("alignment a bool", {"guaranteed_base_offset_alignment": True}, "guaranteed_base_offset_alignment"),
    ("alignment missing", {"guaranteed_base_offset_alignment": None}, "guaranteed_base_offset_alignment"),
    ("alignment beyond a UINT", {"guaranteed_base_offset_alignment": 2**32}, "guaranteed_base_offset_alignment"),
)


@pytest.mark.parametrize("operator", OPERATORS)
def test_tensor_rules_hold_for_every_tensor(operator):
    desc = right(operator)
    for name, tensor in desc.tensors().items():
        for words, fault, rule in TENSOR_FAULTS:
            with case(name, words):
                broken = dataclasses.replace(tensor, **fault)
                assert_refused(put(desc, name, broken), name, rule)


@pytest.mark.parametrize("operator", OPERATORS)
def test_tensors_are_tensor_descs(operator):
    desc = right(operator)
    for name in desc.tensors():
        for value in ((2, 3), (), [], "UINT8", 5, 0, False, DataType.UINT8, np.zeros(2)):
            with case(name, repr(value)):
                assert_refused(put(desc, name, value), name, "tensor_desc")


@pytest.mark.parametrize("operator", OPERATORS)
def test_only_zero_points_and_bias_may_be_absent(operator):
    desc = right(operator)
    for name in desc.tensors():
        with case(name):
            if may_be_absent(operator, name):
                assert name.endswith(("ZeroPointTensor", "BiasTensor", "QuantizationTensors[1]"))
                assert dml.validate(without(desc, name)) == dml.validate(desc)
            else:
                assert_refused(put(desc, name, None), name, "required")


@pytest.mark.parametrize("operator", OPERATORS)
def test_zero_strides_repeat_inputs_but_not_outputs(operator):
    desc = right(operator)
    for name, tensor in desc.tensors().items():
        repeated = put(desc, name, dataclasses.replace(tensor, strides=(0, 1, 1, 1)))
        with case(name):
            if name == "OutputTensor":  # of a dimension of 2; other outputs have one element
                assert_refused(repeated, name, "strides")
            else:
                assert dml.validate(repeated) == dml.validate(desc)


def test_an_output_dimension_of_one_element_may_have_a_zero_stride():
    desc = right(DEQUANTIZE, rank=3, output_tensor=tensor_of("FLOAT32", 2, 3, 1, strides=(3, 1, 0)))
    assert dml.validate(desc).shape == (2, 3, 1)


def test_the_limit_is_2_to_32_less_1_elements():
    assert math.prod((65535, 65537)) == 2**32 - 1
    assert dml.validate(linear("UINT8", 65535, 65537)).shape == (65535, 65537)
    error = assert_refused(linear("UINT8", 65536, 65536), "InputTensor", "elements")
    assert "4294967296" in str(error)
    assert error.expected == 2**32 - 1


BYTES = (
    ("UINT8", (1,), None, 4),
    ("UINT8", (4,), None, 4),
    ("UINT8", (5,), None, 8),
    ("UINT8", (1000,), None, 1000),
    ("INT16", (2,), None, 4),
    ("INT16", (3,), None, 8),
    ("UINT32", (3,), None, 12),
    ("UINT8", (2, 3), None, 8),
    ("UINT8", (2, 3), (3, 1), 8),  # as packed
    ("UINT8", (2, 3), (16, 1), 20),  # 1 + 16 + 2 bytes
    ("UINT8", (2, 3), (1, 2), 8),  # columns first
    ("UINT8", (2, 5), (0, 1), 8),  # a row repeated
    ("UINT8", (2, 9), (0, 0), 4),  # an element repeated
    ("INT16", (2, 3), (4, 1), 16),  # 7 elements of 2 bytes
    ("INT32", (2, 3), (4, 1), 28),
    ("INT32", (1, 3), (99, 1), 12),  # the stride of a single row is never taken
)


def test_total_tensor_size_in_bytes():
    """From the first element to the last, rounded up to 4 bytes; DMLCalcBufferTensorSize says the same."""
    for data_type, sizes, strides, least in BYTES:
        with case(data_type, sizes, strides):
            assert dml.calc_buffer_tensor_size(DataType[data_type], sizes, strides) == least
            for enough in (least, 2**64 - 1):
                desc = linear(data_type, *sizes, strides=strides, total_tensor_size_in_bytes=enough)
                assert dml.validate(desc).shape == sizes
            for too_few in (least - 1, 0):
                desc = linear(data_type, *sizes, strides=strides, total_tensor_size_in_bytes=too_few)
                error = assert_refused(desc, "InputTensor", "total_tensor_size_in_bytes")
                assert (error.expected, error.received) == (least, too_few)


def test_total_tensor_size_in_bytes_of_4_bit_elements():
    """Two to a byte: 9 of them take 36 bits, so 8 bytes. Most operators have no such tensors, hence the last error."""
    for elements, strides, least in ((8, None, 4), (9, None, 8), (2, (7,), 4), (2, (8,), 8), (1, (0,), 4)):
        for name in ("InputTensor", "QuantizationTensors[1]"):
            right_one = desc_of(DEQUANTIZE_BLOCKS, example(DEQUANTIZE_BLOCKS, name, data_type="UINT4", rank=1))
            for place, tensor in right_one.tensors().items():
                sizes = (1,) if place == "QuantizationTensors[0]" else (elements,)
                right_one = put(right_one, place, dataclasses.replace(tensor, sizes=sizes))
            tensor = dataclasses.replace(right_one.tensors()[name], strides=strides)
            enough, too_few = (
                dataclasses.replace(tensor, total_tensor_size_in_bytes=size) for size in (least, least - 1)
            )
            with case(name, elements, strides):
                assert dml.calc_buffer_tensor_size(DataType.UINT4, (elements,), strides) == least
                assert dml.validate(put(right_one, name, enough)).shape == (elements,)
                assert_refused(put(right_one, name, too_few), name, "total_tensor_size_in_bytes")
    assert_refused(linear("UINT4", 9, total_tensor_size_in_bytes=7), "InputTensor", "total_tensor_size_in_bytes")
    assert_refused(linear("UINT4", 9, total_tensor_size_in_bytes=8), "InputTensor", "data_type")


def test_alignment_is_a_power_of_two_and_at_least_an_element():
    for data_type, right_ones, wrong_ones in (
        ("UINT8", (0, 1, 2, 256, 2**31), (3, 6, 255)),
        ("INT16", (0, 2, 4, 256, 2**31), (1, 3, 6)),
        ("INT32", (0, 4, 8, 256, 2**31), (1, 2, 3, 6)),
    ):
        for alignment in right_ones + wrong_ones:
            desc = linear(data_type, 3, guaranteed_base_offset_alignment=alignment)
            with case(data_type, alignment):
                if alignment in right_ones:
                    assert dml.validate(desc).shape == (3,)
                else:
                    error = assert_refused(desc, "InputTensor", "guaranteed_base_offset_alignment")
                    assert error.received == alignment


def test_sizes_and_strides_say_how_many():
    """A tensor may have any rank; its strides must have as many entries."""
    nothing = dml.TensorDesc(dml.DataType.UINT8, None)
    assert "InputTensor has no Sizes, expected a tuple of" in str(
        refusal(dml.ElementWiseDequantizeLinearDesc(input_tensor=nothing))
    )
    assert "has Sizes (-1,), expected a tuple of integers from " in str(refusal(linear("UINT8", -1)))
    assert "has Strides (), expected a tuple of 1 integers from " in str(refusal(linear("UINT8", 1, strides=())))


def test_the_largest_stride():
    """A stride is a UINT in directml.h."""
    largest = linear("UINT8", 1, strides=(2**32 - 1,), guaranteed_base_offset_alignment=2**31)
    assert dml.validate(largest).shape == (1,)


def test_flags():
    for flags in (TensorFlags.NONE, TensorFlags.OWNED_BY_DML, TensorFlags(1)):
        with case(flags):
            assert dml.validate(linear("UINT8", 3, flags=flags)).shape == (3,)
