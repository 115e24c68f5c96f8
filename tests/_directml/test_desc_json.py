"""Descs as dicts: there and back, directml.h's names, and where an error is."""

import itertools
import json

import pytest

import jaxdml as dml
from cases import CONVOLUTION, MATRIX_MULTIPLY
from descs import case


def test_there_and_back():
    """Every desc of the case table, through JSON."""
    for call in itertools.chain(*MATRIX_MULTIPLY, *CONVOLUTION):
        desc = dml.desc_of(getattr(dml, call.operator), *call.arguments, **call.options)
        assert dml.desc_from_dict(json.loads(json.dumps(dml.desc_to_dict(desc)))) == desc


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
    """Enums without prefix, flags in a list, fields inline or under Desc, null for what is absent."""
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


WRONG = (
    (3, "", "the desc is 3, expected an object"),
    ({}, "", "the desc has no type, which is required"),
    ({"type": "DML_OPERATOR_GEMM"}, "type", "type is 'DML_OPERATOR_GEMM', expected DML_OPERATOR_ELEMENT_WISE_DEQU"),
    ({"type": 7}, "type", "type is 7, expected a string"),
    ({"type": "x", "Type": "x"}, "", "has both Type and type; leave one out"),
    ({"type": "x", "Desc": {}, "desc": {}}, "", "has both Desc and desc; leave one out"),
    ({"type": "ELEMENT_WISE_DEQUANTIZE_LINEAR", 1: 2}, "", "has a member 1, whose name is no string"),
    (tensor() | {"flags": 1}, "", "the desc has no field 'flags'; there are"),
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
    (tensor(Size=[4]), "desc.InputTensor", "has no field 'Size'; did you mean Sizes?"),
    (tensor(TotalTensorSizeInBytes=2**64), "desc.InputTensor.TotalTensorSizeInBytes", "expected an integer"),
    (tensor(GuaranteedBaseOffsetAlignment=0.5), "desc.InputTensor.GuaranteedBaseOffsetAlignment", "is 0.5"),
    ({"type": "QUANTIZED_LINEAR_CONVOLUTION", "desc": {"GroupCount": "1"}}, "desc.GroupCount", "is '1'"),
    ({"type": "QUANTIZED_LINEAR_CONVOLUTION", "Strides": [1, 0, None]}, "Strides[2]", "is None, expected"),
)  # fmt: skip


def test_errors_say_where():
    for value, place, text in WRONG:
        with case(place, text):
            with pytest.raises(dml.DescError) as error:
                dml.desc_from_dict(value)
            assert error.value.tensor == place
            assert str(error.value).startswith(f"desc_from_dict: {place or 'the desc'} ")
            assert text in str(error.value)
