"""The passes that choose what is quantized, each alone, on small graphs."""

from itertools import pairwise

import numpy as np
import pytest

from jaxdml._graph.graph import Graph, Node, only_reading_extremes
from jaxdml.ptq._build import operators as op
from jaxdml.ptq._choose.flow import Flow
from jaxdml.ptq._choose.plan import TOO_STEEP, after_means, capable, chain_roots, plan_of, range_sources, steep, wanted

TANH = op.equation("tanh", "element_wise")
SINE, DIVIDE = op.equation("sin", "element_wise"), op.equation("div", "element_wise")
RESHAPE = op.equation("reshape", "mover")
SORT = op.equation("sort")
EXTREME = op.equation("reduce_max", "extreme")


def flow(*nodes, outputs=("y",), fixed=("w",)):
    """A graph with the input x and nodes (operator, inputs, output); values named `number` are numbers."""
    made = tuple(Node(operator, tuple(inputs.split()), (output,)) for operator, inputs, output in nodes)
    graph = Graph(made, ("x",), outputs, dict.fromkeys(fixed, np.ones((2, 2), np.float32)))
    return Flow(graph, lambda name: np.float32(2) if name == "number" else None)


def static(graph):
    return {node.outputs[0]: "static" for node in graph.graph.nodes if node.operator.kind in op.CONTRACTIONS}


def passes(graph):
    modes = static(graph)
    can = capable(graph, modes, ["x"])
    return can, wanted(graph, modes, can), plan_of(graph, modes, {}, ["x"])


def test_a_chain_of_elementwise_functions_has_the_roots_of_its_start():
    graph = flow((op.PRODUCT, "x w", "a"), (TANH, "a", "b"), (op.MULTIPLY, "b number", "c"), (op.ADD, "c a", "y"))
    assert chain_roots(graph) == {"a": ("a",), "b": ("a",), "c": ("a",), "y": ("a",)}


def test_a_value_of_two_inputs_is_a_root_of_its_own():
    graph = flow((op.PRODUCT, "x w", "a"), (TANH, "a", "b"), (op.ADD, "b x", "y"))
    assert chain_roots(graph)["y"] == ("y",)


def test_an_array_beside_data_ends_a_chain():
    graph = flow((op.PRODUCT, "x w", "a"), (op.MULTIPLY, "a w", "y"))
    assert chain_roots(graph)["y"] == ("y",)


def test_a_clamped_value_is_a_root_beside_what_it_clamps():
    graph = flow((op.PRODUCT, "x w", "a"), (op.CLIP, "a", "b"), (TANH, "b", "y"))
    assert chain_roots(graph) == {"a": ("a",), "b": ("b", "a"), "y": ("b", "a")}


def test_normalized_values_are_after_a_mean_until_a_contraction():
    graph = flow((op.MEAN, "x", "m"), (op.MULTIPLY, "x m", "n"), (op.PRODUCT, "n w", "a"), (TANH, "a", "y"))
    assert after_means(graph) == {"m", "n"}


def test_a_product_with_a_value_after_a_mean_cannot_run_on_integers():
    graph = flow((op.MEAN, "x", "m"), (op.MULTIPLY, "x m", "n"), (op.PRODUCT, "n w", "y"))
    can, want, _ = passes(graph)
    assert can.values == {"x", "m", "y"}
    assert want.quantized == {"n"}


def test_a_product_of_two_values_can():
    graph = flow((op.PRODUCT, "x w", "a"), (op.MULTIPLY, "x a", "n"), (op.PRODUCT, "n w", "y"))
    can, want, _ = passes(graph)
    assert "n" in can.values
    assert want.quantized == {"x", "a", "n"}


def test_a_clamp_behind_a_contraction_is_fused_and_its_input_never_quantized():
    graph = flow((op.PRODUCT, "x w", "a"), (op.CLIP, "a", "b"), (op.PRODUCT, "b w", "y"))
    can, want, plan = passes(graph)
    assert can.fused_clamps == {"b"}
    assert want.quantized == {"x", "b"}
    assert plan.results == {"a", "b"}
    assert not plan.tables


def test_a_clamp_of_a_value_that_others_read_is_a_table():
    graph = flow((op.PRODUCT, "x w", "a"), (op.CLIP, "a", "b"), (op.PRODUCT, "b w", "c"), (op.ADD, "c a", "y"))
    can, want, _ = passes(graph)
    assert not can.fused_clamps
    assert want.tables == {"b": "a"}


def test_what_tables_alone_read_is_wide_if_a_product_made_it():
    graph = flow((op.PRODUCT, "x w", "a"), (TANH, "a", "b"), (op.PRODUCT, "b w", "y"))
    _, want, plan = passes(graph)
    assert want.only_tables_read == {"a"}
    assert plan.wide == {"a"}
    graph = flow(
        (op.PRODUCT, "x w", "a"), (TANH, "a", "b"), (op.ADD, "a x", "c"), (op.ADD, "b c", "d"), (op.PRODUCT, "d w", "y")
    )  # fmt: skip
    assert passes(graph)[1].tables == {"b": "a"}
    assert not passes(graph)[2].wide


def test_steep_functions_of_inputs_read_floats():
    """Through movers, polynomials and clamps, and with other functions after them; products end the chain."""
    graph = flow(
        (RESHAPE, "x", "a"), (op.MULTIPLY, "a number", "b"), (op.CLIP, "b", "c"), (SINE, "c", "d"), (TANH, "d", "e"),
        (op.PRODUCT, "e w", "f"), (SINE, "f", "g"), (op.PRODUCT, "g w", "y"),
    )  # fmt: skip
    assert steep(graph, ["x"]) == {"d", "e"}
    assert steep(flow((SINE, "x", "a"), (op.ADD, "a x", "b"), (op.PRODUCT, "b w", "y")), ["x"]) == {"a", "b"}
    can = capable(graph, static(graph), ["x"], given=["x"])
    want, plan = wanted(graph, static(graph), can), plan_of(graph, static(graph), {}, ["x"], ["x"])
    assert can.tables == {"b": "a", "c": "a", "g": "f"}
    assert want.tables == {"g": "f"}
    assert want.quantized == {"e", "f", "g"}
    assert plan.reasons["d"] == plan.reasons["e"] == TOO_STEEP


def test_functions_whose_slope_has_no_bound_are_steep():
    for name, is_steep in {
        "asin": 1,
        "acos": 1,
        "acosh": 1,
        "atanh": 1,
        "erf_inv": 1,
        "tan": 1,
        "atan": 0,
        "asinh": 0,
    }.items():
        graph = flow((op.equation(name, "element_wise"), "x", "a"), (op.PRODUCT, "a w", "y"))
        assert steep(graph, ["x"]) == ({"a"} if is_steep else set()), name


def test_steep_functions_of_carried_values_are_tables():
    """Values that a loop carries have been rounded before."""
    graph = flow((SINE, "x", "a"), (op.PRODUCT, "a w", "y"))
    assert steep(graph, []) == set()
    assert passes(graph)[1].tables == {"a": "x"}


@pytest.mark.parametrize("names", [("tanh",), ("exp", "log1p"), ("exp", "rsqrt")])
def test_other_functions_of_inputs_are_tables(names):
    """Such as softplus, which is log1p of exp: its slope is at most 1."""
    values = ["x", *"abc"[: len(names)]]
    nodes = [(op.equation(name, "element_wise"), *pair) for name, pair in zip(names, pairwise(values), strict=True)]
    graph = flow(*nodes, (op.PRODUCT, f"{values[-1]} w", "y"))
    assert steep(graph, ["x"]) == set()
    assert wanted(graph, static(graph), capable(graph, static(graph), ["x"], given=["x"])).tables == {values[-1]: "x"}


def test_a_quotient_is_steep_if_it_divides_by_the_input():
    by_number, by_input = (flow((DIVIDE, names, "a"), (op.PRODUCT, "a w", "y")) for names in ("x number", "number x"))
    assert steep(by_number, ["x"]) == set()
    assert steep(by_input, ["x"]) == {"a"}


def wide(graph, *outputs):
    modes = static(graph) | dict.fromkeys(outputs, "static16")
    return plan_of(graph, modes, {}, ["x"])


def test_what_a_product_of_16_bits_reads_stays_float_and_is_rounded_for_each_reader():
    graph = flow((op.PRODUCT, "x w", "a"), (op.CLIP, "a", "b"), (op.PRODUCT, "b w", "c"), (op.PRODUCT, "b w", "y"))
    plan = wide(graph, "y")
    assert plan.read_wide == {"b"}
    assert plan.quantized == {"x", "b"}
    assert plan.results == set()
    assert plan.reasons["b"] == "kept in floats:  reads 16 bits"
    assert wide(graph, "c", "y").quantized == {"x"}
    assert wide(graph, "a", "c", "y").quantized == set()


def test_movers_before_a_product_of_16_bits_move_floats_of_one_range():
    graph = flow(
        (SORT, "x", "s"), (op.TRANSPOSE, "s", "m"), (op.TRANSPOSE, "m", "n"), (op.PRODUCT, "n w", "a"),
        (op.PRODUCT, "m w", "y"), outputs=("a", "y"),
    )  # fmt: skip
    plan = wide(graph, "a")
    assert (plan.read_wide, plan.in_floats) == ({"n"}, {"n", "m", "s"})
    assert plan.quantized == {"m"}
    assert plan.ranges["n"] == plan.ranges["m"] == "s"
    assert {node.outputs[0] for node in plan.nodes} == {"a", "y"}


def test_sums_and_tables_before_a_product_of_16_bits_are_floats():
    graph = flow((op.PRODUCT, "x w", "a"), (TANH, "a", "b"), (op.ADD, "b x", "c"), (op.PRODUCT, "c w", "y"))
    plan = wide(graph, "y")
    assert plan.quantized == {"x"}
    assert not plan.tables
    assert not plan.wide


def test_a_sum_in_floats_and_its_terms_are_rounded_for_each_reader():
    graph = flow(
        (op.PRODUCT, "x w", "a"), (op.TRANSPOSE, "a", "b"), (op.PRODUCT, "a w", "c"), (op.ADD, "b c", "d"),
        (op.CLIP, "d", "e"), (op.PRODUCT, "e w", "y"),
    )  # fmt: skip
    plan = plan_of(graph, static(graph) | {"d": "float"}, {}, ["x"])
    assert plan.in_floats == {"a", "b", "c", "d"}
    assert plan.quantized == {"x", "a", "e"}
    assert plan.results == set()
    assert plan.reasons["d"] == "kept in floats by sums='float'"
    assert plan_of(graph, static(graph), {}, ["x"]).results == {"a", "c", "d", "e"}


@pytest.mark.parametrize("clamp", [False, True])
def test_a_sum_of_a_float_is_rounded_by_its_readers_alone(clamp):
    """One term has a range that is computed at each call, so the sum is a float anyway; the other term becomes one."""
    graph = flow(
        (op.PRODUCT, "x w", "a"), (op.PRODUCT, "a w", "b"), (op.ADD, "a b", "c"), (op.CLIP, "c", "d"),
        (op.PRODUCT, "d w" if clamp else "c w", "y"),
    )  # fmt: skip
    modes = static(graph) | {"b": "dynamic", "a": "static"}
    assert plan_of(graph, modes, {}, ["x"]).results == set()
    plan = plan_of(graph, modes | {"c": "float"}, {}, ["x"])
    assert plan.in_floats == {"a", "b", "c"}
    assert plan.reasons["c"] != "kept in floats by sums='float'"


def test_a_sum_that_no_contraction_reads_changes_nothing():
    graph = flow((op.PRODUCT, "x w", "a"), (op.CLIP, "a", "b"), (op.PRODUCT, "b w", "c"), (op.ADD, "c a", "y"))
    assert plan_of(graph, static(graph) | {"y": "float"}, {}, ["x"]) == plan_of(graph, static(graph), {}, ["x"])


def test_an_addition_inside_of_a_table_has_no_mode_of_its_own():
    graph = flow((op.PRODUCT, "x w", "a"), (TANH, "a", "b"), (op.ADD, "a b", "c"), (op.PRODUCT, "c w", "y"))
    plan = plan_of(graph, static(graph) | {"c": "float"}, {}, ["x"])
    assert (plan.tables, plan.in_floats) == ({"c": "a"}, set())


def test_a_value_that_fake_quantize_rounds_is_not_read_with_16_bits():
    graph = flow(
        (op.FAKE_QUANTIZE, "x w", "a"), (op.TRANSPOSE, "a", "b"), (TANH, "x", "c"), (op.PRODUCT, "b c", "y")
    )  # fmt: skip
    plan = wide(graph, "y")
    assert plan.read_wide == {"c"}
    assert plan.reasons["y"] == "one operand has the 8 bits to which fake_quantize rounds"


def test_a_value_that_float_operators_alone_read_stays_float():
    graph = flow((op.PRODUCT, "x w", "a"), (SORT, "a", "y"))
    assert passes(graph)[2].quantized == {"x"}


def test_a_contraction_in_floats_wants_nothing():
    graph = flow((op.PRODUCT, "x w", "y"))
    plan = plan_of(graph, {"y": "float"}, {}, ["x"])
    assert not plan.nodes
    assert not plan.quantized


def test_an_input_of_integers_cannot_be_quantized():
    graph = flow((op.PRODUCT, "x w", "y"))
    assert capable(graph, static(graph), []).values == {"y"}
    assert capable(graph, static(graph), ["x"]).values == {"x", "y"}


@pytest.mark.parametrize(("operator", "source"), [(op.TRANSPOSE, "x"), (op.PAD, "x"), (TANH, "m")])
def test_movers_and_paddings_on_integers_keep_the_range_of_their_input(operator, source):
    graph = flow((operator, "x", "m"), (op.PRODUCT, "m w", "y")).graph
    assert range_sources(graph, set(graph.nodes))["m"] == source
    assert range_sources(graph, set())["m"] == "m"


def test_what_a_maximum_alone_reads():
    """Directly or through movers; not values that the function returns or that other operators read."""
    found = [only_reading_extremes(flow(*nodes, outputs=outputs).graph) for *nodes, outputs in (
        ((op.TRANSPOSE, "x", "m"), (EXTREME, "m", "n"), (EXTREME, "n", "y"), ("y",)),
        ((op.TRANSPOSE, "x", "m"), (EXTREME, "m", "n"), (op.PRODUCT, "m w", "y"), ("y",)),
        ((op.TRANSPOSE, "x", "m"), (EXTREME, "m", "n"), (op.PRODUCT, "x w", "y"), ("y",)),
        ((op.TRANSPOSE, "x", "m"), (EXTREME, "m", "y"), ("y", "m")), ((TANH, "x", "m"), (EXTREME, "m", "y"), ("y",)),
    )]  # fmt: skip
    assert [{name: node.outputs[0] for name, node in each.items()} for each in found] == [
        {"x": "n", "m": "n", "n": "y"}, {}, {"m": "n"}, {}, {"m": "y"}
    ]  # fmt: skip


def test_a_mover_before_a_contraction_moves_integers():
    graph = flow((op.TRANSPOSE, "x", "m"), (op.PRODUCT, "m w", "y"))
    can, _, plan = passes(graph)
    assert can.values == {"x", "m", "y"}
    assert {node.outputs[0] for node in plan.nodes} == {"m", "y"}
    assert plan.quantized == {"x"}
    assert plan.ranges == {"x": "x", "m": "x"}


def test_a_mover_of_a_float_stays_in_floats():
    graph = flow((SORT, "x", "s"), (op.TRANSPOSE, "s", "m"), (op.MULTIPLY, "m w", "n"), (op.PRODUCT, "x w", "y"))
    can, _, plan = passes(graph)
    assert "m" not in can.values
    assert {node.outputs[0] for node in plan.nodes} == {"y"}


def test_a_clamp_of_a_clamp_is_a_root_beside_both():
    graph = flow((op.PRODUCT, "x w", "a"), (op.CLIP, "a", "b"), (op.CLIP, "b", "y"))
    assert chain_roots(graph)["y"] == ("y", "b", "a")


def test_a_clamp_behind_a_mover_behind_a_contraction_is_fused():
    graph = flow((op.PRODUCT, "x w", "a"), (op.TRANSPOSE, "a", "m"), (op.CLIP, "m", "b"), (op.PRODUCT, "b w", "y"))
    can, want, _ = passes(graph)
    assert can.fused_clamps == {"b"}
    assert want.quantized == {"x", "b"}
    graph = flow(
        (op.PRODUCT, "x w", "a"), (op.TRANSPOSE, "a", "m"), (op.CLIP, "m", "b"), (op.PRODUCT, "b w", "y"), outputs="my"
    )  # fmt: skip
    assert not passes(graph)[0].fused_clamps


def test_a_padding_of_a_table_pads_its_integers():
    graph = flow((op.PRODUCT, "x w", "a"), (TANH, "a", "t"), (op.PAD, "t", "p"), (op.PRODUCT, "p w", "y"))
    _, want, plan = passes(graph)
    assert want.tables == {"t": "a"}
    assert plan.ranges["p"] == "t"


def test_the_bias_of_a_product_is_added_on_integers():
    graph = flow((op.PRODUCT, "x w", "a"), (op.ADD, "a bias", "b"), (op.PRODUCT, "b w", "y"), fixed=("w", "bias"))
    _, want, _ = passes(graph)
    assert want.quantized == {"x", "b"}
