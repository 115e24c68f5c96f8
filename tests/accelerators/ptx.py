"""Parses PTX, the assembly language of NVIDIA's GPUs, into kernels and their instructions."""

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

FLOATS = {"f16", "f16x2", "bf16", "bf16x2", "tf32", "f32", "f32x2", "f64", "e4m3", "e5m2", "e4m3x2", "e5m2x2"}
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^\s*\.loc\b[^\n;]*$", re.DOTALL | re.MULTILINE)  # also source locations
BEFORE = re.compile(r"(?:[{}]|[\w$]+:(?!:)|@!?%\w+)\s*")  # braces, labels and the predicate of an instruction
INSTRUCTION = re.compile(r"([a-z]\w*(?:(?:\.|::)\w+)*)(?:\s+(.*))?", re.DOTALL)
ZEROS = ("0", "0x0", "0f00000000")
REGISTER = re.compile(r"%[a-z]+\d+")


class Instruction(NamedTuple):
    opcode: str
    operands: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        return re.split(r"\.|::", self.opcode)

    @property
    def has_floats(self) -> bool:
        return not FLOATS.isdisjoint(self.words)

    @property
    def is_matrix(self) -> bool:
        """Whether it multiplies matrices, or moves them to the units that do."""
        return self.words[0] in ("mma", "wmma", "wgmma", "tcgen05")


class Kernel(NamedTuple):
    name: str
    instructions: list[Instruction]


def kernels(text: str) -> list[Kernel]:
    """The kernels and functions that a module defines."""
    text = COMMENT.sub("", text)
    found = []
    for head in re.finditer(r"\.(?:entry|func)\b", text):
        declared = re.compile(r"[^{;]*").match(text, head.end())
        start = declared.end() if declared else len(text)
        if text[start : start + 1] == "{":  # otherwise it is only declared
            name = re.search(r"([\w$]+)\s*(?:\(|$)", text[head.end() : start].strip())
            if name is None:
                raise ValueError(f"a kernel without a name: {text[head.start() : start]!r}")
            found.append(Kernel(name[1], list(_instructions(text[start + 1 : _closing(text, start)]))))
    return found


def adds_to_other_than_zero(kernel: Kernel) -> Iterator[Instruction]:
    """The matrix instructions whose sums begin with neither zeros nor the sums of other matrix instructions."""
    written = defaultdict(list)
    for instruction in kernel.instructions:
        for register in REGISTER.findall(instruction.operands[0] if instruction.operands else ""):
            written[register].append(instruction)
    for instruction in kernel.instructions:
        if instruction.words[0] == "mma" and not _begins_with_zeros(instruction.operands[3], written):
            yield instruction


def multiplies_twice(kernel: Kernel) -> Iterator[Instruction]:
    """The matrix instructions whose operands both repeat their first half of terms' registers in the second half."""
    for instruction in kernel.instructions:
        if instruction.words[0] == "mma":
            operands = [REGISTER.findall(operand) for operand in instruction.operands[1:3]]
            if all(len(of) > 1 and of[: len(of) // 2] == of[len(of) // 2 :] for of in operands):
                yield instruction


def _begins_with_zeros(operand: str, written: dict[str, list[Instruction]]) -> bool:
    registers, seen = REGISTER.findall(operand), set[str]()
    while registers:
        register = registers.pop()
        if register in seen:
            continue
        seen.add(register)
        if not written[register]:
            return False
        for opcode, operands in written[register]:
            if opcode.startswith("mov.") and REGISTER.fullmatch(operands[1]):
                registers.append(operands[1])
            elif not (opcode.startswith("mma.") or (opcode.startswith("mov.") and operands[1] in ZEROS)):
                return False
    return True


def _closing(text: str, start: int) -> int:
    """The position of the brace that closes the one at `start`."""
    depth = 0
    for brace in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.start()
    raise ValueError(f"a brace is not closed: {text[start : start + 80]!r}")


def _instructions(body: str) -> Iterator[Instruction]:
    for statement in body.split(";"):
        bare = statement.strip()
        while before := BEFORE.match(bare):
            bare = bare[before.end() :]
        if not bare or (bare.startswith(".") and "\n" not in bare):  # a declaration of registers, a hint
            continue
        match = INSTRUCTION.fullmatch(bare)
        if match is None:
            raise ValueError(f"not an instruction: {bare!r}")
        yield Instruction(match[1], tuple(_operands(match[2] or "")))


def _operands(text: str) -> Iterator[str]:
    """The operands, which commas outside of brackets separate."""
    for part in re.findall(r"(?:[^,{}\[\]()]|\{[^}]*\}|\[[^\]]*\]|\([^)]*\))+", text):
        yield part.strip()
