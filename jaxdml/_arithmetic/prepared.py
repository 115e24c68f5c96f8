"""Prepared weights: weights in the layout that contractions read.

DirectML repacks a tensor once if it owns the tensor; here the caller prepares weights once, outside of jit.

Prepared weights are a pytree with one leaf: mapping a function over several leaves could make them inconsistent. For
XLA's kernels, the leaf is the array in another layout. For native kernels, it is packed, and the kernels reject packed
weights that were changed.
"""

import abc
import dataclasses
import json
from functools import partial
from typing import Any, Self

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from jaxdml._arithmetic import panels
from jaxdml._arithmetic.int8 import signed, unsigned
from jaxdml._arithmetic.kernel_library import library
from jaxdml._arithmetic.layouts import Filter, in_layout
from jaxdml._arithmetic.packing import (
    Waiting,
    packed,
    packed_filter,
    packed_filter_size,
    packed_layout,
    packed_matrix,
    packed_matrix_size,
)
from jaxdml._arithmetic.platforms import arrange_filter, arrange_matrix

Array = jax.Array


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Prepared(abc.ABC):
    """Base class of prepared weights. They are not arrays: converting them to NumPy raises TypeError."""

    data: Array
    dtype: np.dtype
    layout: str
    sizes: tuple[int, ...] = ()

    @property
    def is_packed(self) -> bool:
        """Whether the data is packed for native kernels."""
        return self.layout in panels.LAYOUTS

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the array that was prepared."""

    @property
    @abc.abstractmethod
    def array(self) -> Array:
        """The array that was prepared."""

    @property
    def is_consistent(self) -> bool:
        """Whether the data has the type and size of the weights. Leading dimensions of vmap or scan are allowed."""
        dtype = np.int8 if self.is_packed else self.dtype
        if not isinstance(self.data, jax.Array | np.ndarray) or self.data.dtype != dtype:
            return False
        return self.layout != packed_layout() or self.data.shape[-1] == self._packed_size()

    @property
    def is_intact(self) -> bool:
        """Whether operators accept the weights. They do not accept a stack of filters."""
        return self.is_consistent

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    @abc.abstractmethod
    def described(self) -> str:
        """Type and shape of the array, and the options of its preparation."""

    @abc.abstractmethod
    def _packed_size(self) -> int:
        """The size of one packed matrix or filter for the kernels of this process, in bytes."""

    def _at_hand(self) -> Self:
        """Converts packed data to NumPy unless it is traced, so that XLA need not compile the unpacking.

        Raises:
          ValueError: if the data was changed after it was packed.
        """
        if not self.is_packed or isinstance(self.data, jax.core.Tracer):
            return self
        data: Any = np.asarray(self.data)
        if not all(map(panels.is_sealed, data.reshape(-1, data.shape[-1]))):
            raise ValueError(
                f"the data of {self} is not as it was packed: apply functions to `array`, and prepare the result"
            )
        return dataclasses.replace(self, data=data)

    def __repr__(self) -> str:
        if hasattr(self.data, "shape"):
            return f"{type(self).__name__}({self.described})"
        # `jax.tree.map` may have put a size or a sharding in place of the array.
        return f"{type(self).__name__}(data={self.data})"

    @abc.abstractmethod
    def _prepared(self, array: Any, is_packed: bool) -> Self:
        """An array of the same shape, prepared with the same options."""

    def __reduce__(self) -> Any:
        """A pickle holds unpacked weights; the process that loads it packs them for its own kernels."""
        if not isinstance(self.data, jax.Array | np.ndarray):
            return type(self), (self.data, self.dtype, self.layout, self.sizes)
        plain = self._prepared(np.asarray(self.array), False)
        return type(self), (jnp.asarray(plain.data), plain.dtype, plain.layout, plain.sizes), "prepare"

    def __setstate__(self, _: str) -> None:
        if library() is None or not self.is_consistent:
            return
        prepared = packed(self._prepared(np.asarray(self.array), True))
        for field in dataclasses.fields(prepared):
            object.__setattr__(self, field.name, getattr(prepared, field.name))

    def __array__(self, *_: Any, **__: Any) -> Any:
        """Without this method, NumPy would make an object array, and `np.load` rejects files of such arrays."""
        raise TypeError(f"{self} is a pytree, not an array; save its .array, or pickle it")


@partial(jax.tree_util.register_dataclass, data_fields=["data"], meta_fields=["dtype", "layout", "sizes"])
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PreparedMatrix(Prepared):
    """A matrix B, repacked by `prepare_matrix_multiply_b`: a pytree that operators take as `b`.

    Attributes:
      data: the only leaf: the matrix in its own type, its last two dimensions in the order of `layout`; or int8
        [..., bytes], packed for native kernels.
      dtype: int8 or uint8, the type of the array.
      layout: "KN" or "NK", or the name of the layout for native kernels, such as "avx2".
      sizes: (K, N) of a packed matrix, else ().
      array: the array that was prepared, [..., K, N].
      shape: the shape of the array.
      ndim: the rank of the array.
    """

    @classmethod
    def of(cls, b: Any, is_packed: bool = True) -> Self:
        """8-bit [..., K, N], packed if native kernels are in use, is_packed, and sizes are known; else arranged.

        A NumPy array is not packed yet; `packing.packed` packs many of them in one program.
        """
        if is_packed and library() is not None and all(isinstance(size, int) for size in b.shape[-2:]):
            data: Any = Waiting(b) if isinstance(b, np.ndarray) else packed_matrix(b)
            return cls(data, np.dtype(b.dtype), packed_layout(), b.shape[-2:])
        values, layout = arrange_matrix(signed(b))
        return cls(unsigned(values, b.dtype), np.dtype(b.dtype), layout)

    @property
    def shape(self) -> tuple[int, ...]:
        if self.is_packed:
            return (*self.data.shape[:-1], *self.sizes)
        *batch, first, second = self.data.shape
        return (*batch, first, second) if self.layout == "KN" else (*batch, second, first)

    @property
    def array(self) -> Array:
        values = in_layout(*self._at_hand().signed())
        return unsigned(jnp.asarray(values), self.dtype)

    def signed(self) -> tuple[Array, str]:
        """The int8 values, 128 subtracted from uint8, and their layout, "KN" or "NK"."""
        if self.is_packed:
            return panels.matrix_of(self.data, self.sizes, self.layout), "KN"
        return signed(self.data), self.layout

    @property
    def described(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    def _packed_size(self) -> int:
        return packed_matrix_size(self.sizes)

    def _prepared(self, array: Any, is_packed: bool) -> Self:
        return self.of(array, is_packed)


@partial(jax.tree_util.register_dataclass, data_fields=["data"], meta_fields=["dtype", "layout", "sizes"])
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PreparedFilter(Prepared):
    """A filter, repacked by `prepare_convolution_filter`: a pytree that operators take as `filter`.

    Attributes:
      data: the only leaf: [groups, ...] of the filter's own type, each group in the order of layout, or int8 [bytes],
        packed for native kernels.
      dtype: int8 or uint8, the type of the array.
      layout: the order of a group's dimensions: "OIHW" or "HWIO"; "OIW" or "WIO" for one spatial dimension; or the
        name of the layout for native kernels, such as "avx2".
      sizes: (group_count, O, C / group_count, ``*kernel``) of a packed filter, else ().
      group_count: the number of groups.
      array: the array that was prepared, ``[O, C / group_count, *kernel]``, after any dimensions of vmap or scan.
      shape: the shape of the array.
      ndim: the rank of the array.
    """

    @classmethod
    def of(cls, filter: Any, group_count: int, is_packed: bool = True) -> Self:
        """8-bit [O, C / groups, *kernel], packed if native kernels are in use and is_packed.

        A NumPy array is not packed yet; `packing.packed` packs many of them in one program.
        """
        if is_packed and library() is not None:
            waits = isinstance(filter, np.ndarray)
            data: Any = Waiting(filter, group_count) if waits else packed_filter(filter, group_count)
            return cls(data, np.dtype(filter.dtype), packed_layout(), (group_count, *filter.shape))
        values, layout = arrange_filter(signed(filter), group_count)
        return cls(unsigned(values, filter.dtype), np.dtype(filter.dtype), layout)

    @property
    def group_count(self) -> int:
        return self.sizes[0] if self.is_packed else self.data.shape[-1 - len(self.layout)]

    @property
    def shape(self) -> tuple[int, ...]:
        if self.is_packed:
            return (*self.data.shape[:-1], *self.sizes[1:])
        rank = len(self.layout) + 1
        one: Any = jax.ShapeDtypeStruct(self.data.shape[-rank:], self.data.dtype)
        return (*self.data.shape[:-rank], *Filter(one, self.layout).shape)

    @property
    def array(self) -> Array:
        if self.is_packed:
            group_count, *shape = self.sizes
            values = panels.filter_of(self._at_hand().data, shape, group_count, self.layout)
            return unsigned(jnp.asarray(values), self.dtype)

        def of_one(data: Array) -> Array:
            return Filter(data, self.layout).array()

        for _ in range(self.stack):
            of_one = jax.vmap(of_one)
        return of_one(self.data)

    def signed(self) -> Filter:
        """The int8 values, 128 subtracted from uint8."""
        if self.is_packed:
            group_count, *shape = self.sizes
            values = panels.filter_of(self.data, shape, group_count, self.layout)
            outputs, *rest = shape
            return Filter(values.reshape(group_count, outputs // group_count, *rest), f"OI{'HW'[1 - len(rest) :]}")
        return Filter(signed(self.data), self.layout)

    @property
    def stack(self) -> int:
        """The number of leading dimensions of vmap or scan."""
        return self.data.ndim - 1 - (0 if self.is_packed else len(self.layout))

    @property
    def is_intact(self) -> bool:
        return self.is_consistent and self.stack == 0

    @property
    def described(self) -> str:
        return f"{self.dtype}{list(self.shape)}, group_count={self.group_count}"

    def _packed_size(self) -> int:
        group_count, *shape = self.sizes
        return packed_filter_size(shape, group_count)

    def _prepared(self, array: Any, is_packed: bool) -> Self:
        prepare: Any = partial(self.of, group_count=self.group_count, is_packed=is_packed)
        for _ in range(self.stack):
            prepare = jax.vmap(prepare)
        return prepare(array)


def register_for_export(prepared: type) -> None:
    """Lets `jax.export` serialize functions that take prepared weights."""
    jax.export.register_pytree_node_serialization(
        prepared,
        serialized_name=f"jaxdml.{prepared.__name__}",
        serialize_auxdata=lambda statics: json.dumps([str(statics[0]), *statics[1:]]).encode(),
        deserialize_auxdata=_statics,
    )


def _statics(serialized: bytes) -> tuple[Any, ...]:
    dtype, layout, sizes = json.loads(serialized)
    return np.dtype(dtype), layout, tuple(sizes)


register_for_export(PreparedMatrix)
register_for_export(PreparedFilter)
