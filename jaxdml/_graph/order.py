"""The order of nodes: each behind those whose values it reads."""

import heapq
from collections.abc import Sequence


def topological(reads: Sequence[Sequence[str]], writes: Sequence[Sequence[str]]) -> tuple[list[int], list[int]]:
    """Sorts nodes topologically.

    Nodes that are sorted already keep their order: of those that can be next, the first one is next.

    Args:
      reads: the names of the values that each node reads; those that no node writes need no order.
      writes: the names of the values that each node writes; if several nodes write a value, the first one counts.

    Returns:
      The places of all nodes in the new order, and the places of the nodes of a cycle: each reads a value of the next
      one, and the last one a value of the first. Without a cycle, the second list is empty. With one, the nodes that
      depend on cycles come last.
    """
    maker: dict[str, int] = {}
    for place, names in enumerate(writes):
        for name in filter(None, names):
            maker.setdefault(name, place)
    before = [{maker[name] for name in names if name in maker} for names in reads]
    after: list[list[int]] = [[] for _ in reads]
    for place, makers in enumerate(before):
        for each in makers:
            after[each].append(place)
    waits = [len(makers) for makers in before]
    ready = [place for place, count in enumerate(waits) if count == 0]  # sorted, hence a heap
    order = []
    while ready:
        place = heapq.heappop(ready)
        order.append(place)
        for each in after[place]:
            waits[each] -= 1
            if waits[each] == 0:
                heapq.heappush(ready, each)
    left = [place for place, count in enumerate(waits) if count > 0]
    return order + left, _cycle(before, set(left))


def _cycle(before: Sequence[set[int]], left: set[int]) -> list[int]:
    """A cycle among the nodes that are left: each of them waits for another one, or for itself."""
    if not left:
        return []
    path, places = [min(left)], {min(left): 0}
    while (following := min(before[path[-1]] & left)) not in places:
        places[following] = len(path)
        path.append(following)
    cycle = path[places[following] :]
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]
