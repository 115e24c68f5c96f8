"""An observer of channels, from which scales of channels are chosen."""

from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml.ptq._grids import extremes
from jaxdml.ptq._grids.observers import Observer
from jaxdml.typing import Array, DType


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, kw_only=True)
class Channels(Observer):
    """The extremes and the sum of squares of each channel.

    Attributes:
      low, high: the least and the greatest of 0 and the values of each channel, float32.
      squares: the sum of squares of each channel, float32.
      axis: the axis of channels.
    """

    low: Any
    high: Any
    squares: Any
    axis: int = jax.tree.static(default=-1)

    @classmethod
    def of(cls, count: int, axis: int) -> Self:
        """An observer of `count` channels that has seen no values."""
        zeros = np.zeros(count, np.float32)
        return cls(low=zeros, high=zeros, squares=zeros, axis=axis)

    def with_values(self, x: Array) -> Self:
        others = tuple(axis for axis in range(x.ndim) if axis != self.axis % x.ndim)
        low, high = extremes.of(x, others)
        squares = self.squares + jnp.sum(jnp.square(x), others)
        return replace(self, low=jnp.minimum(self.low, low), high=jnp.maximum(self.high, high), squares=squares)

    def with_devices(self, axis_name: str) -> Self:
        low, high = lax.pmin(self.low, axis_name), lax.pmax(self.high, axis_name)
        return replace(self, low=low, high=high, squares=lax.psum(self.squares, axis_name))

    def range(self, dtype: DType) -> tuple[Array, Array]:
        return jnp.min(self.low, -1), jnp.max(self.high, -1)
