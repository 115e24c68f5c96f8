"""The native kernel that runs a program of elementwise functions and reductions on rows.

Rows lie along the last dimension. All instructions run on one block of rows before the next block begins, so that
intermediate results stay in the processor's caches.
"""

import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from jaxdml._arithmetic.kernel_call import Kernel
from jaxdml._arithmetic.native_call import Result, int64s, library_calls

Array = jax.Array

# In the order of RowCode in native/src/kernels.h.
CODES = (
    "abs", "neg", "sign", "floor", "ceil", "round", "sqrt", "rsqrt", "exp", "exp2", "expm1", "logistic",
    "tanh", "log", "log1p", "erf", "erfc", "square", "is_finite", "not", "to_float", "float_of_integer",
    "onnxruntime_logistic", "onnxruntime_tanh",
    "add", "add_integers", "steps", "sub", "mul", "div", "max", "min", "eq", "ne", "lt", "le", "gt", "ge", "and", "or",
    "select_n", "clamp", "reduce_sum", "reduce_max", "reduce_min",
)  # fmt: skip
REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min")
MOST_SLOTS = 64  # the maximum number of slots of a program; a slot holds one value at a time
MOST_RESULTS = 8  # the maximum number of results of a program
MOST_REDUCED = 2**16  # the maximum length of a row that is reduced


class RowResult(NamedTuple):
    """A result of a program.

    Attributes:
      slot: the slot with its value: floats, or steps (quotients by a scale) if the result has 8-bit integers.
      shape: its shape.
      dtype: the name of its type: float32, int8 or uint8.
      zero_point: the slot of the zero point of 8-bit integers.
    """

    slot: int
    shape: tuple[int, ...]
    dtype: str = "float32"
    zero_point: int = 0


class RowProgram(NamedTuple):
    """A program and the shapes of its arrays.

    Attributes:
      numbers: for each instruction its code, the slot that it writes, and up to three slots that it reads. The operands
        are in the first slots.
      views: the shape of each operand for the kernel. Each extent is 1 or the extent of the rows, and the last is 1 or
        the length of a row.
      view: the shape in which the kernel writes the results.
      results: the results.
      overwritten: the place of an operand that nothing else reads, over which the kernel may write the first result; or
        None.
    """

    numbers: tuple[int, ...]
    views: tuple[tuple[int, ...], ...]
    view: tuple[int, ...]
    results: tuple[RowResult, ...]
    overwritten: int | None = None

    @property
    def reduces(self) -> bool:
        """Whether an instruction reduces rows."""
        return any(CODES[code] in REDUCTIONS for code in self.numbers[::5])


def _run(*operands: Array, leading: int, program: RowProgram, **_: Any) -> tuple[Array, ...]:
    viewed = [lax.reshape(x, (*x.shape[:leading], *view)) for x, view in zip(operands, program.views, strict=True)]
    numbers = np.asarray(program.numbers, np.int64)
    slots = int64s([number for each in program.results for number in (each.slot, each.zero_point)])
    of_views = [(program.view, each.dtype) for each in program.results]
    found = library_calls("rows", leading, of_views, viewed, program.overwritten, program=numbers, results=slots)
    pairs = zip(found, program.results, strict=True)
    return tuple(lax.reshape(y, (*y.shape[:leading], *each.shape)) for y, each in pairs)


def _result(*operands: Any, program: RowProgram, **_: Any) -> list[Result]:
    return [(each.shape, each.dtype) for each in program.results]


ROWS = Kernel(_run, _result)


def program_of(code: str, shape: tuple[int, ...]) -> RowProgram:
    """The program of one function of one array, as one row."""
    row = (math.prod(shape),)
    return RowProgram((CODES.index(code), 1, 0, 0, 0), (row,), row, (RowResult(1, shape),))
