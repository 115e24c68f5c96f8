"""Chooses which values of a float graph are quantized.

Every contraction that may run on integers does, and so do the operators that lead from one contraction to the next.
Three passes decide: `capable` finds the values that can be integers; `wanted` goes backward from the contractions and
finds the values that should be integers; `range_sources` maps each value to the value whose calibrated range it takes.
`reasons_of` then gives the reasons why the other values stay in floats.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from jaxdml._graph.graph import ELEMENT_WISE, Graph, Node, moves
from jaxdml.ptq._build.operators import CONTRACTIONS
from jaxdml.ptq._choose.flow import Flow, is_on_own_grid
from jaxdml.ptq._choose.modes import STATIC, STATIC16, Mode
from jaxdml.ptq._choose.reasons import JOINS, reasons_of

FLOAT_SUM = "kept in floats by sums='float'"
PARTLY_ON_OWN_GRID = "one operand has the 8 bits to which fake_quantize rounds"
STEEP = frozenset((
    "acos", "acosh", "asin", "atanh", "cbrt", "cos", "erf_inv", "log", "log1p", "pow", "rsqrt", "sin", "sqrt", "tan",
))  # fmt: skip
TOO_STEEP = "kept in floats: it reads an input, for which 8 bits may be too few"
POLYNOMIAL = frozenset((
    "abs", "add", "convert_element_type", "div", "integer_pow", "max", "min", "mul", "neg", "square", "sub",
))  # fmt: skip
# Kinds of elementwise functions, which tables can replace.
CHAINED = (*ELEMENT_WISE, "clip", "add", "mul")
RENEWING = (
    *CONTRACTIONS,
    "add",
    "concat",
    "window_mean",
    "fake_quantize",
)  # kinds whose results fit 8 bits even if their inputs are computed from a mean


@dataclass(frozen=True)
class Capable:
    """The values that can be integers.

    Attributes:
      values: the values that can be quantized.
      tables: maps each value that a table can compute to the value that indexes the table.
      fused_clamps: the results of clamps that are fused into the operator before them.
      steep: the results of steep functions of inputs; they stay in floats.
    """

    values: Set[str]
    tables: Mapping[str, str]
    fused_clamps: Set[str]
    steep: Set[str]


@dataclass(frozen=True)
class Wanted:
    """The nodes that should run on integers, and the values that should be integers.

    Attributes:
      nodes: the nodes that run on integers.
      results: the values that these nodes compute on integers, except results of movers, which only pass integers on.
      quantized: the values that have quantize nodes, or are computed on integers.
      tables: maps the result of a table to the value that indexes the table.
      only_tables_read: values that only tables read as integers.
      read_wide: values that contractions quantize to 16 bits. They stay in floats, whatever else reads them.
      in_floats: the values that stay in floats, and are rounded for each contraction that reads them: read_wide, float
        sums, their terms, and the inputs of movers that make one of these.
    """

    nodes: Set[Node]
    results: Set[str]
    quantized: Set[str]
    tables: Mapping[str, str]
    only_tables_read: Set[str]
    read_wide: Set[str]
    in_floats: Set[str]


@dataclass(frozen=True)
class Plan(Wanted):
    """The nodes that should run on integers, and the values that should be integers, with their ranges.

    Attributes:
      ranges: maps each value that nodes read or write as integers to the value whose calibrated range sets its scale
        and zero point.
      wide: results of products that only tables read. They have 16 bits, so that only the tables round to 8 bits.
      reasons: maps the first results of other nodes to the reasons why they stay in floats.
    """

    ranges: Mapping[str, str]
    wide: Set[str]
    reasons: Mapping[str, str]


def plan_of(
    flow: Flow, modes: Mapping[str, Mode], reasons: Mapping[str, str], float_inputs: Sequence[str],
    given: Sequence[str] = (),
) -> Plan:  # fmt: skip
    """The plan of a float graph.

    Args:
      flow: the graph.
      modes: maps the result of each contraction, and of each sum in floats, to its mode.
      reasons: maps the first results of contractions and loops that stay in floats to the reasons.
      float_inputs: the graph's inputs that have a float type.
      given: the float inputs that the caller gives, unlike the values that a loop carries.
    """
    can = capable(flow, modes, float_inputs, given=given)
    want = wanted(flow, modes, can)
    sums = float_sums(flow, modes, want)
    known = {**dict.fromkeys(can.steep, TOO_STEEP), **dict.fromkeys(sums & want.results, FLOAT_SUM), **reasons}
    if sums:
        can = capable(flow, modes, float_inputs, sums, given)
        want = wanted(flow, modes, can, sums)
    integers = want.quantized | {name for node in want.nodes for name in node.inputs if name in flow.data}
    sources = range_sources(flow.graph, want.nodes, want.in_floats)
    ranges = {name: source for name, source in sources.items() if name in integers}
    wide = set(filter(flow.is_product, want.only_tables_read))
    modes = {name: mode for name, mode in modes.items() if name in sums or not _is_sum(flow, name)}
    reasons = reasons_of(flow, modes, can.values, want.nodes, known)
    for name in (name for name, mode in modes.items() if mode == STATIC16):
        maker = flow.maker(name)
        assert maker is not None
        if not want.read_wide >= set(flow.data_inputs(maker)):
            reasons[name] = PARTLY_ON_OWN_GRID
    return Plan(**vars(want), ranges=ranges, wide=wide, reasons=reasons)


# Passes --------------------------------------------------------------------------------------------------------------


def chain_roots(flow: Flow) -> dict[str, tuple[str, ...]]:
    """Maps each value to its roots, nearest first. From any one root, elementwise functions compute the value."""
    roots: dict[str, tuple[str, ...]] = {}
    for node in flow.data_nodes:
        output, data = node.outputs[0], flow.data_inputs(node)
        roots[output] = (output,)
        if node.operator.kind not in CHAINED or not flow.has_only_numbers_beside_data(node):
            continue
        chains = [roots.get(name, (name,)) for name in data]
        common = tuple(root for root in chains[0] if all(root in chain for chain in chains))
        # A clamp can be fused into the operator before it, so the clamp's result may be a root, too.
        clamps_a_root = node.operator.kind == "clip" and common[:1] == (data[0],)
        roots[output] = (output, *common) if clamps_a_root or not common else common
    return roots


def after_means(flow: Flow) -> set[str]:
    """The values that are computed from a mean, such as a normalized input; 8 bits are too few for them."""
    found = set[str]()
    for node in flow.data_nodes:
        kind = node.operator.kind
        if kind == "mean" or (kind not in RENEWING and not found.isdisjoint(flow.data_inputs(node))):
            found.update(node.outputs)
    return found


def steep(flow: Flow, given: Iterable[str]) -> set[str]:
    """The results of steep functions of given floats, such as sin(100 * x) and log(x); other functions may follow.

    Between adjacent levels of an 8-bit x, such a function may take all of its values, so it reads x in floats. A
    polynomial of x may come before it. A function of exp(x), such as softplus, is not counted as steep.
    """
    polynomials, found = set(given), set[str]()
    for node in flow.data_nodes:
        data, kind = set(flow.data_inputs(node)), node.operator.kind
        if not data <= polynomials | found:
            continue
        if (kind in CHAINED and data & found) or (data <= polynomials and _is_steep(flow, node)):
            found.add(node.outputs[0])
        elif data <= polynomials and (
            moves(node) or kind in ("add", "clip", "mul") or (kind in CHAINED and node.operator.name in POLYNOMIAL)
        ):
            polynomials.update(node.outputs)
    return found


def _is_steep(flow: Flow, node: Node) -> bool:
    if node.operator.name == "div":
        return node.inputs[1] in flow.data
    return node.operator.name in STEEP


def capable(
    flow: Flow, modes: Mapping[str, Mode], float_inputs: Sequence[str], sums: Set[str] = frozenset(),
    given: Sequence[str] = (),
) -> Capable:  # fmt: skip
    """Finds the values that can be integers, in a forward pass; the values in `sums` cannot be integers."""
    roots, normalized, without_table = chain_roots(flow), after_means(flow), steep(flow, given)
    values, tables, fused_clamps = set(float_inputs), dict[str, str](), set[str]()
    for node in flow.data_nodes:
        kind, output, data = node.operator.kind, node.outputs[0], flow.data_inputs(node)
        if kind == "fake_quantize":
            can = True
        elif kind in CONTRACTIONS:
            can = modes[output] in STATIC
        elif moves(node) or flow.is_bias(node) or kind == "clip":
            can = data[0] in values
        elif kind == "mul":
            can = len(data) > 1 and values.issuperset(data) and normalized.isdisjoint(data)
        else:
            can = kind in JOINS and len(data) == len(node.inputs) and values.issuperset(data)
        table = None if output in without_table else _table_index(flow, roots[output], output, values, fused_clamps)
        if table is not None:
            tables[output] = table
        if kind == "clip" and _is_fused(flow, node, tables):
            fused_clamps.add(output)
        if (can and output not in sums) or table is not None:
            values.update(node.outputs)
    return Capable(values, tables, fused_clamps, without_table)


def _table_index(
    flow: Flow, roots: Iterable[str], output: str, values: Set[str], fused_clamps: Set[str]
) -> str | None:  # fmt: skip
    """The nearest root from which a table can compute the output; None if there is no such root."""
    for root in roots:
        maker = flow.maker(root)
        # A clamp that is not fused would need its own table. A root further back can index the output's table.
        is_table = maker is not None and maker.operator.kind == "clip" and root not in fused_clamps
        if root != output and root in values and not is_table:
            return root
    return None


def _is_fused(flow: Flow, clamp: Node, tables: Mapping[str, str]) -> bool:
    """Whether a clamp is fused into the operator before it: only the clamp reads the operator's result."""
    name, maker = clamp.inputs[0], flow.maker(clamp.inputs[0])
    while maker is not None and flow.is_read_once(name) and len(maker.outputs) == 1 and (
        moves(maker) or maker.operator.kind == "clip"
    ):  # fmt: skip
        name, maker = maker.inputs[0], flow.maker(maker.inputs[0])
    kinds = {*CONTRACTIONS, *JOINS} - {"pad"}
    is_operator = maker is not None and maker.operator.kind in kinds and maker.outputs[0] not in tables
    return is_operator and flow.is_read_once(name)


def wanted(flow: Flow, modes: Mapping[str, Mode], can: Capable, sums: Set[str] = frozenset()) -> Wanted:
    """Finds the nodes and values that should be on integers, in a backward pass from the contractions.

    Args:
      flow: the graph.
      modes: maps the result of each contraction to its mode.
      can: the values that can be integers.
      sums: the sums that stay in floats, as do their terms.
    """
    nodes, results, quantized, tables = set[Node](), set[str](), set[str](), dict[str, str]()
    read, by_tables = set[str](), set[str]()  # the values that operators read as integers, and those that tables read
    read_wide, in_floats = set[str](), set[str]()
    fused_away = set[str]()  # intermediate results inside of one quantized operator; they are never quantized
    for node in reversed(flow.data_nodes):
        kind, output, data = node.operator.kind, node.outputs[0], flow.data_inputs(node)
        asked = {name for name in node.outputs if name in read or name in by_tables}
        is_fused_away = output in fused_away
        if kind == "fake_quantize":  # a grid that the function sets is always used
            nodes.add(node)
            results.add(output)
            quantized.add(output)
            if _can_round(flow, data[0], modes, can):
                fused_away.add(data[0])
            continue
        if kind in CONTRACTIONS and modes[output] in STATIC:
            nodes.add(node)
            wide = {name for name in data if modes[output] == STATIC16 and not is_on_own_grid(flow.maker, name)}
            read_wide |= wide
            in_floats |= wide
            read.update(name for name in data if name not in wide)
        if output in sums:
            in_floats.update((output, *data))
        if output in in_floats:
            in_floats.update(data[:1] if moves(node) else ())
            quantized |= asked
            continue
        if not (is_fused_away or asked):
            continue
        if moves(node):
            nodes.add(node)
            (fused_away if is_fused_away else read).add(data[0])
            continue
        if not is_fused_away:
            quantized |= asked
        if output not in can.values:
            continue
        nodes.add(node)
        results.add(output)
        if flow.is_bias(node) or output in can.fused_clamps:
            fused_away.add(data[0])
        elif kind in JOINS and (output not in can.tables or kind == "pad"):
            read.update(data)
        elif output in can.tables and kind not in CONTRACTIONS:
            tables[output] = root = can.tables[output]
            quantized.add(root)
            by_tables.add(root)
    quantized.update(name for name in flow.graph.inputs if name in read | by_tables)
    return Wanted(nodes, results, quantized, tables, by_tables - read, read_wide, in_floats)


def float_sums(flow: Flow, modes: Mapping[str, Mode], want: Wanted) -> set[str]:
    """The sums that have a mode, and that integer operators would read; a clamp may lie between."""
    read = want.results | want.quantized
    read |= {node.inputs[0] for node in flow.data_nodes if node.operator.kind == "clip" and node.outputs[0] in read}
    return {name for name in modes if _is_sum(flow, name) and name in read and name not in want.tables}


def _is_sum(flow: Flow, name: str) -> bool:
    maker = flow.maker(name)
    return maker is not None and maker.operator.kind == "add"


def _can_round(flow: Flow, name: str, modes: Mapping[str, Mode], can: Capable) -> bool:
    """Whether the quantized operator that computes a value can round it to the grid of the fake_quantize after it."""
    maker = flow.maker(name)
    while (
        maker is not None
        and flow.is_read_once(name)
        and (moves(maker) or name in can.fused_clamps or flow.is_bias(maker))
    ):
        name, maker = maker.inputs[0], flow.maker(maker.inputs[0])
    if maker is None or not flow.is_read_once(name):
        return False
    kind = maker.operator.kind
    return (
        modes[name] in STATIC
        if kind in CONTRACTIONS
        else kind in JOINS and name in can.values and name not in can.tables
    )


def range_sources(graph: Graph, nodes: Set[Node], in_floats: Set[str] = frozenset()) -> dict[str, str]:
    """Maps each value to the value whose range it takes; movers and paddings on integers keep the input's range.

    Args:
      graph: the graph.
      nodes: the nodes on integers.
      in_floats: the values in floats; movers that return one keep the input's range, too.
    """
    sources = {name: name for name in graph.inputs}
    for node in graph.nodes:
        is_on_integers = node in nodes or not in_floats.isdisjoint(node.outputs)
        shares = is_on_integers and (moves(node) or (node in nodes and node.operator.kind == "pad"))
        sources |= {name: sources[node.inputs[0]] if shares else name for name in node.outputs}
    return sources
