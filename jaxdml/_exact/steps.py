"""Joins a small quantized product with the quantization of its left operand and with the program on its rows.

A step of an RNN multiplies its hidden states by weights and computes the gates and the next states. Each of these calls
takes about as long as what it computes, so one native kernel computes them all.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
from jax import lax

from jaxdml._arithmetic.kernel_call import with_kernel
from jaxdml._arithmetic.kernel_library import library
from jaxdml._arithmetic.native import FLOAT_DOT
from jaxdml._arithmetic.native_elementwise import QUANTIZE, QUANTIZE_ROWS
from jaxdml._arithmetic.native_step import STEP, Step
from jaxdml._arithmetic.prepared import Prepared
from jaxdml._exact.flat import FlatEqn
from jaxdml._exact.kernel_calls import JOINED, Joined, Uses, arguments_of, spec_in, with_joined_calls, with_shape
from jaxdml._exact.rows import computed, statics_of

Array = jax.Array
MOST_ELEMENTS = 2**15  # of the product; a call takes no time beside a larger one


def with_steps(eqns: Sequence[FlatEqn], outvars: Iterable[Any], are_looped: bool = False) -> list[FlatEqn]:
    """The equations, with those of each step replaced by one.

    `are_looped` says that one call may compute all steps of a loop. Only then it computes the smallest products, too.
    """
    if library() is None:
        return list(eqns)
    return with_joined_calls(eqns, outvars, partial(_steps, are_looped=are_looped))


def _steps(rows: FlatEqn, uses: Uses, are_looped: bool) -> Iterator[Joined]:
    """Yields each step whose program is `rows`, and the equations that the step replaces."""
    for place, operand in enumerate(rows.invars):
        maker, *views = uses.maker(operand) or [rows]
        spec, shape = spec_in(maker, FLOAT_DOT), maker.outvars[0].aval.shape
        if spec is None or spec.mapped or len(shape) != 2 or math.prod(shape) > MOST_ELEMENTS:
            continue
        if spec.is_joined and not are_looped:
            continue
        a, *of_product = arguments_of(maker, spec)
        quantizer, *after = uses.maker(a) or [rows]
        by = spec_in(quantizer, QUANTIZE, QUANTIZE_ROWS)
        program = rows.params["program"]
        if program.views[place] != shape or len(program.results[0].view) != 2:
            program = with_shape(program, shape)
        if by is None or by.mapped or program is None or program.views[place] != shape:
            continue
        x, *of_quantizer = arguments_of(quantizer, by)
        if x.aval.shape != a.aval.shape or not isinstance(of_product[2], Prepared):
            continue
        if by.kernel is QUANTIZE_ROWS:
            if (a, *of_product[:2]) != quantizer.outvars or not all(map(uses.maker, of_product[:2])):
                continue
            of_product[:2] = None, None
        elif any(grid is not None and math.prod(grid.aval.shape) > 1 for grid in of_product[:2]):
            continue
        others = tuple(atom for i, atom in enumerate(rows.invars) if i != place)
        leaves, tree = jax.tree.flatten((x, tuple(of_quantizer), tuple(of_product), others))
        step = Step(by, spec, program, place)
        compute = partial(_computed, tree, step=step, shape=operand.aval.shape, **statics_of(rows.params))
        eqn = FlatEqn(JOINED, {"compute": compute, "step": step, "tree": tree}, tuple(leaves), rows.outvars, rows.scope)
        yield eqn, [quantizer, *after, maker, *views, rows]


def _computed(tree: Any, *leaves: Array, **statics: Any) -> Any:
    return computed_step(*jax.tree.unflatten(tree, leaves), **statics)


@with_kernel(STEP)
def computed_step(
    x: Array, by: tuple[Any, ...], product: tuple[Any, ...], others: tuple[Array, ...], *, step: Step,
    shape: tuple[int, ...], **of_program: Any,
) -> Any:  # fmt: skip
    """The results of the program of a step. Each part is computed by its own function.

    Args:
      x: the left operand of the product, in floats.
      by: the scale and zero point that quantize x; empty if each row has its own.
      product: the arguments of the product, without the left operand.
      others: the arrays of the program, without the product.
      step: the calls of the step.
      shape: the shape in which the joined equations read the product.
      of_program: the statics of the joined equations.
    """
    if by:
        y = step.product.call(step.quantizer.call(x, *by), *product)
    else:
        y = step.product.call(*step.quantizer.call(x), *product[2:])
    arrays = list(others)
    arrays.insert(step.place, lax.reshape(y, shape))
    return computed(*arrays, **of_program)
