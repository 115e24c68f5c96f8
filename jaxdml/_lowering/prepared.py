"""Weights as the contractions read them: int8, laid out for XLA's kernels, with the sums that zero points need.

Weights are repacked on every call, or once, outside of jit, as DirectML does with tensors that it owns.
"""

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._lowering.int8 import signed, sums_of_columns, sums_of_rows, unsigned

Array = jax.Array


@partial(jax.tree_util.register_dataclass, data_fields=["values", "sums"], meta_fields=["dtype", "layout"])
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PreparedMatrix:
    """A matrix B, repacked by `prepare_matrix_multiply_b`: a pytree that stands for the array as `b`.

    Attributes:
      values: int8, the two last dimensions as layout says; uint8 less 128.
      sums: int32 [..., 1, N], the sums of values over K.
      dtype: int8 or uint8, the type of the array.
      layout: "KN" or "NK".
      shape: [..., K, N], the shape of the array.
      ndim: its rank.
    """

    values: Array
    sums: Array
    dtype: np.dtype
    layout: str

    @property
    def shape(self) -> tuple[int, ...]:
        *batch, first, second = self.values.shape
        return (*batch, first, second) if self.layout == "KN" else (*batch, second, first)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_intact(self) -> bool:
        """Whether the arrays are as they were made: no other types, no dimension more."""
        *batch, _, columns = self.shape
        return _are(jnp.int8, self.values) and _are(jnp.int32, self.sums) and self.sums.shape == (*batch, 1, columns)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dtype}{list(self.shape)})"

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise _no_array(self)


@partial(jax.tree_util.register_dataclass, data_fields=["values", "sums"], meta_fields=["dtype", "layout"])
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PreparedFilter:
    """A filter, repacked by `prepare_convolution_filter`: a pytree that stands for the array as `filter`.

    Attributes:
      values: int8, the groups first, then as layout says; uint8 less 128.
      sums: int32 [O], the sums of values for each output channel.
      dtype: int8 or uint8, the type of the array.
      layout: within a group: "OIHW" or "HWIO", in one spatial dimension "OIW" or "WIO".
      group_count: the groups that it was prepared for.
      shape: [O, C / group_count, *kernel], the shape of the array; what vmap or a stack puts in front comes first.
      ndim: its rank.
    """

    values: Array
    sums: Array
    dtype: np.dtype
    layout: str

    @property
    def group_count(self) -> int:
        return self.values.shape[-1 - len(self.layout)]

    @property
    def shape(self) -> tuple[int, ...]:
        rank = len(self.layout)
        *stack, groups = self.values.shape[:-rank]
        sizes = dict(zip(self.layout, self.values.shape[-rank:], strict=True))
        return (*stack, groups * sizes["O"], sizes["I"], *(sizes[axis] for axis in self.layout if axis in "HW"))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_intact(self) -> bool:
        """Whether the arrays are as they were made: no other types, no dimension more."""
        is_one = self.ndim == len(self.layout) and self.sums.shape == self.shape[:1]
        return _are(jnp.int8, self.values) and _are(jnp.int32, self.sums) and is_one

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dtype}{list(self.shape)}, group_count={self.group_count})"

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise _no_array(self)


def _no_array(prepared: Any) -> TypeError:
    """NumPy would make an object of it without a word, and `np.save` a file that `np.load` refuses."""
    return TypeError(f"{prepared} is a pytree of arrays, not an array; save it by pickle, or save its jax.tree.leaves")


def _register_for_export(prepared: type) -> None:
    """Lets `jax.export` write down functions that take prepared weights."""
    jax.export.register_pytree_node_serialization(
        prepared,
        serialized_name=f"jaxdml.{prepared.__name__}",
        serialize_auxdata=lambda statics: " ".join(map(str, statics)).encode(),
        deserialize_auxdata=_statics,
    )


def _statics(written: bytes) -> tuple[Any, ...]:
    dtype, *layout = written.decode().split()
    return (np.dtype(dtype), *layout)


_register_for_export(PreparedMatrix)
_register_for_export(PreparedFilter)


def prepare_matrix(b: Array, layout: str) -> PreparedMatrix:
    """[..., K, N] of int8 or uint8, repacked. "NK" is the faster layout, but not worth a transpose for one product."""
    values = signed(_kept(b))
    return PreparedMatrix(_as_laid_out(values, layout), sums_of_columns(values), np.dtype(b.dtype), layout)


def matrix(b: PreparedMatrix) -> Array:
    """The array that was prepared."""
    return unsigned(_as_laid_out(b.values, b.layout), b.dtype)


def _as_laid_out(values: Array, layout: str) -> Array:
    """From [..., K, N] to the layout, and back."""
    return values if layout == "KN" else jnp.swapaxes(values, -1, -2)


def prepare_filter(filter: Array, group_count: int) -> PreparedFilter:
    """[O, C / groups, *kernel] of int8 or uint8, repacked."""
    outputs, channels, *kernel = filter.shape
    space = "HW"[-len(kernel) :]
    values = signed(_kept(filter))
    sums = sums_of_rows(values.reshape(outputs, -1))[:, 0]
    values = values.reshape(group_count, outputs // group_count, channels, *kernel)
    if not _suits_convolution(outputs // group_count, channels, math.prod(kernel), group_count):
        return PreparedFilter(values, sums, np.dtype(filter.dtype), f"OI{space}")
    # A transpose that XLA sees in front of a convolution becomes part of it, and loses the kernel. With an element of
    # the kernel in between that is cut off again, it does not.
    values = jnp.moveaxis(values, (1, 2), (-1, -2))
    values = lax.pad(values, np.int8(0), [(0, int(axis == 1), 0) for axis in range(values.ndim)])
    values = values[:, :-1]
    return PreparedFilter(values, sums, np.dtype(filter.dtype), f"{space}IO")


def signed_filter(prepared: PreparedFilter) -> Array:
    """The values as [O, C / groups, *kernel], whatever the layout."""
    values = prepared.values
    if prepared.layout.endswith("IO"):
        values = jnp.moveaxis(values, (-1, -2), (1, 2))
    return values.reshape(prepared.shape)


def rows_of(prepared: PreparedFilter) -> Array:
    """The values as [groups, O / groups, C / groups * kernel], whatever the layout."""
    values = signed_filter(prepared)
    return values.reshape(len(values), -1).reshape(prepared.group_count, len(values) // prepared.group_count, -1)


def filter(prepared: PreparedFilter) -> Array:
    """The array that was prepared."""
    return unsigned(signed_filter(prepared), prepared.dtype)


def _suits_convolution(outputs: int, channels: int, elements: int, group_count: int) -> bool:
    """Whether XLA:CPU's int8 convolution takes such a filter, and is faster than a product of matrices.

    It takes more than 16 input or output channels. A product is faster for a 1 x 1 kernel, for few input channels, and
    for filters of a megabyte, which the convolution reads again for each row of the output: 512 to 512 channels at
    7 x 7 take 4.6 ms in a network, and 1.5 as a product. Groups would be a convolution each, from 0.8 to 1.4 times as
    fast as one product for all; XLA crashes when their channels are sharded.
    """
    is_wide = channels >= 8 and max(outputs, channels) > 16
    return is_wide and elements > 1 and group_count == 1 and outputs * channels * elements < 2**20


def _are(dtype: Any, x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray) and x.dtype == dtype


def _kept(x: Any) -> Any:
    # The barrier keeps XLA from transposing and adding up constant weights when compiling, which takes it seconds.
    return lax.optimization_barrier(x)
