"""The operators with value checks: every scale must be finite and above zero.

Use them under `jax.experimental.checkify.checkify`, which also works with jit and vmap::

    error, output = checkify.checkify(jax.jit(model))(inputs)
    error.throw()

Each function has the signature of its namesake in jaxdml. Zero points need no check: their types bound them.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import checkify

from jaxdml._directml.desc import parameters_of
from jaxdml._operators.call import OPERATORS
from jaxdml._operators.fake_quantize import fake_quantize as _fake_quantize
from jaxdml.errors import api_boundary


def __getattr__(name: str) -> Callable[..., Any]:
    """An operator with checks, built when it is first used."""
    if name not in OPERATORS:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    operator = OPERATORS[name]
    names = parameters_of(operator.page.desc)
    quantization = operator.parameters.quantization
    scales = {name: names[name].page_name for name, role in quantization if role.parameter == "scale"}
    function = globals()[name] = _checked(operator.function, scales)
    return function


def __dir__() -> list[str]:
    return sorted([*OPERATORS, "fake_quantize"])


def _checked[**P, R](function: Callable[P, R], scales: Mapping[str, str]) -> Callable[P, R]:
    """`function` with checks of its scales; `scales` maps parameters to tensor names."""
    signature = inspect.signature(function)

    @api_boundary
    @functools.wraps(function)
    def with_checks(*arguments: P.args, **options: P.kwargs) -> R:
        output = function(*arguments, **options)  # called first, because it raises the errors about types
        given = signature.bind(*arguments, **options).arguments
        for name, tensor in scales.items():
            _check_scale(f"{function.__name__}: {tensor}", jnp.asarray(given[name]))
        return output

    return with_checks


def _check_scale(what: str, scale: jax.Array) -> None:
    is_right = jnp.ravel((scale > 0) & (scale < jnp.inf))
    first_wrong = jnp.ravel(scale)[jnp.argmin(is_right)].astype(jnp.float32)
    text = what + " has the value {value}, expected a finite number above 0"
    checkify.check(jnp.all(is_right), text, value=first_wrong)


fake_quantize = _checked(_fake_quantize, {"scale": "ScaleTensor"})
