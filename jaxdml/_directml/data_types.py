"""DirectML's enums of tensor data types and flags."""

import enum
import functools
from typing import Any

import numpy as np


class DataType(enum.IntEnum):
    """DML_TENSOR_DATA_TYPE."""

    UNKNOWN = 0
    FLOAT32 = 1
    FLOAT16 = 2
    UINT32 = 3
    UINT16 = 4
    UINT8 = 5
    INT32 = 6
    INT16 = 7
    INT8 = 8
    FLOAT64 = 9
    UINT64 = 10
    INT64 = 11
    UINT4 = 12
    INT4 = 13

    @classmethod
    def of(cls, dtype: Any) -> "DataType":
        """The data type of a NumPy dtype or scalar type; UNKNOWN if DirectML has no such type (bool, bfloat16)."""
        return _data_type(dtype)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of arrays. Arrays of jnp.int4 and jnp.uint4 have one byte per element. UNKNOWN raises TypeError."""
        return np.dtype(self.name.lower())

    @property
    def is_packed(self) -> bool:
        """Whether flat buffers hold two elements per byte, the first in the low four bits."""
        return self.bits == 4

    @property
    def buffer_dtype(self) -> np.dtype:
        """The NumPy dtype of flat buffers."""
        return np.dtype(np.uint8) if self.is_packed else self.dtype

    @property
    def bits(self) -> int:
        """Bits per element; 0 for UNKNOWN."""
        return _bits(self)


@functools.cache
def _bits(data_type: DataType) -> int:
    return int("0" + "".join(c for c in data_type.name if c.isdigit()))


@functools.cache
def _data_type(dtype: Any) -> DataType:
    dtype = np.dtype(dtype) if isinstance(dtype, type) else dtype
    return DataType.__members__.get(str(dtype).upper(), DataType.UNKNOWN)


class TensorFlags(enum.IntFlag):
    """DML_TENSOR_FLAGS."""

    NONE = 0
    OWNED_BY_DML = 1


# Groups of types in the order of DirectML's tables.
INTEGERS = (DataType.INT32, DataType.INT16, DataType.INT8, DataType.UINT32, DataType.UINT16, DataType.UINT8)
WORDS = (DataType.INT16, DataType.INT8, DataType.UINT16, DataType.UINT8)
BYTES = (DataType.INT8, DataType.UINT8)
NIBBLES_AND_BYTES = (DataType.INT8, DataType.INT4, DataType.UINT8, DataType.UINT4)
UINT8 = (DataType.UINT8,)
INT32 = (DataType.INT32,)
FLOATS = (DataType.FLOAT32, DataType.FLOAT16)
FLOAT32 = (DataType.FLOAT32,)
