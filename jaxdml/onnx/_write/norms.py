"""Finds softmax and normalizations among float nodes, so that the file has ONNX's operators for them.

A normalization may be written in many ways: the variance as the mean of the squares of x minus its mean, or as the
difference of two means; a division by the root, or a product with the root's reciprocal; scale and bias in any order.
So one pass over the nodes describes each value in terms of another value, for example as the mean of x.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxdml._graph.graph import Node, Operator
from jaxdml.onnx._write.reductions import reduced
from jaxdml.onnx._write.table import operator
from jaxdml.onnx._write.writer import Writer

SPREADS = ("broadcast_in_dim", "reshape", "expand_dims")
MEANS = ("mean", "mean of squares")
KEPT = ("copy", "copy_p", "name", "stop_gradient")
SOFTMAX = Operator("Softmax", lambda x: x)
NORM = Operator("LayerNormalization", lambda x: x)
ROOT_MEAN_SQUARE = Operator("RMSNormalization", lambda x: x)


@dataclass(frozen=True)
class Of:
    """Describes a value in terms of another value x, whose axes from `axis` to the last are reduced.

    Attributes:
      what: "mean", "centered", "square", "mean of squares", "square of mean", "variance", "power" (variance or mean of
        squares, plus epsilon), "root" or "inverse" (its reciprocal), "scaled inverse", "norm".
      x: the name of the other value.
      axis: the first of the reduced axes.
      is_centered: whether x minus its mean takes the place of x.
      epsilon: the number that is added to the variance.
      scale, bias: names of constants; "" for none.
      summed: for a mean, the name of the averaged value; for a mean of squares, the name of the squares.
    """

    what: str
    x: str
    axis: int = 0
    is_centered: bool = False
    epsilon: float = 0.0
    scale: str = ""
    bias: str = ""
    summed: str = ""


def with_norms(nodes: Sequence[Node], writer: Writer, outputs: Sequence[str]) -> list[Node]:
    """The nodes, with one node in place of the nodes of each softmax and of each normalization."""
    finder = _Finder(nodes, writer)
    found = [finder.softmax(node) or finder.norm(node) or node for node in nodes]
    wanted, kept = set(outputs), list[Node]()
    for node in reversed(found):
        if not wanted.isdisjoint(node.outputs):
            kept.append(node)
            wanted.update(node.inputs)
    return kept[::-1]


class _Finder:
    """Describes values, and finds the nodes that are the last of a softmax or of a normalization."""

    def __init__(self, nodes: Sequence[Node], writer: Writer) -> None:
        self._writer = writer
        self._makers = {name: node for node in nodes for name in node.outputs}
        self._of: dict[str, Of] = {}
        for node in nodes:
            described = self._described(node)
            if described is not None:
                self._of[node.outputs[0]] = described
        # A norm that is only read to be scaled or biased is not the last node of the normalization.
        read: dict[str, list[Node]] = {}
        for node in nodes:
            for name in node.inputs:
                read.setdefault(name, []).append(node)
        self._inner = {
            name for name, of in self._of.items() if of.what == "norm" and name in read
            and all(self._extends(name, node) for node in read[name])
        }  # fmt: skip

    def _extends(self, name: str, node: Node) -> bool:
        after = self._of.get(node.outputs[0])
        return (
            after is not None
            and after.what == "norm"
            and replace(after, scale="", bias="") == replace(self._of[name], scale="", bias="")
        )

    # Values ------------------------------------------------------------------------------------------------------

    def _maker(self, name: str) -> tuple[str, Node | None]:
        """The word for the operation that computes a value, and its node."""
        node = self._makers.get(name)
        if node is None:
            return "", None
        equation = node.options.get("equation")
        name = node.operator.name if equation is None else equation.name
        return {"multiply": "mul"}.get(name, name), node

    def _plain(self, name: str) -> str:
        """The value of which this value is a copy, a broadcast, or a reshape that adds axes of size 1."""
        word, node = self._maker(name)
        while node is not None and (word in KEPT or (word in SPREADS and self._is_spread(node))):
            name = node.inputs[0]
            word, node = self._maker(name)
        return name

    def _is_spread(self, node: Node) -> bool:
        """Whether the axes of a node's input stay in place, counted from the front; sizes of 1 may be repeated."""
        before, after = (self._writer.shape(name) for name in (node.inputs[0], node.outputs[0]))
        equation = node.options["equation"]
        places = equation.params.get("broadcast_dimensions")
        if places is None:
            places = range(len(before))
            rest = [*after[len(before) :]]
            return all(str(size) == "1" for size in rest) and [*map(str, before)] == [*map(str, after[: len(before)])]
        return tuple(places) == tuple(range(len(before)))

    def _number(self, name: str) -> float | None:
        return self._writer.number(name)

    def _described(self, node: Node) -> Of | None:
        word, _ = self._maker(node.outputs[0])
        inputs = [self._plain(name) for name in node.inputs]
        known = [self._of.get(name) for name in inputs]
        describe = _DESCRIBE.get(word)
        return None if describe is None or not inputs else describe(self, node, inputs, known)

    def _mean(self, node: Node, inputs: list[str], known: list[Of | None]) -> Of | None:
        return self._mean_of(node.inputs[0], node.options["axes"])

    def _mean_of(self, name: str, axes: Sequence[int]) -> Of | None:
        """Describes the mean of a value over its last axes; None for other axes."""
        axes, rank = sorted(map(int, axes)), self._writer.rank(name)
        if not axes or axes != list(range(axes[0], rank)):
            return None
        of = self._of.get(name)
        if (
            of is not None and of.what == "square of mean"
        ):  # the square of a pooled image, for example, is a square, too
            of = Of("square", self._makers[name].inputs[0])
        if of is None or of.what != "square":
            return Of("mean", name, axes[0], summed=name)
        if of.is_centered and of.axis != axes[0]:
            return None
        return replace(of, what="variance" if of.is_centered else "mean of squares", axis=axes[0], summed=name)

    def _difference(self, node: Node, inputs: list[str], known: list[Of | None]) -> Of | None:
        a, b = known
        if b is None:
            return None
        if b.what in MEANS and b.summed == node.inputs[0]:
            return Of("centered", b.summed, b.axis, True)
        if a is not None and (a.what, b.what, a.x, a.axis) == ("mean of squares", "square of mean", b.x, b.axis):
            return Of("variance", a.x, a.axis, True)
        return None

    def _square(self, node: Node, inputs: list[str], known: list[Of | None]) -> Of | None:
        of = known[0]
        if of is not None and of.what in MEANS:
            return Of("square of mean", of.summed, of.axis)
        if of is not None and of.what == "centered":
            return replace(of, what="square")
        return Of("square", node.inputs[0])

    def _power(self, node: Node, inputs: list[str], known: list[Of | None]) -> Of | None:
        exponent = node.options["equation"].params["y"]
        return self._square(node, inputs, known) if exponent == 2 else None

    def _at_least(self, node: Node, inputs: list[str], known: list[Of | None]) -> Of | None:
        """A variance that is computed as a difference and clamped to at least 0."""
        low, high = (node.options.get(end) for end in ("min", "max"))
        of = next((of for of in known if of is not None and of.what == "variance"), None)
        if "equation" not in node.options:
            return of if (low, high) == (0, None) else None
        return of if any(self._number(name) == 0 for name in inputs) else None

    def _sum(self, node: Node, inputs: list[str], known: list[Of | None]) -> Of | None:
        for of, name in zip(known, reversed(node.inputs), strict=True):
            if of is None:
                continue
            number = self._number(self._plain(name))
            if of.what in ("variance", "mean of squares") and number is not None:
                return replace(of, what="power", is_centered=of.what == "variance", epsilon=number)
            if of.what == "norm" and not of.bias and self._is_parameter(name, of):
                return replace(of, bias=name)
        return None

    def _root(self, node: Node, inputs: list[str], known: list[Of | None]) -> Of | None:
        of = known[0]
        return None if of is None or of.what != "power" else replace(of, what="root")

    def _inverse_root(self, node: Node, inputs: list[str], known: list[Of | None]) -> Of | None:
        of = known[0]
        return None if of is None or of.what != "power" else replace(of, what="inverse")

    def _quotient(self, node: Node, inputs: list[str], known: list[Of | None]) -> Of | None:
        word, total = self._maker(inputs[0])
        if total is not None and word == "reduce_sum":
            axes, shape = total.options["equation"].params["axes"], self._writer.shape(total.inputs[0])
            is_mean = self._number(inputs[1]) == math.prod(shape[axis] for axis in axes)
            return self._mean_of(total.inputs[0], axes) if is_mean else None
        of = known[1]
        if of is None or of.what != "root":
            return None
        if self._number(inputs[0]) == 1:
            return replace(of, what="inverse")
        return replace(of, what="norm") if self._is_normalized(node.inputs[0], of) else None

    def _product(self, node: Node, inputs: list[str], known: list[Of | None]) -> Of | None:
        if node.inputs[0] == node.inputs[1]:
            return self._square(node, inputs, known)
        for of, name in zip(known, reversed(node.inputs), strict=True):
            if of is None:
                continue
            if of.what in ("inverse", "scaled inverse") and self._is_normalized(name, of):
                return replace(of, what="norm")
            if of.what in ("inverse", "norm") and not of.scale and not of.bias and self._is_parameter(name, of):
                what = "norm" if of.what == "norm" else "scaled inverse"
                return replace(of, what=what, scale=name)
        return None

    def _is_normalized(self, name: str, of: Of) -> bool:
        """Whether a value is the dividend of the normalization: x, or x minus its mean."""
        if not of.is_centered:
            return name == of.x
        centered = self._of.get(name)
        return centered is not None and centered.what == "centered" and (centered.x, centered.axis) == (of.x, of.axis)

    def _is_parameter(self, name: str, of: Of) -> bool:
        """Whether a value is a constant that varies only along the normalized axes."""
        value = self._writer.constants.get(name)
        if value is None:
            return False
        size = self._writer.rank(of.x) - of.axis
        return value.size == 1 or (value.ndim >= size and value.size == int(np.prod(value.shape[value.ndim - size :])))

    # Nodes -------------------------------------------------------------------------------------------------------

    def norm(self, node: Node) -> Node | None:
        """A node for the normalization that ends with this node; None if none does."""
        of = self._of.get(node.outputs[0])
        if of is None or of.what != "norm" or node.outputs[0] in self._inner or not self._fits(of):
            return None
        inputs = (of.x, *filter(None, (of.scale, of.bias)))
        options = {"axis": of.axis, "epsilon": of.epsilon, "scale": of.scale, "bias": of.bias}
        return Node(NORM if of.is_centered else ROOT_MEAN_SQUARE, inputs, node.outputs, options, node.name, node.source)

    def _fits(self, of: Of) -> bool:
        return all(isinstance(size, int) for size in self._writer.shape(of.x)[of.axis :])

    def softmax(self, node: Node) -> Node | None:
        """A node for the softmax that ends with this node; None if none does."""
        powers, total = self._pair("div", node, "reduce_sum")
        exponential = None if powers is None else self._made(powers, "exp")
        if total is None or exponential is None or total.inputs[0] != powers:
            return None
        difference = self._made(exponential.inputs[0], "sub")
        if difference is None:
            return None
        x, most = self._pair("sub", difference, "reduce_max")
        axes = tuple(total.options["equation"].params["axes"])
        if most is None or most.inputs[0] != x or tuple(most.options["equation"].params["axes"]) != axes:
            return None
        return Node(SOFTMAX, (str(x),), node.outputs, {"axis": int(axes[0])}, node.name, node.source)

    def _made(self, name: str, word: str) -> Node | None:
        """The node that computes a value, if the word for its operation is `word`."""
        found, node = self._maker(name)
        return node if found == word else None

    def _pair(self, word: str, node: Node, reduction: str) -> tuple[str | None, Node | None]:
        """The first input of a `word` node, and the one-axis reduction whose broadcast result is the second input."""
        if self._made(node.outputs[0], word) is None:
            return None, None
        x, name, path = node.inputs[0], node.inputs[1], list[Node]()
        found, maker = self._maker(name)
        while maker is not None and (found in (*KEPT, *SPREADS) or (found in ("clip", "max") and self._is_open(maker))):
            path.append(maker)
            name = next(each for each in maker.inputs if each not in self._writer.constants)
            found, maker = self._maker(name)
        if maker is None or found != reduction:
            return x, None
        axes, rank = tuple(maker.options["equation"].params["axes"]), self._writer.rank(x)
        is_along = len(axes) == 1 and all(self._is_along(each, axes[0], rank) for each in path)
        return x, maker if is_along else None

    def _is_along(self, node: Node, axis: int, rank: int) -> bool:
        """Whether a node only restores a reduced axis, with the size 1 or the array's size."""
        before, after = (self._writer.shape(name) for name in (node.inputs[0], node.outputs[0]))
        equation = node.options.get("equation")
        if equation is None or equation.name not in SPREADS:
            return True
        others = [i for i in range(rank) if i != axis]
        if equation.name == "broadcast_in_dim":
            return list(equation.params["broadcast_dimensions"]) in (others, list(range(rank)))
        sizes = list(map(str, before))
        return [*sizes[:axis], "1", *sizes[axis:]] == list(map(str, after))

    def _is_open(self, node: Node) -> bool:
        """Whether a clamp has minus infinity as its only bound."""
        if "equation" not in node.options:
            return node.options.get("max") is None and node.options.get("min") == -np.inf
        return any(self._number(name) == -np.inf for name in node.inputs)


_DESCRIBE: Mapping[str, Any] = {
    "add": _Finder._sum, "clip": _Finder._at_least, "div": _Finder._quotient, "integer_pow": _Finder._power,
    "max": _Finder._at_least, "mean": _Finder._mean, "mul": _Finder._product, "rsqrt": _Finder._inverse_root,
    "sqrt": _Finder._root, "square": _Finder._square, "sub": _Finder._difference,
}  # fmt: skip


# Writers -------------------------------------------------------------------------------------------------------------


@operator("Softmax")
def softmax(writer: Writer, node: Node) -> str:
    return writer.emit("Softmax", writer.read(node.inputs[0]), main=True, axis=node.options["axis"])


def _parameter(writer: Writer, node: Node, word: str) -> np.ndarray | None:
    """A parameter in the shape of the normalized axes."""
    name, shape = node.options[word], writer.shape(node.inputs[0])[node.options["axis"] :]
    if not name:
        return None
    value = np.asarray(writer.constants[name]).astype(np.float32)
    return np.full(shape, value.reshape(())) if value.size == 1 else value.reshape(value.shape[-len(shape) :])


@operator("LayerNormalization")
def layer_normalization(writer: Writer, node: Node) -> str:
    axis, shape = node.options["axis"], writer.shape(node.inputs[0])
    scale, bias = (_parameter(writer, node, word) for word in ("scale", "bias"))
    scale = np.ones(shape[axis:], np.float32) if scale is None else np.broadcast_to(scale, shape[axis:])
    inputs = [writer.read(node.inputs[0]), writer.array(scale, f"{writer.name}.scale")]
    inputs += [] if bias is None else [writer.array(np.broadcast_to(bias, shape[axis:]), f"{writer.name}.bias")]
    return writer.emit("LayerNormalization", *inputs, main=True, axis=axis, epsilon=node.options["epsilon"])


@operator("RMSNormalization")
def root_mean_square(writer: Writer, node: Node) -> str:
    """The operators that execution providers fuse into an RMSNormalization, which ONNX added in opset 23."""
    x, rank = writer.read(node.inputs[0]), writer.rank(node.inputs[0])
    squares = writer.emit("Pow", x, writer.float32(2))
    mean = reduced(writer, "ReduceMean", squares, range(node.options["axis"], rank), keep=True)
    root = writer.emit("Sqrt", writer.emit("Add", mean, writer.float32(node.options["epsilon"])))
    value = writer.emit("Div", x, root)
    for word, kind in (("scale", "Mul"), ("bias", "Add")):
        parameter = _parameter(writer, node, word)
        if parameter is not None:
            value = writer.emit(kind, value, writer.array(parameter, f"{writer.name}.{word}"), main=word == "scale")
    return value
