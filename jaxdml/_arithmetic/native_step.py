"""The native kernel of a small quantized product, the quantization of its left operand, and a program on its rows.

As several calls, these would take longer to check than to compute.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.kernel_call import Kernel, Spec
from jaxdml._arithmetic.native import grid, matrix, takes_float_dot
from jaxdml._arithmetic.native_call import Result, int64s, library_calls
from jaxdml._arithmetic.native_rows import RowProgram

Array = jax.Array


class Step(NamedTuple):
    """The static part of a step.

    Attributes:
      quantizer: the call that quantizes the left operand of the product.
      product: the call of the product, which is of floats and has two dimensions.
      program: the program on the product's rows.
      place: the place of the product among the arrays of the program.
    """

    quantizer: Spec
    product: Spec
    program: RowProgram
    place: int


class Loop(NamedTuple):
    """How steps follow each other.

    Attributes:
      steps: the number of steps.
      arguments: for the left operand, and for each array of the program but the product: CONSTANT, SEQUENCE, or the
        number of the result that replaces it after the first step.
      sequences: the numbers of the results that have an element for each step; others are those of the last step.
      is_reversed: whether the last elements of sequences come first.
    """

    steps: int
    arguments: tuple[int, ...]
    sequences: tuple[int, ...] = ()
    is_reversed: bool = False


CONSTANT, SEQUENCE = -1, -2


def run(
    x: Array, by: tuple[Any, ...], product: tuple[Any, ...], others: Sequence[Array], step: Step, loop: Loop
) -> tuple[Array, ...]:
    """The results of the steps of a loop, in the shapes of their views."""
    a_scale, a_zero_point, b, b_scale, b_zero_point, bias = product
    by_scale, by_zero_point = by or (None, None)
    dtype = dict(step.quantizer.statics).get("output_dtype", np.uint8)
    program = step.program
    views = [view for place, view in enumerate(program.views) if place != step.place]
    firsts = [(loop.steps,) if kind == SEQUENCE else () for kind in loop.arguments[1:]]
    operands = (
        x,
        *grid(by_scale, by_zero_point, dtype, 2, 0),
        *grid(a_scale, a_zero_point, dtype, 2, 0),
        *matrix(b, b_scale, b_zero_point, bias, np.float32, 2, 0),
        *(lax.reshape(each, (*first, *view)) for each, first, view in zip(others, firsts, views, strict=True)),
    )
    return library_calls(
        "steps",
        0,
        [((*((loop.steps,) * (i in loop.sequences)), *result.view), jnp.float32)
         for i, result in enumerate(program.results)],
        operands,
        arguments=int64s(loop.arguments),
        count=np.int64(loop.steps),
        is_by_rows=not by,
        is_reversed=loop.is_reversed,
        place=np.int64(step.place),
        sequences=int64s(loop.sequences),
        width=np.int64(b.shape[-1]),
        **program.attributes,
    )  # fmt: skip


def _run(
    x: Array, by: tuple[Any, ...], product: tuple[Any, ...], others: tuple[Array, ...], *, step: Step, **_: Any
) -> tuple[Array, ...]:
    computed = run(x, by, product, others, step, Loop(1, (CONSTANT,) * (1 + len(others))))
    return tuple(lax.reshape(y, result.shape) for y, result in zip(computed, step.program.results, strict=True))


def _results(*_: Any, step: Step, **__: Any) -> list[Result]:
    return [(result.shape, jnp.float32) for result in step.program.results]


def takes(x: Any, by: Any, product: Any, others: Any, **_: Any) -> bool:
    """Whether the kernel takes the product of a step."""
    return takes_float_dot(x, *product)


def splits(*_: Any) -> bool:
    """Whether vmap maps the parts of the step instead of the step: always, as the kernel has a single product."""
    return True


STEP = Kernel(_run, _results, takes, calls_kernels=True, splits=splits)
