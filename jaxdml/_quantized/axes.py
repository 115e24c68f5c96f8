"""Axes of a tensor by number."""

from jaxdml.errors import ModelError


def axis_of(axis: int, rank: int) -> int:
    """An axis from 0 to rank - 1, of one that may count from the end.

    Raises:
      ModelError: if there is no such axis.
    """
    if not -rank <= axis < rank:
        raise ModelError(f"axis {axis} is not in [{-rank}, {rank - 1}]")
    return axis % rank
