"""Finds the products of attention that lose accuracy if all rows that they read share one range.

Where a query reads few keys, such as the first tokens of causal attention, its probabilities are large; where it reads
many, they are small. The means of values over many keys are small, too. So these rows have ranges of their own.
"""

from jaxdml._graph.graph import Graph, Node, moves
from jaxdml.ptq._build.operators import ADD, CLIP, MULTIPLY, PRODUCT
from jaxdml.ptq._trace.fixed import ELEMENT_WISE

POINTWISE = ELEMENT_WISE | {CLIP.name, MULTIPLY.name}
EXPONENTIALS = "exp", "exp2", "expm1", "pow"  # whose last input is the exponent


def products_of_attention(graph: Graph) -> set[str]:
    """The results of products of probabilities and values, and of products that multiply such results by weights.

    Probabilities are quotients and exponentials of what is computed element by element from sums of exponentials, as in
    softmax(x) and exp(log_softmax(x)), and other values divided by their own sums. Masks, casts and factors may follow.

    Args:
      graph: the float graph.
    """
    makers, data, found = graph.producers(), set(graph.inputs), set[str]()
    shares, read = set[str](), set[str]()  # probabilities, and products with probabilities
    of_exponentials = set[str]()  # sums of exponentials, and what is computed from them, such as their logarithms
    source = dict[str, str]()  # maps each value to the one whose elements it has, in other places or behind a mask
    summed = dict[str, set[str]]()  # maps each value that is computed from sums to the values that are summed
    for node in graph.nodes:
        inputs = [name for name in node.inputs if name in data]
        if not inputs:
            continue
        data.update(node.outputs)
        name, output = node.operator.name, node.outputs[0]
        if node.operator is PRODUCT and len(inputs) == 2:
            if not shares.isdisjoint(inputs):
                read.add(output)
            if node.inputs[0] in shares:  # as a right operand, probabilities would have 7 bits: int8 has no zero point
                found.add(output)
        elif node.operator is PRODUCT and inputs[0] in read:
            found.add(output)
        elif name == "reduce_sum":
            term = source.get(inputs[0], inputs[0])
            summed[output] = {term}
            if term in makers and _exponent(makers[term]) in data:
                of_exponentials.add(output)
        elif moves(node) or name in POINTWISE:
            of = _elements(node, data)
            source |= dict.fromkeys(node.outputs, source.get(of, of)) if of else {}
            terms = set[str]().union(*(summed.get(each, ()) for each in inputs))
            summed |= dict.fromkeys(node.outputs, terms)
            divides = name in ("div", MULTIPLY.name)  # a product may multiply by the reciprocals of sums
            if not shares.isdisjoint(inputs) or (divides and any(source.get(each, each) in terms for each in inputs)):
                shares.update(node.outputs)
            if not of_exponentials.isdisjoint(inputs):
                is_share = divides or _exponent(node) in of_exponentials
                (shares if is_share else of_exponentials).update(node.outputs)
            if not read.isdisjoint(inputs) and (len(inputs) == 1 or name not in (ADD.name, "sub")):
                read.update(node.outputs)
    return found


def _exponent(node: Node) -> str:
    """The exponent of an exponential; "" for all other nodes."""
    return node.inputs[-1] if node.operator.name in EXPONENTIALS else ""


def _elements(node: Node, data: set[str]) -> str:
    """The input whose elements a mover or a choice by a mask returns; "" for all other nodes."""
    if moves(node):
        return node.inputs[0]
    cases = [name for name in node.inputs[1:] if name in data]
    return cases[0] if node.operator.name == "select_n" and len(cases) == 1 else ""
