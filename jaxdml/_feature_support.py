"""Feature support as data and as tables: what each level allows in place of each tensor and option."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

from jaxdml._desc_table import allowed, ranks
from jaxdml._tables import Table
from jaxdml._tensor_rules import listed, shown
from jaxdml._validate import check_is_level
from jaxdml.descs import OperatorDesc
from jaxdml.errors import DescError
from jaxdml.feature_levels import CONSTRAINTS, OPTIONS, SUPPORT, FeatureLevel, Same, Support, support_at


@dataclasses.dataclass(frozen=True)
class FeatureSupport:
    """What a feature level allows, as `check_feature_support` found it. Printed, it is a table.

    Attributes:
      operator: the name of the function.
      feature_level: the level asked about.
      minimum_feature_level: the level that introduced the operator.
      tensors: by page name the dimension counts (lowest, highest), data types, and whether the tensor is optional;
        empty where the level does not have the operator.
      options: by page name what each option may be, in words.
      constraints: which tensors must have the same dimension_count, sizes or data_type.
    """

    operator: str
    feature_level: FeatureLevel
    minimum_feature_level: FeatureLevel
    tensors: dict[str, Support]
    options: dict[str, str]
    constraints: tuple[Same, ...]

    @property
    def is_supported(self) -> bool:
        """Whether the level has the operator at all."""
        return self.feature_level >= self.minimum_feature_level

    def table(self) -> Table:
        """A row for each tensor, option and constraint."""
        title = f"{self.operator}, feature level {self.feature_level}"
        if not self.is_supported:
            return Table(f"{title}: not supported, introduced in {self.minimum_feature_level}", (), ())
        rows = [(name, allowed(support)) for name, support in self.tensors.items()]
        rows += self.options.items()
        rows += [(f"same {what.replace('_', ' ')}", ", ".join(tensors)) for what, tensors in self.constraints]
        return Table(title, ("tensor or option", "allowed"), rows)

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table().html()


def check_feature_support(
    operator: str | OperatorDesc | Callable[..., Any], feature_level: FeatureLevel = FeatureLevel.LATEST
) -> FeatureSupport:
    """What a feature level allows an operator.

    Args:
      operator: a function of jaxdml, a desc, or the name of either, such as ``"quantized_linear_convolution"`` or
        ``"DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION"``.
      feature_level: the level.

    Returns:
      FeatureSupport: data, and a table when printed. A level below the operator's first is an answer, not an error.

    Raises:
      DescError: if there is no such operator or level.

    Source: DirectML, IDMLDevice::CheckFeatureSupport and the tensor-support tables of the operators' pages.
    """
    name: Any = getattr(operator, "operator", getattr(operator, "__name__", operator))
    if isinstance(name, str):
        name = name.removeprefix("DML_OPERATOR_").lower()
    if not isinstance(name, str) or name not in SUPPORT:
        text = f"check_feature_support: operator is {shown(operator)}, expected {listed(SUPPORT)}"
        raise DescError(text, tensor="operator", rule="operator", expected=tuple(SUPPORT), received=operator)
    check_is_level("check_feature_support", feature_level)
    first = min(SUPPORT[name])
    if feature_level < first:
        return FeatureSupport(name, feature_level, first, {}, {}, ())
    tensors = support_at(name, feature_level)
    return FeatureSupport(name, feature_level, first, tensors, _options(name, tensors), CONSTRAINTS[name])


def _options(operator: str, tensors: dict[str, Support]) -> dict[str, str]:
    options = {}
    if operator in OPTIONS:
        low, high = tensors["InputTensor"].dimension_counts
        options["DimensionCount"] = f"{ranks((low - 2, high - 2))}, the spatial dimensions of InputTensor"
    for name, least in OPTIONS.get(operator, {}).items():
        options[name] = f"at least {least}" + (
            ", divides the channels" if name == "GroupCount" else " in each dimension"
        )
    return options


def levels_table() -> Table:
    """Every operator, and what each level that changes it brings."""
    rows = []
    for operator, tables in SUPPORT.items():
        levels = sorted(tables)
        changes = [f"{level} {_changes(tables[before], tables[level])}" for before, level in itertools.pairwise(levels)]
        rows.append((f"`{operator}`", f"`{operator.upper()}`", str(levels[0]), "; ".join(changes)))
    return Table("feature levels", ("function", "DirectML desc", "since", "widened at"), rows)


def _changes(before: dict[str, Support], after: dict[str, Support]) -> str:
    """In words, tensors with the same change together."""
    changed: dict[str, list[str]] = {}
    for name, old in before.items():
        if change := _change(old, after[name]):
            changed.setdefault(change, []).append(name.removesuffix("Tensor"))
    return ", ".join(
        change if len(names) == len(before) else f"{change} ({' '.join(names)})" for change, names in changed.items()
    )


def _change(old: Support, new: Support) -> str:
    words = []
    if new.dimension_counts != old.dimension_counts:
        words.append(f"rank {ranks(new.dimension_counts)}")
    if added := [data_type.name for data_type in new.data_types if data_type not in old.data_types]:
        words.append("also " + " ".join(added))
    if new.optional and not old.optional:
        words.append("optional")
    return ", ".join(words)
