"""Dispatchables: compiled operators and the buffers bound to their tensors."""

import copy
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxdml._compiled.bindings import outputs, slots_by_field
from jaxdml._compiled.operator import CompiledOperator, compile_operator
from jaxdml._directml.desc import Slot, TensorDesc, fields_of, page_name
from jaxdml._directml.desc_json import read_desc
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.json_values import Value
from jaxdml._directml.size_checks import padded_sizes
from jaxdml._directml.tensor_rules import minimum_bytes
from jaxdml.dxdispatch._resources import Resource
from jaxdml.errors import DescError

COMPILE_TYPES = {"DmlCompileOp": None, "DmlCompileGraph": None}  # both give the same result
EXECUTION_FLAGS = dict.fromkeys(
    ("NONE", "ALLOW_HALF_PRECISION_COMPUTATION", "DISABLE_META_COMMANDS", "DESCRIPTORS_VOLATILE")
)
WITHOUT_EFFECT = ("elementCount", "format", "shape", "counter", "counterOffsetBytes")  # only HLSL and ONNX use them
MINIMUM_ALIGNMENT = 16  # DML_MINIMUM_BUFFER_TENSOR_ALIGNMENT


class Binding(NamedTuple):
    """The part of a resource from an offset to the end, bound to a tensor."""

    resource: str
    offset_in_bytes: int
    tensor: TensorDesc

    def view(self, buffers: Mapping[str, np.ndarray]) -> np.ndarray:
        """A flat view of the buffer with the tensor's type; 4-bit elements stay packed."""
        data, dtype = buffers[self.resource][self.offset_in_bytes :], self.tensor.data_type.buffer_dtype
        return data[: data.size - data.size % dtype.itemsize].view(dtype)


Bindings = Mapping[str, Any]  # maps a field to a Binding or a tuple of Bindings


def _views(bindings: Bindings, buffers: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Views of the buffers that are bound to each field."""
    return {
        name: binding.view(buffers) if isinstance(binding, Binding) else tuple(one.view(buffers) for one in binding)
        for name, binding in bindings.items()
    }


@dataclasses.dataclass(frozen=True)
class Dispatchable:
    """An operator, the bindings of its `initialize`, and its place in the JSON."""

    operator: CompiledOperator
    bindings: Bindings
    value: Value

    def initialize(self, buffers: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Initializes the operator, and returns its persistent resource."""
        tensors = copy.deepcopy(_views(self.bindings, buffers))
        try:
            return self.operator.initialize(**tensors)
        except (RuntimeError, MemoryError) as error:  # from XLA, such as out of memory
            raise self.value.fail(f"could not be initialized: {error}") from error

    def dispatch(self, persistent: dict[str, Any], bindings: Bindings, buffers: Mapping[str, np.ndarray]) -> None:
        """Computes the outputs and writes them into the bound buffers."""
        tensors, own = _views(bindings, buffers), outputs(self.operator.desc)
        results = self.operator(persistent, **tensors)
        for name, result in zip(own, results if len(own) > 1 else [results], strict=True):
            tensors[name][:] = result


def read_dispatchable(
    value: Value, resources: Mapping[str, Resource], feature_level: FeatureLevel, limit: int
) -> Dispatchable:
    """Reads a member of "dispatchables"; a tensor may have at most `limit` bytes."""
    desc = read_desc(value, others=("dmlCompileType", "executionFlags", "bindings"))
    members = value.members()
    if "dmlCompileType" in members:
        members["dmlCompileType"].one_of("", COMPILE_TYPES)
    if "executionFlags" in members:
        flags = members["executionFlags"]
        for flag in flags.items() if isinstance(flags.value, list) else [flags]:
            flag.one_of("DML_EXECUTION_FLAG_", EXECUTION_FLAGS)
    inner = next((members[name] for name in ("Desc", "desc") if name in members), value)
    try:
        operator = compile_operator(desc, feature_level)
    except DescError as error:
        raise _at(inner, error.tensor).fail(f"is refused: {error}") from error
    padded = padded_sizes(desc)
    for page, tensor in desc.tensors().items():
        sizes = () if tensor is None else padded.get(page, tensor.sizes)
        size = 0 if tensor is None else math.prod(sizes) * tensor.data_type.dtype.itemsize  # a byte for a 4-bit element
        if size > limit:  # strides of 0 and padding can make large tensors from small buffers
            raise _at(inner, page).fail(f"needs {size} bytes, more than the limit of {limit}; see maximum_bytes")
    bindings = members.get("bindings", value._replace(value={}, path=f"{value.path}.bindings"))
    return Dispatchable(operator, read_bindings(bindings, operator, operator.owned, resources), value)


def _at(desc: Value, name: str | None) -> Value:
    """The tensor or option of this name in the JSON of a desc, or the desc if the name is absent."""
    field, _, place = (name or "").removesuffix("]").partition("[")
    found = desc.members().get(field, desc)
    return list(found.items())[int(place)] if place else found


def read_bindings(
    value: Value, operator: CompiledOperator, names: tuple[str, ...], resources: Mapping[str, Resource]
) -> Bindings:
    """Reads bindings. The bindings must name all fields in `names`, and no other field."""
    pages, by_field = {page_name(name): name for name in names}, slots_by_field(operator.desc)
    bindings: dict[str, Any] = {}
    members = value.members()
    for page, source in members.items():
        if page not in pages:
            raise source.fail(_why_not(operator, page))
        bindings[pages[page]] = _read_field(source, operator, by_field[pages[page]], resources)
    for page, name in pages.items():
        if name not in bindings:
            raise value.fail(f"has no {page}, which the desc has")
    return bindings


def _why_not(operator: CompiledOperator, page: str) -> str:
    tensors = {page_name(field): own[0].tensor for field, own in slots_by_field(operator.desc).items()}
    if page not in tensors:
        return f"is bound, but {operator.desc.operator} has no such tensor; there are {', '.join(tensors)}"
    if tensors[page] is None:
        return "is bound, but absent from the desc"
    owner = "dispatchable's own bindings" if tensors[page].flags else "dispatch command"
    return f"has Flags {tensors[page].flags.name} in the desc: it is bound in the {owner}, not here"


def _read_field(
    value: Value, operator: CompiledOperator, own: list[Slot], resources: Mapping[str, Resource]
) -> Binding | tuple[Binding, ...]:
    """Reads one binding, or a list of bindings for a field of several tensors."""
    spec: Any = fields_of(type(operator.desc))[own[0].field]
    if not spec.is_many:
        return _read_binding(value, own[0].tensor, resources)
    sources = list(value.items())
    if len(sources) != len(own):
        raise value.expected(f"{len(own)} resources")
    return tuple(_read_binding(source, slot.tensor, resources) for source, slot in zip(sources, own, strict=True))


def _read_binding(value: Value, tensor: TensorDesc, resources: Mapping[str, Resource]) -> Binding:
    """Reads a resource's name, an object with a name and an offset, or a list of exactly one name or object."""
    if isinstance(value.value, list):
        sources = list(value.items())
        if len(sources) != 1:
            raise value.expected("one resource")
        value = sources[0]
    named, offset = value, 0
    if isinstance(value.value, dict):
        members = value.members({"name", "elementOffset", "elementSizeInBytes", *WITHOUT_EFFECT})
        named = value.member("name")
        offset = _offset(members, named.one_of("", dict(resources)))
    resource = named.one_of("", dict(resources))
    least = max(tensor.total_tensor_size_in_bytes or 0, minimum_bytes(tensor))
    if resource.data.size - offset < least:
        text = f"has {max(resource.data.size - offset, 0)} bytes from offset {offset} on, the desc needs {least}"
        raise value.fail(text)
    alignment = max(tensor.guaranteed_base_offset_alignment, MINIMUM_ALIGNMENT)
    if offset % alignment:
        raise value.fail(f"has an offset of {offset} bytes, the desc needs a multiple of {alignment}")
    return Binding(named.string(), offset, tensor)


def _offset(members: dict[str, Value], resource: Resource) -> int:
    """The offset in bytes. The JSON counts elements of `elementSizeInBytes`, or else of the initial values' type."""
    if "elementOffset" not in members:
        return 0
    elements = members["elementOffset"].integer(0, 2**64 - 1)
    if "elementSizeInBytes" in members:
        return elements * members["elementSizeInBytes"].integer(1, 2**32)
    if elements and not resource.data_type:
        raise members["elementOffset"].fail("counts elements of several types; give elementSizeInBytes")
    bits = elements * (resource.data_type.bits if elements else 0)
    if bits % 8:
        raise members["elementOffset"].fail(f"is {elements}, in the middle of a byte of two elements")
    return bits // 8
