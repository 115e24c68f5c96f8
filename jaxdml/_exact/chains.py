"""Joins two quantized products and the program on rows between them into a chain, which one native kernel computes.

In attention, the first product computes scores, the program a softmax, and the second product the weighted sums of
values. A chain keeps a block of rows in the processor's cache: neither scores nor weights exist as whole arrays.

Quantized operators are exact calls, whose equations this module looks into. Joining them changes no bit.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
from jax import lax
from jax.extend.core import Literal

from jaxdml._arithmetic.exact_calls import OPERAND, is_exact_call
from jaxdml._arithmetic.kernel_call import Spec, spec_of, with_kernel
from jaxdml._arithmetic.kernel_library import library
from jaxdml._arithmetic.native import DOT, FLOAT_DOT
from jaxdml._arithmetic.native_chain import CHAIN, Chain, Second
from jaxdml._arithmetic.native_elementwise import QUANTIZE, QUANTIZE_ROWS
from jaxdml._arithmetic.native_rows import RowProgram
from jaxdml._arithmetic.prepared import Prepared
from jaxdml._exact.flat import FlatEqn, FlatVar, Operation
from jaxdml._exact.rows import ROW_PROGRAM, computed, is_reshape

Array = jax.Array
Shape = tuple[int, ...]
CHAINED = Operation("chain")
# The first product has at least so many elements and rows; smaller arrays stay in the cache anyway.
LEAST_ELEMENTS, LEAST_ROWS, LEAST_ROWS_OF_ALL = 2**14, 16, 192
LEAST_BETWEEN_WEIGHTS = 2**21  # elements of the first product: each block of rows reads all weights again


def with_chains(eqns: Sequence[FlatEqn], outvars: Iterable[Any]) -> list[FlatEqn]:
    """The equations, with those of each chain replaced by one."""
    if library() is None or not any(eqn.primitive is ROW_PROGRAM for eqn in eqns):
        return list(eqns)
    opened = [each for eqn in eqns for each in _opened(eqn)]
    uses = _Uses(opened, outvars)
    chain_of: dict[FlatVar, FlatEqn] = {}  # maps the first result of each equation of a chain to the chain
    for eqn in opened:
        for chain, replaced in _chains(eqn, uses) if eqn.primitive is ROW_PROGRAM else ():
            results = [each.outvars[0] for each in replaced]
            if not chain_of.keys() & set(results):
                chain_of |= dict.fromkeys(results, chain)
    if not chain_of:
        return list(eqns)
    kept = []
    for eqn in opened:
        found = chain_of.get(eqn.outvars[0]) if eqn.outvars else None
        if found is None or found.result is eqn.outvars[0]:
            kept.append(found or eqn)
    return kept


# Equations inside exact calls ----------------------------------------------------------------------------------------


def _opened(eqn: FlatEqn) -> list[FlatEqn]:
    """The equations of an exact call that calls a kernel of a chain; any other equation itself."""
    closed = eqn.params["jaxpr"] if is_exact_call(eqn.params) else None
    if closed is None or closed.consts or not _calls_kernel(closed.jaxpr):
        return [eqn]
    made = {var for inner in closed.jaxpr.eqns if inner.primitive is not OPERAND for var in inner.outvars}
    if not all(_is_value(atom) and atom in made for atom in closed.jaxpr.outvars):
        return [eqn]  # a result is an operand or a number
    names: dict[Any, Any] = dict(zip(closed.jaxpr.invars, eqn.invars, strict=True))
    results = dict(zip(closed.jaxpr.outvars, eqn.outvars, strict=True))
    eqns: list[FlatEqn] = []
    for inner in closed.jaxpr.eqns:
        read = tuple(names[atom] if _is_value(atom) else atom for atom in inner.invars)
        if inner.primitive is OPERAND:
            names[inner.outvars[0]] = read[0]
            continue
        values = tuple(results.get(var) or FlatVar(var.aval) for var in inner.outvars)
        names |= zip(inner.outvars, values, strict=True)
        eqns += _opened(FlatEqn(inner.primitive, inner.params, read, values, eqn.scope, is_exact=True))
    return eqns


def _calls_kernel(jaxpr: Any) -> bool:
    return any(
        _spec(eqn, DOT, FLOAT_DOT, QUANTIZE, QUANTIZE_ROWS) is not None
        or (is_exact_call(eqn.params) and _calls_kernel(eqn.params["jaxpr"].jaxpr))
        for eqn in jaxpr.eqns
    )


def _spec(eqn: Any, *kernels: Any) -> Spec | None:
    """The static part of an equation that calls one of the kernels; None for others."""
    spec = spec_of(eqn.primitive, eqn.params)
    return spec if spec and spec.kernel in kernels else None


class _Uses:
    """Which equations compute and read each value."""

    def __init__(self, eqns: Sequence[FlatEqn], outvars: Iterable[Any]) -> None:
        self._makers = {value: eqn for eqn in eqns for value in eqn.outvars}
        self._readers: dict[Any, list[FlatEqn | None]] = defaultdict(list)  # None for the results of all equations
        for eqn in eqns:
            for atom in filter(_is_value, eqn.invars):
                self._readers[atom].append(eqn)
        for atom in filter(_is_value, outvars):
            self._readers[atom].append(None)

    def maker(self, atom: Any) -> list[FlatEqn]:
        """The equation that computes a value, and the views that follow; empty if anything else reads one of them."""
        views: list[FlatEqn] = []
        while _is_value(atom) and len(self._readers[atom]) == 1 and (eqn := self._makers.get(atom)):
            if not _is_view(eqn):
                return [eqn, *views]
            views.insert(0, eqn)
            (atom,) = eqn.invars
        return []

    def reader(self, value: FlatVar) -> list[FlatEqn]:
        """The views of a value, and the only equation that reads them; empty if there are several."""
        views: list[FlatEqn] = []
        while len(self._readers[value]) == 1 and (eqn := self._readers[value][0]):
            if not _is_view(eqn):
                return [*views, eqn]
            views.append(eqn)
            (value,) = eqn.outvars
        return []


def _is_value(atom: Any) -> bool:
    return not isinstance(atom, Literal)


def _is_view(eqn: FlatEqn) -> bool:
    """Whether the result of an equation has the elements of its operand, in the same order."""
    return is_reshape(eqn) or (eqn.primitive.name == "optimization_barrier" and len(eqn.invars) == 1)


# Chains --------------------------------------------------------------------------------------------------------------


def _chains(rows: FlatEqn, uses: _Uses) -> Iterator[tuple[FlatEqn, list[FlatEqn]]]:
    """Yields each chain that a program on rows can be in, and the equations that the chain replaces."""
    *before, quantizer = uses.reader(rows.outvars[0]) or [rows]
    by = _spec(quantizer, QUANTIZE, QUANTIZE_ROWS)
    if by is None:
        return
    products = [uses.reader(value) for value in quantizer.outvars]
    product = products[0][0] if len(products[0]) == 1 else rows
    second = _spec(product, DOT, FLOAT_DOT)
    if second is None or any(len(each) != 1 or each[0] is not product for each in products):
        return
    x, *of_quantize = _arguments(quantizer, by)
    a, *of_second = _arguments(product, second)
    is_by_rows = by.kernel is QUANTIZE_ROWS
    if (a, *of_second[:2])[: len(quantizer.outvars)] != quantizer.outvars:
        return
    if is_by_rows:
        of_second[:2] = None, None
    elif any(grid is not None and math.prod(grid.aval.shape[len(second.mapped) :]) > 1 for grid in of_second[:2]):
        return
    for place, operand in enumerate(rows.invars):
        maker, *views = uses.maker(operand) or [rows]
        first, shape = _spec(maker, FLOAT_DOT), maker.outvars[0].aval.shape
        program = _with_shape(rows.params["program"], shape) if first else None
        if first is None or program is None or not program.views[place] == shape == x.aval.shape == a.aval.shape:
            continue
        others = tuple(atom for i, atom in enumerate(rows.invars) if i != place)
        arguments = tuple(_arguments(maker, first)), others, tuple(of_quantize), Second(*of_second)
        if not _pays(shape, arguments):
            continue
        leaves, tree = jax.tree.flatten(arguments)
        chain = Chain(first, program, place, by, second)
        compute = partial(_chained, tree, chain=chain, shape=operand.aval.shape, **rows.params)
        eqn = FlatEqn(CHAINED, {"compute": compute}, tuple(leaves), product.outvars, rows.scope)
        yield eqn, [maker, *views, rows, *before, quantizer, product]


def _arguments(eqn: FlatEqn, spec: Spec) -> list[Any]:
    """The arguments of the function that an equation calls."""
    return list(jax.tree.unflatten(spec.tree, eqn.invars))


def _with_shape(program: RowProgram, shape: Shape) -> RowProgram | None:
    """The program with a result of this shape, whose dimensions the program's view may join; None if it has another."""
    left, groups = list(shape), []
    for size in program.view:
        group: list[int] = []
        while left and (math.prod(group) < size or left[0] == 1):
            group.append(left.pop(0))
        if math.prod(group) != size:
            return None
        groups.append(group)
    if left or (program.reduces and program.view[-1] != shape[-1]):
        return None
    if any(size not in (1, whole) for view in program.views for size, whole in zip(view, program.view, strict=True)):
        return None  # a row of an operand is longer than that of the result

    def split(view: Shape) -> Shape:
        """A view with each dimension split into those that it joins."""
        parts = (group if size != 1 else [1] * len(group) for size, group in zip(view, groups, strict=True))
        return tuple(size for part in parts for size in part)

    return program._replace(views=tuple(map(split, program.views)), view=shape, shape=shape, overwritten=None)


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
    program: RowProgram, steps: tuple[Any, ...], shape: Shape,
) -> Array:  # fmt: skip
    """The second product of a chain. Each step is computed by its own function.

    Args:
      first: the arguments of the first product.
      others: the operands of the program, without the first product.
      by: the scale and zero point that quantize all results of the program; empty if each row has its own.
      second: the arguments of the second product, without the left operand.
      chain: the calls of the chain.
      program, steps: those of the joined equations.
      shape: the shape in which these equations read the first product.
    """
    scores = chain.first.call(*first)
    operands = list(others)
    operands.insert(chain.place, lax.reshape(scores, shape))
    weights = lax.reshape(computed(*operands, program=program, steps=steps), scores.shape)
    of_second = second if chain.second.kernel is DOT else second[:-2]  # products of floats have no scale
    quantized = chain.quantizer.call(weights, *by)
    return chain.second.call(*quantized, *of_second) if not by else chain.second.call(quantized, *of_second)
