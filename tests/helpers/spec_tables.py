"""Reads the transcription in `spec_pages`: rows of tables, the table of a level, the first breach of a table.

This file does not import jaxdml, so that the tests compare two readings of DirectML's pages.
"""

import functools
from typing import NamedTuple

from helpers.spec_pages import CONSTRAINTS, FEATURE_LEVELS, PAGES, SLOTS, TYPES

LEVELS = tuple(FEATURE_LEVELS)


class Row(NamedTuple):
    """A row of a tensor-support table."""

    optional: bool
    lowest_count: int
    highest_count: int
    data_types: tuple[str, ...]
    is_output: bool


def _rows(table):
    rows = {}
    for line in table.strip().splitlines():
        tensor, kind, counts, data_types = (cell.strip() for cell in line.split("|"))
        low, _, high = counts.partition(" to ")
        types = tuple(data_types.split(", "))
        rows[tensor] = Row(kind == "Optional input", int(low), int(high or low), types, kind == "Output")
    return rows


PRINTED_TABLES = {operator: {level: _rows(table) for level, table in page.items()} for operator, page in PAGES.items()}
PRINTED_BULLETS = {
    operator: tuple((what, tuple(names.split(", "))) for what, names in bullets)
    for operator, bullets in CONSTRAINTS.items()
}
ON_THE_PAGES = tuple(PRINTED_TABLES)


def slots_of(name):
    """The tensors of a row, by their names in errors; an array has a name for each of its tensors."""
    return SLOTS.get(name, (name,))


# The same with one entry for each slot: the pages have one row for an array of tensors, these tables one per tensor.
TABLES = {
    operator: {
        level: {slot: row for name, row in rows.items() for slot in slots_of(name)} for level, rows in of.items()
    }
    for operator, of in PRINTED_TABLES.items()
}
BULLETS = {
    operator: tuple((what, tuple(slot for name in names for slot in slots_of(name))) for what, names in bullets)
    for operator, bullets in PRINTED_BULLETS.items()
}


@functools.cache
def table_at(operator, level):
    """The table in force at a level, None below the operator's introduction."""
    reached = [at for at in TABLES[operator] if FEATURE_LEVELS[at] <= FEATURE_LEVELS[level]]
    return TABLES[operator][max(reached, key=FEATURE_LEVELS.get)] if reached else None


def breach(row, tensor):
    """The name of the rule of a row that a tensor, (data type, rank) or None, breaks; None if it breaks none."""
    if tensor is None:
        return None if row.optional else "required"
    data_type, rank = tensor
    if not row.lowest_count <= rank <= row.highest_count:
        return "dimension_count"
    return None if data_type in row.data_types else "data_type"


def first_breach(operator, level, tensors):
    """(tensor, rule) of the first tensor, in the struct's order, that its table does not allow; None if none."""
    rows = table_at(operator, level)
    breaches = ((name, breach(rows[name], tensor)) for name, tensor in tensors.items())
    return next(((name, rule) for name, rule in breaches if rule), None)


@functools.cache
def lowest_level(operator, name, tensor):
    """The lowest level whose table allows this tensor; None if none does."""
    levels = [level for level in LEVELS if table_at(operator, level)]
    return next((level for level in levels if not breach(table_at(operator, level)[name], tensor)), None)


@functools.cache
def linked(operator, what, name):
    """All tensors that a constraint ties to this one, itself included."""
    ties = BULLETS[operator] + tuple(("DataType", names) for names in TYPES.get(operator, ()))
    return {name}.union(*(names for kind, names in ties if kind == what and name in names))


@functools.cache
def types_of(operator, level, name):
    """The data types of the tensor's row that all tensors tied to it share: all, unless the row has several slots."""
    rows = table_at(operator, level)
    types = [rows[other].data_types for other in linked(operator, "DataType", name)]
    return tuple(data_type for data_type in rows[name].data_types if all(data_type in row for row in types))
