"""Joins programs on rows with each other, with the sums of products that they read, and with quantizers behind them.

A convolution with a float result gives int32 sums. A program that reads the result adds the bias and scales the sums
itself. A program that reads the result of another one on the same rows becomes a part of that one, which then has
several results if other equations read them, too. A quantizer becomes a part of the program that computes what it
quantizes. So a residual sum, the normalization and activation behind it, and their quantization are one call, which
reads and writes each array once. Joining changes no bit.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxdml._arithmetic.elementwise import SCALED_SUMS
from jaxdml._arithmetic.kernel_library import library
from jaxdml._arithmetic.native_call import is_byte
from jaxdml._arithmetic.native_elementwise import QUANTIZE
from jaxdml._arithmetic.native_rows import MOST_RESULTS, RowResult
from jaxdml._exact.flat import FlatEqn, FlatVar, is_value
from jaxdml._exact.kernel_calls import arguments_of, opened, spec_in
from jaxdml._exact.row_code import RowCode, RowOperand, array_of
from jaxdml._exact.rows import ROW_PROGRAM


def with_row_groups(eqns: Sequence[FlatEqn], outvars: Sequence[Any]) -> list[FlatEqn]:
    """The equations, with those of each group replaced by one."""
    if library() is None or not any(eqn.primitive is ROW_PROGRAM for eqn in eqns):
        return list(eqns)
    groups = _Groups([each for eqn in eqns for each in opened(eqn, (SCALED_SUMS, QUANTIZE))], outvars)
    groups.join()
    return groups.in_order()


class _Group:
    """Equations that become one program.

    Attributes:
      code: the instructions.
      atoms: the arrays of the code.
      steps: the equations, as `rows.computed` takes them.
      results: maps the results of the code, in their order, to their places among the steps.
      is_joined: whether it has several equations.
    """

    def __init__(
        self, code: RowCode, atoms: Sequence[Any], steps: Sequence[Any], results: Mapping[FlatVar, int]
    ) -> None:
        self.code, self.atoms, self.steps, self.results = code, tuple(atoms), tuple(steps), results
        self.is_joined = False

    def followed_by(self, other: "_Group", dropped: Collection[FlatVar]) -> "_Group | None":
        """This group, then another one that reads results of it; None if the kernel cannot run both.

        Results of the group in `dropped` are none of both.
        """
        result_of = dict(zip(self.results, self.code.results, strict=True))
        pairs_of_other = zip(other.code.arrays, other.atoms, strict=True)
        made = {array: atom for array, atom in pairs_of_other if is_value(atom) and atom in self.results}
        if other.code.rows != self.code.rows or any(array.view != result_of[x].view for array, x in made.items()):
            return None  # they see other rows, or a value is repeated for them
        replaced = {
            place: result_of[made[operand.array]].slot
            for place, operand in enumerate(other.code.operands)
            if operand.array in made
        }
        code, of_self, of_other = self.code.followed_by(other.code, replaced)
        atom_of = dict(zip((*self.code.arrays, *other.code.arrays), (*self.atoms, *other.atoms), strict=True))
        places = {each: place for place, each in enumerate(code.arrays)}
        count = len(self.steps)

        def moved(group: "_Group", place: int, first: int) -> int:
            """The new place of what a step reads in a group whose steps begin at `first`."""
            if place < 0:
                return ~(first + ~place)
            array = group.code.arrays[place]
            return ~self.results[made[array]] if array in made else places[array]

        def of_steps(group: "_Group", first: int) -> Iterator[Any]:
            for primitive, params, read in group.steps:
                yield primitive, params, tuple(moved(group, place, first) for place in read)

        pairs = [*self._pairs(0, of_self), *other._pairs(count, of_other)]
        kept = [pair for pair in pairs if pair[1] not in dropped]
        kept.sort(key=lambda pair: pair[0].dtype != "float32")  # the kernel may write the first one over an operand
        code.results = [each for each, _, _ in kept]
        atoms, steps = [atom_of[each] for each in code.arrays], (*of_steps(self, 0), *of_steps(other, count))
        result = _Group(code, atoms, steps, {var: place for _, var, place in kept})
        result.is_joined = True
        return result if len(kept) <= MOST_RESULTS and code.program() else None

    def _pairs(self, first: int, numbers: Sequence[int]) -> Iterator[tuple[RowResult, FlatVar, int]]:
        """The results in a group where steps begin at `first` and values have these numbers, with places of steps."""
        for each, (value, place) in zip(self.code.results, self.results.items(), strict=True):
            zero_point = None if each.zero_point is None else numbers[each.zero_point]
            yield each._replace(slot=numbers[each.slot], zero_point=zero_point), value, first + place

    def equation(self, scope: str) -> FlatEqn:
        """The equation that computes the results."""
        params = {"program": self.code.program(), "steps": self.steps, "results": tuple(self.results.values())}
        return FlatEqn(ROW_PROGRAM, params, self.atoms, tuple(self.results), scope)


def _group_of(eqn: FlatEqn) -> _Group | None:
    """The group of one equation: a program, the scaling of sums, or a quantizer; None for others."""
    if eqn.primitive is ROW_PROGRAM:
        params = eqn.params
        return _Group(
            params["code"], eqn.invars, params["steps"], dict(zip(eqn.outvars, params["results"], strict=True))
        )
    spec = spec_in(eqn, SCALED_SUMS, QUANTIZE)
    if spec is None or spec.mapped:
        return None
    arguments, value = arguments_of(eqn, spec), eqn.outvars[0]
    shape, of_sums = value.aval.shape, spec.kernel is SCALED_SUMS
    if not (shape and 0 not in shape and (of_sums or is_byte(value.aval.dtype))):
        return None
    if not of_sums and arguments[2] is None:
        return None
    views = [each.aval.shape if of_sums or place == 0 else (1,) * len(shape) for place, each in enumerate(eqn.invars)]
    operands = [RowOperand(array_of(atom, view)) for atom, view in zip(eqn.invars, views, strict=True)]
    if len(operands) != len(set(operands)):
        return None
    code = RowCode(shape, operands)
    names = ("add_integers",) * (arguments[1] is not None) + ("float_of_integer", "mul") if of_sums else ("steps",)
    last, others = 0, iter(range(1, len(eqn.invars)))
    for name in names:
        last = code.add(name, (last,) if name == "float_of_integer" else (last, next(others)))
    code.results = [RowResult(last, shape, shape, value.aval.dtype.name, None if of_sums else 2)]
    step = eqn.primitive, tuple(sorted(eqn.params.items())), tuple(range(len(eqn.invars)))
    return _Group(code, eqn.invars, (step,), {value: 0})


class _Groups:
    """Equations and groups, which are joined as long as no cycle results."""

    def __init__(self, eqns: Sequence[FlatEqn], outvars: Iterable[Any]) -> None:
        self._eqns, self._outvars = eqns, {*filter(is_value, outvars)}
        self._group = {place: group for place, eqn in enumerate(eqns) if (group := _group_of(eqn))}
        self._place = {value: place for place, eqn in enumerate(eqns) for value in eqn.outvars}  # of its equation
        # Maps the place of an equation to that of the group that it is a part of: the place of the last one of these.
        self._home = [*range(len(eqns))]
        self._readers: dict[FlatVar, list[int]] = {}
        for place, eqn in enumerate(eqns):
            for atom in filter(is_value, eqn.invars):
                self._readers.setdefault(atom, []).append(place)

    def join(self) -> None:
        """Joins each group with those behind it."""
        for place, eqn in enumerate(self._eqns):
            if self._home[place] in self._group and spec_in(eqn, QUANTIZE) is None:
                for value in eqn.outvars:
                    self._join_readers(value)

    def _join_readers(self, value: FlatVar) -> None:
        of_sums = spec_in(self._eqns[self._place[value]], SCALED_SUMS) is not None
        for reader in self._readers.get(value, ()):
            first, second = self._home[self._place[value]], self._home[reader]
            if first == second or second not in self._group or not self._pays(value, of_sums=of_sums):
                continue
            if self._makes_cycle(first, second):
                continue
            dropped = {each for each in self._group[first].results if self._is_read_in(each, {first, second})}
            found = self._group[first].followed_by(self._group[second], dropped)
            if found is not None:
                del self._group[first], self._group[second]
                last = max(first, second)
                self._group[last] = found
                self._home = [last if home in (first, second) else home for home in self._home]

    def _is_read_in(self, value: FlatVar, places: Collection[int]) -> bool:
        """Whether nothing but groups at these places reads a value."""
        homes = (self._home[reader] for reader in self._readers.get(value, ()))
        return value not in self._outvars and all(home in places for home in homes)

    def _pays(self, value: FlatVar, *, of_sums: bool) -> bool:
        """Whether a value may be computed where it is read: sums that several equations read are scaled once."""
        return not of_sums or len(self._readers[value]) == 1

    def _makes_cycle(self, first: int, second: int) -> bool:
        """Whether one of two groups, joined, would wait for an equation that waits for the other."""
        pending = [*self._makers(second) - {first}]
        seen = {second, *pending}
        while pending:
            makers = self._makers(pending.pop())
            if first in makers:
                return True
            pending += makers - seen
            seen |= makers
        return False

    def _makers(self, place: int) -> set[int]:
        """The places of the groups and equations that compute what a group or an equation reads."""
        return {self._home[self._place[atom]] for atom in self._inputs(place) if atom in self._place} - {place}

    def _inputs(self, place: int) -> Iterator[Any]:
        group = self._group.get(place)
        return filter(is_value, self._eqns[place].invars if group is None else group.atoms)

    def in_order(self) -> list[FlatEqn]:
        """The equations, each after those that compute what it reads; otherwise in their first order."""
        nodes = sorted(set(self._home))
        makers = {place: self._makers(place) for place in nodes}
        readers: dict[int, list[int]] = {place: [] for place in nodes}
        for place, each in makers.items():
            for maker in each:
                readers[maker].append(place)
        waiting = {place: len(each) for place, each in makers.items()}
        ready, result = [place for place in nodes if not waiting[place]], list[FlatEqn]()
        heapq.heapify(ready)
        while ready:
            place = heapq.heappop(ready)
            result.append(self._equation(place))
            for reader in readers[place]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    heapq.heappush(ready, reader)
        return result

    def _equation(self, place: int) -> FlatEqn:
        group, eqn = self._group.get(place), self._eqns[place]
        return group.equation(eqn.scope) if group is not None and group.is_joined else eqn
