"""The least and the greatest elements of arrays, by one reduction."""

from typing import Any

import numpy as np
from jax import lax

Array = Any


def of(x: Array, axes: tuple[int, ...] | None = None) -> tuple[Array, Array]:
    """The least and the greatest elements of float32 x along axes; along all axes if axes is None.

    One reduction computes both. On a CPU, it compiles and runs faster than two reductions.
    """

    def both(one: Any, other: Any) -> Any:
        return lax.min(one[0], other[0]), lax.max(one[1], other[1])

    ends = np.float32(np.inf), np.float32(-np.inf)
    low, high = lax.reduce((x, x), ends, both, tuple(range(x.ndim)) if axes is None else axes)
    return low, high
