"""The tables of writers, the functions that write the nodes of a quantized function."""

from collections.abc import Callable
from typing import Any

from jaxdml._graph.graph import Node

# A writer appends nodes for a node of the quantized function, and returns the names of the results in the file.
Write = Callable[[Any, Node], str | tuple[str, ...]]

EQUATIONS: dict[str, Write] = {}  # by primitive
OPERATORS: dict[str, Write] = {}  # float operators, by name
INTEGERS: dict[str, Write] = {}  # quantized operators, by kind


class CannotWrite(Exception):  # noqa: N818 # a reason, not an error
    """Why a node has no counterpart in ONNX, with a remedy if there is a better one than the general remedy."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy


def _into(table: dict[str, Write]) -> Callable[..., Callable[[Write], Write]]:
    def named(*names: str) -> Callable[[Write], Write]:
        def entered(write: Write) -> Write:
            table.update(dict.fromkeys(names, write))
            return write

        return entered

    return named


equation, operator, integers = map(_into, (EQUATIONS, OPERATORS, INTEGERS))
