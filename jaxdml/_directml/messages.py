"""Error texts. Errors in calls name arguments; errors in descs name fields."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from jaxdml._directml.data_types import DataType
from jaxdml._shapes import Shape
from jaxdml.errors import DescError


class Remedy(NamedTuple):
    """Advice on what to write instead, in a call and in a desc; `in_call` may depend on the shape of the argument."""

    in_call: str | Callable[[Shape], str]
    in_desc: str


class RuleError(Exception):
    """A broken rule, which `desc_error` turns into a DescError with the remedy for a call or for a desc.

    `text` continues a sentence that begins with the tensor's name.
    """

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

    def desc_error(self, shapes: Mapping[str, Shape] | None = None) -> DescError:
        """The error for a desc if `shapes` is None, else for a call. `shapes` maps DirectML's names to the shapes."""
        remedy: Any = self.remedy
        if isinstance(remedy, Remedy):
            remedy = remedy.in_desc if shapes is None else remedy.in_call
        if callable(remedy):
            remedy = remedy((shapes or {}).get(self.tensor, ()))
        text = f"{self.operator}: {self.tensor} {self.text}" + (f"; {remedy}" if remedy else "")
        return self.error(text, operator=self.operator, tensor=self.tensor, rule=self.rule, **self.facts)


def broken(operator: str, tensor: str, rule: str, text: str, **facts: Any) -> DescError:
    """The error for a broken rule whose text is the same for calls and descs."""
    return RuleError(operator, tensor, rule, text, **facts).desc_error()


@contextlib.contextmanager
def raising_desc_errors(shapes: Mapping[str, Shape] | None = None) -> Iterator[None]:
    """Raises the `desc_error` of a RuleError instead of the RuleError."""
    try:
        yield
    except RuleError as rule:
        raise rule.desc_error(shapes) from None


@contextlib.contextmanager
def raising_as(function: str) -> Iterator[None]:
    """Makes errors name the function that was called instead of the operator that it uses."""
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
    """repr(value), cut to 200 characters; a description for integers of more than 4300 digits, which repr rejects."""
    try:
        text = repr(value)
    except ValueError:
        text = f"a very large {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."
