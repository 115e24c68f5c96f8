"""DirectML's enums of what a tensor is made of."""

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
        """The data type of a NumPy dtype or scalar type; UNKNOWN where DirectML has none (bool, bfloat16)."""
        return _data_type(dtype)

    @property
    def dtype(self) -> np.dtype:
        """The NumPy dtype; TypeError for UNKNOWN and the 4-bit types, which NumPy does not have."""
        return np.dtype(self.name.lower())

    @property
    def bits(self) -> int:
        """Bits per element; 0 for UNKNOWN."""
        return int("0" + "".join(c for c in self.name if c.isdigit()))


@functools.cache
def _data_type(dtype: Any) -> DataType:
    dtype = np.dtype(dtype) if isinstance(dtype, type) else dtype
    return DataType.__members__.get(str(dtype).upper(), DataType.UNKNOWN)


class TensorFlags(enum.IntFlag):
    """DML_TENSOR_FLAGS."""

    NONE = 0
    OWNED_BY_DML = 1
