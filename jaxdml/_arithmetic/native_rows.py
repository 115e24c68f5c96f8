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
FUNCTIONS = ("exp", "exp2", "expm1", "logistic", "tanh", "log", "log1p", "erf", "erfc")  # XLA's loops take longest
# The least number of elements in a program's rows, times the functions that it computes; for fewer, XLA's loops are as
# fast.
LEAST_ELEMENTS = 256


class RowResult(NamedTuple):
    """A result of a program.

    Attributes:
      slot: the slot with its value after the last instruction: floats, or steps (quotients by a scale) if the result
        has 8-bit integers.
      view: the shape in which the kernel writes the result; the last extent is 1 or the program's columns.
      shape: the shape of the result.
      dtype: the name of its type: float32, int8 or uint8.
      zero_point: the slot of the zero point of 8-bit integers; None for floats.
    """

    slot: int
    view: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str = "float32"
    zero_point: int | None = None

    @property
    def numbers(self) -> tuple[int, int]:
        """The slots of the value and of the zero point, as the kernel reads them."""
        return self.slot, self.slot if self.zero_point is None else self.zero_point


class RowProgram(NamedTuple):
    """A program and the shapes of its arrays.

    Attributes:
      numbers: for each instruction its code, the slot that it writes, and up to three slots that it reads. The operands
        are in the first slots.
      operands: for each operand the place of an array, and the first column of the array that the program reads.
      views: the shape of each array for the kernel. Each extent but the last is 1 or the extent of the rows; the last
        is 1 or the length of the array's rows.
      columns: the length of the program's rows.
      results: the results, which have the same rows.
      overwritten: the place of an array that nothing else reads, over which the kernel may write the first result; or
        None.
    """

    numbers: tuple[int, ...]
    operands: tuple[tuple[int, int], ...]
    views: tuple[tuple[int, ...], ...]
    columns: int
    results: tuple[RowResult, ...]
    overwritten: int | None = None

    @property
    def reduces(self) -> bool:
        """Whether an instruction reduces rows."""
        return any(CODES[code] in REDUCTIONS for code in self.numbers[::5])

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of a call that runs the program."""
        return {
            "columns": np.int64(self.columns),
            "operands": int64s([number for operand in self.operands for number in operand]),
            "program": int64s(self.numbers),
            "results": int64s([number for result in self.results for number in result.numbers]),
        }


def _run(*arrays: Array, leading: int, program: RowProgram, **_: Any) -> tuple[Array, ...]:
    viewed = [lax.reshape(x, (*x.shape[:leading], *view)) for x, view in zip(arrays, program.views, strict=True)]
    views = [(result.view, result.dtype) for result in program.results]
    computed = library_calls("rows", leading, views, viewed, program.overwritten, **program.attributes)
    return tuple(
        lax.reshape(y, (*y.shape[:leading], *result.shape)) for y, result in zip(computed, program.results, strict=True)
    )


def _results(*arrays: Any, program: RowProgram, **_: Any) -> list[Result]:
    return [(result.shape, result.dtype) for result in program.results]


def _takes(*arrays: Any, program: RowProgram, **_: Any) -> bool:
    elements = program.columns * math.prod(program.results[0].view[:-1])
    return elements * max(1, sum(CODES[code] in FUNCTIONS for code in program.numbers[::5])) >= LEAST_ELEMENTS


ROWS = Kernel(_run, _results)
LARGE_ROWS = Kernel(_run, _results, _takes)


def program_of(code: str, shape: tuple[int, ...]) -> RowProgram:
    """The program of one function of one array, as one row."""
    row = (math.prod(shape),)
    return RowProgram((CODES.index(code), 1, 0, 0, 0), ((0, 0),), (row,), row[0], (RowResult(1, row, shape),))
