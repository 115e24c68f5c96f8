"""The JAX primitive that calls native kernels. Its lowering chooses between a kernel and the JAX function it replaces.

A call that is lowered for one CPU device, or in `shard_map`, runs the kernel. The JAX function runs on other platforms,
in programs that XLA partitions for a mesh, and in programs from `jax.export`, which may run on other machines. Under
vmap, every operand gets a leading dimension, of size 1 if the operand is not mapped.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxdml._arithmetic.kernel_library import library, use_kernels
from jaxdml._arithmetic.native_call import Result
from jaxdml._arithmetic.one_operation import as_one_operation

Array = jax.Array


class Kernel(NamedTuple):
    """A native kernel that can replace a function of JAX operations.

    Attributes:
      native: (*arguments, leading, **statics) -> result, or a tuple of several results; `leading` vmap dimensions are
        prepended to arrays.
      result: (*arguments, **statics) -> shape and type of the result, without vmap dimensions; a list if there are
        several results.
      takes: (*arguments, **statics) -> whether the kernel computes this call.
      is_replicated: whether each device of a mesh computes the whole result.
      calls_kernels: whether derivatives need the results of kernels that the JAX function calls. If so, the function
        computes the values along with the derivatives, so that each of these kernels runs once.
      splits: (*arguments, each leaf replaced by whether vmap maps it) -> whether vmap maps the JAX function instead.
      is_of_trace: whether each trace has statics of its own, so that a call compiled for one trace fits no other.
    """

    native: Callable[..., Array | tuple[Array, ...]]
    result: Callable[..., Result | list[Result]]
    takes: Callable[..., bool] = lambda *arguments, **statics: True
    is_replicated: bool = False
    calls_kernels: bool = False
    splits: Callable[..., bool] = lambda *is_mapped: False
    is_of_trace: bool = False


class Spec(NamedTuple):
    """The static part of a call.

    Attributes:
      kernel: the kernel.
      function: the JAX function that the kernel replaces.
      tree: the pytree structure of the arguments, whose leaves are the operands.
      mapped: which operands each vmap maps, the outermost vmap first.
      is_joined: whether the kernel runs only where another kernel computes this call along with others; elsewhere, XLA
        computes the function.
    """

    kernel: Kernel
    function: Callable[..., Any]
    tree: Any
    statics: tuple[tuple[str, Any], ...]
    mapped: tuple[tuple[bool, ...], ...] = ()
    is_joined: bool = False

    def call(self, *arguments: Any) -> Any:
        """The results of the same call for other arguments of the same shapes."""
        results: list[Array] = _primitive.bind(*jax.tree.leaves(arguments), spec=self)
        return results[0] if len(results) == 1 else tuple(results)

    def on_xla(self, *leaves: Array) -> list[Array]:
        def function(*leaves: Array) -> list[Array]:
            return jax.tree.leaves(self.function(*jax.tree.unflatten(self.tree, leaves), **dict(self.statics)))

        for is_mapped in reversed(self.mapped):
            function = _vmapped(function, is_mapped)
        return function(*leaves)

    def native(self, *leaves: Array) -> list[Array]:
        if self.is_joined:
            with use_kernels("xla"):
                return self.on_xla(*leaves)
        arguments = jax.tree.unflatten(self.tree, leaves)
        return jax.tree.leaves(self.kernel.native(*arguments, leading=len(self.mapped), **dict(self.statics)))


def _vmapped(function: Callable[..., list[Array]], mapped: Sequence[bool]) -> Callable[..., list[Array]]:
    def over_all(*leaves: Array) -> list[Array]:
        pairs = zip(leaves, mapped, strict=True)
        inner = [leaf if is_mapped else lax.squeeze(leaf, (0,)) for leaf, is_mapped in pairs]
        return jax.vmap(function, [0 if is_mapped else None for is_mapped in mapped])(*inner)

    return over_all


def with_kernel[**P, R](kernel: Kernel) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a JAX function: the kernel computes the calls that `kernel.takes` accepts.

    The function takes arrays as positional arguments, and statics as keyword arguments.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def decorated(*arguments: P.args, **statics: P.kwargs) -> R:
            if library() is None or not kernel.takes(*arguments, **statics):
                return function(*arguments, **statics)
            result: Any = call(kernel, function, *arguments, **statics)
            return result

        return decorated

    return decorate


def call(kernel: Kernel, function: Callable[..., Any], *arguments: Any, **statics: Any) -> Any:
    """function(*arguments, **statics), computed by the kernel where the lowering allows that."""
    leaves, tree = jax.tree.flatten(arguments)
    spec = Spec(kernel, function, tree, tuple(sorted(statics.items())), is_joined=_are_joined.value)
    return spec.call(*leaves)


@contextlib.contextmanager
def joined_kernels() -> Iterator[None]:
    """A context in which XLA computes calls of kernels, but another kernel may compute them along with others."""
    with _are_joined(True):
        yield


_are_joined = jax.make_user_context(default_value=False)


def spec_of(primitive: Any, params: Mapping[str, Any]) -> Spec | None:
    """The static part of the call that an equation makes; None if the equation is another one."""
    return params["spec"] if primitive is _primitive else None


_primitive = Primitive("jaxdml_kernel")
_primitive.multiple_results = True


@as_one_operation
def _evaluate(*leaves: Array, spec: Spec) -> list[Array]:
    return (_jitted(spec) if spec.kernel.is_of_trace else _jitted_once(spec))(*leaves)


def _jitted(spec: Spec) -> Callable[..., list[Array]]:
    return jax.jit(functools.partial(_primitive.bind, spec=spec))


_jitted_once = functools.lru_cache(maxsize=4096)(_jitted)


def _abstract_eval(*leaves: Any, spec: Spec) -> Any:
    if not jax.sharding.get_abstract_mesh().empty:  # on a mesh the type has a sharding, which tracing finds
        return jax.make_jaxpr(spec.on_xla)(*leaves).out_avals
    sizes = [next(leaf.shape[i] for leaf, is_mapped in zip(leaves, mapped, strict=True) if is_mapped)
             for i, mapped in enumerate(spec.mapped)]  # fmt: skip
    inner = (jax.ShapeDtypeStruct(leaf.shape[len(sizes) :], leaf.dtype) for leaf in leaves)
    found = spec.kernel.result(*jax.tree.unflatten(spec.tree, inner), **dict(spec.statics))
    results = found if isinstance(found, list) else [found]
    return [jax.core.ShapedArray((*sizes, *shape), np.dtype(dtype)) for shape, dtype in results]


def _batch(
    leaves: Sequence[Array], axes: Sequence[int | None], *, spec: Spec
) -> tuple[list[Array], list[int]]:  # fmt: skip
    is_mapped = tuple(axis is not None for axis in axes)
    if spec.kernel.splits(*jax.tree.unflatten(spec.tree, is_mapped)):
        results = jax.vmap(spec.on_xla, list(axes))(*leaves)
        return results, [0] * len(results)
    pairs = zip(leaves, axes, strict=True)
    moved = [lax.expand_dims(x, (0,)) if axis is None else _to_front(x, axis) for x, axis in pairs]
    results = _primitive.bind(*moved, spec=spec._replace(mapped=(is_mapped, *spec.mapped)))
    return results, [0] * len(results)


def _jvp(primals: Sequence[Array], tangents: Sequence[Any], *, spec: Spec) -> tuple[list[Array], Any]:
    """The values and the JAX function's tangents; tangents of integers are float0."""
    instantiated = [np.zeros(x.shape, jax.dtypes.float0) if isinstance(dx, ad.Zero) and not _is_float(x)
                    else ad.instantiate_zeros(dx) for x, dx in zip(primals, tangents, strict=True)]  # fmt: skip
    values, derivatives = jax.jvp(spec.on_xla, tuple(primals), tuple(instantiated))
    return values if spec.kernel.calls_kernels else _primitive.bind(*primals, spec=spec), derivatives


def _is_float(x: Array) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def _to_front(x: Array, axis: int) -> Array:
    return lax.transpose(x, (axis, *(i for i in range(x.ndim) if i != axis)))


def _lower(context: Any, *operands: Any, spec: Spec) -> Any:
    return mlir.lower_fun(spec.on_xla, multiple_results=True)(context, *operands)


def _lower_for_cpu(context: Any, *operands: Any, spec: Spec) -> Any:
    target = target_of(context)
    is_native = target == "device" or (target == "mesh" and spec.kernel.is_replicated)
    return mlir.lower_fun(spec.native if is_native else spec.on_xla, multiple_results=True)(context, *operands)


def target_of(context: Any) -> Literal["file", "device", "mesh"]:
    """The target that a program is lowered for: a file of `jax.export`, a single device, or a mesh.

    In `shard_map` over all axes a program is lowered for a single device. XLA partitions a program for a mesh, and
    cannot partition custom calls. JAX has no public function for the target, so this function reads the context.
    """
    module = context.module_context
    if module.lowering_parameters.for_export:
        return "file"
    axes = module.axis_context
    if isinstance(axes, mlir.SPMDAxisContext):
        return "device" if axes.manual_axes == frozenset(axes.mesh.axis_names) else "mesh"
    return "device" if isinstance(axes, mlir.ShardingContext) and axes.num_devices == 1 else "mesh"


_primitive.def_impl(_evaluate)
_primitive.def_abstract_eval(_abstract_eval)
batching.primitive_batchers[_primitive] = _batch
ad.primitive_jvps[_primitive] = _jvp
mlir.register_lowering(_primitive, _lower)
mlir.register_lowering(_primitive, _lower_for_cpu, platform="cpu")
