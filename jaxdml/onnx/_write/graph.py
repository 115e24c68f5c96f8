"""Writes the nodes of a quantized function as the nodes of an ONNX graph."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from onnx import helper

from jaxdml._graph.evaluate import evaluate, results
from jaxdml._graph.graph import MOVERS, ROUNDING, Node
from jaxdml.onnx._write import (  # noqa: F401 # they add writers to the tables
    contractions,
    dynamic,
    elementwise,
    functions,
    indexing,
    integers,
    movers,
    reductions,
    updates,
    windows,
)
from jaxdml.onnx._write.dimensions import is_known
from jaxdml.onnx._write.gelu import with_gelu
from jaxdml.onnx._write.norms import SPREADS, with_norms
from jaxdml.onnx._write.pairs import add_pairs
from jaxdml.onnx._write.problems import CUT, TABLE, Problems
from jaxdml.onnx._write.table import EQUATIONS, INTEGERS, OPERATORS, CannotWrite, Write
from jaxdml.onnx._write.types import wrong_types
from jaxdml.onnx._write.writer import QDQ, Grid, Options, Writer, data_type, stored_type
from jaxdml.ptq._integers.flat import Flat, Function
from jaxdml.ptq._integers.operators import QUANTIZE

GRIDS = {"conv": 6, "dot": 6, "gemm": 7, "add": 6, "mul": 6, "concat": 0, "mean": 3, "window_mean": 3}
SIZE, SELECT = "dim_as_value", "select_n"
SIGNED = (
    "values between layers are int8, and no provider multiplies int8 by uint8: write weights='int8', or quantize with "
    "activations=jnp.uint8"
)
OPERAND, KERNEL = "jaxdml_operand", "jaxdml_kernel"  # primitives in calls of jaxdml's operators
OF_OPERATORS = (
    "it is a call of a jaxdml operator",
    "compute in floats there, and let ptq.quantize choose the integers",
)
OF_BITS = (
    "it reads the bits of numbers, as jaxdml.exact does",
    f"if the function calls jaxdml.exact, leave that out, and quantize with floats='exact'; else {CUT}",
)
OPEN_PADDING = (
    "its padding depends on the sizes of the inputs, as that of 'SAME' with strides does",
    "write a number for the size of each axis that it pads, or give explicit padding, such as ((1, 1),)",
)
OUTSIDE = "compute what depends on it outside of the function, and make the results inputs"
CONVERT = "compute in jnp.float32 or jnp.int32 there"


def graph_of(
    flat: Flat, inputs: Sequence[Any], names: tuple[Sequence[str], Sequence[str]], options: Options
) -> tuple[onnx.GraphProto, dict[str, np.ndarray], list[str]]:
    """The graph of a quantized function, its initializers, and the reasons why nodes could not be written.

    Args:
      flat: the function.
      inputs: shapes and types of its inputs; sizes may be symbolic.
      names: the names of inputs and outputs in the file.
      options: how the function is written.
    """
    unknown = Problems()
    for node in flat.nodes:
        if not _has_known_padding(node):
            unknown.add(node, CannotWrite(*OPEN_PADDING))
    if unknown.texts():  # operators on integers would refuse such padding without naming a remedy
        return onnx.GraphProto(), {}, unknown.texts()
    return _Graph(flat, inputs, options).written(*names)


class _Graph:
    """Writes one function."""

    def __init__(self, flat: Flat, inputs: Sequence[Any], options: Options) -> None:
        self._flat, self._inputs, self._options = flat, inputs, options
        self._writer = Writer(options, flat.shapes(inputs), flat.constants)
        self._problems = Problems()
        self._of = dict[str, Node]()  # maps nodes of the file to those of the function
        self._named = set[str]()  # the outputs of the file so far
        self._steps = _read_by_tables(flat)
        self._calls = _calls(flat.nodes)

    def written(
        self, inputs: Sequence[str], outputs: Sequence[str]
    ) -> tuple[onnx.GraphProto, dict[str, np.ndarray], list[str]]:
        writer, flat = self._writer, self._flat
        self._check_types(inputs)
        if self._problems.texts():
            return onnx.GraphProto(), {}, self._problems.texts()
        given = [writer.fresh(name) for name in inputs]
        outputs = [writer.fresh(name) for name in outputs]
        for name, value, struct in zip(flat.inputs, given, self._inputs, strict=True):
            writer.bind(name, value)
            writer.dimensions.add(value, struct.shape)
            if stored_type(struct.dtype) != struct.dtype:
                with writer.layer(value):
                    writer.bind(name, writer.emit("Cast", value, to=data_type(struct.dtype)))
        nodes, results = self._unknown()
        nodes = with_norms(with_gelu(nodes, writer.constants, results), writer, results)
        for node in nodes:
            with writer.layer(node.name or node.outputs[0]):
                self._write(node)
        if self._problems.texts():
            return onnx.GraphProto(), {}, self._problems.texts()
        declared = [
            self._output(name, output, flat.program.avals[of].dtype)
            for name, output, of in zip(results, outputs, flat.program.outputs, strict=True)
        ]
        add_pairs(writer)
        values = [_value(name, x.shape, x.dtype) for name, x in zip(given, self._inputs, strict=True)]
        used = {name for node in writer.nodes for name in node.input}
        initializers = {name: value for name, value in writer.initializers.items() if name in used}
        graph = helper.make_graph(writer.nodes, "model", values, declared)
        graph.value_info.extend(self._types({*given, *outputs}))
        for name, reason in wrong_types(graph, initializers, self._options.opset):
            of = self._of.get(name)  # none for a node of the file that only names an input or an output
            is_table = of is not None and of.operator.name == TABLE
            if of is None:
                self._problems.add_text(f"{name!r}: {reason}; {CONVERT}")
            else:
                self._problems.add(of, CannotWrite(reason, "" if is_table else CONVERT))
        return graph, initializers, self._problems.texts()

    def _check_types(self, inputs: Sequence[str]) -> None:
        """Adds a problem for each input whose type ONNX lacks."""
        for name, struct in zip(inputs, self._inputs, strict=True):
            try:
                data_type(struct.dtype)
            except CannotWrite as reason:
                self._problems.add_text(f"input {name!r}: {reason}; {OUTSIDE}")

    def _output(self, name: str, output: str, dtype: Any) -> onnx.ValueInfoProto:
        """Names a result of the function, and declares it as an output."""
        writer, struct = self._writer, self._writer.shapes[name]
        value, computed = writer.read(name), {each for node in writer.nodes for each in node.output}
        with writer.layer(output):
            if stored_type(dtype) != dtype or stored_type(struct.dtype) != stored_type(dtype):
                value = writer.emit("Cast", value, to=int(helper.np_dtype_to_tensor_dtype(jnp.dtype(dtype))))
            elif value not in computed or value in self._named:
                value = writer.emit("Identity", value)
        writer.rename(value, output)
        self._named.add(output)
        return _value(output, struct.shape, dtype)

    # Nodes -------------------------------------------------------------------------------------------------------

    def _unknown(self) -> tuple[list[Node], list[str]]:
        """The nodes whose results depend on data, and the names of the function's results."""
        nodes, same = list[Node](), dict[str, str]()
        for given in self._flat.nodes:
            node = given.replace(inputs=tuple(same.get(name, name) for name in given.inputs))
            self._spread(node)
            before = self._same(node)
            if before is not None:
                same[node.outputs[0]] = before
            elif not self._folded(node):
                nodes.append(node)
        return nodes, [same.get(name, name) for name in self._flat.outputs]

    def _spread(self, node: Node) -> None:
        """Records the number that all elements of a result equal, if the node repeats a known number."""
        number = self._writer.number(node.inputs[0]) if _primitive(node) in SPREADS else None
        if number is not None:
            self._writer.numbers[node.outputs[0]] = number

    def _same(self, node: Node) -> str | None:
        """The input that a node returns unchanged: x for x - 0, the case that a select with a known selector chooses,
        or a marked operand; else None.
        """
        writer, word = self._writer, _primitive(node)
        which = writer.number(node.inputs[0]) if word == SELECT else None
        case = ""
        if which is not None:
            case = node.inputs[1 + int(which)]
        elif word == OPERAND or (word == "sub" and writer.number(node.inputs[1]) == 0):
            case = node.inputs[0]
        return case if case and writer.shape(case) == writer.shape(node.outputs[0]) else None

    def _folded(self, node: Node) -> bool:
        """Whether a node's inputs and the sizes of its results are known; if so, the results become constants."""
        constants = self._writer.constants
        sizes = (size for name in node.outputs for size in self._writer.shape(name))
        if _primitive(node) == SIZE or not (
            constants.keys() >= set(filter(None, node.inputs)) and all(map(is_known, sizes))
        ):
            return False
        values = results(node, constants, lambda node, value: None)
        constants |= dict(zip(node.outputs, map(_as_constant, values), strict=False))
        grid = self._grid(node)
        if grid is not None:
            self._writer.grids |= dict.fromkeys(node.outputs, grid)
        return True

    def _write(self, node: Node) -> None:
        writer = self._writer
        grid = self._grid(node)
        if grid is not None:
            writer.grids |= dict.fromkeys(node.outputs, grid)
            if grid[1].dtype == np.int8 and self._options.weights == "uint8":
                self._problems.add_text(SIGNED)
            writer.steps |= self._steps.intersection(node.outputs)
        start = len(writer.nodes)
        try:
            if _scope(node) in self._calls:
                node = node.replace(source=(_scope(node).split("/")[-1],))  # the operator, not one of its equations
                raise CannotWrite(*OF_OPERATORS)
            made = self._values(node, grid)
        except CannotWrite as reason:
            self._problems.add(node, reason)
            made = tuple(node.outputs)
        made = (made,) if isinstance(made, str) else made
        self._of |= dict.fromkeys((each.name for each in writer.nodes[start:]), node)
        own = {name for each in writer.nodes[start:] for name in each.output}
        for name, value in zip(node.outputs, made, strict=True):
            writer.bind(name, value)
            if value in own:
                writer.rename(value, writer.fresh(name), start)

    def _grid(self, node: Node) -> Grid | None:
        """The scale and zero point of the integers that a node returns; None if it returns something else."""
        writer, name = self._writer, node.operator.name
        if name == TABLE:
            return self._flat.functions[node.outputs[0]].y
        if node.operator.name == QUANTIZE.name:
            return integers.grid_of(writer, node, 1)
        if node.operator.is_quantized and name in GRIDS:
            return integers.grid_of(writer, node, GRIDS[name])
        moves = node.operator.kind in MOVERS and node.operator.kind != "order"
        if node.inputs and (moves or (name == "pad" and node.operator.is_quantized)):
            return writer.grids.get(node.inputs[0])
        return None

    def _values(self, node: Node, grid: Grid | None) -> str | tuple[str, ...]:
        writer = self._writer
        if node.operator.name == TABLE:
            return self._table(node, self._flat.functions[node.outputs[0]])
        write, x = _find(node), node.inputs[0] if node.inputs else ""
        moves_integers = x in writer.grids and x not in writer.steps and node.operator.kind in MOVERS
        is_alone = writer.options.form != QDQ and x in writer.grids and writer.grids[x][1].dtype.itemsize == 1
        if not moves_integers or is_alone:
            return write(writer, node)
        with writer.reading(x, writer.to_floats(x)):
            made = write(writer, node)
        if grid is None:  # results that are not quantized, such as the indices of argmax
            return made
        pairs = zip(node.outputs, (made,) if isinstance(made, str) else made, strict=True)
        return tuple(writer.to_integers(value, grid, name) for name, value in pairs)

    # Tables ------------------------------------------------------------------------------------------------------

    def _table(self, node: Node, function: Function) -> str:
        """A table as a look-up, or as its float function between DequantizeLinear and QuantizeLinear."""
        writer, x = self._writer, node.inputs[0]
        if writer.options.tables == "gather":
            return functions.look_up(writer, node, function)
        names = self._named_inside(node, function)
        writer.bind(names[function.of], writer.to_floats(x, function.x))
        for each in with_gelu(function.nodes, function.numbers, [function.result]):
            inputs, outputs = (tuple(names[name] for name in some) for some in (each.inputs, each.outputs))
            renamed, is_last = each.replace(inputs=inputs, outputs=outputs), each.outputs[0] == function.result
            with writer.layer(node.name if is_last else f"{node.name}/{each.name.split('/')[-1]}"):
                value = _find(renamed)(writer, renamed)
            writer.bind(renamed.outputs[0], str(value))
        return writer.to_integers(writer.read(names[function.result]), function.y, node.outputs[0])

    def _named_inside(self, node: Node, function: Function) -> dict[str, str]:
        """Maps the values of a function to new names, and gives their shapes and constants to the writer."""
        writer, result = self._writer, node.outputs[0]
        # Shapes are inferred for a single number, because lax.select does not take numbers together with an array.
        found = jax.eval_shape(lambda x: evaluate(function.nodes, {**function.numbers, function.of: x}), np.float32(0))
        names = {name: f"{result}/{name}" for name in found}
        shape = writer.shape(node.inputs[0])
        writer.shapes |= {
            names[name]: struct if name in function.numbers else jax.ShapeDtypeStruct(shape, struct.dtype)
            for name, struct in found.items()
        }
        writer.constants |= {names[name]: value for name, value in function.numbers.items()}
        return names

    # Types -------------------------------------------------------------------------------------------------------

    def _types(self, declared: set[str]) -> Iterator[onnx.ValueInfoProto]:
        """Yields the types of those values of the function that the file has, other than declared ones."""
        writer, seen = self._writer, set(declared)
        for node in self._flat.nodes:
            for name in node.outputs:
                if not writer.has(name):
                    continue
                value, struct = writer.read(name), writer.shapes[name]
                if value not in seen:
                    seen.add(value)
                    dtype = np.float32 if name in writer.steps else stored_type(struct.dtype)
                    yield _value(value, struct.shape, dtype)
        for value, dtype in writer.types.items():
            if value not in seen:
                yield helper.make_tensor_value_info(value, data_type(dtype), None)


def _calls(nodes: Sequence[Node]) -> set[str]:
    """The scopes of the calls of jaxdml's operators."""
    marked = {name for node in nodes if _primitive(node) == OPERAND for name in node.outputs}
    found = {_scope(node) for node in nodes if _primitive(node) == KERNEL or not marked.isdisjoint(node.inputs)}
    return found - {""}  # the operators of a loaded file mark their operands outside of any scope


def _read_by_tables(flat: Flat) -> set[str]:
    """The 16-bit integers that tables read, and the integers from which movers produce them."""
    found = set[str]()
    for node in reversed(flat.nodes):
        is_moved = node.operator.kind in MOVERS and not found.isdisjoint(node.outputs)
        table = flat.functions.get(node.outputs[0])
        if is_moved or (table is not None and table.x[1].dtype.itemsize > 1):
            found.add(node.inputs[0])
    return found


def _has_known_padding(node: Node) -> bool:
    """Whether the padding of a convolution or pooling does not depend on symbolic sizes; True for other nodes."""
    equation = node.options.get("equation")
    padding = (node.options if equation is None else equation.params).get("padding", ())
    return all(is_known(number) for pair in padding for number in pair)


def _as_constant(value: Any) -> Any:
    """A known value as a NumPy array; NumPy has no random keys, so they stay arrays of JAX."""
    return value if jnp.issubdtype(value.dtype, jax.dtypes.prng_key) else np.asarray(value)


def _primitive(node: Node) -> str:
    """The name of the primitive that a node computes; empty if the node is an operator."""
    equation = node.options.get("equation")
    return "" if equation is None else str(equation.name)


def _scope(node: Node) -> str:
    """The scope of the equation that a node computes; empty if the node is an operator."""
    equation = node.options.get("equation")
    return "" if equation is None else str(equation.scope)


def _find(node: Node) -> Write:
    """The function that writes a node."""
    equation = node.options.get("equation")
    if equation is None:
        return (INTEGERS if node.operator.is_quantized else OPERATORS)[node.operator.name]
    if node.operator.kind == ROUNDING:
        raise CannotWrite(f"this fake_quantize stays in floats: {node.remark}")
    if equation.name == KERNEL:  # of a loaded file
        raise CannotWrite(*OF_OPERATORS)
    if equation.name == "bitcast_convert_type":
        raise CannotWrite(*OF_BITS)
    if equation.name not in EQUATIONS:
        raise CannotWrite(f"the primitive {equation.name} has no counterpart in ONNX")
    return EQUATIONS[equation.name]


def _value(name: str, shape: Sequence[Any], dtype: Any) -> onnx.ValueInfoProto:
    """The declaration of a value; sizes that are expressions are left unknown."""
    sizes = [int(size) if is_known(size) else str(size) if str(size).isidentifier() else None for size in shape]
    return helper.make_tensor_value_info(name, int(helper.np_dtype_to_tensor_dtype(jnp.dtype(dtype))), sizes)
