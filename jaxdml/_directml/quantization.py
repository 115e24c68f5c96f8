"""Checks of the quantization tensors of QUANTIZE and DEQUANTIZE: their number, types and blocks."""

import enum
from typing import Any

from jaxdml._directml import remedies
from jaxdml._directml.desc import Slot, field_of, parameters_of, slots
from jaxdml._directml.messages import Remedy, RuleError, shown
from jaxdml._directml.tensor_rules import is_symbolic, is_uint


class QuantizationType(enum.IntEnum):
    """DML_QUANTIZATION_TYPE: the kinds of tensors in a list of quantization tensors."""

    NONE = 0
    SCALE = 1
    SCALE_ZERO_POINT = 2


WORDS = {QuantizationType.SCALE: "a scale", QuantizationType.SCALE_ZERO_POINT: "a scale and a zero point"}


def check_quantization(desc: Any, floats: str, integers: str) -> None:
    """Checks the QuantizationTensors. The scale has the type of tensor `floats`, the zero point that of `integers`."""
    kind, own = desc.quantization_type, [slot for slot in slots(desc) if slot.field == "quantization_tensors"]
    if kind == QuantizationType.NONE:
        text, facts = "is NONE, but the operator needs a scale", {"expected": tuple(WORDS), "received": kind}
        remedy = remedies.QUANTIZATION_TYPE
        raise RuleError(desc.operator, "QuantizationType", "quantization_type", text, remedy, **facts)
    if len(own) != kind:
        text = f"has {len(own)} tensors, expected {int(kind)}: {kind.name} means {WORDS[kind]}"
        facts = {"expected": int(kind), "received": len(own)}
        raise RuleError(desc.operator, "QuantizationTensors", "quantization_type", text, **facts)
    counted = desc.quantization_tensor_count
    if not is_uint(counted) or counted != len(own):
        text = f"is {shown(counted)}, expected {len(own)}, the number of QuantizationTensors"
        facts = {"expected": len(own), "received": counted}
        raise RuleError(desc.operator, "QuantizationTensorCount", "quantization_tensor_count", text, **facts)
    for slot, owner in zip(own, (floats, integers), strict=False):
        _check_type(desc, slot, owner)
        _check_blocks(desc, slot)


def _check_type(desc: Any, slot: Slot, owner: str) -> None:
    expected = getattr(desc, field_of(type(desc), owner)).data_type
    received = slot.tensor.data_type
    if received != expected:
        what = slot.role.parameter.replace("_", " ")
        text = f"has data type {received.name}, expected {expected.name}: a {what} has the type of {owner}"
        remedy = remedies.converted(slot, parameters_of(type(desc)), received, expected, owner)
        raise RuleError(desc.operator, slot.name, "data_type", text, remedy, expected=expected, received=received)


def _check_blocks(desc: Any, slot: Slot) -> None:
    sizes, whole = slot.tensor.sizes, desc.input_tensor.sizes
    pairs = enumerate(zip(sizes, whole, strict=True))
    uneven = next(((axis, *pair) for axis, pair in pairs if not _divides(*pair)), None)
    if uneven is None:
        return
    text = f"has Sizes {list(sizes)}, which do not divide InputTensor's {list(whole)}: all blocks must have equal size"
    advice = remedies.even_blocks(*uneven)
    remedy = Remedy(f"{slot.name} is the argument {slot.argument}; {advice}", advice)
    raise RuleError(desc.operator, slot.name, "sizes", text, remedy, expected=whole, received=sizes)


def _divides(blocks: Any, size: Any) -> bool:
    """Whether blocks divide a size; of symbolic sizes, only one block and blocks of one element are supported."""
    if is_symbolic(blocks) or is_symbolic(size):
        return bool(blocks == size) or (not is_symbolic(blocks) and blocks == 1)
    return bool(size % blocks == 0)
