"""Decides whether a desc is right at a feature level. Pure Python; the only place that knows the rules' order."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax

from jaxdml._directml.data_types import DataType
from jaxdml._directml.desc import (
    OperatorDesc,
    Slot,
    TensorDesc,
    argument_name,
    fields_of,
    one_or_named,
    page_name,
    slots,
)
from jaxdml._directml.feature_levels import FeatureLevel, Support, allowed_from, table_at
from jaxdml._directml.fields import Option
from jaxdml._directml.messages import Remedy, RuleError, listed, shown, told
from jaxdml._directml.page import Page
from jaxdml._directml.pages import EXAMPLE, PAGES, converter
from jaxdml._directml.tensor_rules import check_tensor
from jaxdml._shapes import Shape
from jaxdml.errors import DescError, FeatureLevelError


def validate(desc: OperatorDesc, feature_level: FeatureLevel = FeatureLevel.LATEST) -> Any:
    """Checks a desc against the rules of its operator at a feature level.

    Args:
      desc: an operator desc, such as `QuantizedLinearConvolutionDesc`.
      feature_level: the level whose tensor-support table applies.

    Returns:
      The output's shape and dtype, a `jax.ShapeDtypeStruct`; a named tuple of them if there are several outputs.

    Raises:
      DescError: naming operator, tensor and rule; FeatureLevelError where another level would allow it.

    Source: https://learn.microsoft.com/windows/win32/api/directml/nf-directml-idmldevice-createoperator
    """
    page = page_of(desc)
    if page is None:
        text = f"validate: desc is {shown(desc)}, expected an operator desc such as {EXAMPLE.desc.__name__}"
        raise DescError(text, tensor="desc", rule="operator_desc", expected=OperatorDesc, received=desc)
    with told():
        check(desc, feature_level)
    outputs = (slot.tensor for slot in slots(desc) if slot.role.is_output)
    structs = (jax.ShapeDtypeStruct(output.sizes, output.data_type.dtype) for output in outputs)
    return one_or_named(page.desc, structs)


def page_of(desc: Any) -> Page | None:
    """The page of a desc; None for what is no operator desc."""
    page = PAGES.get(desc.operator) if isinstance(desc, OperatorDesc) else None
    return page if page is not None and isinstance(desc, page.desc) else None


def check(desc: OperatorDesc, feature_level: FeatureLevel) -> None:
    """Raises `RuleError` for the first rule that a desc breaks."""
    page = PAGES[desc.operator]
    check_feature_level(page, feature_level)
    tensors = tuple(slots(desc))
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


def minimum_feature_level(desc: OperatorDesc) -> FeatureLevel:
    """The lowest feature level that allows a desc; JAXDML, which is no level of DirectML, if none of these does.

    Args:
      desc: an operator desc.

    Returns:
      FeatureLevel.

    Raises:
      DescError: if no level does; it says what is wrong at LATEST, or at JAXDML if that allows more.

    Source: https://learn.microsoft.com/windows/ai/directml/dml-feature-level-history
    """
    try:
        validate(desc, FeatureLevel.LATEST)
    except FeatureLevelError:
        validate(desc, FeatureLevel.JAXDML)  # which says what else is wrong
    return next(level for level in FeatureLevel if _is_allowed(desc, level))


def _is_allowed(desc: OperatorDesc, level: FeatureLevel) -> bool:
    try:
        validate(desc, level)
    except FeatureLevelError:
        return False
    return True


def check_is_level(operator: str, feature_level: Any) -> None:
    """feature_level is a FeatureLevel."""
    if not isinstance(feature_level, FeatureLevel):
        text = f"is {shown(feature_level)}, expected a FeatureLevel"
        fix = "write FeatureLevel.LEVEL_4_0 or the like"
        facts = {"expected": FeatureLevel, "received": feature_level}
        raise RuleError(operator, "feature_level", "feature_level", text, fix, **facts)


def check_feature_level(page: Page, feature_level: Any) -> None:
    """feature_level is a FeatureLevel, and the operator exists there."""
    operator = page.operator
    check_is_level(operator, feature_level)
    introduced = min(page.support)
    if feature_level < introduced:
        raise FeatureLevelError(
            f"{operator}: not available at feature level {feature_level} (introduced in {introduced})",
            operator=operator,
            rule="feature_level",
            expected=introduced,
            received=feature_level,
            feature_level=feature_level,
            minimum_feature_level=introduced,
        )


# Tensor-support tables -----------------------------------------------------------------------------------------------


class _Breach(NamedTuple):
    """How a tensor leaves its row of the support table."""

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
    """The tensor stands in its row of the table: present or optional, dimension count, data type."""
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
        remedy = _remedy(page, slot, breach)
    raise RuleError(
        page.operator,
        slot.name,
        breach.rule,
        f"{breach.problem}, feature level {feature_level} {breach.allowed}{hint}",
        remedy,
        error=FeatureLevelError if minimum is not None else DescError,
        expected=breach.expected,
        received=breach.received,
        feature_level=feature_level,
        minimum_feature_level=minimum,
    )


def _remedy(page: Page, slot: Slot, breach: _Breach) -> str | Remedy:
    argument = argument_name(slot.row)
    if breach.rule == "data_type":
        return retyped(page, slot, argument, breach.received, breach.expected)
    advice = page.remedies.get((slot.row, breach.rule))
    special = advice(slot.tensor) if advice else None
    if special is not None:
        return special
    if breach.rule == "required":
        return Remedy(f"give {argument}", f"write {slot.field}=TensorDesc(...)")
    low, high = breach.expected
    return Remedy(f"reshape {argument}", f"give it {low if low == high else f'{low} to {high}'} sizes")


def retyped(page: Page, slot: Slot, argument: str, received: DataType, allowed: tuple[DataType, ...]) -> str | Remedy:
    """What to write where a tensor is of another type than the allowed ones."""
    advice = page.remedies.get((slot.row, "data_type"))
    special = advice(slot.tensor) if advice else None
    if special is not None:
        return special
    return Remedy(_conversion(slot, argument, received, allowed), f"write data_type={_named(allowed)}")


def _named(types: tuple[DataType, ...]) -> str:
    return listed(f"DataType.{data_type.name}" for data_type in types)


def _conversion(slot: Slot, argument: str, received: DataType, allowed: tuple[DataType, ...]) -> str:
    """How to come from a type to an allowed one without losing what the values mean."""
    is_float, wants_float = received.name.startswith("FLOAT"), allowed[0].name.startswith("FLOAT")
    if slot.role.is_output:
        return f"make it {listed(allowed)}"
    if slot.role.parameter == "zero_point":
        return "a zero point comes after its scale and is an integer of its tensor's type; convert it with .astype"
    if wants_float and not is_float and not slot.role.parameter and received.bits <= 32:
        wide = f".astype(jnp.{received.name.lower().replace('4', '8')})" if received.bits == 4 else ""
        return f"dequantize it first: {converter('integer', 'float')}({argument}{wide}, scale, zero_point)"
    if wants_float and (is_float or slot.role.parameter):
        return f"write {argument}.astype(jnp.{allowed[0].name.lower()})"
    if is_float:
        return f"quantize it first: {converter('float', 'integer')}({argument}, scale, zero_point, output_dtype=...)"
    return f"convert it with {argument}.astype to a type that holds its values"


# Tensor-constraint lists ---------------------------------------------------------------------------------------------


def _check_constraints(page: Page, tensors: Iterable[Slot]) -> None:
    """Every bullet of the page's tensor-constraint list; absent tensors constrain nothing."""
    present = [slot for slot in tensors if slot.tensor is not None]
    for what, names in page.constraints:
        first, *others = sorted((slot for slot in present if slot.row in names), key=lambda slot: names.index(slot.row))
        for slot in others:
            mine, theirs = _fact(what, slot.tensor), _fact(what, first.tensor)
            if mine != theirs:
                label = {"dimension_count": "rank", "sizes": "Sizes", "data_type": "data type"}[what]
                text = f"has {label} {_shown(mine)}, expected {_shown(theirs)}, that of {first.name}"
                remedy = _equal(page, what, slot, first, mine, theirs)
                raise RuleError(page.operator, slot.name, f"same_{what}", text, remedy, expected=theirs, received=mine)


def _equal(page: Page, what: str, slot: Slot, first: Slot, mine: Any, theirs: Any) -> str | Remedy:
    """How a tensor comes to have what the first of its bullet has."""
    argument, other = argument_name(slot.row), argument_name(first.row)
    if what == "data_type":
        return Remedy(f"write {argument}.astype(jnp.{theirs.name.lower()})", f"write data_type={_named((theirs,))}")
    if slot.role.parameter:
        has_its_sizes = any(kind == "sizes" and {slot.row, first.row} <= {*names} for kind, names in page.constraints)
        in_desc = f"write sizes={first.tensor.sizes}, and strides of 0 where values are shared"
        in_desc = in_desc if has_its_sizes else f"give it {_shown(theirs)} sizes"
        return Remedy(lambda shape: _broadcasting(argument, shape, first.tensor.sizes), in_desc)
    in_call = "tensors do not broadcast, use jax.vmap or jnp.broadcast_to"
    if what == "dimension_count":
        if mine == theirs + 1:
            in_call = f"write {other}[None] for a batch of one, or use jax.vmap over a stack of {argument}"
        return Remedy(in_call, f"give both {_shown(mine)} sizes, or both {_shown(theirs)}")
    return Remedy(in_call, "tensors do not broadcast: write equal sizes, and strides of 0 where values are repeated")


def _broadcasting(argument: str, shape: Shape, sizes: Shape) -> str:
    """How a scale or zero point of this shape can be shared along the others of the tensor's dimensions."""
    values = [size for size in shape if size != 1]
    if len(values) == 1 and values[0] in sizes:
        axis = len(sizes) - 1 - sizes[::-1].index(values[0])
        if axis < len(sizes) - 1:
            ones = ", 1" * (len(sizes) - 1 - axis)
            return f"for one value per entry of dimension {axis} write {argument}.reshape(-1{ones})"
    return f"give {argument} one value, one for each entry of a dimension, or sizes that broadcast to {list(sizes)}"


def _fact(what: str, tensor: TensorDesc) -> Any:
    return len(tensor.sizes) if what == "dimension_count" else getattr(tensor, what)


def _shown(fact: Any) -> str:
    return str(list(fact)) if isinstance(fact, tuple) else getattr(fact, "name", str(fact))


# Options -------------------------------------------------------------------------------------------------------------


def _check_kinds(desc: OperatorDesc) -> None:
    """Enums and BOOLs are such; numbers depend on sizes, and are left to the page."""
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
