"""XLA:GPU on CUDA: int8 tensor cores for products, and none for most integer convolutions.

Read in XLA's source and lowered by the tests, not measured.
"""

from collections.abc import Sequence

import jax

from jaxdml._arithmetic import windows
from jaxdml._arithmetic.prepared import PreparedFilter


def conv(x: jax.Array, filter: PreparedFilter, strides: Sequence[int], dilations: Sequence[int]) -> jax.Array:
    """Shifted sums for one channel to a group, else a product of matrices for each group."""
    contract = windows.depthwise if windows.suits_depthwise(filter) else windows.matrix
    return contract(x, filter, strides, dilations)
