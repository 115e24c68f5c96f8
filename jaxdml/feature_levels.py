"""What each feature level allows: the tensor-support tables and tensor constraints of DirectML's pages, as data.

A level that is missing from an operator's tables allows what the highest level below it allows.
"""

import enum
from typing import NamedTuple

from jaxdml._data_types import DataType


class FeatureLevel(enum.IntEnum):
    """DML_FEATURE_LEVEL. LATEST is the highest, 6_4; DirectML is frozen there."""

    LEVEL_1_0 = 0x1000
    LEVEL_2_0 = 0x2000
    LEVEL_2_1 = 0x2100
    LEVEL_3_0 = 0x3000
    LEVEL_3_1 = 0x3100
    LEVEL_4_0 = 0x4000
    LEVEL_4_1 = 0x4100
    LEVEL_5_0 = 0x5000
    LEVEL_5_1 = 0x5100
    LEVEL_5_2 = 0x5200
    LEVEL_6_0 = 0x6000
    LEVEL_6_1 = 0x6100
    LEVEL_6_2 = 0x6200
    LEVEL_6_3 = 0x6300
    LEVEL_6_4 = 0x6400
    LATEST = 0x6400

    def __str__(self) -> str:
        return f"{self.value >> 12}_{self.value >> 8 & 0xF}"


class Support(NamedTuple):
    """One row of a tensor-support table: dimension counts (lowest, highest), data types, optional or not."""

    dimension_counts: tuple[int, int]
    data_types: tuple[DataType, ...]
    optional: bool = False


class Same(NamedTuple):
    """One bullet of a tensor-constraint list: these tensors have the same dimension_count, sizes or data_type."""

    what: str
    tensors: tuple[str, ...]


_INTEGERS = (DataType.INT32, DataType.INT16, DataType.INT8, DataType.UINT32, DataType.UINT16, DataType.UINT8)
_BYTES = (DataType.INT8, DataType.UINT8)
_WORDS = (DataType.INT16, DataType.INT8, DataType.UINT16, DataType.UINT8)
_UINT8 = (DataType.UINT8,)
_INT32 = (DataType.INT32,)
_FLOAT32 = (DataType.FLOAT32,)
_FLOATS = (DataType.FLOAT32, DataType.FLOAT16)


def _linear(
    counts: tuple[int, int],
    inputs: tuple[DataType, ...],
    scales: tuple[DataType, ...],
    zero_points: tuple[DataType, ...],
    outputs: tuple[DataType, ...],
    optional: bool = False,
) -> dict[str, Support]:
    return {
        "InputTensor": Support(counts, inputs),
        "ScaleTensor": Support(counts, scales),
        "ZeroPointTensor": Support(counts, zero_points, optional),
        "OutputTensor": Support(counts, outputs),
    }


def _binary(data: tuple[int, int], parameters: tuple[int, int]) -> dict[str, Support]:
    return {
        "ATensor": Support(data, _BYTES),
        "AScaleTensor": Support(parameters, _FLOAT32),
        "AZeroPointTensor": Support(parameters, _BYTES, optional=True),
        "BTensor": Support(data, _BYTES),
        "BScaleTensor": Support(parameters, _FLOAT32),
        "BZeroPointTensor": Support(parameters, _BYTES, optional=True),
        "OutputScaleTensor": Support(parameters, _FLOAT32),
        "OutputZeroPointTensor": Support(parameters, _BYTES, optional=True),
        "OutputTensor": Support(data, _BYTES),
    }


def _convolution(
    data: tuple[int, int], parameters: tuple[int, int], filter_scale: tuple[int, int]
) -> dict[str, Support]:
    return {
        "InputTensor": Support(data, _BYTES),
        "InputScaleTensor": Support(parameters, _FLOAT32),
        "InputZeroPointTensor": Support(parameters, _BYTES, optional=True),
        "FilterTensor": Support(data, _BYTES),
        "FilterScaleTensor": Support(filter_scale, _FLOAT32),
        "FilterZeroPointTensor": Support(parameters, _BYTES, optional=True),
        "BiasTensor": Support(data, _INT32, optional=True),
        "OutputScaleTensor": Support(parameters, _FLOAT32),
        "OutputZeroPointTensor": Support(parameters, _BYTES, optional=True),
        "OutputTensor": Support(data, _BYTES),
    }


SUPPORT: dict[str, dict[FeatureLevel, dict[str, Support]]] = {
    "element_wise_dequantize_linear": {
        FeatureLevel.LEVEL_1_0: _linear((4, 4), _UINT8, _FLOAT32, _UINT8, _FLOAT32),
        FeatureLevel.LEVEL_2_1: _linear((4, 4), _INTEGERS, _FLOAT32, _INTEGERS, _FLOAT32),
        FeatureLevel.LEVEL_3_0: _linear((1, 8), _INTEGERS, _FLOAT32, _INTEGERS, _FLOAT32),
        FeatureLevel.LEVEL_6_0: _linear((1, 8), _INTEGERS, _FLOATS, _INTEGERS, _FLOATS),
        FeatureLevel.LEVEL_6_2: _linear((1, 8), _INTEGERS, _FLOATS, _INTEGERS, _FLOATS, optional=True),
    },
    "element_wise_quantize_linear": {
        FeatureLevel.LEVEL_1_0: _linear((4, 4), _FLOAT32, _FLOAT32, _UINT8, _UINT8),
        FeatureLevel.LEVEL_2_1: _linear((4, 4), _FLOAT32 + _INT32, _FLOAT32, _BYTES, _BYTES),
        FeatureLevel.LEVEL_3_0: _linear((1, 8), _FLOAT32 + _INT32, _FLOAT32, _BYTES, _BYTES),
        FeatureLevel.LEVEL_6_0: _linear((1, 8), _FLOATS + _INT32, _FLOATS, _BYTES, _BYTES),
        FeatureLevel.LEVEL_6_2: _linear((1, 8), _FLOATS + _INT32, _FLOATS, _BYTES, _BYTES, optional=True),
        # jaxdml's own: the 16-bit outputs are on no level of the page. They make what dequantize reads.
        FeatureLevel.LEVEL_6_4: _linear((1, 8), _FLOATS + _INT32, _FLOATS, _WORDS, _WORDS, optional=True),
    },
    "element_wise_quantized_linear_add": {
        FeatureLevel.LEVEL_4_0: _binary((1, 8), (1, 8)),
    },
    "quantized_linear_matrix_multiply": {
        FeatureLevel.LEVEL_2_1: _binary((4, 4), (4, 4)),
        FeatureLevel.LEVEL_4_0: _binary((2, 4), (1, 4)),
    },
    "quantized_linear_convolution": {
        FeatureLevel.LEVEL_2_1: _convolution((4, 4), (4, 4), filter_scale=(4, 4)),
        FeatureLevel.LEVEL_4_0: _convolution((3, 4), (1, 4), filter_scale=(3, 4)),
        FeatureLevel.LEVEL_5_2: _convolution((3, 4), (1, 4), filter_scale=(1, 4)),
    },
}

_LINEAR_TENSORS = ("InputTensor", "OutputTensor", "ScaleTensor", "ZeroPointTensor")
_BINARY_PARAMETERS = (
    "AScaleTensor",
    "AZeroPointTensor",
    "BScaleTensor",
    "BZeroPointTensor",
    "OutputScaleTensor",
    "OutputZeroPointTensor",
)
_BINARY_DATA_TYPES = (
    Same("data_type", ("ATensor", "AZeroPointTensor")),
    Same("data_type", ("BTensor", "BZeroPointTensor")),
    Same("data_type", ("OutputTensor", "OutputZeroPointTensor")),
)

CONSTRAINTS: dict[str, tuple[Same, ...]] = {
    "element_wise_dequantize_linear": (
        Same("dimension_count", _LINEAR_TENSORS),
        Same("sizes", _LINEAR_TENSORS),
        Same("data_type", ("InputTensor", "ZeroPointTensor")),
        Same("data_type", ("OutputTensor", "ScaleTensor")),
    ),
    "element_wise_quantize_linear": (
        Same("dimension_count", _LINEAR_TENSORS),
        Same("sizes", _LINEAR_TENSORS),
        Same("data_type", ("OutputTensor", "ZeroPointTensor")),
    ),
    "element_wise_quantized_linear_add": (
        Same("dimension_count", ("ATensor", "BTensor", "OutputTensor", *_BINARY_PARAMETERS)),
        Same("sizes", ("ATensor", "BTensor", "OutputTensor")),
        *_BINARY_DATA_TYPES,
    ),
    "quantized_linear_matrix_multiply": (
        Same("dimension_count", _BINARY_PARAMETERS),
        Same("dimension_count", ("ATensor", "BTensor", "OutputTensor")),
        *_BINARY_DATA_TYPES,
    ),
    "quantized_linear_convolution": (
        Same("dimension_count", ("InputTensor", "FilterTensor", "BiasTensor", "OutputTensor")),
        Same("data_type", ("InputTensor", "InputZeroPointTensor")),
        Same("data_type", ("FilterTensor", "FilterZeroPointTensor")),
        Same("data_type", ("OutputTensor", "OutputZeroPointTensor")),
    ),
}

# The least that each option may be, at every level. GroupCount is one number, the others have one for each dimension.
OPTIONS: dict[str, dict[str, int]] = {
    "quantized_linear_convolution": {
        "Strides": 1,
        "Dilations": 1,
        "StartPadding": 0,
        "EndPadding": 0,
        "GroupCount": 1,
    },
}


def support_at(operator: str, feature_level: FeatureLevel) -> dict[str, Support]:
    """The tensor-support table in force at a level: that of the highest level not above it."""
    tables = SUPPORT[operator]
    return tables[max(level for level in tables if level <= feature_level)]
