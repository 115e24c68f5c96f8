"""ONNX's numbers for types, and the arrays that hold them."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdml.errors import ModelError

_NAMES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16", 21: "uint4", 22: "int4",
}  # fmt: skip
_UNSUPPORTED = {
    8: "string", 14: "complex64", 15: "complex128", 17: "float8e4m3fn", 18: "float8e4m3fnuz", 19: "float8e5m2",
    20: "float8e5m2fnuz", 23: "float4e2m1", 24: "float8e8m0", 25: "uint2", 26: "int2", 27: "float6e2m3",
    28: "float6e3m2",
}  # fmt: skip
DTYPES: dict[int, np.dtype[Any]] = {number: jnp.dtype(name) for number, name in _NAMES.items()}


def dtype_of(number: int, subject: str) -> np.dtype[Any]:
    """The type of arrays that hold tensors of one of ONNX's types.

    Args:
      number: ONNX's number of the type.
      subject: what has the type, for the error.

    Raises:
      ModelError: if no array holds them, or no such type is known.
    """
    if number in DTYPES:
        return DTYPES[number]
    if number in _UNSUPPORTED:
        raise ModelError(f"{subject} has the type {_UNSUPPORTED[number]}, supported are {', '.join(_NAMES.values())}")
    raise ModelError(f"{subject} has the type number {number}, which ONNX does not define")
