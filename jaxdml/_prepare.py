"""Constant weights repacked once, which is what DirectML does with tensors flagged OWNED_BY_DML."""

from functools import partial
from typing import Any

import jax

from jaxdml._arguments import Arguments, tensor_desc
from jaxdml._lowering import prepared
from jaxdml._lowering.prepared import PreparedFilter, PreparedMatrix
from jaxdml._tensor_rules import broken, check_tensor
from jaxdml._validate import check_support
from jaxdml.feature_levels import FeatureLevel


def prepare_matrix_multiply_b(b: Any) -> PreparedMatrix:
    """Repacks b of `quantized_linear_matrix_multiply`, which then takes the result in b's place, with the same bits.

    The result is a pytree of two arrays, which goes through jit, vmap and scan; pass it to a jitted function as an
    argument. It is the same on every backend. Save it by pickle, or its `jax.tree.leaves`, whose structure is that of
    `jax.eval_shape` of this function. To have it sharded, shard the array, then prepare it.

    Args:
      b: int8 or uint8 array [..., K, N] of rank 2 to 4.

    Returns:
      PreparedMatrix with b's shape and dtype. Scale and zero point remain arguments of the operator.

    Raises:
      DescError: if the operator would not take b.

    Source: DirectML, DML_TENSOR_FLAG_OWNED_BY_DML.
    """
    return _matrix(_checked("quantized_linear_matrix_multiply", "b", b))


def prepare_convolution_filter(filter: Any, *, group_count: int = 1) -> PreparedFilter:
    """Repacks filter of `quantized_linear_convolution`, which then takes the result in its place, with the same bits.

    The result is a pytree of two arrays, which goes through jit, vmap and scan; pass it to a jitted function as an
    argument. It is the same on every backend. Save it by pickle, or its `jax.tree.leaves`, whose structure is that of
    `jax.eval_shape` of this function. To have it sharded, shard the array, then prepare it.

    Args:
      filter: int8 or uint8 array [O, C / group_count, *kernel] of rank 3 or 4.
      group_count: that of the calls to come.

    Returns:
      PreparedFilter with filter's shape and dtype. Scale, zero point and bias remain arguments of the operator.

    Raises:
      DescError: if the operator would not take filter, or its output channels do not fall into that many groups.

    Source: DirectML, DML_TENSOR_FLAG_OWNED_BY_DML.
    """
    operator = "quantized_linear_convolution"
    filter = _checked(operator, "filter", filter)
    group_count = Arguments(operator, FeatureLevel.LATEST).integer("group_count", group_count)
    if group_count < 1 or filter.shape[0] % group_count:
        text = f"is {group_count}, expected a divisor of the {filter.shape[0]} output channels"
        raise broken(operator, "GroupCount", "group_count", text, expected=filter.shape[0], received=group_count)
    return _filter(filter, group_count)


def _checked(operator: str, name: str, value: Any) -> Any:
    value = Arguments(operator, FeatureLevel.LATEST).tensor(name, value)
    desc, tensor = tensor_desc(value), f"{name.capitalize()}Tensor"
    check_tensor(operator, tensor, desc)
    check_support(operator, tensor, desc, FeatureLevel.LATEST)
    return value


_matrix = jax.jit(partial(prepared.prepare_matrix, layout="NK"))
_filter = partial(jax.jit, static_argnums=1)(prepared.prepare_filter)
