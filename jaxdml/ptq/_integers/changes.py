"""Tells whether a function is still the one that was quantized, and names the layer where it has changed."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxdml._graph.graph import Graph
from jaxdml._graph.parameters import listed
from jaxdml._graph.report import counted
from jaxdml.errors import PtqError
from jaxdml.ptq._build.conversions import build
from jaxdml.ptq._trace.equations import PRODUCT_PRIMITIVES, Program
from jaxdml.ptq._trace.signature import digest, fingerprint
from jaxdml.ptq._trace.traced import Traced

MOST_STEPS = 5  # that the error shows of each side
LONGEST = 160  # characters of a step
EQUATION = re.compile(
    r"(?P<outputs>.+?)(?:: (?P<sizes>\S+(?:, \S+)*))? = (?P<name>\S+) (?P<inputs>[^\[]*?)(?: \[(?P<params>.*)\])?",
    re.DOTALL,  # JAX writes the functions of custom_jvp, which may be in a loop, on lines of their own
)
WORDS = {"conv_general_dilated": "convolution", "dot_general": "product", "convert_element_type": "cast"}
NUMBER = re.compile(r"-?(?:\d|inf|nan|True|False)")
RANDOM = re.compile(r"random_(?:bits|seed|fold_in|split)|threefry|rng_")


def as_calibrated(traced: Traced, inputs: tuple[Any, ...], graph: Graph) -> Program:
    """Traces the function for the inputs with which it was quantized.

    Args:
      traced: the function, with the signature that it had.
      inputs: shapes and types of the inputs.
      graph: the quantized graph, whose nodes have the names of the layers.

    Raises:
      PtqError: if the function cannot be traced, or has other equations than those that were quantized.
    """
    program = traced.again(inputs)
    was, now = traced.signature or (), program.signature()
    if was and was != now:
        raise PtqError(_changed(_Side(was, graph), _Side(now, build(program).graph())))
    return program


def check_shapes(path: Path, was: Mapping[str, str] | str, program: Program, graph: Graph) -> None:
    """Checks that a function of the same equations computes values of the same shapes and types.

    Args:
      path: the file that has the quantized graph.
      was: the shapes and types in the file, `Program.shapes`; in files of the formats up to 6, a digest of them.
      program: the function, traced for the inputs with which it was quantized.
      graph: the quantized graph, whose nodes have the names of the layers.

    Raises:
      PtqError: if a shape or a type differs.
    """
    now, where, shown = program.shapes(), "", ""
    if isinstance(was, str):
        if was == digest(" ".join(now.values()).encode()):
            return
    else:
        name = next((name for name in now if was.get(name) != now[name]), "")
        if not name:
            return
        side = _Side(program.signature(), graph)
        place = next((place for place, line in enumerate(side.lines) if name in _outputs(line)), None)
        if place is None:
            where = ", first in one that does not depend on inputs"
            what = next((each.name for each in program.equations if name in each.outputs), name)
        else:
            where, what = f"; {_where(side, side, place)}", side.steps[place].text
        shown = f":\n  calibrated  {what}: {was.get(name)}\n  now         {what}: {now[name]}"
    raise PtqError(
        f"apply is not the function that was quantized: it computes values of other shapes or types than those in "
        f"{path}{where}{shown}\nPass the function that was quantized, or quantize this one"
    )


class _Step(NamedTuple):
    """An equation of data.

    Attributes:
      layer: the name of the layer if the equation is a convolution, a product or a loop with products; else "".
      text: its primitive, with the numbers and params that it reads.
      details: the parameters of its primitive.
      reads: what it reads: for each input, the step that computes it, or a digest of how it is computed from params.
    """

    layer: str
    text: str
    details: str
    reads: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """What tells two steps apart for a reader, wherever they are."""
        return self.layer, self.text, self.details

    def shown(self, in_full: bool = False) -> str:
        """The step in words; those of a layer leave the details out."""
        text = f"{self.text} [{self.details}]" if self.details and (in_full or not self.layer) else self.text
        text = f"layer {self.layer!r}: {text}" if self.layer else text
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."

    def with_own_details(self, other: "_Step") -> str:
        """The step in words, with the details that another one does not have."""
        mine, others = (re.split(r", (?=\w+=)", each.details) for each in (self, other))
        return self._replace(details=", ".join(each for each in mine if each not in others)).shown(in_full=True)


class _Side:
    """A signature, as the steps that compute data."""

    def __init__(self, signature: Sequence[str], graph: Graph) -> None:
        self.signature = signature
        self._names = {name: node.name for node in graph.nodes for name in node.outputs}
        self._fixed = dict[str, tuple[str, str]]()  # origins and sizes of values that do not depend on data
        self._made = dict[str, str]()  # the step that computes each value, or a digest of its computation
        self.steps, self.lines = list[_Step](), list[str]()  # and the line of each step
        for line in signature:
            for step in self._step(line):
                self.steps.append(step)
                self.lines.append(line)
        self.layers = [step.layer for step in self.steps if step.layer]

    def _step(self, line: str) -> Iterator[_Step]:
        """Yields the step of a line that computes data."""
        equation = EQUATION.fullmatch(line)
        if equation is None:
            name, _, words = line.partition(": ")
            size, *bits = words.split(" ")
            if name.startswith(("params", "captured")):
                self._fixed[name] = (f"array {bits[0]}" if bits else name.replace("/", "."), size)
                self._made[name] = line
            return
        outputs, name, details = equation["outputs"].split(", "), equation["name"], equation["params"] or ""
        inputs = equation["inputs"].split(", ")
        read = [self._fixed.get(each) or (_number(each.partition("=")[2]), "") for each in inputs]
        reads = tuple(self._made.get(each) or _number(each.partition("=")[2]) or each for each in inputs)
        if equation["sizes"] or (all(any(each) for each in read) and not any(map(RANDOM.match, (name, *inputs)))):
            origin = next((each for each in read if each[0] and not NUMBER.match(each[0])), (name, ""))
            sizes = (equation["sizes"] or origin[1]).split(", ")
            self._fixed |= {each: (origin[0], size) for each, size in zip_longest(outputs, sizes, fillvalue="")}
            made = hashlib.sha256(repr((name, reads, details)).encode()).hexdigest()
            self._made |= {each: f"{made} {place}" for place, each in enumerate(outputs)}
            return
        texts = [" ".join(filter(None, each)) for each in read]
        inner = re.findall(r" = (\w+) ", details)
        is_layer = not set(PRODUCT_PRIMITIVES).isdisjoint((name, *inner))
        layer = self._names.get(outputs[0], outputs[0]) if is_layer else ""
        of = counted(inner) or ("two values" if texts == ["", ""] else "")
        self._made |= {each: f"step {len(self.steps)} {place}" for place, each in enumerate(outputs)}
        yield _Step(layer, " ".join(filter(None, (WORDS.get(name, name), of and f"of {of}", *texts))), details, reads)


def _outputs(line: str) -> list[str]:
    """The names of the values that an equation of the signature computes."""
    equation = EQUATION.fullmatch(line)
    return equation["outputs"].split(", ") if equation else []


def _changed(was: _Side, now: _Side) -> str:
    """The error for a function that has changed: the first difference, and what to do."""
    prints = f"{fingerprint(was.signature)} and {fingerprint(now.signature)}"
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(was.steps, now.steps, strict=False)))
    if same == len(was.steps) == len(now.steps):
        ends = was.signature[-1], now.signature[-1]
        returns_others = ends[0] != ends[1]
        where = "they return other values" if returns_others else "they differ in values that no result depends on"
        shown = ends if returns_others else _first_lines(was.signature, now.signature)
    else:
        where, shown = _where(was, now, same), _shown(was.steps[same:], now.steps[same:])
        if shown[0] == shown[1]:  # the steps read other values, or values that are computed from params in another way
            lines = was.lines[same], now.lines[same]
            shown = lines if lines[0] != lines[1] else _first_lines(was.signature, now.signature)
    old, new = shown
    return (
        f"apply is not the function that was quantized (fingerprints {prints}); {where}:\n"
        f"  calibrated  {old}\n  now         {new}\n{_remedy(was, now)}"
    )


def _where(was: _Side, now: _Side, same: int) -> str:
    """The layers that one side lacks, and the layer at which the sides first differ."""
    missing, added = (
        [each for each in one.layers if each not in other.layers] for one, other in ((was, now), (now, was))
    )
    parts = [f"it lacks the layers {listed(missing)}"] if missing else []
    parts += [f"it has the new layers {listed(added)}"] if added else []
    old, new = (side.steps[same].layer if side.steps[same:] else "" for side in (was, now))
    before = [step.layer for step in was.steps[:same] if step.layer]
    after = [step.layer for step in was.steps[same:] if step.layer]
    places = [f"in layer {old!r}"] if old == new != "" else [f"behind layer {each!r}" for each in before[-1:]]
    places += [f"before layer {each!r}" for each in after[:1]]
    return ", ".join((*parts, f"they first differ {[*places, 'in the result'][0]}"))


def _shown(was: Sequence[_Step], now: Sequence[_Step]) -> tuple[str, str]:
    """The steps of both sides up to the next layer, or that layer, without those at the end that are the same."""
    parts = [[*takewhile(lambda step: not step.layer, steps)] for steps in (was, now)]
    old, new = parts if any(parts) else (was[:1], now[:1])
    while len(old) > 1 and len(new) > 1 and old[-1].words == new[-1].words:
        old, new = old[:-1], new[:-1]
    texts = [[step.shown() for step in steps] for steps in (old, new)]
    if texts[0] == texts[1]:
        pairs = list(zip(old, new, strict=True))
        texts = [[a.with_own_details(b) for a, b in pairs], [b.with_own_details(a) for a, b in pairs]]
    first, second = (" + ".join((*each[:MOST_STEPS], *["..."][: len(each) - MOST_STEPS])) for each in texts)
    return first or "nothing", second or "nothing"


def _first_lines(was: Sequence[str], now: Sequence[str]) -> tuple[str, str]:
    """The first lines that differ."""
    return next((a, b) for a, b in zip((*was, "nothing"), (*now, "nothing"), strict=False) if a != b)


def _remedy(was: _Side, now: _Side) -> str:
    texts = ["\n".join(side.signature) for side in (was, now)]
    old, new = (re.sub(r" [0-9a-f]{8,}$", "", text, flags=re.MULTILINE) for text in texts)  # without digests
    is_equal_in_32_bits = old != new and _in_32_bits(old) == _in_32_bits(new)
    if is_equal_in_32_bits or _has_64_bits(was.signature) != _has_64_bits(now.signature):
        return (
            "If jax_enable_x64 had another value in quantize, run the model with that value; if apply itself has "
            "changed, quantize it again"
        )
    if RANDOM.search(new) and not RANDOM.search(old):
        return "It now draws random numbers: turn dropout off, or quantize it again"
    return "Pass the function that was quantized, or quantize this one"


def _has_64_bits(equations: Sequence[str]) -> bool:
    return any("int64" in each or "float64" in each for each in equations)


def _in_32_bits(equation: str) -> str:
    """An equation's text with the types and the literals that it has without jax_enable_x64."""
    text = re.sub(r"(int|float)64", r"\g<1>32", equation)
    return re.sub(r"=(-?\d+\.?\d*(e[+-]?\d+)?)(?=[ ,]|$)", lambda number: f"={np.float32(number[1])}", text)


def _number(text: str) -> str:
    """A literal's text, without the digits that float32 does not have."""
    try:
        with np.errstate(over="ignore"):
            short = str(np.float32(text))
        return short if "." in text and float(short) == np.float32(text) else text
    except ValueError:  # no number
        return text
