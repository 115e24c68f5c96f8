"""The table that maps primitives of JAX to their rules.

A rule takes the primitive and its parameters, and returns a function of arrays. Neither its float32 operands nor its
float32 results are subnormal.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.rounding import flushed
from jaxdml._arithmetic.sharding import broadcast_like
from jaxdml._exact import (
    arithmetic,
    error_function,
    exponentials,
    hyperbolic,
    logarithms,
    order,
    powers,
    products,
    scatters,
    sums,
)
from jaxdml._exact.conversions import DOUBLE, FLOATS, converted, is_float, narrowed, widened
from jaxdml._exact.inverse_trigonometry import acos, asin, atan, atan2
from jaxdml._exact.remainders import remainder
from jaxdml._exact.trigonometry import cos, sin, tan

Array = jax.Array
Params = Mapping[str, Any]
Computed = Callable[..., Any]
Rule = Callable[[Any, Params], Computed]


def in_one_shape(function: Callable[..., Array]) -> Computed:
    """The jitted function of operands, which are first broadcast to one shape."""
    compiled = jax.jit(function)

    def compute(*operands: Array) -> Array:
        like = max(operands, key=np.ndim)
        like = jnp.broadcast_to(like, lax.broadcast_shapes(*(x.shape for x in operands)))
        return compiled(*(broadcast_like(x, like) for x in operands))

    return compute


def elementwise(function: Callable[..., Array]) -> Rule:
    """The rule of a function of float32 arrays of one shape."""
    compiled = in_one_shape(function)

    def compute(*operands: Array) -> Array:
        return narrowed(compiled(*map(widened, operands)), operands[0].dtype)

    return lambda primitive, params: compute


def of_own_type(function: Callable[..., Array]) -> Rule:
    """The rule of a function of arrays of one shape and one type of floats."""
    compiled = in_one_shape(function)
    return lambda primitive, params: compiled


def as_it_is(primitive: Any, params: Params) -> Computed:
    """The primitive itself: a rule for primitives that do not round."""
    bound = functools.partial(primitive.bind, **primitive.get_bind_params(dict(params)))
    return (lambda *operands: list(bound(*operands))) if primitive.multiple_results else bound


def gathered(primitive: Any, params: Params) -> Computed:
    """A gather. The barrier hides the indices: XLA:CPU folds bitcasts of constant gathers in a wrong order."""
    gather = as_it_is(primitive, params)
    return lambda x, indices: gather(x, lax.optimization_barrier(indices))


def wide_product(primitive: Any, params: Params) -> Computed:
    """An integer product, computed in 32 or 64 bits, and wrapped to its own type."""

    def compute(*operands: Array) -> Array:
        dtype = jnp.dtype(params["preferred_element_type"] or operands[0].dtype)
        wide = dtype if dtype.itemsize > 4 else jnp.dtype(jnp.int32)
        integers = (lax.convert_element_type(x, wide) for x in operands)
        product = primitive.bind(*integers, **{**params, "preferred_element_type": wide})
        return lax.convert_element_type(product, dtype)

    return compute


def widened_on_cuda(primitive: Any, params: Params) -> Computed:
    """A product of integers of 8 bits or less. On CUDA, some of XLA's int8 kernels return twice the correct sums."""
    forms = {"cuda": wide_product(primitive, params), "default": as_it_is(primitive, params)}
    return lambda *operands: lax.platform_dependent(*operands, **forms)


def is_sum_of_products(name: str, params: Params) -> bool:
    """Whether a primitive adds up products. A dot_general that contracts no axis multiplies, and adds nothing."""
    if name == "dot_general":
        return bool(params["dimension_numbers"][0][0])
    return name in ("conv_general_dilated", "ragged_dot_general")


def has_rule(name: str, params: Params) -> bool:
    """Whether the table has the rule of a primitive with these parameters."""
    applies_a_function = name == "scatter" and params["update_jaxpr"] is not None  # x.at[...].apply
    is_of_named_axis = name in COLLECTIVES and not all(isinstance(axis, int) for axis in params["axes"])
    is_known = name in RULES and not is_sum_of_products(name, params)
    return is_known and not applies_a_function and not is_of_named_axis


def types_without_rules(name: str, params: Params, dtypes: Iterable[Any]) -> list[np.dtype[Any]]:
    """The types of floats, among those of a primitive's operands and results, for which it has no rule.

    Moves of float64, and its conversion to other floats, have rules: with jax_enable_x64, JAX passes Python numbers as
    float64 to its own functions, which convert them.
    """
    is_rounding = name == "convert_element_type" and params["new_dtype"] in FLOATS
    known = (*FLOATS, DOUBLE) if is_rounding or name in MOVES else FLOATS
    return [np.dtype(dtype) for dtype in dtypes if is_float(dtype) and np.dtype(dtype) not in known]


def outer_product(primitive: Any, params: Params) -> Computed:
    """A dot_general that contracts no axis, so each element is a single product."""
    _, (batch_a, batch_b) = params["dimension_numbers"]

    def compute(a: Array, b: Array) -> Array:
        dtype = params["preferred_element_type"] or a.dtype
        a, b = (converted(x, dtype) for x in (a, b))
        free_a, free_b = (
            [axis for axis in range(x.ndim) if axis not in batch] for x, batch in ((a, batch_a), (b, batch_b))
        )
        a, b = lax.transpose(a, (*batch_a, *free_a)), lax.transpose(b, (*batch_b, *free_b))
        a = lax.expand_dims(a, range(a.ndim, a.ndim + len(free_b)))
        b = lax.expand_dims(b, range(len(batch_b), len(batch_b) + len(free_a)))
        shape = lax.broadcast_shapes(a.shape, b.shape)
        return RULES["mul"](primitive, {})(jnp.broadcast_to(a, shape), jnp.broadcast_to(b, shape))

    return compute


def in_float32(primitive: Any, params: Params) -> Computed:
    """The primitive itself, on float32: all processors agree on comparisons, floor and the like."""

    def compute(*operands: Array) -> Array:
        result = primitive.bind(*map(widened, operands), **params)
        return narrowed(result, operands[0].dtype) if is_float(result.dtype) else result

    return compute


def ordered(find: Callable[..., Array]) -> Rule:
    """The rule of a reduction that compares: the primitive itself, on integers."""

    def rule(primitive: Any, params: Params) -> Computed:
        def compute(x: Array) -> Array:
            found = find(widened(x), functools.partial(primitive.bind, **params))
            return narrowed(found, x.dtype) if is_float(found.dtype) else found

        return compute

    return rule


def ordered_windows(find: Callable[..., Array]) -> Rule:
    """The rule of the maximum or minimum of windows. Windows of one element, as those that subsample, select."""
    general = ordered(find)

    def rule(primitive: Any, params: Params) -> Computed:
        are_single = all(size == 1 for size in (*params["window_dimensions"], *params["base_dilation"]))
        if not are_single or any(any(pair) for pair in params["padding"]):
            return general(primitive, params)

        def compute(x: Array) -> Array:
            selected = lax.slice(x, (0,) * x.ndim, x.shape, params["window_strides"])
            return narrowed(find(widened(selected), lambda keys: keys), x.dtype)

        return compute

    return rule


def reduced(reduce: Callable[[Array, Params], Array]) -> Rule:
    """The rule of a sum or product of many elements."""

    def rule(primitive: Any, params: Params) -> Computed:
        return lambda x: narrowed(reduce(widened(x), params), x.dtype)

    return rule


def scattered(function: Callable[..., Array]) -> Rule:
    """The rule of a scatter that combines elements with updates."""

    def rule(primitive: Any, params: Params) -> Computed:
        def compute(x: Array, indices: Array, updates: Array) -> Array:
            return narrowed(function(widened(x), indices, widened(updates), params), x.dtype)

        return compute

    return rule


def _running(x: Array, params: Params) -> Array:
    axis = params["axis"]
    return sums.running(x, functools.partial(lax.cumsum, axis=axis, reverse=params["reverse"]), axis)


def _top(primitive: Any, params: Params, nan: np.int32) -> Computed:
    def compute(x: Array) -> list[Array]:
        values, places = order.top(widened(x), params["k"], params.get("axis", -1), nan)
        return [narrowed(values, x.dtype), places]

    return compute


MOVES = (
    "abs", "neg", "copy", "stop_gradient", "select_n", "is_finite", "reshape", "transpose", "broadcast_in_dim",
    "squeeze", "expand_dims", "slice", "dynamic_slice", "dynamic_update_slice", "concatenate", "pad", "rev",
    "scatter", "split", "iota", "optimization_barrier", "device_put", "sharding_constraint",
    "reshard", "mesh_cast", "pvary", "pcast", "unstack", "stack", "tile", "name", "debug_callback", "debug_print",
    "jaxdml_kernel", "jaxdml_operand",  # exact by themselves
)  # fmt: skip
COLLECTIVES = ("psum", "pmax", "pmin")  # of numbered axes; in exact(vmap(f)), the axis of the vmap becomes a number
COMPARES = ["eq", "ne", "lt", "le", "lt_to", "le_to", "gt", "ge", "floor", "ceil", "round", "sign"]
FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    "add": arithmetic.added,
    "add_any": arithmetic.added,
    "sub": arithmetic.subtracted,
    "mul": arithmetic.multiplied,
    "div": arithmetic.divided,
    "square": lambda x: arithmetic.multiplied(x, x),
    "one_minus_square": arithmetic.one_minus_square,
    "sqrt": arithmetic.rooted,
    "rsqrt": arithmetic.inverse_root,
    "max": order.larger,
    "min": order.smaller,
    "clamp": order.clamped,
    "exp": exponentials.exp,
    "exp2": exponentials.exp2,
    "expm1": exponentials.expm1,
    "logistic": exponentials.logistic,
    "tanh": exponentials.tanh,
    "log": logarithms.log,
    "log1p": logarithms.log1p,
    "erf": error_function.erf,
    "erfc": error_function.erfc,
    "erf_inv": error_function.erf_inv,
    "sin": sin,
    "cos": cos,
    "tan": tan,
    "asin": asin,
    "acos": acos,
    "atan": atan,
    "atan2": atan2,
    "sinh": hyperbolic.sinh,
    "cosh": hyperbolic.cosh,
    "asinh": hyperbolic.asinh,
    "acosh": hyperbolic.acosh,
    "atanh": hyperbolic.atanh,
    "pow": powers.power,
    "polynomial": powers.polynomial,
    "rem": remainder,
}
RULES: Mapping[str, Rule] = {
    **dict.fromkeys(MOVES, as_it_is),
    **dict.fromkeys(COMPARES, in_float32),
    **{name: elementwise(function) for name, function in FUNCTIONS.items()},
    "integer_pow": lambda primitive, params: elementwise(functools.partial(powers.integer_power, y=params["y"]))(
        primitive, params
    ),
    # lax.empty. In a derivative of cond, a branch returns it for a value that only other branches compute.
    **dict.fromkeys(("empty", "empty2"), lambda primitive, params: lambda: lax.full_like(primitive.bind(**params), 0)),
    "nextafter": of_own_type(order.next_after),
    "gather": gathered,
    "reduce_precision": in_float32,
    "convert_element_type": lambda primitive, params: lambda x: converted(x, params["new_dtype"]),
    "bitcast_convert_type": lambda primitive, params: lambda x: flushed_if_float32(primitive.bind(x, **params)),
    **dict.fromkeys(("reduce_sum", "psum"), reduced(lambda x, params: sums.total(x, params["axes"]))),
    "cumsum": reduced(_running),
    "reduce_window_sum": reduced(sums.windowed),
    "reduce_prod": reduced(lambda x, params: products.total(x, params["axes"])),
    "cumprod": reduced(lambda x, params: products.running(x, params["axis"], params["reverse"])),
    "scatter-add": scattered(scatters.summed),
    "scatter-sub": scattered(scatters.subtracted),
    "scatter-max": scattered(scatters.largest),
    "scatter-min": scattered(scatters.smallest),
    **dict.fromkeys(("reduce_max", "cummax"), ordered(order.largest)),
    **dict.fromkeys(("reduce_min", "cummin"), ordered(order.smallest)),
    # pmax and pmin themselves cannot be exported with a symbolic size.
    "pmax": reduced(lambda x, params: order.largest(x, lambda keys: lax.reduce_max(keys, params["axes"]))),
    "pmin": reduced(lambda x, params: order.smallest(x, lambda keys: lax.reduce_min(keys, params["axes"]))),
    "reduce_window_max": ordered_windows(order.largest),
    "reduce_window_min": ordered_windows(order.smallest),
    "argmax": ordered(functools.partial(order.place, nan=order.GREATEST)),
    "argmin": ordered(functools.partial(order.place, nan=order.LEAST)),
    "dot_general": outer_product,  # others are sums of products, which have no rule
    "sort": lambda primitive, params: functools.partial(order.stable, primitive, dict(params)),
    "top_k": functools.partial(_top, nan=order.GREATEST),
    "top_k_of_negation": functools.partial(_top, nan=order.LEAST),  # interpreter.py puts it in place of top_k(-y)
    "flush": lambda primitive, params: flushed,  # flat.py adds it where an input is read
}


def flushed_if_float32(x: Array) -> Array:
    """x, flushed if it is float32; 16-bit floats keep their subnormal numbers."""
    return flushed(x) if x.dtype == jnp.float32 else x


def left_to_xla(primitive: Any, params: Params) -> Computed:
    """A primitive without a rule: XLA computes it, and subnormal results are flushed."""

    def compute(*operands: Array) -> Any:
        return jax.tree.map(flushed_if_float32, as_it_is(primitive, params)(*operands))

    return compute
