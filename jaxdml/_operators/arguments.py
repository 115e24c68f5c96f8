"""Converts the arguments of a call to arrays and static values, and rejects arguments that cannot be converted.

This must run before `jit` sees the arguments: `jit` silently narrows 64-bit arrays and flattens lists.
"""

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._arithmetic.prepared import Prepared
from jaxdml._arithmetic.rounding import limits_of
from jaxdml._directml.data_types import DataType
from jaxdml._directml.desc import Slot, TensorDesc, is_sequence, page_name, parameters_of
from jaxdml._directml.feature_levels import FeatureLevel, allowed_from, table_at
from jaxdml._directml.messages import Remedy, broken, listed, shown
from jaxdml._directml.page import Page
from jaxdml._directml.pages import PAGES
from jaxdml._directml.remedies import float_zero_point
from jaxdml._directml.table_remedies import retyped
from jaxdml._directml.tensor_rules import is_symbolic
from jaxdml._shapes import is_integer
from jaxdml.errors import ArgumentTypeError, DescError, FeatureLevelError

CONVERTIBLE = ("__array__", "__jax_array__", "__dlpack__")  # methods of the objects that jnp.asarray converts
ARRAYS = "such as a layer's output or weights, or np.asarray(x) if x is a tensor of another library"
QUANTIZED = ("int8", "uint8")


class Converter:
    """Converts the arguments of an operator's calls. In all methods `name` is the name of a parameter."""

    def __init__(self, operator: str, order: Sequence[str] = ()) -> None:
        """`order` has the names of the tensors in the order in which the operator's function takes them."""
        self._operator, self._page, self._order = operator, PAGES[operator], tuple(order)
        self._parameters = parameters_of(self._page.desc)

    def page_name(self, name: str) -> str:
        """DirectML's name of a parameter, or of one tensor of a tuple: ``AScaleTensor`` for ``a_scale``."""
        parameter, bracket, place = name.partition("[")
        return self._parameters[parameter].page_name + bracket + place

    def _error(self, name: str, rule: str, text: str, **facts: Any) -> DescError:
        return broken(self._operator, self.page_name(name), rule, text, **facts)

    def tensors(self, name: str, values: Any) -> Any:
        """A tuple of arrays, from a list or tuple."""
        if not isinstance(values, list | tuple):
            text = f"is {described(values)}, expected a tuple of arrays; write ({name},)"
            raise self._error(name, "array", text, error=ArgumentTypeError, received=described(values))
        return tuple(self.tensor(f"{name}[{place}]", value) for place, value in enumerate(values))

    def tensor(self, name: str, value: Any, *, optional: bool = False, prepared: Any = None) -> Any:
        """An array, or prepared weights of the class `prepared`."""
        if isinstance(value, jax.Array) or type(value) is np.ndarray:
            return value
        if isinstance(value, Prepared):
            return self._prepared(name, value, prepared)
        if value is None:
            if optional:
                return None
            text = f"is None, but required; give {name}"
            raise self._error(name, "required", text, error=ArgumentTypeError, expected=jax.Array)
        if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
            types = self._types(name)
            dtype = f"dtype={_any_of(types)})" if len(types) == 1 else f"dtype), where dtype is {_any_of(types)}"
            remedy = as_array(name, value, f"jnp.asarray({name}, {dtype}")
            if isinstance(value, numbers.Number) and name in self._order[1:]:
                remedy = f"{self._in_order}; for a number, {remedy}"
            text = f"is {described(value)}, expected an array; {remedy}"
            facts = {"expected": jax.Array, "received": described(value)}
            raise self._error(name, "array", text, error=ArgumentTypeError, **facts)
        return value

    @property
    def _in_order(self) -> str:
        return f"pass the tensors by name: the order is {', '.join(self._order)}"

    def has_type(self, name: str, value: Any, expected: Any = None) -> None:
        """Checks that DirectML has the array's type. The error recommends `expected`, or float32 for a float."""
        if value is None or DataType.of(value.dtype) != DataType.UNKNOWN:
            return
        allowed = self._types(name)
        types = (DataType.of(expected),) if DataType.of(expected) in allowed else allowed
        kind = getattr(value.dtype, "kind", "S")  # a random key has no kind
        real = ".real" if kind == "c" else ""
        remedy: Any = "give numbers" if kind in "SU" else f"write {name}{real}.astype({_any_of(types)})"
        if jnp.issubdtype(value.dtype, jnp.floating):
            remedy = f"write {name}.astype(jnp.float32)"
            slot = self._slot(name, TensorDesc(DataType.FLOAT32, value.shape))
            if DataType.FLOAT32 not in allowed:
                remedy = retyped(self._page, slot, f"{name}.astype(jnp.float32)", DataType.FLOAT32, allowed)
        if isinstance(remedy, Remedy):
            remedy = remedy.in_call
        text = f"has type {value.dtype}, which DirectML does not have; {remedy}"
        raise self._error(name, "data_type", text, expected=DataType, received=value.dtype)

    def _types(self, name: str) -> tuple[DataType, ...]:
        """The types that the highest feature level allows."""
        row = self.page_name(name).partition("[")[0]
        types = table_at(self._page.support, max(self._page.support))[row].data_types
        return tuple(t for t in types if t.name.startswith("FLOAT")) if name.endswith("scale") else types

    def _slot(self, name: str, desc: TensorDesc) -> Slot:
        argument, _, place = name.partition("[")
        parameter: Any = self._parameters[argument]
        role = parameter.spec.role(int(place[:-1])) if place else parameter.role
        return Slot(parameter.field, self.page_name(name), page_name(parameter.field), role, desc, argument)

    def _prepared(self, name: str, value: Any, expected: Any) -> Any:
        kind = type(value).__name__
        if expected is None:
            text = (
                f"is a {kind}, expected an array: only b and filter may be prepared, and only once; write {name}.array"
            )
            raise self._error(name, "array", text, error=ArgumentTypeError, expected=jax.Array, received=kind)
        if not isinstance(value, expected):
            text = (
                f"is a {kind}, expected an array or a {expected.__name__}; "
                "prepare_matrix_multiply_b is for b, prepare_convolution_filter for filter"
            )
            raise self._error(name, "array", text, error=ArgumentTypeError, expected=expected, received=kind)
        if not value.is_intact:
            text = (
                f"is a {kind} whose data changed type or shape; prepare it again. For a stack, use jax.vmap; for a "
                "mesh, shard the array first, then prepare each part"
            )
            raise self._error(name, "prepared", text, expected=expected, received=kind)
        return value

    def scale(self, name: str, value: Any, dtype: Any = np.float32) -> Any:
        """An array. A number becomes a scalar of dtype; a number that dtype cannot hold raises an error.

        A Python number that passed through the caller's `jit` is a weakly typed scalar, which is converted, too.
        """
        if is_weak_scalar(value) and any(jnp.issubdtype(value.dtype, kind) for kind in (jnp.floating, jnp.integer)):
            # Rounded to float32 first, like a Python number below, so that jax_enable_x64 changes nothing.
            return value.astype(np.float32).astype(dtype)
        if isinstance(value, jax.Array | np.ndarray) and str(value.dtype) in QUANTIZED:
            remedy = f"write {name}.astype(jnp.{np.dtype(dtype)}), or {self._in_order}"
            text = f"is an array of {value.dtype}, expected a number or an array of floats; {remedy}"
            raise self._error(name, "data_type", text, expected=dtype, received=value.dtype)
        if value is None or isinstance(value, jax.Array | np.ndarray):
            return self.tensor(name, value)
        if not isinstance(value, numbers.Real) or isinstance(value, bool):
            remedy = as_array(name, value, f"jnp.asarray({name}, jnp.float32)")
            text = f"is {described(value)}, expected a number or an array; {remedy}"
            raise self._error(name, "array", text, error=ArgumentTypeError, expected=dtype, received=described(value))
        try:
            with np.errstate(over="ignore"):
                scalar = np.asarray(float(value)).astype(np.float32).astype(dtype)
        except OverflowError:
            scalar = np.asarray(math.inf)
        is_infinite = isinstance(value, float | np.floating) and math.isinf(value)
        if np.isinf(scalar) != is_infinite or (scalar == 0) != (value == 0):
            text = f"is {shown(value)}, which {DataType.of(dtype).name} cannot hold"
            raise self._error(name, "range", text, expected=DataType.of(dtype), received=value)
        return scalar

    def zero_point(self, name: str, value: Any, dtype: Any, *, of_output: bool = False) -> Any:
        """None or an array; an integer becomes a scalar of dtype, the type of the quantized tensor."""
        if is_weak_scalar(value) and jnp.issubdtype(value.dtype, jnp.integer):
            number: Any = "..."
            if not isinstance(value, jax.core.Tracer):
                number = int(self.zero_point(name, int(value), dtype, of_output=of_output))
            what = "is a weakly typed integer, whose value cannot be checked under jit"
            text = f"{what}; write jnp.{np.dtype(dtype)}({number})"
            raise self._error(name, "data_type", text, expected=dtype, received=described(value))
        if value is None or isinstance(value, jax.Array | np.ndarray):
            return self.tensor(name, value, optional=True)
        if not isinstance(value, numbers.Integral | np.integer) or isinstance(value, bool):
            fix = as_array(name, value, f"jnp.asarray({name}, jnp.{np.dtype(dtype)})")
            if _has_fractions(value):
                fix = float_zero_point(name, self._parameters)
            text = f"is {described(value)}, expected None, an integer or an array; {fix}"
            raise self._error(name, "array", text, error=ArgumentTypeError, expected=dtype, received=described(value))
        # If the type of the quantized tensor is wrong, validate reports it later; until then the type counts as int32.
        is_type = DataType.of(dtype) != DataType.UNKNOWN and jnp.issubdtype(dtype, jnp.integer)
        limits = limits_of(dtype if is_type else np.int32)
        if not limits.min <= int(value) <= limits.max:
            fix = f"write an integer from {limits.min} to {limits.max}"
            if of_output:
                fix += ", or give another output_dtype"
            text = f"is {shown(int(value))}, out of {DataType.of(limits.dtype).name}'s range; {fix}"
            raise self._error(name, "range", text, expected=(limits.min, limits.max), received=int(value))
        return np.asarray(int(value), limits.dtype)

    def output_dtype(
        self, output_dtype: Any, zero_point_name: str | None, zero_point: Any, default: Any, types: tuple[DataType, ...]
    ) -> np.dtype:
        """The output's dtype: the zero point's type if that is in `types`, else output_dtype, else default.

        `types` are the output types of all levels, so that the feature level does not change the result.
        """
        chosen = None if output_dtype is None else self._dtype(output_dtype)
        is_typed = isinstance(zero_point, jax.Array | np.ndarray | np.generic) and not is_weak_scalar(zero_point)
        of_zero_point = DataType.of(zero_point.dtype) if is_typed else None
        if zero_point_name is None or of_zero_point not in types:  # a wrong type is reported by validate
            return np.dtype(default) if chosen is None else chosen
        if chosen is not None and DataType.of(chosen) != of_zero_point:
            tensor = self.page_name(zero_point_name)
            fix = "make them equal or leave output_dtype out"
            text = f"is {chosen}, but {tensor} has data type {of_zero_point.name}; {fix}"
            raise broken(self._operator, "output_dtype", "output_dtype", text, expected=of_zero_point, received=chosen)
        dtype: np.dtype = of_zero_point.dtype
        return dtype

    def _dtype(self, output_dtype: Any) -> np.dtype:
        try:
            if isinstance(output_dtype, jax.Array):
                raise TypeError("an array is not a type")
            return output_dtype.dtype if isinstance(output_dtype, DataType) else np.dtype(output_dtype)
        except (TypeError, ValueError, SyntaxError) as error:  # NumPy may raise any of these
            text = f"is {described(output_dtype)}, expected a type such as jnp.uint8"
            facts = {"error": ArgumentTypeError, "received": described(output_dtype)}
            raise broken(self._operator, "output_dtype", "output_dtype", text, **facts) from error

    def allows_output(self, page: Page, output: str, dtype: np.dtype, level: FeatureLevel) -> None:
        """Checks that the level allows the output type that the caller chose."""
        data_type, types = DataType.of(dtype), table_at(page.support, level)[output].data_types
        if data_type in types:
            return
        tables = page.support.items()
        minimum = min((at for at, rows in tables if data_type in rows[output].data_types), default=None)
        hint = "" if minimum is None else allowed_from(minimum)
        raise broken(
            self._operator,
            "output_dtype",
            "data_type",
            f"is {dtype}{hint}, feature level {level} allows {listed(t.name.lower() for t in types)}",
            error=DescError if minimum is None else FeatureLevelError,
            expected=types,
            received=dtype,
            feature_level=level,
            minimum_feature_level=minimum,
        )

    def per_dimension(
        self, name: str, value: Any, count: int, advice: Callable[[str], str] | None = None, *,
        may_be_symbolic: bool = False,
    ) -> tuple[int, ...]:  # fmt: skip
        """A static integer, or a symbolic one, for each of `count` dimensions; a single integer is repeated."""
        if type(value) is int:
            return (value,) * count
        items = tuple(value) if is_sequence(value) else (value,) * count
        if not all(is_integer(item) or (may_be_symbolic and is_symbolic(item)) for item in items):
            raise self._static_error(name, value, f"an integer or a tuple of {count} integers", advice)
        return tuple(int(item) if is_integer(item) else item for item in items)

    def integer(self, name: str, value: Any) -> int:
        """A static integer."""
        if not is_integer(value):
            raise self._static_error(name, value, "an integer")
        return int(value)

    def of_kind(self, name: str, value: Any, kind: type) -> Any:
        """A static value of the type `kind`."""
        if not isinstance(value, kind):
            expected = "True or False" if kind is bool else f"a {kind.__name__}"
            raise self._static_error(name, value, expected, decides="what is computed")
        return value

    def _static_error(
        self,
        name: str,
        value: Any,
        expected: str,
        advice: Callable[[str], str] | None = None,
        *,
        decides: str = "shapes",
    ) -> DescError:
        why, received = "", described(value)
        if is_sequence(value):
            received = f"({', '.join(_item(item) for item in value)})"
        if isinstance(value, jax.core.Tracer) or (
            is_sequence(value) and any(isinstance(item, jax.core.Tracer) for item in value)
        ):
            why = f"; it decides {decides}: make it static, for instance with static_argnames"
        elif isinstance(value, jax.Array):
            why = f"; it decides {decides}: write {'Python integers' if decides == 'shapes' else 'a Python value'}"
        elif isinstance(value, str) and advice is not None:
            received, why = shown(value), f"; {advice(value)}"
        elif name.endswith("_padding") and is_sequence(value):
            why = "; start_padding is for the start of each dimension, end_padding for the end"
        return broken(
            self._operator,
            self.page_name(name),
            "static",
            f"is {received}, expected {expected}{why}",
            error=ArgumentTypeError,
            expected=int,
            received=received,
        )


def is_weak_scalar(value: Any) -> bool:
    """Whether value is a weakly typed scalar: a Python number that `jit` traced, or that `jnp.asarray` converted."""
    return isinstance(value, jax.Array) and not value.ndim and getattr(value, "weak_type", False)


def _has_fractions(value: Any) -> bool:
    """Whether value, or one of its items, is a number whose type is not an integer type."""
    if isinstance(value, list | tuple):
        return any(map(_has_fractions, value))
    return isinstance(value, numbers.Number) and not isinstance(value, numbers.Integral)


def _any_of(types: tuple[DataType, ...]) -> str:
    return " or ".join(f"jnp.{data_type.name.lower()}" for data_type in types)


def _item(value: Any) -> str:
    return described(value) if isinstance(value, jax.Array) else shown(value)


def as_array(name: str, value: Any, call: str) -> str:
    """The remedy for an argument that is not an array: the call that makes it one, unless JAX cannot convert it."""
    can_be_array = isinstance(value, numbers.Number | list | tuple) or (
        not isinstance(value, type) and any(hasattr(value, name) for name in CONVERTIBLE)
    )
    return f"write {call}" if can_be_array else f"give an array for {name}, {ARRAYS}"


def described(value: Any) -> str:
    """The kind of a value, in words. An error must not show, or keep alive, the value itself."""
    if isinstance(value, jax.Array):
        return "a traced array" if isinstance(value, jax.core.Tracer) else "an array"
    if type(value) is np.ndarray and value.ndim:
        return "an array"
    if isinstance(value, type):
        return f"the type {value.__name__}"
    article = "an" if type(value).__name__[0] in "aeiou" else "a"
    return "None" if value is None else f"{article} {type(value).__name__}"
