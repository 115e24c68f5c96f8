"""Checks of sizes and options that several pages share."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxdml._directml import remedies
from jaxdml._directml.desc import OperatorDesc, argument_name, field_of, fields_of, page_name
from jaxdml._directml.fields import Option
from jaxdml._directml.messages import Remedy, RuleError, listed, shown
from jaxdml._directml.tensor_rules import check_uints, is_uint
from jaxdml._shapes import Shape, without_leading_ones


class Form(NamedTuple):
    """Sizes that a scale, zero point or bias may have, and a description of its values, such as "one value"."""

    sizes: Shape
    words: str


def check_form(
    desc: OperatorDesc, name: str, forms: Sequence[Form], exact: Sequence[Shape] = (), otherwise: str | Remedy = ""
) -> None:
    """Checks that a tensor is absent, has the sizes of a form (apart from leading 1s), or has one of the exact sizes.

    `otherwise` is the error's advice if no form has the tensor's number of values.
    """
    tensor = getattr(desc, field_of(type(desc), name))
    if tensor is None or tensor.sizes in exact:
        return
    if without_leading_ones(tensor.sizes) in [without_leading_ones(form.sizes) for form in forms]:
        return
    expected = tuple(dict.fromkeys((*(form.sizes for form in forms), *exact)))
    options, words = listed(list(sizes) for sizes in expected), ", or ".join(form.words for form in forms)
    text = f"has Sizes {list(tensor.sizes)}, expected {options}: {words}"
    remedy = remedies.to_form(argument_name(name), tensor.sizes, [form.sizes for form in forms], exact, otherwise)
    raise RuleError(desc.operator, name, "sizes", text, remedy, expected=expected, received=tensor.sizes)


def check_sizes(desc: OperatorDesc, name: str, expected: Shape, why: str) -> None:
    """Checks that the tensor has exactly these sizes."""
    sizes = getattr(desc, field_of(type(desc), name)).sizes
    if sizes != expected:
        text = f"has Sizes {list(sizes)}, expected {list(expected)}: {why}"
        raise RuleError(desc.operator, name, "sizes", text, expected=expected, received=sizes)


def check_spatial_options(desc: OperatorDesc, spatial: int) -> None:
    """Checks that each list has one UINT for each spatial dimension, and that no UINT is too small."""
    for field, option in fields_of(type(desc)).items():
        if not isinstance(option, Option) or isinstance(option.kind, type):
            continue
        name, value = page_name(field), getattr(desc, field)
        if option.kind == "counts":
            facts: dict[str, Any] = {"least": option.least, "may_be_symbolic": option.may_be_symbolic}
            check_uints(desc.operator, name, "values", value, length=spatial, **facts)
        elif option.kind == "dimensions" and (not is_uint(value) or value != spatial):
            text = f"is {shown(value)}, expected {spatial} for an InputTensor of rank {spatial + 2}"
            raise RuleError(desc.operator, name, field, text, expected=spatial, received=value)
        elif not is_uint(value) or value < option.least:
            text = f"is {shown(value)}, expected an integer of at least {option.least}"
            raise RuleError(desc.operator, name, field, text, expected=f"at least {option.least}", received=value)


def padded_sizes(desc: OperatorDesc) -> dict[str, Shape]:
    """The padded sizes of the tensors that options pad, keyed by DirectML's names."""
    padded: dict[str, Shape] = {}
    for field, option in fields_of(type(desc)).items():
        if isinstance(option, Option) and option.pads:
            name = page_name(option.pads)
            batch, channels, *extent = padded.get(name, desc.tensors()[name].sizes)
            added = zip(extent, getattr(desc, field), strict=True)
            padded[name] = (batch, channels, *(size + more for size, more in added))
    return padded


def check_product(desc: Any, of_rows: Sequence[str], of_columns: Sequence[str]) -> None:
    """Checks the sizes of a matrix product and of its quantization parameters.

    A parameter in `of_rows` may have one value per row, a parameter in `of_columns` one value per column.
    """
    *batch, m, k = desc.a_tensor.sizes
    *leading, n = desc.b_tensor.sizes
    if leading != [*batch, k]:
        fitting = ", ".join(map(str, (*batch, k, "N")))
        text = f"has Sizes {[*leading, n]}, expected [{fitting}]: ATensor has Sizes {[*batch, m, k]}"
        in_call = remedies.matched(desc.a_tensor, desc.b_tensor, matrix=2)
        remedy = Remedy(in_call, "Strides can transpose or repeat data") if in_call else ""
        expected, received = (*batch, k, n), (*leading, n)
        raise RuleError(desc.operator, "BTensor", "sizes", text, remedy, expected=expected, received=received)
    ones = (1,) * len(batch)
    one = Form((*ones, 1, 1), "one value")
    per_row = Form((*ones, m, 1), f"one for each of the {m} rows")
    per_column = Form((*ones, 1, n), f"one for each of the {n} columns")
    for form, names, other in ((per_row, of_rows, "column"), (per_column, of_columns, "row")):
        for name in names:
            check_form(desc, name, [one, form], otherwise=f"a value for each {other} or matrix is not allowed")
    check_sizes(desc, "OutputTensor", (*batch, m, n), "that is A's rows by B's columns")
