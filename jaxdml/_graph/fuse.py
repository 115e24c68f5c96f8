"""The fusing pass: replaces operators between dequantize and quantize nodes by quantized operators.

The pass works on the graph's normal form. Most operators are fused if their inputs are dequantized and their only
reader is a quantize node. An operator that stays in floats next to a quantize or dequantize node gets a remark with the
reason.
"""

from collections.abc import Callable, Mapping

from jaxdml._graph.evaluate import ResultCheck, folded
from jaxdml._graph.graph import CONVERSIONS, Graph, Node, Operator, without_dead
from jaxdml._graph.grids import Grids
from jaxdml._graph.normal_form import in_normal_form
from jaxdml._graph.operands import StaysFloat
from jaxdml._graph.places import with_places
from jaxdml._graph.rules import RULES, Fusion
from jaxdml._graph.scales import with_scales
from jaxdml._graph.stays import stays


def fused(
    graph: Graph, quantized: Mapping[str, Operator], *, rules: Mapping[str, Callable[[Node, Grids], Fusion]] = RULES,
    check_result: ResultCheck = lambda node, value: None,
) -> Graph:  # fmt: skip
    """The graph with quantized operators.

    Args:
      graph: the graph. `RULES` lists the node kinds that are fused.
      quantized: maps kinds to quantized operators.
      rules: maps node kinds to fusion rules.
      check_result: raises if a folded or converted constant is not allowed.
    """
    graph = with_scales(without_dead(folded(in_normal_form(graph), check_result=check_result)), quantized)
    grids = Grids(graph, check_result)
    replaced: dict[int, Node] = {}  # maps the position of the last node of a fusion to the quantized operator
    gone: set[int] = set()
    remarks: dict[int, str] = {}
    place_of = {id(node): place for place, node in enumerate(graph.nodes)}
    for place, node in enumerate(graph.nodes):
        operator = node.operator
        is_integers = operator.is_quantized or operator.gives_shape or operator.kind in CONVERSIONS
        if is_integers or not grids.is_beside_integers(node):
            continue
        try:
            fusion = rules.get(operator.kind or "", stays)(node, grids)
        except StaysFloat as reason:
            remarks[place] = str(reason)
            continue
        parts = [place_of[id(part)] for part in (node, *fusion.behind)]
        gone.update(parts)
        replaced[parts[-1]] = fusion.node(quantized, grids)
    nodes = []
    for place, node in enumerate(graph.nodes):
        if place in replaced:
            nodes.append(replaced[place])
        elif place not in gone:
            nodes.append(node.replace(remark=node.remark or remarks[place]) if place in remarks else node)
    constants = {**graph.constants, **grids.added}
    return with_places(without_dead(graph.replace(nodes=tuple(nodes), constants=constants)))
