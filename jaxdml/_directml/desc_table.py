"""Tables of operator descs: each tensor, with the types and ranks that a feature level allows for it."""

import enum
from typing import Any

from jaxdml._directml.data_types import TensorFlags
from jaxdml._directml.desc import OperatorDesc, Slot, as_table, slots
from jaxdml._directml.feature_levels import FeatureLevel, Support, table_at
from jaxdml._directml.pages import PAGES
from jaxdml._tables import Table

HEADER = ("tensor", "role", "type", "sizes", "strides", "allowed")


@as_table.register
def desc_table(desc: OperatorDesc, feature_level: FeatureLevel = FeatureLevel.LATEST) -> Table:
    """A table with a row for each tensor; the desc may be invalid."""
    page = PAGES.get(desc.operator)
    level = feature_level if page is None else max(feature_level, min(page.support))
    rows = [] if page is None else [_row(slot, table_at(page.support, level)[slot.row]) for slot in slots(desc)]
    options = ", ".join(f"{name} {_shown(value)}" for name, value in desc.options().items())
    title = f"{desc.operator or 'no operator'}, feature level {feature_level}"
    return Table(f"{title}\n{options}" if options else title, HEADER, rows)


def allowed(row: Support) -> str:
    """A row of a tensor-support table as text."""
    types = ", ".join(data_type.name for data_type in row.data_types)
    return f"{types}; rank {ranks(row.dimension_counts)}" + "; optional" * row.optional


def ranks(counts: tuple[int, int]) -> str:
    """A range of dimension counts as text."""
    low, high = counts
    return str(low) if low == high else f"{low} to {high}"


def _row(slot: Slot, support: Support) -> tuple[str, ...]:
    tensor = slot.tensor
    if tensor is None:
        return slot.name, "absent", "", "", "", allowed(support)
    role = str(slot.role)
    if getattr(tensor, "flags", None) == TensorFlags.OWNED_BY_DML:
        role += ", owned by DML"
    data_type, strides = getattr(tensor, "data_type", None), getattr(tensor, "strides", None)
    sizes = _shown(getattr(tensor, "sizes", tensor))  # a value that is not a TensorDesc is shown as it is
    shown_strides = "packed" if strides is None else _shown(strides)
    return slot.name, role, _shown(data_type), sizes, shown_strides, allowed(support)


def _shown(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return value.name
    return str(list(value) if isinstance(value, tuple) else value)
