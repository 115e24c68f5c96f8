"""Contractions of the float graph, and the affine equations that are folded into their weights."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxdml._graph.graph import Node, Operator
from jaxdml.ptq._build import operators as op
from jaxdml.ptq._build.phases import Phases
from jaxdml.ptq._trace.equations import Equation
from jaxdml.ptq._trace.fixed import FixedValues
from jaxdml.ptq._trace.values import Value

Array = Any
AFFINE = ("add", "sub", "mul", "div", "neg")


@dataclass(frozen=True)
class Step:
    """An affine equation after a contraction.

    Attributes:
      operation: "add" or "mul", which take the vector as operand, or "neg".
      vector: the name of a fixed value with one element, or with one for each channel; "" for "neg".
      invert: whether to subtract the vector instead of adding it, or to divide by it instead of multiplying.
      axes: the axes of the fixed value that correspond to `Contraction.sizes`; () for a scalar.
    """

    operation: str
    vector: str = ""
    invert: bool = False
    axes: tuple[int, ...] = ()

    def numbers(self, value: Array) -> Array:
        """The elements of the fixed value, in the shape `Contraction.sizes`, or its only element."""
        rest = [axis for axis in range(value.ndim) if axis not in self.axes]
        return value.transpose(*rest, *self.axes)[(0,) * len(rest)]


@dataclass(eq=False)
class Contraction:
    """A convolution or matrix product.

    Attributes:
      operator: the float operator.
      data: names of the inputs other than the weights.
      output: name of the result.
      options: options of the operator.
      name: name of the layer.
      weight: name of the fixed value from which the weights are computed; "" for a product of data with data.
      arranged: converts the fixed value to the layout that the operator takes.
      sizes: sizes of the weights' dimensions that become output channels; the operator merges these dimensions.
      channels: axes of the result that correspond to `sizes`.
      steps: the affine equations after the contraction, in order.
      is_vector: whether one operand of a product gets an axis of size 1, which the result does not have.
      alpha: factor of a product of data with data.
      source: the primitives that the contraction replaces.
      phases: the phases of a transposed convolution, whose filters the operator takes; None for all others.
    """

    operator: Operator
    data: tuple[str, ...]
    output: str
    options: dict[str, Any]
    name: str
    weight: str = ""
    arranged: Callable[[Array], Array] = lambda w: w
    sizes: tuple[int, ...] = ()
    channels: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    is_vector: bool = False
    alpha: float = 1.0
    source: list[str] = field(default_factory=list)
    phases: Phases | None = None

    @property
    def has_bias(self) -> bool:
        """Whether one of the affine equations adds a vector."""
        return any(step.operation == "add" for step in self.steps)

    @property
    def weight_name(self) -> str:
        """The name of the weights in the graph."""
        return str(Value(self.output, "weight"))

    @property
    def grid_name(self) -> str:
        """The name of the scales, one for each output channel, with which the function itself quantizes the weights."""
        return str(Value(self.weight_name, "grid"))

    @property
    def bias_name(self) -> str:
        """The name of the bias in the graph."""
        return str(Value(self.output, "bias"))

    def absorbs(
        self, equation: Equation, data: str, other: str | None, order: Sequence[int], fixed: FixedValues
    ) -> bool:  # fmt: skip
        """Folds an equation of `data` and the fixed value `other` if it is affine; returns whether it was folded."""
        word, is_first = equation.name, equation.inputs[0] == data
        if word not in AFFINE or (word == "div" and not is_first) or not fixed.is_shape_kept(equation, data):
            return False
        if not self.weight:
            found = None if other is None else fixed.number(other)
            number = math.nan if found is None else float(found)
            if word not in ("mul", "div") or not 0 < number < math.inf:
                return False
            self.alpha = self.alpha * number if word == "mul" else self.alpha / number
        elif other is None:
            self.steps.append(Step("neg"))
        else:
            channels = tuple(order[axis] for axis in self.channels)
            if not fixed.varying(other) <= set(channels):
                return False
            axes = channels if fixed.rank(other) else ()
            if word == "sub" and not is_first:
                self.steps.append(Step("neg"))
            operation = "add" if word in ("add", "sub") else "mul"
            self.steps.append(Step(operation, other, word == "div" or (word == "sub" and is_first), axes))
        self.source.append(word)
        return True

    def folded(self, weight: np.ndarray, vectors: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The weights and the bias with affine equations folded in float64, and the factor of each output channel."""
        scale, offset, of = np.ones(self.sizes), np.zeros(self.sizes), iter(vectors)
        with np.errstate(all="ignore"):  # the caller reports NaN and infinity, and names the layer
            for step in self.steps:
                if step.operation == "neg":
                    scale, offset = -scale, -offset
                    continue
                numbers = np.broadcast_to(next(of).astype(np.float64), self.sizes)
                if step.operation == "add":
                    offset = offset - numbers if step.invert else offset + numbers
                else:
                    scale, offset = (x / numbers if step.invert else x * numbers for x in (scale, offset))
            scale, offset = scale.reshape(-1), offset.reshape(-1)
            factor = scale.reshape(-1, *(1,) * (weight.ndim - 1)) if self.operator is op.CONVOLUTION else scale
            return (weight * factor).astype(np.float32), offset.astype(np.float32), scale

    def grid(self, scales: np.ndarray, factors: np.ndarray) -> np.ndarray | None:
        """Each output channel's scale, from the weights' scales; None if a channel has several scales or only zeros."""
        rows = scales if self.operator is op.CONVOLUTION else np.moveaxis(scales, -1, 0)
        rows = rows.reshape(len(rows), -1)
        scale = rows.max(1, keepdims=True)
        grid = (scale[:, 0] * np.abs(factors)).astype(np.float32)
        # The zeros that pad the filters of phases have no scale.
        is_one = (rows == scale) | (rows == 0) if self.phases else rows == scale
        return grid if is_one.all() and (grid > 0).all() else None

    def nodes(self) -> list[Node]:
        """The nodes that compute the contraction."""
        name, source = self.name, tuple(self.source)
        weight, bias = self.weight_name, self.bias_name
        if self.operator is op.CONVOLUTION:
            inputs = (*self.data, weight, bias) if self.has_bias else (*self.data, weight)
            node = Node(self.operator, inputs, (self.output,), self.options, name, source)
            if self.phases is None:
                return [node]
            node = node.replace(outputs=(f"{self.output}:phases",))
            return [node, Node(op.INTERLEAVE, node.outputs, (self.output,), self.phases.options, name)]
        options = self.options if self.alpha == 1.0 else {**self.options, "alpha": self.alpha}
        operands = (*self.data, weight) if self.weight else self.data
        nodes = [Node(self.operator, operands, (f"{self.output}:product",), options, name, source)]
        if self.has_bias:
            nodes.append(Node(op.ADD, (nodes[-1].outputs[0], bias), (f"{self.output}:sum",), {}, name))
        if self.is_vector:
            nodes.append(Node(op.MERGE, nodes[-1].outputs, (f"{self.output}:merged",), {"count": 2}, name))
        if self.weight and len(self.sizes) != 1:
            nodes.append(Node(op.SPLIT, nodes[-1].outputs, (f"{self.output}:split",), {"sizes": self.sizes}, name))
        nodes[-1] = nodes[-1].replace(outputs=(self.output,))
        return nodes
