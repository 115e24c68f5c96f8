"""Repacks constant weights once, as DirectML does with tensors flagged OWNED_BY_DML."""

from functools import partial
from typing import Any

import jax
import numpy as np

from jaxdml._arithmetic import contractions
from jaxdml._arithmetic.packing import packed
from jaxdml._arithmetic.prepared import PreparedFilter, PreparedMatrix
from jaxdml._directml.desc import Slot, fields_of, page_name
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.messages import broken, raising_as, raising_desc_errors
from jaxdml._directml.pages import PAGES
from jaxdml._directml.tensor_rules import check_tensor
from jaxdml._directml.validate import check_support
from jaxdml._operators.arguments import Converter
from jaxdml._operators.descriptions import tensor_desc
from jaxdml.errors import api_boundary
from jaxdml.typing import Array


@api_boundary
def prepare_matrix_multiply_b(b: Array) -> PreparedMatrix:
    """Repacks `b` once, for all later matrix products. The results have the same bits as with `b` itself.

    `quantized_linear_matrix_multiply`, `matrix_multiply_integer` and `matrix_multiply_integer_to_float` accept the
    result as `b`. The result is a pytree and works with jit, vmap and scan; pass it to a jitted function as an
    argument.

    To save the result, save its `array`, and prepare this array again after loading; pickle does both automatically. To
    shard the result, shard `b` first. For `jax.export` and `jax.tree.leaves`, prepare under `use_kernels("xla")`: all
    machines then get the same pytree.

    Args:
      b: int8 or uint8 array [..., K, N] of rank 2 to 4.

    Returns:
      PreparedMatrix with b's shape and dtype. The scale and zero point of b remain arguments of the operator.

    Raises:
      DescError: if matrix products of 8-bit types do not allow b.

    Source: DirectML, DML_TENSOR_FLAG_OWNED_BY_DML,
    https://learn.microsoft.com/windows/win32/api/directml/ne-directml-dml_tensor_flags
    """
    return packed(waiting_matrix(b))


@api_boundary
def prepare_convolution_filter(filter: Array, *, group_count: int = 1) -> PreparedFilter:
    """Repacks a filter once, for all later convolutions. The results have the same bits as with the filter itself.

    `quantized_linear_convolution` and `convolution_integer` accept the result as filter. The result is a pytree and
    works with jit, vmap and scan; pass it to a jitted function as an argument.

    To save the result, save its `array`, and prepare this array again after loading; pickle does both automatically. To
    shard the result, shard filter first. For `jax.export` and `jax.tree.leaves`, prepare under `use_kernels("xla")`:
    all machines then get the same pytree.

    Args:
      filter: int8 or uint8 array ``[O, C / group_count, *kernel]`` of rank 3 or 4.
      group_count: the group_count of the later calls.

    Returns:
      PreparedFilter with filter's shape and dtype. The scale and zero point of the filter, and the bias, remain
      arguments of the operator.

    Raises:
      DescError: if convolutions do not allow filter, or group_count does not divide its output channels.

    Source: DirectML, DML_TENSOR_FLAG_OWNED_BY_DML,
    https://learn.microsoft.com/windows/win32/api/directml/ne-directml-dml_tensor_flags
    """
    return packed(waiting_filter(filter, group_count))


def waiting_matrix(b: Array) -> PreparedMatrix:
    """Like `prepare_matrix_multiply_b`, but a NumPy array is not packed until `packed` is called on the result."""
    with raising_as(prepare_matrix_multiply_b.__name__):
        b = _validated("quantized_linear_matrix_multiply", "b", b)
    if isinstance(b, np.ndarray):
        return contractions.prepare_numpy_matrix(b)
    return _matrix(b, _is_on_one_device(b))


def waiting_filter(filter: Array, group_count: int) -> PreparedFilter:
    """Like `prepare_convolution_filter`, but a NumPy array is not packed until `packed` is called on the result."""
    operator = "quantized_linear_convolution"
    with raising_as(prepare_convolution_filter.__name__):
        filter = _validated(operator, "filter", filter)
        group_count = Converter(operator).integer("group_count", group_count)
        if group_count < 1 or filter.shape[0] % group_count:
            text = f"is {group_count}, expected a divisor of the {filter.shape[0]} output channels"
            raise broken(operator, "GroupCount", "group_count", text, expected=filter.shape[0], received=group_count)
    if isinstance(filter, np.ndarray):
        return contractions.prepare_numpy_filter(filter, group_count)
    return _filter(filter, group_count, _is_on_one_device(filter))


def repacked_matrix(b: Any, desc: Any) -> PreparedMatrix:
    """Prepares a matrix B that is OWNED_BY_DML."""
    return prepare_matrix_multiply_b(b)


def _validated(operator: str, name: str, value: Any) -> Any:
    convert, page, field = Converter(operator), PAGES[operator], f"{name}_tensor"
    value = convert.tensor(name, value)
    convert.has_type(name, value)
    tensor, desc = page_name(field), tensor_desc(value)
    is_: Any = fields_of(page.desc)[field]
    with raising_desc_errors({tensor: value.shape}):
        check_tensor(operator, tensor, desc)
        check_support(page, Slot(field, tensor, tensor, is_.role(), desc, name), FeatureLevel.LATEST)
    return value


def _is_on_one_device(x: Any) -> bool:
    """Whether native kernels can read the weights. Weights on several devices need XLA's kernels."""
    return isinstance(x, jax.core.Tracer) or len(x.sharding.device_set) == 1


_matrix = partial(jax.jit, static_argnums=1)(contractions.prepare_matrix)
_filter = partial(jax.jit, static_argnums=(1, 2))(contractions.prepare_filter)
