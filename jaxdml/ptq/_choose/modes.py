"""How contractions run: with calibrated ranges, with ranges computed at each call, with weights in blocks, or in
floats.
"""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxdml._graph.graph import Graph, Node
from jaxdml.errors import PtqError
from jaxdml.ptq._build.operators import CONTRACTIONS
from jaxdml.ptq._choose.attention import products_of_attention
from jaxdml.ptq._choose.flow import wide_readers
from jaxdml.ptq._choose.rule import Rule, Sums, check_block_size
from jaxdml.ptq._grids.observers import CHOICES
from jaxdml.ptq._grids.ranges import BLOCK_WEIGHTS, integer_type
from jaxdml.ptq._trace.equations import CONTRACTION_PRIMITIVES


def is_contraction(node: Node) -> bool:
    """Whether a node is a convolution or product, quantizable or not."""
    return node.operator.kind in CONTRACTIONS or node.operator.name in CONTRACTION_PRIMITIVES


class BlockMode(NamedTuple):
    """The mode of a product of floats and weights that have a scale for each block along the contraction dimension."""

    dtype: str
    size: int


# "static": 8-bit inputs with calibrated ranges; "static16": 16-bit inputs; "dynamic"; "float"; or `BlockMode`.
Mode = str | BlockMode
FLOAT, STATIC16 = "float", "static16"
MIXED = "mixed"  # an argument, not a mode
STATIC = ("static", STATIC16)
ON_OWN_GRID = "reads 8 bits, to which fake_quantize rounds"
# The modes of results of contractions and float sums, and the reasons why contractions are FLOAT or not STATIC16.
Modes = tuple[dict[str, Mode], dict[str, str]]


def blocks_of(weights: Any, block_size: Any, prefix: str = "") -> BlockMode | None:
    """How the matrices of products are divided into blocks; None for no blocks.

    Args:
      weights: the type of weights.
      block_size: the number of weights in a block, or None.
      prefix: the beginning of error messages.

    Raises:
      PtqError: if an argument is wrong, or if int4 has no block_size.
    """
    dtype = integer_type(f"{prefix}weights", weights, BLOCK_WEIGHTS)
    if block_size is None:
        if dtype.name != "int8":
            raise PtqError(f"{prefix}weights is {dtype}, which needs blocks: write block_size=32")
        return None
    check_block_size(f"{prefix}block_size", block_size)
    return BlockMode(dtype.name, block_size)


def modes_of(
    graph: Graph, products: str, rules: Sequence[Rule], weights: Any = np.int8, block_size: int | None = None,
    sums: Sums = "integer",
) -> Modes:  # fmt: skip
    """Maps results of contractions to modes; a second dict has the reasons for "float", and for not reading 16 bits.

    Args:
      graph: the float graph.
      products: the mode of products; "mixed" is "dynamic" for products of attention, and "static" for all others.
      rules: rules that override modes.
      weights: the type of weights.
      block_size: the block size of products with weights, unless a rule sets another mode; None for no blocks.
      sums: "float": sums of two values have the mode FLOAT.
    """
    modes, reasons, data = dict[str, Mode](), dict[str, str](), set(graph.inputs)
    can_read_wide, in_attention = wide_readers(graph), products_of_attention(graph)
    for node in graph.nodes:
        output = node.outputs[0]
        by_default = products if products != MIXED else "dynamic" if output in in_attention else "static"
        if sums == FLOAT and node.operator.kind == "add" and data.issuperset(node.inputs):
            modes[output] = FLOAT
        if not data.isdisjoint(node.inputs):
            data.update(node.outputs)
        if node.operator.kind not in CONTRACTIONS:
            continue
        matching = [rule for rule in rules if re.search(rule.pattern, node.name)]
        kept = next((rule for rule in matching if rule.keep), None)
        is_product = node.operator.kind == "dot"
        deciding = (rule for rule in matching if rule.sets_activations or (is_product and rule.sets_products))
        asked = next(deciding, None)
        if kept is not None:
            modes[output], reasons[output] = FLOAT, f"kept in floats by Rule({kept.pattern!r})"
        elif asked is not None and asked.sets_activations and output in can_read_wide:
            modes[output] = STATIC16
        elif asked is not None and asked.sets_activations:
            modes[output], reasons[output] = "static", ON_OWN_GRID
        elif not is_product:
            modes[output] = "static"
        elif asked is not None and asked.products:
            modes[output] = asked.products
        else:
            blocks = blocks_of(weights, block_size) if asked is None else _blocks_of_rule(asked, weights, block_size)
            modes[output] = by_default if blocks is None or node.inputs[1] in data else blocks
    return modes, reasons


def _blocks_of_rule(rule: Rule, weights: Any, block_size: int | None) -> BlockMode | None:
    weights = weights if rule.weights is None else rule.weights
    return blocks_of(weights, block_size if rule.block_size is None else rule.block_size, f"Rule({rule.pattern!r}): ")


def modes_as(modes: Mapping[str, Mapping[str, Mode]], graph: Graph, scan: str) -> Modes:
    """The modes that `modes` has for the function ("") or a scan; contractions without a mode stay in floats."""
    chosen = modes.get(scan, {})
    names = (node.outputs[0] for node in graph.nodes if is_contraction(node) or node.outputs[0] in chosen)
    return {name: chosen.get(name, FLOAT) for name in names}, {}


def options_to_try(
    node: Node, mode: Mode, *, can_read_wide: bool, is_alone: bool
) -> Iterator[Mapping[str, Any]]:  # fmt: skip
    """The options of a `Rule` that can change how a contraction on integers runs.

    Args:
      node: the contraction.
      mode: its mode.
      can_read_wide: whether it can read 16 bits.
      is_alone: whether no other contraction of the model runs on integers.
    """
    if mode in STATIC:
        yield from ({"observer": observer} for observer in CHOICES)
    if isinstance(mode, BlockMode) and mode.dtype == "int4":
        yield {"weights": "int8", "block_size": mode.size}
    if mode in ("static", "dynamic") and can_read_wide:
        yield {"activations": "uint16"}
    if mode != "dynamic" and node.operator.kind == "dot":
        yield {"products": "dynamic"}
    if not is_alone:  # a model has at least one contraction on integers
        yield {"keep": "float"}


def check_matches(
    layers: Sequence[Node], with_weights: Container[str], can_read_wide: Container[str], rules: Sequence[Rule]
) -> None:
    """Rejects a rule that matches no layer, or only layers that it cannot change.

    Args:
      layers: the convolutions and products.
      with_weights: the names of those that multiply by known weights.
      can_read_wide: the names of those that can read 16 bits.
      rules: the rules.

    Raises:
      PtqError: if a rule is rejected; if the rule matches no layer, the error lists the layers.
    """
    names = list(dict.fromkeys(node.name for node in layers))
    products = [node.name for node in layers if node.operator.kind == "dot"]
    for rule in rules:
        if not any(re.search(rule.pattern, name) for name in names):
            listed = ", ".join(map(repr, names)) or "none"
            raise PtqError(f"Rule({rule.pattern!r}) matches no layer; the layers are {listed}")
        matching = [name for name in products if re.search(rule.pattern, name)]
        if not matching and (rule.products == "dynamic" or rule.has_blocks):
            what = "filters of convolutions have no blocks" if rule.has_blocks else "convolutions cannot be dynamic"
            raise PtqError(f"Rule({rule.pattern!r}) matches no product, and {what}")
        if rule.has_blocks and not any(name in with_weights for name in matching):
            what = "products of two computed values, which have no weights to divide into blocks"
            remedy = "write products='dynamic' or activations=jnp.uint16 in place of weights and block_size"
            raise PtqError(f"Rule({rule.pattern!r}) matches only {what}: {remedy}, or change the pattern")
        if rule.sets_activations and not any(re.search(rule.pattern, name) and name in can_read_wide for name in names):
            what = "layers that stay in floats, or read the 8 bits to which fake_quantize rounds"
            raise PtqError(f"Rule({rule.pattern!r}) matches only {what}: leave the rule out, or change the pattern")
