"""Convolutions for XLA:GPU, which has int8 tensor cores for products and refuses most integer convolutions.

Read in XLA's source and lowered by the tests, not measured.
"""

from collections.abc import Sequence

import jax

from jaxdml._lowering import forms
from jaxdml._lowering.prepared import PreparedFilter


def form(x: jax.Array, filter: PreparedFilter, strides: Sequence[int], dilations: Sequence[int]) -> jax.Array:
    """Shifted sums for one channel to a group, else a product of matrices for each group."""
    contract = forms.depthwise if forms.suits_depthwise(filter) else forms.matrix
    return contract(x, filter, strides, dilations)
