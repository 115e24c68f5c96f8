"""Axes of a tensor."""

from jaxdml.errors import ModelError


def axis_of(axis: int, rank: int) -> int:
    """Converts an axis that may be negative to one in [0, rank - 1].

    Raises:
      ModelError: if there is no such axis.
    """
    if not -rank <= axis < rank:
        raise ModelError(f"axis {axis} is not in [{-rank}, {rank - 1}]")
    return axis % rank
