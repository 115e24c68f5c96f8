"""Signal-to-quantization-noise ratios: the error that each layer adds, and the error accumulated up to it."""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._graph.evaluate import evaluate, results
from jaxdml._graph.graph import Graph, Node, moves
from jaxdml._quantized import directml
from jaxdml._tables import Table
from jaxdml.ptq._build.operators import ADD, CONTRACTIONS
from jaxdml.ptq._trace.scans import LOOP
from jaxdml.ptq._trace.values import Value

WIDEST = 48
QUANTIZE, DEQUANTIZE, DYNAMIC = "quantize_linear", "dequantize_linear", "dynamic_product"  # kinds of nodes


@dataclass(frozen=True)
class LayerError:
    """The signal-to-quantization-noise ratio after one layer.

    Attributes:
      name: the layer's name.
      operator: the primitives that the layer computes.
      own: the ratio in dB if the layer's inputs are exact; infinity if there is no error.
      so_far: the ratio in dB in the model, with the errors of this layer and of all earlier layers.
      clipped: the share (0 to 1) of the layer's exact values that lie more than half a step below the least or above
        the greatest number that the layer's integers represent. None if its results are floats.
    """

    name: str
    operator: str
    own: float
    so_far: float
    clipped: float | None


@dataclass(frozen=True)
class Sqnr:
    """Signal-to-quantization-noise ratios of a model on some inputs.

    Attributes:
      layers: the layers with quantized results or quantized weights, in order of execution.
      outputs: the ratio in dB of each leaf of the model's output.
      output_names: the place of each leaf, such as ``output['logits']``; ``output`` if the output is an array.
    """

    layers: tuple[LayerError, ...]
    outputs: tuple[float, ...]
    output_names: tuple[str, ...]

    def _table(self) -> Table:
        """A row for each layer and output."""
        header = ("layer", "computes", "own dB", "dB so far", "clipped")
        rows = [
            (each.name, each.operator, f"{each.own:.1f}", f"{each.so_far:.1f}", _percent(each.clipped))
            for each in self.layers
        ]
        rows += [(name, "", "", f"{each:.1f}", "") for name, each in zip(self.output_names, self.outputs, strict=True)]
        return Table("signal to quantization noise: more is better", header, rows, numbers=header[2:])

    def _repr_html_(self) -> str:
        return self._table().html()

    def __str__(self) -> str:
        return "\n".join(self._table().lines(widest=WIDEST, ellipsis="", rule="--"))

    def plot(self, axes: Any = None) -> Any:
        """Draws both ratios of each layer.

        Args:
          axes: matplotlib axes to draw on; new axes if None.

        Returns:
          The matplotlib axes.

        Raises:
          ImportError: if matplotlib is not installed.
        """
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise ImportError("Sqnr.plot needs matplotlib: pip install 'jaxdml[plot]'") from error
        if axes is None:
            _, axes = plt.subplots(figsize=(7, 1.2 + 0.25 * len(self.layers)), layout="constrained")
        places = np.arange(len(self.layers))
        axes.barh(places, [_finite(each.own) for each in self.layers], color="#9ecae1", label="its own error")
        axes.plot([_finite(each.so_far) for each in self.layers], places, "o-", color="#d94801", label="all so far")
        axes.set_yticks(places, [each.name or each.operator for each in self.layers], fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel("signal to quantization noise (dB): more is better")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        return axes


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _finite(ratio: float) -> float:
    return ratio if math.isfinite(ratio) else math.nan


def sqnr_of(
    floats: Graph, quantized: Graph, nodes: tuple[Sequence[Node], Sequence[Node]], constants: Mapping[str, Any],
    inputs: Mapping[str, Any], output_names: tuple[str, ...],
) -> Sqnr:  # fmt: skip
    """Compares the float graph and the quantized graph, which use the same names for values.

    Args:
      floats: the float graph.
      quantized: the graph with quantize and dequantize nodes.
      nodes: the nodes of `floats` and the nodes of `quantized`, bound to their equations.
      constants: maps names to constants of the float graph.
      inputs: maps names to inputs; both graphs have the same inputs.
      output_names: the leaves of the output in words.
    """
    makers, ends = floats.producers(), _float_results(quantized)
    of_dequantized = {str(Value(name, "dequantized")): name for name in (*floats.inputs, *makers)}
    labels: dict[str, tuple[str, str]] = {}

    @jax.jit
    def powers(constants: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
        exact = evaluate(nodes[0], {**constants, **given})
        so_far = evaluate(nodes[1], {**quantized.constants, **given})
        own, measured = {**quantized.constants, **given}, dict[str, Any]()

        def measure(name: str, held: str, clipped: Any = None) -> None:
            labels[name] = _label(name, makers, constants)
            measured[name] = _powers(own[held], exact[name]), _powers(so_far[held], exact[name]), clipped

        # After `measure`, the exact value replaces the measured value, and is quantized if the measured value is.
        for node in nodes[1]:
            own |= zip(node.outputs, results(node, own, lambda node, value: None), strict=False)
            output = node.outputs[0]
            if output in ends:
                measure(output, output)
                own[output] = exact[output]
            elif node.operator.kind == DEQUANTIZE and node.inputs[0] not in quantized.constants:
                name = of_dequantized[output]
                scale, zero_point = own[node.inputs[1]], own[node.inputs[2]]
                value, dtype = exact[name].astype(jnp.float32), zero_point.dtype
                measure(name, output, _clipped(value, scale, zero_point))
                own[node.inputs[0]] = directml.to_integers(value, scale, zero_point, axis=1, dtype=dtype)
                own[output] = directml.to_floats(own[node.inputs[0]], scale, zero_point, axis=1)
        pairs = zip(quantized.outputs, floats.outputs, strict=True)
        return measured, [_powers(so_far[ours], exact[theirs]) for ours, theirs in pairs]

    measured, outputs = jax.device_get(powers(dict(constants), dict(inputs)))
    layers = [
        LayerError(*labels[name], _ratio(own), _ratio(so_far), None if clipped is None else float(clipped))
        for name, (own, so_far, clipped) in ((name, measured[name]) for name in labels)
    ]
    return Sqnr(tuple(layers), tuple(map(_ratio, outputs)), output_names)


def _label(name: str, makers: Mapping[str, Node], constants: Container[str]) -> tuple[str, str]:
    """Name and primitives of a value's layer; bias, clamps and movers after a contraction belong to its layer."""
    maker, words = makers.get(name), list[str]()
    last = maker
    while maker is not None:
        last, words = maker, [*maker.source, *words]
        is_bias = maker.operator is ADD and maker.inputs[1] in constants
        is_fused = moves(maker) or maker.operator.kind == "clip" or is_bias
        before = makers.get(maker.inputs[0]) if is_fused else None
        maker = before if before is not None and before.operator.kind in (*CONTRACTIONS, "clip", "add") else None
    return (last.name, " + ".join(dict.fromkeys(words))) if last else (name, "input")


def _float_results(graph: Graph) -> set[str]:
    """The names of the float results of scans, and of integer contractions with the bias added."""
    readers, makers, found = graph.consumers(), graph.producers(), set[str]()
    for node in graph.nodes:
        if node.operator is LOOP:
            found.add(node.outputs[0])
            continue
        weights = makers.get(node.inputs[1]) if len(node.inputs) > 1 else None
        has_integer_weights = weights is not None and weights.operator.kind == DEQUANTIZE
        is_static = node.operator.kind in CONTRACTIONS and has_integer_weights
        if not is_static and node.operator.kind != DYNAMIC:
            continue
        name = end = node.outputs[0]
        while len(behind := readers.get(name, [])) == 1 and name not in graph.outputs:
            reader = behind[0]
            is_bias = reader.operator is ADD and reader.inputs[1] in graph.constants
            if not (is_bias or reader.operator.kind == "clip" or moves(reader)):
                break
            name = reader.outputs[0]
            end = name if is_bias else end
        if not any(reader.operator.kind == QUANTIZE for reader in readers.get(name, [])):
            found.add(end)
    return found


def _clipped(value: Any, scale: Any, zero_point: Any) -> Any:
    """The share of values more than half a step beyond the ends of the grid."""
    info: Any = np.iinfo(zero_point.dtype)
    ends = (jnp.full(value.shape, end, zero_point.dtype) for end in (info.min, info.max))
    least, greatest = (directml.to_floats(end, scale, zero_point, axis=1) for end in ends)
    step = (greatest - least) / (info.max - info.min)
    return jnp.sum((value < least - step / 2) | (value > greatest + step / 2)) / max(value.size, 1)


def _powers(value: Any, exact: Any) -> Any:
    """Sums of squares of the signal and of the noise."""
    value, exact = value.astype(jnp.float32), exact.astype(jnp.float32)
    return jnp.sum(jnp.square(exact)), jnp.sum(jnp.square(value - exact))


def _ratio(powers: Any) -> float:
    signal, noise = map(float, powers)
    return math.inf if noise == 0 else 10 * math.log10(signal / noise) if signal else -math.inf
