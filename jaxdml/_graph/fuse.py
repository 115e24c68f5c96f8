"""One pass that turns operators between dequantize and quantize nodes into quantized operators.

In the graph's normal form, an operator whose inputs are dequantized, and whose only reader quantizes, becomes the
quantized operator. An operator that stays in floats between such nodes gets a remark that says why.
"""

from collections.abc import Callable, Mapping

from jaxdml._graph.evaluate import Limit, folded
from jaxdml._graph.graph import Graph, Node, Operator, without_dead
from jaxdml._graph.grids import Grids
from jaxdml._graph.normal_form import in_normal_form
from jaxdml._graph.remarks import CONVERSIONS, stays, with_places
from jaxdml._graph.rules import RULES, Group, Kept


def fused(
    graph: Graph, quantized: Mapping[str, Operator], *, rules: Mapping[str, Callable[[Node, Grids], Group]] = RULES,
    limit: Limit = lambda node, value: None,
) -> Graph:  # fmt: skip
    """The graph with quantized operators.

    Args:
      graph: nodes of which kinds are known; see `RULES`.
      quantized: the quantized operators, by kind.
      rules: what makes a group of a node, by kind.
      limit: raises where what is computed of constants may not be.
    """
    graph = without_dead(folded(in_normal_form(graph), limit=limit))  # a mover of weights reads integers only now
    grids = Grids(graph)
    made: dict[int, Node] = {}  # by the place of the last node that they stand for
    gone: set[int] = set()
    remarks: dict[int, str] = {}
    place_of = {id(node): place for place, node in enumerate(graph.nodes)}
    for place, node in enumerate(graph.nodes):
        operator = node.operator
        is_integers = operator.is_quantized or operator.gives_shape or operator.kind in CONVERSIONS
        if is_integers or not grids.is_beside_integers(node):
            continue
        try:
            group = rules.get(operator.kind or "", stays)(node, grids)
        except Kept as reason:
            remarks[place] = str(reason)
            continue
        parts = [place_of[id(part)] for part in (node, *group.behind)]
        gone.update(parts)
        made[parts[-1]] = group.node(quantized, grids)
    nodes = []
    for place, node in enumerate(graph.nodes):
        if place in made:
            nodes.append(made[place])
        elif place not in gone:
            nodes.append(node.replace(remark=node.remark or remarks[place]) if place in remarks else node)
    constants = {**graph.constants, **grids.added}
    return with_places(without_dead(graph.replace(nodes=tuple(nodes), constants=constants)))
