"""Concise builders of small ONNX models with QuantizeLinear, an operator and DequantizeLinear."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

MICROSOFT = "com.microsoft"
DTYPES = {
    "u8": np.uint8, "s8": np.int8, "u16": np.uint16, "s16": np.int16, "s32": np.int32, "u4": ml_dtypes.uint4,
    "s4": ml_dtypes.int4, "s64": np.int64, "f32": np.float32, "f16": np.float16, "bool": np.bool_,
}  # fmt: skip
ZERO_POINTS = {"u8": 121, "s8": 3, "u16": 2011, "s16": -5, "s32": 0, "u4": 7, "s4": -1}
# Ranges of random values: those of 16-bit types and of int8 weights are so small that no sum rounds or saturates.
RANGES = {
    "u8": (0, 256), "s8": (-128, 128), "u16": (0, 4001), "s16": (-2000, 2001), "s32": (-900, 901), "u4": (0, 16),
    "s4": (-8, 8), "s64": (0, 2), "bool": (0, 2),
}  # fmt: skip
WEIGHTS = RANGES | {"s8": (-64, 64)}


@dataclass(frozen=True)
class Grid:
    """A type of integers, their scale and zero point. None stands for no zero point, "" for the type's usual one."""

    dtype: str
    scale: Any = 0.0213
    zero_point: Any = ""
    axis: int | None = None
    block_size: int | None = None
    scale_dtype: str = "f32"

    def but(self, **changes):
        return dataclasses.replace(self, **changes)

    @property
    def offset(self):
        return ZERO_POINTS[self.dtype] if isinstance(self.zero_point, str) else self.zero_point


@dataclass(frozen=True)
class Value:
    """An operand; `by` is its source.

    "input": integer inputs of the graph, dequantized. "constant": constant integers, dequantized. "pair": float inputs
    of the graph, quantized and dequantized. "folded": constant floats, quantized and dequantized. Without a grid:
    floats, graph inputs ("input") or constant.
    """

    shape: tuple[int, ...]
    grid: Grid | None = None
    by: str = "input"

    def but(self, **changes):
        own = {name: changes.pop(name) for name in ("shape", "grid", "by") if name in changes}
        value = dataclasses.replace(self, **own)
        return dataclasses.replace(value, grid=value.grid.but(**changes)) if changes else value


class Builder:
    """Collects nodes of one model; all random values come from one seed."""

    def __init__(self, opset=21, domain=""):
        self.opset, self.domain = opset, domain
        self._nodes, self._constants, self._inputs, self._outputs = [], [], [], []
        self._random = np.random.default_rng(7)
        self._count = 0

    def _name(self, prefix):
        self._count += 1
        return f"{prefix}{self._count}"

    def input(self, shape, dtype="f32"):
        name = self._name("x")
        self._inputs.append(_declared(name, dtype, shape))
        return name

    def output(self, name, dtype="f32"):
        self._outputs.append(_declared(name, dtype, None))

    def constant(self, values, dtype=None):
        name = self._name("c")
        self._constants.append(numpy_helper.from_array(np.asarray(values, DTYPES.get(dtype)), name))
        return name

    def drawn(self, shape, dtype="f32"):
        return self.constant(drawn(self._random, shape, dtype, WEIGHTS))

    def node(self, op, *inputs, count=1, domain="", **attributes):
        names = [self._name("v") for _ in range(count)]
        self._nodes.append(helper.make_node(op, list(inputs), names, domain=domain, **attributes))
        return names[0] if count == 1 else names

    def _with_grid(self, op, value, grid):
        numbers = [self.constant(grid.scale, grid.scale_dtype)]
        if grid.offset is not None:
            numbers.append(self.constant(grid.offset, grid.dtype))
        given = {"axis": grid.axis, "block_size": grid.block_size}
        attributes = {name: number for name, number in given.items() if number is not None}
        return self.node(op, value, *numbers, domain=self.domain, **attributes)

    def quantize(self, value, grid):
        return self._with_grid("QuantizeLinear", value, grid)

    def dequantize(self, value, grid):
        return self._with_grid("DequantizeLinear", value, grid)

    def pair(self, value, grid):
        return self.dequantize(self.quantize(value, grid), grid)

    def value(self, each):
        """The name of a float tensor for a Value or an array; "" for None, which is absent; names are kept."""
        if each is None or isinstance(each, str):
            return each or ""
        if not isinstance(each, Value):
            return self.constant(each)
        if each.grid is None:
            return self.input(each.shape) if each.by == "input" else self.drawn(each.shape)
        if each.by in ("pair", "folded"):
            return self.pair(self.input(each.shape) if each.by == "pair" else self.drawn(each.shape), each.grid)
        of = self.input if each.by == "input" else self.drawn
        return self.dequantize(of(each.shape, each.grid.dtype), each.grid)

    def finish(self, value, to):
        """Outputs a value: as float32, as the type `to`, or quantized to a Grid; with [Grid], also dequantized."""
        if to is None or isinstance(to, str):
            self.output(value, to or "f32")
        elif isinstance(to, list):
            self.output(self.pair(value, to[0]))
        else:
            self.output(self.quantize(value, to), to.dtype)

    def then(self, value, steps):
        """A value after further operators; a step is an operator's name, or its name, inputs and attributes."""
        for step in steps:
            op, *inputs, attributes = (step, {}) if isinstance(step, str) else step
            value = self.node(op, value, *map(self.value, inputs), **attributes)
        return value

    def model(self):
        graph = helper.make_graph(self._nodes, "graph", self._inputs, self._outputs, self._constants)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10 if self.opset < 23 else 11)


def single(op, *values, to=None, then=(), before=(), opset=21, domain="", **attributes):
    """The model of one operator: its inputs, other operators before and after it, and its kind of output."""
    build = Builder(opset, domain)
    first, *others = (build.value(each) for each in values)
    result = build.node(op, build.then(first, before), *others, **attributes)
    build.finish(build.then(result, then), to)
    return build.model()


def drawn(random, shape, dtype, ranges=RANGES):
    """Random values; floats are multiples of 2**-9, so that sums of them and products of few bits are exact."""
    if dtype in ("f32", "f16"):
        return np.asarray(random.integers(-1500, 1501, shape) * 2.0**-9, DTYPES[dtype])
    return np.asarray(random.integers(*ranges[dtype], shape)).astype(DTYPES[dtype])


def random_inputs(model):
    """Random values for a model's inputs, by name."""
    random, words = np.random.default_rng(11), {np.dtype(dtype): word for word, dtype in DTYPES.items()}
    found = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        word = words[helper.tensor_dtype_to_np_dtype(tensor.elem_type)]
        found[value.name] = drawn(random, [size.dim_value for size in tensor.shape.dim], word)
    return found


def _declared(name, dtype, shape):
    return onnx.helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(DTYPES[dtype])), shape)
