"""All of float32, in chunks."""

from collections.abc import Iterator

import numpy as np


def every(step: int, chunk: int) -> Iterator[np.ndarray]:
    """Every `step`-th float32 in the order of the bits, from 0 to NaN for both signs, at most `chunk` at once."""
    for start in range(0, 2**32, chunk * step):
        yield np.arange(start, min(start + chunk * step, 2**32), step, np.uint64).astype(np.uint32).view(np.float32)
