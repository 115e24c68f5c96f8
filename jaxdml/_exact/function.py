"""`jaxdml.exact`: a function whose results have the same bits everywhere."""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax

from jaxdml._exact.fast_math import fast_math_flag
from jaxdml._exact.interpreter import evaluate, problems
from jaxdml.errors import ExactError, api_boundary

PRODUCTS = ("refuse", "xla")


@api_boundary
def exact[**P, R](f: Callable[P, R], *, products: Literal["refuse", "xla"] = "refuse") -> Callable[P, R]:
    """Returns f with exact floats: the same bits on every processor, eager, jitted, vmapped or sharded.

    The result traces f, and computes each primitive by the rule that docs/exact.md gives. Calls inside f are included,
    and so are the bodies of scan, cond and while. ``jax.grad(exact(f))`` is ``jax.grad(f)`` with XLA's floats;
    ``exact(jax.grad(f))`` is exact.

    Args:
      f: a function of pytrees of arrays and numbers, which JAX can trace. Its floats are float32, bfloat16 or float16.
      products: what becomes of float matrix products and convolutions, for which there is no rule. "refuse" makes them
        an error; "xla" leaves them to XLA, with XLA's bits.

    Returns:
      A function with f's signature, to be called eagerly or below jit, vmap, grad and shard_map.

    Raises:
      ExactError: here, if products is another word, or if XLA_FLAGS turns fast math on; when the result is called, and
        before anything runs, if f uses a primitive without a rule, or float64.

    Source: DirectX's floating-point rules, for subnormals,
    https://learn.microsoft.com/windows/win32/direct3d11/floating-point-rules
    """
    if products not in PRODUCTS:
        raise ExactError(f'exact: products is {products!r}, expected "refuse" or "xla"')
    if flag := fast_math_flag():
        raise ExactError(f"exact: XLA_FLAGS has {flag}, which lets XLA change any float; remove the flag")

    @functools.wraps(f)
    @api_boundary
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        leaves, structure = jax.tree.flatten((args, kwargs))

        def flat(*leaves: Any) -> Any:
            args, kwargs = jax.tree.unflatten(structure, leaves)
            return f(*args, **kwargs)

        closed, shapes = jax.make_jaxpr(flat, return_shape=True)(*leaves)
        if found := tuple(dict.fromkeys(problems(closed.jaxpr, products))):
            raise ExactError("\n".join(f"exact: {each}" for each in found), found)

        @jax.custom_jvp
        def computed(*leaves: Any) -> Any:
            results = evaluate(closed.jaxpr, closed.consts, leaves, products)
            return jax.tree.unflatten(jax.tree.structure(shapes), results)

        @computed.defjvp
        def _derivative(primals: Any, tangents: Any) -> Any:
            return computed(*primals), jax.jvp(flat, primals, tangents)[1]

        return computed(*leaves)

    return call
