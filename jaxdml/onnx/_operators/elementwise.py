"""Elementwise operators: arithmetic, functions, comparisons, logic, bits."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml.errors import ModelError
from jaxdml.onnx._operators._arrays import (
    Array,
    broadcast,
    computed,
    divided,
    in_float64,
    is_float,
    is_known,
    namespace,
    product,
    sealed,
    wide,
)  # fmt: skip
from jaxdml.onnx._operators.casts import cast
from jaxdml.onnx._table import ANY, BOOL, FLOAT, INTEGER, NUMBER, SIGNED, operator

SIGNED_NUMBER = FLOAT | SIGNED
LARGEST = float(np.finfo(np.float32).max)


def _unary(name: str, function: str, types: frozenset[str], **facts: Any) -> None:
    """Adds an exact operator of one tensor; `function` is the operator's name in NumPy."""

    @operator(name, types=(types,), is_exact=True, is_pointwise=True, **facts)
    def compute(x: Array) -> Array:
        return computed(function, x)


def _binary(name: str, function: str, types: frozenset[str], **facts: Any) -> None:
    """Adds an exact operator of two tensors; `function` is the operator's name in NumPy."""

    @operator(name, types=(types, types), is_exact=True, is_pointwise=True, **facts)
    def compute(a: Array, b: Array) -> Array:
        return computed(function, *broadcast(a, b))


def _variadic(name: str, function: str, types: frozenset[str]) -> None:
    """Adds an exact operator of any number of tensors: a left fold of the binary NumPy function named `function`."""

    @operator(name, types=(types,), is_exact=True, is_pointwise=True)
    def compute(x: Array, *others: Array) -> Array:
        return functools.reduce(functools.partial(computed, function), broadcast(x, *others))


def _float_unary(name: str, function: str) -> None:
    """Adds an operator of one float tensor; `function` is its name in NumPy. 16-bit floats are computed as float32."""

    @operator(name, types=(FLOAT,), in_numpy=in_float64(getattr(np, function)))
    def compute(x: Array) -> Array:
        return getattr(jnp, function)(wide(jnp.asarray(x))).astype(x.dtype)


_unary("Neg", "negative", SIGNED_NUMBER)
_unary("Abs", "abs", NUMBER)
_unary("Sign", "sign", NUMBER)
_unary("Floor", "floor", FLOAT)
_unary("Ceil", "ceil", FLOAT)
_unary("Sqrt", "sqrt", FLOAT)
_unary("Round", "round", FLOAT, since=11)
_binary("Add", "add", NUMBER, kind="add")
_binary("Sub", "subtract", NUMBER)
_variadic("Min", "minimum", NUMBER)
_variadic("Max", "maximum", NUMBER)
_variadic("Sum", "add", FLOAT)

_binary("Equal", "equal", ANY, gives_bool=True)
_binary("Less", "less", NUMBER, gives_bool=True)
_binary("Greater", "greater", NUMBER, gives_bool=True)
_binary("LessOrEqual", "less_equal", NUMBER, since=12, gives_bool=True)
_binary("GreaterOrEqual", "greater_equal", NUMBER, since=12, gives_bool=True)
_binary("And", "logical_and", BOOL)
_binary("Or", "logical_or", BOOL)
_binary("Xor", "logical_xor", BOOL)
_unary("Not", "logical_not", BOOL)
_binary("BitwiseAnd", "bitwise_and", INTEGER, since=18)
_binary("BitwiseOr", "bitwise_or", INTEGER, since=18)
_binary("BitwiseXor", "bitwise_xor", INTEGER, since=18)
_unary("BitwiseNot", "bitwise_not", INTEGER, since=18)
_unary("IsNaN", "isnan", FLOAT, gives_bool=True)

_float_unary("Exp", "exp")
_float_unary("Log", "log")
_float_unary("Sin", "sin")
_float_unary("Cos", "cos")
_float_unary("Tan", "tan")
_float_unary("Asin", "arcsin")
_float_unary("Acos", "arccos")
_float_unary("Atan", "arctan")
_float_unary("Sinh", "sinh")
_float_unary("Cosh", "cosh")
_float_unary("Tanh", "tanh")
_float_unary("Asinh", "arcsinh")
_float_unary("Acosh", "arccosh")
_float_unary("Atanh", "arctanh")


def _error_function(x: np.ndarray) -> np.ndarray:
    return np.fromiter(map(math.erf, x.flat), np.float64, x.size).reshape(x.shape)


@operator("Erf", types=(FLOAT,), in_numpy=in_float64(_error_function))
def error_function(x: Array) -> Array:
    """The error function; 16-bit floats are computed as float32."""
    return jax.scipy.special.erf(wide(jnp.asarray(x))).astype(x.dtype)


@operator("Mul", types=(NUMBER, NUMBER), is_exact=True, is_pointwise=True, kind="mul")
def multiply(a: Array, b: Array) -> Array:
    """a * b."""
    return sealed(computed("multiply", *broadcast(a, b)))


@operator("Div", types=(NUMBER, NUMBER), is_exact=True, is_pointwise=True)
def divide(a: Array, b: Array) -> Array:
    """a / b; a quotient of integers is rounded toward zero, and a quotient by the integer 0 is 0."""
    a, b = broadcast(a, b)
    if not is_known(a, b):
        return divided(a, b) if is_float(a) else jnp.where(b == 0, 0, lax.div(a, b))
    if is_float(a):
        return computed("divide", a, b)
    quotient = computed("floor_divide", a, b)
    if object in (a.dtype, b.dtype):  # symbolic dimensions, whose signs may be unknown
        return quotient
    has_remainder = computed("remainder", a, b) != 0
    return np.asarray(quotient + ((a < 0) != (b < 0)) * has_remainder, quotient.dtype)


@operator("Reciprocal", types=(FLOAT,), is_exact=True, is_pointwise=True)
def reciprocal(x: Array) -> Array:
    """1 / x."""
    return computed("divide", np.ones_like(x), x) if is_known(x) else divided(1.0, x)


@operator("Mod", types=(NUMBER, NUMBER), is_exact=True)
def modulo(a: Array, b: Array, *, fmod: int = 0) -> Array:
    """The remainder of a / b; it has the sign of b, or of a if `fmod`."""
    return computed("fmod" if fmod else "remainder", *broadcast(a, b))


def _known_power(x: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """`power` in NumPy; powers of floats are computed in float64, and rounded once."""
    base, exponent = broadcast(x, exponent)
    if is_float(base):
        return in_float64(np.power)(base, exponent)
    return np.asarray(_power_of_integers(base, exponent, np.float64))


@operator("Pow", types=(NUMBER, NUMBER), typed_by=(0,), in_numpy=_known_power)
def power(x: Array, exponent: Array) -> Array:
    """x to the power of an exponent of any type; the result has x's type."""
    is_scalar = exponent.size == 1
    base, exponent = (jnp.asarray(value) for value in broadcast(x, exponent))
    if not is_float(base):
        return _power_of_integers(base, exponent, wide(exponent).dtype)
    inner = jnp.promote_types(jnp.float32, base.dtype)
    wide_base, wide_exponent = base.astype(inner), exponent.astype(inner)
    result = jnp.power(wide_base, wide_exponent)
    if is_scalar:  # ONNX Runtime computes squares and cubes as products
        square = product(wide_base, wide_base)
        result = jnp.where(wide_exponent == 2, square, result)
        result = jnp.where(wide_exponent == 3, product(square, wide_base), result)
    return result.astype(base.dtype)


def _power_of_integers(base: Array, exponent: Array, inner: Any) -> Array:
    """base ** exponent; where a float exponent is not whole, the power is computed in the type `inner` and truncated.

    ONNX Runtime computes powers of integers in float64, and the scalar exponents 2 and 3 as products of integers. Its
    results differ where a power exceeds float64's 53 bits or the integer's range: there, this one is modulo 2**bits.
    """
    if not is_float(exponent):
        return _integer_power(base, exponent)
    xp = namespace(base, exponent)
    is_whole = (exponent == xp.round(exponent)) & (xp.abs(exponent) < 2.0**31)
    whole = xp.where(is_whole, exponent, 0).astype(np.int32)
    result = xp.power(base.astype(inner), exponent.astype(inner))
    return xp.where(is_whole, _integer_power(base, whole), cast(result, dtype=base.dtype))


def _integer_power(base: Array, exponent: Array) -> Array:
    """base ** exponent modulo 2**bits; for a negative exponent, rounded toward zero.

    `jax.numpy.power` reads only six bits of an integer exponent.
    """
    xp = namespace(base, exponent)

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        whole, square, rest = state
        return xp.where((rest & 1) == 1, whole * square, whole), square * square, rest >> 1

    state = xp.ones_like(base), base, xp.maximum(exponent, 0)
    if xp is np:
        while (state[2] > 0).any():
            state = step(state)
    else:
        state = lax.while_loop(lambda state: jnp.any(state[2] > 0), step, state)
    whole = state[0]
    fraction = xp.where(xp.abs(base) == 1, xp.where(exponent % 2 == 0, 1, base), 0)
    return xp.where(exponent < 0, fraction.astype(base.dtype), whole)


@operator("Mean", types=(FLOAT,))
def mean(x: Array, *others: Array) -> Array:
    """The elementwise mean of tensors."""
    total = functools.reduce(functools.partial(computed, "add"), map(jnp.asarray, broadcast(x, *others)))
    return product(total, float(1 / np.asarray(1 + len(others), np.float32)))


@operator("Clip", until=10, types=(FLOAT,), is_exact=True, is_pointwise=True, kind="clip")
def clip_to_numbers(x: Array, *, min: float = -LARGEST, max: float = LARGEST) -> Array:
    """`clip` of opset 10, whose bounds are attributes."""
    return clip(x, np.asarray(min, x.dtype), np.asarray(max, x.dtype))


@operator("Clip", since=11, types=(NUMBER, NUMBER, NUMBER), is_exact=True, is_pointwise=True, kind="clip")
def clip(x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """x clamped to bounds."""
    for name, bound in (("maximum", low), ("minimum", high)):
        if bound is not None:
            if bound.size != 1:
                raise ModelError(f"a bound has shape {bound.shape}, expected a scalar")
            x = computed(name, x, bound.reshape(()))
    return x


@operator("IsInf", types=(FLOAT,), is_exact=True, gives_bool=True)
def is_infinite(x: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    """Whether elements are infinite; an infinity whose sign is not detected gives False."""
    xp = namespace(x)
    return xp.isinf(x) & xp.where(x < 0, bool(detect_negative), bool(detect_positive))


@operator("BitShift", since=11, types=(INTEGER, INTEGER), is_exact=True)
def shift_bits(x: Array, count: Array, *, direction: str) -> Array:
    """x << count or x >> count; counts beyond the width shift out all bits. Right shifts keep the sign."""
    if direction not in ("LEFT", "RIGHT"):
        raise ModelError(f"direction is {direction!r}, expected LEFT or RIGHT")
    x, count = broadcast(x, count)
    xp, width = namespace(x, count), x.dtype.itemsize * 8
    is_outside = (count < 0) | (count >= width)
    shifted_out: Any = xp.zeros_like(x)
    if direction == "RIGHT" and jnp.issubdtype(x.dtype, jnp.signedinteger):
        shifted_out = -(x < 0).astype(x.dtype)
    shifted = computed(f"{direction.lower()}_shift", x, xp.where(is_outside, xp.zeros_like(count), count))
    return xp.asarray(xp.where(is_outside, shifted_out, shifted))
