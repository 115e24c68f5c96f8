"""Checks of the arrays and flat buffers that are bound to a desc's tensors."""

from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np

from jaxdml._arithmetic.prepared import Prepared
from jaxdml._compiled.buffers import is_reshape
from jaxdml._directml.data_types import TensorFlags
from jaxdml._directml.desc import OperatorDesc, Slot, TensorDesc, fields_of, page_name, slots
from jaxdml._directml.messages import broken
from jaxdml._directml.strides import is_packed, reach
from jaxdml._directml.tensor_rules import minimum_bytes
from jaxdml.errors import ArgumentTypeError


def slots_by_field(desc: OperatorDesc) -> dict[str, list[Slot]]:
    """Maps each field to its tensors, absent ones included."""
    by_field: dict[str, list[Slot]] = {}
    for slot in slots(desc):
        by_field.setdefault(slot.field, []).append(slot)
    return by_field


def inputs(desc: OperatorDesc, flags: TensorFlags) -> tuple[str, ...]:
    """The input fields of a desc whose tensors have these flags."""
    by_field = slots_by_field(desc).items()
    return tuple(name for name, (one, *_) in by_field if not one.role.is_output and _flags(one) == flags)


def outputs(desc: OperatorDesc) -> tuple[str, ...]:
    """The output fields of a desc."""
    return tuple(name for name, (one, *_) in slots_by_field(desc).items() if one.role.is_output)


def absent(desc: OperatorDesc) -> tuple[str, ...]:
    """The fields of tensors that are absent from a desc."""
    return tuple(slot.field for slot in slots(desc) if slot.tensor is None)


def _flags(slot: Slot) -> TensorFlags | None:
    return None if slot.tensor is None else slot.tensor.flags


def check_flags(desc: OperatorDesc) -> None:
    """Checks that the tensors of a field have the same flags, because one step binds all of them."""
    for name, own in slots_by_field(desc).items():
        if len({_flags(slot) for slot in own}) > 1:
            text = "has tensors with Flags OWNED_BY_DML and without; flag all of them or none"
            raise broken(desc.operator, page_name(name), "flags", text, expected="equal flags")


def check_strides(desc: OperatorDesc) -> None:
    """Checks that int32 offsets suffice for the tensors that are gathered element by element."""
    for name, tensor in desc.tensors().items():
        if tensor is None or tensor.strides is None or is_reshape(tensor):
            continue
        if reach(tensor.sizes, tensor.strides) >= 2**31:
            text = f"has Strides {list(tensor.strides)} that interleave and span 2**31 elements or more; pack it"
            raise broken(desc.operator, name, "strides", text, expected="nested strides", received=tensor.strides)


def check_names(desc: OperatorDesc, step: str, expected: Collection[str], given: Mapping[str, Any]) -> None:
    """Checks that `step` gets exactly the expected tensors; None counts as not given."""
    given = {name: value for name, value in given.items() if value is not None or name not in absent(desc)}
    by_field = slots_by_field(desc)
    for name in given:
        if name in expected:
            continue
        if name in absent(desc):
            text = "is absent from the desc; leave it out of the call, or add it to the desc"
        elif name in by_field:
            flags = by_field[name][0].tensor.flags
            right = "initialize" if flags == TensorFlags.OWNED_BY_DML else "the call"
            text = f"has Flags {flags.name}, so it goes to {right}, not to {step}"
        else:
            names = [field for field in expected if page_name(field) == name]
            hint = f"write {names[0]}" if names else f"{step} takes {', '.join(expected) or 'none'}"
            text = f"{desc.operator}: there is no argument {name}; {hint}"
            raise ArgumentTypeError(text, operator=desc.operator, tensor=name, rule="binding", expected=expected)
        raise broken(desc.operator, page_name(name), "binding", text, expected=expected, received=name)
    for name in expected:
        if given.get(name) is None:
            text = f"is not bound; give {name} to {step}"
            raise broken(desc.operator, page_name(name), "binding", text, expected=expected, received=None)


def is_shaped(tensor: TensorDesc, array: Any) -> bool:
    """Whether an array is the tensor itself and not a flat buffer that holds it."""
    is_tensor = array.ndim > 1 and array.shape == tensor.sizes and is_packed(tensor.sizes, tensor.strides)
    return is_tensor and (tensor.total_tensor_size_in_bytes is None or elements(tensor) <= array.size)


def check_bound(desc: OperatorDesc, name: str, value: Any) -> None:
    """Checks the value bound to a field: an array, or a tuple of arrays for a tuple of tensors."""
    own = slots_by_field(desc)[name]
    spec: Any = fields_of(type(desc))[name]
    if not spec.is_many:
        _check_buffer(desc.operator, own[0], value)
        return
    if not isinstance(value, list | tuple) or len(value) != len(own):
        text = f"is bound to a value of type {type(value).__name__}, expected a tuple of {len(own)} arrays"
        raise broken(desc.operator, page_name(name), "binding", text, error=ArgumentTypeError, expected=len(own))
    for slot, one in zip(own, value, strict=True):
        _check_buffer(desc.operator, slot, one)


def _check_buffer(operator: str, slot: Slot, value: Any) -> None:
    """Checks that value is an array of the tensor's type, and has the tensor's sizes or is flat and large enough."""
    tensor: TensorDesc = slot.tensor
    name = slot.name
    if not isinstance(value, jax.Array | np.ndarray) or isinstance(value, np.ma.MaskedArray):
        kind, fix = type(value).__name__, f"np.asarray([...], np.{tensor.data_type.dtype})"
        if isinstance(value, Prepared):
            fix = f"{slot.field}.array; a tensor of the desc with the flag OWNED_BY_DML is prepared once"
        text = f"is bound to a value of type {kind}, expected an array or a flat buffer; write {fix}"
        raise broken(operator, name, "array", text, error=ArgumentTypeError, received=kind)
    is_bytes = tensor.data_type.is_packed and value.dtype == tensor.data_type.buffer_dtype
    if value.dtype != tensor.data_type.dtype and not is_bytes:
        text = f"is bound to {value.dtype}, the desc says {tensor.data_type.name}; convert it, or change the desc"
        raise broken(operator, name, "data_type", text, expected=tensor.data_type, received=value.dtype)
    if is_bytes and value.ndim != 1:
        fix = f"give a flat buffer with two elements per byte, or an array of jnp.{tensor.data_type.dtype}"
        text = f"is bound to uint8 of shape {list(value.shape)}, expected rank 1 for bytes of 4-bit elements; {fix}"
        raise broken(operator, name, "sizes", text, expected=tensor.sizes, received=value.shape)
    if is_shaped(tensor, value):
        return
    least = elements(tensor)
    if value.ndim != 1:
        strides = "" if tensor.strides is None else f" and Strides {list(tensor.strides)}"
        fix = f"give a flat buffer of at least {least} elements{_example(tensor)}"
        if tensor.strides is None and tensor.sizes != value.shape:
            fix = "give an array of these sizes or a flat buffer"
        text = f"is bound to shape {list(value.shape)}, the desc has Sizes {list(tensor.sizes)}{strides}; {fix}"
        raise broken(operator, name, "sizes", text, expected=tensor.sizes, received=value.shape)
    if is_bytes and value.size < -(-least // 2):
        text = f"is bound to a buffer of {value.size} bytes, the desc needs at least {-(-least // 2)}"
        raise broken(operator, name, "buffer_size", text, expected=-(-least // 2), received=value.size)
    if not is_bytes and value.size < least:
        text = f"is bound to a buffer of {value.size} elements, the desc needs at least {least}"
        raise broken(operator, name, "buffer_size", text, expected=least, received=value.size)


def _example(tensor: TensorDesc) -> str:
    """Code that lays out an array of the tensor's sizes by a transpose; empty if a transpose does not suffice."""
    strides: tuple[int, ...] = tensor.strides or ()
    order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
    if not is_packed(tuple(tensor.sizes[axis] for axis in order), tuple(strides[axis] for axis in order)):
        return ""
    return f", such as x.transpose{tuple(order)}.ravel()" if len(order) > 1 else ""


def elements(tensor: TensorDesc) -> int:
    """The size of a buffer in elements, from TotalTensorSizeInBytes if above its minimum, else from the strides."""
    total = tensor.total_tensor_size_in_bytes
    if total is None or total == minimum_bytes(tensor):
        return reach(tensor.sizes, tensor.strides)
    return total * 8 // tensor.data_type.bits
