"""Calls of native kernels as one primitive: which form computes is decided where a program is lowered.

Lowered for one CPU, or inside of `shard_map`, it is the native kernel. For other platforms, for devices that XLA shares
the work among, and for `jax.export`, whose files must be readable anywhere, it is the same function on XLA. Under vmap
operands get leading dimensions, of size 1 where an operand is not mapped.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxdml._arithmetic.kernel_library import library

Array = jax.Array


class Kernel(NamedTuple):
    """A function that has a native form.

    Attributes:
      native: (*arguments, leading, **statics); so many leading dimensions are those of vmap.
      result: (*arguments, **statics) -> shape and type, of abstract arguments without those.
      takes: (*arguments, **statics) -> whether the kernel computes such a call.
      is_replicated: whether each device of a mesh computes all of it.
    """

    native: Callable[..., Array]
    result: Callable[..., tuple[tuple[int, ...], Any]]
    takes: Callable[..., bool] = lambda *arguments, **statics: True
    is_replicated: bool = False


class _Call(NamedTuple):
    """What a call is, apart from its arrays.

    Attributes:
      on_xla: the function in operations of XLA.
      tree: of the arguments.
      mapped: for each vmap, the outermost first, which of the arrays have its dimension; the others have one of size 1.
    """

    kernel: Kernel
    on_xla: Callable[..., Any]
    tree: Any
    statics: tuple[tuple[str, Any], ...]
    mapped: tuple[tuple[bool, ...], ...] = ()

    def common(self, *leaves: Array) -> Array:
        def form(*leaves: Array) -> Array:
            result: Array = self.on_xla(*jax.tree.unflatten(self.tree, leaves), **dict(self.statics))
            return result

        for of_arrays in reversed(self.mapped):
            form = _mapped(form, of_arrays)
        return form(*leaves)

    def native(self, *leaves: Array) -> Array:
        arguments = jax.tree.unflatten(self.tree, leaves)
        return self.kernel.native(*arguments, leading=len(self.mapped), **dict(self.statics))


def _mapped(form: Callable[..., Array], of_arrays: Sequence[bool]) -> Callable[..., Array]:
    def over_all(*leaves: Array) -> Array:
        pairs = zip(leaves, of_arrays, strict=True)
        inner = [leaf if is_mapped else lax.squeeze(leaf, (0,)) for leaf, is_mapped in pairs]
        return jax.vmap(form, [0 if is_mapped else None for is_mapped in of_arrays])(*inner)

    return over_all


def with_kernel[**P, R](kernel: Kernel) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function on XLA whose arrays are positional arguments, and whose statics are keyword arguments.

    The kernel computes the calls that it takes.
    """

    def decorate(on_xla: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(on_xla)
        def chosen(*arguments: P.args, **statics: P.kwargs) -> R:
            if library() is None or not kernel.takes(*arguments, **statics):
                return on_xla(*arguments, **statics)
            result: Any = call(kernel, on_xla, *arguments, **statics)
            return result

        return chosen

    return decorate


def call(kernel: Kernel, on_xla: Callable[..., Any], *arguments: Any, **statics: Any) -> Array:
    """on_xla(*arguments, **statics), by the kernel where it runs."""
    leaves, tree = jax.tree.flatten(arguments)
    what = _Call(kernel, on_xla, tree, tuple(sorted(statics.items())))
    result: Array = _primitive.bind(*leaves, what=what)
    return result


_primitive = Primitive("jaxdml_kernel")


def _eager(*leaves: Array, what: _Call) -> Array:
    with jax.disable_jit(False):
        result: Array = _compiled(what)(*leaves)
        return result


@functools.lru_cache(maxsize=4096)
def _compiled(what: _Call) -> Callable[..., Array]:
    compiled: Callable[..., Array] = jax.jit(functools.partial(_primitive.bind, what=what))
    return compiled


def _abstract(*leaves: Any, what: _Call) -> Any:
    if not jax.sharding.get_abstract_mesh().empty:  # a type says there how it is sharded, which XLA's form knows
        return jax.make_jaxpr(what.common)(*leaves).out_avals[0]
    sizes = [next(leaf.shape[i] for leaf, is_mapped in zip(leaves, of_arrays, strict=True) if is_mapped)
             for i, of_arrays in enumerate(what.mapped)]  # fmt: skip
    inner = (jax.ShapeDtypeStruct(leaf.shape[len(sizes) :], leaf.dtype) for leaf in leaves)
    shape, dtype = what.kernel.result(*jax.tree.unflatten(what.tree, inner), **dict(what.statics))
    return jax.core.ShapedArray((*sizes, *shape), np.dtype(dtype))


def _batched(leaves: Sequence[Array], dimensions: Sequence[int | None], *, what: _Call) -> tuple[Array, int]:
    of_arrays = tuple(dimension is not None for dimension in dimensions)
    pairs = zip(leaves, dimensions, strict=True)
    moved = [lax.expand_dims(x, (0,)) if axis is None else _to_front(x, axis) for x, axis in pairs]
    return _primitive.bind(*moved, what=what._replace(mapped=(of_arrays, *what.mapped))), 0


def _differentiated(primals: Sequence[Array], tangents: Sequence[Any], *, what: _Call) -> tuple[Array, Any]:
    """The kernel's value with the derivative of the form on XLA; integers have none."""
    value = _primitive.bind(*primals, what=what)
    whole = [np.zeros(x.shape, jax.dtypes.float0) if isinstance(dx, ad.Zero) and not _is_float(x)
             else ad.instantiate_zeros(dx) for x, dx in zip(primals, tangents, strict=True)]  # fmt: skip
    return value, jax.jvp(what.common, tuple(primals), tuple(whole))[1]


def _is_float(x: Array) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def _to_front(x: Array, axis: int) -> Array:
    return lax.transpose(x, (axis, *(i for i in range(x.ndim) if i != axis)))


def _lower(context: Any, *operands: Any, what: _Call) -> Any:
    return mlir.lower_fun(what.common, multiple_results=False)(context, *operands)


def _lower_for_cpu(context: Any, *operands: Any, what: _Call) -> Any:
    target = target_of(context)
    is_native = target == "device" or (target == "mesh" and what.kernel.is_replicated)
    return mlir.lower_fun(what.native if is_native else what.common, multiple_results=False)(context, *operands)


def target_of(context: Any) -> Literal["file", "device", "mesh"]:
    """What a program is lowered for: a file that `jax.export` writes, one device at a time, or a mesh.

    In `shard_map` a program is lowered for one device at a time. XLA partitions the programs of a mesh, and cannot
    partition a custom call. No public function of JAX answers this, so here alone its lowering context is read.
    """
    module = context.module_context
    if module.lowering_parameters.for_export:
        return "file"
    axes = module.axis_context
    if isinstance(axes, mlir.SPMDAxisContext):
        return "device" if axes.manual_axes == frozenset(axes.mesh.axis_names) else "mesh"
    return "device" if isinstance(axes, mlir.ShardingContext) and axes.num_devices == 1 else "mesh"


_primitive.def_impl(_eager)
_primitive.def_abstract_eval(_abstract)
batching.primitive_batchers[_primitive] = _batched
ad.primitive_jvps[_primitive] = _differentiated
mlir.register_lowering(_primitive, _lower)
mlir.register_lowering(_primitive, _lower_for_cpu, platform="cpu")
