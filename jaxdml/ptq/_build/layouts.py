"""Maps each value of a program to its name and order of axes in the graph.

Convolutions take channels as the second axis, and programs often have channels last. The builder records
transpositions, and emits a transposition only before a node that depends on the order of axes.
"""

from collections.abc import Callable
from dataclasses import dataclass

from jaxdml._graph.graph import Node
from jaxdml.ptq._build.operators import TRANSPOSE

Order = tuple[int, ...]


@dataclass(frozen=True)
class Held:
    """A value's name and order of axes in the graph: its axis i in the graph is axis order[i] in the program."""

    name: str
    order: Order

    def places(self, axes: tuple[int, ...] | list[int]) -> list[int]:
        """The positions that axes of the program have in the graph."""
        return [self.order.index(axis) for axis in axes]


class Layouts:
    """The layout of each value of a program.

    Attributes:
      sources: maps the result of each emitted transposition to the transposition's input.
    """

    def __init__(self, rank_of: Callable[[str], int], emit: Callable[[Node], None]) -> None:
        self._rank_of, self._emit = rank_of, emit
        self._held: dict[str, Held] = {}
        self._arranged: dict[tuple[str, Order], str] = {}
        self.sources: dict[str, str] = {}

    def of(self, name: str) -> Held:
        """The name and order of axes that a value of the program has in the graph."""
        return self._held.get(name) or Held(name, tuple(range(self._rank_of(name))))

    def hold(self, name: str, held: str, order: Order) -> None:
        """Records that the graph has the program's value `name` under the name `held`, with the axes in `order`."""
        self._held[name] = Held(held, order)

    def restore(self, name: str) -> None:
        """Lets later nodes read a value with its axes in the program's order."""
        self.hold(name, self.arranged(name), tuple(range(self._rank_of(name))))

    def arranged(self, name: str, order: Order | list[int] | None = None) -> str:
        """The name that a program's value has in the graph with the axes in `order`, by default the program's order."""
        held = self.of(name)
        order = tuple(range(len(held.order))) if order is None else tuple(order)
        if held.order == order:
            return held.name
        key = held.name, tuple(held.places(order))
        if key not in self._arranged:
            transposed = self._arranged[key] = f"{held.name}:{''.join(map(str, key[1]))}"
            self.sources[transposed] = held.name
            options = {"permutation": key[1]}
            self._emit(Node(TRANSPOSE, (held.name,), (transposed,), options, held.name, ("transpose",)))
        return self._arranged[key]
