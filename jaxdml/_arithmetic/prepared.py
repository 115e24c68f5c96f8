"""Prepared weights: int8 in the layout that contractions read, with the sums that correct for zero points.

DirectML repacks a tensor once if it owns the tensor; here the caller prepares weights once, outside of jit.
"""

import abc
import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.int8 import unsigned
from jaxdml._arithmetic.packing import packed_filter, packed_matrix

Array = jax.Array


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Prepared(abc.ABC):
    """Base class of prepared weights. They are not arrays: converting them to NumPy raises TypeError."""

    values: Array
    sums: Array
    dtype: np.dtype
    layout: str
    packed: Array | None = None

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the array that was prepared."""

    @property
    @abc.abstractmethod
    def array(self) -> Array:
        """The array that was prepared."""

    @property
    @abc.abstractmethod
    def is_consistent(self) -> bool:
        """Whether the types and shapes of the fields fit each other. Leading dimensions of vmap or scan are allowed."""

    @property
    def is_intact(self) -> bool:
        """Whether operators take the weights. Operators do not take a stack of filters."""
        return self.is_consistent

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    @abc.abstractmethod
    def described(self) -> str:
        """Type and shape of the array, and the options of its preparation."""

    def __repr__(self) -> str:
        if all(isinstance(x, jax.Array | np.ndarray) for x in (self.values, self.sums)):
            return f"{type(self).__name__}({self.described})"
        # `jax.tree.map` may have put shapes or shardings in place of the arrays.
        return f"{type(self).__name__}(values={self.values}, sums={self.sums}, packed={self.packed})"

    def __reduce__(self) -> Any:
        """A pickle has no packed array: weights are packed again for the kernels of the process that loads them."""
        return type(self), (self.values, self.sums, self.dtype, self.layout), "pack"

    def __setstate__(self, _: str) -> None:
        if self.is_consistent:
            object.__setattr__(self, "packed", self._pack())

    @abc.abstractmethod
    def _pack(self) -> Array | None:
        """The array packed for the kernels of this process."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        """Without this method, NumPy would make an array of one object, and `np.load` refuses files of such arrays."""
        raise TypeError(f"{self} is a pytree of arrays, not an array; save its .array, or pickle it")


@partial(jax.tree_util.register_dataclass, data_fields=["values", "sums", "packed"], meta_fields=["dtype", "layout"])
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PreparedMatrix(Prepared):
    """A matrix B, repacked by `prepare_matrix_multiply_b`: a pytree that operators take as `b`.

    Attributes:
      values: int8, with the last two dimensions in the order of layout; 128 is subtracted from uint8 values.
      sums: int32 [..., 1, N], the sums of values over K.
      dtype: int8 or uint8, the type of the array.
      layout: "KN" or "NK".
      packed: uint8 [..., bytes], the matrix packed for native kernels, or None.
      array: the array that was prepared, [..., K, N].
      shape: the shape of the array.
      ndim: the rank of the array.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        *batch, first, second = self.values.shape
        return (*batch, first, second) if self.layout == "KN" else (*batch, second, first)

    @property
    def array(self) -> Array:
        return unsigned(in_layout(self.values, self.layout), self.dtype)

    @property
    def is_consistent(self) -> bool:
        *batch, _, columns = self.shape
        do_shapes_fit = self.sums.shape == (*batch, 1, columns) and _is_packed(self.packed)
        return _is_array(jnp.int8, self.values) and _is_array(jnp.int32, self.sums) and do_shapes_fit

    @property
    def described(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    def _pack(self) -> Array | None:
        return packed_matrix(self.array)


@partial(jax.tree_util.register_dataclass, data_fields=["values", "sums", "packed"], meta_fields=["dtype", "layout"])
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PreparedFilter(Prepared):
    """A filter, repacked by `prepare_convolution_filter`: a pytree that operators take as `filter`.

    Attributes:
      values: int8 [groups, ...], each group in the order of layout; 128 is subtracted from uint8 values.
      sums: int32 [O], the sums of values for each output channel.
      dtype: int8 or uint8, the type of the array.
      layout: the order of a group's dimensions: "OIHW" or "HWIO"; "OIW" or "WIO" for one spatial dimension.
      packed: uint8 [bytes], the filter packed for native kernels, or None.
      group_count: the number of groups.
      array: the array that was prepared, ``[O, C / group_count, *kernel]``, after any dimensions of vmap or scan.
      shape: the shape of the array.
      ndim: the rank of the array.
    """

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
    def array(self) -> Array:
        return unsigned(signed_filter(self), self.dtype)

    @property
    def stack(self) -> int:
        """The number of leading dimensions of vmap or scan."""
        return self.ndim - len(self.layout)

    @property
    def is_consistent(self) -> bool:
        do_shapes_fit = self.sums.shape == self.shape[: self.stack + 1] and _is_packed(self.packed)
        return _is_array(jnp.int8, self.values) and _is_array(jnp.int32, self.sums) and do_shapes_fit

    @property
    def is_intact(self) -> bool:
        return self.is_consistent and self.stack == 0

    @property
    def described(self) -> str:
        return f"{self.dtype}{list(self.shape)}, group_count={self.group_count}"

    def _pack(self) -> Array | None:
        pack: Any = partial(packed_filter, group_count=self.group_count)
        for _ in range(self.stack):
            pack = jax.vmap(pack)
        packed: Array | None = pack(self.array)
        return packed


def _register_for_export(prepared: type) -> None:
    """Lets `jax.export` serialize functions that take prepared weights."""
    jax.export.register_pytree_node_serialization(
        prepared,
        serialized_name=f"jaxdml.{prepared.__name__}",
        serialize_auxdata=lambda statics: " ".join(map(str, statics)).encode(),
        deserialize_auxdata=_statics,
    )


def _statics(serialized: bytes) -> tuple[Any, ...]:
    dtype, *layout = serialized.decode().split()
    return (np.dtype(dtype), *layout)


_register_for_export(PreparedMatrix)
_register_for_export(PreparedFilter)


def in_layout(values: Array, layout: str) -> Array:
    """values converted from [..., K, N] to layout, or back."""
    return values if layout == "KN" else swapped(values)


def swapped(x: Array) -> Array:
    """x with its last two dimensions swapped."""
    *batch, first, second = range(x.ndim)
    return x.transpose((*batch, second, first))


def signed_filter(prepared: PreparedFilter) -> Array:
    """The values, whatever their layout, rearranged to [..., O, C / groups, *kernel]."""
    values = prepared.values
    if prepared.layout.endswith("IO"):
        first = values.ndim - len(prepared.layout)
        *space, inputs, outputs = range(first, values.ndim)
        values = lax.transpose(values, (*range(first), outputs, inputs, *space))
    return lax.reshape(values, prepared.shape)


def rows_of(prepared: PreparedFilter) -> Array:
    """The values, whatever their layout, rearranged to [groups, O / groups, C / groups * kernel]."""
    values, groups = signed_filter(prepared), prepared.group_count
    # Two reshapes, because on explicit axes one reshape may merge dimensions or split them, but not both.
    rows = lax.reshape(values, (len(values), math.prod(values.shape[1:])))
    return lax.reshape(rows, (groups, len(values) // groups, rows.shape[1]))


def _is_array(dtype: Any, x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray) and x.dtype == dtype


def _is_packed(packed: Any) -> bool:
    return packed is None or _is_array(jnp.uint8, packed)
