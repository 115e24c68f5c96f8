"""The table of ONNX operators: one row for each form that an operator had, made from the function that computes it.

A row's function takes the node's inputs by position, None where one is absent, and the node's attributes by keyword:
names, types and defaults of its keyword-only parameters are those of the attributes. A parameter without a default is
an attribute that a node must have, or an input that it must have, unless None is of the parameter's type.
`output_count` is no attribute, but the number of outputs that the node has.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, get_args

from jaxdml._graph.graph import Operator

MICROSOFT = "com.microsoft"
FIRST_OPSET, LAST_OPSET = 10, 28

FLOAT = frozenset({"float32", "float16", "bfloat16", "float64"})
SIGNED = frozenset({"int8", "int16", "int32", "int64"})
UNSIGNED = frozenset({"uint8", "uint16", "uint32", "uint64"})
INTEGER = SIGNED | UNSIGNED
NUMBER = FLOAT | INTEGER
NIBBLE = frozenset({"int4", "uint4"})
BYTE = frozenset({"int8", "uint8"})
BOOL = frozenset({"bool"})
INDEX = frozenset({"int32", "int64"})
SCALE = frozenset({"float32"})
ANY = NUMBER | NIBBLE | BOOL


@dataclass(frozen=True)
class Row:
    """One form of an operator.

    Attributes:
      name: the ONNX operator.
      domain: "" is ONNX's own.
      since: the first opset of the domain with this form.
      until: the last one.
      types: the types that an input may have, by place; what lies behind them, and None, may be anything.
      function: computes the operator.
      numerics: the numerics that the form computes by; None: by all.
      options: from attributes to the options of the graph's node, where those differ.
      facts: those of `Operator`.
    """

    name: str
    domain: str
    since: int
    until: int
    types: tuple[frozenset[str] | None, ...]
    function: Callable[..., Any]
    numerics: str | None
    options: Callable[..., dict[str, Any]] | None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def attributes(self) -> Mapping[str, inspect.Parameter]:
        """The attributes that the form takes, by name."""
        parameters = inspect.signature(self.options or self.function).parameters.values()
        return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "output_count"}

    @cached_property
    def counts_outputs(self) -> bool:
        """Whether the function asks how many outputs the node has."""
        return "output_count" in inspect.signature(self.function).parameters

    @cached_property
    def input_counts(self) -> tuple[int, float]:
        """The least and the largest number of inputs."""
        parameters = inspect.signature(self.function).parameters.values()
        most = float("inf") if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(self.needed)
        return len(self.needed) - self.needed[::-1].index(True) if any(self.needed) else 0, most

    @cached_property
    def needed(self) -> tuple[bool, ...]:
        """Whether a node must have the input, by place: None is no value of its parameter."""
        parameters = inspect.signature(self.function).parameters.values()
        places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        return tuple(p.default is p.empty and type(None) not in get_args(p.annotation) for p in places)

    @cached_property
    def operator(self) -> Operator:
        """What a node of the graph computes."""
        return Operator(self.name, self.function, **self.facts)

    def wrong_type(self, dtypes: list[str | None]) -> str | None:
        """What is wrong with the types of inputs, None where a type is not known."""
        for place, (dtype, allowed) in enumerate(zip(dtypes, self.types, strict=False)):
            if dtype is not None and allowed is not None and dtype not in allowed:
                return f"input {place} is {dtype}, supported are {', '.join(sorted(allowed))}"
        return None


ROWS: dict[tuple[str, str], list[Row]] = {}


def operator[F: Callable[..., Any]](
    *names: str,
    domain: str = "",
    since: int | None = None,
    until: int | None = None,
    types: tuple[frozenset[str] | None, ...] = (),
    numerics: str | None = None,
    options: Callable[..., dict[str, Any]] | None = None,
    **facts: Any,
) -> Callable[[F], F]:
    """Makes a row of the table for each name, which the function computes; arguments as in `Row`."""
    first = since or (1 if domain else FIRST_OPSET)
    last = until or (1 if domain else LAST_OPSET)

    def decorate(function: F) -> F:
        for name in names:
            row = Row(name, domain, first, last, types, function, numerics, options, facts)
            ROWS.setdefault((domain, name), []).append(row)
        return function

    return decorate


def find(domain: str, name: str, opset: int, numerics: str) -> Row | None:
    """The form of an operator at an opset."""
    for row in ROWS.get((domain, name), ()):
        if row.since <= opset <= row.until and row.numerics in (None, numerics):
            return row
    return None
