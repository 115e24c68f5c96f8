"""Which value of the graph holds each value of the program, and with its axes in which order.

Convolutions want channels second, and programs often have them last. A transposition is remembered, and made only
before what is particular about the order of its axes.
"""

from collections.abc import Callable
from dataclasses import dataclass

from jaxdml._graph.graph import Node
from jaxdml.ptq._operators import TRANSPOSE

Order = tuple[int, ...]


@dataclass(frozen=True)
class Held:
    """A value of the program as the graph holds it: axis i of the graph's is axis order[i] of the program's."""

    name: str
    order: Order

    def places(self, axes: tuple[int, ...] | list[int]) -> list[int]:
        """Where the program's axes are in what the graph holds."""
        return [self.order.index(axis) for axis in axes]


class Layouts:
    """Tells how each value of a program is held."""

    def __init__(self, rank_of: Callable[[str], int], emit: Callable[[Node], None]) -> None:
        self._rank_of, self._emit = rank_of, emit
        self._held: dict[str, Held] = {}
        self._made: dict[tuple[str, Order], str] = {}

    def of(self, name: str) -> Held:
        """How a value is held."""
        return self._held.get(name) or Held(name, tuple(range(self._rank_of(name))))

    def hold(self, name: str, held: str, order: Order) -> None:
        """A value of the program is held by one of the graph, with its axes in an order."""
        self._held[name] = Held(held, order)

    def arranged(self, name: str, order: Order | list[int] | None = None) -> str:
        """The graph's value that holds a value with its axes in an order, the program's own if None."""
        held = self.of(name)
        order = tuple(range(len(held.order))) if order is None else tuple(order)
        if held.order == order:
            return held.name
        key = held.name, tuple(held.places(order))
        if key not in self._made:
            self._made[key] = f"{held.name}:{''.join(map(str, key[1]))}"
            options = {"permutation": key[1]}
            self._emit(Node(TRANSPOSE, (held.name,), (self._made[key],), options, source=("transpose",)))
        return self._made[key]
