"""The operators again, with checks of what only values can break: a scale must be finite and above zero.

For use under `jax.experimental.checkify.checkify`, which returns what was found beside the result, inside jit and vmap
too. Each function takes and returns what its namesake in jaxdml does. The zero points' types say all about their
values.

    error, output = checkify.checkify(jax.jit(model))(inputs)
    error.throw()
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import checkify

from jaxdml._fake_quantize import fake_quantize as _fake_quantize
from jaxdml._ops import (
    element_wise_dequantize_linear as _dequantize,
)
from jaxdml._ops import (
    element_wise_quantize_linear as _quantize,
)
from jaxdml._ops import (
    element_wise_quantized_linear_add as _add,
)
from jaxdml._ops import (
    quantized_linear_convolution as _convolution,
)
from jaxdml._ops import (
    quantized_linear_matrix_multiply as _matrix_multiply,
)
from jaxdml.descs import page_name


def _checked(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """function, which first checks its scales; what is no number or array is left to function's own errors."""
    signature = inspect.signature(function)
    scales = [name for name in signature.parameters if name.endswith("scale")]

    @functools.wraps(function)
    def with_checks(*arguments: Any, **options: Any) -> jax.Array:
        output = function(*arguments, **options)
        given = signature.bind(*arguments, **options).arguments
        for name in scales:
            _check_scale(f"{function.__name__}: {page_name(name)}Tensor", jnp.asarray(given[name]))
        return output

    return with_checks


def _check_scale(what: str, scale: jax.Array) -> None:
    is_right = jnp.ravel((scale > 0) & (scale < jnp.inf))
    first_wrong = jnp.ravel(scale)[jnp.argmin(is_right)].astype(jnp.float32)
    text = what + " has the value {value}, expected a finite number above 0"
    checkify.check(jnp.all(is_right), text, value=first_wrong)


element_wise_dequantize_linear = _checked(_dequantize.element_wise_dequantize_linear)
element_wise_quantize_linear = _checked(_quantize.element_wise_quantize_linear)
element_wise_quantized_linear_add = _checked(_add.element_wise_quantized_linear_add)
quantized_linear_convolution = _checked(_convolution.quantized_linear_convolution)
fake_quantize = _checked(_fake_quantize)
quantized_linear_matrix_multiply = _checked(_matrix_multiply.quantized_linear_matrix_multiply)
