"""LSTM, near onnxruntime's floats, and DynamicQuantizeLSTM, with onnxruntime's bits."""

import dataclasses
import re
from collections import Counter

import jax
import numpy as np
import onnxruntime
import pytest
from onnx import helper

import jaxdml.onnx
from _onnx.lstm_by_numpy import dynamic_quantize_lstm
from _onnx.lstm_cases import NAMES, OUTPUTS, Case, random_case
from helpers.compare import assert_same_bits
from helpers.hostile_models import model, node, refused
from helpers.marks import HAS_NATIVE, rarely_on_xla
from helpers.one_node import on_x64_alone
from jaxdml.onnx import Difference, Limits
from jaxdml.onnx._operators.recurrent import quantized_lstm_options

MOST_LAST_PLACES = 32  # units in the last place of the largest value by which LSTM may differ from onnxruntime's
ROWS = 40


def computed(case, **options):
    made = jaxdml.onnx.load(case.model().SerializeToString(), **options)
    return made.apply(made.params, **case.inputs)


# Results -------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(ROWS))
def test_floats_are_near_those_of_onnxruntime(seed):
    case = random_case(seed, is_quantized=False)
    expected, found = case.by_onnxruntime(), computed(case)
    for name in OUTPUTS:
        difference = Difference.of(found[name], expected[name])
        assert difference.last_places <= MOST_LAST_PLACES, (name, difference)


@on_x64_alone
@rarely_on_xla
@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(ROWS))
def test_products_of_integers_have_the_bits_of_onnxruntime(seed):
    case = random_case(seed, is_quantized=True)
    expected, found = case.by_onnxruntime(), computed(case)
    for name in OUTPUTS:
        assert_same_bits(found[name], expected[name])


@on_x64_alone
@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(ROWS))
def test_numpy_has_the_bits_of_onnxruntime(seed):
    case = random_case(seed, is_quantized=True)
    case.attributes.pop("activations", None)
    cell = quantized_lstm_options(**case.attributes)["cell"]
    options = {"backward": cell.backward, "clip": cell.clip, "couples_forget": cell.couples_forget}
    found = dynamic_quantize_lstm(*map(case.values.get, NAMES), **options)
    for name, each in zip(OUTPUTS, found, strict=True):
        assert_same_bits(each, case.by_onnxruntime()[name])


def small(operator="DynamicQuantizeLSTM", *, items=2, **changes):
    """A case of 3 steps, 4 features and 5 hidden units; the changes are of its values, and None removes a value."""
    rng = np.random.default_rng(0)
    values = {"x": rng.standard_normal((3, items, 4)).astype(np.float32)}
    if operator == "LSTM":
        values |= {"w": np.ones((1, 20, 4), np.float32), "r": np.ones((1, 20, 5), np.float32)}
    else:
        values |= {name: rng.integers(0, 255, (1, rows, 20), np.uint8) for name, rows in (("w", 4), ("r", 5))}
        values |= {name: np.full(1, 0.01, np.float32) for name in ("ws", "rs")}
        values |= {name: np.full(1, 128, np.uint8) for name in ("wz", "rz")}
    values = {name: value for name, value in (values | changes).items() if value is not None}
    return Case(operator, values, {"hidden_size": 5})


def test_the_table_says_where_they_run():
    made = jaxdml.onnx.load(small().model())
    assert str(made).splitlines()[2].split() == ["dynamicquantizelstm_0", *["DynamicQuantizeLSTM"] * 2, "integers"]
    assert "1 of 1 convolutions and products" in str(made)
    assert "one answer" in str(made)
    assert made.params.keys() == {"w:prepared", "r:prepared"}
    made = jaxdml.onnx.load(small("LSTM").model(), floats="exact")
    assert str(made).splitlines()[2].split() == ["lstm_0", "LSTM", "LSTM", "floats"]
    assert made.by_xla == ("lstm_0",)


@pytest.mark.rare
@pytest.mark.skipif(not HAS_NATIVE, reason="on XLA's kernels, XLA splits products of integers by directions")
@pytest.mark.parametrize("operator", ["LSTM", "DynamicQuantizeLSTM"])
def test_a_step_of_two_directions_has_the_operations_of_one(operator):
    """Each operation has its own cost, and XLA gives independent ones to several threads.

    The native kernel of all steps does not take Relu.
    """
    one = small(operator)
    one.attributes["activations"] = ["Sigmoid", "Tanh", "Relu"]
    both = {name: value if name == "x" else np.concatenate([value] * 2) for name, value in one.values.items()}
    more = {"direction": "bidirectional", "activations": one.attributes["activations"] * 2}
    two = dataclasses.replace(one, values=both, attributes=one.attributes | more)
    of_one, of_two = (Counter(re.findall(r" (dot|custom-call)\(", compiled(case))) for case in (one, two))
    assert of_one == of_two
    assert of_one.total() > 1


def test_no_call_transposes_the_weights_of_x():
    both = {name: np.ones((2, 20, size), np.float32) for name, size in (("w", 4), ("r", 5))}
    for case in (small("LSTM"), small("LSTM", **both)):
        case.attributes["direction"] = "bidirectional" if case.values["w"].shape[0] == 2 else "forward"
        hlo = compiled(case)
        assert "f32[20,4]" in hlo or "f32[40,4]" in hlo
        assert "f32[4,20]" not in hlo
        assert "f32[4,40]" not in hlo


def compiled(case):
    """The compiled program of a model."""
    made = jaxdml.onnx.load(case.model().SerializeToString())
    return jax.jit(made.apply).lower(made.params, **case.inputs).compile().as_text()


@pytest.mark.rare
@pytest.mark.parametrize(("operator", "is_zero"), [("LSTM", False), ("DynamicQuantizeLSTM", True)])
def test_derivatives(operator, is_zero):
    made = jaxdml.onnx.load(small(operator).model())
    derivative = jax.grad(lambda x: made.apply(made.params, x)["y"].sum())(small(operator).values["x"])
    assert np.isfinite(np.asarray(derivative)).all()
    assert (not np.asarray(derivative).any()) == is_zero


@pytest.mark.rare
def test_the_batch_may_come_first():
    """onnxruntime's CPU kernel does not support this layout."""
    rng = np.random.default_rng(0)
    states = {name: rng.standard_normal((1, 2, 5)).astype(np.float32) for name in "hc"}
    steps_first = small("LSTM", **states)
    batch_first = small("LSTM", **{name: value.swapaxes(0, 1) for name, value in states.items()})
    batch_first.values["x"] = steps_first.values["x"].swapaxes(0, 1)
    batch_first.attributes["layout"] = 1
    expected, found = computed(steps_first), computed(batch_first)
    assert_same_bits(found["y"], np.transpose(expected["y"], (2, 0, 1, 3)))
    for name in ("last_h", "last_c"):
        assert_same_bits(found[name], np.swapaxes(expected[name], 0, 1))


def test_lengths_that_x_does_not_have():
    """Constant lengths raise an error; for lengths that are known too late for an error, the results are NaN."""
    for lengths in ([-1, 2], [4, 2]):
        case = small("LSTM", lengths=np.array(lengths, np.int32))
        refused(case.model(), f"sequence_lens is {lengths}, expected numbers from 0 to 3, the steps of X")
        with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument):
            case.by_onnxruntime()
    case = dataclasses.replace(case, given=("x", "lengths"))
    for name, value in computed(case).items():
        items = np.moveaxis(np.asarray(value), -2, 0)
        assert np.isnan(items[0]).all(), name
        assert not np.isnan(items[1]).any(), name


# What is refused -----------------------------------------------------------------------------------------------------

F = np.float32
SHAPES = {
    "x": (np.ones((3, 2), F), "X has shape (3, 2), expected (any, any, any)"),
    "w": (np.ones((1, 4, 16), np.uint8), "W has shape (1, 4, 16), expected (1, 4, 20)"),
    "r": (np.ones((1, 5, 16), np.uint8), "R has shape (1, 5, 16), expected (1, 5, 20)"),
    "bias": (np.ones((1, 20), F), "B has shape (1, 20), expected (1, 40)"),
    "lengths": (np.ones(3, np.int32), "sequence_lens has shape (3,), expected (2,)"),
    "h": (np.ones((2, 2, 5), F), "initial_h has shape (2, 2, 5), expected (1, 2, 5)"),
    "c": (np.ones((1, 5), F), "initial_c has shape (1, 5), expected (1, 2, 5)"),
    "peephole": (np.ones((1, 20), F), "P has shape (1, 20), expected (1, 15)"),
    "ws": (np.ones(20, F), "W_scale has shape (20,), expected (1,) or (1, 20)"),
    "rz": (np.ones((1, 5), np.uint8), "R_zero_point has shape (1, 5), expected (1,) or (1, 20)"),
    "wz": (np.zeros(1, np.int8), "W_zero_point has type int8, expected uint8, the type of W"),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_wrong_shapes(name):
    value, text = SHAPES[name]
    refused(small(**{name: value}).model(), "DynamicQuantizeLSTM", text)


@pytest.mark.parametrize("number", [0, 5])
def test_zero_points_of_another_type(number):
    """The type matters even where the zero point is 0, and needs no correction."""
    refused(small(rz=np.full(1, number, np.int8)).model(), "R_zero_point has type int8, expected uint8")


@pytest.mark.parametrize(("name", "text"), [("w", "input 1"), ("r", "input 2"), ("ws", "input 8"), ("rz", "inputs")])
def test_missing_inputs(name, text):
    refused(small(**{name: None}).model(), text, "missing" if text != "inputs" else "it has 11 inputs, expected 12")


ATTRIBUTES = {
    "direction": ("sideways", "'direction' is 'sideways'; supported: forward, reverse, bidirectional"),
    "hidden_size": (6, "'hidden_size' is 6, but R of shape (1, 5, 20) has 5"),
    "clip": (-1.0, "'clip' is -1.0, expected a positive number"),
    "activations": (["Tanh"] * 2, "'activations' has 2 names, expected 3"),
    "layout": (1, "'layout' is not supported"),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_wrong_attributes(name):
    value, text = ATTRIBUTES[name]
    case = small()
    case.attributes[name] = value
    refused(case.model(), text)


def test_more_wrong_attributes():
    case = small("LSTM")
    for name, value, text in (
        ("hidden_size", 0, "'hidden_size' is 0, expected at least 1"),
        ("hidden_size", 2**40, "'hidden_size' is 1099511627776, but R"),
        ("layout", 2, "'layout' is 2, expected 0 or 1"),
        ("clip", float("nan"), "'clip' is nan"),
        ("activations", ["Sigmoid", "Gelu", "Tanh"], "has 'Gelu'; supported: Sigmoid, Tanh, Relu, Affine"),
    ):
        refused(dataclasses.replace(case, attributes={name: value}).model(), text)


def test_activations_of_integers_and_the_remedy():
    """quantize_dynamic leaves the node in floats, which has the activation."""
    case = small()
    case.attributes["activations"] = ["Sigmoid", "Elu", "Tanh"]
    refused(case.model(), "'activations' has 'Elu'; supported: Sigmoid, Tanh, Relu; ", "nodes_to_exclude")
    case = small("LSTM")
    case.attributes["activations"] = ["Sigmoid", "Elu", "Tanh"]
    assert np.isfinite(np.asarray(computed(case)["y"])).all()


@pytest.mark.rare
def test_nothing_to_compute():
    for x in (np.ones((0, 2, 4), F), np.ones((3, 0, 4), F)):
        for operator in ("LSTM", "DynamicQuantizeLSTM"):
            found = computed(small(operator, x=x))
            assert found["y"].shape == (x.shape[0], 1, x.shape[1], 5)
            assert not np.asarray(found["last_h"]).any()
    without_features = small("LSTM", x=np.ones((3, 2, 0), F), w=np.ones((1, 20, 0), F))
    assert not np.asarray(computed(without_features)["y"]).any()
    empty = small("LSTM", w=np.ones((1, 0, 4), F), r=np.ones((1, 0, 0), F))
    refused(
        dataclasses.replace(empty, attributes={}).model(),
        "R of shape (1, 0, 0) has 0 hidden units, expected at least 1",
    )


def test_a_result_beyond_the_limit():
    proto = small("LSTM").model()
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", 1, (2**20, 1, 4)))
    refused(proto, "result of shape (1048576, 1, 1, 5)", "limit", limits=Limits(tensor_bytes=2**24))


@pytest.mark.parametrize("operator", ["GRU", "RNN"])
def test_other_recurrences(operator):
    inputs = ["x", "x", "x"]
    refused(model([node(operator, inputs, ["y"], hidden_size=1)]), operator, "is not supported", "supported_ops()")


# Comparison ----------------------------------------------------------------------------------------------------------


@on_x64_alone
@pytest.mark.rare
def test_the_reasons_of_differences(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(small(items=6).model().SerializeToString())
    (row,) = jaxdml.onnx.compare(path, small(items=6).values["x"]).nodes
    threads = "onnxruntime splits the items of a batch among its threads"
    assert row.reason == "equal" or row.reason.startswith(threads)  # a machine of one core has one thread
    path.write_bytes(small("LSTM").model().SerializeToString())
    (row,) = jaxdml.onnx.compare(path, small("LSTM").values["x"]).nodes
    assert row.reason == "equal" or "in the last place of the largest value" in row.reason
