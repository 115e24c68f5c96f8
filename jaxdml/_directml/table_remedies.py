"""Advice in error texts for descs that break a tensor-support table or a tensor constraint."""

import math
from typing import Any

from jaxdml._directml import remedies
from jaxdml._directml.data_types import BYTES, DataType
from jaxdml._directml.desc import Slot, fields_of, page_name, parameters_of
from jaxdml._directml.messages import Remedy, listed
from jaxdml._directml.page import Page
from jaxdml._directml.pages import converter
from jaxdml._shapes import Shape, aligned


def remedy_of(page: Page, slot: Slot, rule: str, received: Any, expected: Any) -> str | Remedy:
    """The remedy for a tensor that its row of the support table does not allow."""
    if rule == "data_type":
        return retyped(page, slot, slot.argument, received, expected)
    if special := _special(page, slot, rule):
        return special
    if rule == "required":
        spec: Any = fields_of(page.desc)[slot.field]
        in_desc = remedies.tuple_of_one(slot.field) if spec.is_many else f"write {slot.field}=TensorDesc(...)"
        return Remedy(f"give {slot.argument}", in_desc)
    low, high = expected
    in_call, missing = f"reshape {slot.argument}", (high if slot.row == "FilterTensor" else low) - received
    if received < low:
        kept = [":"] * received if slot.row in page.weights else []  # so a vector b becomes a column
        in_call = f"write {slot.argument}[{', '.join(kept + ['None'] * missing)}]"
        if slot.row == "FilterTensor":
            in_call += f", or filter[{', '.join(kept + ['None'] * (missing - 1))}] for an input of rank {low}"
    return Remedy(in_call, f"give it {low if low == high else f'{low} to {high}'} sizes")


def retyped(page: Page, slot: Slot, argument: str, received: DataType, allowed: tuple[DataType, ...]) -> str | Remedy:
    """The remedy for a tensor whose type is not allowed."""
    if special := _special(page, slot, "data_type"):
        return special
    return Remedy(
        _conversion(page, slot, argument, received, allowed),
        f"write data_type={listed(f'DataType.{data_type.name}' for data_type in allowed)}",
    )


def _special(page: Page, slot: Slot, rule: str) -> str | Remedy | None:
    advice = page.remedies.get((slot.row, rule))
    return advice(slot.tensor) if advice else None


def _conversion(page: Page, slot: Slot, argument: str, received: DataType, allowed: tuple[DataType, ...]) -> str:
    """How to convert an argument to an allowed type and keep the meaning of its values."""
    is_float, wants_float = received.name.startswith("FLOAT"), allowed[0].name.startswith("FLOAT")
    if slot.role.is_output:
        return f"make it {listed(allowed)}"
    if slot.role.parameter == "zero_point":
        if is_float:
            return remedies.float_zero_point(slot.argument, parameters_of(page.desc))
        expected = slot.owner.data_type if slot.owner else allowed[0]
        return remedies.retyped_zero_point(argument, received, expected, page_name(slot.role.of))
    wide = f".astype(jnp.{received.name.lower().replace('4', '8')})" if received.is_packed else ""
    if wants_float and not is_float and not slot.role.parameter and received.bits <= 32:
        return f"dequantize it first: {converter('integer', 'float')}({argument}{wide}, scale, zero_point)"
    if wants_float and (is_float or slot.role.parameter):
        return f"write {argument}.astype(jnp.{allowed[0].name.lower()})"
    if is_float and slot.row in page.weights:
        weights = slot.argument  # without a cast: quantize_weights takes any float type
        return (
            f"quantize it first: {weights}, {weights}_scale = "
            f"jaxdml.ptq.quantize_weights({weights}, axis={page.weights[slot.row]})"
        )
    quantized = f"{converter('float', 'integer')}({argument}, scale, zero_point, output_dtype=...)"
    if is_float:
        return f"quantize it first: {quantized}"
    if wide and any(data_type.bits == 8 for data_type in allowed):
        return f"write {argument}{wide}"
    if len(allowed) == 1:
        return (
            f"if all values of {argument} fit {allowed[0].name}, write {argument}.astype(jnp.{allowed[0].name.lower()})"
        )
    converted = f"convert it with {argument}.astype to a type that holds its values"
    is_quantizable = received == DataType.INT32 and allowed == BYTES  # int32 may be sums of products
    return f"{converted}, or quantize it: {quantized}" if is_quantizable else converted


def remedy_of_inequality(page: Page, what: str, slot: Slot, first: Slot, mine: Any, theirs: Any) -> str | Remedy:
    """The remedy for a tensor that differs from the first tensor of a constraint."""
    if special := _special(page, slot, f"same_{what}"):
        return special
    argument, other = slot.argument, first.argument
    if what == "data_type":
        return remedies.converted(slot, parameters_of(page.desc), mine, theirs, first.name)
    if slot.role.parameter:
        has_its_sizes = any(kind == "sizes" and {slot.row, first.row} <= {*names} for kind, names in page.constraints)
        in_desc = f"write sizes={first.tensor.sizes}, and strides of 0 where values are shared"
        in_desc = in_desc if has_its_sizes else f"give it {shown_fact(theirs)} sizes"
        is_reshaped = what == "dimension_count" and len(aligned(slot.tensor.sizes, theirs)) == theirs
        form = _reshaped if is_reshaped else _broadcasting
        return Remedy(lambda shape: form(argument, shape, first.tensor.sizes), in_desc)
    data: Any = fields_of(page.desc)[slot.field]
    matrix = -data.batch
    in_call = f"give {argument} the sizes of {other}"
    if slot.row == "BTensor":
        in_call = "give b the rank of a, and as many rows as a has columns" if matrix else in_call
        in_call = remedies.matched(first.tensor, slot.tensor, matrix) or in_call
    elif slot.row == "FilterTensor" and mine > theirs:
        in_call = "write input[None] for a batch of one, or use jax.vmap over a stack of filters"
    elif slot.row == "FilterTensor":
        is_one = slot.tensor.sizes[0] == first.tensor.sizes[1] != slot.tensor.sizes[1]
        in_call = f"write filter[{'None] for one output channel' if is_one else ':, :, None] for a kernel of height 1'}"
    if what == "dimension_count":
        return Remedy(in_call, f"give both {shown_fact(mine)} sizes, or both {shown_fact(theirs)}")
    return Remedy(in_call, "tensors do not broadcast: write equal sizes, and strides of 0 where values are repeated")


def _broadcasting(argument: str, shape: Shape, sizes: Shape) -> str:
    """How to broadcast a scale or zero point of this shape to a tensor of these sizes."""
    values = [size for size in shape if size != 1]
    if len(values) == 1 and values[0] in sizes:
        axis = len(sizes) - 1 - sizes[::-1].index(values[0])
        if axis < len(sizes) - 1:
            ones = ", 1" * (len(sizes) - 1 - axis)
            return f"for one value per entry of dimension {axis} write {argument}.reshape(-1{ones})"
    return f"give {argument} one value, one for each entry of a dimension, or sizes that broadcast to {list(sizes)}"


def _reshaped(argument: str, shape: Shape, sizes: Shape) -> str:
    """How to reshape a scale or zero point to the rank of its tensor."""
    count, whole = math.prod(shape), [*range(len(sizes))][::-1]
    fitting = [axis for axis in whole if sizes[axis] == count] + [axis for axis in whole if sizes[axis] % count == 0]
    if len(shape) == 1 and fitting:
        ones = ["1"] * len(sizes)
        ones[fitting[0]] = "-1"
        return f"for blocks along dimension {fitting[0]} write {argument}.reshape({', '.join(ones)})"
    if len(shape) == 1 and count > 1:
        return f"there are {count} values, but no dimension of {list(sizes)} is a multiple of {count}"
    return f"write {argument}.reshape({', '.join(map(str, aligned(shape, len(sizes))))})"


def shown_fact(fact: Any) -> str:
    """Sizes, a rank or a data type as an error shows it."""
    return str(list(fact)) if isinstance(fact, tuple) else getattr(fact, "name", str(fact))
