"""Matrices and filters in the layouts that XLA's implementations read."""

import dataclasses
import math
from functools import partial

import jax
from jax import lax

Array = jax.Array


def in_layout(values: Array, layout: str) -> Array:
    """Converts a matrix from [..., K, N] to `layout` ("KN" or "NK"), or back."""
    if layout == "KN":
        return values
    *batch, first, second = range(values.ndim)
    return values.transpose((*batch, second, first))


@partial(jax.tree_util.register_dataclass, data_fields=["values"], meta_fields=["layout"])
@dataclasses.dataclass(frozen=True)
class Filter:
    """An int8 filter.

    Attributes:
      values: int8 [groups, ...], each group in the order of layout.
      layout: the order of a group's dimensions: "OIHW" or "HWIO"; "OIW" or "WIO" for one spatial dimension.
    """

    values: Array
    layout: str

    @property
    def group_count(self) -> int:
        return self.values.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """[O, C / groups, *kernel]."""
        groups, *sizes = self.values.shape
        of = dict(zip(self.layout, sizes, strict=True))
        return (groups * of["O"], of["I"], *(of[axis] for axis in self.layout if axis in "HW"))

    def array(self) -> Array:
        """The values, whatever their layout, rearranged to [O, C / groups, *kernel]."""
        values = self.values
        if self.layout.endswith("IO"):
            *space, inputs, outputs = range(1, values.ndim)
            values = lax.transpose(values, (0, outputs, inputs, *space))
        return lax.reshape(values, self.shape)

    def rows(self) -> Array:
        """The values, whatever their layout, rearranged to [groups, O / groups, C / groups * kernel]."""
        values = self.array()
        # There are two reshapes, because on explicit axes one reshape may merge dimensions or split them, but not both.
        rows = lax.reshape(values, (len(values), math.prod(values.shape[1:])))
        return lax.reshape(rows, (self.group_count, len(values) // self.group_count, rows.shape[1]))
