"""Judges what a compiler made, by what is allowed. Each complaint is a short text; a program without one passes."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from accelerators import allowed, hlo, ptx
from accelerators.hlo import Instruction, Program

REDUCTIONS = {"reduce", "reduce-window", "all-reduce", "reduce-scatter", "scan", "select-and-scatter", "scatter"}


class Compiled(NamedTuple):
    """What a compiler made: the program before and after its optimizations, PTX and the steps that run it on a GPU."""

    lowered: Program
    optimized: Program
    kernels: list[ptx.Kernel]
    steps: list[tuple[str, str]]  # its kind and its name
    seconds: float
    estimate: float | None  # seconds that a TPU's compiler expects it to run


def complaints(made: Compiled, is_gpu: bool) -> Counter[str]:
    """Each complaint about what was made, and how often there is cause for it.

    The number of products is judged before and after the compiler's optimizations: it may split a sum, or not.
    """
    found = Counter(of_contractions(made.optimized))
    found |= Counter(of_contractions(made.lowered))
    found += Counter(of_reductions(made.optimized))
    if is_gpu:
        found += Counter(of_steps(made))
        found += Counter(of_kernels(made.kernels, divisions_are_corrected(made.optimized)))
    else:
        found += Counter(of_floats(made.optimized))
    return found


def of_steps(made: Compiled) -> Iterator[str]:
    """Steps on a GPU whose PTX was not read."""
    read = {kernel.name for kernel in made.kernels}
    if not made.steps:
        yield "no steps"
    for kind, name in made.steps:
        if not allowed.allows(allowed.GPU_STEPS, kind):
            yield f"step {kind} {name}"
        elif "Kernel" in kind and name not in read:
            yield f"no PTX of {name}"


def of_contractions(program: Program) -> Iterator[str]:
    """Products and convolutions."""
    for each in program:
        if each.opcode in hlo.CONTRACTIONS:
            left, right = (operand.dtype for operand in program.operands(each)[:2])
            kind = f"{left} x {right} -> {each.dtype}"
            if kind not in allowed.CONTRACTIONS:
                yield f"{each.opcode} {kind}"
            elif (depth := hlo.depth(program, each)) > (most := allowed.CONTRACTIONS[kind][0]):
                yield f"{each.opcode} of {depth:,} products, at most {most:,}"


def of_reductions(program: Program) -> Iterator[str]:
    """Floats reduced by other than what any order gives, and calls of what cannot be read."""
    for each in program:
        if each.opcode in REDUCTIONS and each.has_floats:
            for name in each.called:
                if (opcode := program.root(name).opcode) not in allowed.REDUCERS:
                    yield f"{each.opcode} {each.dtype} by {opcode}"
        elif each.opcode == "custom-call" and not allowed.allows(allowed.CUSTOM_CALLS, each.target):
            yield f"custom-call {each.target}"


def of_floats(program: Program) -> Iterator[str]:
    """Operations of HLO that have floats, for a device whose instructions are not known."""
    for each in program:
        operands = program.operands(each)
        if each.opcode in hlo.CONTRACTIONS | {"custom-call"}:  # judged above
            continue
        if each.has_floats or any(operand.has_floats for operand in operands):
            text = f"{each.opcode} {each.dtype}" + (f"<-{operands[0].dtype}" if each.opcode == "convert" else "")
            if not allowed.allows(allowed.HLO, text) and not (each.opcode == "divide" and is_corrected(program, each)):
                yield text


def is_corrected(program: Program, division: Instruction) -> bool:
    """Whether a division is one of mantissas and gives an integer, as the candidate that integers correct.

    docs/numerics.md proves that it may err by a few units in the last place.
    """
    scaled = program.readers(division)
    read = [reader for product in scaled for reader in program.readers(product)]
    return (
        all(_is_mantissa(program, origin) for each in program.operands(division) for origin in program.origins(each))
        and bool(read)
        and all(each.opcode == "multiply" for each in scaled)
        and all(each.opcode == "convert" and each.dtype == "s32" for each in read)
    )


def _is_mantissa(program: Program, value: Instruction) -> bool:
    """Whether a float is an integer of 2**23 to 2**24 - 1: a constant, or bits of which the highest of 24 is set."""
    if value.opcode == "constant":
        return value.shape == () and 2**23 <= float(value.text) < 2**24
    if value.opcode != "convert":
        return False
    (integer,) = program.origins(program.operands(value)[0])
    ends = [origin for each in program.operands(integer) for origin in program.origins(each)]
    return integer.opcode == "or" and any(end.opcode == "constant" and end.text == str(2**23) for end in ends)


def of_kernels(kernels: Iterable[ptx.Kernel], divisions_are_corrected: bool) -> Iterator[str]:
    """Instructions of PTX; a division that is an approximation may be there if the program has corrected ones alone."""
    for kernel in kernels:
        for each in kernel.instructions:
            if each.is_matrix:
                if not allowed.allows(allowed.PTX_MATRICES, each.opcode):
                    yield each.opcode
            elif each.has_floats:
                is_candidate = each.opcode == "div.full.f32" and divisions_are_corrected
                if not is_candidate and not allowed.allows(allowed.PTX, each.opcode):
                    yield each.opcode
            elif not allowed.INTEGERS_REFUSED.isdisjoint(each.words):
                yield each.opcode
        for each in ptx.adds_to_other_than_zero(kernel):
            yield f"{each.opcode} that does not begin with zeros"


def divisions_are_corrected(program: Program) -> bool:
    divisions = [each for each in program if each.opcode == "divide" and each.has_floats]
    return bool(divisions) and all(is_corrected(program, each) for each in divisions)
