"""Rules that hold for every tensor desc, whatever the operator."""

import math
from collections.abc import Sequence
from typing import Any

import jax.export

from jaxdml._directml.data_types import DataType, TensorFlags
from jaxdml._directml.desc import TensorDesc
from jaxdml._directml.messages import Remedy, RuleError, broken, shown, told
from jaxdml._directml.strides import may_overlap, reach
from jaxdml._shapes import is_integer
from jaxdml.errors import api_boundary

MAXIMUM_ELEMENTS = 2**32 - 1
UINT_MAX = 2**32 - 1  # every count in directml.h is a 32-bit UINT


def is_uint(value: Any) -> bool:
    """Whether value is an integer (not a bool) that fits a UINT."""
    return is_integer(value) and 0 <= value <= UINT_MAX


def is_symbolic(value: Any) -> bool:
    """Whether value is a dimension that `jax.export` leaves open."""
    return not isinstance(value, int) and jax.export.is_symbolic_dim(value)


def _known(sizes: Any) -> Any:
    """sizes without what is left open, which nobody can check before the exported function is called."""
    if not isinstance(sizes, tuple) or all(type(size) is int for size in sizes):
        return sizes
    return tuple(size for size in sizes if not is_symbolic(size))


def check_uints(operator: str, tensor: str, field: str, value: Any, length: int | None = None, least: int = 0) -> None:
    """value is a tuple of `length` UINTs, none below `least`."""
    many = "" if length is None else f"{length} "
    is_right = isinstance(value, tuple) and all(is_uint(v) and v >= least for v in value)
    if not is_right or length not in (None, len(value)):
        what = f"has no {field}" if value is None else f"has {field} {shown(value)}"
        text = f"{what}, expected a tuple of {many}integers from {least} to {UINT_MAX}"
        raise RuleError(operator, tensor, field.lower(), text, expected=length, received=value)


def minimum_bytes(tensor: TensorDesc) -> int:
    """Bytes from the first element to the last, rounded up to 4: what DMLCalcBufferTensorSize returns."""
    return -(-reach(tensor.sizes, tensor.strides) * tensor.data_type.bits // 32) * 4


def check_tuple(operator: str, name: str, field: str, value: Any) -> None:
    """What a field holds that takes several tensors: a tuple of them, or nothing."""
    if value is not None and not isinstance(value, tuple):
        text, fix = f"is {shown(value)}, expected a tuple of TensorDescs", f"write {field}=(TensorDesc(...),)"
        raise RuleError(operator, name, "tensor_desc", text, fix, expected=tuple, received=value)


def check_tensor(operator: str, name: str, tensor: Any, *, is_output: bool = False) -> None:
    """Tensor is a well-formed TensorDesc."""
    if not isinstance(tensor, TensorDesc):
        text, fix = f"is {shown(tensor)}, expected a TensorDesc", "write TensorDesc(DataType.UINT8, (2, 3)) or the like"
        raise RuleError(operator, name, "tensor_desc", text, fix, expected=TensorDesc, received=tensor)
    if not isinstance(tensor.data_type, DataType):
        text = f"has data type {shown(tensor.data_type)}, expected a DataType"
        fix = "write DataType.UINT8 or the like, or DataType.of(dtype)"
        raise RuleError(operator, name, "data_type", text, fix, expected=DataType, received=tensor.data_type)
    known = _known(tensor.sizes)
    check_uints(operator, name, "Sizes", known)
    if 0 in tensor.sizes:
        text = f"has Sizes {list(tensor.sizes)}, no dimension may be empty"
        remedy = Remedy("skip the call when there is no data", "give each dimension 1 or more")
        raise RuleError(operator, name, "sizes", text, remedy, expected="at least 1", received=tensor.sizes)
    if math.prod(known) > MAXIMUM_ELEMENTS:
        text = f"has {math.prod(known)} elements, the limit is {MAXIMUM_ELEMENTS}; split the tensor"
        raise RuleError(operator, name, "elements", text, expected=MAXIMUM_ELEMENTS, received=tensor.sizes)
    if tensor.strides is not None:
        check_uints(operator, name, "Strides", tensor.strides, length=len(tensor.sizes))
        if is_output and may_overlap(tensor.sizes, tensor.strides):
            fix = "each element of an output needs a place of its own in the buffer"
            text = (
                f"has Strides {list(tensor.strides)} for Sizes {list(tensor.sizes)}, by which elements overlap; {fix}"
            )
            raise RuleError(operator, name, "strides", text, expected="no overlap", received=tensor.strides)
    if not isinstance(tensor.flags, TensorFlags) or tensor.flags not in (TensorFlags.NONE, TensorFlags.OWNED_BY_DML):
        text = f"has Flags {shown(tensor.flags)}, expected TensorFlags.NONE or TensorFlags.OWNED_BY_DML"
        raise RuleError(operator, name, "flags", text, expected=TensorFlags, received=tensor.flags)
    if is_output and tensor.flags:
        text = "has Flags OWNED_BY_DML, but it is written by each dispatch; leave its flags NONE"
        raise RuleError(operator, name, "flags", text, expected=TensorFlags.NONE, received=tensor.flags)
    _check_buffer(operator, name, tensor)


def _check_buffer(operator: str, name: str, tensor: TensorDesc) -> None:
    size = tensor.total_tensor_size_in_bytes
    if size is not None and not (is_integer(size) and 0 <= size < 2**64):
        text = f"has TotalTensorSizeInBytes {shown(size)}, expected an integer or None"
        raise RuleError(operator, name, "total_tensor_size_in_bytes", text, expected=int, received=size)
    if size is not None and size < minimum_bytes(tensor):
        text = f"has TotalTensorSizeInBytes {size}, its sizes and strides need at least {minimum_bytes(tensor)}"
        raise RuleError(
            operator, name, "total_tensor_size_in_bytes", text, expected=minimum_bytes(tensor), received=size
        )
    alignment = tensor.guaranteed_base_offset_alignment
    element = max(tensor.data_type.bits // 8, 1)
    if not is_uint(alignment) or (alignment and (alignment & (alignment - 1) or alignment < element)):
        text = (
            f"has GuaranteedBaseOffsetAlignment {shown(alignment)}, expected 0 or a power of two of at least {element}"
        )
        raise RuleError(operator, name, "guaranteed_base_offset_alignment", text, expected=element, received=alignment)


@api_boundary
def calc_buffer_tensor_size(data_type: DataType, sizes: Sequence[int], strides: Sequence[int] | None = None) -> int:
    """The least TotalTensorSizeInBytes of a tensor: its bytes from the first element to the last, rounded up to 4.

    Args:
      data_type: the element type.
      sizes: elements in each dimension, none 0.
      strides: elements from one entry of a dimension to the next; None is packed.

    Returns:
      Bytes, a multiple of 4.

    Raises:
      DescError: if no tensor can have these sizes and strides.

    Source: DirectML, DMLCalcBufferTensorSize, https://learn.microsoft.com/windows/ai/directml/dml-helper-functions
    """
    given: Any = (data_type, sizes, strides)
    operator, tensor = "calc_buffer_tensor_size", TensorDesc(*given)
    with told():
        check_tensor(operator, "Tensor", tensor)
    if not 1 <= len(tensor.sizes) <= 8:
        text = f"has rank {len(tensor.sizes)}, expected 1 to 8"
        raise broken(operator, "Tensor", "dimension_count", text, expected=(1, 8), received=len(tensor.sizes))
    if not tensor.data_type:
        text = "has data type UNKNOWN, which has no size"
        raise broken(operator, "Tensor", "data_type", text, expected=DataType, received=tensor.data_type)
    return minimum_bytes(tensor)
