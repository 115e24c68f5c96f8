"""Joins programs on rows with each other, with the sums of products that they read, and with quantizers behind them.

A convolution with a float result gives int32 sums. A program that reads the result adds the bias and scales the sums
itself. A program that reads the result of another one on the same rows becomes a part of that one, which then has
several results if other equations read them, too. A quantizer becomes a part of the program that computes what it
quantizes. So a residual sum, the normalization and activation behind it, and their quantization are one call, which
reads and writes each array once. Joining changes no bit.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxdml._arithmetic.elementwise import SCALED_SUMS
from jaxdml._arithmetic.kernel_library import library
from jaxdml._arithmetic.native_call import is_byte
from jaxdml._arithmetic.native_elementwise import QUANTIZE
from jaxdml._arithmetic.native_rows import MOST_RESULTS, RowProgram, RowResult
from jaxdml._exact.flat import FlatEqn, FlatVar
from jaxdml._exact.kernel_calls import Uses, arguments_of, is_value, kernel_call, opened
from jaxdml._exact.row_code import RowCode
from jaxdml._exact.rows import ROW_PROGRAM

Shape = tuple[int, ...]


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
      view: the shape of the rows.
      code: the instructions; the operands have atoms, or the bytes of literals, as keys.
      atoms: the operands.
      steps: the equations, as `rows.computed` takes them.
      results: maps results to their places among the steps.
      is_joined: whether it has several equations.
    """

    def __init__(self, view: Shape, code: RowCode, atoms: Sequence[Any], steps: Sequence[Any], value: FlatVar) -> None:
        self.view, self.code, self.atoms, self.steps = view, code, tuple(atoms), tuple(steps)
        self.results, self.is_joined = {value: len(self.steps) - 1}, False

    def followed_by(self, other: "_Group", value: FlatVar, *, is_kept: bool) -> "_Group | None":
        """This group, then another one that reads its result `value`; None if the kernel cannot run both.

        `is_kept` says whether anything else reads the value.
        """
        mine = [*self.results].index(value)
        reads = [place for place, atom in enumerate(other.atoms) if is_value(atom) and atom is value]
        if other.view != self.view or any(other.code.operands[place][1] != self.view for place in reads):
            return None  # they see other rows, or the value is repeated for them
        replaced = dict.fromkeys(reads, self.code.results[mine].slot)
        code, of_self, of_other = self.code.followed_by(other.code, replaced)
        atoms_of = dict(zip(self.code.operands, self.atoms, strict=True))
        atoms_of |= {
            each: atom
            for place, (each, atom) in enumerate(zip(other.code.operands, other.atoms, strict=True))
            if place not in replaced
        }
        atoms = [atoms_of[each] for each in code.operands]
        places = {each: place for place, each in enumerate(code.operands)}
        count, last = len(self.steps), self.results[value]

        def of_steps(group: "_Group", first: int) -> Iterator[Any]:
            for primitive, params, read in group.steps:
                moved = (
                    ~(first + ~place) if place < 0
                    else ~last if group is other and place in replaced
                    else places[group.code.operands[place]]
                    for place in read
                )  # fmt: skip
                yield primitive, params, tuple(moved)

        result = _Group(self.view, code, atoms, (*of_steps(self, 0), *of_steps(other, count)), value)
        pairs = [*self._pairs(0, of_self), *other._pairs(count, of_other)]
        kept = [pair for pair in pairs if is_kept or pair[1] is not value]
        kept.sort(key=lambda pair: pair[0].dtype != "float32")  # the kernel may write the first one over an operand
        code.results, result.is_joined = [each for each, _, _ in kept], True
        result.results = {var: place for _, var, place in kept}
        return result if len(kept) <= MOST_RESULTS and result.program() else None

    def _pairs(self, first: int, numbers: Sequence[int]) -> Iterator[tuple[RowResult, FlatVar, int]]:
        """The results in a group where steps begin at `first` and values have these numbers, with places of steps."""
        for each, (value, place) in zip(self.code.results, self.results.items(), strict=True):
            yield each._replace(slot=numbers[each.slot], zero_point=numbers[each.zero_point]), value, first + place

    def program(self) -> RowProgram | None:
        """The program; None if the kernel cannot run it."""
        return self.code.program(self.view)

    def equation(self, scope: str) -> FlatEqn:
        """The equation that computes the results."""
        params = {"program": self.program(), "steps": self.steps, "results": tuple(self.results.values())}
        return FlatEqn(ROW_PROGRAM, params, self.atoms, tuple(self.results), scope)


def _group_of(eqn: FlatEqn) -> _Group | None:
    """The group of one equation: a program, the scaling of sums, or a quantizer; None for others."""
    if eqn.primitive is ROW_PROGRAM:
        return _Group(eqn.params["view"], eqn.params["code"], eqn.invars, eqn.params["steps"], eqn.outvars[0])
    spec = kernel_call(eqn, SCALED_SUMS, QUANTIZE)
    if spec is None or spec.mapped:
        return None
    arguments, value = arguments_of(eqn, spec), eqn.outvars[0]
    ones = (1,) * value.aval.ndim
    of_sums = spec.kernel is SCALED_SUMS
    if not (value.aval.ndim and 0 not in value.aval.shape and (of_sums or is_byte(value.aval.dtype))):
        return None
    views = [each.aval.shape if of_sums or place == 0 else ones for place, each in enumerate(eqn.invars)]
    code = RowCode([(_key(atom), view) for atom, view in zip(eqn.invars, views, strict=True)])
    if len(code.operands) != len(set(code.operands)):
        return None
    names = ("add_integers",) * (arguments[1] is not None) + ("float_of_integer", "mul") if of_sums else ("steps",)
    last, others = 0, iter(range(1, len(eqn.invars)))
    for name in names:
        last = code.add(name, (last,) if name == "float_of_integer" else (last, next(others)))
    if not of_sums and arguments[2] is None:
        return None
    shape = value.aval.shape
    code.results = [RowResult(last, shape, value.aval.dtype.name, 0 if of_sums else 2)]
    step = eqn.primitive, tuple(sorted(eqn.params.items())), tuple(range(len(eqn.invars)))
    return _Group(shape, code, eqn.invars, (step,), value)


def _key(atom: Any) -> Any:
    return atom if is_value(atom) else np.asarray(atom.val, atom.aval.dtype).tobytes()


class _Groups:
    """Equations and groups, which are joined as long as no cycle results."""

    def __init__(self, eqns: Sequence[FlatEqn], outvars: Iterable[Any]) -> None:
        self._eqns, self._outvars, self._uses = eqns, {*filter(is_value, outvars)}, Uses(eqns, outvars)
        self._group = {place: group for place, eqn in enumerate(eqns) if (group := _group_of(eqn))}
        self._place = {value: place for place, eqn in enumerate(eqns) for value in eqn.outvars}  # of its equation
        self._home = [*range(len(eqns))]  # maps the place of an equation to that of the group that it is a part of
        self._readers: dict[FlatVar, list[int]] = {}
        for place, eqn in enumerate(eqns):
            for atom in filter(is_value, eqn.invars):
                self._readers.setdefault(atom, []).append(place)

    def join(self) -> None:
        """Joins each group with those behind it."""
        for place, eqn in enumerate(self._eqns):
            if place in self._group and kernel_call(eqn, QUANTIZE) is None:
                for value in eqn.outvars:
                    self._join_readers(value)

    def _join_readers(self, value: FlatVar) -> None:
        of_sums = kernel_call(self._eqns[self._place[value]], SCALED_SUMS) is not None
        for reader in self._readers.get(value, ()):
            first, second = self._home[self._place[value]], self._home[reader]
            if first == second or second not in self._group or not self._pays(value, of_sums=of_sums):
                continue
            is_kept = value in self._outvars or any(self._home[each] != second for each in self._readers[value])
            if self._makes_cycle(first, second):
                continue
            found = self._group[first].followed_by(self._group[second], value, is_kept=is_kept)
            if found is not None:
                del self._group[first]
                self._group[second] = found
                self._home = [second if home == first else home for home in self._home]

    def _pays(self, value: FlatVar, *, of_sums: bool) -> bool:
        """Whether a value may be computed where it is read: sums that several equations read are scaled once."""
        return not of_sums or len(self._readers[value]) == 1

    def _makes_cycle(self, first: int, second: int) -> bool:
        """Whether one of two groups, joined, would wait for an equation that waits for the other."""
        pending = [self._home[self._place[atom]] for atom in self._inputs(second) if atom in self._place]
        seen = {first, second}
        least = min(place for place, home in enumerate(self._home) if home == first)
        pending = [place for place in pending if place not in seen]
        while pending:
            place = pending.pop()
            if place in seen or place < least:
                continue
            seen.add(place)
            for atom in self._inputs(place):
                if atom in self._place:
                    maker = self._home[self._place[atom]]
                    if maker == first:
                        return True
                    pending.append(maker)
        return False

    def _inputs(self, place: int) -> Iterator[Any]:
        group = self._group.get(place)
        return filter(is_value, self._eqns[place].invars if group is None else group.atoms)

    def in_order(self) -> list[FlatEqn]:
        """The equations, each after those that compute what it reads; otherwise in their first order."""
        nodes = sorted(set(self._home))
        makers = {
            place: {self._home[self._place[atom]] for atom in self._inputs(place) if atom in self._place} - {place}
            for place in nodes
        }
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
