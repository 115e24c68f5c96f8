"""The words of errors: how a broken rule is told, to who wrote a call and to who wrote a desc."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
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
