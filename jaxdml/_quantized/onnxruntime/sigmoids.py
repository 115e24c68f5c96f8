"""The logistic function and tanh of ONNX Runtime's kernels: quotients of polynomials, by fused multiply-adds.

Source: Eigen, plogistic and ptanh in GenericPacketMathFunctions.h.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic import rounding
from jaxdml._arithmetic.kernel_call import with_kernel
from jaxdml._arithmetic.native_rows import ROWS, program_of
from jaxdml._quantized.onnxruntime.fused import multiply_add

Array = jax.Array
LOGISTIC, TANH = "onnxruntime_logistic", "onnxruntime_tanh"  # the native kernel's codes
# Coefficients of p and q, the highest first: for x in [-18, 18] the logistic function is x * p(x**2) / q(x**2) + 0.5.
P = (
    0, 4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05, 8.51377133304701e-03, 2.48287947061529e-01,
)  # fmt: skip
Q = (
    6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06, 1.70198817374094e-03, 1.16817656904453e-01,
    9.93151921023180e-01,
)  # fmt: skip
# For x in [-9, 9] tanh is x * r(x**2) / s(x**2).
R = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08, 1.48572235717979e-05,
    6.37261928875436e-04, 4.89352455891786e-03,
)  # fmt: skip
S = (0, 0, 0, 1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)


def logistic(x: Any) -> Array:
    """1 / (1 + e**-x) of float32 x."""
    return _called(x, LOGISTIC)


def tanh(x: Any) -> Array:
    """The hyperbolic tangent of float32 x."""
    return _called(x, TANH)


def _called(x: Any, code: str) -> Array:
    return _computed(x, code=code, program=program_of(code, np.shape(x)))


@with_kernel(ROWS)
def _computed(x: Any, *, code: str, program: Any) -> Array:
    if code == TANH:
        return _quotient(x, 9, R, S)
    return lax.max(_quotient(x, 18, P, Q) + np.float32(0.5), np.float32(0))


def _quotient(x: Any, limit: float, numerator: tuple[float, ...], denominator: tuple[float, ...]) -> Array:
    """fl(fl(x * p(x**2)) / q(x**2)), with x clamped to the limit; coefficients of p and q are given highest first."""
    x = lax.clamp(np.float32(-limit), x, np.float32(limit))
    squares = jnp.broadcast_to(rounding.flushed(x * x), (2, *x.shape))
    highest, *others = np.asarray([numerator, denominator], np.float32).T.reshape(-1, 2, *(1,) * x.ndim)

    def add(total: Array, coefficients: Array) -> tuple[Array, None]:
        return multiply_add(total, squares, jnp.broadcast_to(coefficients, total.shape)), None

    # This is a loop, because XLA compiles the unrolled multiply-adds very slowly.
    (p, q), _ = lax.scan(add, jnp.broadcast_to(highest, squares.shape), jnp.stack(others))
    return rounding.quotient(rounding.flushed(p * x), q)
