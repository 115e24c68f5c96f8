"""The desc classes: values whose fields are those of directml.h, given by name."""

import dataclasses
import re

import numpy as np
import pytest

import jaxdml as dml
from helpers.descs import (
    ADD,
    CONVOLUTION,
    DEQUANTIZE,
    DEQUANTIZE_BLOCKS,
    DESCS,
    DYNAMIC_QUANTIZE,
    MATRIX_MULTIPLY,
    OPERATORS,
    POOLING,
    QUANTIZE,
    QUANTIZE_BLOCKS,
    case,
    field_of,
    refusal,
    right,
    tensor_of,
)  # fmt: skip
from helpers.spec_more_pages import FIELDS, QUANTIZATION_TYPES
from helpers.spec_tables import PRINTED_TABLES, table_at
from jaxdml import DataType


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


def test_sequences_become_tuples_of_python_integers():
    fields = ("strides", "dilations", "start_padding", "end_padding")
    for sequence in ([2, 3], (2, 3), np.array([2, 3]), np.array([2, 3], np.uint8)):
        tensor = dml.TensorDesc(DataType.UINT8, sequence, sequence)
        convolution = right(CONVOLUTION, **dict.fromkeys(fields, sequence))
        for value in (tensor.sizes, tensor.strides, *(getattr(convolution, field) for field in fields)):
            with case(repr(sequence)):
                assert value == (2, 3)
                assert [type(value), *map(type, value)] == [tuple, int, int]


def test_fields_stand_in_the_order_of_directml_h():
    names = {operator: [field.name for field in dataclasses.fields(cls)] for operator, cls in DESCS.items()}
    options = ["dimension_count", "strides", "dilations", "start_padding", "end_padding", "group_count"]
    for operator in OPERATORS:
        rows = PRINTED_TABLES[operator][max(PRINTED_TABLES[operator])]
        if operator in FIELDS:
            fields = FIELDS[operator].split(", ")
            assert [name for name in fields if name in rows] == list(rows)
            assert names[operator] == [field_of(name) for name in fields]
        else:
            assert names[operator] == [field_of(name) for name in rows] + (options if operator == CONVOLUTION else [])
        assert list(right(operator).tensors()) == list(table_at(operator, "6_4"))
        assert all(field.default is None for field in dataclasses.fields(DESCS[operator]))


def test_quantization_types_have_the_values_of_directml_h():
    assert {name: int(value) for name, value in dml.QuantizationType.__members__.items()} == QUANTIZATION_TYPES


class Unheard(dml.OperatorDesc):
    """A desc of no operator."""

    operator = "unheard_of"


def test_only_operator_descs_can_be_validated():
    one = tensor_of("UINT8", 1)
    for desc in (None, "desc", 0, {}, dml.OperatorDesc(), Unheard(), dml.ElementWiseDequantizeLinearDesc, one):
        for function in (dml.validate, dml.minimum_feature_level, dml.compile_operator):
            with case(function.__name__, repr(desc)):
                with pytest.raises(dml.DescError, match="expected an operator desc such as") as caught:
                    function(desc)
                error = caught.value
                assert str(error).startswith(f"{function.__name__}: desc is ")
                assert (error.operator, error.tensor, error.rule) == (None, "desc", "operator_desc")


@pytest.mark.parametrize("operator", OPERATORS)
def test_feature_levels_are_feature_levels(operator):
    named = dict.fromkeys(("6_4", "LEVEL_6_4", "DML_FEATURE_LEVEL_6_4", 0x6400, 6.4), "LEVEL_6_4") | {
        "5_1": "LEVEL_5_1"
    }
    others = ((other, "LEVEL_4_0 or the like") for other in (None, "7_0", 6, "", dml.FeatureLevel, [], np.zeros(2)))
    for feature_level, remedy in (*named.items(), *others):
        with case(repr(feature_level)):
            error = refusal(right(operator), feature_level)
            assert (error.operator, error.tensor, error.rule) == (operator, "feature_level", "feature_level")
            assert str(error).endswith(f"expected a FeatureLevel; write FeatureLevel.{remedy}")


def test_data_types_of_dtypes():
    """The names and sizes are NumPy's."""
    known = [t for t in DataType if t.name not in ("UNKNOWN", "UINT4", "INT4")]
    for data_type in known:
        dtype = np.dtype(data_type.name.lower())
        assert DataType.of(dtype) is DataType.of(dtype.type) is data_type
        assert data_type.dtype == dtype
        assert data_type.bits == 8 * dtype.itemsize
    assert [t.bits for t in (DataType.UINT4, DataType.INT4, DataType.UNKNOWN)] == [4, 4, 0]
    for dtype in (np.dtype(bool), np.dtype(complex), np.dtype(object), np.dtype("i4,i4"), np.dtype(">i4"), "?"):
        assert DataType.of(dtype) is DataType.UNKNOWN


# Fields are given by name --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", OPERATORS)
def test_fields_are_given_by_name(operator):
    """A future directml.h may insert a field, so fields cannot be given by position."""
    kind = DESCS[operator]
    first = next(iter(dataclasses.fields(kind))).name
    for positional in ((tensor_of("UINT8", 1),), (None,), (1, 2, 3)):
        with case(positional):
            with pytest.raises(dml.ArgumentTypeError) as caught:
                kind(*positional)
            error = caught.value
            assert str(error) == f"{kind.__name__}: fields are given by name: write {kind.__name__}({first}=...)"
            assert (error.operator, field_of(error.tensor), error.rule) == (operator, first, "by_name")
    assert kind(**{first: tensor_of("UINT8", 1)}).tensors()


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_pages_and_the_functions_names_lead_to_the_fields(operator):
    for name in PRINTED_TABLES[operator][max(PRINTED_TABLES[operator])]:
        field = field_of(name)
        for given in (name, re.sub("Tensors?$", "", name), re.sub("_tensors?$", "", field)):
            assert_nearest(operator, given, field)
    for name in right(operator).options():
        assert_nearest(operator, name, field_of(name))


def test_an_unknown_field_names_the_nearest():
    for operator, given, nearest in (
        (DEQUANTIZE, "inptu_tensor", "input_tensor"),
        (DEQUANTIZE, "zeropoint_tensor", "zero_point_tensor"),
        (QUANTIZE, "output_tensr", "output_tensor"),
        (ADD, "a_scales_tensor", "a_scale_tensor"),
        (MATRIX_MULTIPLY, "a_zeropoint_tensor", "a_zero_point_tensor"),
        (CONVOLUTION, "stride", "strides"),
        (CONVOLUTION, "dilation", "dilations"),
        (CONVOLUTION, "paddings", "end_padding"),
        (CONVOLUTION, "groups", "group_count"),
        (POOLING, "window", "window_size"),
        (POOLING, "include_pad", "include_padding"),
        (QUANTIZE_BLOCKS, "quantization_tensor", "quantization_tensors"),
        (QUANTIZE_BLOCKS, "quantization_typ", "quantization_type"),
        (DEQUANTIZE_BLOCKS, "quantization_count", "quantization_tensor_count"),
        (DYNAMIC_QUANTIZE, "outputscale_tensor", "output_scale_tensor"),
    ):
        assert_nearest(operator, given, nearest)


def assert_nearest(operator, given, nearest):
    with case(operator, given):
        error = unknown_field(operator, given)
        assert str(error) == f"{DESCS[operator].__name__}: there is no field {given}; did you mean {nearest}?"
        assert DESCS[operator](**{nearest: None})


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_field_like_no_other_is_told_them_all(operator):
    names = [field.name for field in dataclasses.fields(DESCS[operator])]
    error = unknown_field(operator, "xyzzy")
    assert str(error).endswith(f": there is no field xyzzy; the fields are {', '.join(names)}")


def unknown_field(operator, name):
    kind = DESCS[operator]
    with pytest.raises(dml.ArgumentTypeError) as caught:
        kind(**{name: tensor_of("UINT8", 1)})
    with pytest.raises(TypeError, match=name):
        dataclasses.replace(kind(), **{name: None})
    error = caught.value
    assert isinstance(error, TypeError)
    assert (error.operator, error.tensor, error.rule) == (operator, name, "field")
    assert error.expected == tuple(field.name for field in dataclasses.fields(kind))
    return error
