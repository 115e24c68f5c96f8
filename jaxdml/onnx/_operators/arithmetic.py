"""Arithmetic and functions of each element."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml.errors import ModelError
from jaxdml.onnx._arrays import Array, broadcast, is_known, namespace
from jaxdml.onnx._operators._floats import divided, is_float, product, rounded, sealed, wide
from jaxdml.onnx._table import FLOAT, NUMBER, SIGNED, operator

SIGNED_NUMBER = FLOAT | SIGNED
LARGEST = float(np.finfo(np.float32).max)


def computed(name: str, *arrays: Array) -> Array:
    """What NumPy or JAX compute under a name; infinities, NaN and wrapped integers are no errors."""
    xp = namespace(*arrays)
    with np.errstate(all="ignore"):
        result = getattr(xp, name)(*arrays)
    return np.asarray(result) if xp is np else rounded(result)


def _of_one(name: str, of_arrays: str, types: frozenset[str]) -> None:
    """Makes the row of an exact function of each element."""

    @operator(name, types=(types,), is_exact=True)
    def compute(x: Array) -> Array:
        return computed(of_arrays, x)


def _of_two(name: str, of_arrays: str, types: frozenset[str], **facts: Any) -> None:
    """Makes the row of an exact function of two tensors that broadcast."""

    @operator(name, types=(types, types), is_exact=True, **facts)
    def compute(a: Array, b: Array) -> Array:
        return computed(of_arrays, *broadcast(a, b))


def _of_many(name: str, of_two: Callable[[Array, Array], Array], types: frozenset[str]) -> None:
    """Makes the row of a function that takes any number of tensors, the first two first."""

    @operator(name, types=(types,), is_exact=True)
    def compute(x: Array, *others: Array) -> Array:
        return functools.reduce(of_two, broadcast(x, *others))


def _of_floats(name: str, function: Callable[[Array], Array]) -> None:
    """Makes the row of a function of each float; JAX computes 16-bit floats as float32."""

    @operator(name, types=(FLOAT,))
    def compute(x: Array) -> Array:
        return function(wide(jnp.asarray(x))).astype(x.dtype)


_of_one("Neg", "negative", SIGNED_NUMBER)
_of_one("Abs", "abs", NUMBER)
_of_one("Sign", "sign", NUMBER)
_of_one("Floor", "floor", FLOAT)
_of_one("Ceil", "ceil", FLOAT)
_of_one("Sqrt", "sqrt", FLOAT)
_of_two("Add", "add", NUMBER, kind="add")
_of_two("Sub", "subtract", NUMBER)
_of_many("Min", functools.partial(computed, "minimum"), NUMBER)
_of_many("Max", functools.partial(computed, "maximum"), NUMBER)
_of_many("Sum", functools.partial(computed, "add"), FLOAT)

_of_floats("Exp", jnp.exp)
_of_floats("Log", jnp.log)
_of_floats("Sin", jnp.sin)
_of_floats("Cos", jnp.cos)
_of_floats("Tan", jnp.tan)
_of_floats("Asin", jnp.arcsin)
_of_floats("Acos", jnp.arccos)
_of_floats("Atan", jnp.arctan)
_of_floats("Sinh", jnp.sinh)
_of_floats("Cosh", jnp.cosh)
_of_floats("Tanh", jnp.tanh)
_of_floats("Asinh", jnp.arcsinh)
_of_floats("Acosh", jnp.arccosh)
_of_floats("Atanh", jnp.arctanh)
_of_floats("Erf", jax.scipy.special.erf)


@operator("Round", since=11, types=(FLOAT,), is_exact=True)
def round_to_even(x: Array) -> Array:
    """The nearest integers, ties to even."""
    return computed("round", x)


@operator("Mul", types=(NUMBER, NUMBER), is_exact=True, kind="mul")
def multiply(a: Array, b: Array) -> Array:
    """a * b."""
    return sealed_unless_known(computed("multiply", *broadcast(a, b)))


def sealed_unless_known(x: Array) -> Array:
    """A product, rounded; NumPy has done so."""
    return x if is_known(x) else sealed(x)


@operator("Div", types=(NUMBER, NUMBER), is_exact=True)
def divide(a: Array, b: Array) -> Array:
    """a / b; of integers, rounded toward zero."""
    a, b = broadcast(a, b)
    if not is_known(a, b):
        return divided(a, b) if is_float(a) else lax.div(a, b)
    if is_float(a):
        return computed("divide", a, b)
    quotient = computed("floor_divide", a, b)
    if object in (a.dtype, b.dtype):
        return quotient
    has_rest = computed("remainder", a, b) != 0
    return np.asarray(quotient + ((a < 0) != (b < 0)) * has_rest, quotient.dtype)


@operator("Reciprocal", types=(FLOAT,), is_exact=True)
def reciprocal(x: Array) -> Array:
    """1 / x."""
    return computed("divide", np.ones_like(x), x) if is_known(x) else divided(1.0, x)


@operator("Mod", types=(NUMBER, NUMBER), is_exact=True)
def modulo(a: Array, b: Array, *, fmod: int = 0) -> Array:
    """The remainder of a / b, with the sign of b, or with fmod that of a."""
    return computed("fmod" if fmod else "remainder", *broadcast(a, b))


@operator("Pow", types=(NUMBER, NUMBER))
def power(x: Array, exponent: Array) -> Array:
    """x to the power of an exponent, which may be of another type; of x's type."""
    is_scalar = exponent.size == 1
    base, exponent = (jnp.asarray(value) for value in broadcast(x, exponent))
    if not is_float(base) and not is_float(exponent):
        return _integer_power(base, exponent)
    inner = jnp.promote_types(jnp.float32, base.dtype if is_float(base) else exponent.dtype)
    wide_base, wide_exponent = base.astype(inner), exponent.astype(inner)
    result = jnp.power(wide_base, wide_exponent)
    if is_scalar and is_float(base):  # squares and cubes are products there, not powers
        square = product(wide_base, wide_base)
        result = jnp.where(wide_exponent == 2, square, result)
        result = jnp.where(wide_exponent == 3, product(square, wide_base), result)
    return result.astype(base.dtype)


def _integer_power(base: Array, exponent: Array) -> Array:
    """An integer power, wrapped; 1 / base ** -exponent toward zero where the exponent is negative."""
    with_sign = exponent.astype(base.dtype)
    whole = jnp.power(base, jnp.maximum(with_sign, 0))
    fraction = jnp.where(jnp.abs(base) == 1, jnp.where(with_sign % 2 == 0, 1, base), 0)
    return jnp.where(with_sign < 0, fraction.astype(base.dtype), whole)


@operator("Mean", types=(FLOAT,))
def mean(x: Array, *others: Array) -> Array:
    """The mean of tensors, element by element."""
    total = functools.reduce(functools.partial(computed, "add"), map(jnp.asarray, broadcast(x, *others)))
    return product(total, float(1 / np.asarray(1 + len(others), np.float32)))


@operator("Clip", until=10, types=(FLOAT,), is_exact=True, kind="clip")
def clip_to_numbers(x: Array, *, min: float = -LARGEST, max: float = LARGEST) -> Array:
    """x, or the nearer of two numbers if it is not between them."""
    return clip(x, np.asarray(min, x.dtype), np.asarray(max, x.dtype))


@operator("Clip", since=11, types=(NUMBER, NUMBER, NUMBER), is_exact=True, kind="clip")
def clip(x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """x, or the nearer of two bounds if it is not between them."""
    for name, bound in (("maximum", low), ("minimum", high)):
        if bound is not None:
            if bound.size != 1:
                raise ModelError(f"a bound has shape {bound.shape}, it should be a scalar")
            x = computed(name, x, bound.reshape(()))
    return x
