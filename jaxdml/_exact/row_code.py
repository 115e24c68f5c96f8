"""The instructions of a program that runs on rows, and the slots of its values."""

import math
from collections.abc import Sequence

from jaxdml._arithmetic.native_rows import CODES, MOST_SLOTS, REDUCTIONS, RowProgram, RowResult

Shape = tuple[int, ...]


class RowCode:
    """Collects operands and distinct instructions. Operands, then results of instructions, are numbered from 0.

    Attributes:
      operands: for each value that the program reads, the place of an array and the first column that it reads.
      views: the shape of each array for the kernel.
    """

    def __init__(self, operands: Sequence[tuple[int, int]], views: Sequence[Shape]) -> None:
        self.operands = tuple(operands)
        self.views = tuple(views)
        self.instructions: dict[tuple[str, tuple[int, ...]], int] = {}

    def add(self, code: str, values: tuple[int, ...]) -> int:
        """The number of the value that an instruction computes."""
        return self.instructions.setdefault((code, values), len(self.operands) + len(self.instructions))

    def program(self, columns: int, results: Sequence[RowResult]) -> RowProgram | None:
        """The program; None if the kernel cannot run it.

        `results` have the numbers of values in place of slots.
        """
        if not all(result.slot >= len(self.operands) for result in results):
            return None  # no instruction computes the result
        found = self._numbers([result.slot for result in results])
        if found is None or not self._are_wide_where_needed(results):
            return None
        numbers, slots = found
        views, written = self.views, [result.view for result in results]
        columns = columns if any(self._wide()) else 1
        while not self._reduces() and _makes_longer_rows((*views, *written), written[0]):
            views, written = tuple(map(_with_longer_rows, views)), list(map(_with_longer_rows, written))
            columns = written[0][-1]
        placed = tuple(RowResult(slots[x.slot], view, x.shape) for x, view in zip(results, written, strict=True))
        return RowProgram(numbers, self.operands, views, columns, placed)

    def _wide(self) -> list[bool]:
        """For each value, whether it has an element for each column of a row, and not one for the whole row."""
        is_wide = [self.views[array][-1] > 1 for array, _ in self.operands]
        for code, values in self.instructions:
            is_wide.append(code not in REDUCTIONS and any(is_wide[value] for value in values))
        return is_wide

    def _are_wide_where_needed(self, results: Sequence[RowResult]) -> bool:
        """Whether each reduction reads a wide value, and results are wide if and only if rows have several columns.

        The kernel has no instruction for an equation that broadcasts one value of a row to all columns. Such a value
        stays narrow, and the kernel can neither reduce the value nor write it as a wide result.
        """
        is_wide = self._wide()
        reduced = (values[0] for code, values in self.instructions if code in REDUCTIONS)
        return all(map(is_wide.__getitem__, reduced)) and all(is_wide[x.slot] == (x.view[-1] > 1) for x in results)

    def _reduces(self) -> bool:
        return any(code in REDUCTIONS for code, _ in self.instructions)

    def _numbers(self, results: Sequence[int]) -> tuple[tuple[int, ...], dict[int, int]] | None:
        """The instructions as numbers, and the slot of each value. None if there are too few slots.

        A slot is free again after the last instruction that reads its value, unless the value is a result.
        """
        last_use = {value: place for place, (_, values) in enumerate(self.instructions) for value in values}
        slots = {value: value for value in range(len(self.operands))}
        # These are loaded once.
        fixed = {place for place, (array, _) in enumerate(self.operands) if math.prod(self.views[array][:-1]) == 1}
        fixed |= set(results)
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
