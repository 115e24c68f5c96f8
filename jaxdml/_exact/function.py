"""`jaxdml.exact`: a function whose results have the same bits everywhere."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
from jax.extend import source_info_util
from jax.extend.core import InconclusiveDimensionOperation

from jaxdml._arithmetic.one_operation import as_one_operation
from jaxdml._arithmetic.sharding import on_mesh_of
from jaxdml._exact.fast_math import fast_math_flag
from jaxdml._exact.interpreter import PRODUCTS, Problem, evaluate, problems
from jaxdml.errors import ExactError, api_boundary, in_other_byte_order

CHOICES = ("refuse", "xla")
source_info_util.register_exclusion(str(Path(__file__).parents[1]))  # errors name the user's lines


@api_boundary
def exact[**P, R](f: Callable[P, R], *, products: Literal["refuse", "xla"] = "refuse") -> Callable[P, R]:
    """Returns f with exact floats: the same bits on every processor, eager, jitted, vmapped or sharded.

    The returned function traces f, and computes each primitive by its rule in docs/exact_rules.md. Calls inside f are
    included, and so are the bodies of scan, cond and while. ``jax.grad(exact(f))`` is ``jax.grad(f)`` as XLA
    computes it; ``exact(jax.grad(f))`` is exact.

    Args:
      f: a function of pytrees of arrays that JAX can trace. Floats are float32, bfloat16 or float16.
        Arguments that are not arrays, such as Python numbers, are passed to f as they are.
      products: how to treat float matrix products and convolutions, for which there is no rule. "refuse" raises an
        error; "xla" leaves them to XLA, with XLA's bits.

    Returns:
      A function with f's signature, to be called eagerly or under jit, vmap, grad and shard_map.

    Raises:
      ExactError: if f is not callable, products is neither "refuse" nor "xla", or XLA_FLAGS turns fast math on. A call
        of the returned function raises it, before anything runs, if f computes in float64, if f uses a primitive
        without a rule, if a sum has more than 2**26 addends, if the number of factors of a product or the size of the
        windows of a sum is unknown, if JAX cannot trace f with a symbolic size, or if an array has the byte order of
        other machines.

    Source: DirectX's floating-point rules, for subnormals,
    https://learn.microsoft.com/windows/win32/direct3d11/floating-point-rules
    """
    if not callable(f):
        given = f"of type {type(f).__name__}" if hasattr(f, "shape") else f"{f!r:.60}"
        raise ExactError(f"exact: f is {given}, expected a function: write exact(f)(x), not exact(f(x))")
    if products not in CHOICES:
        raise ExactError(f'exact: products is {products!r}, expected "refuse" or "xla"')
    if flag := fast_math_flag():
        raise ExactError(f"exact: XLA_FLAGS has {flag}, which lets XLA change any float; remove the flag")

    def check(jaxpr: Any) -> None:
        of_floats = (each for each in problems(jaxpr) if each.kind != "varies")
        found = [each for each in of_floats if not (products == "xla" and _is_of_product(each))]
        if texts := tuple(dict.fromkeys(each.text for each in found)):
            raise ExactError("\n".join(f"exact: {text}" for text in texts), texts)

    return interpreted(f, check)


def _is_of_product(problem: Problem) -> bool:
    return problem.kind == "rule" and problem.primitive in PRODUCTS


def _is_array(x: Any) -> bool:
    """Whether x is an array or a NumPy scalar that JAX can trace. Types such as np.float32 have a dtype, too."""
    try:
        jax.typeof(x)
    except (TypeError, ValueError):  # ValueError: x has __jax_array__, a method that only jax.numpy calls
        return False
    return hasattr(x, "dtype")  # Python numbers have none


@contextlib.contextmanager
def _symbols_in_words() -> Iterator[None]:
    """Adds a remedy where JAX cannot trace a function with a symbolic size."""
    try:
        yield
    except InconclusiveDimensionOperation as error:
        what = str(error).partition("\n")[0].rstrip(".")
        remedy = (
            "export it with a number as this size; in place of lax.pmean over the axis of a vmap, write lax.psum / n"
        )
        raise ExactError(f"exact: JAX cannot trace the function: {what}: {remedy}, where n is the size") from error


def interpreted[**P, R](f: Callable[P, R], check: Callable[[Any], None]) -> Callable[P, R]:
    """f evaluated by the rules, after `check` has been called with its jaxpr. XLA computes equations without a rule."""

    @functools.wraps(f)
    @api_boundary
    @as_one_operation
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if wrong := in_other_byte_order("args", args) or in_other_byte_order("kwargs", kwargs):
            raise ExactError(f"exact: {wrong}")
        leaves, structure = jax.tree.flatten((args, kwargs))
        arrays = {place: leaf for place, leaf in enumerate(leaves) if _is_array(leaf)}  # others may be options

        def flat(*traced: Any) -> Any:
            given = dict(zip(arrays, traced, strict=True))
            every = [given.get(place, leaf) for place, leaf in enumerate(leaves)]
            args, kwargs = jax.tree.unflatten(structure, every)
            return f(*args, **kwargs)

        with _symbols_in_words():
            if len(arrays) == len(leaves):
                # f is traced without `flat`, so that JAX's errors name f. The partial is a new object in each call, so
                # that JAX does not reuse a cached trace.
                closed, shapes = jax.make_jaxpr(functools.partial(f), return_shape=True)(*args, **kwargs)
            else:
                closed, shapes = jax.make_jaxpr(flat, return_shape=True)(*arrays.values())
        check(closed.jaxpr)
        # What f closes over may be traced, for example by grad; then it is an operand of the custom derivative.
        captured = {place: x for place, x in enumerate(closed.consts) if isinstance(x, jax.core.Tracer)}

        def evaluated_by(evaluator: Callable[[Any, list[Any], Sequence[Any]], list[Any]]) -> Callable[..., Any]:
            def evaluated(captured_values: list[Any], *inputs: Any) -> Any:
                given = dict(zip(captured, captured_values, strict=True))
                constants = [given.get(place, x) for place, x in enumerate(closed.consts)]
                return jax.tree.unflatten(jax.tree.structure(shapes), evaluator(closed.jaxpr, constants, inputs))

            return evaluated

        computed = jax.custom_jvp(evaluated_by(evaluate))
        by_xla = evaluated_by(lambda jaxpr, constants, inputs: jax.core.eval_jaxpr(jaxpr, constants, *inputs))

        @computed.defjvp
        def _derivative(primals: Any, tangents: Any) -> Any:
            return computed(*primals), jax.jvp(by_xla, primals, tangents)[1]

        with on_mesh_of((*closed.consts, *arrays.values())):
            return computed(list(captured.values()), *arrays.values())

    return call
