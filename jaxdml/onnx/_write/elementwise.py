"""Elementwise equations, each as the operators of ONNX that compute the same result."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdml._graph.graph import Node
from jaxdml.onnx._write.table import EQUATIONS, CannotWrite, equation, operator
from jaxdml.onnx._write.writer import Writer, data_type, stored_type

# Primitives for which ONNX has an operator with the same inputs.
SAME = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "add": "Add", "asin": "Asin", "asinh": "Asinh", "atan": "Atan",
    "atanh": "Atanh", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "div": "Div", "erf": "Erf",
    "exp": "Exp", "floor": "Floor", "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual", "log": "Log",
    "logistic": "Sigmoid", "lt": "Less", "max": "Max", "min": "Min", "mul": "Mul", "neg": "Neg", "pow": "Pow",
    "sign": "Sign", "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "sub": "Sub", "tan": "Tan", "tanh": "Tanh",
}  # fmt: skip
LOGICAL = {"and": "And", "or": "Or", "xor": "Xor"}
AWAY_FROM_ZERO = 0  # a rounding method of `round`; the other method rounds ties to even


def _same(kind: str) -> Callable[[Writer, Node], str]:
    def write(writer: Writer, node: Node) -> str:
        return writer.emit(kind, *map(writer.read, node.inputs))

    return write


EQUATIONS |= {primitive: _same(kind) for primitive, kind in SAME.items()}
operator("add")(_same("Add"))
operator("multiply")(_same("Mul"))


def _number(writer: Writer, node: Node, value: float) -> str:
    """A number in the type of a node's first input."""
    return writer.array(np.asarray(value, stored_type(writer.dtype(node.inputs[0]))))


@operator("clip")
def clip(writer: Writer, node: Node) -> str:
    low, high = (node.options.get(word) for word in ("min", "max"))
    value = writer.read(node.inputs[0])
    if low == 0 and high is None:
        return writer.emit("Relu", value)
    if low in (None, -np.inf) and high in (None, np.inf):
        return value
    ends = ["" if end is None or not np.isfinite(end) else _number(writer, node, end) for end in (low, high)]
    return writer.emit("Clip", value, *(ends if ends[1] else ends[:1]))


@equation("clamp")
def clamp(writer: Writer, node: Node) -> str:
    low, x, high = map(writer.read, node.inputs)
    return writer.emit("Min", writer.emit("Max", x, low), high)


@equation("integer_pow")
def integer_power(writer: Writer, node: Node) -> str:
    """A power by repeated squaring, as JAX computes it."""
    power = node.options["equation"].params["y"]
    base, result, left = writer.read(node.inputs[0]), "", abs(power)
    if power == 0:  # 1 for every number, including NaN
        return writer.emit("Where", writer.emit("Equal", base, base), *[_number(writer, node, 1)] * 2)
    while left:
        if left & 1:
            result = writer.emit("Mul", result, base) if result else base
        left >>= 1
        base = writer.emit("Mul", base, base) if left else base
    return writer.emit("Div", _number(writer, node, 1), result) if power < 0 else result


@equation("polynomial")
def polynomial(writer: Writer, node: Node) -> str:
    """A polynomial by Horner's rule; the first coefficient is the constant term."""
    x, *coefficients = map(writer.read, node.inputs)
    result = coefficients.pop()
    for coefficient in reversed(coefficients):
        result = writer.emit("Add", writer.emit("Mul", result, x), coefficient)
    return result


@equation("square")
def square(writer: Writer, node: Node) -> str:
    value = writer.read(node.inputs[0])
    return writer.emit("Mul", value, value)


@equation("one_minus_square")
def one_minus_square(writer: Writer, node: Node) -> str:
    """(1 + x) * (1 - x), as JAX computes it; the derivative of tanh has this factor."""
    x, one = writer.read(node.inputs[0]), _number(writer, node, 1)
    return writer.emit("Mul", writer.emit("Add", one, x), writer.emit("Sub", one, x))


@equation("rsqrt")
def reciprocal_root(writer: Writer, node: Node) -> str:
    return writer.emit("Div", _number(writer, node, 1), writer.emit("Sqrt", writer.read(node.inputs[0])))


@equation("cbrt")
def cube_root(writer: Writer, node: Node) -> str:
    value = writer.read(node.inputs[0])
    root = writer.emit("Pow", writer.emit("Abs", value), _number(writer, node, 1 / 3))
    return writer.emit("Mul", writer.emit("Sign", value), root)


@equation("exp2")
def power_of_two(writer: Writer, node: Node) -> str:
    return writer.emit("Pow", _number(writer, node, 2), writer.read(node.inputs[0]))


@equation("log2")
def logarithm_to_base_two(writer: Writer, node: Node) -> str:
    return writer.emit("Mul", writer.emit("Log", writer.read(node.inputs[0])), _number(writer, node, 1 / np.log(2)))


@equation("expm1")
def exponential_less_one(writer: Writer, node: Node) -> str:
    """tanh(x / 2) * (exp(x) + 1), which is precise near 0."""
    value = writer.read(node.inputs[0])
    half = writer.emit("Tanh", writer.emit("Mul", value, _number(writer, node, 0.5)))
    return writer.emit("Mul", half, writer.emit("Add", writer.emit("Exp", value), _number(writer, node, 1)))


@equation("log1p")
def logarithm_of_one_more(writer: Writer, node: Node) -> str:
    """log(y) + (x - (y - 1)) / y for y = x + 1; the second addend corrects the rounding of y."""
    x, one = writer.read(node.inputs[0]), _number(writer, node, 1)
    y = writer.emit("Add", x, one)
    logarithm, less = writer.emit("Log", y), writer.emit("Sub", y, one)
    more = writer.emit("Add", logarithm, writer.emit("Div", writer.emit("Sub", x, less), y))
    return writer.emit("Where", writer.emit("Equal", x, less), logarithm, more)  # also for -1 and infinity


# ln(erfc(x) / t) + x ** 2 as a polynomial in t = 1 / (1 + x / 2), for x from 0 to 10: a minimax fit, error up to 5e-8.
COMPLEMENT = (
    -1.26544143, 0.99849243, 0.38790046, 0.02835362, 0.02020613, -0.11680638, -0.65122602, 1.12238443, -0.66605623,
    0.14219303,
)  # fmt: skip


@equation("erfc")
def complementary_error(writer: Writer, node: Node) -> str:
    """A formula that is precise for small results, unlike 1 - erf(x)."""
    x, one = writer.read(node.inputs[0]), _number(writer, node, 1)
    size = writer.emit("Abs", x)
    t = writer.emit("Div", one, writer.emit("Add", writer.emit("Mul", size, _number(writer, node, 0.5)), one))
    exponent = _number(writer, node, COMPLEMENT[-1])
    for coefficient in COMPLEMENT[-2::-1]:
        exponent = writer.emit("Add", writer.emit("Mul", exponent, t), _number(writer, node, coefficient))
    exponent = writer.emit("Sub", exponent, writer.emit("Mul", size, size))
    tail = writer.emit("Mul", t, writer.emit("Exp", exponent))
    is_negative = writer.emit("Less", x, _number(writer, node, 0))
    return writer.emit("Where", is_negative, writer.emit("Sub", _number(writer, node, 2), tail), tail)


@equation("round")
def rounded(writer: Writer, node: Node) -> str:
    value = writer.read(node.inputs[0])
    if int(node.options["equation"].params["rounding_method"]) != AWAY_FROM_ZERO:
        return writer.emit("Round", value)
    size = writer.emit("Abs", value)
    below = writer.emit("Floor", size)
    rest = writer.emit("Sub", size, below)  # exact, unlike the sum of the size and 0.5
    is_below = writer.emit("Less", rest, _number(writer, node, 0.5))
    whole = writer.emit("Where", is_below, below, writer.emit("Add", below, _number(writer, node, 1)))
    return writer.emit("Mul", writer.emit("Sign", value), whole)


@equation("rem")
def remainder(writer: Writer, node: Node) -> str:
    return writer.emit("Mod", *map(writer.read, node.inputs), fmod=1)


@equation("is_finite")
def is_finite(writer: Writer, node: Node) -> str:
    value = writer.read(node.inputs[0])
    return writer.emit("Not", writer.emit("Or", writer.emit("IsNaN", value), writer.emit("IsInf", value)))


@equation("eq", "ne")
def equal(writer: Writer, node: Node) -> str:
    """Compares booleans by Xor, because DirectML's Equal does not take booleans."""
    is_bool = writer.dtype(node.inputs[0]) == np.bool_
    value = writer.emit("Xor" if is_bool else "Equal", *map(writer.read, node.inputs))
    return value if is_bool == (node.options["equation"].name == "ne") else writer.emit("Not", value)


@equation("not", "and", "or", "xor")
def logical(writer: Writer, node: Node) -> str:
    name = node.options["equation"].name
    if writer.dtype(node.inputs[0]) != np.bool_:
        raise CannotWrite("it works on the bits of integers")
    return writer.emit("Not" if name == "not" else LOGICAL[name], *map(writer.read, node.inputs))


@equation("select_n")
def select(writer: Writer, node: Node) -> str:
    which, cases = writer.read(node.inputs[0]), [writer.read(each) for each in node.inputs[1:]]
    are_bool = writer.dtype(node.inputs[1]) == np.bool_
    if writer.dtype(node.inputs[0]) == np.bool_ and len(cases) == 2:
        return _one_of_two(writer, which, cases[1], cases[0], are_bool)
    *others, chosen = cases
    for number, case in reversed([*enumerate(others)]):
        is_at_most = writer.emit("Less", which, writer.array(np.asarray(number + 1, writer.dtype(node.inputs[0]))))
        chosen = _one_of_two(writer, is_at_most, case, chosen, are_bool)
    return chosen


def _one_of_two(writer: Writer, condition: str, yes: str, no: str, are_bool: bool) -> str:
    if not are_bool:
        return writer.emit("Where", condition, yes, no)
    # onnxruntime's Where does not take booleans.
    no = writer.emit("And", writer.emit("Not", condition), no)
    return writer.emit("Or", writer.emit("And", condition, yes), no)


def cast_to(writer: Writer, value: str, dtype: Any) -> str:
    """A value of the file, converted to another type."""
    return writer.emit("Cast", value, to=data_type(jnp.dtype(dtype)))
