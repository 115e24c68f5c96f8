"""Converts a ModelProto to a graph, and collects every problem on the way."""

import functools
import inspect
import types
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args, get_origin

import numpy as np
import onnx
from onnx import AttributeProto

from jaxdml._graph.graph import Graph, Node
from jaxdml._graph.order import topological
from jaxdml.errors import ModelError, ModelFileNotFoundError
from jaxdml.onnx._file import Reader
from jaxdml.onnx._table import FIRST_OPSET, LAST_OPSET, MICROSOFT, ROWS, Row, find
from jaxdml.onnx._tensors import Inferred, inferred_types, outputs, shown_shape, tensors

_UNDEFINED = "no input, initializer or node defines"
MOST_NAMED = 8  # nodes of a cycle
_INLINE = "onnx.inliner.inline_local_functions(model)"


def to_graph(reader: Reader, numerics: str) -> tuple[Graph, Inferred, list[str]]:
    """The graph of a model, its types, and its problems; if there are problems, the graph is incomplete."""
    proto, problems = reader.proto.graph, []
    if proto.sparse_initializer:
        problems.append("the model has sparse initializers, which are not supported")
    constants, wrong = _constants(reader)
    problems += wrong
    problems += [text for value in proto.input if (text := _problem_of(tensors, [value]))]
    problems += [text for value in proto.output if (text := _problem_of(outputs, [value], {}))]
    if not proto.output:
        problems.append("the model has no outputs")
    problems += _duplicates("input", proto.input) + _duplicates("output", proto.output)
    defined = {tensor.name for tensor in proto.initializer} | {value.name for value in proto.input}
    computed = {value for node in proto.node for value in node.output}
    named, wrong = _sorted(proto.node)
    problems += wrong
    nodes, converter = [], _NodeConverter(reader, numerics, [node for _, node in named])
    wrong_opsets = converter.wrong_opsets(proto.node)
    problems += wrong_opsets.values()
    for name, node in named:
        reader.budget.check_time()
        problems += [
            f"node {name!r} reads {value!r}, which {_UNDEFINED}"
            for value in dict.fromkeys(node.input)
            if value and value not in defined and value not in computed
        ]
        for value in filter(None, node.output):
            if value in defined:
                problems.append(f"node {name!r} defines {value!r}, which is defined already")
            defined.add(value)
        try:
            if domain_of(node) not in wrong_opsets:
                nodes.append(converter.node(node, name))
        except ModelError as error:
            problems.append(str(error))
    problems += [f"no node defines output {value.name!r}" for value in proto.output if value.name not in defined]
    inputs = tuple(value.name for value in proto.input if value.name not in constants)
    names = tuple(value.name for value in proto.output)
    return Graph(tuple(nodes), inputs, names, constants), converter.inferred, problems


def _sorted(nodes: Sequence[onnx.NodeProto]) -> tuple[list[tuple[str, onnx.NodeProto]], list[str]]:
    """The nodes in topological order, each with its name, and the error for a cycle, if there is one."""
    named = [(node.name or f"{node.op_type.lower()}_{index}", node) for index, node in enumerate(nodes)]
    order, cycle = topological([node.input for node in nodes], [node.output for node in nodes])
    return [named[place] for place in order], _cycle_problem([named[place][0] for place in cycle])


def _cycle_problem(names: list[str]) -> list[str]:
    """The error for a cycle of nodes, each of which reads a value of the next one."""
    if not names:
        return []
    if not names[1:]:
        return [f"node {names[0]!r} reads its own result: nodes must not form a cycle"]
    listed = ", ".join(map(repr, names[:MOST_NAMED]))
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return [f"nodes {listed}{more} form a cycle: each reads a value of the next one, and the last one of the first"]


def _constants(reader: Reader) -> tuple[dict[str, np.ndarray], list[str]]:
    """The initializers, keyed by name, and the problems with them."""
    constants, problems, external = dict[str, np.ndarray](), list[str](), list[str]()
    names = Counter(tensor.name for tensor in reader.proto.graph.initializer)
    problems += [f"tensor {name!r} is given twice" for name, count in names.items() if count > 1]
    for tensor in reader.proto.graph.initializer:
        if reader.is_out_of_reach(tensor):
            external.append(tensor.name)
            continue
        try:
            constants[tensor.name] = reader.array(tensor)
        except ModelFileNotFoundError:
            raise
        except ModelError as error:
            problems.append(str(error))
    if external:
        rest = f" and {len(external) - 1} more lie in other files" if external[1:] else " lies in another file"
        problems.append(f"tensor {external[0]!r}{rest}; load the model from its path")
    return constants, problems


def _duplicates(kind: str, values: Iterable[onnx.ValueInfoProto]) -> list[str]:
    """An error for each name that is declared several times."""
    counts = Counter(value.name for value in values)
    return [f"{kind} {name!r} is declared {count} times" for name, count in counts.items() if count > 1]


def _problem_of(declared: Callable[..., Any], *arguments: Any) -> str | None:
    """The error for the declaration of inputs or outputs, or None."""
    try:
        declared(*arguments)
    except ModelError as error:
        return str(error)
    return None


# Nodes ---------------------------------------------------------------------------------------------------------------


class _NodeConverter:
    """Converts the nodes of one model."""

    def __init__(self, reader: Reader, numerics: str, nodes: Iterable[onnx.NodeProto]) -> None:
        self._reader, self._numerics = reader, numerics
        self.inferred = inferred_types(reader.proto, nodes)
        self._opsets = {domain_of(entry): entry.version for entry in reader.proto.opset_import}
        self._functions = {(domain_of(function), function.name) for function in reader.proto.functions}

    def wrong_opsets(self, nodes: Iterable[onnx.NodeProto]) -> dict[str, str]:
        """The errors for the nodes' domains whose opset is missing or not supported, keyed by domain."""
        domains = dict.fromkeys(domain_of(node) for node in nodes)
        problems = {domain: _opset_problem(domain, self._opsets.get(domain)) for domain in domains}
        return {domain: text for domain, text in problems.items() if text}

    def node(self, proto: onnx.NodeProto, name: str) -> Node:
        """Converts a node whose domain is not in `wrong_opsets`.

        Raises:
          ModelError: if the operator, its opset, its inputs or its attributes are not supported.
        """
        domain = domain_of(proto)
        opset = self._opsets[domain]
        try:
            if (domain, proto.op_type) in self._functions:
                raise ModelError(f"it is a function of the model; {_INLINE} inserts the function's nodes")
            row = find(domain, proto.op_type, opset, self._numerics, _mode(proto))
            if row is None:
                raise ModelError(_unsupported(domain, proto.op_type))
            return self._converted(proto, name, row)
        except ModelError as error:
            inputs = ", ".join(self._shown(value) for value in proto.input)
            operator = f"{domain}.{proto.op_type}" if domain else proto.op_type
            raise ModelError(f"node {name!r}: {operator}, opset {opset}, with inputs ({inputs}): {error}") from error

    def _converted(self, proto: onnx.NodeProto, name: str, row: Row) -> Node:
        least, most = row.input_counts
        if not least <= len(proto.input) <= most:
            expected = f"{least}" if least == most else f"{least} to {most}"
            raise ModelError(f"it has {len(proto.input)} inputs, expected {expected}")
        for index, (value, is_required) in enumerate(zip(proto.input, row.required, strict=False)):
            if is_required and not value:
                raise ModelError(f"input {index} is missing, but required")
        if not any(proto.output):
            raise ModelError("it has no outputs")
        most_outputs = _outputs_of_schema(row.domain, row.name, self._opsets[row.domain]) or row.computed_outputs
        if len(proto.output) > most_outputs:
            raise ModelError(f"it has {len(proto.output)} outputs, expected at most {most_outputs}")
        wrong = row.wrong_type([self.inferred.get(value, (None, None))[0] for value in proto.input])
        if wrong:
            raise ModelError(wrong)
        options = self._attributes(proto, row)
        if row.options is not None:
            options = row.options(**options)
        if row.takes_output_count:
            options["output_count"] = len(proto.output)
        inputs = (*proto.input, *[""] * (len(row.required) - len(proto.input)))
        return Node(row.operator, inputs, tuple(proto.output), options, name, (proto.op_type,))

    def _attributes(self, proto: onnx.NodeProto, row: Row) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for attribute in proto.attribute:
            parameter = row.attributes.get(attribute.name)
            if attribute.name in values:
                raise ModelError(f"attribute {attribute.name!r} is given twice")
            if parameter is None:
                supported = ", ".join(row.attributes) or "none"
                raise ModelError(f"attribute {attribute.name!r} is not supported; supported: {supported}")
            values[attribute.name] = self._value(attribute, parameter)
        for name, parameter in row.attributes.items():
            if parameter.default is parameter.empty and name not in values:
                raise ModelError(f"attribute {name!r} is missing, but required")
        return {name: parameter.default for name, parameter in row.attributes.items()} | values

    def _value(self, attribute: onnx.AttributeProto, parameter: inspect.Parameter) -> Any:
        annotation, field = _ATTRIBUTE_TYPES.get(attribute.type, (None, ""))
        allowed = _alternatives(parameter.annotation)
        if annotation is None or annotation not in allowed:
            received = _TYPE_NAMES.get(attribute.type, f"of the unknown type {attribute.type}")
            expected = " or ".join(map(_type_name, allowed))
            raise ModelError(f"attribute {attribute.name!r} is {received}, expected {expected}")
        others = {each.name for each, _ in attribute.ListFields()} - {field, *_COMMON_FIELDS}
        if others:
            text = f"is {_TYPE_NAMES[attribute.type]}, but holds {sorted(others)}"
            raise ModelError(f"attribute {attribute.name!r} {text}")
        if attribute.ref_attr_name:
            text = "refers to an attribute of a function, but the node is not inside a function"
            raise ModelError(f"attribute {attribute.name!r} {text}")
        value = getattr(attribute, field)
        if field == "t":
            return self._reader.array(value)
        try:
            if field == "s":
                return value.decode()
            return tuple(each.decode() if field == "strings" else each for each in value) if "s" in field else value
        except UnicodeDecodeError as error:
            raise ModelError(f"attribute {attribute.name!r} is not UTF-8 text: {error}") from error

    def _shown(self, value: str) -> str:
        dtype, shape = self.inferred.get(value, (None, None))
        return f"{value}: {dtype or '?'}[{shown_shape(shape)}]" if value else "none"


_ATTRIBUTE_TYPES: Mapping[int, tuple[Any, str]] = {  # attribute type: (parameter's annotation, proto's field)
    AttributeProto.INT: (int, "i"),
    AttributeProto.FLOAT: (float, "f"),
    AttributeProto.STRING: (str, "s"),
    AttributeProto.INTS: (tuple[int, ...], "ints"),
    AttributeProto.FLOATS: (tuple[float, ...], "floats"),
    AttributeProto.STRINGS: (tuple[str, ...], "strings"),
    AttributeProto.TENSOR: (np.ndarray, "t"),
}
_TYPE_NAMES = {number: name for name, number in AttributeProto.AttributeType.items()}
_COMMON_FIELDS = ("name", "type", "doc_string", "ref_attr_name")


def _type_name(annotation: Any) -> str:
    return next((_TYPE_NAMES[number] for number, (own, _) in _ATTRIBUTE_TYPES.items() if own == annotation), "?")


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """The members of a union except None; for any other annotation, the annotation itself."""
    if get_origin(annotation) is types.UnionType:
        return tuple(each for each in get_args(annotation) if each is not types.NoneType)
    return (annotation,)


@functools.cache
def _outputs_of_schema(domain: str, name: str, opset: int) -> int | None:
    """The largest number of outputs in ONNX's schema; None if the package onnx has no schema of the operator."""
    if domain or not onnx.defs.has(name, opset, domain):
        return None
    return int(onnx.defs.get_schema(name, opset).max_output)


def domain_of(proto: Any) -> str:
    """The domain of a node, an opset or a function; "" is ONNX's own domain, which files may call "ai.onnx"."""
    return "" if proto.domain == "ai.onnx" else str(proto.domain)


def _mode(proto: onnx.NodeProto) -> str | None:
    """The attribute `mode` of a node, by which an operator has several rows; None if it has no such text."""
    return next((a.s.decode(errors="replace") for a in proto.attribute if a.name == "mode" and a.s), None)


def _opset_problem(domain: str, opset: int | None) -> str | None:
    """The error for the opset of a domain, or None."""
    if opset is None:
        return f"the model imports no opset of the domain {domain or 'ai.onnx'!r}"
    supported = f"the model has opset {opset} of {domain or 'ai.onnx'}; supported opsets:"
    if domain == MICROSOFT and opset != 1:
        return f"{supported} 1"
    if domain == "" and opset < FIRST_OPSET:
        return f"{supported} {FIRST_OPSET} to {LAST_OPSET}; onnx.version_converter converts older models"
    if domain == "" and opset > LAST_OPSET:
        return f"{supported} {FIRST_OPSET} to {LAST_OPSET}; the model is newer than opset {LAST_OPSET}"
    return None


def _unsupported(domain: str, name: str) -> str:
    """The error for an operator that the table lacks at this opset."""
    rows = ROWS.get((domain, name))
    if rows is None:
        return "the operator is not supported; jaxdml.onnx.supported_ops() lists those that are"
    spans = ", ".join(f"{row.since} to {row.until}" for row in rows)
    return f"the operator is supported at opsets {spans}"
