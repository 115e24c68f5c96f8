"""What XLA measures of a batch, for observers that NumPy updates.

An update of an observer in XLA's program takes several kernels of single numbers, and networks have hundreds of
observers: XLA would compile these kernels for seconds. NumPy updates the same numbers with the same bits.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml.ptq._grids import extremes
from jaxdml.typing import Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, kw_only=True)
class Measured:
    """Numbers of a batch, or of each of its channels.

    Attributes:
      low, high: the least and the greatest element, float32 [] or [channels]. NaN counts as minus infinity.
      squares: the sum of squares of each channel, float32 [channels]; None without channels.
      rest: what rounding took from squares, float32 [channels]; None without channels.
      size: the number of elements.
    """

    low: Any
    high: Any
    squares: Any = None
    rest: Any = None
    size: int = jax.tree.static(default=0)

    @classmethod
    def of(cls, x: Array, axis: int | None = None) -> Self:
        """Measures x, an array of numbers, along all axes or along all axes but that of channels."""
        x = extremes.without_nan(jnp.asarray(x).astype(jnp.float32))
        if axis is None:
            low, high = extremes.of(x)
            return cls(low=low, high=high, size=x.size)
        others = tuple(each for each in range(x.ndim) if each != axis % x.ndim)
        low, high, squares, rest = extremes.with_squares(x, others)
        return cls(low=low, high=high, squares=squares, rest=rest, size=x.size)

    def multiplied(self, factors: np.ndarray) -> Self:
        """The ends of all channels together, each multiplied by a positive factor.

        These are the ends of the products of all elements, because a product's rounding keeps the order of elements.
        """
        with np.errstate(over="ignore"):
            low, high = self.low * factors, self.high * factors
        return replace(self, low=low.min(), high=high.max(), squares=None, rest=None)


def updated(observer: Any, batch: Measured) -> Any:
    """An observer with `with_measured` after a batch, in NumPy."""
    if not batch.size:
        return observer
    is_finite = observer.is_finite & np.isfinite(batch.low).all() & np.isfinite(batch.high).all()
    with np.errstate(over="ignore", invalid="ignore"):  # squares may overflow
        after = observer.with_measured(batch)
    return replace(after, count=observer.count + np.float32(batch.size), is_finite=is_finite)
