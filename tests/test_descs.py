"""Every rule about a desc, broken one at a time; and descs that are right. Other tests build their descs with this."""

import copy
import dataclasses
import math
import pickle
import re

import numpy as np
import pytest

import jaxdml as dml
from jaxdml import DataType, TensorFlags
from spec_tables import BULLETS, INTRODUCED, OPERATORS, linked, table_at

DEQUANTIZE, QUANTIZE, ADD, MATRIX_MULTIPLY, CONVOLUTION = OPERATORS

DESCS = {
    DEQUANTIZE: dml.ElementWiseDequantizeLinearDesc,
    QUANTIZE: dml.ElementWiseQuantizeLinearDesc,
    ADD: dml.ElementWiseQuantizedLinearAddDesc,
    MATRIX_MULTIPLY: dml.QuantizedLinearMatrixMultiplyDesc,
    CONVOLUTION: dml.QuantizedLinearConvolutionDesc,
}

MATRICES = {"ATensor": (2, 3, 4, 5), "BTensor": (2, 3, 5, 6), "OutputTensor": (2, 3, 4, 6)}
IMAGES = {
    "InputTensor": (2, 4, 7, 6),
    "FilterTensor": (6, 4, 3, 2),
    "BiasTensor": (1, 6, 1, 1),
    "OutputTensor": (2, 6, 5, 5),
}
ELEMENTS = (2, 3, 1, 2, 1, 3, 1, 2, 1)
LINEAR_TENSORS = ("InputTensor", "ScaleTensor", "ZeroPointTensor", "OutputTensor")


def level(words):
    """The FeatureLevel of "4_0"."""
    return dml.FeatureLevel[f"LEVEL_{words}"]


def field_of(tensor):
    """The field of "AScaleTensor": "a_scale_tensor"."""
    return re.sub("(?<!^)(?=[A-Z])", "_", tensor).lower()


def tensor_of(data_type, *sizes, **fields):
    return dml.TensorDesc(DataType[data_type], sizes, **fields)


def sizes_of(operator, tensor, rank):
    """Sizes that fit those of the operator's other tensors, at ranks that the operator has and at others."""
    if operator in (DEQUANTIZE, QUANTIZE) or (operator == ADD and tensor in ("ATensor", "BTensor", "OutputTensor")):
        return ELEMENTS[:rank]
    if operator == MATRIX_MULTIPLY and tensor in MATRICES:
        return ((1,) * rank + MATRICES[tensor])[4:] if rank > 4 else MATRICES[tensor][4 - rank :]
    if operator == CONVOLUTION and tensor in IMAGES:
        return (IMAGES[tensor] + (1,) * rank)[:rank]
    return (1,) * rank


def changed(operator, tensors, name, *, data_type=None, rank=None):
    """{tensor: (data type, rank)} with another data type or rank at `name` and at those that must have the same."""
    kin = {
        "data_type": linked(operator, "DataType", name) if data_type else (),
        "rank": linked(operator, "DimensionCount", name) if rank is not None else (),
    }
    tensors = {
        other: (data_type if other in kin["data_type"] else old_type, rank if other in kin["rank"] else old_rank)
        for other, (old_type, old_rank) in tensors.items()
    }
    if operator == QUANTIZE and data_type and name in ("InputTensor", "ScaleTensor"):
        scale = "FLOAT32" if data_type == "INT32" and name == "InputTensor" else data_type
        tensors |= {
            "InputTensor": (data_type, tensors["InputTensor"][1]),
            "ScaleTensor": (scale, tensors["ScaleTensor"][1]),
        }
    return tensors


def example(operator, name=None, **changes):
    """{tensor: (data type, rank)} of a right desc of rank 4, with the first level's types but for the changes."""
    tensors = {tensor: (row.data_types[0], 4) for tensor, row in table_at(operator, INTRODUCED[operator]).items()}
    return changed(operator, tensors, name, **changes)


def desc_of(operator, tensors, **fields):
    """The desc of {tensor: (data type, rank) or None}; fields go over it."""
    if operator == CONVOLUTION:
        spatial = max((tensors["InputTensor"] or (None, 0))[1] - 2, 0)
        each = {"strides": 1, "dilations": 1, "start_padding": 0, "end_padding": 0}
        options = {name: (value,) * spatial for name, value in each.items()}
        fields = {"dimension_count": spatial, "group_count": 1, **options, **fields}
    descs = {
        field_of(name): tensor and tensor_of(tensor[0], *sizes_of(operator, name, tensor[1]))
        for name, tensor in tensors.items()
    }
    return DESCS[operator](**{**descs, **fields})


def right(operator, rank=4, **fields):
    """A right desc, its data of a rank; fields go over it."""
    data = "ATensor" if operator in (ADD, MATRIX_MULTIPLY) else "InputTensor"
    return desc_of(operator, example(operator, data, rank=rank), **fields)


def refusal(desc, *feature_level):
    with pytest.raises(dml.DescError) as caught:
        dml.validate(desc, *feature_level)
    return caught.value


def assert_refused(desc, tensor, rule):
    """validate refuses desc for breaking this rule, at no level's fault, and says so."""
    error = refusal(desc)
    assert (type(error), error.operator, error.tensor, error.rule) == (dml.DescError, desc.operator, tensor, rule)
    assert str(error).startswith(f"{desc.operator}: {tensor} ")
    assert error.minimum_feature_level is None
    return error


def named(*cases):
    """Parameters whose first entry is the case's id."""
    return [pytest.param(*case[1:], id=case[0]) for case in cases]


# Rules of every tensor ------------------------------------------------------------------------------------------------

TENSOR_FAULTS = named(
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
@pytest.mark.parametrize(("fault", "rule"), TENSOR_FAULTS)
def test_tensor_rules_hold_for_every_tensor(operator, fault, rule):
    desc = right(operator)
    for name, tensor in desc.tensors().items():
        broken = dataclasses.replace(tensor, **fault)
        assert_refused(dataclasses.replace(desc, **{field_of(name): broken}), name, rule)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("value", [(2, 3), "UINT8", 5, DataType.UINT8, np.zeros(2)], ids=repr)
def test_tensors_are_tensor_descs(operator, value):
    desc = right(operator)
    for name in desc.tensors():
        assert_refused(dataclasses.replace(desc, **{field_of(name): value}), name, "tensor_desc")


@pytest.mark.parametrize("operator", OPERATORS)
def test_only_zero_points_and_bias_may_be_absent(operator):
    desc = right(operator)
    for name in desc.tensors():
        without = dataclasses.replace(desc, **{field_of(name): None})
        if name.endswith("ZeroPointTensor") or name == "BiasTensor":
            assert dml.validate(without) == dml.validate(desc)
        else:
            assert_refused(without, name, "required")


@pytest.mark.parametrize("operator", OPERATORS)
def test_zero_strides_repeat_inputs_but_not_outputs(operator):
    desc = right(operator)
    for name, tensor in desc.tensors().items():
        repeated = dataclasses.replace(desc, **{field_of(name): dataclasses.replace(tensor, strides=(0, 1, 1, 1))})
        if name == "OutputTensor":
            assert_refused(repeated, name, "strides")
        else:
            assert dml.validate(repeated) == dml.validate(desc)


def test_an_output_dimension_of_one_element_may_have_a_zero_stride():
    desc = right(DEQUANTIZE, rank=3, output_tensor=tensor_of("FLOAT32", 2, 3, 1, strides=(3, 1, 0)))
    assert dml.validate(desc).shape == (2, 3, 1)


def linear(data_type, *sizes, **fields):
    """A dequantize desc, the fields at its input."""
    float32 = tensor_of("FLOAT32", *sizes)
    return dml.ElementWiseDequantizeLinearDesc(tensor_of(data_type, *sizes, **fields), float32, None, float32)


def test_the_limit_is_2_to_32_less_1_elements():
    assert math.prod((65535, 65537)) == 2**32 - 1
    assert dml.validate(linear("UINT8", 65535, 65537)).shape == (65535, 65537)
    error = assert_refused(linear("UINT8", 65536, 65536), "InputTensor", "elements")
    assert "4294967296" in str(error)
    assert error.expected == 2**32 - 1


@pytest.mark.parametrize(
    ("data_type", "sizes", "strides", "least"),
    [
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
    ],
)
def test_total_tensor_size_in_bytes(data_type, sizes, strides, least):
    """From the first element to the last, rounded up to 4 bytes."""
    enough = linear(data_type, *sizes, strides=strides, total_tensor_size_in_bytes=least)
    assert dml.validate(enough).shape == sizes
    plenty = linear(data_type, *sizes, strides=strides, total_tensor_size_in_bytes=2**64 - 1)
    assert dml.validate(plenty).shape == sizes
    for too_few in (least - 1, 0):
        desc = linear(data_type, *sizes, strides=strides, total_tensor_size_in_bytes=too_few)
        error = assert_refused(desc, "InputTensor", "total_tensor_size_in_bytes")
        assert (error.expected, error.received) == (least, too_few)


def test_total_tensor_size_in_bytes_of_4_bit_elements():
    """9 of them take 36 bits, so 8 bytes. No operator has such tensors, hence the second error."""
    assert_refused(linear("UINT4", 9, total_tensor_size_in_bytes=7), "InputTensor", "total_tensor_size_in_bytes")
    assert_refused(linear("UINT4", 9, total_tensor_size_in_bytes=8), "InputTensor", "data_type")


@pytest.mark.parametrize(
    ("data_type", "right_ones", "wrong_ones"),
    [
        ("UINT8", (0, 1, 2, 256, 2**31), (3, 6, 255)),
        ("INT16", (0, 2, 4, 256, 2**31), (1, 3, 6)),
        ("INT32", (0, 4, 8, 256, 2**31), (1, 2, 3, 6)),
    ],
)
def test_alignment_is_a_power_of_two_and_at_least_an_element(data_type, right_ones, wrong_ones):
    for alignment in right_ones:
        assert dml.validate(linear(data_type, 3, guaranteed_base_offset_alignment=alignment)).shape == (3,)
    for alignment in wrong_ones:
        desc = linear(data_type, 3, guaranteed_base_offset_alignment=alignment)
        assert assert_refused(desc, "InputTensor", "guaranteed_base_offset_alignment").received == alignment


def test_sizes_and_strides_say_how_many():
    """A tensor may have any rank; its strides then follow it."""
    assert "has Sizes (-1,), expected a tuple of integers from " in str(refusal(linear("UINT8", -1)))
    assert "has Strides (), expected a tuple of 1 integers from " in str(refusal(linear("UINT8", 1, strides=())))


def test_the_largest_stride():
    """A UINT of directml.h."""
    largest = linear("UINT8", 1, strides=(2**32 - 1,), guaranteed_base_offset_alignment=2**31)
    assert dml.validate(largest).shape == (1,)


@pytest.mark.parametrize("flags", [TensorFlags.NONE, TensorFlags.OWNED_BY_DML, TensorFlags(1)])
def test_flags(flags):
    assert dml.validate(linear("UINT8", 3, flags=flags)).shape == (3,)


# Constraints ----------------------------------------------------------------------------------------------------------


def other_type(operator, name, tensor):
    """Another data type that the tensor's row has."""
    return next(t for t in table_at(operator, "6_4")[name].data_types if t != tensor.data_type.name)


def other_rank(operator, name, tensor):
    """The tensor's sizes with one dimension more, or fewer where that is too many for its row."""
    roomy = len(tensor.sizes) < table_at(operator, "6_4")[name].highest_count
    return (1, *tensor.sizes) if roomy else tensor.sizes[1:]


DEVIATIONS = {
    "DimensionCount": (lambda *which: {"sizes": other_rank(*which)}, "same_dimension_count"),
    "Sizes": (lambda _, __, tensor: {"sizes": (*tensor.sizes[:-1], tensor.sizes[-1] + 1)}, "same_sizes"),
    "DataType": (lambda *which: {"data_type": DataType[other_type(*which)]}, "same_data_type"),
}


@pytest.mark.parametrize(
    ("operator", "what", "names", "name"),
    [
        pytest.param(operator, what, names, name, id=f"{operator}-{what}-{name}")
        for operator in OPERATORS
        for what, names in BULLETS[operator]
        for name in names
    ],
)
def test_constraints(operator, what, names, name):
    """One tensor leaves the rest of its bullet: the error names two of the bullet's tensors, that one among them."""
    desc = right(operator)
    tensor = desc.tensors()[name]
    deviate, rule = DEVIATIONS[what]
    deviant = dataclasses.replace(tensor, **deviate(operator, name, tensor))
    error = refusal(dataclasses.replace(desc, **{field_of(name): deviant}))
    first, second = error.tensor, re.search(r", that of (\w+)", str(error))[1]
    assert (type(error), error.operator, error.rule) == (dml.DescError, operator, rule)
    assert {first, second} <= set(names)
    assert name in (first, second)
    assert first != second
    values = {"DimensionCount": [4, len(deviant.sizes)], "Sizes": [tensor.sizes, deviant.sizes]}
    expected = values.get(what, [tensor.data_type, deviant.data_type])
    assert [error.expected, error.received] == (expected if first == name else expected[::-1])


@pytest.mark.parametrize("operator", OPERATORS)
def test_absent_tensors_constrain_nothing(operator):
    desc = right(operator)
    absent = [name for name in desc.tensors() if name.endswith("ZeroPointTensor") or name == "BiasTensor"]
    assert dml.validate(dataclasses.replace(desc, **dict.fromkeys(map(field_of, absent)))) == dml.validate(desc)


# Sizes and options ----------------------------------------------------------------------------------------------------


def f32(*sizes):
    return tensor_of("FLOAT32", *sizes)


def i8(*sizes):
    return tensor_of("INT8", *sizes)


def i32(*sizes):
    return tensor_of("INT32", *sizes)


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


SIZE_FAULTS = named(
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


@pytest.mark.parametrize(("operator", "fields", "tensor", "rule"), SIZE_FAULTS)
def test_sizes_and_options(operator, fields, tensor, rule):
    assert_refused(right(operator, **fields), tensor, rule)


def test_one_spatial_dimension_is_not_true():
    """True == 1, but is no count."""
    error = assert_refused(right(CONVOLUTION, rank=3, dimension_count=True), "DimensionCount", "dimension_count")
    assert "is True, expected 1 for an InputTensor of rank 3" in str(error)


RIGHT = named(
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


@pytest.mark.parametrize(("desc", "shape", "dtype"), RIGHT)
def test_validate_returns_the_outputs_shape_and_dtype(desc, shape, dtype):
    output = dml.validate(desc)
    assert (output.shape, output.dtype) == (shape, np.dtype(dtype))


@pytest.mark.parametrize("data_type", ["FLOAT32", "FLOAT16"])
def test_the_output_is_of_the_scales_type(data_type):
    desc = desc_of(DEQUANTIZE, example(DEQUANTIZE, "ScaleTensor", data_type=data_type))
    assert dml.validate(desc).dtype == np.dtype(data_type.lower())


# The desc classes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", OPERATORS)
def test_descs_are_values(operator):
    desc, twin, other = right(operator), right(operator), right(operator, rank=3)
    assert desc == twin
    assert hash(desc) == hash(twin)
    assert desc != other
    assert {desc: "found"}[twin] == "found"
    for field in dataclasses.fields(desc):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(desc, field.name, None)
    for field in dataclasses.fields(desc.output_tensor):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(desc.output_tensor, field.name, None)


def test_descs_of_two_operators_differ():
    same_fields = [DESCS[operator]() for operator in (DEQUANTIZE, QUANTIZE)]
    assert same_fields[0] != same_fields[1]


@pytest.mark.parametrize("sequence", [[2, 3], (2, 3), np.array([2, 3]), np.array([2, 3], np.uint8)], ids=repr)
def test_sequences_become_tuples_of_python_integers(sequence):
    tensor = dml.TensorDesc(DataType.UINT8, sequence, sequence)
    convolution = right(CONVOLUTION, strides=sequence, dilations=sequence, start_padding=sequence, end_padding=sequence)
    fields = ("strides", "dilations", "start_padding", "end_padding")
    for value in (tensor.sizes, tensor.strides, *(getattr(convolution, field) for field in fields)):
        assert value == (2, 3)
        assert [type(value), *map(type, value)] == [tuple, int, int]


def test_fields_stand_in_the_order_of_directml_h():
    names = {operator: [field.name for field in dataclasses.fields(cls)] for operator, cls in DESCS.items()}
    options = ["dimension_count", "strides", "dilations", "start_padding", "end_padding", "group_count"]
    for operator in OPERATORS:
        tensors = [field_of(name) for name in table_at(operator, "6_4")]
        assert names[operator] == tensors + (options if operator == CONVOLUTION else [])
        assert list(right(operator).tensors()) == list(table_at(operator, "6_4"))
        assert all(field.default is None for field in dataclasses.fields(DESCS[operator]))


class Unheard(dml.OperatorDesc):
    """A desc of no operator."""

    operator = "unheard_of"


@pytest.mark.parametrize(
    "desc",
    [None, "desc", 0, {}, dml.OperatorDesc(), Unheard(), dml.ElementWiseDequantizeLinearDesc, tensor_of("UINT8", 1)],
    ids=lambda desc: getattr(desc, "__name__", type(desc).__name__),
)
@pytest.mark.parametrize("function", [dml.validate, dml.minimum_feature_level])
def test_only_operator_descs_can_be_validated(function, desc):
    with pytest.raises(dml.DescError, match="expected an operator desc such as") as caught:
        function(desc)
    error = caught.value
    assert (error.operator, error.tensor, error.rule) == (None, "desc", "operator_desc")


@pytest.mark.parametrize("feature_level", [None, "6_4", 0x6400, 6.4, dml.FeatureLevel, [], np.zeros(2)], ids=repr)
@pytest.mark.parametrize("operator", OPERATORS)
def test_feature_levels_are_feature_levels(operator, feature_level):
    error = refusal(right(operator), feature_level)
    assert (error.operator, error.tensor, error.rule) == (operator, "feature_level", "feature_level")
    assert "expected a FeatureLevel; write FeatureLevel.LEVEL_4_0 or the like" in str(error)


def test_data_types_of_dtypes():
    """Names are the same; the sizes are those of NumPy."""
    known = [t for t in DataType if t.name not in ("UNKNOWN", "UINT4", "INT4")]
    for data_type in known:
        dtype = np.dtype(data_type.name.lower())
        assert DataType.of(dtype) is DataType.of(dtype.type) is data_type
        assert data_type.dtype == dtype
        assert data_type.bits == 8 * dtype.itemsize
    assert [t.bits for t in (DataType.UINT4, DataType.INT4, DataType.UNKNOWN)] == [4, 4, 0]
    for dtype in (np.dtype(bool), np.dtype(complex), np.dtype(object), np.dtype("i4,i4"), np.dtype(">i4"), "?"):
        assert DataType.of(dtype) is DataType.UNKNOWN


# Errors ---------------------------------------------------------------------------------------------------------------


def errors():
    """One of each class, as validate raises them; ArgumentTypeError is about calls, so this one is made here."""
    return [
        refusal(right(CONVOLUTION, group_count=0)),
        refusal(right(CONVOLUTION, filter_scale_tensor=f32(6)), level("4_0")),
        dml.ArgumentTypeError("text", operator=ADD, tensor="ATensor", rule="array", expected=int, received="x"),
    ]


def test_error_classes():
    assert [type(error) for error in errors()] == [dml.DescError, dml.FeatureLevelError, dml.ArgumentTypeError]
    assert issubclass(dml.DescError, ValueError)
    assert issubclass(dml.FeatureLevelError, dml.DescError)
    assert issubclass(dml.ArgumentTypeError, dml.DescError)
    assert issubclass(dml.ArgumentTypeError, TypeError)


def test_error_attributes():
    error = errors()[1]
    assert vars(error) == {
        "operator": "quantized_linear_convolution",
        "tensor": "FilterScaleTensor",
        "rule": "dimension_count",
        "expected": (3, 4),
        "received": 1,
        "feature_level": dml.FeatureLevel.LEVEL_4_0,
        "minimum_feature_level": dml.FeatureLevel.LEVEL_5_2,
    }
    assert str(error) == (
        "quantized_linear_convolution: FilterScaleTensor has rank 1, feature level 4_0 allows 3 to 4 (allowed from 5_2)"
    )
    assert vars(dml.DescError("text")) == dict.fromkeys(vars(error))


@pytest.mark.parametrize("error", errors(), ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_errors_survive_copying_and_pickling(error, again):
    twin = again(error)
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert vars(twin) == vars(error)


def test_messages_stay_readable():
    """However long what was given: Python writes no integer of more than 4300 digits, and a reader none of 400."""
    for sizes in ((10**5000,), (10**400,), ("x" * 10**6,)):
        error = assert_refused(linear("UINT8", *sizes), "InputTensor", "sizes")
        assert len(str(error)) < 500
        assert error.received == sizes


def test_an_input_that_padding_makes_too_large():
    """Convolution alone makes its input larger; then the limit of a tensor holds for that."""
    huge = {"start_padding": (2**31, 2**31), "strides": (2**32 - 1, 2**32 - 1)}
    one = i8(1, 1, 1, 1)
    desc = right(CONVOLUTION, input_tensor=one, filter_tensor=one, output_tensor=one, group_count=1, **huge)
    desc = dataclasses.replace(desc, bias_tensor=None, filter_scale_tensor=desc.input_scale_tensor)
    assert_refused(dataclasses.replace(desc, filter_zero_point_tensor=None), "StartPadding", "elements")
