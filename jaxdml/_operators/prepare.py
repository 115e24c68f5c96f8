"""Constant weights repacked once, which is what DirectML does with tensors flagged OWNED_BY_DML."""

from functools import partial
from typing import Any

import chex
import jax
import numpy as np

from jaxdml._arithmetic import contractions
from jaxdml._arithmetic.prepared import PreparedFilter, PreparedMatrix
from jaxdml._directml.desc import Slot, fields_of, page_name
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.messages import broken, told, told_as
from jaxdml._directml.pages import PAGES
from jaxdml._directml.tensor_rules import check_tensor
from jaxdml._directml.validate import check_support
from jaxdml._operators.arguments import Arguments
from jaxdml._operators.descriptions import tensor_desc


def prepare_matrix_multiply_b(b: chex.Array) -> PreparedMatrix:
    """Repacks b of the matrix products, which then take the result in b's place, with the same bits.

    These are `quantized_linear_matrix_multiply`, `matrix_multiply_integer` and `matrix_multiply_integer_to_float`.

    The result is a pytree of arrays, which goes through jit, vmap and scan; pass it to a jitted function as an
    argument. To save the result, save its `array` and prepare that again; pickle does so by itself. For `jax.export`
    and `jax.tree.leaves`, prepare it under `use_kernels("xla")`: it is then the same on every machine. To have it
    sharded, shard the array, then prepare it.

    Args:
      b: int8 or uint8 array [..., K, N] of rank 2 to 4.

    Returns:
      PreparedMatrix with b's shape and dtype. Scale and zero point remain arguments of the operator.

    Raises:
      DescError: if the products of 8-bit types would not take b.

    Source: DirectML, DML_TENSOR_FLAG_OWNED_BY_DML,
    https://learn.microsoft.com/windows/win32/api/directml/ne-directml-dml_tensor_flags
    """
    with told_as(prepare_matrix_multiply_b.__name__):
        b = _checked("quantized_linear_matrix_multiply", "b", b)
    if isinstance(b, np.ndarray):
        return contractions.prepare_numpy_matrix(b)
    return _matrix(b, _is_on_one_device(b))


def prepare_convolution_filter(filter: chex.Array, *, group_count: int = 1) -> PreparedFilter:
    """Repacks filter of the convolutions, which then take the result in its place, with the same bits.

    These are `quantized_linear_convolution` and `convolution_integer`.

    The result is a pytree of arrays, which goes through jit, vmap and scan; pass it to a jitted function as an
    argument. To save the result, save its `array` and prepare that again; pickle does so by itself. For `jax.export`
    and `jax.tree.leaves`, prepare it under `use_kernels("xla")`: it is then the same on every machine. To have it
    sharded, shard the array, then prepare it.

    Args:
      filter: int8 or uint8 array ``[O, C / group_count, *kernel]`` of rank 3 or 4.
      group_count: that of the calls to come.

    Returns:
      PreparedFilter with filter's shape and dtype. Scale, zero point and bias remain arguments of the operator.

    Raises:
      DescError: if the convolutions would not take filter, or its output channels do not fall into that many groups.

    Source: DirectML, DML_TENSOR_FLAG_OWNED_BY_DML,
    https://learn.microsoft.com/windows/win32/api/directml/ne-directml-dml_tensor_flags
    """
    operator = "quantized_linear_convolution"
    with told_as(prepare_convolution_filter.__name__):
        filter = _checked(operator, "filter", filter)
        group_count = Arguments(operator).integer("group_count", group_count)
        if group_count < 1 or filter.shape[0] % group_count:
            text = f"is {group_count}, expected a divisor of the {filter.shape[0]} output channels"
            raise broken(operator, "GroupCount", "group_count", text, expected=filter.shape[0], received=group_count)
    if isinstance(filter, np.ndarray):
        return contractions.prepare_numpy_filter(filter, group_count)
    return _filter(filter, group_count, _is_on_one_device(filter))


def repacked_matrix(b: Any, desc: Any) -> PreparedMatrix:
    """A matrix B that is OWNED_BY_DML."""
    return prepare_matrix_multiply_b(b)


def _checked(operator: str, name: str, value: Any) -> Any:
    typed, page, field = Arguments(operator), PAGES[operator], f"{name}_tensor"
    value = typed.tensor(name, value)
    typed.has_type(name, value)
    tensor, desc = page_name(field), tensor_desc(value)
    is_: Any = fields_of(page.desc)[field]
    with told({tensor: value.shape}):
        check_tensor(operator, tensor, desc)
        check_support(page, Slot(field, tensor, tensor, is_.role(), desc, name), FeatureLevel.LATEST)
    return value


def _is_on_one_device(x: Any) -> bool:
    """Native kernels read weights as a whole; what is spread over devices is XLA's."""
    return isinstance(x, jax.core.Tracer) or len(x.sharding.device_set) == 1


_matrix = partial(jax.jit, static_argnums=1)(contractions.prepare_matrix)
_filter = partial(jax.jit, static_argnums=(1, 2))(contractions.prepare_filter)
