"""The instructions of a program that runs on rows, and the slots of its values."""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import Literal

from jaxdml._arithmetic.native_rows import CODES, MOST_SLOTS, REDUCTIONS, RowProgram, RowResult

Shape = tuple[int, ...]


class RowArray(NamedTuple):
    """An array that a program reads, and its shape for the kernel. Arrays of the same name are the same."""

    name: Hashable
    view: Shape


def array_of(atom: Any, view: Shape) -> RowArray:
    """The array of an atom; equal literals are the same array."""
    if isinstance(atom, Literal):
        aval: Any = atom.aval
        number = np.asarray(atom.val, aval.dtype)
        return RowArray((number.dtype.name, number.tobytes()), view)
    return RowArray(atom, view)


class RowOperand(NamedTuple):
    """A value that a program reads: columns of an array, from the column `first` on."""

    array: RowArray
    first: int = 0


class RowCode:
    """Collects operands and distinct instructions. Operands, then results of instructions, are numbered from 0.

    Attributes:
      rows: the shape of the rows.
      operands: what the program reads.
      arrays: the distinct arrays of the operands.
      results: the results of the program, with the numbers of values in place of slots.
    """

    def __init__(self, rows: Shape, operands: Sequence[RowOperand]) -> None:
        self.rows = rows
        self.operands = tuple(operands)
        self.arrays = tuple(dict.fromkeys(operand.array for operand in operands))
        self.instructions: dict[tuple[str, tuple[int, ...]], int] = {}
        self.results: list[RowResult] = []

    def add(self, code: str, values: tuple[int, ...]) -> int:
        """The number of the value that an instruction computes."""
        return self.instructions.setdefault((code, values), len(self.operands) + len(self.instructions))

    def followed_by(self, other: "RowCode", replaced: Mapping[int, int]) -> tuple["RowCode", list[int], list[int]]:
        """This code, then another one on the same rows.

        Args:
          other: the other code.
          replaced: maps operands of the other code to the values of this code that they are.

        Returns:
          The code, without results, and the new number of each value of this code and of the other.
        """
        kept = [each for place, each in enumerate(other.operands) if place not in replaced]
        code = RowCode(self.rows, list(dict.fromkeys((*self.operands, *kept))))
        places = {each: place for place, each in enumerate(code.operands)}
        mine = [places[each] for each in self.operands]
        for name, values in self.instructions:
            mine.append(code.add(name, tuple(mine[value] for value in values)))
        theirs = [mine[replaced[i]] if i in replaced else places[each] for i, each in enumerate(other.operands)]
        for name, values in other.instructions:
            theirs.append(code.add(name, tuple(theirs[value] for value in values)))
        return code, mine, theirs

    def program(self) -> RowProgram | None:
        """The program; None if the kernel cannot run it."""
        if not all(result.slot >= len(self.operands) for result in self.results):
            return None  # no instruction computes the result
        found = self._numbers()
        if found is None or not self._are_wide_where_needed():
            return None
        numbers, slots = found
        places = {array: place for place, array in enumerate(self.arrays)}
        operands = tuple((places[array], first) for array, first in self.operands)
        views, written = [array.view for array in self.arrays], [result.view for result in self.results]
        columns = self.rows[-1] if any(self._wide()) else 1
        while not self._reduces() and _makes_longer_rows((*views, *written), written[0]):
            views, written = list(map(_with_longer_rows, views)), list(map(_with_longer_rows, written))
            columns = written[0][-1]
        results = tuple(
            each._replace(slot=slots[each.slot], zero_point=slots.get(each.zero_point), view=view)
            for each, view in zip(self.results, written, strict=True)
        )
        return RowProgram(numbers, operands, tuple(views), columns, results)

    def _wide(self) -> list[bool]:
        """For each value, whether it has an element for each column of a row, and not one for the whole row."""
        is_wide = [operand.array.view[-1] > 1 for operand in self.operands]
        for code, values in self.instructions:
            is_wide.append(code not in REDUCTIONS and any(is_wide[value] for value in values))
        return is_wide

    def _are_wide_where_needed(self) -> bool:
        """Whether each reduction reads a wide value, and results are wide if and only if rows have several columns.

        The kernel has no instruction for an equation that broadcasts one value of a row to all columns. Such a value
        stays narrow, and the kernel can neither reduce the value nor write it as a wide result.
        """
        is_wide = self._wide()
        reduced = (values[0] for code, values in self.instructions if code in REDUCTIONS)
        return all(map(is_wide.__getitem__, reduced)) and all(is_wide[x.slot] == (x.view[-1] > 1) for x in self.results)

    def _reduces(self) -> bool:
        return any(code in REDUCTIONS for code, _ in self.instructions)

    def _numbers(self) -> tuple[tuple[int, ...], dict[int | None, int]] | None:
        """The instructions as numbers, and the slot of each value. None if there are too few slots.

        A slot is free again after the last instruction that reads its value, unless the value is a result.
        """
        last_use = {value: place for place, (_, values) in enumerate(self.instructions) for value in values}
        slots: dict[int | None, int] = {value: value for value in range(len(self.operands))}
        # Operands of a single row are loaded once, and results are stored at the end: their slots stay theirs.
        fixed = {place for place, each in enumerate(self.operands) if math.prod(each.array.view[:-1]) == 1}
        fixed |= {result.slot for result in self.results}
        free: list[int] = []
        count = len(slots)
        numbers: list[int] = []
        for place, ((code, values), result) in enumerate(self.instructions.items()):
            if not free:
                free.append(count)
                count += 1
            slots[result] = free.pop()
            read = [slots[value] for value in values]
            numbers += [CODES.index(code), slots[result], *read, *[0] * (3 - len(read))]
            free += {slots[value] for value in values if last_use[value] == place and value not in fixed}
        return (tuple(numbers), slots) if count <= MOST_SLOTS else None


def _makes_longer_rows(views: Sequence[Shape], last: Shape) -> bool:
    """Whether the last two dimensions can become one, because each array has all their elements or one of them."""
    ends = {each[-2:] for each in views}
    return len(last) > 1 and last[-2:] in ends and ends <= {last[-2:], (1, 1)}


def _with_longer_rows(view: Shape) -> Shape:
    return (*view[:-2], math.prod(view[-2:]))
