"""Resources: buffers and their initial values."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np

from jaxdml._directml.data_types import DataType
from jaxdml._directml.desc_json import DATA_TYPE
from jaxdml._directml.json_values import Value
from jaxdml.dxdispatch._files import read_data
from jaxdml.dxdispatch._paths import inside

TYPES = dict(DataType.__members__)
WHOLE_BYTES = {name: value for name, value in TYPES.items() if not value.is_packed}
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclasses.dataclass(frozen=True)
class Resource:
    """A buffer with its initial values.

    Attributes:
      data: the bytes, a uint8 array padded to a multiple of 4.
      data_type: the type of the initial values, or UNKNOWN if they have several types.
      initial_bytes: the number of bytes up to the end of the initial values; the print command shows these bytes.
      size_in_bytes: the number of bytes without padding.
      source: the file of the initial values, if any.
    """

    data: np.ndarray
    data_type: DataType
    initial_bytes: int
    size_in_bytes: int
    source: Path | None

    def elements(self, data: np.ndarray) -> np.ndarray:
        """A view of bytes with the type of the initial values; uint8 for several types or 4-bit elements."""
        dtype = self.data_type.buffer_dtype if self.data_type else np.dtype(np.uint8)
        return data[: data.size - data.size % dtype.itemsize].view(dtype)


def read_resource(value: Value, folder: Path, limit: int) -> Resource:
    """Reads a member of "resources"; the resource may have at most `limit` bytes."""
    members = value.members({"initialValues", "initialValuesDataType", "sizeInBytes", "initialValuesOffsetInBytes"})
    data_type = DataType.UNKNOWN
    if "initialValuesDataType" in members:
        data_type = members["initialValuesDataType"].one_of(DATA_TYPE, TYPES)
    initial = value.member("initialValues")
    path = None
    if isinstance(initial.value, list):
        data = _listed(initial, data_type) if data_type else _mixed(initial)
    else:
        generator = initial.members({"value", "valueCount", "valueStart", "valueDelta", "sourcePath"})
        if "sourcePath" in generator:
            initial.members({"sourcePath"})
            path = inside(folder, generator["sourcePath"])
            data, data_type = _from_file(path, generator["sourcePath"], value, data_type, limit)
        else:
            data = _generated(initial, value, data_type, limit)
    if not data:
        raise initial.fail("is empty")
    offset = members["initialValuesOffsetInBytes"].integer(0, limit) if "initialValuesOffsetInBytes" in members else 0
    size = members["sizeInBytes"].integer(0, limit) if "sizeInBytes" in members else offset + len(data)
    if offset + len(data) > size:
        text = f"is {size}, too small for {len(data)} bytes of initialValues at offset {offset}"
        raise members["sizeInBytes"].fail(text)
    if size > limit:
        raise initial.fail(f"needs {size} bytes, more than the limit of {limit}; see maximum_bytes")
    buffer = np.zeros(-(-size // 4) * 4, np.uint8)
    buffer[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
    return Resource(buffer, data_type, offset + len(data), size, path)


def _number(value: Value, data_type: DataType) -> Any:
    """Reads a number, which must fit the type without wrapping or overflow."""
    dtype = data_type.dtype
    if limits := _limits(data_type):
        return value.integer(*limits)
    if isinstance(value.value, str) and value.value.lower() in NON_FINITE:
        return NON_FINITE[value.value.lower()]
    number = value.value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise value.expected('a number, "nan", "inf" or "-inf"')
    try:
        with np.errstate(over="ignore"):  # rounds to float32 first, as the tool does
            rounded = float(np.float64(float(number)).astype(max(dtype, np.dtype(np.float32))).astype(dtype))
    except OverflowError:
        rounded = math.inf
    if math.isinf(rounded):
        raise value.expected(f'a number that {data_type.name} can hold, or "inf"')
    return rounded


def _limits(data_type: DataType) -> tuple[int, int] | None:
    """The range of an integer type; None for all other types."""
    if "INT" not in data_type.name:
        return None
    least = 0 if data_type.name.startswith("U") else -(2 ** (data_type.bits - 1))
    return least, least + 2**data_type.bits - 1


def _bytes(values: list[Any] | np.ndarray, data_type: DataType) -> bytes:
    """Values as bytes, with two 4-bit values per byte, the first in the low bits."""
    if not data_type.is_packed:
        return np.asarray(values, data_type.dtype).tobytes()
    nibbles = np.asarray(values, np.int8).view(np.uint8)
    nibbles = np.append(nibbles, np.zeros(1, np.uint8)) if nibbles.size % 2 else nibbles
    return (nibbles[::2] & 15 | nibbles[1::2] << 4).tobytes()


def _listed(values: Value, data_type: DataType) -> bytes:
    return _bytes([_number(item, data_type) for item in values.items()], data_type)


def _mixed(values: Value) -> bytes:
    """Reads elements, each of which gives its own type."""
    data = b""
    for item in values.items():
        if not isinstance(item.value, dict):
            raise item.expected('an object with "type" and "value", because there is no initialValuesDataType')
        item.members({"name", "type", "value"})
        data_type = item.member("type").one_of(DATA_TYPE, WHOLE_BYTES)
        if not data_type:
            raise item.member("type").expected("a type other than UNKNOWN")
        data += np.array(_number(item.member("value"), data_type), data_type.dtype).tobytes()
    return data


def _generated(values: Value, resource: Value, data_type: DataType, limit: int) -> bytes:
    """A repeated value, or an arithmetic sequence in which each sum is rounded to the type."""
    members = values.members({"valueCount", *(("value",) if "value" in values.value else ("valueStart", "valueDelta"))})
    if not data_type:
        raise resource.fail("needs an initialValuesDataType other than UNKNOWN for these initialValues")
    count = values.member("valueCount").integer(1, limit * 8 // data_type.bits)
    dtype = np.dtype(np.int8) if data_type.is_packed else data_type.dtype
    if "value" in members:
        return _bytes(np.full(count, _number(values.member("value"), data_type), dtype), data_type)
    start, delta = (_number(values.member(name), data_type) for name in ("valueStart", "valueDelta"))
    end, limits = start + (count - 1) * delta, _limits(data_type)
    if limits and not limits[0] <= end <= limits[1]:
        raise values.fail(f"ends at {end}, which {data_type.name} cannot hold")
    sequence = np.full(count, delta, dtype)
    sequence[0] = start
    with np.errstate(all="ignore"):
        return _bytes(np.add.accumulate(sequence, dtype=dtype), data_type)


def _from_file(path: Path, source: Value, resource: Value, data_type: DataType, limit: int) -> tuple[bytes, DataType]:
    data, dtype = read_data(path, source, limit)
    if dtype is None:
        if not data_type:
            raise resource.fail("needs an initialValuesDataType other than UNKNOWN for a raw file")
        size = data_type.buffer_dtype.itemsize
        if len(data) % size:
            raise source.fail(f"has {len(data)} bytes, not a multiple of {data_type.name}'s {size}")
        return data, data_type
    found = DataType.of(dtype)
    if not found:
        raise source.fail(f"has type {dtype}, which DirectML does not have")
    if data_type.is_packed and found is DataType.UINT8:
        return data, data_type
    if data_type not in (DataType.UNKNOWN, found):
        raise source.fail(f"has type {found.name}, but initialValuesDataType is {data_type.name}")
    return data, found
