"""Scales channels of a unit: the float function stays the same, and loses less accuracy when it is quantized.

The weights of a contraction that makes scaled channels are divided by the scales, and the weights of the contractions
that read these channels are multiplied by the scales. For a value in floats, a constant holds the reciprocals of its
scales, by which the value is multiplied before contractions read it. The float graph contains neither this
multiplication nor the weights that compensate for it: both are added when quantize and dequantize nodes are inserted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jaxdml.ptq._build import operators as op
from jaxdml.ptq._choose.edges import Edge
from jaxdml.ptq._choose.scales import scales_of
from jaxdml.ptq._choose.unit import Unit, of_body
from jaxdml.ptq._grids.channels import Channels
from jaxdml.ptq._grids.observers import Observer
from jaxdml.ptq._trace.scans import each_layer, stacked
from jaxdml.ptq._trace.values import Value, factor_name

CHANNELS = "channels"  # the role of the observer of a value's channels
Edges = Mapping[str, Sequence[Edge]]  # maps "" (the function) and each scan to edges


def observers_of(unit: Unit, edges: Edges) -> dict[Value, Observer]:
    """The observers of the channels that are to be scaled; observers in bodies are stacked over layers."""
    found = dict[Value, Observer]()
    for scan, each in unit.each():
        for reader in (reader for edge in edges[scan] for reader in edge.readers):
            observer = Channels.of(len(reader.channels), reader.axis)
            found[Value(reader.value, CHANNELS, scan)] = of_body(observer, each.loop)
    return found


def with_ones(unit: Unit, edges: Edges) -> Unit:
    """The unit with factors of 1 for each value in floats whose channels can be scaled."""

    def changed(each: Unit, scan: str) -> dict[str, Any]:
        copies = () if each.loop is None else (each.loop.copies,)
        ones = {name: np.ones((*copies, *edge.shape), np.float32) for name, edge in _of_floats(edges[scan]).items()}
        return {**each.graph.constants, **ones}

    return _with_constants(unit, changed)


def without_ones(unit: Unit, edges: Edges) -> Unit:
    """The unit without factors that are all 1."""

    def changed(each: Unit, scan: str) -> dict[str, Any]:
        names, constants = _of_floats(edges[scan]), each.graph.constants
        return {name: x for name, x in constants.items() if name not in names or (x != 1).any()}

    return _with_constants(unit, changed)


def _of_floats(edges: Sequence[Edge]) -> dict[str, Edge]:
    return {factor_name(edge.readers[0].value): edge for edge in edges if edge.maker is None}


def _with_constants(unit: Unit, changed: Callable[[Unit, str], dict[str, Any]], scan: str = "") -> Unit:
    bodies = {name: _with_constants(body, changed, name) for name, body in unit.bodies.items()}
    return replace(unit, graph=unit.graph.replace(constants=changed(unit, scan)), bodies=bodies)


def equalized(unit: Unit, edges: Edges, seen: Mapping[Value, Observer]) -> tuple[Unit, dict[str, np.ndarray]]:
    """The unit with scaled channels, and a dict of the factors of weights and biases outside of scans.

    Args:
      unit: a unit from `with_ones`.
      edges: the edges of the unit, and of its bodies.
      seen: maps values to the observers of their channels after the first batch.
    """
    factors = dict[str, dict[str, np.ndarray]]()

    def changed(each: Unit, scan: str) -> dict[str, Any]:
        own: Any = {value.base: x for value, x in seen.items() if (value.role, value.scan) == (CHANNELS, scan)}

        def scaled(constants: Mapping[str, Any], seen: Mapping[str, Channels]) -> dict[str, Any]:
            factors[scan] = factors_of(edges[scan], constants, scales_of(edges[scan], constants, seen))
            return multiplied(constants, factors[scan])

        if each.loop is None:
            return scaled(each.graph.constants, own)
        layers = [
            layer.replace(constants=scaled(layer.constants, jax.tree.map(lambda x, place=place: x[place], own)))
            for place, layer in enumerate(each_layer(each.graph))
        ]
        return dict(stacked(layers, scan).constants)

    unit = _with_constants(unit, changed)
    of_floats = _of_floats(edges[""])
    return unit, {name: x for name, x in factors[""].items() if name not in of_floats}


def multiplied(constants: Mapping[str, Any], factors: Mapping[str, Any]) -> dict[str, Any]:
    """The constants, each multiplied by its factor if it has one."""
    return {name: x * factors[name] if name in factors else x for name, x in constants.items()}


def factors_of(
    edges: Sequence[Edge], constants: Mapping[str, Any], scales_of_edges: Sequence[np.ndarray | None]
) -> dict[str, np.ndarray]:
    """Maps the names of constants to the factors that divide channels by scales and adapt the weights.

    Args:
      edges: the edges.
      constants: the constants; the factors of values in floats are still 1.
      scales_of_edges: for each edge, the positive scales of its channels, or None.
    """
    found = dict[str, np.ndarray]()
    for edge, scales in zip(edges, scales_of_edges, strict=True):
        if scales is None:
            continue
        inverse = np.float32(1) / scales
        if edge.maker is None:
            found[factor_name(edge.readers[0].value)] = inverse.reshape(edge.shape)
            continue
        weight, bias = edge.maker.weight_name, edge.maker.bias_name
        is_filter = edge.maker.operator is op.CONVOLUTION
        along = inverse.reshape(-1, *(1,) * (constants[weight].ndim - 1)) if is_filter else inverse
        pairs = [(weight, along), *([(bias, inverse)] if edge.maker.has_bias else [])]
        pairs += [
            (each.weight, along_inputs(scales[each.channels], constants[each.weight].shape, each.groups))
            for each in edge.readers
        ]
        for name, factor in pairs:
            found[name] = found[name] * factor if name in found else factor
    return found


def along_inputs(scales: np.ndarray, shape: Sequence[int], groups: int | None) -> np.ndarray:
    """Scales of the channels that a contraction reads, in a shape that broadcasts against its weights.

    Args:
      scales: a number for each channel.
      shape: the shape of the weights.
      groups: the number of groups of a convolution; None for a product.
    """
    if groups is None:
        return scales[:, None]
    of_groups = np.broadcast_to(scales.reshape(groups, 1, shape[1]), (groups, shape[0] // groups, shape[1]))
    return of_groups.reshape(*shape[:2], *(1,) * (len(shape) - 2))
