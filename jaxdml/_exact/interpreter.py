"""A jaxpr evaluated by the rules. Calls are inlined; loops and branches get bodies that are evaluated by the rules."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import source_info_util

from jaxdml._arithmetic.rounding import SMALLEST_NORMAL
from jaxdml._exact.conversions import FLOATS, is_float
from jaxdml._exact.rules import RULES, as_it_is, flushed_if_float32, flushed_product
from jaxdml._exact.sums import LARGEST_COUNT, count_of

Array = jax.Array
CALLS = frozenset((
    "jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
    "checkpoint", "remat2",
))  # fmt: skip
LOOPS = frozenset(("scan", "while", "cond"))
SUMMED_AXES: Mapping[str, Callable[[Any], Sequence[int]]] = {
    "reduce_sum": lambda params: params["axes"],
    "cumsum": lambda params: (params["axis"],),
}  # of sums whose integers depend on how many addends there are
PRODUCTS = frozenset(("dot_general", "conv_general_dilated"))
REMEDIES = {
    "dot_general": 'quantize the product with jaxdml.ptq, or write exact(f, products="xla") to have XLA\'s bits',
    "conv_general_dilated": 'quantize the convolution with jaxdml.ptq, or write exact(f, products="xla")',
    "log2": "write jnp.log(x) * (1 / jnp.log(2))",
    "cbrt": "write jnp.sign(x) * jnp.abs(x) ** (1 / 3)",
    "tan": "write jnp.sin(x) / jnp.cos(x)",
    "sinh": "write (jnp.exp(x) - jnp.exp(-x)) / 2",
    "cosh": "write (jnp.exp(x) + jnp.exp(-x)) / 2",
    "reduce_prod": "write jnp.exp(jnp.log(x).sum()) for positive x, or a jax.lax.scan that multiplies",
    "cumprod": "write jnp.exp(jnp.cumsum(jnp.log(x))) for positive x, or a jax.lax.scan that multiplies",
    "scatter-add": "write a sum over one-hot rows, such as (jax.nn.one_hot(i, n)[..., None] * x[:, None]).sum(0)",
    "psum": "call exact's result outside of shard_map; sums over sharded axes are exact there",
    "shard_map": "put exact inside: jax.shard_map(exact(f), ...)",
}
GENERAL_REMEDY = "compute it outside of exact, or of functions that docs/exact.md lists"
DOUBLE_REMEDY = "convert it to float32 with .astype(jnp.float32), or turn jax_enable_x64 off"


# What has no rule ----------------------------------------------------------------------------------------------------


def problems(jaxpr: Any, products: str, scope: str = "") -> Iterator[str]:
    """Says what of a jaxpr has no rule: primitive, place and remedy."""
    for eqn in jaxpr.eqns:
        inside = "/".join(filter(None, (scope, str(eqn.source_info.name_stack))))
        if eqn.primitive.name in CALLS | LOOPS:
            for inner in inner_jaxprs(eqn.params):
                yield from problems(inner, products, inside)
        elif problem := _problem(eqn, products):
            place = source_info_util.summarize(eqn.source_info)
            yield f"{problem[0]}{f' in {inside}' if inside else ''} ({place}): {problem[1]}"


def _problem(eqn: Any, products: str) -> tuple[str, str] | None:
    name = eqn.primitive.name
    types = [np.dtype(var.aval.dtype) for var in (*eqn.invars, *eqn.outvars) if _is_of_floats(var)]
    if other := [dtype for dtype in types if dtype not in FLOATS]:
        remedy = DOUBLE_REMEDY if other[0] == np.float64 else "use float32, bfloat16 or float16"
        return f"{name} of {other[0]}", remedy
    if not types or rule_of(eqn.primitive, eqn.params, products):
        if types and name in SUMMED_AXES:
            return _problem_of_sum(eqn.invars[0].aval.shape, SUMMED_AXES[name](eqn.params))
        return None
    if name in PRODUCTS:
        return f"no rule for the float products of {name}", REMEDIES[name]
    return f"no rule for {name} of {types[0]}", REMEDIES.get(name, GENERAL_REMEDY)


def _problem_of_sum(shape: Sequence[Any], axes: Sequence[int]) -> tuple[str, str] | None:
    count = count_of(shape, axes)
    if not isinstance(count, int):
        return f"a sum of {count} addends", "export the function with a number as the size of a summed axis"
    if count > LARGEST_COUNT:
        return f"a sum of more than {LARGEST_COUNT:,} addends", "sum parts, then the sums of the parts"
    return None


def _is_of_floats(var: Any) -> bool:
    return hasattr(var.aval, "dtype") and is_float(var.aval.dtype)


def inner_jaxprs(params: Mapping[str, Any]) -> Iterator[Any]:
    """The jaxprs among an equation's parameters."""
    for value in params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if hasattr(each, "eqns"):
                yield getattr(each, "jaxpr", each)


# Evaluation ----------------------------------------------------------------------------------------------------------


def rule_of(primitive: Any, params: Mapping[str, Any], products: str) -> Callable[..., Any] | None:
    """The function of arrays that computes a primitive on floats; None if there is no rule."""
    name = primitive.name
    if name in RULES:
        return RULES[name](primitive, params)
    if name in PRODUCTS and products == "xla":
        return flushed_product(primitive, params)
    return None


def evaluate(jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Any], products: str) -> list[Any]:
    """The results of a jaxpr. Its float32 constants and inputs are flushed first."""
    values: dict[Any, Any] = {}

    def read(atom: Any) -> Any:
        return _literal(atom.val, atom.aval) if isinstance(atom, jax.extend.core.Literal) else values[atom]

    values |= zip(jaxpr.constvars, map(flushed_if_float32, map(jax.numpy.asarray, constants)), strict=True)
    values |= zip(jaxpr.invars, map(flushed_if_float32, map(jax.numpy.asarray, inputs)), strict=True)
    for eqn in jaxpr.eqns:
        with jax.named_scope(str(eqn.source_info.name_stack)):
            results = _computed(eqn, [read(atom) for atom in eqn.invars], products)
        values |= zip(eqn.outvars, results, strict=True)
    return [read(atom) for atom in jaxpr.outvars]


def _computed(eqn: Any, operands: list[Any], products: str) -> Sequence[Any]:
    name, params = eqn.primitive.name, eqn.params
    if name in CALLS:
        inner = next(value for value in params.values() if hasattr(value, "eqns"))
        return evaluate(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), operands, products)
    if name in LOOPS:
        compute: Callable[..., Any] = as_it_is(eqn.primitive, _with_rules(params, products))
    elif any(map(_is_of_floats, (*eqn.invars, *eqn.outvars))):
        compute = rule_of(eqn.primitive, params, products)  # type: ignore[assignment]  # `problems` has looked
    else:
        compute = as_it_is(eqn.primitive, params)
    results = compute(*operands)
    return results if isinstance(results, list | tuple) else [results]


def _with_rules(params: Mapping[str, Any], products: str) -> dict[str, Any]:
    """The parameters of a loop or branch, whose jaxprs are replaced by ones that the rules make of them."""

    def replaced(value: Any) -> Any:
        if isinstance(value, tuple | list) and any(hasattr(each, "eqns") for each in value):
            return type(value)(map(replaced, value))
        if not hasattr(value, "eqns"):
            return value

        def body(*inputs: Any) -> list[Any]:
            return evaluate(value.jaxpr, value.consts, inputs, products)

        return jax.make_jaxpr(body)(*(_struct(var.aval) for var in value.jaxpr.invars))

    return {key: replaced(value) for key, value in params.items()}


def _struct(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=bool(getattr(aval, "weak_type", False)))


def _literal(value: Any, aval: Any) -> Any:
    """A literal as an array of its type, flushed."""
    array = np.asarray(value, aval.dtype)
    is_subnormal = array.dtype == np.float32 and bool(np.abs(array) < SMALLEST_NORMAL)
    return np.copysign(np.float32(0), array) if is_subnormal else array
