"""Why nodes differ from onnxruntime, in words; each reason is the result of an experiment, or a measurement."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from jaxdml._graph.graph import Node
from jaxdml._quantized.onnxruntime.nbits import PRECISIONS
from jaxdml.errors import ModelError
from jaxdml.onnx._compare.differences import Difference

LAST_PLACES = 8  # the most units in the last place by which float functions differ in their last bits
ROUNDED_BY_BOTH = 4  # the accuracy level at which onnxruntime, too, rounds floats
SMALLER = 16  # an experiment explains a difference that it makes so many times smaller
BY_FORMULA = {
    "QLinearAdd": "sum", "QLinearAveragePool": "mean", "QLinearGlobalAveragePool": "mean",
    "add": "sum", "mean": "mean", "window_mean": "mean",
}  # fmt: skip
Differences = Sequence[Difference | None]


@dataclass(frozen=True)
class Experiment:
    """Something that may make a node's difference smaller, and what it then shows.

    Attributes:
      concerns: whether the experiment is made for a node.
      run: returns the own differences of all nodes in the experiment; None if onnxruntime refuses it.
      cause: the cause in words, for a node.
    """

    concerns: Callable[[Node], bool]
    run: Callable[[], Differences | None]
    cause: Callable[[Node], str]


def _is_quantized(node: Node) -> bool:
    return node.operator.is_quantized


OPTIONS: tuple[tuple[str, str, Callable[[Node], bool], str], ...] = (
    (
        "session.x64quantprecision", "1", _is_quantized,
        "int8 weights saturate in onnxruntime's kernel on this processor, "
        "session.x64quantprecision=1 has the exact value",
    ),
    (
        "session.qdqisint8allowed", "1", lambda node: True,
        "onnxruntime computes int8 activations partly in floats, session.qdqisint8allowed=1 keeps them in integers",
    ),
    (
        "session.qdq_matmulnbits_accuracy_level", "0", lambda node: True,
        "the accuracy level: onnxruntime rounds the floats of the product to int8, "
        "session.qdq_matmulnbits_accuracy_level=0 does not",
    ),
)  # fmt: skip


def experiments(
    by_option: Callable[[Mapping[str, str]], Differences], by_formula: Callable[[], Differences]
) -> list[Experiment]:  # fmt: skip
    """The experiments, in the order in which they are made.

    Args:
      by_option: maps options of onnxruntime's session to the nodes' own differences from that session.
      by_formula: returns the nodes' own differences with the formulas of numerics="onnxruntime".
    """

    def option(key: str, value: str) -> Callable[[], Differences | None]:
        def run() -> Differences | None:
            try:
                return by_option({key: value})
            except ModelError:  # some options are not for all files
                return None

        return run

    def formula(node: Node) -> str:
        return (
            f"DirectML's formula of the {BY_FORMULA[node.operator.name]} rounds otherwise near ties, "
            "numerics='onnxruntime' has onnxruntime's"
        )

    made = [Experiment(lambda node: node.operator.name in BY_FORMULA, by_formula, formula)]
    for key, value, concerns, cause in OPTIONS:
        made.append(Experiment(concerns, option(key, value), partial(_given, cause)))
    return made


def own_reasons(
    nodes: Sequence[Node], own: Differences, tried: Sequence[Experiment], operators: Callable[[], Mapping[str, str]]
) -> dict[int, str]:  # fmt: skip
    """The reason for each node's own difference, keyed by the node's place; nodes without a difference have none.

    Args:
      nodes: the nodes.
      own: their own differences.
      tried: the experiments.
      operators: maps values to the operators by which onnxruntime computes them.
    """
    found = dict[int, str]()
    pending = {place: each for place, each in enumerate(own) if each and each.differing}
    for place, each in pending.items():
        if each.last_places is not None and each.last_places <= LAST_PLACES:
            found[place] = _of_floats(nodes[place], each)
    for experiment in tried:
        concerned = [place for place in pending if place not in found and experiment.concerns(nodes[place])]
        differences = experiment.run() if concerned else None
        for place in concerned if differences is not None else ():
            rest = differences[place] if differences is not None else None
            if rest is not None and rest.largest * SMALLER <= pending[place].largest:
                found[place] = f"{experiment.cause(nodes[place])}: {_what_remains(rest)}"
    operators = cache(operators)
    for place, each in pending.items():
        if place not in found:
            found[place] = (
                _of_floats(nodes[place], each)
                if each.last_places is not None
                else _of_integers(nodes[place], operators())
            )
    return found


def _given(cause: str, node: Node) -> str:
    return cause


def _what_remains(rest: Difference) -> str:
    if not rest.differing:
        return "no element differs then"
    return f"{rest.differing:,} elements differ then, by at most {rest.largest:.3g}"


def _of_floats(node: Node, own: Difference) -> str:
    """The reason for a difference in floats."""
    units = f"{_units(own)} of the largest value"
    if node.operator.kind == "product_of_blocks":
        return f"{_of_blocks(node.options)}: {units}"
    if own.last_places is not None and own.last_places <= LAST_PLACES:
        return f"a float function's last bits: {units}"
    return f"another formula or another order of float operations: {units}"


def _of_blocks(options: Mapping[str, Any]) -> str:
    """What the accuracy level of a product by blocks means."""
    level = options.get("accuracy_level")
    if level is None:
        precision = options["precision"]
        return f"the accuracy level: jaxdml rounds the floats to {precision} in blocks, onnxruntime to another type"
    if level == ROUNDED_BY_BOTH:
        return f"accuracy level {level}: both round the floats to {PRECISIONS[level]}, and add them in another order"
    return f"accuracy level {level}: jaxdml rounds the floats to {PRECISIONS[level]} in blocks, onnxruntime to float32"


def _units(own: Difference) -> str:
    """The largest difference in words."""
    count = own.last_places or 0
    if count < 1.5:
        return "at most 1 unit in the last place" if count <= 1 else "1 unit in the last place"
    return f"{count:,.0f} units in the last place"


def _of_integers(node: Node, operators: Mapping[str, str]) -> str:
    """The reason for a difference in integers that no experiment explains."""
    theirs = next((operators[name] for name in node.outputs if name in operators), None)
    if theirs == "QuantizeLinear" and node.operator.is_quantized:
        return "onnxruntime did not fuse the node: it computes it in floats, and quantizes the result"
    by = f"onnxruntime's {theirs}" if theirs else "onnxruntime"
    return f"unexplained: {by} differs with each option that was tried; please report it"
