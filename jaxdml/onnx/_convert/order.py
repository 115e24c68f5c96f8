"""Sorts the nodes of a graph by the values that they and their branches read."""

from collections.abc import Sequence

import onnx

from jaxdml._graph.order import topological

MOST_NAMED = 8  # the maximum number of nodes of a cycle that an error names


def sorted_nodes(nodes: Sequence[onnx.NodeProto]) -> tuple[list[tuple[str, onnx.NodeProto]], list[str]]:
    """The nodes in topological order, each with its name, and the error for a cycle, if there is one."""
    named = [(node.name or f"{node.op_type.lower()}_{index}", node) for index, node in enumerate(nodes)]
    order, cycle = topological([_reads(node) for node in nodes], [node.output for node in nodes])
    return [named[place] for place in order], _cycle_problem([named[place][0] for place in cycle])


def _reads(node: onnx.NodeProto) -> Sequence[str]:
    """The names that a node reads, including names that its branches read from outside."""
    graphs = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    # A name that is not UTF-8 is a bytes object, which has no order among texts.
    return [*node.input, *sorted(set[str]().union(*map(_free, graphs)), key=str)] if graphs else node.input


def _free(graph: onnx.GraphProto) -> set[str]:
    """The names that a branch reads from outside."""
    read = {value for node in graph.node for value in _reads(node)} | {value.name for value in graph.output}
    return read - {value for node in graph.node for value in node.output} - {each.name for each in graph.initializer}


def _cycle_problem(names: list[str]) -> list[str]:
    """The error for a cycle of nodes, each of which reads a value of the next one."""
    if not names:
        return []
    if not names[1:]:
        return [f"node {names[0]!r} reads its own result: nodes must not form a cycle"]
    listed = ", ".join(map(repr, names[:MOST_NAMED]))
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    cycle = "each reads a value of the next one, and the last node reads a value of the first"
    return [f"nodes {listed}{more} form a cycle: {cycle}"]
