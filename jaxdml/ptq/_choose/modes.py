"""How each contraction runs: with calibrated ranges, with ranges computed at each call, by blocks, or in floats."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxdml._graph.graph import Graph, Node
from jaxdml.errors import PtqError
from jaxdml.ptq._build.operators import CONTRACTIONS
from jaxdml.ptq._choose.rule import Rule
from jaxdml.ptq._grids.observers import CHOICES
from jaxdml.ptq._trace.equations import CONTRACTION_PRIMITIVES


def is_contraction(node: Node) -> bool:
    """Whether a node is a convolution or product, quantizable or not."""
    return node.operator.kind in CONTRACTIONS or node.operator.name in CONTRACTION_PRIMITIVES


class Blocks(NamedTuple):
    """The mode of a product that reads floats, and whose weights have a scale for each block along the summed axis."""

    dtype: str
    size: int


Mode = str | Blocks  # "static", "dynamic" or "float", or the blocks
# Map results of contractions to modes, and to reasons to stay in floats.
Modes = tuple[dict[str, Mode], dict[str, str]]


def modes_of(graph: Graph, products: str, rules: Sequence[Rule], blocks: Blocks | None = None) -> Modes:
    """Maps results of contractions to modes; a second dict has the reasons for "float".

    Args:
      graph: the float graph.
      products: the mode of products.
      rules: override modes.
      blocks: the mode of products by weights for which no rule names another mode; None for the mode `products`.
    """
    modes, reasons, data = dict[str, Mode](), dict[str, str](), set(graph.inputs)
    for node in graph.nodes:
        if not data.isdisjoint(node.inputs):
            data.update(node.outputs)
        if node.operator.kind not in CONTRACTIONS:
            continue
        output = node.outputs[0]
        matching = [rule for rule in rules if re.search(rule.pattern, node.name)]
        kept = next((rule for rule in matching if rule.keep), None)
        asked = next((rule.products for rule in matching if rule.products), None)
        if kept is not None:
            modes[output], reasons[output] = "float", f"kept in floats by Rule({kept.pattern!r})"
        elif node.operator.kind != "dot":
            modes[output] = "static"
        elif blocks is not None and asked is None and node.inputs[1] not in data:
            modes[output] = blocks
        else:
            modes[output] = asked or products
    return modes, reasons


def modes_as(modes: Mapping[str, Mapping[str, Mode]], graph: Graph, scan: str) -> Modes:
    """The modes that `modes` has for the function ("") or a scan; contractions without a mode stay in floats."""
    chosen = modes.get(scan, {})
    return {node.outputs[0]: chosen.get(node.outputs[0], "float") for node in filter(is_contraction, graph.nodes)}, {}


def options_to_try(node: Node, modes: Mapping[str, Mode]) -> Iterator[Mapping[str, Any]]:
    """The options of a `Rule` that can change how a contraction on integers runs, given the modes of all."""
    mode = modes[node.outputs[0]]
    if mode == "static":
        yield from ({"observer": observer} for observer in CHOICES)
    if mode != "dynamic" and node.operator.kind == "dot":
        yield {"products": "dynamic"}
    if sum(each != "float" for each in modes.values()) > 1:  # a model has at least one contraction on integers
        yield {"keep": "float"}


def check_matches(layers: Sequence[Node], rules: Sequence[Rule]) -> None:
    """Refuses a rule that matches no layer, or only layers that it cannot change.

    Raises:
      PtqError: if a rule is refused; if the rule matches no layer, the error lists the layers.
    """
    names = list(dict.fromkeys(node.name for node in layers))
    products = [node.name for node in layers if node.operator.kind == "dot"]
    for rule in rules:
        if rule.products == "dynamic" and any(re.search(rule.pattern, name) for name in names) and not (
            any(re.search(rule.pattern, name) for name in products)
        ):  # fmt: skip
            raise PtqError(f"Rule({rule.pattern!r}) matches no product, and convolutions cannot be dynamic")
        if not any(re.search(rule.pattern, name) for name in names):
            listed = ", ".join(map(repr, names)) or "none"
            raise PtqError(f"Rule({rule.pattern!r}) matches no layer; the layers are {listed}")
