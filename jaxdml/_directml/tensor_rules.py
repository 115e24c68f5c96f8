"""Checks of tensor descs that are the same for all operators."""

import math
from collections.abc import Sequence
from typing import Any

import jax.export

from jaxdml._directml import remedies
from jaxdml._directml.data_types import DataType, TensorFlags
from jaxdml._directml.desc import TensorDesc
from jaxdml._directml.messages import Remedy, RuleError, broken, raising_desc_errors, shown
from jaxdml._directml.strides import may_overlap, reach
from jaxdml._shapes import is_integer
from jaxdml.errors import api_boundary

MAXIMUM_ELEMENTS = 2**32 - 1
UINT_MAX = 2**32 - 1  # every count in directml.h is a 32-bit UINT


def is_uint(value: Any) -> bool:
    """Whether value is an integer (not a bool) that fits a UINT."""
    return is_integer(value) and 0 <= value <= UINT_MAX


def is_symbolic(value: Any) -> bool:
    """Whether value is a symbolic dimension of `jax.export`."""
    return not isinstance(value, int) and jax.export.is_symbolic_dim(value)


def _without_symbolic(sizes: Any) -> Any:
    """sizes without symbolic dimensions, whose values are unknown until the exported function is called."""
    if not isinstance(sizes, tuple) or all(type(size) is int for size in sizes):
        return sizes
    return tuple(size for size in sizes if not is_symbolic(size))


def check_uints(
    operator: str, tensor: str, field: str, value: Any, length: int | None = None, least: int = 0, *,
    may_be_symbolic: bool = False,
) -> None:  # fmt: skip
    """Checks that value is a tuple of `length` UINTs, none below `least`; if may_be_symbolic, some may be symbolic."""
    many = "" if length is None else f"{length} "
    is_right = isinstance(value, tuple) and all(
        (is_uint(v) and v >= least) or (may_be_symbolic and is_symbolic(v)) for v in value
    )
    if not is_right or length not in (None, len(value)):
        what = f"has no {field}" if value is None else f"has {field} {shown(value)}"
        text = f"{what}, expected a tuple of {many}integers from {least} to {UINT_MAX}"
        raise RuleError(operator, tensor, field.lower(), text, expected=length, received=value)


def minimum_bytes(tensor: TensorDesc) -> int:
    """Bytes from the first element to the last, rounded up to a multiple of 4, as in DMLCalcBufferTensorSize."""
    return -(-reach(tensor.sizes, tensor.strides) * tensor.data_type.bits // 32) * 4


def check_tuple(operator: str, name: str, field: str, value: Any) -> None:
    """Checks that a field for several tensors holds a tuple or None."""
    if value is not None and not isinstance(value, tuple):
        text, remedy = f"is {shown(value)}, expected a tuple of TensorDescs", remedies.tuple_of_one(field)
        raise RuleError(operator, name, "tensor_desc", text, remedy, expected=tuple, received=value)


def check_tensor(operator: str, name: str, tensor: Any, *, is_output: bool = False) -> None:
    """Checks that tensor is a well-formed TensorDesc."""

    def wrong(rule: str, text: str, expected: Any, received: Any, remedy: str | Remedy = "") -> RuleError:
        return RuleError(operator, name, rule, text, remedy, expected=expected, received=received)

    if not isinstance(tensor, TensorDesc):
        text = f"is {shown(tensor)}, expected a TensorDesc"
        raise wrong("tensor_desc", text, TensorDesc, tensor, remedies.TENSOR_DESC)
    data_type, sizes, strides, flags = tensor.data_type, tensor.sizes, tensor.strides, tensor.flags
    if not isinstance(data_type, DataType):
        text = f"has data type {shown(data_type)}, expected a DataType"
        raise wrong("data_type", text, DataType, data_type, remedies.DATA_TYPE)
    known = _without_symbolic(sizes)
    check_uints(operator, name, "Sizes", known)
    if 0 in sizes:
        text = f"has Sizes {list(sizes)}, no dimension may be empty"
        raise wrong("sizes", text, "at least 1", sizes, remedies.NOT_EMPTY)
    if math.prod(known) > MAXIMUM_ELEMENTS:
        text = f"has {math.prod(known)} elements, the limit is {MAXIMUM_ELEMENTS}"
        raise wrong("elements", text, MAXIMUM_ELEMENTS, sizes, remedies.SPLIT)
    if strides is not None:
        check_uints(operator, name, "Strides", strides, length=len(sizes))
        if is_output and may_overlap(sizes, strides):
            text = f"has Strides {list(strides)} for Sizes {list(sizes)}, so elements overlap"
            raise wrong("strides", text, "no overlap", strides, remedies.NO_OVERLAP)
    if not isinstance(flags, TensorFlags) or flags not in (TensorFlags.NONE, TensorFlags.OWNED_BY_DML):
        text = f"has Flags {shown(flags)}, expected TensorFlags.NONE or TensorFlags.OWNED_BY_DML"
        raise wrong("flags", text, TensorFlags, flags)
    if is_output and flags:
        text = "has Flags OWNED_BY_DML, but each dispatch writes this output"
        raise wrong("flags", text, TensorFlags.NONE, flags, remedies.NO_FLAGS)
    size, rule = tensor.total_tensor_size_in_bytes, "total_tensor_size_in_bytes"
    if size is not None and not (is_integer(size) and 0 <= size < 2**64):
        raise wrong(rule, f"has TotalTensorSizeInBytes {shown(size)}, expected an integer or None", int, size)
    if size is not None and size < (least := minimum_bytes(tensor)):
        text = f"has TotalTensorSizeInBytes {size}, its sizes and strides need at least {least}"
        raise wrong(rule, text, least, size)
    alignment, rule = tensor.guaranteed_base_offset_alignment, "guaranteed_base_offset_alignment"
    element = max(data_type.bits // 8, 1)
    if not is_uint(alignment) or (alignment and (alignment & (alignment - 1) or alignment < element)):
        text = f"has GuaranteedBaseOffsetAlignment {shown(alignment)}"
        raise wrong(rule, f"{text}, expected 0 or a power of two of at least {element}", element, alignment)


@api_boundary
def calc_buffer_tensor_size(data_type: DataType, sizes: Sequence[int], strides: Sequence[int] | None = None) -> int:
    """The least TotalTensorSizeInBytes of a tensor.

    This is the number of bytes from the first element to the last, rounded up to a multiple of 4.

    Args:
      data_type: the element type.
      sizes: the number of elements in each dimension, at least 1.
      strides: the step from one index of a dimension to the next, in elements; None means packed.

    Returns:
      The number of bytes, a multiple of 4.

    Raises:
      DescError: if no tensor can have this type, these sizes and these strides.

    Source: DirectML, DMLCalcBufferTensorSize, https://learn.microsoft.com/windows/ai/directml/dml-helper-functions
    """
    given: Any = (data_type, sizes, strides)
    operator, tensor = "calc_buffer_tensor_size", TensorDesc(*given)
    with raising_desc_errors():
        check_tensor(operator, "Tensor", tensor)
    if not 1 <= len(tensor.sizes) <= 8:
        text = f"has rank {len(tensor.sizes)}, expected 1 to 8"
        raise broken(operator, "Tensor", "dimension_count", text, expected=(1, 8), received=len(tensor.sizes))
    if not tensor.data_type:
        text = "has data type UNKNOWN, which has no size"
        raise broken(operator, "Tensor", "data_type", text, expected=DataType, received=tensor.data_type)
    return minimum_bytes(tensor)
