"""What jaxdml computes, in NumPy and nothing else: the operators.

Every other implementation must return the same bits.
"""

from jaxdml.reference.operators import *  # noqa: F403
from jaxdml.reference.operators import __all__ as __all__
