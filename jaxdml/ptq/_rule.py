"""What is asked for otherwise with some layers."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxdml.errors import PtqError
from jaxdml.ptq._observers import Observer, observer_of

Products = Literal["static", "dynamic"]


@dataclass(frozen=True)
class Rule:
    """What is done otherwise with some layers.

    Attributes:
      pattern: a regular expression that is searched for in the names of layers, which `print(model)` shows.
      keep: "float": the layer's convolution or product stays in floats.
      products: as for `quantize`, for these layers.
      observer: as for `quantize`, for what these layers read.
    """

    pattern: str
    keep: Literal["float"] | None = None
    products: Products | None = None
    observer: str | Observer | None = None

    def __post_init__(self) -> None:
        """Refuses what no rule can say.

        Raises:
          PtqError: if so.
        """
        try:
            re.compile(self.pattern)
        except (re.error, TypeError) as error:
            raise PtqError(f"Rule({self.pattern!r}): the pattern is no regular expression: {error}") from error
        check_one_of("Rule.keep", self.keep, ("float", None))
        check_one_of("Rule.products", self.products, ("static", "dynamic", None))
        if self.observer is not None:
            observer_of(self.observer)
        if (self.keep, self.products, self.observer) == (None, None, None):
            raise PtqError(f"Rule({self.pattern!r}) changes nothing: say keep, products or observer")


def checked_rules(rules: Any) -> tuple[Rule, ...]:
    """The rules as a tuple.

    Raises:
      PtqError: if they are no rules.
    """
    if isinstance(rules, Rule):
        raise PtqError("rules is a Rule, expected a sequence of rules: write (rule,)")
    if not isinstance(rules, Iterable) or isinstance(rules, str):
        raise PtqError(f"rules is {rules!r}, expected a sequence of rules")
    rules = tuple(rules)
    for rule in rules:
        if not isinstance(rule, Rule):
            raise PtqError(f"rules has {rule!r}, expected Rule: write jaxdml.ptq.Rule(pattern, keep='float')")
    return rules


def check_one_of(name: str, value: Any, allowed: Sequence[Any]) -> None:
    """Refuses a value that is not among those allowed.

    Raises:
      PtqError: if so.
    """
    if value not in allowed:
        raise PtqError(f"{name} is {value!r}, expected {' or '.join(repr(each) for each in allowed if each)}")
