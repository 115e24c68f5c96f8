"""Symbolic sizes as values of an ONNX graph."""

import ast
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdml.onnx._write.table import CannotWrite

OPERATORS = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul"}
FUNCTIONS = {"mod": "Mod", "max": "Max", "min": "Min"}


def is_known(size: Any) -> bool:
    """Whether a size is a number."""
    return isinstance(size, int | np.integer)


class Dimensions:
    """Symbolic sizes as int64 values of a file, each of shape [1]."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._symbols: dict[str, tuple[str, int]] = {}
        self._values: dict[str, str] = {}

    def add(self, value: str, shape: Sequence[Any]) -> None:
        """Registers the symbols in the shape of an input of the file."""
        for axis, size in enumerate(shape):
            if not is_known(size) and str(size).isidentifier():
                self._symbols.setdefault(str(size), (value, axis))

    def rename(self, old: str, new: str) -> None:
        self._values = {size: new if value == old else value for size, value in self._values.items()}

    def value(self, size: Any) -> str:
        """A size as an int64 value [1]."""
        if is_known(size):
            return str(self._writer.int64([int(size)]))
        text = str(size)
        if text not in self._values:
            with self._writer.layer(text):
                self._values[text] = self._computed(ast.parse(text.strip().replace("^", "**"), mode="eval").body)
        return self._values[text]

    def shape(self, sizes: Sequence[Any]) -> str:
        """Sizes as an int64 vector."""
        if all(map(is_known, sizes)):
            return str(self._writer.int64([int(size) for size in sizes]))
        parts = [self.value(size) for size in sizes]
        return str(parts[0] if len(parts) == 1 else self._writer.emit("Concat", *parts, axis=0))

    def _computed(self, tree: ast.expr) -> str:
        emit = self._writer.emit
        match tree:
            case ast.Constant(value=int(number)):
                return str(self._writer.int64([number]))
            case ast.Name(id=name) if name in self._symbols:
                value, axis = self._symbols[name]
                return str(emit("Shape", value, start=axis, end=axis + 1))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return str(emit("Neg", self._computed(operand)))
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))) if power > 0:
                value = result = self._computed(left)
                for _ in range(power - 1):
                    result = emit("Mul", result, value)
                return str(result)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return str(emit(OPERATORS[type(op)], self._computed(left), self._computed(right)))
            case ast.Call(func=ast.Name(id="floordiv"), args=[left, right]):  # Div truncates; Mod is never negative
                of, by = self._computed(left), self._computed(right)
                return str(emit("Div", emit("Sub", of, emit("Mod", of, by)), by))
            case ast.Call(func=ast.Name(id=name), args=args) if name in FUNCTIONS:
                return str(emit(FUNCTIONS[name], *map(self._computed, args)))
        raise CannotWrite(f"the size {ast.unparse(tree)} cannot be computed from the sizes of the inputs")
