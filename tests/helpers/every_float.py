"""All of float32, in chunks."""

from collections.abc import Iterator

import numpy as np


def every(step: int, chunk: int) -> Iterator[np.ndarray]:
    """Each so many-th float32, from zeros over all exponents to NaN of both signs, at most `chunk` at once."""
    for start in range(0, 2**32, chunk * step):
        yield np.arange(start, min(start + chunk * step, 2**32), step, np.uint64).astype(np.uint32).view(np.float32)
