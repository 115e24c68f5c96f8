"""An observer of channels, from which scales of channels are chosen."""

from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.panels import namespace_of
from jaxdml.ptq._grids.measured import Measured
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
        return self.with_measured(Measured.of(x, self.axis))

    def with_measured(self, batch: Measured) -> Self:
        """The observer after a batch, except for count and is_finite; NumPy computes it if NumPy has the batch."""
        xp = namespace_of(batch.low)
        low, high = xp.minimum(self.low, batch.low), xp.maximum(self.high, batch.high)
        return replace(self, low=low, high=high, squares=self.squares + (batch.squares + batch.rest))

    def with_devices(self, axis_name: str) -> Self:
        low, high = lax.pmin(self.low, axis_name), lax.pmax(self.high, axis_name)
        return replace(self, low=low, high=high, squares=lax.psum(self.squares, axis_name))

    def range(self, dtype: DType) -> tuple[Array, Array]:
        return jnp.min(self.low, -1), jnp.max(self.high, -1)
