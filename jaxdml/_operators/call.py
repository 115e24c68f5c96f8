"""Every call of a DirectML operator goes through here: its arguments are converted, its desc is validated, and its body
runs. `matrix_multiply_blocks`, which DirectML does not have, makes its own checks.

A cache, keyed by shapes, types, options and Python numbers, lets a loop of eager calls validate once. Calls with
symbolic dimensions are validated each time: dimensions of two exports may compare equal without being the same.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxdml._arithmetic import exact_calls
from jaxdml._arithmetic.one_operation import as_one_operation
from jaxdml._arithmetic.prepared import Prepared
from jaxdml._directml.desc import OperatorDesc, parameter_name
from jaxdml._directml.fields import Option, Role
from jaxdml._directml.messages import raising_desc_errors
from jaxdml._directml.pages import EXAMPLE, PAGES
from jaxdml._directml.validate import check, check_feature_level
from jaxdml._operators.arguments import Converter, is_weak_scalar
from jaxdml._operators.descriptions import Given
from jaxdml._operators.parameters import Parameters
from jaxdml.errors import DescError, api_boundary

MAXIMUM_CACHED = 4096
# Types whose values are safe in a cache key: they are hashable, and equal values of one type behave alike.
KEY_TYPES = (int, str, np.dtype, type)
OPERATORS: dict[str, "Implementation"] = {}  # keyed by operator name; `operator` adds entries


class Implementation:
    """An operator's public function and the facts that its calls need.

    Attributes:
      function: the public function.
      body: computes the result from converted, validated arguments.
      compute: `body` under jit.
      page: the operator's page.
      parameters: the parameters of the function.
      describe: builds the desc of a call from its converted arguments.
      output_dtype: the default output type; None means the type of the first input.
      scale_dtype: maps the arguments and a Python number, given as a scale, to the type for that number.
      prepared: maps a parameter to the class of prepared weights that it accepts.
      owned: maps a parameter to the function that repacks an OWNED_BY_DML tensor; it takes the array and the desc.
      advice: maps an option to a function. If the caller passes a string for the option, the function writes the remedy
        in the error's text.
    """

    def __init__(
        self,
        body: Callable[..., Any],
        kind: type[OperatorDesc],
        describe: Callable[[Given], OperatorDesc],
        *,
        output_dtype: Any = None,
        scale_dtype: Callable[[Given, Any], Any] = lambda given, value: np.float32,
        prepared: Mapping[str, type] = {},
        owned: Mapping[str, Callable[[Any, Any], Any]] = {},
        advice: Mapping[str, Callable[[Given, str], str]] = {},
        hints: Mapping[str, str] = {},
    ) -> None:
        self.function: Callable[..., Any] = functools.wraps(body)(api_boundary(self._call))
        self.body, self.page, self.describe = body, PAGES[kind.operator], describe
        self.parameters = Parameters(self.page, body, hints)
        self.output_dtype, self.scale_dtype = output_dtype, scale_dtype
        self.prepared, self.owned, self.advice = prepared, owned, advice
        self._convert = Converter(kind.operator, self.parameters.tensors)
        scoped = functools.wraps(body)(jax.named_scope(kind.operator)(body))
        self.compute = as_one_operation(jax.jit(exact_calls.named(scoped), static_argnames=self.parameters.statics))
        # Maps the `_key` of each validated call to its statics and its Python numbers as arrays.
        self.cache: dict[Any, tuple[dict[str, Any], dict[str, Any]]] = {}

    def _call(self, *positional: Any, **named: Any) -> Any:
        tensors, statics = self.arguments(positional, named)
        return self.compute(*tensors, **statics)

    def arguments(self, positional: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The converted tensors and statics of a valid call.

        Raises:
          DescError: if the call is not valid.
        """
        bound = self.parameters.bound(positional, named)
        key = self._key(bound)
        cached = None if key is None else self.cache.get(key)
        statics, numbers = self._validate(key, bound) if cached is None else cached
        if numbers:
            bound |= numbers
        return [bound[name] for name in self.parameters.tensors], statics

    def _validate(self, key: Any, bound: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The statics of a call, and the tensors that had to be converted."""
        given = self.convert(bound)
        converted_key = self._key(given)  # the desc depends on the types of Python numbers, not on their values
        if converted_key is None or converted_key not in self.cache:
            self.desc(given, bound.get("output_dtype"))
        statics = {name: given[name] for name in self.parameters.statics}
        numbers = {name: given[name] for name in self.parameters.tensors if given[name] is not bound[name]}
        if len(self.cache) + 2 > MAXIMUM_CACHED:
            self.cache.clear()
        if converted_key is not None:
            self.cache[converted_key] = statics, {}
        if key is not None:
            self.cache[key] = statics, numbers
        return statics, numbers

    def convert(self, bound: dict[str, Any]) -> Given:
        """The arguments of a call as arrays and static values."""
        given, convert, parameters = Given(bound), self._convert, self.parameters
        for name in parameters.data:
            if name in parameters.many:
                given[name] = convert.tensors(name, given[name])
                continue
            is_optional = name in parameters.optional
            given[name] = convert.tensor(name, given[name], optional=is_optional, prepared=self.prepared.get(name))
        first, *_ = _each(given[parameters.data[0]])
        if "output_dtype" in given:
            zero_point = parameters.output_zero_point
            given["output_dtype"] = convert.output_dtype(
                given["output_dtype"],
                zero_point,
                None if zero_point is None else given[zero_point],
                first.dtype if self.output_dtype is None else self.output_dtype,
                parameters.output_types,
            )
        for name, role in parameters.quantization:
            if role.parameter == "scale":
                given[name] = convert.scale(name, given[name], self.scale_dtype(given, given[name]))
                continue
            of_output = parameter_name(role.of) not in given
            given[name] = convert.zero_point(name, given[name], _owner_dtype(given, role), of_output=of_output)
        for name, option in parameters.options:
            given[name] = self._option(given, name, option, max(first.ndim - 2, 0))
        return given

    def _option(self, given: Given, name: str, option: Option, spatial: int) -> Any:
        value = given[name]
        if option.kind == "counts":
            advice = self.advice.get(name)
            advice = advice and functools.partial(advice, given)
            return self._convert.per_dimension(name, value, spatial, advice, may_be_symbolic=option.may_be_symbolic)
        if isinstance(option.kind, type):
            return self._convert.of_kind(name, value, option.kind)
        return self._convert.integer(name, value)

    def desc(self, given: Given, output_dtype: Any) -> OperatorDesc:
        """The validated desc of a call; output_dtype is the caller's own argument."""
        level, parameters = given["feature_level"], self.parameters
        zero_points = {name: role for name, role in parameters.quantization if role.parameter == "zero_point"}
        for name in parameters.tensors:
            expected = _owner_dtype(given, zero_points[name]) if name in zero_points else None
            for place, x in enumerate(_each(given[name])):
                self._convert.has_type(f"{name}[{place}]" if name in parameters.many else name, x, expected)
        arrays = ((name, given[name]) for name in parameters.tensors if hasattr(given[name], "shape"))
        with raising_desc_errors({self._convert.page_name(name): array.shape for name, array in arrays}):
            check_feature_level(self.page, level)
            if output_dtype is not None:
                self._convert.allows_output(self.page, parameters.output, given["output_dtype"], level)
            desc = self.describe(given)
            check(desc, level)
        return desc

    def _key(self, bound: dict[str, Any]) -> Any:
        """Everything on which the statics and validity of a call depend; None if the call must not be cached.

        The key includes types, because True equals 1 but is not a valid size. It includes the sign of zero, because
        division by zero gives an infinity of that sign.
        """
        facts: list[Any] = []
        for name in self.parameters.tensors:
            x = bound[name]
            kind = type(x)
            if x is None:
                facts.append(None)
            elif kind is float or kind is int:
                facts += (kind, x or str(x))
            elif kind is np.ndarray or isinstance(x, jax.Array):
                shape = x.shape
                if isinstance(x, jax.core.Tracer) and not _are_integers(shape):
                    return None
                if not shape and is_weak_scalar(x):
                    return None
                facts += (shape, x.dtype)
            elif isinstance(x, np.number):
                facts += (kind, x or str(x))
            elif isinstance(x, Prepared):
                arrays = jax.tree.leaves(x)
                facts += (kind, x.dtype, x.layout, *((array.shape, array.dtype) for array in arrays))
            else:
                return None
        for name in self.parameters.named:
            value = bound[name]
            if isinstance(value, tuple):
                if not _are_integers(value):
                    return None
            elif not (value is None or isinstance(value, KEY_TYPES)):
                return None
            facts += (type(value), value)
        return tuple(facts)


def _are_integers(sizes: tuple[Any, ...]) -> bool:
    return set(map(type, sizes)) <= {int}


def _owner_dtype(given: Given, role: Role) -> Any:
    """The type of the tensor whose zero point has this role."""
    owner = parameter_name(role.of)
    return given[owner].dtype if owner in given else given["output_dtype"]


def _each(given: Any) -> tuple[Any, ...]:
    """The arrays of a parameter as a tuple."""
    return given if isinstance(given, tuple) else (given,)


def operator[**P, R](
    kind: type[OperatorDesc], describe: Callable[[Given], OperatorDesc], **facts: Any
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates the body of an operator; the result is its public function, with the body's signature.

    Parameters have the names of the desc's fields, tensors first. Callers may pass Python numbers as scales and zero
    points, and omit statics; the body receives arrays or None, and all statics, defaults included.

    Args:
      kind: the desc's class.
      describe: builds the desc from the converted arguments.
      **facts: the keyword arguments of `Implementation`. One of them, `hints`, maps parameter names of other libraries
        to the advice in the error for an unknown argument.
    """

    def decorate(body: Callable[P, R]) -> Callable[P, R]:
        implementation = OPERATORS[kind.operator] = Implementation(body, kind, describe, **facts)
        return implementation.function

    return decorate


@api_boundary
def desc_of(function: Callable[..., Any], /, *arrays: Any, **options: Any) -> OperatorDesc:
    """Returns the desc of an operator call; `compile_operator` is the inverse.

    Args:
      function: an operator of jaxdml, such as `element_wise_dequantize_linear`.
      *arrays: the arrays of the call, in the order of the function.
      **options: the keyword arguments of the call, such as feature_level.

    Returns:
      The validated operator desc. Tensors that broadcast in the call have strides of 0 in the desc.

    Raises:
      DescError: if function is not an operator, or the call is not valid.

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_operator_desc
    """
    name: Any = getattr(function, "__name__", repr(function))
    implementation = OPERATORS.get(name)
    # `jaxdml.checked` wraps the function, and so may users.
    if implementation is None or inspect.unwrap(function) is not implementation.body:
        text = f"desc_of: function is {name}, expected an operator such as jaxdml.{EXAMPLE.operator}"
        raise DescError(text, tensor="function", rule="operator", received=function)
    bound = implementation.parameters.bound(arrays, options)
    return implementation.desc(implementation.convert(bound), bound.get("output_dtype"))
