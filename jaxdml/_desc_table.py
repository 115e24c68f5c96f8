"""An operator desc as a table: each tensor, and what a feature level allows in its place."""

from typing import Any

from jaxdml._data_types import DataType, TensorFlags
from jaxdml._tables import Table
from jaxdml.feature_levels import FeatureLevel, Support, support_at

HEADER = ("tensor", "role", "type", "sizes", "strides", "allowed")


def desc_table(desc: Any, feature_level: FeatureLevel = FeatureLevel.LATEST) -> Table:
    """Shows whatever is in the desc, right or wrong: `jaxdml.validate` judges."""
    support = support_at(desc.operator, feature_level) if desc.operator else {}
    rows = [_row(name, tensor, support[name]) for name, tensor in desc.tensors().items()]
    options = ", ".join(f"{name} {_shown(value)}" for name, value in desc.options().items())
    title = f"{desc.operator or 'no operator'}, feature level {feature_level}"
    return Table(f"{title}\n{options}" if options else title, HEADER, rows)


def allowed(row: Support) -> str:
    """A row of a tensor-support table in words."""
    types = ", ".join(data_type.name for data_type in row.data_types)
    return f"{types}; rank {ranks(row.dimension_counts)}" + "; optional" * row.optional


def ranks(counts: tuple[int, int]) -> str:
    low, high = counts
    return str(low) if low == high else f"{low} to {high}"


def _row(name: str, tensor: Any, support: Support) -> tuple[str, ...]:
    if tensor is None:
        return name, "absent", "", "", "", allowed(support)
    role = "output" if name == "OutputTensor" else "input"
    if getattr(tensor, "flags", None) == TensorFlags.OWNED_BY_DML:
        role += ", owned by DML"
    data_type, strides = getattr(tensor, "data_type", None), getattr(tensor, "strides", None)
    sizes = _shown(getattr(tensor, "sizes", tensor))  # what is no TensorDesc is shown instead
    return name, role, _shown(data_type), sizes, "packed" if strides is None else _shown(strides), allowed(support)


def _shown(value: Any) -> str:
    if isinstance(value, DataType):
        return value.name
    return str(list(value) if isinstance(value, tuple) else value)
