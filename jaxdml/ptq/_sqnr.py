"""Signal-to-quantization-noise ratios: the error that each layer adds, and the error accumulated up to it."""

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._graph.evaluate import evaluate, results
from jaxdml._graph.floats import NO_SINGLE_ANSWER, ONE_ANSWER
from jaxdml._graph.graph import Graph, Node, moves, only_reading_extremes
from jaxdml._quantized import directml
from jaxdml._tables import Table
from jaxdml.ptq._build.operators import ADD, CONTRACTIONS
from jaxdml.ptq._trace.scans import LOOP
from jaxdml.ptq._trace.values import Value, factor_name, wide_name

WIDEST = 48
QUANTIZE, DEQUANTIZE, DYNAMIC = "quantize_linear", "dequantize_linear", "dynamic_product"  # kinds of nodes


@dataclass(frozen=True)
class LayerError:
    """The signal-to-quantization-noise ratio after one layer.

    The noise-to-signal ratios of a scan's results are added, as those of the outputs are; results that nothing reads,
    such as the last state of an RNN, do not count.

    Attributes:
      name: the layer's name.
      operator: the primitives that the layer computes, and the convolutions and products that it reads in floats, such
        as ``mul of stem``; these have no row of their own.
      own: the ratio in dB if the layer's inputs are exact; infinity if there is no error.
      so_far: the ratio in dB in the model, with the errors of this layer and of all earlier layers.
      clipped: the share (0 to 1) of the layer's exact values that lie more than half a step below the least or above
        the greatest number that the layer's integers represent. None if its results are floats.
      contractions: the names of the convolutions and products whose rules change the layer: those in the layer and, if
        the layer's result is quantized, the first one that reads this result. For a scan, all those in its body.
      alone: the ratio in dB at the outputs if only this layer adds its own error. None unless advice was requested.
    """

    name: str
    operator: str
    own: float
    so_far: float
    clipped: float | None
    contractions: tuple[str, ...] = ()
    alone: float | None = None


@dataclass(frozen=True)
class Advice:
    """The gains from options of a `Rule` for one convolution or product.

    Attributes:
      layer: the name of the convolution or product.
      pattern: the pattern of a `Rule` that matches this layer alone.
      gains: maps options of the rule, as code such as ``products='dynamic'``, to the gain of the outputs in dB.
      one_answer: maps the same options to whether the outputs have the same bits on every processor.
    """

    layer: str
    pattern: str
    gains: Mapping[str, float]
    one_answer: Mapping[str, bool]

    def row(self) -> tuple[str, str, str, str, str]:
        """The layer, the rule with the best option, its gain in dB, its answer, and the other options by answer."""
        gains = {option: round(gain, 1) + 0.0 for option, gain in self.gains.items()}  # + 0.0: no -0.0
        best, *others = sorted(gains, key=lambda option: -gains[option])
        answers = {option: ONE_ANSWER if is_one else NO_SINGLE_ANSWER for option, is_one in self.one_answer.items()}
        by_answer = dict[str, list[str]]()
        for option in others:
            by_answer.setdefault(answers[option], []).append(f"{option} {gains[option]:+.1f}")
        rest = "; ".join(f"{answer}: {', '.join(options)}" for answer, options in by_answer.items())
        return self.layer, f"Rule({self.pattern!r}, {best})", f"{gains[best]:+.1f}", answers[best], rest


@dataclass(frozen=True)
class Sqnr:
    """Signal-to-quantization-noise ratios of a model on some inputs.

    Attributes:
      layers: the layers with quantized results or quantized weights, in order of execution.
      outputs: the ratio in dB of each leaf of the model's output.
      output_names: the place of each leaf, such as ``output['logits']``; ``output`` if the output is an array.
      advice: the gains from rules for the worst layers; empty unless requested.
    """

    layers: tuple[LayerError, ...]
    outputs: tuple[float, ...]
    output_names: tuple[str, ...]
    advice: tuple[Advice, ...] = ()

    @property
    def total(self) -> float:
        """The ratio in dB of all outputs, from the sum of the leaves' noise-to-signal ratios."""
        return _total(self.outputs)

    def worst(self, count: int) -> list[str]:
        """The names of the convolutions and products whose layers add the most noise to the outputs, worst first."""
        noise = dict[str, float]()
        for each in self.layers:
            if each.alone is not None:
                share = 10 ** (-each.alone / 10)
                noise |= {name: noise.get(name, 0) + share for name in each.contractions}
        return sorted(noise, key=lambda name: -noise[name])[:count]

    def _table(self) -> Table:
        """A row for each layer and output."""
        header = ("layer", "computes", "own dB", "dB so far", "clipped", *(("alone dB",) if self.advice else ()))
        rows = [
            (each.name, each.operator, f"{each.own:.1f}", f"{each.so_far:.1f}", _percent(each.clipped),
             "" if each.alone is None else f"{each.alone:.1f}")[: len(header)]
            for each in self.layers
        ]  # fmt: skip
        ends = zip(self.output_names, self.outputs, strict=True)
        rows += [(name, "", "", f"{each:.1f}", "", "")[: len(header)] for name, each in ends]
        return Table("signal to quantization noise: more is better", header, rows, numbers=header[2:])

    def _tables(self) -> list[Table]:
        header = ("layer", "rule that gains most", "dB", "answer", "other options")
        advice = [Table("advice", header, [each.row() for each in self.advice], numbers=("dB",))]
        return [self._table(), *(advice if self.advice else ())]

    def _repr_html_(self) -> str:
        return "".join(each.html() for each in self._tables())

    def __str__(self) -> str:
        layers, *advice = self._tables()
        # Rules are not cut: they are code to copy.
        tables = [layers.lines(widest=WIDEST, rule="--"), *(each.lines(rule="--") for each in advice)]
        return "\n\n".join("\n".join(lines) for lines in tables)

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


def _total(ratios: Iterable[float]) -> float:
    """Combines ratios in dB: their noise-to-signal ratios are added."""
    share = sum(10 ** (-ratio / 10) for ratio in ratios)
    return -10 * math.log10(share) if share else math.inf


def _finite(ratio: float) -> float:
    return ratio if math.isfinite(ratio) else math.nan


def sqnr_of(
    floats: Graph, quantized: Graph, nodes: tuple[Sequence[Node], Sequence[Node]], constants: Mapping[str, Any],
    inputs: Mapping[str, Any], received: Sequence[Any], output_names: tuple[str, ...], *,
    contractions: Mapping[str, Sequence[str]], alone: bool,
) -> Sqnr:  # fmt: skip
    """Compares the float graph and the quantized graph, which use the same names for values.

    Args:
      floats: the float graph.
      quantized: the graph with quantize and dequantize nodes.
      nodes: the nodes of `floats` and the nodes of `quantized`, bound to their equations.
      constants: maps names to constants of the float graph.
      inputs: maps names to inputs; both graphs have the same inputs.
      received: the leaves of the output of the fused graph. Where a value lies near a tie, the fused graph may round it
        to a different step than the quantized graph does.
      output_names: the leaves of the output in words.
      contractions: maps the result of each convolution or product that does not stay in floats to its name, and the
        first result of each scan to the names of those in its body.
      alone: whether to measure the effect of each layer's own error alone on the outputs.
    """
    makers, ends = floats.producers(), _float_results(quantized)
    values = [*floats.inputs, *makers]
    of_dequantized = {str(Value(wide_name(name), "dequantized")): name for name in values}
    of_dequantized |= {str(Value(name, "dequantized")): name for name in values}
    rows = dict[str, list[str]]()  # maps the first result of each layer to its measured results
    extremes = only_reading_extremes(floats)

    @jax.jit
    def powers(constants: Mapping[str, Any], given: Mapping[str, Any], received: Sequence[Any]) -> Any:
        exact = evaluate(nodes[0], {**constants, **given})
        so_far = evaluate(nodes[1], {**quantized.constants, **given})
        own, measured, errors = {**quantized.constants, **given}, dict[str, Any](), dict[str, Any]()

        def measure(layer: str, name: str, held: str, value: Any, clipped: Any = None) -> None:
            rows.setdefault(layer, []).append(name)
            measured[name] = _powers(own[held], value), _powers(so_far[held], value), clipped
            if alone:
                error = (own[held] - value) / quantized.constants.get(factor_name(name), np.float32(1))
                errors[name] = error.astype(exact[name].dtype)

        # After `measure`, the exact value, quantized if the measured value is, replaces the measured value.
        for node in nodes[1]:
            own |= zip(node.outputs, results(node, own, lambda node, value: None), strict=False)
            output = node.outputs[0]
            if output in ends:
                for name in ends[output]:
                    if jnp.issubdtype(exact[name].dtype, jnp.number):  # random keys have no error
                        measure(output, name, name, exact[name])
                    own[name] = exact[name]
            elif node.operator.kind == DEQUANTIZE and node.inputs[0] not in quantized.constants:
                name = of_dequantized[output]
                scale, zero_point = own[node.inputs[1]], own[node.inputs[2]]
                value, dtype = exact[name].astype(jnp.float32), zero_point.dtype
                value = value * quantized.constants.get(factor_name(name), np.float32(1))
                least, greatest = _ends(value.shape, scale, zero_point)
                value = _with_extremes(value, least, greatest, extremes, name)
                if name not in measured:  # a value quantized to both 8 and 16 bits is measured at 8
                    measure(name, name, output, value, _clipped(value, least, greatest, dtype))
                own[node.inputs[0]] = directml.to_integers(value, scale, zero_point, axis=1, dtype=dtype)
                own[output] = directml.to_floats(own[node.inputs[0]], scale, zero_point, axis=1)
        expected = [exact[name] for name in floats.outputs]
        return measured, [*map(_powers, received, expected)], errors, expected

    @jax.jit
    def with_one_error(constants: Mapping[str, Any], given: Mapping[str, Any], errors: Mapping[str, Any],
                       expected: Sequence[Any], chosen: Any) -> list[Any]:  # fmt: skip
        places = {name: place for place, names in enumerate(rows.values()) for name in names}
        values = {**constants, **given}

        def err(name: str) -> None:
            if name in errors:
                values[name] = values[name] + jnp.where(places[name] == chosen, errors[name], 0)

        for name in given:
            err(name)
        for node in nodes[0]:
            values.update(zip(node.outputs, results(node, values, lambda node, value: None), strict=False))
            for name in node.outputs:
                err(name)
        return [_powers(values[name], exact) for name, exact in zip(floats.outputs, expected, strict=True)]

    measured, outputs, errors, exact = powers(dict(constants), dict(inputs), received)
    found = {
        name: _total(map(_ratio, jax.device_get(with_one_error(dict(constants), dict(inputs), errors, exact, place))))
        for place, name in enumerate(rows if alone else ())
    }
    measured, outputs = jax.device_get((measured, outputs))
    layers = []
    for name, names in rows.items():
        own, so_far, (clipped, *_) = zip(*(measured[each] for each in names), strict=True)
        share = None if clipped is None else float(clipped)
        changing = [*_computing(name, makers, contractions, measured)]
        title, operator = _label(name, makers, constants)
        if without_row := dict.fromkeys(each for each in changing if each != title):
            operator = f"{operator} of {', '.join(without_row)}"
        if name not in ends:  # all readers of the value read integers
            changing += _reading(name, floats, contractions)
        ratios = (_total(map(_ratio, own)), _total(map(_ratio, so_far)))
        layers.append(LayerError(title, operator, *ratios, share, tuple(dict.fromkeys(changing)), found.get(name)))
    return Sqnr(tuple(layers), tuple(map(_ratio, outputs)), output_names)


def _label(name: str, makers: Mapping[str, Node], constants: Container[str]) -> tuple[str, str]:
    """Name and primitives of a value's layer.

    A contraction's layer includes the bias, the clamps and the operators that only move elements after it.
    """
    maker, words = makers.get(name), list[str]()
    last = maker
    while maker is not None:
        last, words = maker, [*maker.source, *words]
        is_bias = maker.operator is ADD and maker.inputs[1] in constants
        is_fused = moves(maker) or maker.operator.kind == "clip" or is_bias
        before = makers.get(maker.inputs[0]) if is_fused else None
        maker = before if before is not None and before.operator.kind in (*CONTRACTIONS, "clip", "add") else None
    return (last.name, " + ".join(dict.fromkeys(words))) if last else (name, "input")


def _computing(
    name: str, makers: Mapping[str, Node], contractions: Mapping[str, Sequence[str]], measured: Container[str]
) -> Iterator[str]:
    """Yields the names of the contractions whose errors reach a value without passing another measured value."""
    pending = [name]
    for each in pending:
        maker = makers.get(each)
        if maker is None or (each in measured and each != name):
            continue
        if each in contractions:
            yield from contractions[each]
        else:
            pending += [before for before in maker.inputs if before not in pending]


def _reading(name: str, floats: Graph, contractions: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yields the name of the first contraction that a value leads to, if there is one."""
    readers, pending = floats.consumers(), [name]
    for each in pending:
        for reader in readers.get(each, ()):
            if reader.outputs[0] in contractions:
                yield from contractions[reader.outputs[0]][:1]
                return
            pending += [output for output in reader.outputs if output not in pending]


def _float_results(graph: Graph) -> dict[str, Sequence[str]]:
    """Maps the first result of each scan to those of its results that are read, and the float result of each integer
    contraction, with the bias added, to itself.
    """
    readers, makers, found = graph.consumers(), graph.producers(), dict[str, Sequence[str]]()
    for node in graph.nodes:
        if node.operator is LOOP:
            found[node.outputs[0]] = [name for name in node.outputs if name in readers or name in graph.outputs]
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
            found[end] = (end,)
    return found


def _ends(shape: Sequence[int], scale: Any, zero_point: Any) -> tuple[Any, Any]:
    """The ends of a grid, in arrays of this shape."""
    info: Any = np.iinfo(zero_point.dtype)
    ends = (jnp.full(shape, end, zero_point.dtype) for end in (info.min, info.max))
    least, greatest = (directml.to_floats(end, scale, zero_point, axis=1) for end in ends)
    return least, greatest


def _with_extremes(value: Any, least: Any, greatest: Any, extremes: Mapping[str, Node], name: str) -> Any:
    """The value, clamped to the grid's least (greatest) number if only a maximum (minimum) reads it."""
    while (extreme := extremes.get(name)) is not None:
        is_least = extreme.operator.name == "reduce_min"
        value, name = jnp.minimum(value, greatest) if is_least else jnp.maximum(value, least), extreme.outputs[0]
    return value


def _clipped(value: Any, least: Any, greatest: Any, dtype: Any) -> Any:
    """The share of values more than half a step beyond the ends of the grid."""
    info: Any = np.iinfo(dtype)
    step = (greatest - least) / (info.max - info.min)
    return jnp.sum((value < least - step / 2) | (value > greatest + step / 2)) / max(value.size, 1)


def _powers(value: Any, exact: Any) -> Any:
    """Sums of squares of the signal and of the noise, both divided by the largest square of the signal.

    Squares of values beyond 1e19 would overflow float32, and those of values below 1e-19 would vanish. Equal elements,
    such as the -inf of masked outputs, and elements that are NaN in both add no noise. Infinite elements and NaN add no
    signal. Random keys have neither signal nor noise.
    """
    if jnp.issubdtype(exact.dtype, jax.dtypes.prng_key):
        return np.float32(0), np.float32(0)
    dtype = jnp.complex64 if jnp.iscomplexobj(exact) else jnp.float32
    value, exact = value.astype(dtype), exact.astype(dtype)
    size = jnp.where(jnp.isfinite(exact), jnp.abs(exact), 0)
    largest = jnp.max(size, initial=0)
    unit = jnp.where(largest > 0, largest, 1)
    is_equal = (value == exact) | (jnp.isnan(value) & jnp.isnan(exact))
    noise = jnp.where(is_equal, 0, jnp.abs(value - exact))
    return jnp.sum(jnp.square(size / unit)), jnp.sum(jnp.square(noise / unit))


def _ratio(powers: Any) -> float:
    signal, noise = map(float, powers)
    share = math.inf if noise == 0 else signal / noise
    return 10 * math.log10(share) if share else -math.inf
