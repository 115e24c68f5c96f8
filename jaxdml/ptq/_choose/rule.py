"""Rules, which override options of `quantize` for some layers."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxdml.errors import PtqError, api_class
from jaxdml.ptq._grids.observers import Observer, observer_of

Products = Literal["static", "dynamic"]


@api_class
@dataclass(frozen=True)
class Rule:
    """Overrides options of `quantize` for some layers.

    Attributes:
      pattern: a regular expression, searched for in the names of layers; `print(model)` shows the names.
      keep: "float" keeps the convolutions and products of matching layers in floats.
      products: overrides the argument `products` of `quantize` for matching layers.
      observer: overrides the argument `observer` of `quantize` for the inputs of matching layers.
    """

    pattern: str
    keep: Literal["float"] | None = None
    products: Products | None = None
    observer: str | Observer | None = None

    def __post_init__(self) -> None:
        """Validates the fields.

        Raises:
          PtqError: if the pattern is not a regular expression, an option has a wrong value, or all options are None.
        """
        try:
            re.compile(self.pattern)
        except (re.error, TypeError) as error:
            raise PtqError(f"Rule({self.pattern!r}): the pattern is not a regular expression: {error}") from error
        check_one_of("Rule.keep", self.keep, ("float", None))
        check_one_of("Rule.products", self.products, ("static", "dynamic", None))
        if self.observer is not None:
            observer_of(self.observer)
        if (self.keep, self.products, self.observer) == (None, None, None):
            raise PtqError(f"Rule({self.pattern!r}) changes nothing: set keep, products or observer")


def rules_of(rules: Any) -> tuple[Rule, ...]:
    """Validates the argument `rules`, and returns it as a tuple.

    Raises:
      PtqError: if it is not a sequence of rules.
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
    """Validates the value of an argument.

    Raises:
      PtqError: if the value is not one of the allowed values.
    """
    if value not in allowed:
        raise PtqError(f"{name} is {value!r}, expected {' or '.join(repr(each) for each in allowed if each)}")
