"""The native kernel of two matrix products with a program on rows between them, such as those of attention.

The first product is of floats. The program runs on its rows, the results are quantized, and the second product
multiplies them. A block of rows passes through all steps before the next block begins, so that the first product needs
memory for a few blocks only.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from jaxdml._arithmetic.kernel_call import Kernel, Spec
from jaxdml._arithmetic.native import grid, matrix
from jaxdml._arithmetic.native_call import Result, library_call
from jaxdml._arithmetic.native_rows import RowProgram
from jaxdml._arithmetic.prepared import Prepared

Array = jax.Array


class Chain(NamedTuple):
    """The static part of a chain.

    Attributes:
      first: the call of the first product, which is of floats.
      program: the program on rows, with one result; the first product is its array `place`, and views have the
        product's rank.
      place: the place of the first product among the arrays of the program.
      quantizer: the call that quantizes the results of the program.
      second: the call of the second product.
    """

    first: Spec
    program: RowProgram
    place: int
    quantizer: Spec
    second: Spec


class Second(NamedTuple):
    """The arguments of the second product, without the left operand.

    Attributes:
      a_scale, a_zero_point: those of the left operand; None if each row is quantized by its own range.
      output_scale, output_zero_point: those of the product; None if it is of floats.
    """

    a_scale: Any
    a_zero_point: Any
    b: Any
    b_scale: Any
    b_zero_point: Any
    bias: Any
    output_scale: Any = None
    output_zero_point: Any = None


def _dtype(chain: Chain) -> Any:
    """The type of the second product."""
    return dict(chain.second.statics).get("output_dtype", np.float32)


def _run(
    first: tuple[Any, ...], others: tuple[Array, ...], by: tuple[Any, ...], second: Second, *, chain: Chain,
    leading: int, **_: Any,
) -> Array:  # fmt: skip
    a, a_scale, a_zero_point, b, b_scale, b_zero_point, bias = first
    by_scale, by_zero_point = by or (None, None)
    program, ranks = chain.program, len(chain.program.results[0].view)
    quantized_dtype = dict(chain.quantizer.statics).get("output_dtype", np.uint8)
    views = [view for place, view in enumerate(program.views) if place != chain.place]

    def matrices_of(spec: Spec) -> tuple[int, int]:
        """The rank of a product's matrices, and the number of leading dimensions of vmap, also inside the chain."""
        return ranks - len(spec.mapped), leading + len(spec.mapped)

    operands = (
        a,
        *grid(a_scale, a_zero_point, a.dtype, *matrices_of(chain.first)),
        *matrix(b, b_scale, b_zero_point, bias, np.float32, *matrices_of(chain.first)),
        *grid(by_scale, by_zero_point, quantized_dtype, *matrices_of(chain.quantizer)),
        *grid(second.a_scale, second.a_zero_point, quantized_dtype, *matrices_of(chain.second)),
        *matrix(second.b, second.b_scale, second.b_zero_point, second.bias, _dtype(chain), *matrices_of(chain.second)),
        *grid(second.output_scale, second.output_zero_point, _dtype(chain), *matrices_of(chain.second)),
        *(lax.reshape(x, (*x.shape[:leading], *view)) for x, view in zip(others, views, strict=True)),
    )
    return library_call(
        "chained",
        leading,
        _result(first, others, by, second, chain=chain),
        operands,
        b_is_packed=isinstance(b, Prepared),
        c_is_packed=isinstance(second.b, Prepared),
        is_by_rows=not by,
        place=np.int64(chain.place),
        **program.attributes,
    )


def _result(first: Any, others: Any, by: Any, second: Second, *, chain: Chain, **_: Any) -> Result:
    return (*chain.program.results[0].view[:-1], second.b.shape[-1]), _dtype(chain)


def _splits(first: Any, others: Any, by: Any, second: Any) -> bool:
    """Whether vmap maps the second product alone. The steps before it then run once."""
    return not any(jax.tree.leaves((first, others, by)))


CHAIN = Kernel(_run, _result, splits=_splits)
