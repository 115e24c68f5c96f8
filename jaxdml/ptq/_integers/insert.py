"""Inserts quantize and dequantize nodes into a float graph, as input for the fusing pass."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxdml._graph.graph import Graph, Node, moves, without_dead
from jaxdml.errors import PtqError
from jaxdml.ptq._build import operators as op
from jaxdml.ptq._build.rows import columns, groups_and_depth, weights
from jaxdml.ptq._choose.equalize import along_inputs
from jaxdml.ptq._choose.modes import STATIC, STATIC16, BlockMode, Mode
from jaxdml.ptq._choose.moments import MOMENTS, MOST
from jaxdml.ptq._choose.unit import Unit
from jaxdml.ptq._grids.observers import Observer
from jaxdml.ptq._grids.ranges import STEPS, quantize_weights
from jaxdml.ptq._grids.rounding import rounded
from jaxdml.ptq._integers.operators import DEQUANTIZE, DYNAMIC, QUANTIZE, TABLE
from jaxdml.ptq._integers.tables import Parameters, Tables, constants_of
from jaxdml.ptq._trace.scans import each_layer, stacked, with_body
from jaxdml.ptq._trace.values import Value, factor_name, wide_name

ALONE = "no contraction reads or writes what it quantizes"
CARRIED = "a carry of a scan has no scale of its own: in the body, apply fake_quantize to what products read"
ROUNDED_AGAIN = "fake_quantize rounds the weights to another grid: they are rounded again, {}"
MOST_STEPS = 2.0**30  # largest quantized bias; the rest of int32 is for the sum of products


def quantized_graph(
    unit: Unit, parameters: Mapping[Value, Parameters], moments: Mapping[Value, Observer] | None = None, scan: str = ""
) -> Graph:
    """The unit's graph with quantize and dequantize nodes.

    Args:
      unit: a unit with constants.
      parameters: maps each calibrated value to its scale and zero point, stacked over layers in a scan's body.
      moments: maps results of contractions to the moments of the rows from which they are computed, stacked like
        parameters; all other weights are rounded to nearest. None if there are no moments.
      scan: the first result of the scan if the unit is the body of a scan, else "".
    """
    constants: dict[str, Any] = {**unit.graph.constants, **constants_of(parameters, scan)}
    constants |= {_named(value.base, value.role): x for value, x in (moments or {}).items() if value.scan == scan}
    graph = unit.graph.replace(constants=constants)
    bodies = {name: quantized_graph(body, parameters, moments, name) for name, body in unit.bodies.items()}
    if unit.loop is None:
        return _Inserter(unit, graph, bodies, moments is not None).graph()
    return stacked([_Inserter(unit, layer, bodies, moments is not None).graph() for layer in each_layer(graph)], scan)


def _named(name: str, role: str) -> str:
    return str(Value(name, role))


def _along(axis: int, rank: int, scale: np.ndarray) -> np.ndarray:
    """Scales of channels, reshaped to broadcast against weights of this rank."""
    shape = [1] * rank
    shape[axis] = -1
    return scale.reshape(shape)


class _Inserter:
    """Inserts nodes into the graph of a unit, or of one layer of a unit."""

    def __init__(self, unit: Unit, graph: Graph, bodies: Mapping[str, Graph], has_moments: bool) -> None:
        self._has_moments = has_moments
        self._unit, self._plan, self._graph, self._bodies = unit, unit.plan, graph, bodies
        self._constants, self._remarks = dict(graph.constants), dict(unit.plan.reasons)
        self._nodes, self._makers, self._readers = list[Node](), graph.producers(), graph.consumers()
        self._tables = Tables(unit, graph)
        self._weights = {each.weight_name for each in unit.builder.contractions if each.weight}
        self._biases = {each.weight_name: each.bias_name for each in unit.builder.contractions if each.has_bias}
        self._fake = {each.weight_name for each in unit.builder.contractions if unit.has_rounded_weights(each)}

    def graph(self) -> Graph:
        """The graph with quantize and dequantize nodes."""
        for name in self._graph.inputs:
            self._quantize(name)
        for node in self._graph.nodes:
            self._insert(node)
        outputs = tuple(self._read(name, False) for name in self._graph.outputs)
        return without_dead(self._graph.replace(nodes=tuple(self._nodes), constants=self._constants, outputs=outputs))

    def _insert(self, node: Node) -> None:
        output = node.outputs[0]
        if output in self._plan.tables:
            self._append_table(node)
            return
        if node.operator is op.FAKE_QUANTIZE:
            remark = "" if self._is_beside_contraction(node) else CARRIED if self._is_carried(output) else ALONE
            self._convert(QUANTIZE, self._read(node.inputs[0], False), _named(output, "quantized"), output, remark)
            self._dequantize(output)
            return
        before = self._nodes[-1] if self._nodes else node
        if before.operator is DYNAMIC and node.operator is op.ADD and node.inputs[1] in self._biases.values():
            # The dynamic product adds the bias itself.
            self._nodes[-1] = before.replace(inputs=(*before.inputs, node.inputs[1]), outputs=node.outputs)
        else:
            mode = self._unit.modes.get(output, "float") if node.operator.kind in op.CONTRACTIONS else "float"
            inputs = tuple(self._read(name, node in self._plan.nodes, mode) for name in node.inputs)
            has_weights = mode in (*STATIC, "dynamic") and node.inputs[1] in self._weights
            if has_weights and self._scaled(node.inputs[0]) != node.inputs[0]:
                self._scale_weights(node)
                inputs = self._scaled(inputs[0]) if mode == "dynamic" else inputs[0], *inputs[1:]
            node = node.replace(inputs=inputs)
            if mode in STATIC:
                node = self._with_integer_weights(node)
            elif mode == "dynamic":
                node = self._dynamic(node)
            elif isinstance(mode, BlockMode):
                node = self._with_blocks(node, mode)
            elif output in self._bodies:
                node = self._with_body(node)
            self._nodes.append(node.replace(remark=self._remarks.get(output, node.remark)))
        for name in node.outputs:
            self._quantize(name)

    def _read(self, name: str, reads_integers: bool, mode: Mode = "float") -> str:
        """The name under which a node reads a value: that of the dequantized value if the node runs on integers, or if
        the value is computed on integers.
        """
        if mode == STATIC16 and name in self._plan.read_wide:
            return _named(wide_name(name), "dequantized")
        is_quantized = name in self._plan.quantized and (reads_integers or name in self._plan.results)
        return _named(name, "dequantized") if is_quantized else name

    def _quantize(self, name: str) -> None:
        scaled = self._scaled(name)
        if scaled != name:
            self._nodes.append(Node(op.MULTIPLY, (name, factor_name(name)), (scaled,), {}, name))
        if name in self._plan.quantized:
            self._convert(QUANTIZE, scaled, _named(name, "quantized"), name)
            self._dequantize(name)
        if name in self._plan.read_wide:
            integers, floats = (_named(wide_name(name), role) for role in ("quantized", "dequantized"))
            self._convert(QUANTIZE, scaled, integers, name, is_wide=True)
            self._convert(DEQUANTIZE, integers, floats, name, is_wide=True)

    def _scaled(self, name: str) -> str:
        """The name under which contractions read a value: that of the value with scaled channels, or its own name."""
        return _named(name, "scaled") if factor_name(name) in self._constants else name

    def _dequantize(self, name: str) -> None:
        self._convert(DEQUANTIZE, _named(name, "quantized"), _named(name, "dequantized"), name)

    def _scale_weights(self, node: Node) -> None:
        """Divides a contraction's weights by the factors of the channels that the weights multiply."""
        data, weight = node.inputs[:2]
        if weight in self._constants:
            factor, shape = self._constants[factor_name(data)], self._constants[weight].shape
            scales = along_inputs(1 / factor.reshape(-1), shape, node.options.get("group_count"))
            self._constants[weight] = self._constants[weight] * scales
            self._scale_moments(node, factor.reshape(-1))

    def _scale_moments(self, node: Node, factor: np.ndarray) -> None:
        """Turns moments of rows into moments of those rows multiplied by the factors of their channels."""
        name = _named(node.outputs[0], MOMENTS)
        if name in self._constants:
            moments: Any = self._constants[name]
            of_groups = factor.reshape(node.options.get("group_count", 1), -1)
            repeats = moments.sums.shape[-1] // of_groups.shape[-1]
            self._constants[name] = moments.multiplied(np.repeat(of_groups, repeats, 1))

    def _is_beside_contraction(self, node: Node) -> bool:
        """Whether a contraction is next to a node, not counting movers between them, nor clamps and sums before the
        node.
        """
        maker, pending = self._makers.get(node.inputs[0]), [*node.outputs]
        while maker is not None and (moves(maker) or maker.operator.kind in ("clip", "add")):
            maker = self._makers.get(maker.inputs[0])
        found = [] if maker is None else [maker]
        while pending:
            for reader in self._readers.get(pending.pop(), []):
                pending += reader.outputs if moves(reader) else ()
                found.append(reader)
        return any(each.operator.kind in op.CONTRACTIONS for each in found)

    def _is_carried(self, name: str) -> bool:
        """Whether a value is carried from step to step of a scan, or is the initial value for one."""
        loop = self._unit.loop
        if loop is not None and name in self._graph.outputs[: loop.carried]:
            return True
        readers = self._readers.get(name, [])
        scans = ((each, self._unit.bodies[each.outputs[0]].loop) for each in readers if each.outputs[0] in self._bodies)
        return any(loop and name in each.inputs[loop.first_carried :][: loop.carried] for each, loop in scans)

    def _convert(
        self, operator: Any, before: str, after: str, name: str, remark: str = "", *, is_wide: bool = False
    ) -> None:  # fmt: skip
        source = wide_name(self._plan.ranges[name]) if is_wide else self._plan.ranges[name]
        inputs = before, _named(source, "scale"), _named(source, "zero_point")
        self._nodes.append(Node(operator, inputs, (after,), {"axis": 1}, name, remark=remark))

    def _parameters(self, source: str) -> Parameters:
        return self._constants[_named(source, "scale")], self._constants[_named(source, "zero_point")]

    def _with_body(self, node: Node) -> Node:
        loop = self._unit.bodies[node.outputs[0]].loop
        assert loop is not None
        node, constants = with_body(node, self._bodies[node.outputs[0]], loop)
        self._constants |= constants
        return node

    # Weights -----------------------------------------------------------------------------------------------------

    def _with_integer_weights(self, node: Node) -> Node:
        """The contraction with dequantized int8 weights, which have a scale for each output channel."""
        data, weight, *bias = node.inputs
        if weight not in self._constants and _named(weight, "quantized") not in self._constants:
            return node
        axis = 0 if node.operator is op.CONVOLUTION else -1
        least, given = None, self._makers[node.outputs[0]].inputs[0]
        is_wide = data == _named(wide_name(given), "dequantized")
        if weight in self._constants and weight in self._biases and not is_wide:  # 16-bit layers add float biases
            scale, _ = self._parameters(self._plan.ranges[given])
            least = np.abs(self._constants[self._biases[weight]]) / (scale * MOST_STEPS)
        names = self._integer_weights(node.outputs[0], weight, axis, least)
        dequantized = _named(weight, "dequantized")
        self._nodes.append(Node(DEQUANTIZE, names, (dequantized,), {"axis": axis}, node.name))
        return node.replace(inputs=(data, dequantized, *bias))

    def _integer_weights(self, output: str, weight: str, axis: int, least: np.ndarray | None) -> tuple[str, str, str]:
        """Quantizes weights, and returns the names of the integers, scales and zero points.

        Args:
          output: name of the contraction's result.
          weight: name of the weights.
          axis: the axis of output channels.
          least: for each channel, the least scale with which the channel's bias fits int32; None if there is no bias.
        """
        names = _named(weight, "quantized"), _named(weight, "scale"), _named(weight, "zero_point")
        if names[0] in self._constants:
            return names
        w = np.asarray(self._constants.pop(weight))
        own = self._on_own_grid(weight, w, axis)
        if own is None and weight in self._fake:
            self._add_remark(output, ROUNDED_AGAIN.format("to int8 with one scale for each output channel"))
        integers, scale = own or quantize_weights(w, axis)
        if least is not None:
            # A channel of zeros is exact with any scale. It gets the scale with which its quantized bias is 2**20.
            rest = tuple(i for i in range(w.ndim) if i != axis % w.ndim)
            scale = np.where(w.any(rest) | (least == 0), scale, least * np.float32(2**10)).astype(np.float32)
        if least is not None and (scale < least).any():
            text = "have larger weight scales, so that the bias fits int32"
            self._add_remark(output, f"{int((scale < least).sum())} channels {text}")
            scale = np.maximum(scale, least).astype(np.float32)
            integers = np.rint(w / _along(axis, w.ndim, scale)).astype(np.int8)
        scale = np.asarray(scale)
        integers = self._rounded(output, w, _along(axis, w.ndim, scale), np.asarray(integers))
        arrays = integers, scale, np.zeros(scale.shape, np.int8)
        self._constants |= dict(zip(names, arrays, strict=True))
        return names

    def _on_own_grid(self, weight: str, w: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray] | None:
        """The weights as int8 with the scales that the function sets; None if it sets none, or if int8 is inexact."""
        scale = self._constants.pop(_named(weight, "grid"), None)
        if scale is None:
            return None
        steps = w / _along(axis, w.ndim, scale)
        integers = np.rint(steps)
        fits = (
            np.abs(integers - steps).max(initial=0) < 0.01
            and -128 <= integers.min(initial=0) <= integers.max(initial=0) <= 127
        )
        return (integers.astype(np.int8), scale) if fits else None

    def _rounded(self, output: str, w: np.ndarray, scale: np.ndarray, nearest: np.ndarray) -> np.ndarray:
        """The weights as integers, rounded with the moments of the rows that they multiply if these are known.

        The bias, if there is one, then corrects the mean error of the sums.

        Args:
          output: name of the contraction's result.
          w: the weights.
          scale: their scales, which broadcast to w's shape.
          nearest: the nearest integers.
        """
        moments: Any = self._constants.pop(_named(output, MOMENTS), None)
        node = self._makers[output]
        groups, bias = node.options.get("group_count"), self._biases.get(node.inputs[1], "")
        if moments is None:
            depth = groups_and_depth(w.shape, groups)[1]
            if self._has_moments and depth > MOST:
                text = f"weights are rounded to nearest: each sum has {depth} terms, more than {MOST}"
                self._add_remark(output, text)
            return nearest
        of_weights, of_scales = (columns(x, groups) for x in (w, np.broadcast_to(scale, w.shape)))
        if moments.rows < (depth := of_weights.shape[1]):
            text = f"weights are rounded with moments of {moments.rows:.0f} rows, fewer than the {depth} terms of a sum"
            self._add_remark(output, f"{text}: calibrate with more")
        mean, products = moments.means()
        integers = rounded(of_weights, of_scales, products, STEPS[nearest.dtype.name])
        errors = np.einsum("gi,gio->go", mean, integers * of_scales.astype(np.float64) - of_weights).reshape(-1)
        if bias in self._constants and errors.shape == self._constants[bias].shape:  # not a shared bias
            self._constants[bias] = (self._constants[bias] - errors).astype(np.float32)
        return weights(integers, w.shape, groups).astype(nearest.dtype)

    def _add_remark(self, output: str, remark: str) -> None:
        before = self._remarks.get(output)
        self._remarks[output] = f"{before}; {remark}" if before else remark

    def _dynamic(self, node: Node) -> Node:
        inputs = node.inputs
        if inputs[1] in self._constants or _named(inputs[1], "quantized") in self._constants:
            inputs = inputs[0], *self._integer_weights(node.outputs[0], inputs[1], -1, None)[:2]
        return node.replace(operator=DYNAMIC, inputs=inputs)

    def _with_blocks(self, node: Node, blocks: BlockMode) -> Node:
        """The product with dequantized weights that have a scale for each block along the contraction dimension."""
        weight = node.inputs[1]
        names = _named(weight, "quantized"), _named(weight, "scale"), _named(weight, "zero_point")
        if names[0] not in self._constants:
            w = np.asarray(self._constants.pop(weight))
            if w.ndim != 2:
                text = f"the weights of {node.name!r} have {w.ndim} dimensions, and only matrices have blocks"
                pattern = f"^{re.escape(node.name)}$"
                raise PtqError(f"{text}: quantize with Rule({pattern!r}, products='static')")
            if weight in self._fake:
                self._add_remark(node.outputs[0], ROUNDED_AGAIN.format("in blocks"))
            made = quantize_weights(w, 1, dtype=blocks.dtype, block_size=blocks.size)
            nearest, scale = (np.asarray(each).T for each in made)
            scales = np.repeat(scale, blocks.size, 0)[: len(w)]
            integers = self._rounded(node.outputs[0], w, scales, nearest)
            arrays = integers, scale, np.zeros(scale.shape, integers.dtype)
            self._constants |= dict(zip(names, arrays, strict=True))
        dequantized, options = _named(weight, "dequantized"), {"axis": 0, "block_size": blocks.size}
        self._nodes.append(Node(DEQUANTIZE, names, (dequantized,), options, node.name))
        return node.replace(inputs=(node.inputs[0], dequantized))

    # Tables ------------------------------------------------------------------------------------------------------

    def _append_table(self, node: Node) -> None:
        name = node.outputs[0]
        source = tuple(word for each in self._tables.within(name) for word in each.source)
        inputs = _named(self._plan.tables[name], "quantized"), _named(name, "table")
        if inputs[1] not in self._constants:
            self._constants[inputs[1]] = self._tables.table(name, self._constants)
        self._nodes.append(Node(TABLE, inputs, (_named(name, "quantized"),), {}, node.name, source))
        self._dequantize(name)
