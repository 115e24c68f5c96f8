"""Which layer hurts: the error that each layer makes by itself, beside all errors so far."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._graph.evaluate import evaluate, results
from jaxdml._graph.graph import Graph, Node, moves
from jaxdml._tables import Table
from jaxdml.ptq._loops import LAYERS
from jaxdml.ptq._operators import ADD, DEQUANTIZE, DYNAMIC, QUANTIZE
from jaxdml.ptq._plan import CONTRACTIONS

WIDEST = 48


@dataclass(frozen=True)
class LayerError:
    """The signal-to-quantization-noise ratio behind one layer.

    Attributes:
      name: the layer's.
      operator: what it computes.
      own: the ratio in dB where everything before the layer is exact; infinity if there is no error.
      so_far: the ratio in dB of the model.
    """

    name: str
    operator: str
    own: float
    so_far: float


@dataclass(frozen=True)
class Sqnr:
    """Signal-to-quantization-noise ratios of a model on some inputs.

    Attributes:
      layers: in order, those whose results are quantized or whose weights are.
      outputs: the ratio of each output of the model in dB, in the order of its leaves.
    """

    layers: tuple[LayerError, ...]
    outputs: tuple[float, ...]

    def _table(self) -> Table:
        """A row for each layer and output."""
        header = ("layer", "computes", "own dB", "dB so far")
        rows = [(each.name, each.operator, f"{each.own:.1f}", f"{each.so_far:.1f}") for each in self.layers]
        rows += [(f"output {number}", "", "", f"{each:.1f}") for number, each in enumerate(self.outputs)]
        return Table("signal to quantization noise: more is better", header, rows, numbers=header[2:])

    def _repr_html_(self) -> str:
        return self._table().html()

    def __str__(self) -> str:
        return "\n".join(self._table().lines(widest=WIDEST, ellipsis="", rule="--"))

    def plot(self, axes: Any = None) -> Any:
        """Draws both ratios of each layer; returns matplotlib's axes.

        Args:
          axes: those of matplotlib to draw on; new ones if None.

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


def _finite(ratio: float) -> float:
    return ratio if math.isfinite(ratio) else math.nan


def sqnr_of(
    floats: Graph, quantized: Graph, nodes: tuple[Sequence[Node], Sequence[Node]], constants: Mapping[str, Any],
    inputs: Mapping[str, Any],
) -> Sqnr:  # fmt: skip
    """The ratios of a graph with quantize nodes beside the graph in floats, whose values have the same names.

    Args:
      floats: the graph in floats.
      quantized: the graph with quantize and dequantize nodes.
      nodes: the nodes of both, with the equations that they run.
      constants: those of the graph in floats.
      inputs: by name.
    """
    makers, ends = floats.producers(), _float_results(quantized)
    labels: dict[str, tuple[str, str]] = {}

    @jax.jit
    def powers(constants: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
        exact = evaluate(nodes[0], {**constants, **given})
        so_far = evaluate(nodes[1], {**quantized.constants, **given})
        own, measured = {**quantized.constants, **given}, dict[str, Any]()

        def measure(name: str, held: str) -> None:
            labels[name] = _label(name, makers)
            measured[name] = _powers(own[held], exact[name]), _powers(so_far[held], exact[name])

        # Behind each measurement the layers that follow read exact values, as they are or quantized.
        for node in nodes[1]:
            own |= zip(node.outputs, results(node, own, lambda node, value: None), strict=False)
            output = node.outputs[0]
            if output in ends:
                measure(output, output)
                own[output] = exact[output]
            elif node.operator is DEQUANTIZE and node.inputs[0] not in quantized.constants:
                name = output.removesuffix(":dequantized")
                measure(name, output)
                parameters = own[node.inputs[1]], own[node.inputs[2]]
                own[node.inputs[0]] = QUANTIZE.function(exact[name], *parameters)
                own[output] = DEQUANTIZE.function(own[node.inputs[0]], *parameters)
        pairs = zip(quantized.outputs, floats.outputs, strict=True)
        return measured, [_powers(so_far[ours], exact[theirs]) for ours, theirs in pairs]

    measured, outputs = jax.device_get(powers(dict(constants), dict(inputs)))
    layers = [LayerError(*labels[name], *map(_ratio, measured[name])) for name in labels]
    return Sqnr(tuple(layers), tuple(map(_ratio, outputs)))


def _label(name: str, makers: Mapping[str, Node]) -> tuple[str, str]:
    """What a value's layer is called and computes: that of the contraction before clamps and movers."""
    maker, words = makers.get(name), list[str]()
    last = maker
    while maker is not None:
        last, words = maker, [*maker.source, *words]
        is_bias = maker.operator is ADD and maker.inputs[1].endswith(":bias")
        is_behind = moves(maker) or maker.operator.kind == "clip" or is_bias
        before = makers.get(maker.inputs[0]) if is_behind else None
        maker = before if before is not None and before.operator.kind in (*CONTRACTIONS, "clip", "add") else None
    return (last.name, " + ".join(dict.fromkeys(words))) if last else (name, "input")


def _float_results(graph: Graph) -> set[str]:
    """What contractions on integers give in floats, bias and all."""
    readers, makers, found = graph.consumers(), graph.producers(), set[str]()
    for node in graph.nodes:
        if node.operator is LAYERS:
            found.add(node.outputs[0])
            continue
        weights = makers.get(node.inputs[1]) if len(node.inputs) > 1 else None
        is_quantized = weights is not None and weights.operator is DEQUANTIZE
        if node.operator is not DYNAMIC and not (node.operator.kind in CONTRACTIONS and is_quantized):
            continue
        name = end = node.outputs[0]
        while len(behind := readers.get(name, [])) == 1 and name not in graph.outputs:
            reader = behind[0]
            is_bias = reader.operator is ADD and reader.inputs[1] in graph.constants
            if not (is_bias or reader.operator.kind == "clip" or moves(reader)):
                break
            name = reader.outputs[0]
            end = name if is_bias else end
        if not any(reader.operator is QUANTIZE for reader in readers.get(name, [])):
            found.add(end)
    return found


def _powers(value: Any, exact: Any) -> Any:
    """The sums of squares of a signal and of its noise."""
    value, exact = value.astype(jnp.float32), exact.astype(jnp.float32)
    return jnp.sum(jnp.square(exact)), jnp.sum(jnp.square(value - exact))


def _ratio(powers: Any) -> float:
    signal, noise = map(float, powers)
    return math.inf if noise == 0 else 10 * math.log10(signal / noise) if signal else -math.inf
