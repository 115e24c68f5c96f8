"""Marks jitted calls whose results already have the same bits everywhere, so that `jaxdml.exact` keeps the calls.

`jaxdml.exact` recognizes such a call in a jaxpr by its name and its marked operands. The name alone is not enough: JAX
gives the derivative of a jitted function the same name. The primitive `jaxdml_operand` marks operands, and
differentiation removes the marks, so a derivative is evaluated by the rules like any other call.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

PREFIX = "jaxdml_"  # prefixes the names of jitted functions whose results have the same bits everywhere

OPERAND = Primitive("jaxdml_operand")
OPERAND.def_impl(lambda x: x)
OPERAND.def_abstract_eval(lambda x: x)
ad.primitive_jvps[OPERAND] = lambda primals, tangents: (primals[0], tangents[0])
batching.primitive_batchers[OPERAND] = lambda operands, axes: (OPERAND.bind(*operands), axes[0])
mlir.register_lowering(OPERAND, lambda context, x: [x])


def named[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """The function with a new name and marked operands, so that `is_exact_call` recognizes its calls under jit."""

    @functools.wraps(function)
    def marked(*args: P.args, **kwargs: P.kwargs) -> R:
        args, kwargs = jax.tree.map(_marked, (args, kwargs))
        return function(*args, **kwargs)

    marked.__name__ = f"{PREFIX}{function.__name__}"
    return marked


def _marked(x: Any) -> Any:
    return OPERAND.bind(x) if isinstance(x, jax.core.Tracer) else x


def is_exact_call(params: Mapping[str, Any]) -> bool:
    """Whether the parameters of a call in a jaxpr are those of a jitted function that `named` returned."""
    if not str(params.get("name", "")).startswith(PREFIX) or not hasattr(params.get("jaxpr"), "eqns"):
        return False
    closed = params["jaxpr"]
    marked = {eqn.invars[0] for eqn in closed.eqns if eqn.primitive is OPERAND}
    floats = {var for var in getattr(closed, "jaxpr", closed).invars if _is_float(var.aval)}
    return bool(marked) and floats <= marked


def _is_float(aval: Any) -> bool:
    return hasattr(aval, "dtype") and jnp.issubdtype(aval.dtype, jnp.floating)


def in_one_call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """function(*arguments), as one exact call if JAX traces any argument. Other arguments are constants of the call."""
    leaves, tree = jax.tree.flatten(arguments)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, jax.core.Tracer)]
    if not places:
        return function(*arguments)

    def operator(*traced: Any) -> Any:
        given = dict(zip(places, traced, strict=True))
        return function(*jax.tree.unflatten(tree, [given.get(place, leaf) for place, leaf in enumerate(leaves)]))

    return jax.jit(named(operator))(*(leaves[place] for place in places))
