"""Descs as dicts: round trips, directml.h's names, and where an error is."""

import dataclasses
import itertools
import json

import pytest

import jaxdml as dml
from helpers.cases import CONVOLUTION, MATRIX_MULTIPLY
from helpers.descs import (
    DEQUANTIZE_BLOCKS,
    OPERATORS,
    POOLING,
    case,
    desc_of,
    example,
    may_be_absent,
    right,
    without,
)  # fmt: skip
from helpers.spec_tables import table_at, types_of

pytestmark = pytest.mark.oldest


def test_there_and_back():
    """Every desc of the case table, through JSON."""
    for call in itertools.chain(*MATRIX_MULTIPLY, *CONVOLUTION):
        desc = dml.desc_of(getattr(dml, call.operator), *call.arguments, **call.options)
        assert dml.desc_from_dict(json.loads(json.dumps(dml.desc_to_dict(desc)))) == desc


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_type_and_rank_goes_there_and_back(operator):
    """Valid descs, with all tensors, and with only the required ones."""
    for name, row in table_at(operator, "jaxdml").items():
        for data_type in types_of(operator, "jaxdml", name):
            with case(name, data_type):
                desc = desc_of(operator, example(operator, name, data_type=data_type, rank=row.highest_count))
                for one in (desc, *([without(desc, name)] if may_be_absent(operator, name) else [])):
                    written = json.loads(json.dumps(dml.desc_to_dict(one)))
                    assert dml.desc_from_dict(written) == one
                    assert written["type"] == f"DML_OPERATOR_{operator.upper()}"
                    assert list(written["desc"]) == [page_name(field) for field in fields_present(one)]


def fields_present(desc):
    return [field.name for field in dataclasses.fields(desc) if getattr(desc, field.name) is not None]


def page_name(field):
    return "".join(word.capitalize() for word in field.split("_"))


def test_quantization_tensors_are_written_as_a_list():
    """The enum and the BOOL are written as directml.h and JSON write them."""
    written = dml.desc_to_dict(right(DEQUANTIZE_BLOCKS, rank=1))["desc"]
    assert written["QuantizationType"] == "DML_QUANTIZATION_TYPE_SCALE_ZERO_POINT"
    assert written["QuantizationTensorCount"] == 2
    types = [tensor["DataType"] for tensor in written["QuantizationTensors"]]
    assert types == ["DML_TENSOR_DATA_TYPE_FLOAT32", "DML_TENSOR_DATA_TYPE_INT8"]
    for include_padding in (False, True):
        desc = right(POOLING, include_padding=include_padding)
        assert dml.desc_to_dict(desc)["desc"]["IncludePadding"] is include_padding
        assert dml.desc_from_dict(dml.desc_to_dict(desc)).include_padding is include_padding


def test_every_field_goes_there_and_back():
    tensor = dml.TensorDesc(
        dml.DataType.INT16, (2, 3), (0, 1), dml.TensorFlags.OWNED_BY_DML, total_tensor_size_in_bytes=64,
        guaranteed_base_offset_alignment=16,
    )  # fmt: skip
    desc = dml.ElementWiseDequantizeLinearDesc(input_tensor=tensor)
    written = dml.desc_to_dict(desc)
    assert written == {
        "type": "DML_OPERATOR_ELEMENT_WISE_DEQUANTIZE_LINEAR",
        "desc": {
            "InputTensor": {
                "DataType": "DML_TENSOR_DATA_TYPE_INT16", "Flags": "DML_TENSOR_FLAG_OWNED_BY_DML", "DimensionCount": 2,
                "Sizes": [2, 3], "Strides": [0, 1], "TotalTensorSizeInBytes": 64, "GuaranteedBaseOffsetAlignment": 16,
            }
        },
    }  # fmt: skip
    assert dml.desc_from_dict(written) == desc
    for kind in (dml.ElementWiseQuantizeLinearDesc, dml.QuantizedLinearConvolutionDesc):
        assert dml.desc_from_dict(dml.desc_to_dict(kind())) == kind()
    for wrong in (3, dml.OperatorDesc()):
        with pytest.raises(dml.DescError, match=r"desc_to_dict: desc is .*, expected an operator desc"):
            dml.desc_to_dict(wrong)
    with pytest.raises(dml.DescError, match="InputTensor is 3, expected a TensorDesc"):
        dml.desc_to_dict(dml.ElementWiseDequantizeLinearDesc(input_tensor=3))


def test_other_spellings():
    """Enums without prefix, flags in a list, fields inline or under Desc, null for absent fields."""
    short = {
        "Type": "ELEMENT_WISE_DEQUANTIZE_LINEAR",
        "InputTensor": {"Type": "BUFFER", "Desc": {"DataType": "UINT8", "Sizes": [4], "Flags": ["OWNED_BY_DML"]}},
        "ZeroPointTensor": None,
        "OutputTensor": {"Type": "DML_TENSOR_TYPE_BUFFER", "DataType": "FLOAT32", "Sizes": [4], "Strides": None},
    }
    desc = dml.ElementWiseDequantizeLinearDesc(
        input_tensor=dml.TensorDesc(dml.DataType.UINT8, (4,), flags=dml.TensorFlags.OWNED_BY_DML),
        output_tensor=dml.TensorDesc(dml.DataType.FLOAT32, (4,)),
    )
    assert dml.desc_from_dict(short) == desc
    assert dml.desc_from_dict({"type": short.pop("Type"), "Desc": short}) == desc


def tensor(**changes):
    desc = {"InputTensor": {"DataType": "UINT8", "Sizes": [4]} | changes}
    return {"type": "ELEMENT_WISE_DEQUANTIZE_LINEAR", "desc": desc}


def pool(**options):
    return {"type": "QUANTIZED_LINEAR_AVERAGE_POOLING", "desc": options}


def blocks(**fields):
    return {"type": "DML_OPERATOR_QUANTIZE", "desc": fields}


TENSOR = {"DataType": "FLOAT32", "Sizes": [4]}
WRONG = (
    (3, "", "the desc is 3, expected an object"),
    ({}, "", "the desc has no type, which is required"),
    ({"type": "DML_OPERATOR_GEMM"}, "type", "type is 'DML_OPERATOR_GEMM', expected DML_OPERATOR_CONVOLUTION_INTEGER, "),
    ({"type": 7}, "type", "type is 7, expected a string"),
    ({"type": "x", "Type": "x"}, "", "has both Type and type; leave one out"),
    ({"type": "x", "Desc": {}, "desc": {}}, "", "has both Desc and desc; leave one out"),
    ({"type": "ELEMENT_WISE_DEQUANTIZE_LINEAR", 1: 2}, "", "has a member 1, whose name is not a string"),
    (tensor() | {"flags": 1}, "", "the desc has an unknown field 'flags'; expected "),
    ({"type": "ELEMENT_WISE_DEQUANTIZE_LINEAR", "desc": {"InptTensor": {}}}, "desc", "did you mean InputTensor?"),
    ({"type": "ELEMENT_WISE_DEQUANTIZE_LINEAR", "desc": [1]}, "desc", "desc is [1], expected an object"),
    (tensor(DataType="UINT9"), "desc.InputTensor.DataType", "is 'UINT9', expected DML_TENSOR_DATA_TYPE_UNKNOWN"),
    (tensor(DataType="uint8"), "desc.InputTensor.DataType", "; did you mean DML_TENSOR_DATA_TYPE_UINT8?"),
    (tensor(DataType=None), "desc.InputTensor", "has no DataType, which is required"),
    (tensor(Sizes=[1, -1]), "desc.InputTensor.Sizes[1]", "is -1, expected an integer from 0 to 4294967295"),
    (tensor(Sizes=[True]), "desc.InputTensor.Sizes[0]", "is True, expected an integer"),
    (tensor(Sizes=[1] * 9), "desc.InputTensor.Sizes", "has 9 elements, DirectML has at most 8 dimensions"),
    (tensor(Sizes="4"), "desc.InputTensor.Sizes", "is '4', expected a list"),
    (tensor(Strides=[1.0]), "desc.InputTensor.Strides[0]", "is 1.0, expected an integer"),
    (tensor(DimensionCount=2), "desc.InputTensor.DimensionCount", "is 2, expected 1, the length of Sizes"),
    (tensor(Flags="OWNED"), "desc.InputTensor.Flags", "is 'OWNED', expected DML_TENSOR_FLAG_NONE"),
    (tensor(Type="TEXTURE"), "desc.InputTensor.Type", "is 'TEXTURE', expected DML_TENSOR_TYPE_BUFFER"),
    (tensor(Size=[4]), "desc.InputTensor", "has an unknown field 'Size'; did you mean Sizes?"),
    (tensor(TotalTensorSizeInBytes=2**64), "desc.InputTensor.TotalTensorSizeInBytes", "expected an integer"),
    (tensor(GuaranteedBaseOffsetAlignment=0.5), "desc.InputTensor.GuaranteedBaseOffsetAlignment", "is 0.5"),
    ({"type": "QUANTIZED_LINEAR_CONVOLUTION", "desc": {"GroupCount": "1"}}, "desc.GroupCount", "is '1'"),
    ({"type": "QUANTIZED_LINEAR_CONVOLUTION", "Strides": [1, 0, None]}, "Strides[2]", "is None, expected"),
    (pool(WindowSize=3), "desc.WindowSize", "is 3, expected a list"),
    (pool(WindowSize=[3, -1]), "desc.WindowSize[1]", "is -1, expected an integer from 0 to 4294967295"),
    (pool(WindowSize=[1] * 9), "desc.WindowSize", "has 9 elements, DirectML has at most 8 dimensions"),
    (pool(IncludePadding=1), "desc.IncludePadding", "is 1, expected true or false"),
    (pool(IncludePadding="TRUE"), "desc.IncludePadding", "is 'TRUE', expected true or false"),
    (blocks(QuantizationType=2), "desc.QuantizationType", "is 2, expected a string"),
    (blocks(QuantizationType="ZERO_POINT"), "desc.QuantizationType", "is 'ZERO_POINT', expected DML_QUANTIZATION_TYPE_"
     "NONE, DML_QUANTIZATION_TYPE_SCALE or DML_QUANTIZATION_TYPE_SCALE_ZERO_POINT"),
    (blocks(QuantizationType="scale"), "desc.QuantizationType", "; did you mean DML_QUANTIZATION_TYPE_SCALE?"),
    (blocks(QuantizationTensorCount=1.0), "desc.QuantizationTensorCount", "is 1.0, expected an integer from 0"),
    (blocks(QuantizationTensors={}), "desc.QuantizationTensors", "is {}, expected a list"),
    (blocks(QuantizationTensors=[{}] * 9), "desc.QuantizationTensors", "has 9 elements, expected at most 8"),
    (blocks(QuantizationTensors=[None]), "desc.QuantizationTensors[0]", "is None, expected an object"),
    (blocks(QuantizationTensors=[TENSOR, {"Sizes": [4]}]), "desc.QuantizationTensors[1]", "has no DataType, which is"),
    (blocks(QuantizationTensors=[TENSOR, TENSOR | {"DataType": "INT5"}]), "desc.QuantizationTensors[1].DataType",
     "; did you mean DML_TENSOR_DATA_TYPE_INT"),
    (blocks(ScaleTensor=TENSOR), "desc", "has an unknown field 'ScaleTensor'; "),
)  # fmt: skip


def test_errors_say_where():
    for value, place, text in WRONG:
        with case(place, text):
            with pytest.raises(dml.DescError) as error:
                dml.desc_from_dict(value)
            assert error.value.tensor == place
            assert str(error.value).startswith(f"desc_from_dict: {place or 'the desc'} ")
            assert text in str(error.value)
