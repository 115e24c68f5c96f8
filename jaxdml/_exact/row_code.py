"""The instructions of a program that runs on rows, and the slots of its values."""

import math
from collections.abc import Hashable, Mapping, Sequence

from jaxdml._arithmetic.native_rows import CODES, MOST_SLOTS, REDUCTIONS, RowProgram, RowResult

Shape = tuple[int, ...]


class RowCode:
    """Collects operands and distinct instructions. Operands, then the instructions' values, are numbered from 0.

    Attributes:
      operands: the values that the program reads, each with the shape in which the program reads it.
      results: the results; each slot is the number of a value.
    """

    def __init__(self, operands: Sequence[tuple[Hashable, Shape]]) -> None:
        self.operands = tuple(operands)
        self.instructions: dict[tuple[str, tuple[int, ...]], int] = {}
        self.results: list[RowResult] = []

    def add(self, code: str, values: tuple[int, ...]) -> int:
        """The number of the value that an instruction computes."""
        return self.instructions.setdefault((code, values), len(self.operands) + len(self.instructions))

    def followed_by(self, other: "RowCode", replaced: Mapping[int, int]) -> tuple["RowCode", list[int], list[int]]:
        """This code, then another one.

        Args:
          other: the other code.
          replaced: maps operands of the other code to the values of this code that they are.

        Returns:
          The code, without results, and the new number of each value of this code and of the other.
        """
        kept = [each for place, each in enumerate(other.operands) if place not in replaced]
        code = RowCode(list(dict.fromkeys((*self.operands, *kept))))
        places = {each: place for place, each in enumerate(code.operands)}
        mine = [places[each] for each in self.operands]
        for name, values in self.instructions:
            mine.append(code.add(name, tuple(mine[value] for value in values)))
        theirs = [mine[replaced[i]] if i in replaced else places[each] for i, each in enumerate(other.operands)]
        for name, values in other.instructions:
            theirs.append(code.add(name, tuple(theirs[value] for value in values)))
        return code, mine, theirs

    def program(self, view: Shape) -> RowProgram | None:
        """The program; None if the kernel cannot run it."""
        found = self._numbers()
        if found is None or not self._is_wide_where_needed(view):
            return None
        numbers, slots = found
        results = (each._replace(slot=slots[each.slot], zero_point=slots[each.zero_point]) for each in self.results)
        views = [each for _, each in self.operands]
        while not self._reduces() and _makes_longer_rows(view, views):
            view, *views = (_with_longer_rows(each) for each in (view, *views))
        return RowProgram(numbers, tuple(views), view, tuple(results))

    def _is_wide_where_needed(self, view: Shape) -> bool:
        """Whether each reduction reads a wide value, and results are wide if and only if rows have several columns.

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
        return all(is_wide[each.slot] == (view[-1] > 1) for each in self.results)

    def _reduces(self) -> bool:
        return any(code in REDUCTIONS for code, _ in self.instructions)

    def _numbers(self) -> tuple[tuple[int, ...], Mapping[int, int]] | None:
        """The instructions as numbers, and the slot of each value; None if there are too few slots.

        A slot is free again after the last instruction that reads its value, unless the value is a result.
        """
        last_use = {value: place for place, (_, values) in enumerate(self.instructions) for value in values}
        slots = {value: value for value in range(len(self.operands))}
        fixed = {place for place, (_, view) in enumerate(self.operands) if math.prod(view[:-1]) == 1}  # loaded once
        fixed |= {each.slot for each in self.results}
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


def _makes_longer_rows(view: Shape, views: Sequence[Shape]) -> bool:
    """Whether the last two dimensions can become one, because each operand has all their elements or one of them."""
    last = {each[-2:] for each in views}
    return len(view) > 1 and view[-2:] in last and last <= {view[-2:], (1, 1)}


def _with_longer_rows(view: Shape) -> Shape:
    return (*view[:-2], math.prod(view[-2:]))
