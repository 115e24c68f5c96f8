"""The order of nodes: each node comes after those whose values it reads."""

import graphlib
import heapq
from collections.abc import Sequence


def topological(reads: Sequence[Sequence[str]], writes: Sequence[Sequence[str]]) -> tuple[list[int], list[int]]:
    """Sorts nodes topologically.

    Nodes that are already sorted keep their order: of the nodes that may come next, the first one is taken.

    Args:
      reads: the names of the values that each node reads; names that no node writes are ignored.
      writes: the names of the values that each node writes; if several nodes write a value, the first one counts.

    Returns:
      The positions of all nodes in the new order, and the positions of the nodes of a cycle. Each node of the cycle
      reads a value of the next one, and the last one a value of the first. If there is no cycle, the second list is
      empty. If there is a cycle, nodes keep their order.
    """
    maker: dict[str, int] = {}
    for place, names in enumerate(writes):
        for name in filter(None, names):
            maker.setdefault(name, place)
    sorter: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter()
    for place, names in enumerate(reads):
        sorter.add(place, *dict.fromkeys(maker[name] for name in names if name in maker))
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        # Each node in the list writes a value that the next one reads, and the first node is repeated at the end.
        _, *cycle = reversed(error.args[1])
        start = cycle.index(min(cycle))
        return list(range(len(reads))), cycle[start:] + cycle[:start]
    ready, order = list[int](), list[int]()
    while sorter.is_active():
        for place in sorter.get_ready():
            heapq.heappush(ready, place)
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
    return order, []
