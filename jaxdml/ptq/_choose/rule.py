"""Rules, which override options of `quantize` for some layers."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxdml._shapes import is_integer
from jaxdml.errors import PtqError, api_class
from jaxdml.ptq._grids.observers import Observer, observer_of
from jaxdml.ptq._grids.ranges import BLOCK_SIZES, BLOCK_WEIGHTS, integer_type
from jaxdml.typing import DType

Products = Literal["static", "dynamic"]
ProductsOrMixed = Products | Literal["mixed"]
Sums = Literal["integer", "float"]


@api_class
@dataclass(frozen=True)
class Rule:
    """Overrides options of `quantize` for some layers.

    Attributes:
      pattern: a regular expression, searched for in the names of layers; `print(model)` shows the names.
      keep: "float" keeps the convolutions and products of matching layers in floats.
      products: overrides the argument `products` of `quantize` for matching layers.
      observer: overrides the argument `observer` of `quantize` for the inputs of matching layers.
      weights, block_size: override the arguments `weights` and `block_size` of `quantize` for matching products. A rule
        that sets one of them sets neither `products` nor `activations`.
      activations: with jnp.uint16, the values that convolutions and products of matching layers read are quantized to
        16 bits, with calibrated ranges. Weights keep 8 bits; both operands of a product of two computed values have 16
        bits. The sums are exact, and a layer takes longer. Other layers that read the same values still read 8 bits.
        For each product, the first matching rule that sets `products`, `weights`, `block_size` or `activations` decides
        all four options; for each convolution, the first that sets `activations` decides that option.
    """

    pattern: str
    keep: Literal["float"] | None = None
    products: Products | None = None
    observer: str | Observer | None = None
    weights: DType | None = None
    block_size: int | None = None
    activations: DType | None = None

    def __post_init__(self) -> None:
        """Validates the fields.

        Raises:
          PtqError: if the pattern is not a regular expression, an option has an invalid value, or all options are None.
        """
        try:
            re.compile(self.pattern)
        except (re.error, TypeError) as error:
            raise PtqError(f"Rule({self.pattern!r}): the pattern is not a regular expression: {error}") from error
        check_one_of("Rule.keep", self.keep, ("float", None))
        check_one_of("Rule.products", self.products, ("static", "dynamic", None))
        if self.observer is not None:
            observer_of(self.observer)
        if self.weights is not None:
            integer_type("Rule.weights", self.weights, BLOCK_WEIGHTS)
        if self.block_size is not None:
            check_block_size("Rule.block_size", self.block_size)
        if self.activations is not None:
            integer_type("Rule.activations", self.activations, ("uint16",))
        if self.sets_activations and (self.products == "dynamic" or self.has_blocks):
            text = "dynamic products compute ranges of 8 bits: leave out activations or products"
            if self.has_blocks:
                text = "weights in blocks multiply floats: leave out activations, or weights and block_size"
            raise PtqError(f"Rule({self.pattern!r}) has activations=uint16, but {text}")
        if self.products and self.has_blocks:
            text = "products with weights in blocks read floats: leave out products, or weights and block_size"
            raise PtqError(f"Rule({self.pattern!r}) has products={self.products!r}, but {text}")
        if self.keep and self.sets_products:
            text = "a layer in floats reads no integers: leave out keep, or the options for integers"
            raise PtqError(f"Rule({self.pattern!r}) has keep='float', but {text}")
        if (self.keep, self.observer) == (None, None) and not self.sets_products:
            words = "keep, products, observer, weights, block_size or activations"
            raise PtqError(f"Rule({self.pattern!r}) changes nothing: set {words}")

    @property
    def has_blocks(self) -> bool:
        """Whether the rule sets weights or block_size."""
        return self.weights is not None or self.block_size is not None

    @property
    def sets_activations(self) -> bool:
        """Whether the rule sets activations."""
        return self.activations is not None

    @property
    def sets_products(self) -> bool:
        """Whether the rule decides how matching products run on integers."""
        return self.products is not None or self.has_blocks or self.sets_activations


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


def check_block_size(name: str, block_size: Any) -> None:
    """Validates the number of weights in a block.

    Raises:
      PtqError: if blocks cannot have this size.
    """
    if not is_integer(block_size) or block_size not in BLOCK_SIZES:
        raise PtqError(f"{name} is {block_size!r}, expected None or one of {', '.join(map(str, BLOCK_SIZES))}")


def check_one_of(name: str, value: Any, allowed: Sequence[Any]) -> None:
    """Validates the value of an argument.

    Raises:
      PtqError: if the value is not one of the allowed values.
    """
    if value not in allowed:
        raise PtqError(f"{name} is {value!r}, expected {' or '.join(repr(each) for each in allowed if each)}")
