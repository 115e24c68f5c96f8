"""Joins two quantized products and the program on rows between them into a chain, which one native kernel computes.

In attention, the first product computes scores, the program a softmax, and the second product the weighted sums of
values. A chain keeps a block of rows in the processor's cache: neither scores nor weights exist as whole arrays.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
from jax import lax

from jaxdml._arithmetic.kernel_call import with_kernel
from jaxdml._arithmetic.kernel_library import library
from jaxdml._arithmetic.native import DOT, FLOAT_DOT
from jaxdml._arithmetic.native_chain import CHAIN, Chain, Second
from jaxdml._arithmetic.native_elementwise import QUANTIZE, QUANTIZE_ROWS
from jaxdml._arithmetic.native_rows import RowProgram
from jaxdml._arithmetic.prepared import Prepared
from jaxdml._exact.flat import FlatEqn
from jaxdml._exact.kernel_calls import JOINED, Joined, Uses, arguments_of, spec_in, with_joined_calls, with_shape
from jaxdml._exact.rows import computed, statics_of

Array = jax.Array
Shape = tuple[int, ...]
# The first product has at least so many elements and rows; smaller arrays stay in the cache anyway.
LEAST_ELEMENTS, LEAST_ROWS, LEAST_ROWS_OF_ALL = 2**14, 16, 192
LEAST_BETWEEN_WEIGHTS = 2**21  # elements of the first product: each block of rows reads all weights again


def with_chains(eqns: Sequence[FlatEqn], outvars: Iterable[Any]) -> list[FlatEqn]:
    """The equations, with those of each chain replaced by one."""
    return list(eqns) if library() is None else with_joined_calls(eqns, outvars, _chains)


def _chains(rows: FlatEqn, uses: Uses) -> Iterator[Joined]:
    """Yields each chain that a program on rows can be in, and the equations that the chain replaces."""
    if len(rows.outvars) > 1:
        return
    *before, quantizer = uses.reader(rows.outvars[0]) or [rows]
    by = spec_in(quantizer, QUANTIZE, QUANTIZE_ROWS)
    if by is None:
        return
    products = [uses.reader(value) for value in quantizer.outvars]
    product = products[0][0] if len(products[0]) == 1 else rows
    second = spec_in(product, DOT, FLOAT_DOT)
    if second is None or any(len(each) != 1 or each[0] is not product for each in products):
        return
    x, *of_quantize = arguments_of(quantizer, by)
    a, *of_second = arguments_of(product, second)
    is_by_rows = by.kernel is QUANTIZE_ROWS
    if (a, *of_second[:2])[: len(quantizer.outvars)] != quantizer.outvars:
        return
    if is_by_rows:
        of_second[:2] = None, None
    elif any(grid is not None and math.prod(grid.aval.shape[len(second.mapped) :]) > 1 for grid in of_second[:2]):
        return
    for place, operand in enumerate(rows.invars):
        maker, *views = uses.maker(operand) or [rows]
        first, shape = spec_in(maker, FLOAT_DOT), maker.outvars[0].aval.shape
        program = with_shape(rows.params["program"], shape) if first else None
        if first is None or program is None or not program.views[place] == shape == x.aval.shape == a.aval.shape:
            continue
        others = tuple(atom for i, atom in enumerate(rows.invars) if i != place)
        arguments = tuple(arguments_of(maker, first)), others, tuple(of_quantize), Second(*of_second)
        if not _pays(shape, arguments):
            continue
        leaves, tree = jax.tree.flatten(arguments)
        chain = Chain(first, program, place, by, second)
        compute = partial(_chained, tree, chain=chain, shape=operand.aval.shape, **statics_of(rows.params))
        eqn = FlatEqn(JOINED, {"compute": compute}, tuple(leaves), product.outvars, rows.scope)
        yield eqn, [maker, *views, rows, *before, quantizer, product]


def _pays(shape: Shape, arguments: tuple[Any, ...]) -> bool:
    """Whether a chain with a first product of this shape is faster than its parts."""
    (_, _, _, b, *_), *_, second = arguments
    *batch, rows, columns = shape
    matrices = [each for each in (b, second.b) if not isinstance(each, Prepared)]
    if rows < LEAST_ROWS or any(math.prod(each.aval.shape[:-2]) < math.prod(batch) for each in matrices):
        return False  # products that share a matrix are faster as one
    elements = math.prod(shape)
    if len(matrices) < 2:
        return elements >= LEAST_BETWEEN_WEIGHTS
    return elements >= LEAST_ELEMENTS and elements // columns >= LEAST_ROWS_OF_ALL


def _chained(tree: Any, *leaves: Array, **statics: Any) -> Array:
    return chained(*jax.tree.unflatten(tree, leaves), **statics)


@with_kernel(CHAIN)
def chained(
    first: tuple[Any, ...], others: tuple[Array, ...], by: tuple[Any, ...], second: Second, *, chain: Chain,
    program: RowProgram, steps: tuple[Any, ...], results: tuple[int, ...], shape: Shape,
) -> Array:  # fmt: skip
    """The second product of a chain. Each step is computed by its own function.

    Args:
      first: the arguments of the first product.
      others: the operands of the program, without the first product.
      by: the scale and zero point that quantize all results of the program; empty if each row has its own.
      second: the arguments of the second product, without the left operand.
      chain: the calls of the chain.
      program, steps, results: those of the joined equations.
      shape: the shape in which these equations read the first product.
    """
    scores = chain.first.call(*first)
    operands = list(others)
    operands.insert(chain.place, lax.reshape(scores, shape))
    weights = lax.reshape(computed(*operands, program=program, steps=steps, results=results), scores.shape)
    of_second = second if chain.second.kernel is DOT else second[:-2]  # products of floats have no scale
    quantized = chain.quantizer.call(weights, *by)
    return chain.second.call(*quantized, *of_second) if not by else chain.second.call(quantized, *of_second)
