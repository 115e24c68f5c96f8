"""Functions of rows of floats that `jaxdml.exact` joins into programs, and the same functions by the reference."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml.reference import floats

F = np.float32
EPSILON = F(1e-5)
NAMES = {"max": "maximum", "min": "minimum"}  # in the reference
ONE = ("exp", "exp2", "expm1", "logistic", "tanh", "log", "log1p", "erf", "erfc", "sqrt", "rsqrt")
TWO = ("add", "sub", "mul", "div", "max", "min")


class RowFunction(NamedTuple):
    """A function of rows x and other operands, which broadcast to the shape of x.

    Attributes:
      by_jax: the function, whose floats are not exact yet.
      by_numpy: the same function of arrays without subnormals, by the reference.
      operands: the names of its other operands: "row", one for all rows; "each", of x's shape; "mask".
    """

    by_jax: Callable[..., Any]
    by_numpy: Callable[..., Any]
    operands: tuple[str, ...] = ()


def _mean(x):
    return floats.div(floats.reduce_sum(x), F(x.shape[-1]))[..., None]


def _largest(x):
    return functools.reduce(floats.maximum, np.moveaxis(x, -1, 0))[..., None]


def _like(number, x):
    return np.full_like(x, number)


def _softmax(x):
    powers = floats.exp(floats.sub(x, _largest(x)))
    return floats.div(powers, floats.reduce_sum(powers)[..., None])


def _log_softmax(x):
    shifted = floats.sub(x, _largest(x))
    return floats.sub(shifted, floats.log(floats.reduce_sum(floats.exp(shifted)))[..., None])


def _masked_softmax(x, mask, bias):
    scores = floats.add(floats.mul(x, _like(0.125, x)), bias)
    return _softmax(np.where(mask, scores, F(-1e9)))


def _layer_norm(x, gain, bias):
    centered = floats.sub(x, _mean(x))
    variance = _mean(floats.mul(centered, centered))
    scaled = floats.mul(centered, floats.rsqrt(floats.add(variance, EPSILON)))
    return floats.add(floats.mul(scaled, gain), bias)


def _rms_norm(x, gain):
    return floats.mul(floats.mul(x, floats.rsqrt(floats.add(_mean(floats.mul(x, x)), EPSILON))), gain)


def _layer_norm_by_jax(x, gain, bias):
    centered = x - x.mean(-1, keepdims=True)
    return centered * lax.rsqrt(jnp.mean(centered * centered, -1, keepdims=True) + EPSILON) * gain + bias


def _gelu(x):
    return floats.mul(floats.mul(_like(0.5, x), x), floats.erfc(floats.mul(-x, _like(np.sqrt(0.5), x))))


FUNCTIONS = {
    "softmax": RowFunction(lambda x: jax.nn.softmax(x, -1), _softmax),
    "masked softmax": RowFunction(
        lambda x, mask, bias: jax.nn.softmax(jnp.where(mask, x * F(0.125) + bias, F(-1e9)), -1), _masked_softmax,
        ("mask", "row"),
    ),
    "log softmax": RowFunction(lambda x: jax.nn.log_softmax(x, -1), _log_softmax),
    "layer norm": RowFunction(_layer_norm_by_jax, _layer_norm, ("row", "row")),
    "RMS norm": RowFunction(
        lambda x, gain: x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + EPSILON) * gain, _rms_norm, ("row",)
    ),
    "gelu": RowFunction(lambda x: jax.nn.gelu(x, approximate=False), _gelu),
    "silu": RowFunction(jax.nn.silu, lambda x: floats.mul(x, floats.logistic(x))),
}  # fmt: skip


def composed(rng) -> RowFunction:
    """A random composition of elementwise functions; those of two operands read x and a second array."""
    names = [str(name) for name in rng.choice([*ONE, *TWO, *TWO], rng.integers(1, 7))]

    def evaluated(namespace, x, y, renamed):
        for name in names:
            function = getattr(namespace, renamed.get(name, name))
            x = function(x, y) if name in TWO else function(x)
        return x

    return RowFunction(lambda x, y: evaluated(lax, x, y, {}), lambda x, y: evaluated(floats, x, y, NAMES), ("each",))


def operands_of(function: RowFunction, rng, shape) -> tuple[Any, ...]:
    """Random other operands of a function of x of this shape."""

    def operand(kind):
        if kind == "mask":
            return rng.random(shape if rng.random() < 0.5 else (*(1,) * (len(shape) - 1), shape[-1])) < 0.8
        return rng.standard_normal(shape if kind == "each" else (*(1,) * (len(shape) - 1), shape[-1])).astype(F)

    return tuple(map(operand, function.operands))


def expected(function: RowFunction, x, *operands) -> Any:
    """The function's results by the reference."""
    full = (np.broadcast_to(each, x.shape) for each in operands)
    with np.errstate(all="ignore"):
        return function.by_numpy(floats.flushed(x), *(x if x.dtype == bool else floats.flushed(x) for x in full))
