"""The reasons why nodes differ from onnxruntime, in words; each comes from an experiment or a measurement."""

import itertools
import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from jaxdml._graph.graph import Node
from jaxdml._quantized.onnxruntime.nbits import PRECISIONS
from jaxdml.errors import ModelError
from jaxdml.onnx._compare.differences import Difference
from jaxdml.onnx._compare.sessions import Settings
from jaxdml.ptq._integers.operators import TABLE

SUBNORMAL = float(np.finfo(np.float32).tiny)  # float32 numbers below this are subnormal
LAST_PLACES = 8  # the maximum, in units in the last place, of a difference in a float function's last bits
ROUNDED_BY_BOTH = 4  # the accuracy level at which onnxruntime also rounds floats
OF_SIGMOID = 2.0**-22  # the maximum absolute difference of Sigmoids, which onnxruntime computes by a rational function
SMALLER = 16  # an experiment explains a difference if it makes the difference at least this many times smaller
BY_FORMULA = {
    "QLinearAdd": "sum", "QLinearAveragePool": "mean", "QLinearGlobalAveragePool": "mean",
    "add": "sum", "mean": "mean", "window_mean": "mean",
}  # fmt: skip
NUDGES = (
    "last bits matter as much within onnxruntime: if its inputs move to their next floats, its outputs move by at most"
)
Differences = Sequence[Difference | None]


@dataclass(frozen=True)
class Experiment:
    """A change that shows the cause of a node's difference if it makes the difference smaller.

    Attributes:
      concerns: whether the experiment applies to a node.
      run: returns each node's own difference in the experiment; None if onnxruntime rejects the file with the
        experiment's settings.
      cause: the cause in words, for a node.
      question: the question that the experiment would answer, as a clause.
    """

    concerns: Callable[[Node], bool]
    run: Callable[[], Differences | None]
    cause: Callable[[Node], str]
    question: str = ""


def _is_quantized(node: Node) -> bool:
    return node.operator.is_quantized


def _is_lstm(node: Node) -> bool:
    return node.operator.kind == "dynamic_lstm"


def _has_channels_last(node: Node) -> bool:
    return bool(node.options.get("channels_last"))


def _is_any(node: Node) -> bool:
    return True


class Setting(NamedTuple):
    """Settings of a session, the nodes that they may affect, and the cause that they show if they remove a difference.

    The text of the cause ends with the settings, because the difference that remains with them is appended.
    """

    settings: Settings
    concerns: Callable[[Node], bool]
    cause: str
    question: str


SETTINGS = (
    Setting(
        Settings({"session.x64quantprecision": "1"}), _is_quantized,
        "int8 weights saturate in onnxruntime's kernel on this processor; with session.x64quantprecision=1",
        "whether int8 weights saturate",
    ),
    Setting(
        Settings({"session.qdqisint8allowed": "1"}), _is_any,
        "onnxruntime computes int8 activations partly in floats; with session.qdqisint8allowed=1",
        "whether int8 activations are floats",
    ),
    Setting(
        Settings({"session.qdq_matmulnbits_accuracy_level": "0"}), _is_any,
        "the accuracy level: onnxruntime rounds the product's floats to int8; "
        "with session.qdq_matmulnbits_accuracy_level=0",
        "whether the accuracy level matters",
    ),
    Setting(
        Settings(threads=1), _is_lstm,
        "onnxruntime splits the items of a batch among its threads, and each thread quantizes its own items' hidden "
        "states; with intra_op_num_threads=1",
        "whether threads matter",
    ),
    Setting(
        Settings({"optimization.disable_specified_optimizers": "WeightBiasQuantization"}), _is_any,
        "onnxruntime quantizes float weights and biases when it loads the file; "
        "with optimization.disable_specified_optimizers=WeightBiasQuantization",
        "whether float weights are quantized",
    ),
    Setting(
        Settings({"session.disable_double_qdq_remover": "1"}), _is_any,
        "onnxruntime merges consecutive pairs of QuantizeLinear and DequantizeLinear; "
        "with session.disable_double_qdq_remover=1",
        "whether pairs are merged",
    ),
    Setting(
        Settings(level="DISABLE_ALL"), _is_any,
        "onnxruntime's optimizations change the graph; without optimizations",
        "whether optimizations matter",
    ),
    Setting(
        Settings(has_unsigned_filters=True), _has_channels_last,
        "int8 weights saturate in onnxruntime's kernel on this processor; with uint8 weights of the same values",
        "whether int8 weights saturate",
    ),
)  # fmt: skip


def experiments(
    by_settings: Callable[[Settings], Differences], by_formula: Callable[[], Differences]
) -> list[Experiment]:  # fmt: skip
    """The experiments, in the order in which they are made.

    Args:
      by_settings: maps settings of onnxruntime to the nodes' own differences from its results.
      by_formula: returns the nodes' own differences with the formulas of numerics="onnxruntime".
    """
    of_settings = (
        Experiment(
            each.concerns, partial(_allowed, by_settings, each.settings), partial(_given, each.cause), each.question
        )
        for each in SETTINGS
    )
    return [Experiment(lambda node: node.operator.name in BY_FORMULA, by_formula, _of_formula), *of_settings]


def output_reasons(
    own: Difference, by_settings: Callable[[Settings], Difference | None], nudged: Callable[[], Difference | None]
) -> list[str]:  # fmt: skip
    """Why the outputs of the unchanged file differ: settings that explain it, or that last bits matter; else empty.

    Args:
      own: the difference of the outputs.
      by_settings: maps settings of onnxruntime to the difference of the outputs from its results.
      nudged: returns how far onnxruntime's outputs move if its inputs move to their next floats; None if they cannot.
    """
    rests = ((each.cause, _allowed(by_settings, each.settings)) for each in SETTINGS)
    found = (f"the outputs: {cause}, {_what_remains(rest)}" for cause, rest in rests if rest and _explains(rest, own))
    return [*itertools.islice(itertools.chain(found, _of_nudges(own, nudged)), 1)]


def _of_nudges(own: Difference, nudged: Callable[[], Difference | None]) -> Iterator[str]:
    """That onnxruntime's own outputs depend as much on last bits, if they do.

    If the outputs themselves differ in last bits alone, there is nothing to show.
    """
    is_in_last_bits = own.last_places is not None and own.last_places <= LAST_PLACES
    moved = None if is_in_last_bits else nudged()
    if moved and math.isfinite(moved.relative) and moved.relative * 2 >= own.relative:
        yield f"the outputs: {NUDGES} {moved.by}"


def _allowed[T](by_settings: Callable[[Settings], T], settings: Settings) -> T | None:
    """The result with these settings; None if onnxruntime rejects the file with them."""
    try:
        return by_settings(settings)
    except ModelError:
        return None


def _explains(rest: Difference, own: Difference) -> bool:
    """Whether so little of a difference remains in an experiment that it shows the cause."""
    return math.isfinite(rest.relative) and rest.relative * SMALLER <= own.relative


def _of_formula(node: Node) -> str:
    word = BY_FORMULA[node.operator.name]
    return f"DirectML's formula for the {word} rounds differently near ties; with numerics='onnxruntime'"


def own_reasons(
    nodes: Sequence[Node], own: Differences, tried: Sequence[Experiment], in_file: Container[str],
    operators: Callable[[], Mapping[str, str]],
) -> dict[int, str]:  # fmt: skip
    """The reason for each node's own difference, keyed by the node's place; nodes without a difference have none.

    Args:
      nodes: the nodes.
      own: their own differences.
      tried: the experiments.
      in_file: the names of the values that the file has.
      operators: maps values to the operators with which onnxruntime computes them.
    """
    found = dict[int, str]()
    pending = {place: each for place, each in enumerate(own) if each and each.differing}
    for place, each in pending.items():
        if _needs_no_experiment(nodes[place], each):
            found[place] = _of_floats(nodes[place], each)
    rejected = dict[int, str]()  # questions of experiments for which onnxruntime rejects the file
    for experiment in tried:
        concerned = [place for place in pending if place not in found and experiment.concerns(nodes[place])]
        rests = experiment.run() if concerned else None
        if rests is None:
            rejected = dict.fromkeys(concerned, experiment.question) | rejected
        for place, rest in enumerate(rests or ()):
            if place in concerned and rest and _explains(rest, pending[place]):
                found[place] = f"{experiment.cause(nodes[place])}, {_what_remains(rest)}"
    operators = cache(operators)
    absent = {name for node in nodes for name in node.outputs if name not in in_file}
    for place, each in pending.items():
        if place not in found and each.last_places is not None:
            found[place] = _of_floats(nodes[place], each)
        elif place not in found:
            reads_absent = not absent.isdisjoint(nodes[place].inputs)
            found[place] = _of_integers(nodes[place], operators, rejected.get(place), reads_absent)
    return found


def _given(cause: str, node: Node) -> str:
    return cause


def _what_remains(rest: Difference) -> str:
    if not rest.differing:
        return "no element differs"
    words = "element differs" if rest.differing == 1 else "elements differ"
    return f"{rest.differing:,} {words}, by at most {rest.by}"


def _needs_no_experiment(node: Node, own: Difference) -> bool:
    """Whether a difference in floats is so small that it is one of formulas."""
    is_in_last_bits = own.last_places is not None and own.last_places <= LAST_PLACES
    return is_in_last_bits or own.largest < SUBNORMAL or _is_of_sigmoid(node, own)


def _is_of_sigmoid(node: Node, own: Difference) -> bool:
    return node.operator.name == "Sigmoid" and own.largest <= OF_SIGMOID


def _of_floats(node: Node, own: Difference) -> str:
    """The reason for a difference in floats."""
    units = f"{_units(own)} of the largest value"
    if own.largest < SUBNORMAL:
        return f"jaxdml treats float32 subnormals as 0: the difference is at most {own.by}"
    if node.operator.kind == "product_of_blocks":
        return f"{_of_blocks(node.options)}: {units}"
    if own.last_places is not None and own.last_places <= LAST_PLACES:
        return f"a float function's last bits: {units}"
    if _is_of_sigmoid(node, own):
        return f"onnxruntime's Sigmoid errs by some 1e-7 where its results are smaller, too: by at most {own.by} here"
    return f"a different formula or a different order of float operations: {units}"


def _of_blocks(options: Mapping[str, Any]) -> str:
    """The reason for a difference in a blockwise product, according to its accuracy level."""
    level = options.get("accuracy_level")
    if level is None:
        return f"the accuracy level: jaxdml rounds the product's floats to {options['precision']} in blocks"
    if level == ROUNDED_BY_BOTH:
        rounded = f"both round the product's floats to {PRECISIONS[level]}"
        return f"accuracy level {level}: {rounded}, and add in a different order"
    return f"accuracy level {level}: jaxdml rounds the product's floats to {PRECISIONS[level]} in blocks"


def _units(own: Difference) -> str:
    """The largest difference in words."""
    count = own.last_places or 0
    if count < 1.5:
        return "at most 1 unit in the last place" if count <= 1 else "1 unit in the last place"
    return f"{count:,.0f} units in the last place"


def _of_integers(
    node: Node, operators: Callable[[], Mapping[str, str]], rejected: str | None, reads_absent: bool
) -> str:  # fmt: skip
    """The reason for a difference in integers that no experiment explains."""
    if node.operator.name == TABLE.name:
        return (
            "the file computes the table by float operators; save(..., tables='gather') writes an exact look-up table"
        )
    if reads_absent:
        return "it reads values that the file computes by other operators, which round differently"
    theirs = next((operators()[name] for name in node.outputs if name in operators()), None)
    if theirs == "QuantizeLinear" and node.operator.is_quantized:
        return "onnxruntime did not fuse the node: it computes it in floats, and quantizes the result"
    by = f"onnxruntime's {theirs}" if theirs else "onnxruntime"
    if rejected:
        return f"{by} differs; onnxruntime rejects the file with the settings that would show {rejected}"
    return f"unexplained: {by} differs, and no experiment shows why; please report it with the file"
