"""Finds the products of attention that lose accuracy if all rows that they read share one range.

Where a query reads few keys, such as the first tokens of causal attention, its probabilities are large; where it reads
many, they are small. The means of values over many keys are small, too. So these rows have ranges of their own.
"""

from collections.abc import Mapping

from jaxdml._graph.graph import Graph, Node, moves
from jaxdml.ptq._build.operators import MULTIPLY, PRODUCT


def products_of_attention(graph: Graph) -> set[str]:
    """The results of products of probabilities and values, and of products that multiply such results by weights.

    Args:
      graph: the float graph.
    """
    makers, data, found, read = graph.producers(), set(graph.inputs), set[str](), set[str]()
    shares = set[str]()  # values that are divided by their sums, as in a softmax; a product by a mask may follow
    for node in graph.nodes:
        if data.isdisjoint(node.inputs):
            continue
        data.update(node.outputs)
        sources = [_moved(makers, name) for name in node.inputs]
        if node.operator.name in ("mul", MULTIPLY.name) and not shares.isdisjoint(sources):
            shares.update(node.outputs)
        if node.operator.name == "div" and _is_divided_by_sums(makers, *sources):
            shares.update(node.outputs)
        if node.operator is not PRODUCT:
            continue
        output = node.outputs[0]
        if not data.issuperset(node.inputs):
            if sources[0] in read:
                found.add(output)
            continue
        are_shares = [name in shares for name in sources]
        if any(are_shares):
            read.add(output)
        if are_shares[0]:  # as a right operand, probabilities would have 7 bits, because int8 has no zero point
            found.add(output)
    return found


def _is_divided_by_sums(makers: Mapping[str, Node], shared: str, total: str) -> bool:
    """Whether a divisor is the sums of what it divides."""
    maker = makers.get(total)
    return (
        shared in makers
        and maker is not None
        and maker.operator.name == "reduce_sum"
        and _moved(makers, maker.inputs[0]) in makers[shared].outputs
    )


def _moved(makers: Mapping[str, Node], name: str) -> str:
    """The value from which movers take a value's elements."""
    maker = makers.get(name)
    while maker is not None and moves(maker):
        name = maker.inputs[0]
        maker = makers.get(name)
    return name
