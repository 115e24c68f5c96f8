"""What the pages of QUANTIZE and DEQUANTIZE have in common: a list of a scale and a zero point, and blocks."""

import enum
from typing import Any

from jaxdml._directml.desc import Slot, field_of, parameters_of, slots
from jaxdml._directml.messages import Remedy, RuleError, no_integer, retyped_zero_point, shown
from jaxdml._directml.tensor_rules import is_symbolic, is_uint
from jaxdml._shapes import Shape


class QuantizationType(enum.IntEnum):
    """DML_QUANTIZATION_TYPE: what a list of quantization tensors holds."""

    NONE = 0
    SCALE = 1
    SCALE_ZERO_POINT = 2


WORDS = {QuantizationType.SCALE: "a scale", QuantizationType.SCALE_ZERO_POINT: "a scale and a zero point"}


def check_quantization(desc: Any, floats: str, integers: str) -> None:
    """QuantizationTensors are of the right number, types and sizes; the tensors named are those of either kind."""
    kind, own = desc.quantization_type, [slot for slot in slots(desc) if slot.field == "quantization_tensors"]
    if kind == QuantizationType.NONE:
        text, fix = "is NONE, which says no scale", "write QuantizationType.SCALE or QuantizationType.SCALE_ZERO_POINT"
        facts = {"expected": tuple(WORDS), "received": kind}
        raise RuleError(desc.operator, "QuantizationType", "quantization_type", text, fix, **facts)
    if len(own) != kind:
        text = f"has {len(own)} tensors, expected {int(kind)}: {kind.name} is {WORDS[kind]}"
        facts = {"expected": int(kind), "received": len(own)}
        raise RuleError(desc.operator, "QuantizationTensors", "quantization_type", text, **facts)
    counted = desc.quantization_tensor_count
    if not is_uint(counted) or counted != len(own):
        text = f"is {shown(counted)}, expected {len(own)}, the number of QuantizationTensors"
        facts = {"expected": len(own), "received": counted}
        raise RuleError(desc.operator, "QuantizationTensorCount", "quantization_tensor_count", text, **facts)
    for slot, of in zip(own, (floats, integers), strict=False):
        _check_type(desc, slot, of)
        _check_blocks(desc, slot)


def _check_type(desc: Any, slot: Slot, of: str) -> None:
    expected = getattr(desc, field_of(type(desc), of)).data_type
    received = slot.tensor.data_type
    if received != expected:
        what = slot.role.parameter.replace("_", " ")
        text = f"has data type {received.name}, expected {expected.name}: a {what} has the type of {of}"
        in_call = f"write {slot.argument}.astype(jnp.{expected.name.lower()})"
        if slot.role.parameter == "zero_point" and received.name.startswith("FLOAT"):
            in_call = no_integer(slot.argument, parameters_of(type(desc)))
        elif slot.role.parameter == "zero_point":
            in_call = retyped_zero_point(slot.argument, received, expected, of)
        fix = Remedy(in_call, f"write data_type=DataType.{expected.name}")
        raise RuleError(desc.operator, slot.name, "data_type", text, fix, expected=expected, received=received)


def _check_blocks(desc: Any, slot: Slot) -> None:
    sizes, whole = slot.tensor.sizes, desc.input_tensor.sizes
    if all(_divides(blocks, size) for blocks, size in zip(sizes, whole, strict=True)):
        return
    text = f"has Sizes {list(sizes)}, which do not divide InputTensor's {list(whole)}: all blocks are equally large"
    raise RuleError(desc.operator, slot.name, "sizes", text, _to_blocks(sizes, whole), expected=whole, received=sizes)


def _divides(blocks: Any, size: Any) -> bool:
    if is_symbolic(blocks) or is_symbolic(size):
        return bool(blocks == size) or (not is_symbolic(blocks) and blocks == 1)
    return bool(size % blocks == 0)


def _to_blocks(sizes: Shape, whole: Shape) -> str:
    """How to get blocks of one size, told of the first dimension whose blocks differ."""
    pairs = enumerate(zip(sizes, whole, strict=True))
    axis, (blocks, size) = next((axis, pair) for axis, pair in pairs if not _divides(*pair))
    if is_symbolic(blocks) or is_symbolic(size):
        return f"give dimension {axis} one value or the size of the input"
    if blocks > size:
        return f"there are more values than elements in dimension {axis}"
    padded = -(-size // blocks) * blocks
    return f"pad the input to {padded} in dimension {axis}, or give as many values as divide {size}"
