"""Which value of the graph holds each value of the program, and in which order of axes.

Convolutions take channels second, and programs often have channels last. The builder records transpositions, and emits
one only before a node that depends on the order of axes.
"""

from collections.abc import Callable
from dataclasses import dataclass

from jaxdml._graph.graph import Node
from jaxdml.ptq._build.operators import TRANSPOSE

Order = tuple[int, ...]


@dataclass(frozen=True)
class Held:
    """A value of the program as the graph holds it: axis i in the graph is axis order[i] in the program."""

    name: str
    order: Order

    def places(self, axes: tuple[int, ...] | list[int]) -> list[int]:
        """Positions in the graph of the program's axes."""
        return [self.order.index(axis) for axis in axes]


class Layouts:
    """The layout of each value of a program.

    Attributes:
      sources: maps the result of each transposition that was emitted to the value that it transposes.
    """

    def __init__(self, rank_of: Callable[[str], int], emit: Callable[[Node], None]) -> None:
        self._rank_of, self._emit = rank_of, emit
        self._held: dict[str, Held] = {}
        self._arranged: dict[tuple[str, Order], str] = {}
        self.sources: dict[str, str] = {}

    def of(self, name: str) -> Held:
        """How the graph holds a value."""
        return self._held.get(name) or Held(name, tuple(range(self._rank_of(name))))

    def hold(self, name: str, held: str, order: Order) -> None:
        """Records that a value of the graph holds a value of the program, with its axes in an order."""
        self._held[name] = Held(held, order)

    def arranged(self, name: str, order: Order | list[int] | None = None) -> str:
        """The graph's value that holds a value with its axes in an order, by default the program's."""
        held = self.of(name)
        order = tuple(range(len(held.order))) if order is None else tuple(order)
        if held.order == order:
            return held.name
        key = held.name, tuple(held.places(order))
        if key not in self._arranged:
            transposed = self._arranged[key] = f"{held.name}:{''.join(map(str, key[1]))}"
            self.sources[transposed] = held.name
            options = {"permutation": key[1]}
            self._emit(Node(TRANSPOSE, (held.name,), (transposed,), options, source=("transpose",)))
        return self._arranged[key]
