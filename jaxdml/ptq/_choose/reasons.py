"""Says why values stay in floats: the deciding node shows its reason, and other nodes name the deciding node."""

from collections.abc import Mapping, Sequence, Set

from jaxdml._graph.graph import ELEMENT_WISE, OF_INDICES, Node, moves
from jaxdml._graph.report import (
    COMPUTED_BY,
    CONTRACTION_SOURCES,
    FROM_PARAMETERS,
    NO_OPERATOR,
    PRODUCT_OF_PARAMETERS,
    READ_BY,
)
from jaxdml.ptq._build.operators import CONTRACTIONS
from jaxdml.ptq._choose.flow import Flow
from jaxdml.ptq._choose.modes import FLOAT, STATIC16, BlockMode, Mode

JOINS = ("add", "concat", "mean", "mul", "pad", "window_mean")  # kinds with quantized operators, besides contractions
OF_VALUES = ("add", "concatenate", "mul")  # operators that are quantized if all their inputs are values
NO_OPERATOR_OF_CONSTANTS = "there is no quantized {} of values and constants"
OF_FLOATS = "it reads floats"
RETURNED = "kept in floats: the function returns it"
IN_BLOCKS = "kept in floats: {} reads floats"
READ_WIDE = "kept in floats: {} reads 16 bits"
RANGED_BY = "kept in floats: {} computes the range of its inputs at each call"


def reasons_of(
    flow: Flow, modes: Mapping[str, Mode], can: Set[str], nodes: Set[Node], given: Mapping[str, str]
) -> dict[str, str]:  # fmt: skip
    """Maps the first result of each node in floats to a reason. Contractions get reasons from `given` only.

    Args:
      flow: the graph.
      modes: maps the result of each contraction, and of each sum in floats, to its mode.
      can: the values that can be quantized.
      nodes: the nodes that run on integers.
      given: maps first results to reasons that are already known.
    """
    reasons = dict(given)
    deciding = dict[str, tuple[int, str]]()  # maps values that cannot be integers to the last node that decides this
    computing = [node for node in flow.graph.nodes if node.operator.kind not in OF_INDICES]
    for place, node in enumerate(computing):
        name, data = node.outputs[0], flow.data_inputs(node)
        if node in nodes:
            if moves(node) and data[0] in deciding:  # it moves what is quantized for a contraction
                deciding |= dict.fromkeys(node.outputs, deciding[data[0]])
        elif name in given or node.operator.kind in CONTRACTIONS:
            deciding |= dict.fromkeys(node.outputs, (place, node.name))
        elif not data:
            is_product = not CONTRACTION_SOURCES.isdisjoint(node.source)
            reasons[name] = PRODUCT_OF_PARAMETERS if is_product else FROM_PARAMETERS
        elif name not in can:
            _, decided = before = max((deciding[each] for each in data if each in deciding), default=(0, ""))
            is_inherited = bool(decided) and not node.remark and _has_operator(node, data)
            reasons[name] = COMPUTED_BY.format(decided) if is_inherited else node.remark or _of_operator(node, data)
            deciding |= dict.fromkeys(node.outputs, before if is_inherited else (place, node.name))
    for node in reversed(computing):
        name = node.outputs[0]
        if node not in nodes and name not in reasons and node.operator.kind not in CONTRACTIONS:
            reasons[name] = node.remark or _because_of_reader(flow, modes, node, reasons, can)
    return reasons


def _has_operator(node: Node, data: Sequence[str]) -> bool:
    """Whether a node would run on integers if it read integers."""
    kind = node.operator.kind
    return moves(node) or kind in ("clip", *JOINS) or (kind in ELEMENT_WISE and len(data) == 1)


def _of_operator(node: Node, data: Sequence[str]) -> str:
    """Why a node has no quantized operator."""
    if node.operator.kind == "order":
        return OF_FLOATS
    reads_constants = node.operator.name in OF_VALUES and len(data) < len(node.inputs)
    return (NO_OPERATOR_OF_CONSTANTS if reads_constants else NO_OPERATOR).format(node.operator.name)


def _because_of_reader(
    flow: Flow, modes: Mapping[str, Mode], node: Node, reasons: Mapping[str, str], can: Set[str]
) -> str:  # fmt: skip
    """Why a node's result, which could be quantized, is not read as integers."""
    readers = [each for name in node.outputs for each in flow.readers(name)]
    if not readers:
        return RETURNED
    deciding = (each for each in readers if modes.get(each.outputs[0]) in (STATIC16, FLOAT))
    reader = next(deciding, readers[0])
    name = reader.outputs[0]
    mode = modes.get(name)
    if mode == STATIC16:
        return READ_WIDE.format(reader.name)
    if mode == "dynamic":
        return RANGED_BY.format(reader.name)
    if isinstance(mode, BlockMode):
        return IN_BLOCKS.format(reader.name)
    return reasons[name] if name in can and name in reasons else READ_BY.format(reader.name)
