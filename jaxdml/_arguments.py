"""From what a caller writes to typed arrays and tensor descs. Refuses what cannot stand for a tensor; converts scalars.

It must run before `jit` sees the arguments: `jit` narrows 64-bit arrays and takes lists apart without a word.
"""

import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._data_types import DataType, TensorFlags
from jaxdml._lowering.prepared import PreparedFilter, PreparedMatrix
from jaxdml._shapes import Shape, aligned, per_channel
from jaxdml._tensor_rules import broken, listed, shown
from jaxdml._validate import check_feature_level
from jaxdml.descs import TensorDesc, is_sequence, page_name
from jaxdml.errors import ArgumentTypeError, DescError, FeatureLevelError
from jaxdml.feature_levels import SUPPORT, FeatureLevel, support_at

Prepared = PreparedMatrix | PreparedFilter


class Arguments:
    """Types the arguments of one call of an operator. Names are those of the function's parameters."""

    def __init__(self, operator: str, feature_level: FeatureLevel) -> None:
        check_feature_level(operator, feature_level)
        self._operator = operator
        self._feature_level = feature_level
        self._output_types = support_at(operator, feature_level)["OutputTensor"].data_types
        # What says an output type must not depend on the level, or the level would change results.
        self._latest_output_types = support_at(operator, FeatureLevel.LATEST)["OutputTensor"].data_types

    def _error(self, name: str, rule: str, text: str, **facts: Any) -> DescError:
        return broken(self._operator, page_name(f"{name}_tensor"), rule, text, **facts)

    def tensor(self, name: str, value: Any, *, optional: bool = False, prepared: type[Prepared] | None = None) -> Any:
        """An array of a DirectML type, or a prepared operand of the given class."""
        if isinstance(value, Prepared):
            return self._prepared(name, value, prepared)
        if value is None:
            if optional:
                return None
            raise self._error(
                name, "required", f"is None, but required; give {name}", error=ArgumentTypeError, expected=jax.Array
            )
        if not isinstance(value, jax.Array | np.ndarray) or isinstance(value, np.ma.MaskedArray):
            text = f"is {_described(value)}, expected an array; write jnp.asarray({name}, dtype=...)"
            raise self._error(
                name, "array", text, error=ArgumentTypeError, expected=jax.Array, received=_described(value)
            )
        if DataType.of(value.dtype) == DataType.UNKNOWN:
            text = f"has type {value.dtype}, which DirectML does not have; convert it with .astype"
            raise self._error(name, "data_type", text, expected=DataType, received=value.dtype)
        return value

    def _prepared(self, name: str, value: Any, expected: type[Prepared] | None) -> Any:
        kind = type(value).__name__
        if expected is None:
            text = f"is a {kind}, expected an array: only b and filter may be prepared, and only once"
            raise self._error(name, "array", text, error=ArgumentTypeError, expected=jax.Array, received=kind)
        if not isinstance(value, expected):
            text = f"is a {kind}, expected an array or a {expected.__name__}; prepare it with the other function"
            raise self._error(name, "array", text, error=ArgumentTypeError, expected=expected, received=kind)
        if not value.is_intact:
            text = f"is a {kind} whose arrays have changed type or rank since; prepare it again, or vmap over a stack"
            raise self._error(name, "prepared", text, expected=expected, received=kind)
        return value

    def scale(self, name: str, value: Any, dtype: Any = np.float32) -> Any:
        """An array, or a number as a scalar of dtype; numbers that overflow it are refused.

        A number that has gone through the caller's `jit` is an array, but a weakly typed one: a number still.
        """
        if _is_number(value, jnp.floating) or _is_number(value, jnp.integer):
            return value.astype(dtype)
        if value is None or isinstance(value, jax.Array | np.ndarray):
            return self.tensor(name, value)
        if not isinstance(value, numbers.Real) or isinstance(value, bool):
            text = f"is {_described(value)}, expected a number or an array; write jnp.asarray({name}, jnp.float32)"
            raise self._error(name, "array", text, error=ArgumentTypeError, expected=dtype, received=_described(value))
        try:
            with np.errstate(over="ignore"):
                scalar = np.asarray(float(value)).astype(dtype)
        except OverflowError:
            scalar = np.asarray(math.inf)
        is_infinite = isinstance(value, float | np.floating) and math.isinf(value)
        if np.isinf(scalar) != is_infinite or (scalar == 0) != (value == 0):
            text = f"is {shown(value)}, which {DataType.of(dtype).name} cannot hold"
            raise self._error(name, "range", text, expected=DataType.of(dtype), received=value)
        return scalar

    def zero_point(self, name: str, value: Any, dtype: Any) -> Any:
        """None, an array, or an integer as a scalar of dtype, the type of the tensor that it belongs to."""
        if _is_number(value, jnp.integer):
            text = f"is a number without a type, whose range cannot be checked; write jnp.{np.dtype(dtype)}(...)"
            raise self._error(name, "data_type", text, expected=dtype, received=_described(value))
        if value is None or isinstance(value, jax.Array | np.ndarray):
            return self.tensor(name, value, optional=True)
        if not isinstance(value, numbers.Integral | np.integer) or isinstance(value, bool):
            fix = f"write jnp.asarray({name}, jnp.{np.dtype(dtype)})"
            text = f"is {_described(value)}, expected None, an integer or an array; {fix}"
            raise self._error(name, "array", text, error=ArgumentTypeError, expected=dtype, received=_described(value))
        # Beside a tensor of a wrong type, which validate reports, any integer type will do.
        limits = np.iinfo(dtype if np.issubdtype(dtype, np.integer) else np.int32)
        if not limits.min <= int(value) <= limits.max:
            fix = f"write an integer from {limits.min} to {limits.max}"
            if name.startswith("output"):
                fix += ", or give another output_dtype"
            text = f"is {shown(int(value))}, out of {DataType.of(limits.dtype).name}'s range; {fix}"
            raise self._error(name, "range", text, expected=(limits.min, limits.max), received=int(value))
        return np.asarray(int(value), limits.dtype)

    def quantization(self, **tensors: tuple[Any, Any, Any]) -> dict[str, Any]:
        """Scales and zero points by name, from name=(scale, zero_point, dtype of the tensor)."""
        parameters = {}
        for name, (scale, zero_point, dtype) in tensors.items():
            parameters[f"{name}_scale"] = self.scale(f"{name}_scale", scale)
            parameters[f"{name}_zero_point"] = self.zero_point(f"{name}_zero_point", zero_point, dtype)
        return parameters

    def output_dtype(self, output_dtype: Any, zero_point_name: str, zero_point: Any, default: Any) -> np.dtype:
        """The output's dtype: that of the zero point if it says one, else output_dtype, else default."""
        chosen = None if output_dtype is None else self._dtype(output_dtype)
        is_array = isinstance(zero_point, jax.Array | np.ndarray) and not _is_number(zero_point, jnp.integer)
        is_scalar = isinstance(zero_point, np.integer) and DataType.of(zero_point.dtype) in self._latest_output_types
        if not is_array and not is_scalar:
            return np.dtype(default) if chosen is None else chosen
        if is_array:
            self.tensor(zero_point_name, zero_point)
        of_zero_point = DataType.of(zero_point.dtype)
        if chosen is not None and DataType.of(chosen) != of_zero_point:
            tensor = page_name(f"{zero_point_name}_tensor")
            fix = "make them equal or leave output_dtype out"
            text = f"is {chosen}, but {tensor} has data type {of_zero_point.name}; {fix}"
            raise broken(self._operator, "output_dtype", "output_dtype", text, expected=of_zero_point, received=chosen)
        return of_zero_point.dtype

    def _dtype(self, output_dtype: Any) -> np.dtype:
        try:
            if isinstance(output_dtype, jax.Array):
                raise TypeError("an array is no type")
            dtype = output_dtype.dtype if isinstance(output_dtype, DataType) else np.dtype(output_dtype)
        except (TypeError, ValueError, SyntaxError) as error:  # NumPy raises any of them
            text = f"is {_described(output_dtype)}, expected a type such as jnp.uint8"
            raise broken(
                self._operator,
                "output_dtype",
                "output_dtype",
                text,
                error=ArgumentTypeError,
                received=_described(output_dtype),
            ) from error
        data_type, level = DataType.of(dtype), self._feature_level
        if data_type not in self._output_types:
            tables = SUPPORT[self._operator].items()
            minimum = min((at for at, rows in tables if data_type in rows["OutputTensor"].data_types), default=None)
            allowed = listed(t.name.lower() for t in self._output_types)
            hint = f" (allowed from {minimum})" if minimum else ""
            raise broken(
                self._operator,
                "output_dtype",
                "data_type",
                f"is {dtype}, feature level {level} allows {allowed}{hint}",
                error=FeatureLevelError if minimum else DescError,
                expected=self._output_types,
                received=dtype,
                feature_level=level,
                minimum_feature_level=minimum,
            )
        return dtype

    def per_dimension(self, name: str, value: Any, count: int) -> tuple[int, ...]:
        """A static integer for each of `count` dimensions; one integer stands for all of them."""
        items = tuple(value) if is_sequence(value) else (value,) * count
        if not all(isinstance(item, int | np.integer) and not isinstance(item, bool) for item in items):
            raise self._static_error(name, value, f"an integer or a tuple of {count} integers")
        return tuple(int(item) for item in items)

    def integer(self, name: str, value: Any) -> int:
        """A static integer."""
        if not isinstance(value, int | np.integer) or isinstance(value, bool):
            raise self._static_error(name, value, "an integer")
        return int(value)

    def _static_error(self, name: str, value: Any, expected: str) -> DescError:
        why = ""
        if isinstance(value, jax.core.Tracer):
            why = "; it decides shapes: make it static, as in static_argnames"
        elif isinstance(value, jax.Array):
            why = "; it decides shapes: write Python integers"
        elif name.endswith("_padding") and is_sequence(value):
            why = "; start_padding has what comes before each dimension, end_padding what comes after"
        return broken(
            self._operator,
            page_name(name),
            "static",
            f"is {_described(value)}, expected {expected}{why}",
            error=ArgumentTypeError,
            expected=int,
            received=_described(value),
        )


def _is_number(value: Any, kind: Any) -> bool:
    """Whether value is a Python number that has become an array, as the caller's `jit` makes it."""
    return isinstance(value, jax.Array) and not value.ndim and jnp.issubdtype(value.dtype, kind) and value.weak_type


def _described(value: Any) -> str:
    if isinstance(value, jax.Array):
        return "a traced array" if isinstance(value, jax.core.Tracer) else "an array"
    if isinstance(value, type):
        return f"the type {value.__name__}"
    article = "an" if type(value).__name__[0] in "aeiou" else "a"
    return "None" if value is None else f"{article} {type(value).__name__}"


def tensor_desc(array: Any) -> TensorDesc:
    """The packed desc of an array, or of a prepared operand, which is owned by the library as DirectML's are by DML."""
    is_array = isinstance(array, jax.Array | np.ndarray)
    flags = TensorFlags.NONE if is_array else TensorFlags.OWNED_BY_DML
    return TensorDesc(DataType.of(array.dtype), array.shape, flags=flags)


def parameter_desc(array: Any, rank: int, channels: int | None = None) -> TensorDesc | None:
    """The packed desc of a scale, zero point or bias, aligned to rank; [channels] is one for each channel."""
    if array is None:
        return None
    return TensorDesc(DataType.of(array.dtype), per_channel(array.shape, rank, channels))


def broadcast_desc(array: Any, sizes: Shape) -> TensorDesc | None:
    """The desc of array seen with other sizes, zero strides repeating it; its own sizes where they do not broadcast."""
    if array is None:
        return None
    shape = aligned(array.shape, len(sizes))
    if (
        shape == sizes
        or len(shape) != len(sizes)
        or any(have not in (1, want) for have, want in zip(shape, sizes, strict=True))
    ):
        return TensorDesc(DataType.of(array.dtype), shape)
    strides = tuple(math.prod(shape[axis + 1 :]) if size > 1 else 0 for axis, size in enumerate(shape))
    return TensorDesc(DataType.of(array.dtype), sizes, strides)
