"""Converts the nodes of a model, each by its row of the table."""

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
from jaxdml.onnx._tensors import inferred_types, shown_shape

OF_ONE_PROCESSOR = "com.microsoft.nchwc"  # convolutions whose weights are rearranged for a processor's vectors
_INLINE = "onnx.inliner.inline_local_functions(model)"


class NodeConverter:
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
    AttributeProto.GRAPH: (onnx.GraphProto, "g"),
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
    """The attribute that selects among an operator's rows: `mode`, or `reduction`; None if the node has none."""
    names = ("mode", "reduction")
    return next((a.s.decode(errors="replace") for a in proto.attribute if a.name in names and a.s), None)


def _opset_problem(domain: str, opset: int | None) -> str | None:
    """The error for the opset of a domain, or None."""
    if opset is None:
        return f"the model imports no opset of the domain {domain or 'ai.onnx'!r}"
    supported = f"the model has opset {opset} of {domain or 'ai.onnx'}; supported opsets:"
    if domain == OF_ONE_PROCESSOR:
        return (
            f"nodes have the domain {domain!r}, which onnxruntime's optimizer writes for one processor; optimize the "
            "model with ORT_ENABLE_EXTENDED in place of ORT_ENABLE_ALL"
        )
    if domain == MICROSOFT and opset != 1:
        return f"{supported} 1"
    if domain == "" and opset < FIRST_OPSET:
        return f"{supported} {FIRST_OPSET} to {LAST_OPSET}; onnx.version_converter converts older models"
    if domain == "" and opset > LAST_OPSET:
        return f"{supported} {FIRST_OPSET} to {LAST_OPSET}; the model is newer than opset {LAST_OPSET}"
    return None


def _unsupported(domain: str, name: str) -> str:
    """The error for an operator that the table does not have at this opset."""
    rows = ROWS.get((domain, name))
    if rows is None:
        return "the operator is not supported; jaxdml.onnx.supported_ops() lists those that are"
    spans = ", ".join(f"{row.since} to {row.until}" for row in rows)
    return f"the operator is supported at opsets {spans}"
