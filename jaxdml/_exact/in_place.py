"""Lets programs on rows write their results over operands that nothing else reads, which saves memory.

Large new arrays take time as well: the operating system clears each page when it is first written.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jaxdml._exact.flat import FlatEqn, is_value
from jaxdml._exact.rows import CODES_OF, ROW_PROGRAM

# XLA may drop these. Then their results lie in the memory of their operands.
VIEWS = (*(name for name, codes in CODES_OF.items() if not codes), "optimization_barrier", "slice", "transpose")


def with_overwritten_operands(eqns: Sequence[FlatEqn], outvars: Iterable[Any]) -> list[FlatEqn]:
    """The equations; each program on rows has the place of an operand that it may overwrite, if there is one."""
    uses = Counter(atom for atoms in (*(eqn.invars for eqn in eqns), outvars) for atom in atoms if is_value(atom))
    makers = {value: eqn for eqn in eqns for value in eqn.outvars}

    def is_free(atom: Any) -> bool:
        """Whether a value is computed, and one equation alone reads it; a view is free if its operand is, too."""
        if not is_value(atom) or uses[atom] != 1 or atom not in makers:
            return False
        maker = makers[atom]
        return maker.primitive.name not in VIEWS or is_free(maker.invars[maker.outvars.index(atom)])

    return [_overwriting(eqn, is_free) if eqn.primitive is ROW_PROGRAM else eqn for eqn in eqns]


def _overwriting(eqn: FlatEqn, is_free: Callable[[Any], bool]) -> FlatEqn:
    program = eqn.params["program"]
    places = (
        place
        for place, (atom, view) in enumerate(zip(eqn.invars, program.views, strict=True))
        if view == program.results[0].view
        and atom.aval.dtype == program.results[0].dtype == "float32"
        and is_free(atom)
    )
    program = program._replace(overwritten=next(places, None))
    return eqn._replace(params={**eqn.params, "program": program})
