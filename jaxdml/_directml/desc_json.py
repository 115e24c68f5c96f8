"""Converts descs to and from JSON dicts with directml.h's names, the format of DxDispatch's dispatchables."""

import enum
from collections.abc import Iterable
from typing import Any

from jaxdml._directml.data_types import DataType, TensorFlags
from jaxdml._directml.desc import OperatorDesc, TensorDesc, fields_of, page_name, slots
from jaxdml._directml.fields import Option, Tensor
from jaxdml._directml.json_values import Value
from jaxdml._directml.messages import broken, raising_desc_errors
from jaxdml._directml.pages import PAGES
from jaxdml._directml.tensor_rules import UINT_MAX, check_tensor, is_symbolic
from jaxdml._directml.validate import check_tuples, page_of
from jaxdml.errors import DescError, api_boundary

OPERATOR, DATA_TYPE = "DML_OPERATOR_", "DML_TENSOR_DATA_TYPE_"
FLAG, TENSOR_TYPE = "DML_TENSOR_FLAG_", "DML_TENSOR_TYPE_"


@api_boundary
def desc_to_dict(desc: OperatorDesc) -> dict[str, Any]:
    """Converts an operator desc to a dict for `json.dumps`, with directml.h's names.

    Args:
      desc: an operator desc with well-formed tensors.

    Returns:
      ``{"type": "DML_OPERATOR_...", "desc": {...}}``, a dispatchable of DxDispatch; fields that are None are omitted.

    Raises:
      DescError: if a tensor is not a well-formed `TensorDesc`.

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_operator_desc
    """
    page_of(desc, "desc_to_dict")
    with raising_desc_errors():
        check_tuples(desc)
    for slot in slots(desc):
        if slot.tensor is not None or slot.name.endswith("]"):  # tensors of a tuple may not be None
            with raising_desc_errors():
                check_tensor(desc.operator, slot.name, slot.tensor, is_output=slot.role.is_output)
            if any(is_symbolic(size) for size in slot.tensor.sizes):
                text = f"has Sizes {list(slot.tensor.sizes)}, which cannot be written while they are symbolic"
                raise broken(desc.operator, slot.name, "sizes", text, expected=int, received=slot.tensor.sizes)
    fields = ((field, spec, getattr(desc, field)) for field, spec in fields_of(type(desc)).items())
    members = {page_name(field): _to_json(spec, value) for field, spec, value in fields if value is not None}
    return {"type": OPERATOR + desc.operator.upper(), "desc": members}


def _to_json(spec: Tensor | Option, value: Any) -> Any:
    if isinstance(spec, Tensor):
        return [_tensor_to_dict(one) for one in value] if spec.is_many else _tensor_to_dict(value)
    if isinstance(spec.kind, type) and isinstance(value, enum.Enum):
        return spec.prefix + value.name
    return list(value) if isinstance(value, tuple) else value


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


@api_boundary
def desc_from_dict(value: dict[str, Any]) -> OperatorDesc:
    """Converts a dict to an operator desc, the inverse of `desc_to_dict`.

    Enum members may omit their prefix. The fields of tensors and of the operator may be inline or under "Desc".
    Fields that are null or missing become None.

    Args:
      value: ``{"type": "DML_OPERATOR_...", "desc": {...}}``.

    Returns:
      The operator desc, which `validate` has not checked.

    Raises:
      DescError: if a name or a type is wrong; the error gives the path.

    Source: https://github.com/microsoft/DirectML/blob/master/DxDispatch/doc/Guide.md
    """
    return read_desc(Value(value, "", _error))


def _error(path: str, text: str) -> DescError:
    return DescError(f"desc_from_dict: {path or 'the desc'} {text}", tensor=path, rule="json")


def read_desc(value: Value, others: tuple[str, ...] = ()) -> OperatorDesc:
    """The operator desc of a JSON object; `others` are further members that the object may have."""
    members = value.members()
    for one, other in (("Type", "type"), ("Desc", "desc")):
        if one in members and other in members:
            raise value.fail(f"has both {one} and {other}; leave one out")
    operators = {name.upper(): page.desc for name, page in PAGES.items()}
    kind = value.member("Type" if "Type" in members else "type").one_of(OPERATOR, operators)
    fields = {page_name(field): (field, spec) for field, spec in fields_of(kind).items()}
    inner = members.get("Desc", members.get("desc"))
    allowed = {"Type", "type", "Desc", "desc", *others}
    if inner is None:  # inline
        inner, names = value, {*fields, *allowed}
    else:
        value.members(allowed)
        names = set(fields)
    read = inner.members(names).items()
    return kind(**{fields[name][0]: _read_field(fields[name][1], v) for name, v in read if name in fields})


def _read_field(spec: Tensor | Option, value: Value) -> Any:
    if isinstance(spec, Tensor):
        return tuple(map(_read_tensor, _few(value))) if spec.is_many else _read_tensor(value)
    if spec.kind == "counts":
        return _uints(value)
    if spec.kind is bool:
        return value.boolean()
    if isinstance(spec.kind, type):
        return value.one_of(spec.prefix, dict(spec.kind.__members__))  # type: ignore[attr-defined]
    return value.integer(0, UINT_MAX)


def _few(value: Value) -> Iterable[Value]:
    if isinstance(value.value, list) and len(value.value) > 8:
        raise value.fail(f"has {len(value.value)} elements, expected at most 8")
    return value.items()


def _uints(value: Value) -> tuple[int, ...]:
    if isinstance(value.value, list) and len(value.value) > 8:
        raise value.fail(f"has {len(value.value)} elements, DirectML has at most 8 dimensions")
    return tuple(item.integer(0, UINT_MAX) for item in value.items())


def _read_tensor(value: Value) -> TensorDesc:
    allowed = {
        "DataType", "Flags", "DimensionCount", "Sizes", "Strides", "TotalTensorSizeInBytes",
        "GuaranteedBaseOffsetAlignment",
    }  # fmt: skip
    members = value.members()
    if "Type" in members:
        members["Type"].one_of(TENSOR_TYPE, {"BUFFER": None})
    if "Desc" in members:
        value.members({"Type", "Desc"})
        value = members["Desc"]
        members = value.members(allowed)
    else:
        members = value.members({"Type", *allowed})
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
    """Reads the name of a flag, or a list of names."""
    flags = TensorFlags.NONE
    for item in value.items() if isinstance(value.value, list) else [value]:
        flags |= item.one_of(FLAG, dict(TensorFlags.__members__))
    return flags
