"""What the operators have in common: arguments are typed, their desc is checked, then the function's body computes.

A call whose shapes, types and options have been found right before is not described again: eager calls in a loop pay
for the check once. A call with symbolic dimensions always is, for these cannot be compared across exports.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxdml._arithmetic.prepared import Prepared
from jaxdml._directml.desc import OperatorDesc, parameter_name
from jaxdml._directml.fields import Option
from jaxdml._directml.messages import raising_desc_errors
from jaxdml._directml.pages import EXAMPLE, PAGES
from jaxdml._directml.validate import check, check_feature_level
from jaxdml._operators.arguments import Arguments, is_number
from jaxdml._operators.descriptions import Given
from jaxdml._operators.parameters import Parameters
from jaxdml.errors import DescError

MAXIMUM_REMEMBERED = 4096
PLAIN = (int, str, np.dtype, type)  # what a static may be that hashes, and of its type equals nothing but itself
OPERATORS: dict[str, "Operator"] = {}  # by name; filled where the functions are defined


class Operator:
    """An operator: `function` is what a caller calls, the rest is what is known of its calls.

    Attributes:
      body: computes with arrays that are typed and checked; `compute` is the same under jit.
      page: its page.
      parameters: those of the function, by what they stand for.
      describe: from the typed arguments to the desc that they stand for.
      output_dtype: of the output where nothing says one; None is the type of the first input.
      scale_dtype: from the arguments and a number given as a scale to the type that it takes.
      prepared: by parameter, the class of prepared weights that it may be.
      owned: by parameter, how a tensor that is OWNED_BY_DML is repacked for it, from the array and the desc.
      advice: by option, what to write where a caller gave a word, from the arguments and the word.
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
        self.function: Callable[..., Any] = functools.wraps(body)(lambda *positional, **named: self(positional, named))
        self.body, self.page, self.describe = body, PAGES[kind.operator], describe
        self.parameters = Parameters(self.page, body, hints)
        self.output_dtype, self.scale_dtype = output_dtype, scale_dtype
        self.prepared, self.owned, self.advice = prepared, owned, advice
        self._typed = Arguments(kind.operator)
        scoped = functools.wraps(body)(jax.named_scope(kind.operator)(body))
        self.compute = jax.jit(scoped, static_argnames=self.parameters.statics)
        self.found_right: dict[Any, dict[str, Any]] = {}  # the statics of calls, by what decides whether one is right

    def __call__(self, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Checks a call, unless one like it was found right before, and computes."""
        bound = self.parameters.bound(positional, named)
        key = self._key(bound)
        statics = None if key is None else self.found_right.get(key)
        if statics is None:
            bound = self.checked(bound)
            statics = self._remember(key, bound)
        arrays = [bound[name] for name in self.parameters.tensors]
        if jax.config.jax_disable_jit:  # for the caller's code; an operator is one operation still, as those of lax are
            with jax.disable_jit(False):
                return self.compute(*arrays, **statics)
        return self.compute(*arrays, **statics)

    def checked(self, bound: dict[str, Any]) -> Given:
        """The typed arguments of a right call; numbers are typed each time."""
        given = self.given(bound)
        key = self._key(given)
        if key is None or key not in self.found_right:
            self.described(given, bound.get("output_dtype"))
            self._remember(key, given)
        return given

    def given(self, bound: dict[str, Any]) -> Given:
        """The typed arguments of a call."""
        given, typed, known = Given(bound), self._typed, self.parameters
        for name in known.data:
            if name in known.many:
                given[name] = typed.tensors(name, given[name])
                continue
            is_optional = name in known.optional
            given[name] = typed.tensor(name, given[name], optional=is_optional, prepared=self.prepared.get(name))
        first, *_ = _each(given[known.data[0]])
        if "output_dtype" in given:
            of_output = known.output_zero_point
            given["output_dtype"] = typed.output_dtype(
                given["output_dtype"],
                of_output,
                None if of_output is None else given[of_output],
                first.dtype if self.output_dtype is None else self.output_dtype,
                known.output_types,
            )
        for name, role in known.quantization:
            if role.parameter == "scale":
                given[name] = typed.scale(name, given[name], self.scale_dtype(given, given[name]))
                continue
            owner = parameter_name(role.of)
            dtype = given[owner].dtype if owner in given else given["output_dtype"]
            given[name] = typed.zero_point(name, given[name], dtype, of_output=owner not in given)
        for name, option in known.options:
            given[name] = self._option(given, name, option, max(first.ndim - 2, 0))
        return given

    def _option(self, given: Given, name: str, option: Option, spatial: int) -> Any:
        value = given[name]
        if option.kind == "counts":
            advice = self.advice.get(name)
            return self._typed.per_dimension(name, value, spatial, advice and functools.partial(advice, given))
        if isinstance(option.kind, type):
            return self._typed.of_kind(name, value, option.kind)
        return self._typed.integer(name, value)

    def described(self, given: Given, output_dtype: Any) -> OperatorDesc:
        """The desc of a call, checked; output_dtype is what the caller wrote."""
        level, known = given["feature_level"], self.parameters
        for name in known.tensors:
            for place, x in enumerate(_each(given[name])):
                self._typed.has_type(f"{name}[{place}]" if name in known.many else name, x)
        arrays = ((name, given[name]) for name in known.tensors if hasattr(given[name], "shape"))
        with raising_desc_errors({self._typed.page_name(name): array.shape for name, array in arrays}):
            check_feature_level(self.page, level)
            if output_dtype is not None:
                self._typed.allows_output(self.page, known.output, given["output_dtype"], level)
            desc = self.describe(given)
            check(desc, level)
        return desc

    # What was found right before -------------------------------------------------------------------------------------

    def _remember(self, key: Any, given: Given) -> dict[str, Any]:
        """The statics of a right call, kept under its key if it has one."""
        statics = {name: given[name] for name in self.parameters.statics}
        if key is not None:
            if len(self.found_right) >= MAXIMUM_REMEMBERED:
                self.found_right.clear()
            self.found_right[key] = statics
        return statics

    def _key(self, bound: dict[str, Any]) -> Any:
        """What decides whether a call is right, and what its statics are; None where that may not be remembered.

        Numbers are checked each time, and so are symbolic dimensions. Equal is not enough: True is no 1.
        """
        facts: list[Any] = []
        for name in self.parameters.tensors:
            x = bound[name]
            if x is None:
                facts.append(None)
            elif type(x) is np.ndarray or isinstance(x, jax.Array):
                shape = x.shape
                if isinstance(x, jax.core.Tracer) and not _are_integers(shape):
                    return None
                if not shape and is_number(x):
                    return None
                facts += (shape, x.dtype)
            elif isinstance(x, Prepared):
                arrays = jax.tree.leaves(x)
                facts += (type(x), x.dtype, x.layout, *((array.shape, array.dtype) for array in arrays))
            else:
                return None
        for name in self.parameters.named:
            value = bound[name]
            if isinstance(value, tuple):
                if not _are_integers(value):
                    return None
            elif not (value is None or isinstance(value, PLAIN)):
                return None
            facts += (type(value), value)
        return tuple(facts)


def _are_integers(sizes: tuple[Any, ...]) -> bool:
    return set(map(type, sizes)) <= {int}


def _each(given: Any) -> tuple[Any, ...]:
    """The arrays of a parameter, one or several."""
    return given if isinstance(given, tuple) else (given,)


def operator[**P, R](
    kind: type[OperatorDesc], describe: Callable[[Given], OperatorDesc], **facts: Any
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes the function of a desc's operator out of its body, which computes with arrays that are typed and checked.

    Parameters have the names of the desc's fields, and tensors come first. A caller may write numbers, and leave
    statics to be decided; the body sees arrays, None and decided statics.

    Args:
      kind: the desc's class.
      describe: from the typed arguments to the desc that they stand for.
      **facts: what page and signature do not say, see `Operator`; and hints: by a name that people try, what to write.
    """

    def decorate(body: Callable[P, R]) -> Callable[P, R]:
        made = OPERATORS[kind.operator] = Operator(body, kind, describe, **facts)
        return made.function

    return decorate


def desc_of(function: Callable[..., Any], /, *arrays: Any, **statics: Any) -> OperatorDesc:
    """The desc that a call stands for; `compile_operator` goes the other way.

    Args:
      function: an operator of jaxdml, such as `element_wise_dequantize_linear`.
      *arrays: the arrays of the call, in its order.
      **statics: its options, feature_level among them.

    Returns:
      The operator desc, checked. What broadcasts in the call does so by strides of 0 in the desc.

    Raises:
      DescError: if function is none of the operators, or would raise it itself.

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_operator_desc
    """
    name: Any = getattr(function, "__name__", repr(function))
    made = OPERATORS.get(name)
    if made is None or inspect.unwrap(function) is not made.body:  # `jaxdml.checked` wraps the function
        text = f"desc_of: function is {name}, expected an operator such as jaxdml.{EXAMPLE.operator}"
        raise DescError(text, tensor="function", rule="operator", received=function)
    bound = made.parameters.bound(arrays, statics)
    return made.described(made.given(bound), bound.get("output_dtype"))
