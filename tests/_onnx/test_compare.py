"""`jaxdml.onnx.compare`: what differs from onnxruntime, in which node, and why."""

import dataclasses
import itertools
import re

import numpy as np
import pytest
from onnx import TensorProto

import jaxdml as dml
from _onnx.float_models import encoder
from _onnx.quantized_models import quantized, random_inputs
from _onnx.saved import run
from helpers import qdq_builder
from helpers.hostile_models import constant, model, node
from helpers.marks import rest_rarely
from helpers.one_node import fed, on_x64_alone
from helpers.qdq_graphs import MODELS
from jaxdml import reference
from jaxdml._graph.graph import Node, Operator
from jaxdml.errors import ModelError
from jaxdml.onnx import Difference
from jaxdml.onnx._compare.reasons import Experiment, experiments, output_reasons, own_reasons

F, U, S = np.float32, np.uint8, np.int8
FLOAT, UINT8 = TensorProto.FLOAT, TensorProto.UINT8
EQUAL = "equal"
ABSENT = "the file has no such value: rows that read it include its error"
LAST_BITS = re.compile(r"a float function's last bits: .* in the last place of the largest value")
SATURATES = "int8 weights saturate in onnxruntime's kernel on this processor; with session.x64quantprecision=1"
MICROSOFT = {"domain": "com.microsoft"}
pytestmark = on_x64_alone


def saved(proto, path):
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.onnx"


def by_name(comparison):
    return {row.name: row for row in comparison.nodes}


def compared(proto, path, inputs=None, **options):
    saved(proto, path)
    return by_name(dml.onnx.compare(path, inputs, dml.onnx.load(path, **options) if options else None))


# Reasons -------------------------------------------------------------------------------------------------------------

GRIDS = {"s": F(0.02), "t": F(0.01), "z": U(128)}
BYTES = np.arange(256, dtype=U)


def sums():
    """A sum of bytes with scales that produce ties, and a node that reads it."""
    nodes = [
        node("QLinearAdd", ["x", "s", "z", "x", "t", "z", "s", "z"], ["a"], name="sum", **MICROSOFT),
        node("QLinearAdd", ["x", "s", "z", "x", "s", "z", "s", "z"], ["b"], name="double", **MICROSOFT),
        node("DequantizeLinear", ["a", "s", "z"], ["y"], name="reader"),
        node("DequantizeLinear", ["b", "s", "z"], ["w"], name="other"),
    ]
    constants = [constant(value, name) for name, value in GRIDS.items()]
    return model(nodes, constants, [("x", UINT8, ("N",))], [("y",), ("w",)])


def test_a_sum_by_another_formula(path):
    """The counts are those of the reference and of onnxruntime's operator by itself."""
    rows = compared(sums(), path, BYTES)
    grids = [F(0.02), U(128), BYTES, F(0.01), U(128), F(0.02), U(128)]
    theirs = fed("QLinearAdd", [BYTES, F(0.02), U(128), *grids[2:]], "uint8")(BYTES, F(0.02), U(128), *grids[2:])
    ours = reference.element_wise_quantized_linear_add(BYTES, F(0.02), U(128), *grids[2:])
    count = np.count_nonzero(ours != theirs)
    assert 0 < count < 256
    row = rows["sum"]
    assert (row.own.differing, row.so_far.differing, row.own.size, row.own.largest) == (count, count, 256, 1)
    assert row.reason == (
        "DirectML's formula for the sum rounds differently near ties; with numerics='onnxruntime', no element differs"
    )
    assert (rows["reader"].own.differing, rows["reader"].so_far.differing) == (0, count)
    assert rows["reader"].so_far.largest == pytest.approx(0.02)
    assert rows["reader"].reason == "its inputs differ: most of the error begins at 'sum'"
    assert [rows[name].reason for name in ("double", "other")] == [EQUAL, EQUAL]
    assert {row.reason for row in compared(sums(), path, BYTES, numerics="onnxruntime").values()} == {EQUAL}


def test_a_mean_by_another_formula(path):
    nodes = [
        node("QLinearGlobalAveragePool", ["x", "s", "z", "t", "z"], ["y"], name="all", **MICROSOFT),
        node("QLinearAveragePool", ["x", "s", "z", "t", "z"], ["w"], name="some", kernel_shape=[2, 2], **MICROSOFT),
    ]
    outputs = [("y", UINT8, None), ("w", UINT8, None)]
    constants = [constant(value, name) for name, value in GRIDS.items()]
    proto = model(nodes, constants, [("x", UINT8, ("N", 64, 4, 4))], outputs)
    reasons = {name: row.reason for name, row in compared(proto, path).items()}
    assert all(reason.startswith("DirectML's formula for the mean rounds differently") for reason in reasons.values())


def test_int8_weights_saturate(path):
    """Sums of two products of 255 and 127 exceed 16 bits; NumPy's integers say by how much onnxruntime is wrong.

    On a processor with int8 dot products onnxruntime's kernel does not saturate: there the rows are only equal.
    """
    w = np.full((32, 8), 127, S)
    w[:, ::2] = 3
    constants = {"s": F(1), "t": F(2.0**-6), "u": F(1000), "z": U(0), "w": w, "v": S(0)}
    nodes = [node("QLinearMatMul", ["x", "s", "z", "w", "t", "v", "u", "z"], ["y"], name="product")]
    proto = model(
        nodes,
        [constant(*reversed(each)) for each in constants.items()],
        [("x", UINT8, (4, 32))],
        [("y", UINT8, (4, 8))],
    )
    x = np.full((4, 32), 255, U)
    x[1:3] = 100
    row = compared(proto, path, x)["product"]
    exact = np.rint((x.astype(int) @ w.astype(int)) * 2.0**-6 / 1000)
    (theirs,) = run(path, x).values()
    assert row.own.differing == row.so_far.differing == np.count_nonzero(theirs != exact)
    assert row.own.largest == np.abs(theirs - exact).max()
    if row.own.differing:  # a processor without int8 dot products
        assert row.reason == f"{SATURATES}, no element differs"
    else:
        assert row.reason == EQUAL


def test_a_float_function_differs_in_its_last_bits_and_its_integers_do_not(path):
    """Nodes that read the integers have no error from the float function; the worst node is the sum."""
    nodes = [
        node("Erf", ["x"], ["a"], name="erf"),
        node("QuantizeLinear", ["a", "s", "z"], ["b"], name="to_integers"),
        node("QLinearAdd", ["b", "s", "z", "b", "t", "z", "s", "z"], ["c"], name="sum", **MICROSOFT),
        node("DequantizeLinear", ["c", "s", "z"], ["y"], name="to_floats"),
    ]
    constants = [constant(value, name) for name, value in GRIDS.items()]
    x = np.random.default_rng(0).normal(size=1000).astype(F)
    rows = compared(model(nodes, constants, [("x", FLOAT, ("N",))]), path, x)
    assert rows["erf"].own.differing
    assert LAST_BITS.fullmatch(rows["erf"].reason)
    assert rows["to_integers"].reason == EQUAL
    assert rows["to_floats"].reason == "its inputs differ: most of the error begins at 'sum'"


def test_a_sigmoid_of_small_results(path):
    """onnxruntime's results near 1e-8 are wrong by more than they are large."""
    x = np.linspace(-20, -16, 100, dtype=F)
    row = compared(model([node("Sigmoid", ["x"], ["y"], name="sigmoid")], [], [("x", FLOAT, ("N",))]), path, x)
    assert re.fullmatch(
        r"onnxruntime's Sigmoid errs by some 1e-7 where its results are smaller, too: by at most [\d.]+e-08 here",
        row["sigmoid"].reason,
    )


def test_subnormals(path):
    x = F([1e-20, -1e-20, 1])
    row = compared(model([node("Mul", ["x", "x"], ["y"], name="square")], [], [("x", FLOAT, ("N",))]), path, x)
    assert (row["square"].own.differing, row["square"].own.largest) == (2, F(1e-20) * F(1e-20))
    assert row["square"].reason == "jaxdml treats float32 subnormals as 0: the difference is at most 1e-40"


LEVELS = {
    0: "accuracy level 0: jaxdml rounds the product's floats to int22 in blocks: ",
    2: "accuracy level 2: jaxdml rounds the product's floats to int15 in blocks: ",
    4: "accuracy level 4: both round the product's floats to int8, and add in a different order: ",
}


@pytest.mark.parametrize("level", LEVELS)
def test_a_product_by_blocks_has_its_accuracy_level(level, path):
    random = np.random.default_rng(0)
    given = [constant(random.integers(0, 256, (24, 8, 16), U), "b"), constant(np.full((24, 8), 0.02, F), "scales")]
    attributes = {"K": 256, "N": 24, "bits": 4, "block_size": 32, "accuracy_level": level, **MICROSOFT}
    nodes = [node("MatMulNBits", ["x", "b", "scales"], ["y"], name="product", **attributes)]
    proto = model(nodes, given, [("x", FLOAT, ("N", 256))], [("y", FLOAT, None)], opset=21, ir_version=10)
    row = compared(proto, path, random.normal(size=(4, 256)).astype(F))["product"]
    assert row.reason.startswith(LEVELS[level])
    assert "in the last place of the largest value" in row.reason


def test_a_product_of_a_qdq_file_has_onnxruntimes_accuracy_level(path):
    random = np.random.default_rng(0)
    weights = random.integers(-8, 8, (64, 24)).astype("int4")
    nodes = [
        node("DequantizeLinear", ["w", "s"], ["f"], axis=0, block_size=32),
        node("MatMul", ["x", "f"], ["y"], name="product"),
    ]
    given = [constant(weights, "w"), constant(np.full((2, 24), 0.02, F), "s")]
    proto = model(nodes, given, [("x", FLOAT, ("N", 64))], [("y", FLOAT, ("N", 24))], opset=21, ir_version=10)
    row = compared(proto, path, random.normal(size=(4, 64)).astype(F))["product"]
    assert row.reason.startswith(
        "the accuracy level: onnxruntime rounds the product's floats to int8; "
        "with session.qdq_matmulnbits_accuracy_level=0, "
    )


CHANGES = {
    "gemm_weight_float": (
        "Gemm", "onnxruntime quantizes float weights and biases when it loads the file; with "
        "optimization.disable_specified_optimizers=WeightBiasQuantization, ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_graph_that_onnxruntime_changes(name, path):
    proto, (operator, reason) = MODELS[name](), CHANGES[name]
    rows = compared(proto, path, qdq_builder.random_inputs(proto)).values()
    (row,) = (row for row in rows if row.operator == operator)
    assert row.reason.startswith(reason)


@pytest.mark.rare
def test_int8_activations_are_partly_floats(path):
    """Only in the file itself: where the nodes' values are outputs, onnxruntime computes integers."""
    proto = quantized(encoder(), "qdq", activation="int8", weight="int8", reduce_range=True)
    loaded = dml.onnx.load(saved(proto, path), numerics="onnxruntime")
    found = dml.onnx.compare(path, random_inputs(proto, 8, 5), loaded)
    assert not found.are_equal
    changed, outputs = found.notes
    assert re.search(r"which changes \d+ elements of the model's outputs", changed)
    assert outputs == (
        "the outputs: onnxruntime computes int8 activations partly in floats; with session.qdqisint8allowed=1, no "
        "element differs"
    )


def test_values_that_the_file_does_not_have(path):
    """Flatten moves integers where the file has floats; onnxruntime gives no values of 4 bits."""
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["a"], name="to_integers"),
        node("DequantizeLinear", ["a", "s", "z"], ["b"], name="to_floats"),
        node("Flatten", ["b"], ["y"], name="flatten"),
        node("QuantizeLinear", ["x", "s", "n"], ["c"], name="to_nibbles"),
        node("DequantizeLinear", ["c", "s", "n"], ["w"], name="from_nibbles"),
    ]
    constants = [constant(value, name) for name, value in GRIDS.items()]
    constants.append(constant(np.asarray(3).astype("uint4"), "n"))
    rows = compared(model(nodes, constants, [("x",)], [("y",), ("w",)], opset=21, ir_version=10), path)
    assert rows["flatten"].own is None
    assert rows["flatten"].reason == ABSENT
    assert rows["to_nibbles"].reason.startswith("onnxruntime gives this value in another type, or not at all: ")
    assert rows["from_nibbles"].reason == EQUAL


REFUSED = (  # by onnxruntime
    "average_pool_dilations", "conv_blocked", "conv_input_per_channel", "conv_per_channel_wrong_axis",
    "reduce_max_opset_11",
)  # fmt: skip
RUN = [name for name in MODELS if name not in REFUSED]
SOME = RUN[::40]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", rest_rarely([*SOME, *(name for name in RUN if name not in SOME)], len(SOME)))
def test_no_reason_is_blank_and_none_is_unexplained(name, path):
    proto = MODELS[name]()
    saved(proto, path)
    rows = dml.onnx.compare(path, qdq_builder.random_inputs(proto)).nodes
    assert len(rows) == len(dml.onnx.load(path).nodes)
    for row in rows:
        assert row.reason
        assert not row.reason.startswith("unexplained")
        assert (row.reason == EQUAL) == bool(row.so_far and not row.own.differing and not row.so_far.differing)


# Reasons of nodes, by experiments that are made up --------------------------------------------------------------------


def made_up(name="QLinearConv", inputs=("x",), outputs=("y",), is_quantized=True):
    return Node(Operator(name, None, is_quantized=is_quantized), inputs, outputs, name=name)


def integers(differing):
    return Difference(differing, 100, 1.0, differing / 1e4, None)


NAN = Difference(1, 100, np.inf, np.inf, None)


def reasons(own, experiments=(), nodes=(), theirs="QLinearConv"):
    nodes = nodes or [made_up() for _ in own]
    return own_reasons(nodes, own, experiments, {"y"}, lambda: {"y": theirs})


def experiment(rests, asked, name, question=""):
    def run():
        asked.append(name)
        return rests

    return Experiment(lambda node: True, run, lambda node: name, question)


def test_the_first_experiment_that_makes_a_difference_small_is_the_reason():
    asked = []
    tried = [
        experiment([integers(50)], asked, "half"),
        experiment(None, asked, "refused"),
        experiment([NAN], asked, "NaN"),
        experiment([integers(1)], asked, "most"),
        experiment([integers(0)], asked, "later"),
    ]
    inputs = made_up(inputs=("y",))
    assert reasons([integers(100)], tried, [inputs]) == {0: "most, 1 element differs, by at most 1"}
    assert asked == ["half", "refused", "NaN", "most"]
    assert reasons([NAN], [experiment([NAN], asked, "NaN")], [inputs])[0].startswith("unexplained")
    tried = [experiment(None, asked, "", "whether weights saturate"), experiment(None, asked, "", "whether y")]
    assert reasons([integers(100)], tried, [inputs])[0] == (
        "onnxruntime's QLinearConv differs; onnxruntime rejects the file with the settings that would show whether "
        "weights saturate"
    )
    assert reasons([integers(0), None], tried) == {}
    asked.clear()
    bits = "a float function's last bits: 2 units in the last place of the largest value"
    assert reasons([dataclasses.replace(integers(3), last_places=2.0)], tried) == {0: bits}
    floats = dataclasses.replace(integers(3), last_places=1000.0)
    subnormal, small = dataclasses.replace(floats, largest=1e-39), dataclasses.replace(floats, largest=2e-7)
    assert reasons([subnormal], tried)[0].startswith("jaxdml treats float32 subnormals as 0")
    assert reasons([small], tried, [made_up("Sigmoid")])[0].startswith("onnxruntime's Sigmoid errs by some 1e-7")
    assert asked == []
    larger = dataclasses.replace(floats, largest=2**-21)
    assert not reasons([larger], [], [made_up("Sigmoid")])[0].startswith("onnxruntime's Sigmoid")


def test_settings_that_onnxruntime_refuses_explain_nothing():
    def refuse(settings):
        raise ModelError("onnxruntime does not run the model")

    formula, *settings = experiments(refuse, lambda: [integers(0)])
    assert formula.run() == [integers(0)]
    assert len(settings) == 8
    assert all(each.run() is None for each in settings)
    assert output_reasons(integers(3), refuse, lambda: None) == []


@pytest.mark.parametrize(("place", "reason"), [
    (1, "onnxruntime computes int8 activations partly in floats; with session.qdqisint8allowed=1"),
    (6, "onnxruntime's optimizations change the graph; without optimizations"),
])  # fmt: skip
def test_the_first_settings_that_explain_the_outputs_are_named(place, reason):
    rests = itertools.chain([integers(9)] * place, itertools.repeat(integers(0)))
    found = output_reasons(integers(10), lambda settings: next(rests), lambda: integers(10))
    assert found == [f"the outputs: {reason}, no element differs"]


@pytest.mark.parametrize(("node", "theirs", "reason"), [
    (made_up(inputs=("y",)), "QLinearConv", "unexplained: onnxruntime's QLinearConv differs, and no experiment shows "
     "why; please report it with the file"),
    (made_up(inputs=("y",)), "QuantizeLinear", "onnxruntime did not fuse the node: it computes it in floats, and "
     "quantizes the result"),
    (made_up("table"), "", "the file computes the table by float operators; save(..., tables='gather') writes an "
     "exact look-up table"),
    (made_up("quantize", is_quantized=False), "QuantizeLinear", "it reads values that the file computes by other "
     "operators, which round differently"),
])  # fmt: skip
def test_what_no_experiment_explains(node, theirs, reason):
    absent = made_up("exp", (), ("x",))
    assert reasons([None, integers(3)], nodes=[absent, node], theirs=theirs) == {1: reason}


def test_floats_that_no_experiment_explains():
    floats = dataclasses.replace(integers(3), last_places=1000.0)
    text = "a different formula or a different order of float operations"
    assert reasons([floats]) == {0: f"{text}: 1,000 units in the last place of the largest value"}


def test_shapes_stay_the_models_own(path, x64):
    """JAX needs shapes at trace time; onnxruntime's int64 are JAX's int32, unless JAX has int64."""
    nodes = [
        node("Shape", ["x"], ["shape"], name="shape"),
        node("Reshape", ["w", "shape"], ["v"], name="reshape"),
        node("Cast", ["v"], ["i"], name="cast", to=TensorProto.INT64),
        node("Add", ["i", "i"], ["y"], name="add"),
    ]
    inputs = [("x", FLOAT, (2, 3)), ("w", FLOAT, (6,))]
    rows = compared(model(nodes, inputs=inputs, outputs=[("y", TensorProto.INT64, None)]), path)
    assert {name: row.reason for name, row in rows.items()} == dict.fromkeys(("shape", "reshape", "cast", "add"), EQUAL)


def test_inputs_of_64_bits_may_be_those_of_jax(path):
    proto = model([node("Add", ["x", "x"], ["y"])], inputs=[("x", TensorProto.INT64, (2,))],
                  outputs=[("y", TensorProto.INT64, None)])  # fmt: skip
    for dtype in (np.int32, np.int64):
        (row,) = compared(proto, path, np.asarray([1, 2], dtype)).values()
        assert row.reason == EQUAL
