"""Judges compiled programs by what is allowed. A complaint is a short text; a program without complaints passes."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from accelerators import allowed, hlo, ptx
from accelerators.hlo import Instruction, Program

REDUCTIONS = {"reduce", "reduce-window", "all-reduce", "reduce-scatter", "scan", "select-and-scatter", "scatter"}
CANDIDATES = {"divide": "div.full.f32", "sqrt": "sqrt.approx.f32"}  # inexact operations, and their PTX


class Compiled(NamedTuple):
    """A program before and after its compiler's optimizations, its PTX, and the steps that run it on a GPU."""

    lowered: Program
    optimized: Program
    kernels: list[ptx.Kernel]
    steps: list[tuple[str, str]]  # kind and name of each
    seconds: float
    estimate: float | None  # seconds that a TPU's compiler expects it to run


def complaints(made: Compiled, is_gpu: bool) -> Counter[str]:
    """The complaints about a program, and the number of times that each applies.

    The number of products is judged before and after the compiler's optimizations, which may or may not split a sum.
    """
    found = Counter(of_contractions(made.optimized))
    found |= Counter(of_contractions(made.lowered))
    found += Counter(of_float_products(made.lowered))
    found += Counter(of_reductions(made.optimized))
    found += Counter(of_sorts(made))
    if is_gpu:
        found += Counter(of_steps(made))
        found += Counter(of_kernels(made.kernels, corrected(made.optimized)))
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


def of_float_products(program: Program) -> Iterator[str]:
    """Products of floats that are not int8 numbers. A compiler may have folded the conversion of constants."""
    for each in program:
        is_of_bytes = (_is_of_bytes(program, operand) for operand in program.operands(each)[:2])
        if each.opcode in hlo.CONTRACTIONS and each.has_floats and not all(is_of_bytes):
            yield f"{each.opcode} {each.dtype} of other than int8 numbers"


def _is_of_bytes(program: Program, value: Instruction) -> bool:
    """Whether floats are converted int8 or int4 numbers."""
    return all(
        origin.opcode == "convert" and program.operands(origin)[0].dtype in ("s8", "s4")
        for origin in program.origins(value)
    )


def is_sum_of_products(program: Program, each: Instruction) -> bool:
    """Whether a sum of floats has so few products of int8 numbers that it is exact in every order."""
    if each.opcode != "reduce" or each.dtype != "f32":
        return False
    summed, start = program.operands(each)
    if start.opcode != "constant" or float(start.text) != 0:
        return False
    count = math.prod(_reduced(program, each))
    kind = "bf16 x bf16 -> f32"
    for origin in program.origins(summed):
        if origin.opcode == "dot":  # judged above
            count *= hlo.depth(program, origin)
        elif origin.opcode != "multiply" or not all(_is_of_bytes(program, x) for x in program.operands(origin)):
            return False
    return count <= allowed.CONTRACTIONS[kind][0]


def adds_nothing(program: Program, each: Instruction) -> bool:
    """Whether a sum has one addend and starts at -0, which changes no number. A TPU's compiler drops dimensions so."""
    start = program.operands(each)[-1]
    is_minus_zero = start.opcode == "constant" and math.copysign(1, float(start.text)) < 0 == float(start.text)
    return each.opcode == "reduce" and is_minus_zero and set(_reduced(program, each)) == {1}


def _reduced(program: Program, each: Instruction) -> list[int]:
    """The sizes of the dimensions that a reduce reduces."""
    (dimensions,) = re.findall(r"\bdimensions=\{([\d,]+)\}", each.attributes)
    shape = program.operands(each)[0].shape
    return [shape[int(axis)] for axis in dimensions.split(",")]


def of_reductions(program: Program) -> Iterator[str]:
    """Reductions of floats whose results depend on the order, and calls of code that cannot be read."""
    for each in program:
        if each.opcode in REDUCTIONS and each.has_floats:
            for name in each.called:
                opcode = program.root(name).opcode
                is_sum = opcode == "add" and (is_sum_of_products(program, each) or adds_nothing(program, each))
                if not (opcode in allowed.REDUCERS or is_sum):
                    yield f"{each.opcode} {each.dtype} by {opcode}"
        elif each.opcode == "custom-call" and not allowed.allows(allowed.CUSTOM_CALLS, each.target):
            yield f"custom-call {each.target}"


def of_sorts(made: Compiled) -> Iterator[str]:
    """Sorts whose results depend on the algorithm: equal elements or NaN may have any order there.

    A compiler makes a sort stable by comparing indices, too, and compares floats in total order as integers.
    """
    for each in made.lowered:
        if each.opcode == "sort" and "is_stable=true" not in each.attributes:
            yield "sort that is not stable"
    for each in made.optimized:
        inner = (of for name in each.called for of in made.optimized.computations[name])
        if each.opcode == "sort" and any(_orders_floats(made.optimized, of) for of in inner):
            yield "sort by floats"


def _orders_floats(program: Program, each: Instruction) -> bool:
    is_order = each.opcode == "compare" and not re.search(r"\bdirection=(?:EQ|NE)\b", each.attributes)
    return is_order and any(operand.has_floats for operand in program.operands(each))


def of_floats(program: Program) -> Iterator[str]:
    """Operations of HLO that have floats, for a device whose instructions are not known."""
    for each in program:
        operands = program.operands(each)
        if each.opcode in hlo.CONTRACTIONS | {"custom-call"}:  # judged above
            continue
        if each.has_floats or any(operand.has_floats for operand in operands):
            text = f"{each.opcode} {each.dtype}" + (f"<-{operands[0].dtype}" if each.opcode == "convert" else "")
            if not allowed.allows(allowed.HLO, text) and not (
                each.opcode in CANDIDATES and is_corrected(program, each)
            ):
                yield text


def is_corrected(program: Program, candidate: Instruction) -> bool:
    """Whether a division or a square root has mantissas as operands, and its result becomes an integer to be corrected.

    docs/numerics_accelerators.md proves that the candidate may err by a few units in the last place.
    """
    scaled = program.readers(candidate)
    read = [reader for product in scaled for reader in program.readers(product)]
    is_expected = _is_mantissa if candidate.opcode == "divide" else _is_shifted_mantissa
    return (
        all(is_expected(program, origin) for each in program.operands(candidate) for origin in program.origins(each))
        and bool(read)
        and all(each.opcode == "multiply" for each in scaled)
        and all(each.opcode == "convert" and each.dtype == "s32" for each in read)
    )


def _is_mantissa(program: Program, value: Instruction) -> bool:
    """Whether a float is an integer of 2**23 to 2**24 - 1: a constant, or 24 bits of which the highest is set."""
    if value.opcode == "constant":
        return value.shape == () and 2**23 <= float(value.text) < 2**24
    return value.opcode == "convert" and _is_24_bits(program, *program.origins(program.operands(value)[0]))


def _is_shifted_mantissa(program: Program, value: Instruction) -> bool:
    """Whether a float is 24 bits of which the highest is set, shifted left."""
    if value.opcode != "convert":
        return False
    (integer,) = program.origins(program.operands(value)[0])
    return integer.opcode == "shift-left" and _is_24_bits(program, *program.origins(program.operands(integer)[0]))


def _is_24_bits(program: Program, integer: Instruction) -> bool:
    ends = [origin for each in program.operands(integer) for origin in program.origins(each)]
    return integer.opcode == "or" and any(end.opcode == "constant" and end.text == str(2**23) for end in ends)


def of_kernels(kernels: Iterable[ptx.Kernel], corrected: Collection[str]) -> Iterator[str]:
    """Instructions of PTX. An approximation is allowed if all of its kind in the program are corrected."""
    approximations = {CANDIDATES[opcode] for opcode in corrected}
    for kernel in kernels:
        for each in kernel.instructions:
            if each.is_matrix:
                if not allowed.allows(allowed.PTX_MATRICES, each.opcode):
                    yield each.opcode
            elif each.has_floats:
                if each.opcode not in approximations and not allowed.allows(allowed.PTX, each.opcode):
                    yield each.opcode
            elif not allowed.INTEGERS_REFUSED.isdisjoint(each.words):
                yield each.opcode
        for each in ptx.adds_to_other_than_zero(kernel):
            yield f"{each.opcode} that does not begin with zeros"
        for each in ptx.multiplies_twice(kernel):
            yield f"{each.opcode} that gets terms twice"


def corrected(program: Program) -> set[str]:
    """Those of `CANDIDATES` that the program has and always corrects."""
    found = {opcode: [each for each in program if each.opcode == opcode and each.has_floats] for opcode in CANDIDATES}
    return {opcode for opcode, all_of in found.items() if all_of and all(is_corrected(program, e) for e in all_of)}
