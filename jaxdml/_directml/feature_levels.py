"""Feature levels, tensor-support tables and tensor constraints."""

import enum
from collections.abc import Mapping
from typing import NamedTuple

from jaxdml._directml.data_types import DataType


class FeatureLevel(enum.IntEnum):
    """DML_FEATURE_LEVEL and one extension.

    LATEST is 6_4, DirectML's final level. JAXDML is not a level of DirectML: it adds jaxdml's extensions to LATEST,
    such as 16-bit outputs of `element_wise_quantize_linear`, and the operator `matrix_multiply_blocks`.
    """

    LEVEL_1_0 = 0x1000
    LEVEL_2_0 = 0x2000
    LEVEL_2_1 = 0x2100
    LEVEL_3_0 = 0x3000
    LEVEL_3_1 = 0x3100
    LEVEL_4_0 = 0x4000
    LEVEL_4_1 = 0x4100
    LEVEL_5_0 = 0x5000
    LEVEL_5_1 = 0x5100
    LEVEL_5_2 = 0x5200
    LEVEL_6_0 = 0x6000
    LEVEL_6_1 = 0x6100
    LEVEL_6_2 = 0x6200
    LEVEL_6_3 = 0x6300
    LEVEL_6_4 = 0x6400
    LATEST = 0x6400
    JAXDML = 0xFFFF

    def __str__(self) -> str:
        return "jaxdml" if self is FeatureLevel.JAXDML else f"{self.value >> 12}_{self.value >> 8 & 0xF}"


class Support(NamedTuple):
    """A row of a tensor-support table: (lowest, highest) dimension count, data types, and whether None is allowed."""

    dimension_counts: tuple[int, int]
    data_types: tuple[DataType, ...]
    optional: bool = False


class Same(NamedTuple):
    """An item of a tensor-constraint list: `what` (dimension_count, sizes or data_type) is equal for all `tensors`."""

    what: str
    tensors: tuple[str, ...]


Rows = Mapping[str, Support]  # a tensor-support table: maps DirectML's names to rows, in the struct's order
Tables = Mapping[FeatureLevel, Rows]  # maps each level that changes the table to the new table


def table_at(tables: Tables, feature_level: FeatureLevel) -> Rows:
    """The tensor-support table that applies at a level."""
    return tables[max(level for level in tables if level <= feature_level)]


def allowed_from(minimum: FeatureLevel, word: str = "allowed") -> str:
    """The part of an error text that names the lowest level that allows a value."""
    if minimum is FeatureLevel.JAXDML:
        return f" ({word} from FeatureLevel.JAXDML, an extension that DirectML does not have)"
    return f" ({word} from {minimum})"
