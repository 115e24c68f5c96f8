"""The table of supported ONNX operators.

Each row is one version of an operator, and is made from the Python function that computes it. The function's
signature is the operator's schema. Positional parameters are the node's inputs; an absent input is None. Keyword-only
parameters are the node's attributes, with the same names, types and defaults. A node must have every attribute that has
no default. It must also have every input that has no default, unless the input's type includes None. The keyword
`output_count` is not an attribute, but the node's number of outputs.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, get_args, get_origin

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
SIZES = (None, frozenset({"int64"}))  # the types of two inputs: a value, and sizes or axes
SCALE = frozenset({"float32"})
ANY = NUMBER | NIBBLE | BOOL


@dataclass(frozen=True)
class Row:
    """One version of an operator.

    Attributes:
      name: the operator type in ONNX.
      domain: the operator's domain; "" is ONNX's own.
      since: the first opset, in the operator's domain, with this version.
      until: the last opset, in the operator's domain, with this version.
      types: the allowed types of each input; None, or a missing entry, allows any type.
      function: computes the operator.
      numerics: the row is used only if `load`'s `numerics` has this value; None: it is always used.
      mode: the row is used only if the node's attribute `mode` or `reduction` has this value; None: it is used if no
        other row has the node's value.
      options: converts the node's attributes to keyword arguments of the function; None: no conversion is needed.
      facts: fields of the graph's `Operator`, other than the name and the function.
    """

    name: str
    domain: str
    since: int
    until: int
    types: tuple[frozenset[str] | None, ...]
    function: Callable[..., Any]
    numerics: str | None
    mode: str | None
    options: Callable[..., dict[str, Any]] | None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def attributes(self) -> Mapping[str, inspect.Parameter]:
        """The supported attributes, keyed by name."""
        parameters = inspect.signature(self.options or self.function).parameters.values()
        return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "output_count"}

    @cached_property
    def takes_output_count(self) -> bool:
        """Whether the function takes the node's number of outputs."""
        return "output_count" in inspect.signature(self.function).parameters

    @cached_property
    def input_counts(self) -> tuple[int, float]:
        """The minimum and maximum numbers of inputs."""
        parameters = inspect.signature(self.function).parameters.values()
        most = float("inf") if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(self.required)
        return len(self.required) - self.required[::-1].index(True) if any(self.required) else 0, most

    @cached_property
    def required(self) -> tuple[bool, ...]:
        """For each input, whether a node must have it."""
        parameters = inspect.signature(self.function).parameters.values()
        inputs = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        return tuple(p.default is p.empty and type(None) not in get_args(p.annotation) for p in inputs)

    @cached_property
    def computed_outputs(self) -> int:
        """The number of outputs that the function returns, according to its annotation."""
        returned = inspect.signature(self.function).return_annotation
        return len(get_args(returned)) if get_origin(returned) is tuple else 1

    @cached_property
    def operator(self) -> Operator:
        """The operator of a graph's nodes."""
        return Operator(self.name, self.function, **self.facts)

    def wrong_type(self, dtypes: list[str | None]) -> str | None:
        """The error for the first input of the wrong type, or None. In `dtypes`, None means unknown, and is allowed."""
        for index, (dtype, allowed) in enumerate(zip(dtypes, self.types, strict=False)):
            if dtype is not None and allowed is not None and dtype not in allowed:
                return f"input {index} is {dtype}; supported: {', '.join(sorted(allowed))}"
        return None


ROWS: dict[tuple[str, str], list[Row]] = {}  # keyed by domain and name


def operator[F: Callable[..., Any]](
    *names: str,
    domain: str = "",
    since: int | None = None,
    until: int | None = None,
    types: tuple[frozenset[str] | None, ...] = (),
    numerics: str | None = None,
    mode: str | None = None,
    options: Callable[..., dict[str, Any]] | None = None,
    **facts: Any,
) -> Callable[[F], F]:
    """Adds the decorated function to the table, with a row for each name; the arguments are the fields of `Row`."""
    first = since or (1 if domain else FIRST_OPSET)
    last = until or (1 if domain else LAST_OPSET)

    def decorate(function: F) -> F:
        for name in names:
            row = Row(name, domain, first, last, types, function, numerics, mode, options, facts)
            ROWS.setdefault((domain, name), []).append(row)
        return function

    return decorate


def find(domain: str, name: str, opset: int, numerics: str, mode: str | None = None) -> Row | None:
    """The row for an operator at an opset and the node's mode; None if the table has no such row."""
    found = [
        row
        for row in ROWS.get((domain, name), ())
        if row.since <= opset <= row.until and row.numerics in (None, numerics) and row.mode in (None, mode)
    ]
    return max(found, key=lambda row: row.mode is not None, default=None)


_GROUPS = (("floats", FLOAT), ("integers", INTEGER), ("4-bit integers", NIBBLE), ("bool", BOOL))


def supported_ops() -> str:
    """The operators that `load` supports, as a Markdown table: domain, opsets, and types of the first input.

    Source: https://onnx.ai/onnx/operators and
    https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
    """
    lines = ["| operator | domain | opsets | types of the first input |", "| --- | --- | --- | --- |"]
    for (domain, name), rows in sorted(ROWS.items()):
        first, last = min(row.since for row in rows), max(row.until for row in rows)
        opsets = f"{first}" if first == last else f"{first} to {last}"
        lines.append(f"| {name} | {domain or 'ai.onnx'} | {opsets} | {_first_types(rows)} |")
    return "\n".join(lines) + "\n"


def _first_types(rows: list[Row]) -> str:
    """The types of the first input: the names of whole groups, then all remaining types."""
    if any(not row.types or row.types[0] is None for row in rows):
        return "any"
    remaining = frozenset[str]().union(*(row.types[0] or () for row in rows))
    words = []
    for word, group in _GROUPS:
        if group <= remaining:
            words.append(word)
            remaining -= group
    return ", ".join([*words, *sorted(remaining)])
