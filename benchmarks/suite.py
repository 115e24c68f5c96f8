"""The cases, and limits on the ratio of jaxdml's time to that of onnxruntime's exact form or of a loop."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.contractions import convolution, matrix_multiply
from benchmarks.elementwise import add, dequantize, quantize
from benchmarks.family import (
    average_pooling,
    dequantize_blocks,
    dynamic_quantize,
    integer_convolution,
    integer_product,
    product_in_floats,
    product_of_blocks,
)
from benchmarks.network import mobilenet, network
from benchmarks.vmapped import vmap_convolution, vmap_matrix_multiply

Make = partial  # of a function that makes a case


def label(make: Make) -> str:
    """The label of a case before it is made: the maker and its arguments."""
    words = [make.func.__name__, *map(str, make.args)]
    return " ".join(words)


def cases(quick: bool) -> Iterator[Make]:
    """Makers of the cases on a CPU; with `quick`, one or two of each family."""
    yield from operators(quick)
    yield from family(quick)
    yield from vmapped(quick)


def on_gpu(quick: bool) -> Iterator[Make]:
    """Makers of the cases on a GPU, against `lax` and without aims; one product is large enough to keep it busy."""
    yield partial(matrix_multiply, 8192, 8192, 8192, peers="gpu", at_most=None)
    for make in (*operators(quick), *family(quick)):
        yield partial(make, peers="gpu", at_most=None)


def operators(quick: bool) -> Iterator[Make]:
    """Products, convolutions, element-wise operators, networks."""
    yield partial(matrix_multiply, 64, 1024, 1024, at_most=1.0)
    yield partial(matrix_multiply, 1, 4096, 4096, at_most=0.9)
    if not quick:
        yield partial(matrix_multiply, 8, 1024, 1024, at_most=1.1)
        yield partial(matrix_multiply, 128, 768, 3072, at_most=1.0)
        yield partial(matrix_multiply, 1024, 1024, 1024, at_most=1.0)
        yield partial(matrix_multiply, 2048, 1024, 1024, at_most=1.0)
    yield partial(convolution, 1, 64, 56, 64, 3, at_most=0.6)
    if not quick:
        yield partial(convolution, 1, 128, 28, 128, 3, at_most=0.6)
        yield partial(convolution, 1, 256, 14, 256, 3, at_most=0.6)
        yield partial(convolution, 1, 512, 7, 512, 3, at_most=0.8)
        yield partial(convolution, 8, 64, 56, 64, 3, at_most=0.6)
        yield partial(convolution, 8, 128, 28, 128, 3, at_most=0.6)
        yield partial(convolution, 8, 256, 14, 256, 3, at_most=0.6)
        yield partial(convolution, 8, 512, 7, 512, 3, at_most=0.8)
        yield partial(convolution, 1, 64, 56, 128, 3, stride=2, at_most=0.95)
        yield partial(convolution, 1, 3, 224, 64, 7, stride=2, at_most=0.95)
        yield partial(convolution, 1, 512, 14, 512, 3, group_count=512, at_most=0.9)
        yield partial(convolution, 1, 64, 28, 128, 3, group_count=4, at_most=0.9)
    yield partial(convolution, 1, 64, 56, 256, 1, at_most=0.95)
    yield partial(convolution, 1, 144, 56, 144, 3, group_count=144, at_most=0.9)
    for dtype in (np.uint8,) if quick else (np.uint8, np.int8, np.uint16, np.int16, np.int32):
        yield partial(dequantize, dtype, at_most=1.0)
    yield partial(quantize, np.uint8, at_most=1.0)
    for dtype in (np.uint8,) if quick else (np.uint8, np.int8):
        yield partial(add, dtype, at_most=1.5)
    yield partial(network, 1, at_most=0.75)
    if not quick:
        yield partial(network, 8, at_most=0.75)
    yield partial(mobilenet, 1, at_most=0.9)


def family(quick: bool) -> Iterator[Make]:
    """Integer products, dynamic quantization, 4-bit blocks, pooling."""
    yield partial(integer_product, 64, 1024, 1024, at_most=1.0)
    if not quick:
        yield partial(integer_product, 1024, 1024, 1024, at_most=1.0)
        yield partial(integer_product, 1, 4096, 4096, at_most=1.0)
        yield partial(integer_convolution, 64, 56, at_most=1.0)
        yield partial(integer_convolution, 256, 14, at_most=1.0)
        yield partial(product_in_floats, 1024, 1024, 1024)
    yield partial(product_in_floats, 64, 1024, 1024)
    yield partial(dynamic_quantize, 1 << 20, at_most=2.0)
    yield partial(dequantize_blocks, 4096, 4096, at_most=2.0)
    if not quick:
        yield partial(product_of_blocks, 1, 4096, 4096)
        yield partial(product_of_blocks, 64, 4096, 4096)
        yield partial(average_pooling, 8, 2048, 7, 7, at_most=2.0)
    yield partial(average_pooling, 1, 64, 56, 3, at_most=2.0)
    yield partial(average_pooling, 1, 512, 7, 7, at_most=2.0)


def vmapped(quick: bool) -> Iterator[Make]:
    """vmap over products and convolutions."""
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
        yield partial(matrix_multiply, 64, k, 1024, peers="")
    for batch in (1, 2, 4, 8, 16, 32):
        yield partial(convolution, batch, 64, 56, 64, 3, peers="")
