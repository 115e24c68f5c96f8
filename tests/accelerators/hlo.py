"""Parses HLO, the language of XLA, into programs that know the operands and the readers of each instruction."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

CONTRACTIONS = {"dot", "ragged-dot", "scaled-dot", "convolution"}
FLOAT = re.compile(r"(?:bf|f|e\d)\d\w*")
NAME = r"%?([\w.\-]+)"
COMPUTATION = re.compile(rf"(ENTRY )?{NAME} (?:\(.*\) -> .* )?\{{")
LEFT = re.compile(rf"(ROOT )?{NAME} = ")
ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
CALLS = re.compile(
    r"\b(?:calls|to_apply|body|condition|(?:true|false)_computation|(?:branch|called)_computations)"
    r"=(?:\{([^}]*)\}|%?([\w.\-]+))"
)
MOVES = {  # opcodes that return values of their first operand unchanged
    "bitcast", "broadcast", "copy", "copy-done", "copy-start", "dynamic-slice", "gather", "opt-barrier",
    "optimization-barrier", "reshape", "reverse", "slice", "transpose",
}  # fmt: skip


@dataclasses.dataclass
class Instruction:
    name: str
    computation: str
    is_root: bool
    types: list[tuple[str, tuple[int, ...]]]  # the element type and the sizes of each array of the result
    opcode: str
    operands: list[str]
    text: str  # the text in parentheses
    attributes: str

    @property
    def dtype(self) -> str:
        return self.types[0][0] if self.types else "token"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.types[0][1]

    @property
    def has_floats(self) -> bool:
        return any(is_float(dtype) for dtype, _ in self.types)

    @property
    def called(self) -> list[str]:
        names = [name for several, one in CALLS.findall(self.attributes) for name in (several or one).split(",")]
        return [name.strip().lstrip("%") for name in names]

    @property
    def target(self) -> str:
        """The target of a custom call."""
        found = re.search(r'custom_call_target="([^"]*)"', self.attributes)
        return found[1] if found else ""


class Program:
    """The instructions of an optimized or lowered module."""

    def __init__(self, text: str):
        self.computations: dict[str, list[Instruction]] = {}
        self.entry = ""
        current = None
        for line in text.splitlines():
            line = re.sub(r"/\*.*?\*/", "", line).strip()
            if current is None:
                if head := COMPUTATION.fullmatch(line):
                    current = head[2]
                    self.computations[current] = []
                    self.entry = current if head[1] else self.entry
            elif line.startswith("}"):
                current = None
            elif line:
                self.computations[current].append(_instruction(line, current))
        if not self.entry:
            raise ValueError("a module without an entry")

    def __iter__(self) -> Iterator[Instruction]:
        for instructions in self.computations.values():
            yield from instructions

    @functools.cached_property
    def _by_name(self) -> dict[tuple[str, str], Instruction]:
        return {(each.computation, each.name): each for each in self}

    @functools.cached_property
    def _callers(self) -> dict[str, list[Instruction]]:
        callers: dict[str, list[Instruction]] = {name: [] for name in self.computations}
        for each in self:
            for name in each.called:
                callers[name].append(each)
        return callers

    def operands(self, instruction: Instruction) -> list[Instruction]:
        return [self._by_name[instruction.computation, name] for name in instruction.operands]

    def root(self, computation: str) -> Instruction:
        return next(each for each in self.computations[computation] if each.is_root)

    def callers(self, computation: str) -> list[Instruction]:
        return self._callers[computation]

    def origins(self, instruction: Instruction) -> list[Instruction]:
        """The instructions that compute a result, traced through moves and fusion boundaries; itself if none."""
        if instruction.opcode == "parameter" and instruction.computation != self.entry:
            number = int(instruction.text)
            calls = [call for call in self.callers(instruction.computation) if call.opcode in ("fusion", "call")]
            before = [self.operands(call)[number] for call in calls]
        elif instruction.opcode in ("fusion", "call") and len(instruction.types) == 1:
            before = [self.root(name) for name in instruction.called]
        elif instruction.opcode in MOVES:
            before = self.operands(instruction)[:1]
        else:
            before = []
        return [origin for each in before for origin in self.origins(each)] or [instruction]

    def readers(self, instruction: Instruction) -> list[Instruction]:
        """The instructions that compute with a result, traced through moves and fusion boundaries."""
        found = []
        for other in self.computations[instruction.computation]:
            for number, name in enumerate(other.operands):
                if name != instruction.name:
                    continue
                if other.opcode in ("fusion", "call"):
                    (called,) = other.called
                    found += self.readers(
                        next(p for p in self.computations[called] if p.opcode == "parameter" and p.text == str(number))
                    )
                elif other.opcode in MOVES:
                    found += self.readers(other)
                else:
                    found.append(other)
        if instruction.is_root:
            calls = [call for call in self.callers(instruction.computation) if call.opcode in ("fusion", "call")]
            found += [reader for call in calls for reader in self.readers(call)]
        return found


def is_float(dtype: str) -> bool:
    return FLOAT.fullmatch(dtype) is not None


def depth(program: Program, instruction: Instruction) -> int:
    """The largest number of products in a sum of a dot or a convolution."""
    left, right = program.operands(instruction)[:2]
    if instruction.opcode != "convolution":
        found = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
        return math.prod(left.shape[int(axis)] for axis in found[1].split(",") if axis) if found else 1
    labels = re.search(r"dim_labels=(\w+)_(\w+)->", instruction.attributes)
    if labels is None:
        raise ValueError(f"a convolution without labels: {instruction}")
    of_input, of_filter = (
        dict(zip(label, operand.shape, strict=True)) for label, operand in ((labels[1], left), (labels[2], right))
    )
    space = sorted(axis for axis in of_filter if axis.isdigit())
    apart, between = (_window(instruction, name, len(space)) for name in ("lhs_dilate", "rhs_dilate"))
    # In a dilated input, only those elements of a window count that lie on elements of the input. A TPU's compiler
    # writes batched products in this way: each window has as many elements as there are batches, one of which counts.
    inside = [
        min(of_filter[axis], of_input[axis], -(-((of_filter[axis] - 1) * step + 1) // distance))
        for axis, step, distance in zip(space, between, apart, strict=True)
    ]
    return of_filter["i"] * math.prod(inside)


def _window(instruction: Instruction, name: str, rank: int) -> list[int]:
    """A number for each spatial dimension of a convolution, such as its dilations."""
    window = re.search(r"\bwindow=\{([^}]*)\}", instruction.attributes)
    found = re.search(rf"\b{name}=([\dx]+)", window[1]) if window else None
    return [int(number) for number in found[1].split("x")] if found else [1] * rank


def entry_bytes(program: Program) -> int:
    """The bytes that the kernels of the entry read and write; each operand and each result counts once."""
    free = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "copy-done"}
    total = 0
    for each in program.computations[program.entry]:
        if each.opcode not in free:
            arrays = [*each.types, *(array for operand in program.operands(each) for array in operand.types)]
            total += sum(_bytes(*array) for array in arrays)
    return total


def _bytes(dtype: str, shape: tuple[int, ...]) -> int:
    bits = re.search(r"\d+", dtype)
    return math.prod(shape) * (int(bits[0]) if bits else 8) // 8  # a pred takes a byte


def _instruction(line: str, computation: str) -> Instruction:
    left = LEFT.match(line)
    if left is None:
        raise ValueError(f"not an instruction: {line[:200]!r}")
    rest = line[left.end() :]
    end = _closing(rest, 0) if rest.startswith("(") else rest.index(" ")
    types = [(dtype, tuple(map(int, sizes.split(","))) if sizes else ()) for dtype, sizes in ARRAY.findall(rest[:end])]
    rest = rest[end:].strip()
    start = rest.index("(")
    close = _closing(rest, start)
    inside, attributes = rest[start + 1 : close - 1], rest[close:]
    opcode = rest[:start]
    names = [] if opcode in ("constant", "parameter", "iota") else re.findall(r"([\w.\-]+)(?:,|$)", inside)
    return Instruction(left[2], computation, bool(left[1]), types, opcode, names, inside, attributes)


def _closing(text: str, start: int) -> int:
    """The position after the parenthesis that closes the one at `start`."""
    level = 0
    for place in range(start, len(text)):
        level += {"(": 1, ")": -1}.get(text[place], 0)
        if level == 0:
            return place + 1
    raise ValueError(f"a parenthesis is not closed: {text[:200]!r}")
