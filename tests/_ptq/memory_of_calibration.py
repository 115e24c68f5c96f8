"""Run by test_observers.py in a process of its own: prints the memory that calibration takes, in activations.

The peak of a process includes compilers and params, so the same network is calibrated with small images first.
"""

import resource
import sys

import jax
import numpy as np

from _ptq.layers import conv
from jaxdml.ptq import quantize

RANDOM = np.random.default_rng(0)
LAYERS, CHANNELS, IMAGES, SIZE = 8, 8, 8, 128
BATCHES = 24  # all of them together take 3 times the memory of a batch's activations
PARAMS = [{"w": RANDOM.standard_normal((CHANNELS, CHANNELS, 3, 3), np.float32) / 8} for _ in range(LAYERS)]


def network(params, x):
    for layer in params:
        x = jax.nn.relu(conv(layer, x))
    return x


class Batches:
    """Draws batches each time that it is read."""

    def __init__(self, size):
        self.shape = IMAGES, CHANNELS, size, size

    def __iter__(self):
        return (RANDOM.standard_normal(self.shape, np.float32) for _ in range(BATCHES))


def peak_after(size, **options):
    quantize(network, PARAMS, Batches(size), progress=False, **options)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    options = dict([each.split("=") for each in sys.argv[1:]])
    small = peak_after(SIZE // 8, **options)
    print((peak_after(SIZE, **options) - small) / (4 * LAYERS * IMAGES * CHANNELS * SIZE**2))
