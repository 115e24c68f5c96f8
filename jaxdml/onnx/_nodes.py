"""From a model's nodes to those of a graph: each by its row of the table, or a sentence that says why not."""

import functools
import inspect
import types
from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_origin

import numpy as np
import onnx
from onnx import AttributeProto

from jaxdml._graph.graph import Node
from jaxdml.errors import ModelError
from jaxdml.onnx._file import Reader
from jaxdml.onnx._table import FIRST_OPSET, LAST_OPSET, MICROSOFT, ROWS, Row, find

Known = Mapping[str, tuple[str | None, tuple[Any, ...] | None]]  # type and shape of values, as far as they are known

_KINDS: Mapping[int, tuple[Any, str]] = {  # of an attribute: the annotation that takes it, and where its value lies
    AttributeProto.INT: (int, "i"),
    AttributeProto.FLOAT: (float, "f"),
    AttributeProto.STRING: (str, "s"),
    AttributeProto.INTS: (tuple[int, ...], "ints"),
    AttributeProto.FLOATS: (tuple[float, ...], "floats"),
    AttributeProto.STRINGS: (tuple[str, ...], "strings"),
    AttributeProto.TENSOR: (np.ndarray, "t"),
}

_NAMES = {number: name for name, number in AttributeProto.AttributeType.items()}
_OF_ALL = ("name", "type", "doc_string", "ref_attr_name")  # the fields of an attribute beside its value
INLINE = "onnx.inliner.inline_local_functions(model)"


class Nodes:
    """Makes nodes of one model.

    Args:
      reader: of the model.
      numerics: "directml" or "onnxruntime".
      known: types and shapes, for errors.
    """

    def __init__(self, reader: Reader, numerics: str, known: Known) -> None:
        self._reader, self._numerics, self._known = reader, numerics, known
        self._opsets = {domain_of(entry): entry.version for entry in reader.proto.opset_import}
        self._functions = {(domain_of(each), each.name) for each in reader.proto.functions}

    def wrong_opsets(self, nodes: Iterable[onnx.NodeProto]) -> dict[str, str]:
        """A sentence for each domain of the nodes that the model imports in no supported version."""
        domains = dict.fromkeys(domain_of(node) for node in nodes)
        told = {domain: _opset_problem(domain, self._opsets.get(domain)) for domain in domains}
        return {domain: text for domain, text in told.items() if text}

    def node(self, proto: onnx.NodeProto, name: str) -> Node:
        """The graph's node for a node of the model.

        Args:
          proto: a node of a domain that is not among `wrong_opsets`.
          name: what errors call the node.

        Raises:
          ModelError: if the table has no form of the operator that takes the node's opset, inputs and attributes.
        """
        domain = domain_of(proto)
        opset = self._opsets[domain]
        try:
            if (domain, proto.op_type) in self._functions:
                raise ModelError(f"it is a function of the model; {INLINE} replaces it by its nodes")
            row = find(domain, proto.op_type, opset, self._numerics)
            if row is None:
                raise ModelError(_unsupported(domain, proto.op_type, opset))
            return self._made(proto, name, row)
        except ModelError as error:
            inputs = ", ".join(self._shown(value) for value in proto.input)
            operator = f"{domain}.{proto.op_type}" if domain else proto.op_type
            raise ModelError(f"node {name!r}: {operator}, opset {opset}, with inputs ({inputs}): {error}") from error

    def _made(self, proto: onnx.NodeProto, name: str, row: Row) -> Node:
        least, most = row.input_counts
        if not least <= len(proto.input) <= most:
            expected = f"{least}" if least == most else f"{least} to {most}"
            raise ModelError(f"it has {len(proto.input)} inputs, expected {expected}")
        for place, (value, is_needed) in enumerate(zip(proto.input, row.needed, strict=False)):
            if is_needed and not value:
                raise ModelError(f"input {place} is missing, but required")
        if not any(proto.output):
            raise ModelError("it has no outputs")
        most_outputs = _most_outputs(row.domain, row.name, self._opsets[row.domain])
        if len(proto.output) > most_outputs:
            raise ModelError(f"it has {len(proto.output)} outputs, expected at most {most_outputs}")
        wrong = row.wrong_type([self._known.get(value, (None, None))[0] for value in proto.input])
        if wrong:
            raise ModelError(wrong)
        options = self._attributes(proto, row)
        if row.options is not None:
            options = row.options(**options)
        if row.counts_outputs:
            options["output_count"] = len(proto.output)
        inputs = (*proto.input, *[""] * (len(row.needed) - len(proto.input)))
        return Node(row.operator, inputs, tuple(proto.output), options, name, (proto.op_type,))

    def _attributes(self, proto: onnx.NodeProto, row: Row) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for attribute in proto.attribute:
            parameter = row.attributes.get(attribute.name)
            if attribute.name in found:
                raise ModelError(f"attribute {attribute.name!r} is given twice")
            if parameter is None:
                known = ", ".join(row.attributes) or "none"
                raise ModelError(f"attribute {attribute.name!r} is not supported, supported are: {known}")
            found[attribute.name] = self._value(attribute, parameter)
        for attribute_name, parameter in row.attributes.items():
            if parameter.default is parameter.empty and attribute_name not in found:
                raise ModelError(f"attribute {attribute_name!r} is missing, but required")
        return {name: parameter.default for name, parameter in row.attributes.items()} | found

    def _value(self, attribute: onnx.AttributeProto, parameter: inspect.Parameter) -> Any:
        kind, field = _KINDS.get(attribute.type, (None, ""))
        if kind is None or kind not in _alternatives(parameter.annotation):
            word = _NAMES.get(attribute.type, f"of type number {attribute.type}")
            expected = " or ".join(_word(kind) for kind in _alternatives(parameter.annotation))
            raise ModelError(f"attribute {attribute.name!r} is {word}, expected {expected}")
        others = {each.name for each, _ in attribute.ListFields()} - {field, *_OF_ALL}
        if others:
            raise ModelError(f"attribute {attribute.name!r} is {_NAMES[attribute.type]}, but holds {sorted(others)}")
        if attribute.ref_attr_name:
            raise ModelError(f"attribute {attribute.name!r} refers to that of a function, and is in none")
        value = getattr(attribute, field)
        if field == "t":
            return self._reader.array(value)
        try:
            if field == "s":
                return value.decode()
            return tuple(each.decode() if field == "strings" else each for each in value) if "s" in field else value
        except UnicodeDecodeError as error:
            raise ModelError(f"attribute {attribute.name!r} is no text: {error}") from error

    def _shown(self, value: str) -> str:
        dtype, shape = self._known.get(value, (None, None))
        sizes = "..." if shape is None else ", ".join("?" if size is None else str(size) for size in shape)
        return f"{value or 'none'}: {dtype or '?'}[{sizes}]" if value else "none"


@functools.cache
def _most_outputs(domain: str, name: str, opset: int) -> int:
    """As ONNX says; it does not say of other domains, whose operators here have one."""
    if domain or not onnx.defs.has(name, opset, domain):
        return 1
    return int(onnx.defs.get_schema(name, opset).max_output)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """The types that an annotation allows, without None."""
    if get_origin(annotation) is types.UnionType:
        return tuple(kind for kind in get_args(annotation) if kind is not types.NoneType)
    return (annotation,)


def _word(kind: Any) -> str:
    return next((_NAMES[number] for number, (own, _) in _KINDS.items() if own == kind), "?")


def domain_of(proto: Any) -> str:
    """The domain of a node, an opset or a function; "" is ONNX's own."""
    return "" if proto.domain == "ai.onnx" else str(proto.domain)


def _opset_problem(domain: str, opset: int | None) -> str | None:
    """What is wrong with the version of a domain, or None."""
    if opset is None:
        return f"the model imports no opset of the domain {domain or 'ai.onnx'!r}"
    supported = f"the model has opset {opset} of {domain or 'ai.onnx'}, supported are opsets"
    if domain == MICROSOFT and opset != 1:
        return f"{supported} 1"
    if domain == "" and opset < FIRST_OPSET:
        return f"{supported} {FIRST_OPSET} to {LAST_OPSET}; onnx.version_converter converts older ones"
    if domain == "" and opset > LAST_OPSET:
        return f"{supported} {FIRST_OPSET} to {LAST_OPSET}; the model's is newer than {LAST_OPSET}"
    return None


def _unsupported(domain: str, name: str, opset: int) -> str:
    """Why the table has no row for an operator."""
    rows = ROWS.get((domain, name))
    if rows is None:
        return "the operator is not supported; jaxdml.onnx.supported_ops() lists those that are"
    spans = ", ".join(f"{row.since} to {row.until}" for row in rows)
    return f"the operator is supported at opsets {spans}"
