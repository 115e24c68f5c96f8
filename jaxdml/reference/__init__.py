"""jaxdml's results, computed by NumPy alone: the operators, and the rules of exact floats in `floats` and `attention`.

Every other implementation must return the same bits. Each function takes the arguments of the operator of the same
name, as NumPy arrays; zero points and bias may be None.
"""

from jaxdml.reference import attention as attention
from jaxdml.reference import floats as floats
from jaxdml.reference.operators import *  # noqa: F403
from jaxdml.reference.operators import __all__ as __all__

# Documentation and reprs name the public module.
for _name in __all__:
    globals()[_name].__module__ = __name__
del _name
