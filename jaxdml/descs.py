"""Descs: the tensor desc, and one frozen dataclass per operator.

Fields stand in the order of directml.h, under the page's names in snake case. A desc holds what it was given; whether
that is right is decided in one place, `jaxdml.validate`. Fields left out are None, as in a zero-initialised struct.
"""

import dataclasses
import functools
import re
from typing import Any, ClassVar

import numpy as np

from jaxdml._data_types import DataType, TensorFlags
from jaxdml._desc_table import desc_table


@functools.cache
def page_name(field: str) -> str:
    """The page's name of a field: ``a_scale_tensor`` is ``AScaleTensor``."""
    return "".join(word.capitalize() for word in field.split("_"))


@functools.cache
def parameter_name(tensor: str) -> str:
    """What the functions call a tensor of the page: ``AScaleTensor`` is ``a_scale``."""
    return re.sub("(?<!^)(?=[A-Z])", "_", tensor.removesuffix("Tensor")).lower()


def is_sequence(value: Any) -> bool:
    """Whether value can stand for one of directml.h's arrays; a NumPy array of rank 0 cannot."""
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _tuple(sequence: Any) -> Any:
    """A sequence as a hashable tuple of Python integers; anything else as it is, for validate to judge."""
    if not is_sequence(sequence):
        return sequence
    return tuple(_integer(item) for item in sequence)


def _integer(value: Any) -> Any:
    """A NumPy integer as a Python one; anything else as it is."""
    return int(value) if isinstance(value, np.integer) else value


@dataclasses.dataclass(frozen=True)
class TensorDesc:
    """DML_BUFFER_TENSOR_DESC.

    Attributes:
      data_type: the element type.
      sizes: elements in each dimension, 1 to 8 of them, none zero.
      strides: elements from one entry of a dimension to the next; None is packed, 0 repeats the dimension.
      flags: OWNED_BY_DML marks a tensor that is bound once, when the operator is initialised.
      total_tensor_size_in_bytes: bytes of the buffer; None is the minimum.
      guaranteed_base_offset_alignment: bytes; 0 or a power of two, at least an element.
    """

    data_type: DataType
    sizes: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    flags: TensorFlags = TensorFlags.NONE
    total_tensor_size_in_bytes: int | None = None
    guaranteed_base_offset_alignment: int = 0

    def __post_init__(self) -> None:
        for field in ("sizes", "strides"):
            object.__setattr__(self, field, _tuple(getattr(self, field)))
        for field in ("total_tensor_size_in_bytes", "guaranteed_base_offset_alignment"):
            object.__setattr__(self, field, _integer(getattr(self, field)))


@dataclasses.dataclass(frozen=True)
class OperatorDesc:
    """Base of the operator descs. `operator` is the name of the function that a desc stands for.

    Printed, and at the end of a notebook's cell, a desc is a table of its tensors and what the latest level allows.
    """

    operator: ClassVar[str] = ""

    def __str__(self) -> str:
        return str(desc_table(self))

    def _repr_html_(self) -> str:
        return desc_table(self).html()

    def tensors(self) -> dict[str, Any]:
        """The tensor descs by page name, None where absent."""
        return {
            page_name(field.name): getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name.endswith("_tensor")
        }

    def options(self) -> dict[str, Any]:
        """What is no tensor, by page name."""
        return {
            page_name(field.name): getattr(self, field.name)
            for field in dataclasses.fields(self)
            if not field.name.endswith("_tensor")
        }


@dataclasses.dataclass(frozen=True)
class _LinearDesc(OperatorDesc):
    """The fields of dequantize and quantize."""

    input_tensor: TensorDesc | None = None
    scale_tensor: TensorDesc | None = None
    zero_point_tensor: TensorDesc | None = None
    output_tensor: TensorDesc | None = None


@dataclasses.dataclass(frozen=True)
class ElementWiseDequantizeLinearDesc(_LinearDesc):
    """DML_ELEMENT_WISE_DEQUANTIZE_LINEAR_OPERATOR_DESC.

    All tensors have the same sizes; strides of 0 repeat a scale or zero point. ZeroPointTensor may be None from 6_2.
    """

    operator: ClassVar[str] = "element_wise_dequantize_linear"


@dataclasses.dataclass(frozen=True)
class ElementWiseQuantizeLinearDesc(_LinearDesc):
    """DML_ELEMENT_WISE_QUANTIZE_LINEAR_OPERATOR_DESC.

    All tensors have the same sizes; strides of 0 repeat a scale or zero point. ZeroPointTensor may be None from 6_2.
    """

    operator: ClassVar[str] = "element_wise_quantize_linear"


@dataclasses.dataclass(frozen=True)
class _BinaryQuantizedDesc(OperatorDesc):
    """The fields of quantized add and quantized matrix multiply."""

    a_tensor: TensorDesc | None = None
    a_scale_tensor: TensorDesc | None = None
    a_zero_point_tensor: TensorDesc | None = None
    b_tensor: TensorDesc | None = None
    b_scale_tensor: TensorDesc | None = None
    b_zero_point_tensor: TensorDesc | None = None
    output_scale_tensor: TensorDesc | None = None
    output_zero_point_tensor: TensorDesc | None = None
    output_tensor: TensorDesc | None = None


@dataclasses.dataclass(frozen=True)
class ElementWiseQuantizedLinearAddDesc(_BinaryQuantizedDesc):
    """DML_ELEMENT_WISE_QUANTIZED_LINEAR_ADD_OPERATOR_DESC.

    A, B and output have the same sizes, scales and zero points sizes of 1 in as many dimensions. Zero points may be
    None.
    """

    operator: ClassVar[str] = "element_wise_quantized_linear_add"


@dataclasses.dataclass(frozen=True)
class QuantizedLinearMatrixMultiplyDesc(_BinaryQuantizedDesc):
    """DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY_OPERATOR_DESC.

    A is [..., M, K], B [..., K, N], the output [..., M, N]. Scales and zero points have one element, or one for each
    row of A and the output, [1, 1, M, 1], or column of B, [1, 1, 1, N]; all are of one rank. Zero points may be None.
    """

    operator: ClassVar[str] = "quantized_linear_matrix_multiply"


@dataclasses.dataclass(frozen=True)
class QuantizedLinearConvolutionDesc(OperatorDesc):
    """DML_QUANTIZED_LINEAR_CONVOLUTION_OPERATOR_DESC.

    Input is [N, C, H, W] or [N, C, W], the filter [O, C / group_count, *kernel], the output [N, O, ...]; strides say
    NHWC. Scales and zero points have one element, those of the filter also [1, O, 1, 1]; bias is [1, O, 1, 1]. Zero
    points and bias may be None, all else is required.
    """

    operator: ClassVar[str] = "quantized_linear_convolution"

    input_tensor: TensorDesc | None = None
    input_scale_tensor: TensorDesc | None = None
    input_zero_point_tensor: TensorDesc | None = None
    filter_tensor: TensorDesc | None = None
    filter_scale_tensor: TensorDesc | None = None
    filter_zero_point_tensor: TensorDesc | None = None
    bias_tensor: TensorDesc | None = None
    output_scale_tensor: TensorDesc | None = None
    output_zero_point_tensor: TensorDesc | None = None
    output_tensor: TensorDesc | None = None
    dimension_count: int | None = None
    strides: tuple[int, ...] | None = None
    dilations: tuple[int, ...] | None = None
    start_padding: tuple[int, ...] | None = None
    end_padding: tuple[int, ...] | None = None
    group_count: int | None = None

    def __post_init__(self) -> None:
        for field in ("strides", "dilations", "start_padding", "end_padding"):
            object.__setattr__(self, field, _tuple(getattr(self, field)))
        for field in ("dimension_count", "group_count"):
            object.__setattr__(self, field, _integer(getattr(self, field)))
