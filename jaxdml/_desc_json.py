"""Descs as dicts, in directml.h's names: what `json` reads and writes, and the dispatchables of DxDispatch."""

import dataclasses
from typing import Any

from jaxdml._data_types import DataType, TensorFlags
from jaxdml._json_values import Value
from jaxdml._tensor_rules import UINT_MAX, broken, check_tensor, is_symbolic, shown
from jaxdml.descs import (
    ElementWiseDequantizeLinearDesc,
    ElementWiseQuantizedLinearAddDesc,
    ElementWiseQuantizeLinearDesc,
    OperatorDesc,
    QuantizedLinearConvolutionDesc,
    QuantizedLinearMatrixMultiplyDesc,
    TensorDesc,
    page_name,
)
from jaxdml.errors import DescError

OPERATOR, DATA_TYPE, FLAG, TENSOR_TYPE = (
    "DML_OPERATOR_",
    "DML_TENSOR_DATA_TYPE_",
    "DML_TENSOR_FLAG_",
    "DML_TENSOR_TYPE_",
)
OPERATORS: dict[str, type[OperatorDesc]] = {
    desc.operator.upper(): desc
    for desc in (
        ElementWiseDequantizeLinearDesc,
        ElementWiseQuantizeLinearDesc,
        ElementWiseQuantizedLinearAddDesc,
        QuantizedLinearMatrixMultiplyDesc,
        QuantizedLinearConvolutionDesc,
    )
}
LISTS, COUNTS = ("strides", "dilations", "start_padding", "end_padding"), ("dimension_count", "group_count")


def desc_to_dict(desc: OperatorDesc) -> dict[str, Any]:
    """An operator desc as a dict that `json.dumps` takes, in directml.h's names.

    Args:
      desc: an operator desc with well-formed tensors.

    Returns:
      ``{"type": "DML_OPERATOR_...", "desc": {...}}``, a dispatchable of DxDispatch; what is None is left out.

    Raises:
      DescError: if a tensor is no well-formed `TensorDesc`.

    Source: DirectML, DML_OPERATOR_DESC and DML_BUFFER_TENSOR_DESC.
    """
    members: dict[str, Any] = {}
    if not isinstance(desc, tuple(OPERATORS.values())):
        text = f"desc_to_dict: desc is {shown(desc)}, expected an operator desc such as ElementWiseDequantizeLinearDesc"
        raise DescError(text, tensor="desc", rule="operator_desc", expected=OperatorDesc, received=desc)
    for name, tensor in desc.tensors().items():
        if tensor is not None:
            check_tensor(desc.operator, name, tensor)
            if any(is_symbolic(size) for size in tensor.sizes):
                text = f"has Sizes {list(tensor.sizes)}, which cannot be written while they are symbolic"
                raise broken(desc.operator, name, "sizes", text, expected=int, received=tensor.sizes)
            members[name] = _tensor_to_dict(tensor)
    for name, value in desc.options().items():
        if value is not None:
            members[name] = list(value) if isinstance(value, tuple) else value
    return {"type": OPERATOR + desc.operator.upper(), "desc": members}


def _tensor_to_dict(tensor: TensorDesc) -> dict[str, Any]:
    members: dict[str, Any] = {
        "DataType": DATA_TYPE + tensor.data_type.name,
        "Flags": FLAG + str(tensor.flags.name),
        "DimensionCount": len(tensor.sizes),
        "Sizes": list(tensor.sizes),
    }
    if tensor.strides is not None:
        members["Strides"] = list(tensor.strides)
    if tensor.total_tensor_size_in_bytes is not None:
        members["TotalTensorSizeInBytes"] = tensor.total_tensor_size_in_bytes
    return members | {"GuaranteedBaseOffsetAlignment": tensor.guaranteed_base_offset_alignment}


def desc_from_dict(value: dict[str, Any]) -> OperatorDesc:
    """The operator desc that a dict describes; `desc_to_dict` goes the other way.

    Enums may be written in full or without their prefix, tensors and the operator's fields inline or under "Desc".
    Fields that are null or left out are None.

    Args:
      value: ``{"type": "DML_OPERATOR_...", "desc": {...}}``.

    Returns:
      The operator desc; `validate` says whether it is right.

    Raises:
      DescError: if a name or a type is wrong; it says where.

    Source: DirectML, DML_OPERATOR_DESC, and the models of DxDispatch.
    """
    return read_desc(Value(value, "", _error))


def _error(path: str, text: str) -> DescError:
    return DescError(f"desc_from_dict: {path or 'the desc'} {text}", tensor=path, rule="json")


def read_desc(value: Value, others: tuple[str, ...] = ()) -> OperatorDesc:
    """The operator desc of a JSON object that may have members besides."""
    members = value.members()
    for one, other in (("Type", "type"), ("Desc", "desc")):
        if one in members and other in members:
            raise value.fail(f"has both {one} and {other}; leave one out")
    kind = value.member("Type" if "Type" in members else "type").one_of(OPERATOR, OPERATORS)
    fields = {page_name(field.name): field.name for field in dataclasses.fields(kind)}
    inner = members.get("Desc", members.get("desc"))
    allowed = {"Type", "type", "Desc", "desc", *others}
    if inner is None:  # inline
        inner, known = value, {*fields, *allowed}
    else:
        value.members(allowed)
        known = set(fields)
    read = {fields[name]: _read_field(fields[name], v) for name, v in inner.members(known).items() if name in fields}
    return kind(**read)


def _read_field(name: str, value: Value) -> Any:
    if name in LISTS:
        return _uints(value)
    return value.integer(0, UINT_MAX) if name in COUNTS else _read_tensor(value)


def _uints(value: Value) -> tuple[int, ...]:
    if isinstance(value.value, list) and len(value.value) > 8:
        raise value.fail(f"has {len(value.value)} elements, DirectML has at most 8 dimensions")
    return tuple(item.integer(0, UINT_MAX) for item in value.items())


def _read_tensor(value: Value) -> TensorDesc:
    known = {
        "DataType", "Flags", "DimensionCount", "Sizes", "Strides", "TotalTensorSizeInBytes",
        "GuaranteedBaseOffsetAlignment",
    }  # fmt: skip
    members = value.members()
    if "Type" in members:
        members["Type"].one_of(TENSOR_TYPE, {"BUFFER": None})
    if "Desc" in members:
        value.members({"Type", "Desc"})
        value = members["Desc"]
        members = value.members(known)
    else:
        members = value.members({"Type", *known})
    sizes = _uints(value.member("Sizes"))
    if "DimensionCount" in members and members["DimensionCount"].integer(0, UINT_MAX) != len(sizes):
        raise members["DimensionCount"].expected(f"{len(sizes)}, the length of Sizes")
    optional: dict[str, Any] = {}
    if "Strides" in members:
        optional["strides"] = _uints(members["Strides"])
    if "Flags" in members:
        optional["flags"] = _flags(members["Flags"])
    if "TotalTensorSizeInBytes" in members:
        optional["total_tensor_size_in_bytes"] = members["TotalTensorSizeInBytes"].integer(0, 2**64 - 1)
    if "GuaranteedBaseOffsetAlignment" in members:
        alignment = members["GuaranteedBaseOffsetAlignment"].integer(0, UINT_MAX)
        optional["guaranteed_base_offset_alignment"] = alignment
    return TensorDesc(value.member("DataType").one_of(DATA_TYPE, dict(DataType.__members__)), sizes, **optional)


def _flags(value: Value) -> TensorFlags:
    """One flag's name, or a list of them."""
    flags = TensorFlags.NONE
    for item in value.items() if isinstance(value.value, list) else [value]:
        flags |= item.one_of(FLAG, dict(TensorFlags.__members__))
    return flags
