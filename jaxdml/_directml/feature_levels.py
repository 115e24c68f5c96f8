"""Feature levels, and the two kinds of fact that a page states for each of them."""

import enum
from collections.abc import Mapping
from typing import NamedTuple

from jaxdml._directml.data_types import DataType


class FeatureLevel(enum.IntEnum):
    """DML_FEATURE_LEVEL, and one level more.

    LATEST is DirectML's highest, 6_4; DirectML is frozen there. JAXDML is no level of DirectML: it allows what LATEST
    allows, and what jaxdml adds, such as 16-bit outputs of quantize.
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
    """One row of a tensor-support table: dimension counts (lowest, highest), data types, optional or not."""

    dimension_counts: tuple[int, int]
    data_types: tuple[DataType, ...]
    optional: bool = False


class Same(NamedTuple):
    """One bullet of a tensor-constraint list: these tensors have the same dimension_count, sizes or data_type."""

    what: str
    tensors: tuple[str, ...]


Rows = Mapping[str, Support]  # a tensor-support table: by page name, in the order of the struct
Tables = Mapping[FeatureLevel, Rows]  # a level that is missing allows what the highest level below it allows


def table_at(tables: Tables, feature_level: FeatureLevel) -> Rows:
    """The tensor-support table in force at a level: that of the highest level not above it."""
    return tables[max(level for level in tables if level <= feature_level)]


def allowed_from(minimum: FeatureLevel, word: str = "allowed") -> str:
    """What an error says of the level that would do."""
    if minimum is FeatureLevel.JAXDML:
        return f" ({word} from FeatureLevel.JAXDML, an extension that DirectML does not have)"
    return f" ({word} from {minimum})"
