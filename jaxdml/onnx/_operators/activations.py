"""Activations and softmax.

Each product, sum and quotient is rounded once, in the order of ONNX Runtime's kernels.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._quantized.axes import axis_of
from jaxdml.errors import ModelError
from jaxdml.onnx._operators._arrays import Array, broadcast, computed, divided, in_float64, product, wide
from jaxdml.onnx._table import FLOAT, MICROSOFT, NUMBER, SIGNED, operator

HALF_ROOT = float(np.sqrt(0.5))


@operator("Relu", types=(FLOAT | SIGNED,), is_exact=True, is_pointwise=True, kind="relu")
def relu(x: Array) -> Array:
    """x, or 0 where x is negative."""
    return computed("maximum", x, np.zeros((), x.dtype))


def _activation(
    *names: str, domain: str = "", since: int | None = None, **facts: Any
) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Adds a function of float32 or float64 to the table; the operator computes 16-bit floats as float32.

    Functions with transcendental parts do not count as pointwise: their bits may depend on the program around them.
    """

    def decorate(function: Callable[..., Array]) -> Callable[..., Array]:
        operator(*names, domain=domain, since=since, types=(FLOAT, FLOAT), **facts)(_widened(function))
        return function

    return decorate


def _widened(function: Callable[..., Array]) -> Callable[..., Array]:
    """Wraps a function so that it computes 16-bit floats as float32; the result has the type of the first array."""

    @functools.wraps(function)
    def compute(*arrays: Any, **attributes: Any) -> Array:
        values = (None if array is None else wide(jnp.asarray(array)) for array in arrays)
        return function(*values, **attributes).astype(arrays[0].dtype)

    return compute


@_activation("LeakyRelu", kind="leaky_relu", is_pointwise=True)
def leaky_relu(x: Array, *, alpha: float = 0.01) -> Array:
    """x, or alpha * x where x is negative."""
    return jnp.where(x >= 0, x, product(x, alpha))


@operator("PRelu", types=(NUMBER, NUMBER))
def parametric_relu(x: Array, slope: Array) -> Array:
    """x, or slope * x where x is negative; the slope broadcasts to x's shape."""
    x = jnp.asarray(x)
    return jnp.where(x > 0, x, product(x, jnp.broadcast_to(slope, x.shape)))


@_activation("Elu")
def elu(x: Array, *, alpha: float = 1.0) -> Array:
    """x, or alpha * (e**x - 1) where x is negative."""
    return jnp.where(x >= 0, x, product(jnp.exp(x) - 1, alpha))


@_activation("Selu")
def selu(x: Array, *, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323) -> Array:
    """gamma * x, or gamma * alpha * (e**x - 1) where x is negative."""
    return product(jnp.where(x > 0, x, product(jnp.exp(x) - 1, alpha)), gamma)


@_activation("Celu", since=12)
def celu(x: Array, *, alpha: float = 1.0) -> Array:
    """x, or alpha * (e**(x / alpha) - 1) where x is negative."""
    return jnp.maximum(x, 0) + jnp.minimum(product(jnp.exp(divided(x, alpha)) - 1, alpha), 0)


@_activation("Sigmoid", kind="sigmoid", in_numpy=in_float64(lambda x: 1 / (1 + np.exp(-x))))
def sigmoid(x: Array) -> Array:
    """1 / (1 + e**-x)."""
    return lax.logistic(x)


@_activation("HardSigmoid", is_pointwise=True)
def hard_sigmoid(x: Array, *, alpha: float = 0.2, beta: float = 0.5) -> Array:
    """alpha * x + beta, clamped between 0 and 1."""
    return jnp.maximum(jnp.minimum(product(x, alpha) + beta, 1), 0)


@_activation("HardSwish", since=14, is_pointwise=True)
def hard_swish(x: Array) -> Array:
    """x * hard_sigmoid(x) with alpha = 1/6."""
    return product(x, hard_sigmoid(x, alpha=1 / 6, beta=0.5))


@_activation("Swish", since=24)
def swish(x: Array, *, alpha: float = 1.0) -> Array:
    """x * sigmoid(alpha * x)."""
    return product(x, sigmoid(product(x, alpha)))


@_activation("QuickGelu", domain=MICROSOFT)
def quick_gelu(x: Array, *, alpha: float = 1.702) -> Array:
    """x * sigmoid(alpha * x), which approximates GELU."""
    return swish(x, alpha=alpha)


@_activation("Mish", since=18)
def mish(x: Array) -> Array:
    """x * tanh(softplus(x))."""
    return product(x, jnp.tanh(softplus(x)))


@_activation("Softplus")
def softplus(x: Array) -> Array:
    """log(1 + e**x)."""
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


@_activation("Softsign", is_pointwise=True)
def softsign(x: Array) -> Array:
    """x * (1 / (1 + |x|)), and 1 or -1 where the reciprocal would be subnormal; NaN for infinity."""
    normal = np.finfo(np.float32 if x.dtype == jnp.bfloat16 else x.dtype).smallest_normal
    is_large = (jnp.abs(x) > 1 / normal) & jnp.isfinite(x)
    return jnp.where(is_large, jnp.sign(x), product(x, divided(1.0, 1 + jnp.abs(x))))


@_activation("ThresholdedRelu", is_pointwise=True)
def thresholded_relu(x: Array, *, alpha: float = 1.0) -> Array:
    """x, or 0 where x is not greater than alpha."""
    return jnp.where(x > alpha, x, 0)


@_activation("Gelu", since=20)
def gelu(x: Array, *, approximate: str = "none") -> Array:
    """x times the standard normal CDF of x; `approximate="tanh"` approximates the CDF."""
    if approximate not in ("none", "tanh"):
        raise ModelError(f"approximate is {approximate!r}, expected none or tanh")
    if approximate == "tanh":
        return fast_gelu(x)
    return product(product(x, 0.5), 1 + jax.scipy.special.erf(product(x, HALF_ROOT)))


@_activation("BiasGelu", domain=MICROSOFT)
@_activation("Gelu", domain=MICROSOFT)
def biased_gelu(x: Array, bias: Array | None = None) -> Array:
    """Gelu of x + bias; the bias broadcasts along the last axis."""
    return gelu(_biased(x, bias))


@_activation("FastGelu", domain=MICROSOFT)
def fast_gelu(x: Array, bias: Array | None = None) -> Array:
    """Gelu of x + bias, approximated by tanh."""
    x = _biased(x, bias)
    inner = product(x, product(product(x, x), 0.044715 * (2 / np.pi) ** 0.5) + float((2 / np.pi) ** 0.5))
    return product(product(x, 0.5), 1 + jnp.tanh(inner))


# Activations that ONNX Runtime fuses into convolutions and products, and their parameters.
_FUSED: Mapping[str, tuple[Callable[..., Array], tuple[str, ...]]] = {
    "Celu": (celu, ("alpha",)),
    "Clip": (lambda x, *, low, high: jnp.minimum(jnp.maximum(x, low), high), ("low", "high")),
    "Elu": (elu, ("alpha",)),
    "HardSigmoid": (hard_sigmoid, ("alpha", "beta")),
    "HardSwish": (hard_swish, ()),
    "LeakyRelu": (leaky_relu, ("alpha",)),
    "Relu": (relu, ()),
    "Selu": (selu, ("alpha", "gamma")),
    "Sigmoid": (sigmoid, ()),
    "Softplus": (softplus, ()),
    "Softsign": (softsign, ()),
    "Tanh": (jnp.tanh, ()),
    "ThresholdedRelu": (thresholded_relu, ("alpha",)),
}


def fused_activation(
    name: str, parameters: Sequence[float] | Mapping[str, float | None]
) -> Callable[[Array], Array]:  # fmt: skip
    """The activation that a fused operator names.

    Args:
      name: the activation.
      parameters: the activation's parameters in order; or all parameters of the node, keyed by name, with None for
        absent ones.

    Raises:
      ModelError: if the activation is unknown, or its parameters are not given.
    """
    if name not in _FUSED:
        raise ModelError(f"attribute 'activation' is {name!r}; supported: {', '.join(_FUSED)}")
    function, names = _FUSED[name]
    given = [parameters.get(each) for each in names] if isinstance(parameters, Mapping) else list(parameters)
    if len(given) != len(names) or None in given:
        expected = ", ".join(names) or "none"
        raise ModelError(f"the activation {name} lacks a parameter, or has too many; expected {expected}")
    return functools.partial(_widened(function), **dict(zip(names, given, strict=True)))


def _biased(x: Array, bias: Array | None) -> Array:
    return x if bias is None else jnp.add(*broadcast(x, bias))


def _softmax(x: Array, axes: tuple[int, ...]) -> Array:
    powers = jnp.exp(x - jnp.max(x, axes, keepdims=True))
    return product(powers, divided(1.0, jnp.sum(powers, axes, keepdims=True)))


def _log_softmax(x: Array, axes: tuple[int, ...]) -> Array:
    shifted = x - jnp.max(x, axes, keepdims=True)
    return shifted - jnp.log(jnp.sum(jnp.exp(shifted), axes, keepdims=True))


def _hardmax(x: Array, axes: tuple[int, ...]) -> Array:
    """1 at the first maximum, 0 elsewhere."""
    shape = x.shape[: axes[0]] + (-1,) + x.shape[axes[-1] + 1 :]
    flat = x.reshape(shape)
    maximum = jnp.argmax(flat, axes[0], keepdims=True)
    indices = lax.broadcasted_iota(maximum.dtype, flat.shape, axes[0])
    return (indices == maximum).astype(x.dtype).reshape(x.shape)


def _along_axes(name: str, function: Callable[[Array, tuple[int, ...]], Array], kind: str | None = None) -> None:
    """Adds an operator that computes along one axis; before opset 13, along that axis and all later axes."""

    def from_first(*, axis: int = 1) -> dict[str, Any]:
        return {"axis": axis}

    def last(*, axis: int = -1) -> dict[str, Any]:
        return {"axis": axis}

    @operator(name, until=12, kind=kind and f"{kind}_of_rest", types=(FLOAT,), options=from_first)
    def from_axis(x: Array, *, axis: int) -> Array:
        return _widened(function)(x, axes=tuple(range(axis_of(axis, x.ndim), x.ndim)))

    @operator(name, since=13, kind=kind, types=(FLOAT,), options=last)
    def along_axis(x: Array, *, axis: int) -> Array:
        return _widened(function)(x, axes=(axis_of(axis, x.ndim),))


_along_axes("Softmax", _softmax, kind="softmax")
_along_axes("LogSoftmax", _log_softmax)
_along_axes("Hardmax", _hardmax)
