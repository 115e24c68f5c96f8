"""Convolutions and products as the graph has them, and what is affine behind them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxdml._graph.graph import Node, Operator
from jaxdml.ptq import _operators as op
from jaxdml.ptq._equations import Equation
from jaxdml.ptq._known import Known

Array = Any
AFFINE = ("add", "sub", "mul", "div", "neg")


@dataclass(frozen=True)
class Step:
    """One affine equation behind a contraction.

    Attributes:
      operation: "add" or "mul", of the result and the vector; "neg".
      vector: the name of a known value, of which there is a number for each channel.
      invert: the vector's numbers are negated before they are added, or divide in place of multiplying.
      axes: of each dimension of the channels its axis in the vector; () for a vector of one number.
    """

    operation: str
    vector: str = ""
    invert: bool = False
    axes: tuple[int, ...] = ()

    def numbers(self, value: Array) -> Array:
        """The vector's numbers: one for each channel, or one for all."""
        rest = [axis for axis in range(value.ndim) if axis not in self.axes]
        return value.transpose(*rest, *self.axes)[(0,) * len(rest)]


@dataclass(eq=False)
class Contraction:
    """A convolution or product.

    Attributes:
      operator: in floats.
      data: the names of its inputs, but for the weights.
      output: the name of its result.
      options: of the operator.
      name: of the layer.
      weight: the known value that the weights are made of; "" for a product of two inputs.
      arranged: makes the operator's weights of it.
      sizes: of the dimensions of the weights that become channels; the operator has one for all.
      channels: their axes in the result.
      steps: what is affine behind it.
      alpha: what a product of two inputs is multiplied by.
      source: the primitives that it stands for.
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
    alpha: float = 1.0
    source: list[str] = field(default_factory=list)

    @property
    def has_bias(self) -> bool:
        """Whether something is added behind it."""
        return any(step.operation == "add" for step in self.steps)

    def takes(
        self, equation: Equation, data: str, other: str | None, order: Sequence[int], known: Known
    ) -> bool:  # fmt: skip
        """Whether an affine equation of the result and a known value can be folded; then it is."""
        word, is_first = equation.name, equation.inputs[0] == data
        if word not in AFFINE or (word == "div" and not is_first) or not known.is_shape_kept(equation, data):
            return False
        if not self.weight:
            found = None if other is None else known.number(other)
            number = math.nan if found is None else float(found)
            if word not in ("mul", "div") or not 0 < number < math.inf:
                return False
            self.alpha = self.alpha * number if word == "mul" else self.alpha / number
        elif other is None:
            self.steps.append(Step("neg"))
        else:
            channels = tuple(order[axis] for axis in self.channels)
            if not known.varying(other) <= set(channels):
                return False
            axes = channels if known.rank(other) else ()
            if word == "sub" and not is_first:
                self.steps.append(Step("neg"))
            operation = "add" if word in ("add", "sub") else "mul"
            self.steps.append(Step(operation, other, word == "div" or (word == "sub" and is_first), axes))
        self.source.append(word)
        return True

    def folded(self, weight: np.ndarray, vectors: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """The weights and the bias with all that is affine in them, computed in float64."""
        scale, offset, of = np.ones(self.sizes), np.zeros(self.sizes), iter(vectors)
        with np.errstate(all="ignore"):  # what is not finite is found later, and its layer named
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
            if self.operator is op.CONVOLUTION:
                scale = scale.reshape(-1, *(1,) * (weight.ndim - 1))
            return (weight * scale).astype(np.float32), offset.astype(np.float32)

    def nodes(self) -> list[Node]:
        """The nodes that compute it."""
        name, source = self.name, tuple(self.source)
        weight, bias = f"{self.output}:weight", f"{self.output}:bias"
        if self.operator is op.CONVOLUTION:
            inputs = (*self.data, weight, bias) if self.has_bias else (*self.data, weight)
            return [Node(self.operator, inputs, (self.output,), self.options, name, source)]
        options = self.options if self.alpha == 1.0 else {"alpha": self.alpha}
        if not self.weight:
            return [Node(self.operator, self.data, (self.output,), options, name, source)]
        made = [Node(self.operator, (*self.data, weight), (f"{self.output}:product",), options, name, source)]
        if self.has_bias:
            made.append(Node(op.ADD, (made[-1].outputs[0], bias), (f"{self.output}:sum",), {}, name))
        if len(self.sizes) != 1:
            made.append(Node(op.SPLIT, made[-1].outputs, (f"{self.output}:split",), {"sizes": self.sizes}, name))
        made[-1] = made[-1].replace(outputs=(self.output,))
        return made
