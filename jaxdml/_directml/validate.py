"""Validates descs at a feature level. The function `check` determines the order of the rules."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax

from jaxdml._directml import remedies
from jaxdml._directml.desc import OperatorDesc, Slot, TensorDesc, fields_of, one_or_named, page_name, slots
from jaxdml._directml.feature_levels import FeatureLevel, Support, allowed_from, table_at
from jaxdml._directml.fields import Option, Tensor
from jaxdml._directml.messages import Remedy, RuleError, listed, raising_desc_errors, shown
from jaxdml._directml.page import Page
from jaxdml._directml.pages import EXAMPLE, PAGES
from jaxdml._directml.table_remedies import remedy_of, remedy_of_inequality, shown_fact
from jaxdml._directml.tensor_rules import check_tensor, check_tuple
from jaxdml.errors import DescError, FeatureLevelError, api_boundary


@api_boundary
def validate(desc: OperatorDesc, feature_level: FeatureLevel = FeatureLevel.LATEST) -> Any:
    """Checks a desc against the rules of its operator at a feature level.

    Args:
      desc: an operator desc, such as `QuantizedLinearConvolutionDesc`.
      feature_level: the level whose tensor-support table applies.

    Returns:
      The output's shape and dtype as a `jax.ShapeDtypeStruct`; several outputs give a named tuple of structs.

    Raises:
      DescError: if the desc breaks a rule; the error names operator, tensor and rule.
      FeatureLevelError: if another level allows the desc.

    Source: https://learn.microsoft.com/windows/win32/api/directml/nf-directml-idmldevice-createoperator
    """
    page = page_of(desc, "validate")
    with raising_desc_errors():
        check(desc, feature_level)
    outputs = (slot.tensor for slot in slots(desc) if slot.role.is_output)
    structs = (jax.ShapeDtypeStruct(output.sizes, output.data_type.dtype) for output in outputs)
    return one_or_named(page.desc, structs)


def page_of(desc: Any, function: str) -> Page:
    """The page of a desc; `function` is the name of the caller, for the error."""
    page = PAGES.get(desc.operator) if isinstance(desc, OperatorDesc) else None
    if page is None or not isinstance(desc, page.desc):
        text = f"{function}: desc is {shown(desc)}, expected an operator desc such as {EXAMPLE.desc.__name__}"
        raise DescError(text, tensor="desc", rule="operator_desc", expected=OperatorDesc, received=desc)
    return page


def check(desc: OperatorDesc, feature_level: FeatureLevel) -> None:
    """Raises a RuleError for the first rule that a desc breaks."""
    page = PAGES[desc.operator]
    check_feature_level(page, feature_level)
    tensors = tuple(slots(desc))
    check_tuples(desc)
    for slot in tensors:
        if slot.tensor is not None:
            check_tensor(desc.operator, slot.name, slot.tensor, is_output=slot.role.is_output)
    rows = table_at(page.support, feature_level)
    for slot in tensors:
        if _breach(rows[slot.row], slot.tensor):
            check_support(page, slot, feature_level)
    _check_constraints(page, tensors)
    _check_kinds(desc)
    page.check(desc)


def check_tuples(desc: OperatorDesc) -> None:
    """Checks that fields for several tensors hold tuples."""
    fields: Iterable[tuple[str, Any]] = fields_of(type(desc)).items()
    for field, spec in fields:
        if isinstance(spec, Tensor) and spec.is_many:
            check_tuple(desc.operator, page_name(field), field, getattr(desc, field))


@api_boundary
def minimum_feature_level(desc: OperatorDesc) -> FeatureLevel:
    """The lowest feature level that allows a desc; JAXDML if no level of DirectML does.

    Args:
      desc: an operator desc.

    Returns:
      FeatureLevel.

    Raises:
      DescError: if no level allows desc. The error is that of `validate` at LATEST, or at JAXDML if only JAXDML allows
        the types.

    Source: https://learn.microsoft.com/windows/ai/directml/dml-feature-level-history
    """
    page_of(desc, "minimum_feature_level")
    try:
        validate(desc, FeatureLevel.LATEST)
    except FeatureLevelError:
        validate(desc, FeatureLevel.JAXDML)  # raises a DescError if the desc breaks another rule, too
    return next(level for level in FeatureLevel if _is_allowed(desc, level))


def _is_allowed(desc: OperatorDesc, level: FeatureLevel) -> bool:
    try:
        validate(desc, level)
    except FeatureLevelError:
        return False
    return True


def check_is_level(operator: str, feature_level: Any) -> None:
    """Checks that feature_level is a FeatureLevel."""
    if not isinstance(feature_level, FeatureLevel):
        text, remedy = f"is {shown(feature_level)}, expected a FeatureLevel", remedies.feature_level(feature_level)
        facts = {"expected": FeatureLevel, "received": feature_level}
        raise RuleError(operator, "feature_level", "feature_level", text, remedy, **facts)


def check_feature_level(page: Page, feature_level: Any) -> None:
    """Checks that feature_level is a FeatureLevel, and that it has the operator."""
    operator = page.operator
    check_is_level(operator, feature_level)
    introduced = min(page.support)
    if feature_level < introduced:
        text = f"{operator}: not available at feature level {feature_level} (introduced in {introduced})"
        facts = {"expected": introduced, "received": feature_level, "minimum_feature_level": introduced}
        raise FeatureLevelError(text, operator=operator, rule="feature_level", feature_level=feature_level, **facts)


# Tensor-support tables -----------------------------------------------------------------------------------------------


class _Breach(NamedTuple):
    """Why a row of the support table does not allow a tensor."""

    rule: str
    problem: str
    allowed: str
    expected: Any
    received: Any


def _breach(row: Support, tensor: TensorDesc | None) -> _Breach | None:
    if tensor is None:
        return None if row.optional else _Breach("required", "is missing", "requires it", TensorDesc, None)
    low, high = row.dimension_counts
    rank = len(tensor.sizes)
    if not low <= rank <= high:
        allowed = f"allows {low} to {high}" if low != high else f"allows {low}"
        return _Breach("dimension_count", f"has rank {rank}", allowed, row.dimension_counts, rank)
    if tensor.data_type not in row.data_types:
        problem, allowed = f"has data type {tensor.data_type.name}", f"allows {listed(row.data_types)}"
        return _Breach("data_type", problem, allowed, row.data_types, tensor.data_type)
    return None


def check_support(page: Page, slot: Slot, feature_level: FeatureLevel) -> None:
    """Checks that the tensor's row of the table allows its absence, its dimension count and its data type."""
    breach = _breach(table_at(page.support, feature_level)[slot.row], slot.tensor)
    if breach is None:
        return
    tables = page.support.items()
    minimum = min((level for level, rows in tables if not _breach(rows[slot.row], slot.tensor)), default=None)
    hint = ""
    remedy: str | Remedy = ""
    if minimum is not None:
        hint = allowed_from(minimum, "optional" if breach.rule == "required" else "allowed")
    else:
        remedy = remedy_of(page, slot, breach.rule, breach.received, breach.expected)
    raise RuleError(
        page.operator,
        slot.name,
        breach.rule,
        f"{breach.problem}{hint}, feature level {feature_level} {breach.allowed}",
        remedy,
        error=FeatureLevelError if minimum is not None else DescError,
        expected=breach.expected,
        received=breach.received,
        feature_level=feature_level,
        minimum_feature_level=minimum,
    )


# Tensor-constraint lists ---------------------------------------------------------------------------------------------


def _check_constraints(page: Page, tensors: Iterable[Slot]) -> None:
    """Checks every item of the page's tensor-constraint list; absent tensors are not constrained."""
    present = [slot for slot in tensors if slot.tensor is not None]
    for what, names in page.constraints:
        own = sorted((slot for slot in present if slot.row in names), key=lambda slot: names.index(slot.row))
        for first, slot in ((own[0], slot) for slot in own[1:]):
            mine, theirs = _fact(what, slot.tensor), _fact(what, first.tensor)
            if mine != theirs:
                label = {"dimension_count": "rank", "sizes": "Sizes", "data_type": "data type"}[what]
                text = f"has {label} {shown_fact(mine)}, expected {shown_fact(theirs)}, that of {first.name}"
                remedy = remedy_of_inequality(page, what, slot, first, mine, theirs)
                raise RuleError(page.operator, slot.name, f"same_{what}", text, remedy, expected=theirs, received=mine)


def _fact(what: str, tensor: TensorDesc) -> Any:
    return len(tensor.sizes) if what == "dimension_count" else getattr(tensor, what)


# Options -------------------------------------------------------------------------------------------------------------


def _check_kinds(desc: OperatorDesc) -> None:
    """Checks the types of enums and BOOLs. The page checks integers, because their limits depend on sizes."""
    kinds: Iterable[tuple[str, Any]] = fields_of(type(desc)).items()
    for field, option in kinds:
        if not isinstance(option, Option) or not isinstance(option.kind, type):
            continue
        value, kind = getattr(desc, field), option.kind
        if not isinstance(value, kind):
            members: Any = kind
            options = (
                "True or False" if kind is bool else listed(f"{kind.__name__}.{member.name}" for member in members)
            )
            text = f"is {shown(value)}, expected {options}"
            raise RuleError(desc.operator, page_name(field), "kind", text, expected=kind, received=value)
