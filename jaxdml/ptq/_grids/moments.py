"""Statistics of the rows that a contraction multiplies, which determine how errors of weights change its sums."""

from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml.ptq._grids.observers import Statistics
from jaxdml.typing import Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, kw_only=True)
class Moments(Statistics):
    """The sums of rows [groups, rows, depth], and of the products of every pair of elements of a row.

    Attributes:
      sums: the sum of rows, float32 [groups, depth].
      products: the sum of products, float32 [groups, depth, depth].
    """

    sums: Any
    products: Any

    @classmethod
    def of(cls, groups: int, depth: int) -> Self:
        """The statistics of no rows."""
        return cls(sums=np.zeros((groups, depth), np.float32), products=np.zeros((groups, depth, depth), np.float32))

    def with_values(self, x: Array) -> Self:
        products = jnp.einsum("gri,grj->gij", x, x, precision=lax.Precision.HIGHEST)
        return replace(self, sums=self.sums + jnp.sum(x, 1), products=self.products + products)

    def with_devices(self, axis_name: str) -> Self:
        sums, products = (lax.psum(x, axis_name) for x in (self.sums, self.products))
        return replace(self, sums=sums, products=products)

    def multiplied(self, factors: np.ndarray) -> Self:
        """The statistics of rows whose elements are multiplied by factors [groups, depth] or [1, depth]."""
        products = self.products * factors[:, :, None] * factors[:, None, :]
        return replace(self, sums=self.sums * factors, products=products)

    @property
    def rows(self) -> float:
        """The number of rows of each group."""
        return float(self.count) / max(self.sums.size, 1)

    def means(self) -> tuple[np.ndarray, np.ndarray]:
        """The means of rows and of products, float64."""
        rows = max(self.rows, 1)
        return self.sums / rows, self.products / rows
