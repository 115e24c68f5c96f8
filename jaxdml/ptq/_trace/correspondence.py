"""Finds the values that correspond to each other in two traces of a function with inputs of different sizes.

The equations of the traces may differ: some sizes make JAX, or the function itself, leave out a squeeze, a broadcast or
a slice, and sizes occur as literals. A value is identified by the inputs, parameters and primitives from which it is
computed. Literals, axes and movers (primitives that only move elements) do not count. Equal identities are numbered.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from jaxdml.ptq._trace.contents import contents_of, places_of
from jaxdml.ptq._trace.equations import CONTRACTION_PRIMITIVES, Program
from jaxdml.ptq._trace.fixed import IDENTITIES, FixedValues
from jaxdml.ptq._trace.signature import bits, digest, holds_code

MOVERS = IDENTITIES | {
    "broadcast_in_dim", "convert_element_type", "dynamic_slice", "expand_dims", "gather", "pad", "reshape", "rev",
    "slice", "split", "squeeze", "tile", "transpose",
}  # fmt: skip

# Movers whose results have their own ranges, because they cast or stay in floats. A gather that fills has its own
# range, too. Other gathers are not counted: for a symbolic batch, JAX writes slices as gathers, and counting these
# would change the numbers of equal identities.
OWN_RANGES = ("convert_element_type", "pad", "tile")


def named_like(program: Program, like: Program, params: Mapping[str, str]) -> Program:
    """The program, with values renamed like the corresponding values of `like`, another trace of the same function.

    Inputs are renamed in order from the last, because the values that the steps of a scan share come first, and their
    number may differ. Constants are renamed like equal constants of `like`. The remaining values get names that `like`
    does not use.

    Args:
      program: the program.
      like: the program of the other trace.
      params: maps params of the program to the corresponding params of `like`.
    """
    program = _renamed(program, like, {**params, **dict(zip(program.inputs[::-1], like.inputs[::-1], strict=False))})
    theirs = {identity: name for name, identity in _identities(like).items()}
    names = {name: theirs[identity] for name, identity in _identities(program).items() if identity in theirs}
    equal = {bits(value): name for name, value in like.constants.items()}
    names |= {name: equal[key] for name, value in program.constants.items() if (key := bits(value)) in equal}
    return _renamed(program, like, names | {name: name for name in (*program.params, *program.inputs)})


class Known(NamedTuple):
    """What identifies a param in other traces.

    Attributes:
      kind: its path; for a param of a body, also whether all steps share it.
      text: the text of its value, as in `Texts.contents`.
      shape: the shape of its value.
      is_rounded: whether the function applies `fake_quantize` to the value outside of the scan that reads it.
    """

    kind: tuple[Any, ...]
    text: str = ""
    shape: tuple[Any, ...] = ()
    is_rounded: bool = False


def corresponding(params: Mapping[str, Known], like: Mapping[str, Known]) -> dict[str, str]:
    """Maps params of a trace to those of another: to one of the same kind and text, else to the next of its kind."""
    names = dict[str, str]()
    for count in (2, 1):
        left: dict[Any, list[str]] = {}
        for name, known in like.items():
            if name not in names.values():
                left.setdefault(known[:count], []).append(name)
        for name, known in params.items():
            if name not in names and left.get(known[:count]):
                names[name] = left[known[:count]].pop(0)
    return names


def _identities(program: Program) -> dict[str, str]:
    """Maps each value computed from the inputs to a text that identifies the value.

    Results of most movers have no text, because they have the ranges of the movers' inputs.
    """
    fixed, counts = FixedValues(program), Counter[str]()
    identities = {name: name for name in program.inputs}
    found = dict[str, str]()
    for equation in program.equations:
        data = [name for name in equation.inputs if name not in fixed.names]
        if not data:
            continue
        if equation.name in MOVERS and data == [equation.inputs[0]]:
            identities |= dict.fromkeys(equation.outputs, identities[data[0]])
            if equation.name not in OWN_RANGES and not equation.fills:
                continue
        read = [identities.get(name) or _params_of(program, fixed, name) for name in equation.inputs]
        if any(map(holds_code, equation.params.values())):  # how many masks a scan reads may depend on sizes
            read = list(filter(None, read))
        alike = digest("\n".join((equation.name, *read)).encode())
        counts[alike] += 1
        for place, name in enumerate(equation.outputs):
            found[name] = f"{alike} {counts[alike]} {place}"
            identities.setdefault(name, found[name])
    return found


def _params_of(program: Program, fixed: FixedValues, name: str) -> str:
    """The params from which a fixed value is computed, without those in `without_param`: they may be literals for other
    sizes.
    """
    return " ".join(leaf for leaf in fixed.leaves(name) if leaf not in program.without_param)


class Texts(NamedTuple):
    """Texts that identify the values of a program.

    Literals of equations that go into weights, biases, tables or scales must not depend on sizes.

    Attributes:
      operations: maps each value computed from data to texts of its equation and of the equation's fixed inputs.
      contents: maps each fixed value to a text. The sizes of inputs change it only if they change elements or axes.
    """

    operations: Mapping[str, tuple[str, ...]]
    contents: Mapping[str, str]


def texts_of(program: Program) -> Texts:
    """The texts of a program."""
    fixed, operations = FixedValues(program), dict[str, tuple[str, ...]]()
    contents = contents_of(program, fixed)
    for equation in program.equations:
        # The axes of a contraction of data depend on sizes, because JAX drops axes for some sizes.
        params = "" if equation.name in CONTRACTION_PRIMITIVES else equation.params_text
        read = [name for name in equation.inputs if name in contents]
        texts = (equation.name, params, *(contents[name] + places_of(name, equation, program, fixed) for name in read))
        operations |= {name: texts for name in equation.outputs if name not in contents}
    return Texts(operations, {name: text + places_of(name, None, program, fixed) for name, text in contents.items()})


def _renamed(program: Program, like: Program, given: Mapping[str, str]) -> Program:
    """The program with the values in `given` renamed. The remaining values get names that `like` does not use."""
    names = dict(given)
    taken = {*like.avals, *names.values()}
    for name in program.avals:
        if name not in names:
            names[name] = name
            while names[name] in taken:
                names[name] += "'"
            taken.add(names[name])

    def all_of(values: Sequence[str]) -> tuple[str, ...]:
        return tuple(names[name] for name in values)

    equations = (replace(each, inputs=all_of(each.inputs), outputs=all_of(each.outputs)) for each in program.equations)
    return replace(
        program,
        equations=tuple(equations),
        params={names[name]: path for name, path in program.params.items()},
        inputs=all_of(program.inputs),
        outputs=all_of(program.outputs),
        constants={names[name]: value for name, value in program.constants.items()},
        avals={names[name]: aval for name, aval in program.avals.items()},
        without_param=frozenset(names[name] for name in program.without_param),
    )
