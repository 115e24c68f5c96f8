"""The words of errors: how a broken rule is told, to who wrote a call and to who wrote a desc."""

import contextlib
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, NamedTuple

from jaxdml._directml.data_types import DataType
from jaxdml._shapes import Shape
from jaxdml.errors import DescError


class Remedy(NamedTuple):
    """What to write instead: in a call, where it may depend on the argument's shape, and in a desc."""

    in_call: str | Callable[[Shape], str]
    in_desc: str


class RuleError(Exception):
    """A broken rule. `text` goes on where the tensor's name ends; `told` chooses the remedy and makes the DescError."""

    def __init__(
        self,
        operator: str,
        tensor: str,
        rule: str,
        text: str,
        remedy: str | Remedy = "",
        *,
        error: type[DescError] = DescError,
        **facts: Any,
    ) -> None:
        super().__init__(operator, tensor, rule, text)
        self.operator, self.tensor, self.rule, self.text = operator, tensor, rule, text
        self.remedy = remedy
        self.error = error
        self.facts = facts

    def told(self, shapes: Mapping[str, Shape] | None = None) -> DescError:
        """The error for who wrote a call, whose arguments have these shapes by page name; None: who wrote a desc."""
        remedy: Any = self.remedy
        if isinstance(remedy, Remedy):
            remedy = remedy.in_desc if shapes is None else remedy.in_call
        if callable(remedy):
            remedy = remedy((shapes or {}).get(self.tensor, ()))
        text = f"{self.operator}: {self.tensor} {self.text}" + (f"; {remedy}" if remedy else "")
        return self.error(text, operator=self.operator, tensor=self.tensor, rule=self.rule, **self.facts)


def broken(operator: str, tensor: str, rule: str, text: str, **facts: Any) -> DescError:
    """The error for a broken rule that is told to everybody in the same words."""
    return RuleError(operator, tensor, rule, text, **facts).told()


@contextlib.contextmanager
def told(shapes: Mapping[str, Shape] | None = None) -> Iterator[None]:
    """Tells a broken rule to who wrote the desc, or the call whose arguments have these shapes."""
    try:
        yield
    except RuleError as rule:
        raise rule.told(shapes) from None


@contextlib.contextmanager
def told_as(function: str) -> Iterator[None]:
    """Errors of an operator name the function that was called, where that function does an operator's work."""
    try:
        yield
    except DescError as error:
        (text,) = error.args
        error.args = (f"{function}: {text.removeprefix(f'{error.operator}: ')}",)
        error.operator = function
        raise


def listed(options: Any) -> str:
    """``A``, ``A or B``, ``A, B or C``."""
    words = [option.name if isinstance(option, DataType) else str(option) for option in options]
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def shown(value: Any) -> str:
    """repr, where there is one, cut to a readable length: Python writes no integer of more than 4300 digits."""
    try:
        text = repr(value)
    except ValueError:
        text = f"a very large {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."


# Zero points ---------------------------------------------------------------------------------------------------------


def no_integer(zero_point: str, parameters: Container[str]) -> str:
    """What to say of a zero point that is a float: no cast, which would make a 0 of a scale in its place."""
    scale = zero_point.replace("zero_point", "scale")
    return "a zero point is an integer" + (f": are {scale} and {zero_point} swapped?" if scale in parameters else "")


def retyped_zero_point(zero_point: str, received: DataType, expected: DataType, owner: str) -> str:
    """What to write for a zero point of another integer type than its owner's.

    No cast between a signed type and the unsigned type of its size: -64 would silently become 192. A tensor that was
    quantized to the one type has another zero point than a tensor that was quantized to the other type.
    """
    if received.bits == expected.bits:
        return f"give the {expected.name} zero point that {owner} was quantized with"
    is_signed, wants_signed = (not data_type.name.startswith("U") for data_type in (received, expected))
    keeps_all_values = expected.bits > received.bits and (wants_signed or not is_signed)
    cast = f"write {zero_point}.astype(jnp.{expected.name.lower()})"
    return cast if keeps_all_values else f"if {expected.name} holds its values, {cast}"
