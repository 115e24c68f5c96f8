"""How sizes and options depend on each other: checks that pages share."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxdml._directml.desc import OperatorDesc, TensorDesc, argument_name, field_of, fields_of, page_name
from jaxdml._directml.fields import Option
from jaxdml._directml.messages import Remedy, RuleError, listed, shown
from jaxdml._directml.tensor_rules import check_uints, is_symbolic, is_uint
from jaxdml._shapes import Shape, aligned, without_leading_ones


class Form(NamedTuple):
    """Sizes that a scale, zero point or bias may have, and what its values are then."""

    sizes: Shape
    words: str


def check_form(
    desc: OperatorDesc, name: str, forms: Sequence[Form], exact: Sequence[Shape] = (), unless: str | Remedy = ""
) -> None:
    """The tensor, if present, has one of the forms, aligned to the right as in NumPy broadcasting, or exact sizes.

    `unless` is told to who gives a number of values that no form has.
    """
    tensor = getattr(desc, field_of(type(desc), name))
    if tensor is None or tensor.sizes in exact:
        return
    if without_leading_ones(tensor.sizes) in [without_leading_ones(form.sizes) for form in forms]:
        return
    expected = tuple(dict.fromkeys((*(form.sizes for form in forms), *exact)))
    options, words = listed(list(sizes) for sizes in expected), ", or ".join(form.words for form in forms)
    text = f"has Sizes {list(tensor.sizes)}, expected {options}: {words}"
    remedy = _to_the_form(argument_name(name), tensor.sizes, forms, exact, unless)
    raise RuleError(desc.operator, name, "sizes", text, remedy, expected=expected, received=tensor.sizes)


def _to_the_form(
    argument: str, sizes: Shape, forms: Sequence[Form], exact: Sequence[Shape], unless: str | Remedy
) -> str | Remedy:
    """How values of the right number come into the form that they are meant for."""
    number = math.prod(size for size in sizes if not is_symbolic(size))
    fitting = [form.sizes for form in forms if math.prod(form.sizes) == number > 1]
    if not fitting:
        return unless or (f"there are {number} values" if number > 1 else "")
    bare = without_leading_ones(fitting[0])
    trailing = 0 if (number,) in exact else len(bare) - 1

    def in_call(shape: Shape) -> str:
        if len(shape) == 1 and trailing == 1:
            return f"write {argument}[:, None]"
        return f"write {argument}.reshape(-1{', 1' * trailing})"

    in_desc = aligned(fitting[0], len(sizes)) if len(bare) <= len(sizes) else fitting[0]
    return Remedy(in_call, f"write sizes={in_desc}")


def check_sizes(desc: OperatorDesc, name: str, expected: Shape, why: str) -> None:
    """The tensor has these sizes and no others."""
    sizes = getattr(desc, field_of(type(desc), name)).sizes
    if sizes != expected:
        text = f"has Sizes {list(sizes)}, expected {list(expected)}: {why}"
        raise RuleError(desc.operator, name, "sizes", text, expected=expected, received=sizes)


def check_spatial_options(desc: OperatorDesc, spatial: int) -> None:
    """Every list of UINTs has one for each spatial dimension; they and the other UINTs are large enough."""
    for field, option in fields_of(type(desc)).items():
        if not isinstance(option, Option) or isinstance(option.kind, type):
            continue
        name, value = page_name(field), getattr(desc, field)
        if option.kind == "counts":
            check_uints(desc.operator, name, "values", value, length=spatial, least=option.least)
        elif option.kind == "dimensions" and (not is_uint(value) or value != spatial):
            text = f"is {shown(value)}, expected {spatial} for an InputTensor of rank {spatial + 2}"
            raise RuleError(desc.operator, name, field, text, expected=spatial, received=value)
        elif not is_uint(value) or value < option.least:
            text = f"is {shown(value)}, expected an integer of at least {option.least}"
            raise RuleError(desc.operator, name, field, text, expected=f"at least {option.least}", received=value)


def padded_sizes(desc: OperatorDesc) -> dict[str, Shape]:
    """By page name the sizes of tensors with the padding that options add to their spatial dimensions."""
    padded: dict[str, Shape] = {}
    for field, option in fields_of(type(desc)).items():
        if isinstance(option, Option) and option.pads:
            name = page_name(option.pads)
            batch, channels, *extent = padded.get(name, desc.tensors()[name].sizes)
            added = zip(extent, getattr(desc, field), strict=True)
            padded[name] = (batch, channels, *(size + more for size, more in added))
    return padded


def known_elements(sizes: Shape) -> int:
    """Elements of a tensor; symbolic dimensions are not counted."""
    return math.prod(size for size in sizes if not is_symbolic(size))


def check_product(desc: Any, of_rows: Sequence[str], of_columns: Sequence[str]) -> Shape:
    """A, B and the output of a matrix product fit each other, and parameters rows or columns; the output's sizes."""
    *batch, m, k = desc.a_tensor.sizes
    *leading, n = desc.b_tensor.sizes
    if leading != [*batch, k]:
        fitting = ", ".join(map(str, (*batch, k, "N")))
        text = f"has Sizes {[*leading, n]}, expected [{fitting}]: ATensor has Sizes {[*batch, m, k]}"
        remedy = _transposed(desc.b_tensor) if leading[:-1] == batch and n == k else ""
        expected, received = (*batch, k, n), (*leading, n)
        raise RuleError(desc.operator, "BTensor", "sizes", text, remedy, expected=expected, received=received)
    ones = (1,) * len(batch)
    one = Form((*ones, 1, 1), "one value")
    per_row = Form((*ones, m, 1), f"one for each of the {m} rows")
    per_column = Form((*ones, 1, n), f"one for each of the {n} columns")
    for form, names, other in ((per_row, of_rows, "column"), (per_column, of_columns, "row")):
        for name in names:
            check_form(desc, name, [one, form], unless=f"one for each {other} or matrix is not possible")
    output = (*batch, m, n)
    check_sizes(desc, "OutputTensor", output, "that is A's rows by B's columns")
    return output


def _transposed(b: TensorDesc) -> Remedy:
    """The remedy for weights [N, K], as other libraries have them."""
    transposed = "b.T" if len(b.sizes) == 2 else "b.swapaxes(-1, -2)"
    return Remedy(f"{'prepare' if b.flags else 'write'} {transposed}", "let Strides say the order of [N, K] data")
