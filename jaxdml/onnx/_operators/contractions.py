"""Matrix products of floats and of integers, and Einsum."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxdml.errors import ModelError
from jaxdml.onnx._operators._arrays import EXACT, Array, accumulator_type, product, wide
from jaxdml.onnx._operators.activations import fused_activation
from jaxdml.onnx._table import FLOAT, MICROSOFT, NUMBER, operator


@operator("MatMul", types=(NUMBER, NUMBER), kind="dot", has_rule=False)
def matmul(a: Array, b: Array) -> Array:
    """a @ b."""
    total = jnp.matmul(a, b, precision=EXACT, preferred_element_type=accumulator_type(a))
    return total.astype(a.dtype)


@operator("FusedMatMul", domain=MICROSOFT, types=(FLOAT, FLOAT), has_rule=False)
def fused_matmul(
    a: Array, b: Array, *,
    alpha: float = 1.0, transA: int = 0, transB: int = 0, transBatchA: int = 0, transBatchB: int = 0,  # noqa: N803
) -> Array:  # fmt: skip
    """alpha * a @ b; `transBatchA` moves a's first dimension before its last, then `transA` swaps the last two."""
    if (transBatchA or transBatchB) and not 3 <= a.ndim == b.ndim:
        raise ModelError(
            f"a and b have {a.ndim} and {b.ndim} dimensions, expected equal numbers of at least 3, because transBatchA "
            "or transBatchB is set"
        )
    a, b = _oriented(a, transBatchA, transA), _oriented(b, transBatchB, transB)
    total = jnp.matmul(a, b, precision=EXACT, preferred_element_type=accumulator_type(a))
    return _times(total, alpha).astype(a.dtype)


def _oriented(x: Array, moves_first: int, swaps: int) -> Array:
    """x with its dimensions in the order that a product requires; vectors stay unchanged."""
    x = jnp.moveaxis(x, 0, -2) if moves_first else x
    return jnp.swapaxes(x, -2, -1) if swaps and x.ndim > 1 else x


def gemm_options(
    *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0,  # noqa: N803
) -> dict[str, Any]:  # fmt: skip
    """Converts the attributes of Gemm."""
    return {"alpha": alpha, "beta": beta, "trans_a": transA, "trans_b": transB}


@operator("Gemm", types=(NUMBER, NUMBER, NUMBER), kind="gemm", has_rule=False, options=gemm_options)
def gemm(
    a: Array, b: Array, c: Array | None = None, *,
    alpha: float = 1.0, beta: float = 1.0, trans_a: int = 0, trans_b: int = 0,
) -> Array:  # fmt: skip
    """alpha * a @ b + beta * c; a and b may be given transposed."""
    if a.ndim != 2 or b.ndim != 2:
        raise ModelError(f"a and b have shapes {a.shape} and {b.shape}, expected two matrices")
    inner = accumulator_type(a)
    a, b = (jnp.swapaxes(x, 0, 1) if is_transposed else x for x, is_transposed in ((a, trans_a), (b, trans_b)))
    total = jnp.matmul(a, b, precision=EXACT, preferred_element_type=inner)
    total = _times(total, alpha)
    if c is not None:
        total = total + jnp.broadcast_to(_times(jnp.asarray(c).astype(inner), beta), total.shape)
    return total.astype(a.dtype)


def fused_gemm_options(
    *, activation: str | None = None, activation_alpha: float | None = None, activation_beta: float | None = None,
    activation_gamma: float | None = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
) -> dict[str, Any]:  # fmt: skip
    """The options of `gemm`, and the activation."""
    if activation is None:
        raise ModelError("attribute 'activation' is missing")
    parameters = {"alpha": activation_alpha, "beta": activation_beta, "gamma": activation_gamma}
    activate = fused_activation(activation, parameters)
    return gemm_options(alpha=alpha, beta=beta, transA=transA, transB=transB) | {"activate": activate}


@operator("FusedGemm", domain=MICROSOFT, types=(FLOAT, FLOAT, FLOAT), has_rule=False, options=fused_gemm_options)
def fused_gemm(
    a: Array, b: Array, c: Array | None = None, *, activate: Callable[[Array], Array], **options: Any
) -> Array:  # fmt: skip
    """`gemm`, then an activation."""
    return activate(gemm(a, b, c, **options))


def _times(x: Array, factor: float) -> Array:
    """x * factor; for integers, the product is rounded toward zero."""
    if factor == 1:
        return x
    if jnp.issubdtype(x.dtype, jnp.integer):
        return x * int(factor) if factor.is_integer() else (x.astype(jnp.float32) * factor).astype(x.dtype)
    return product(x, factor)


@operator("Einsum", since=12, types=(NUMBER,), has_rule=False)
def einsum(x: Array, *others: Array, equation: str) -> Array:
    """Einstein summation."""
    operands = [wide(jnp.asarray(operand)) for operand in (x, *others)]
    if jnp.issubdtype(x.dtype, jnp.integer) and x.dtype.itemsize == 1:  # XLA may return twice the sum on CUDA
        operands = [operand.astype(jnp.int32) for operand in operands]
    return jnp.einsum(equation, *operands, precision=EXACT).astype(x.dtype)
