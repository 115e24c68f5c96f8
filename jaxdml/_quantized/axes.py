"""Axes of a tensor."""

from jaxdml.errors import ModelError


def axis_of(axis: int, rank: int) -> int:
    """An axis in [0, rank - 1], given one that may be negative.

    Raises:
      ModelError: if there is no such axis.
    """
    if not -rank <= axis < rank:
        raise ModelError(f"axis {axis} is not in [{-rank}, {rank - 1}]")
    return axis % rank
