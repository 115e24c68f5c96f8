"""The instructions of a program that runs on rows, and the slots of its values."""

import math
from collections.abc import Hashable, Sequence

from jaxdml._arithmetic.native_rows import CODES, MOST_SLOTS, REDUCTIONS, RowProgram

Shape = tuple[int, ...]


class RowCode:
    """Collects operands and distinct instructions. Operands, then results, are numbered from 0.

    Attributes:
      operands: the values that the program reads, each with the shape in which the program reads it.
    """

    def __init__(self, operands: Sequence[tuple[Hashable, Shape]]) -> None:
        self.operands = tuple(operands)
        self.instructions: dict[tuple[str, tuple[int, ...]], int] = {}

    def add(self, code: str, values: tuple[int, ...]) -> int:
        """The number of the value that an instruction computes."""
        return self.instructions.setdefault((code, values), len(self.operands) + len(self.instructions))

    def program(self, view: Shape, shape: Shape) -> RowProgram | None:
        """The program, whose result is that of the last instruction; None if the kernel cannot run it."""
        numbers = self._numbers()
        if numbers is None or not self._is_wide_where_needed(view):
            return None
        views = [each for _, each in self.operands]
        while not self._reduces() and _makes_longer_rows(view, views):
            view, *views = (_with_longer_rows(each) for each in (view, *views))
        return RowProgram(numbers, tuple(views), view, shape)

    def _is_wide_where_needed(self, view: Shape) -> bool:
        """Whether each reduction reads a wide value, and the result is wide if and only if rows have several columns.

        A wide value has an element for each column of a row; a narrow value has one for the whole row. The kernel has
        no instruction for an equation that broadcasts one value of a row to all columns. Such a value stays narrow, and
        the kernel can neither reduce the value nor write it as a wide result.
        """
        is_wide = [each[-1] > 1 for _, each in self.operands]
        for code, values in self.instructions:
            is_any_wide = any(is_wide[value] for value in values)
            if code in REDUCTIONS and not is_any_wide:
                return False
            is_wide.append(is_any_wide and code not in REDUCTIONS)
        return is_wide[-1] == (view[-1] > 1)

    def _reduces(self) -> bool:
        return any(code in REDUCTIONS for code, _ in self.instructions)

    def _numbers(self) -> tuple[int, ...] | None:
        """The instructions as numbers. A slot is free again after the last instruction that reads its value."""
        last_use = {value: place for place, (_, values) in enumerate(self.instructions) for value in values}
        slots = {value: value for value in range(len(self.operands))}
        fixed = {place for place, (_, view) in enumerate(self.operands) if math.prod(view[:-1]) == 1}  # loaded once
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
        return tuple(numbers) if count <= MOST_SLOTS else None


def _makes_longer_rows(view: Shape, views: Sequence[Shape]) -> bool:
    """Whether the last two dimensions can become one, because each operand has all their elements or one of them."""
    last = {each[-2:] for each in views}
    return len(view) > 1 and view[-2:] in last and last <= {view[-2:], (1, 1)}


def _with_longer_rows(view: Shape) -> Shape:
    return (*view[:-2], math.prod(view[-2:]))
