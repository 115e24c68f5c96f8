"""The values of a program that do not depend on its inputs, and the axes along which their elements differ."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax import lax

from jaxdml.ptq._trace.equations import Equation, Program

Axes = frozenset[int]
# Primitives that return their input.
IDENTITIES = frozenset(("copy", "copy_p", "name", "stop_gradient"))
# Primitives that compute each element of the result from the inputs' elements at the same index.
ELEMENT_WISE = IDENTITIES | frozenset((
    "abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "clamp",
    "convert_element_type", "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp",
    "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p", "log2",
    "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "not", "or", "pow", "reduce_precision",
    "rem", "round", "rsqrt", "select_n", "sign", "sin", "sinh", "sqrt", "square", "sub", "tan", "tanh", "xor",
))  # fmt: skip
# Primitives that only move, repeat or cast elements: equal elements of the input stay equal in the result.
NUMBER_STAYS = ("broadcast_in_dim", "convert_element_type", "copy", "reshape", "squeeze", "transpose")


class FixedValues:
    """The values of a program that do not depend on its inputs.

    Attributes:
      names: the names of the fixed values.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._makers = {name: each for each in program.equations for name in each.outputs}
        self._varying = {name: _not_one(program.avals[name].shape) for name in (*program.params, *program.constants)}
        self._leaves: dict[str, tuple[str, ...]] = {name: (name,) for name in program.params}
        for equation in program.equations:
            if all(name in self._varying for name in equation.inputs):
                read = dict.fromkeys(leaf for name in equation.inputs for leaf in self.leaves(name))
                for name in equation.outputs:
                    self._leaves[name] = tuple(read)
                    self._varying[name] = self._axes(equation, program.avals[name].shape)
        self.names = frozenset(self._varying)

    def varying(self, name: str) -> Axes:
        """The axes along which elements of a fixed value may differ, as far as shapes and equations show."""
        return self._varying[name]

    def rank(self, name: str) -> int:
        """The rank of a value of the program."""
        return int(self._program.avals[name].ndim)

    def is_shape_kept(self, equation: Equation, data: str) -> bool:
        """Whether an equation's result has the shape of its input `data`."""
        return bool(self._program.avals[data].shape == self._program.avals[equation.outputs[0]].shape)

    def number(self, name: str) -> np.ndarray | None:
        """The number that a value equals if it is a literal, possibly broadcast or cast; None for all other values."""
        casts = []
        while name not in self._program.constants:
            maker = self._makers.get(name)
            if maker is None or maker.name not in NUMBER_STAYS:
                return None
            casts.append(self._program.avals[name].dtype)
            name = maker.inputs[0]
        number = np.asarray(self._program.constants[name])
        if number.ndim or number.dtype.kind not in "iufV":
            return None
        for dtype in reversed(casts):
            number = number.astype(dtype)
        return number

    def maker(self, name: str) -> Equation | None:
        """The equation that computes a value."""
        return self._makers.get(name)

    def sources(self, name: str) -> list[str]:
        """A value, and all values from which it is computed."""
        found = [name]
        for each in found:
            maker = self._makers.get(each)
            found += [other for other in (maker.inputs if maker else ()) if other not in found]
        return found

    def leaves(self, name: str) -> tuple[str, ...]:
        """The parameters from which a fixed value is computed, in order."""
        return self._leaves.get(name, ())

    def _axes(self, equation: Equation, shape: Sequence[Any]) -> Axes:
        inputs = [self._varying[name] for name in equation.inputs]
        varying = frozenset[int]().union(*inputs)
        if equation.name in ELEMENT_WISE:
            return varying
        if equation.name == "dot_general":
            return self._axes_of_product(equation)
        if equation.name == "gather":
            return _gathered(inputs[1], shape, equation.params["dimension_numbers"])
        if equation.name == "reshape":
            before = self._program.avals[equation.inputs[0]].shape
            places = unit_reshape(before, shape)
            if places is not None:
                return frozenset(places[axis] for axis in varying)
            return _reshaped(varying, before, shape) if varying else varying
        moved = AXES.get(equation.name)
        return moved(varying, equation.params) & _not_one(shape) if moved else _not_one(shape)

    def _axes_of_product(self, equation: Equation) -> Axes:
        """The varying axes of a product, which has batch axes, then free axes of its left and right operand."""
        contracted, batch = equation.params["dimension_numbers"]
        found, free = set[int](), list[bool]()
        for name, reduced, shared in zip(equation.inputs, contracted, batch, strict=True):
            varying = self._varying[name]
            found |= {place for place, axis in enumerate(shared) if axis in varying}
            free += [axis in varying for axis in range(self.rank(name)) if axis not in (*reduced, *shared)]
        return frozenset(found | {len(batch[0]) + place for place, varies in enumerate(free) if varies})


def _not_one(shape: Sequence[Any]) -> Axes:
    return frozenset(axis for axis, size in enumerate(shape) if size != 1)


def unit_reshape(before: Sequence[Any], after: Sequence[Any]) -> dict[int, int] | None:
    """Maps each axis whose size is not 1 to its new position; None if the reshape changes the sizes of these axes."""
    old, new = ([axis for axis, size in enumerate(shape) if size != 1] for shape in (before, after))
    if len(old) != len(new) or any(before[i] != after[j] for i, j in zip(old, new, strict=True)):
        return None
    return dict(zip(old, new, strict=True))


def _reshaped(axes: Axes, before: Sequence[Any], after: Sequence[Any]) -> Axes:
    """The axes along which a reshape's result may vary: those formed from varying axes of its input."""
    found, old, new = set[int](), 0, 0
    while old < len(before) and new < len(after) and 0 not in after:
        starts, sizes = (old, new), [before[old], after[new]]
        old, new = old + 1, new + 1
        while sizes[0] != sizes[1]:
            if not all(isinstance(size, int) for size in sizes):  # symbolic sizes, which cannot be compared
                return frozenset(found | {*range(starts[1], len(after))}) & _not_one(after)
            if sizes[0] < sizes[1]:
                sizes[0], old = sizes[0] * before[old], old + 1
            else:
                sizes[1], new = sizes[1] * after[new], new + 1
        if axes.intersection(range(starts[0], old)):
            found.update(range(starts[1], new))
    return frozenset(found) & _not_one(after)


def _gathered(axes: Axes, shape: Sequence[Any], numbers: lax.GatherDimensionNumbers) -> Axes:
    """The axes along which a gather's result may vary, given the axes along which its indices vary."""
    if numbers.operand_batching_dims:
        return _not_one(shape)
    of_indices = (axis for axis in range(len(shape)) if axis not in numbers.offset_dims)
    return _not_one(shape).difference(axis for place, axis in enumerate(of_indices) if place not in axes)


def _squeezed(axes: Axes, params: Mapping[str, Any]) -> Axes:
    gone = params["dimensions"]
    return frozenset(axis - sum(each < axis for each in gone) for axis in axes if axis not in gone)


def _reduced(axes: Axes, params: Mapping[str, Any]) -> Axes:
    return _squeezed(axes, {"dimensions": params["axes"]})


def _padded(axes: Axes, params: Mapping[str, Any]) -> Axes:
    return axes.union(axis for axis, counts in enumerate(params["padding_config"]) if any(counts))


def _along(axes: Axes, params: Mapping[str, Any]) -> Axes:
    """The inputs' varying axes, and `axis` or `dimension`, along which the result may vary even if no input does."""
    return axes | {params["axis"] if "axis" in params else params["dimension"]}


# The axes along which a result may differ, given the axes along which its inputs may differ.
AXES: Mapping[str, Callable[[Axes, Mapping[str, Any]], Axes]] = {
    "broadcast_in_dim": lambda axes, params: frozenset(params["broadcast_dimensions"][axis] for axis in axes),
    "transpose": lambda axes, params: frozenset(i for i, axis in enumerate(params["permutation"]) if axis in axes),
    "squeeze": _squeezed,
    "pad": _padded,
    **dict.fromkeys(("rev", "slice", "sort", "split", "tile"), lambda axes, params: axes),
    **dict.fromkeys(("concatenate", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum", "iota"), _along),
    **dict.fromkeys((
        "argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum",
    ), _reduced),
}  # fmt: skip
