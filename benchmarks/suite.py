"""Which cases there are, and how little each may lag behind onnxruntime."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.cases import add, convolution, dequantize, matrix_multiply, vmap_convolution, vmap_matrix_multiply
from benchmarks.network import network

Make = partial  # of a function that makes a case


def label(make: Make) -> str:
    """What to call a case before it is made: the maker and its numbers."""
    words = [make.func.__name__, *map(str, make.args)]
    return " ".join(words)


def cases(quick: bool) -> Iterator[Make]:
    """Makers of the cases; with `quick`, one or two of each family."""
    yield partial(matrix_multiply, 64, 1024, 1024, at_most=1.5)
    yield partial(matrix_multiply, 1, 4096, 4096, at_most=4)
    if not quick:
        yield partial(matrix_multiply, 8, 1024, 1024, at_most=3)
        yield partial(matrix_multiply, 128, 768, 3072, at_most=1.5)
        yield partial(matrix_multiply, 1024, 1024, 1024, at_most=1.2)
        yield partial(matrix_multiply, 2048, 1024, 1024, at_most=1.2)
    yield partial(convolution, 1, 64, 56, 64, 3, at_most=2)
    if not quick:
        yield partial(convolution, 1, 128, 28, 128, 3, at_most=2)
        yield partial(convolution, 1, 256, 14, 256, 3, at_most=2)
        yield partial(convolution, 1, 512, 7, 512, 3, at_most=2)
        yield partial(convolution, 8, 64, 56, 64, 3, at_most=2)
        yield partial(convolution, 8, 128, 28, 128, 3, at_most=2)
        yield partial(convolution, 8, 256, 14, 256, 3, at_most=2)
        yield partial(convolution, 8, 512, 7, 512, 3, at_most=2)
        yield partial(convolution, 1, 3, 224, 64, 7, stride=2, at_most=2)
        yield partial(convolution, 1, 512, 14, 512, 3, group_count=512, at_most=2.5)
        yield partial(convolution, 1, 64, 28, 128, 3, group_count=4, at_most=3)
    yield partial(convolution, 1, 64, 56, 256, 1, at_most=2)
    yield partial(convolution, 1, 144, 56, 144, 3, group_count=144, at_most=2.5)
    for dtype in (np.uint8,) if quick else (np.uint8, np.int8, np.uint16, np.int16, np.int32):
        yield partial(dequantize, dtype, at_most=1.3)
    for dtype in (np.uint8,) if quick else (np.uint8, np.int8):
        yield partial(add, dtype, at_most=4)
    yield partial(network, 1, at_most=1.7)
    if not quick:
        yield partial(network, 8, at_most=1.7)
    for over in ("inputs", "filters", "pairs"):
        yield partial(vmap_convolution, over, 8, 1, 64, 56, 64, at_most=1)
        if not quick:
            yield partial(vmap_convolution, over, 32, 8, 32, 14, 32, at_most=1)
            yield partial(vmap_convolution, over, 8, 1, 3, 32, 32, at_most=1)
            yield partial(vmap_convolution, over, 8, 1, 16, 28, 32, group_count=4, at_most=1)
            yield partial(vmap_convolution, over, 8, 1, 144, 28, 144, group_count=144, at_most=1)
    for over in ("a", "b", "pairs"):
        yield partial(vmap_matrix_multiply, over, 8, 1, 1024, 1024, at_most=1)
        if not quick:
            yield partial(vmap_matrix_multiply, over, 8, 64, 512, 512, at_most=1)


def scaling() -> Iterator[Make]:
    """Batch and depth, doubling: the cost should double with them."""
    for k in (256, 512, 1024, 2048, 4096, 8192, 16384):
        yield partial(matrix_multiply, 64, k, 1024, peers=False)
    for batch in (1, 2, 4, 8, 16, 32):
        yield partial(convolution, batch, 64, 56, 64, 3, peers=False)
