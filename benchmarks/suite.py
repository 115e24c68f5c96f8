"""Which cases there are, and how little each may lag behind onnxruntime."""

from collections.abc import Callable, Iterator

import numpy as np

from benchmarks import network
from benchmarks.cases import Case, add, convolution, dequantize, matrix_multiply

Make = Callable[[], Case]


def cases(quick: bool) -> Iterator[Make]:
    """Makers of the cases; with `quick`, one or two of each family."""
    yield lambda: matrix_multiply(64, 1024, 1024, 1.5)
    yield lambda: matrix_multiply(1, 4096, 4096, 4)
    if not quick:
        yield lambda: matrix_multiply(8, 1024, 1024, 3)
        yield lambda: matrix_multiply(128, 768, 3072, 1.5)
        yield lambda: matrix_multiply(1024, 1024, 1024, 1.2)
        yield lambda: matrix_multiply(2048, 1024, 1024, 1.2)
    yield lambda: convolution(1, 64, 56, 64, 3, at_most=2)
    if not quick:
        yield lambda: convolution(1, 128, 28, 128, 3, at_most=2)
        yield lambda: convolution(1, 256, 14, 256, 3, at_most=2)
        yield lambda: convolution(1, 512, 7, 512, 3, at_most=2)
        yield lambda: convolution(8, 64, 56, 64, 3, at_most=2)
        yield lambda: convolution(8, 128, 28, 128, 3, at_most=2)
        yield lambda: convolution(8, 256, 14, 256, 3, at_most=2)
        yield lambda: convolution(8, 512, 7, 512, 3, at_most=2)
        yield lambda: convolution(1, 3, 224, 64, 7, stride=2, at_most=2)
        yield lambda: convolution(1, 512, 14, 512, 3, group_count=512, at_most=2.5)
        yield lambda: convolution(1, 64, 28, 128, 3, group_count=4, at_most=3)
    yield lambda: convolution(1, 64, 56, 256, 1, at_most=2)
    yield lambda: convolution(1, 144, 56, 144, 3, group_count=144, at_most=2.5)
    for dtype in (np.uint8,) if quick else (np.uint8, np.int8, np.uint16, np.int16, np.int32):
        yield lambda dtype=dtype: dequantize(dtype, 1.3)
    for dtype in (np.uint8,) if quick else (np.uint8, np.int8):
        yield lambda dtype=dtype: add(dtype, 4)
    yield lambda: network.case(1, 1.7)
    if not quick:
        yield lambda: network.case(8, 1.7)


def scaling() -> Iterator[Make]:
    """Batch and depth, doubling: the cost should double with them."""
    for k in (256, 512, 1024, 2048, 4096, 8192, 16384):
        yield lambda k=k: matrix_multiply(64, k, 1024, peers=False)
    for batch in (1, 2, 4, 8, 16, 32):
        yield lambda batch=batch: convolution(batch, 64, 56, 64, 3, peers=False)
