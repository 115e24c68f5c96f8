"""Feature support: the types, ranks and values that a level allows for the tensors and options of an operator."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

from jaxdml._directml.desc import OperatorDesc, fields_of, page_name
from jaxdml._directml.desc_table import allowed, ranks
from jaxdml._directml.feature_levels import FeatureLevel, Rows, Same, Support, table_at
from jaxdml._directml.fields import Option
from jaxdml._directml.messages import listed, raising_desc_errors, shown
from jaxdml._directml.page import Page
from jaxdml._directml.pages import PAGES
from jaxdml._directml.validate import check_is_level
from jaxdml._tables import Table
from jaxdml.errors import DescError, api_boundary


@dataclasses.dataclass(frozen=True)
class FeatureSupport:
    """The support of an operator at a feature level; prints as a table. `check_feature_support` returns it.

    Attributes:
      operator: the name of the function.
      feature_level: the requested level.
      minimum_feature_level: the level that introduced the operator.
      tensors: maps DirectML's names to the (lowest, highest) dimension count, the data types, and whether the tensor is
        optional; empty if the level does not have the operator.
      options: maps DirectML's names to descriptions of the allowed values.
      constraints: the tensors that must have the same dimension_count, sizes or data_type.
    """

    operator: str
    feature_level: FeatureLevel
    minimum_feature_level: FeatureLevel
    tensors: dict[str, Support]
    options: dict[str, str]
    constraints: tuple[Same, ...]

    @property
    def is_supported(self) -> bool:
        """Whether the level has the operator."""
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

    def __reduce__(self) -> Any:
        """Pickles the arguments of `check_feature_support`; unpickling calls it again."""
        return check_feature_support, (self.operator, self.feature_level)

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table().html()


@api_boundary
def check_feature_support(
    operator: str | OperatorDesc | Callable[..., Any], feature_level: FeatureLevel = FeatureLevel.LATEST
) -> FeatureSupport:
    """Returns the types, ranks and values that a feature level allows for an operator.

    Args:
      operator: a function of jaxdml, a desc, or the name of either, such as ``"quantized_linear_convolution"`` or
        ``"DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION"``.
      feature_level: the level.

    Returns:
      FeatureSupport. If the level does not have the operator, `is_supported` is False, and no error is raised.

    Raises:
      DescError: if the operator or the level does not exist.

    Source: https://learn.microsoft.com/windows/win32/api/directml/nf-directml-idmldevice-checkfeaturesupport
    """
    name: Any = getattr(operator, "operator", getattr(operator, "__name__", operator))
    if isinstance(name, str):
        name = name.removeprefix("DML_OPERATOR_").lower()
    if not isinstance(name, str) or name not in PAGES:
        text = f"check_feature_support: operator is {shown(operator)}, expected {listed(PAGES)}"
        raise DescError(text, tensor="operator", rule="operator", expected=tuple(PAGES), received=operator)
    with raising_desc_errors():
        check_is_level("check_feature_support", feature_level)
    page = PAGES[name]
    first = min(page.support)
    if feature_level < first:
        return FeatureSupport(name, feature_level, first, {}, {}, ())
    rows = table_at(page.support, feature_level)
    return FeatureSupport(name, feature_level, first, dict(rows), _options(page, rows), page.constraints)


def _options(page: Page, rows: Rows) -> dict[str, str]:
    options = {}
    for field, option in fields_of(page.desc).items():
        if not isinstance(option, Option):
            continue
        if option.kind == "dimensions":
            low, high = rows["InputTensor"].dimension_counts
            words = f"{ranks((low - 2, high - 2))}, the spatial dimensions of InputTensor"
        elif option.kind in ("count", "counts"):
            joint = " " if option.kind == "counts" else ", "
            words = joint.join(filter(None, [f"at least {option.least}", option.words]))
        else:
            words = "true or false" if option.kind is bool else listed(f"{option.prefix}{m.name}" for m in option.kind)  # type: ignore[union-attr]
        options[page_name(field)] = words
    return options


def levels_table() -> Table:
    """A table with a row for each operator; the row lists the changes at each level of DirectML."""
    rows = []
    for page in PAGES.values():
        levels = sorted(level for level in page.support if level is not FeatureLevel.JAXDML)
        changes = [
            f"{level} {_changes(page.support[before], page.support[level])}"
            for before, level in itertools.pairwise(levels)
        ]
        rows.append((f"`{page.operator}`", f"`{page.operator.upper()}`", str(levels[0]), "; ".join(changes)))
    return Table("feature levels", ("function", "DirectML desc", "since", "widened at"), rows)


def _changes(before: Rows, after: Rows) -> str:
    """The changes between two tables as text; tensors with the same change are grouped."""
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
