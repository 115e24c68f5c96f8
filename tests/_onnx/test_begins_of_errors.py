"""`jaxdml.onnx.compare`: at which node an error begins, and whether the outputs depend on last bits."""

import warnings
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

import jaxdml as dml
from _onnx.test_compare import EQUAL, NAN, integers, made_up, saved
from helpers.compare import assert_same_bits
from helpers.hostile_models import constant, model, node
from helpers.one_node import on_x64_alone
from jaxdml.onnx._compare.compare import _Comparing, _next
from jaxdml.onnx._compare.differences import Difference
from jaxdml.onnx._compare.reasons import output_reasons

F = np.float32
NUDGES = (
    "the outputs: last bits matter as much within onnxruntime: if its inputs move to their next floats, its outputs"
)
XLA = "XLA's floats differ between two programs compiled from the model; floats='exact' gives one answer"
pytestmark = on_x64_alone


def begins(name):
    return f"its inputs differ: most of the error begins at {name!r}"


def rows_of(nodes, theirs, own, values):
    """The reasons of nodes with made-up values: onnxruntime's, those of nodes by themselves, and the model's."""
    theirs, own, values = ({name: F([x]) for name, x in each.items()} for each in (theirs, own, values))
    subject = SimpleNamespace(nodes=nodes, outputs=values, values=values, alone=lambda given: own, by_onnxruntime=None)

    def run(inputs, names, settings=None):
        return {name: theirs[name] for name in names}

    peer = SimpleNamespace(outputs=[nodes[-1].outputs[0]], computed=set(theirs), version="", run=run, operators=dict)
    return [row.reason for row in _Comparing(subject, peer, {}).comparison([]).nodes]


def test_floats_of_xla_may_differ_between_two_programs():
    """A node without an error of its own, whose inputs are onnxruntime's, and which differs in the whole program."""
    assert rows_of([made_up()], {"y": 1}, {"y": 1}, {"y": 1.1}) == [XLA]


def test_an_error_that_ends_or_that_passes_by():
    """The first node's error is the worst; it may end at the second node, or be more or less than the third's."""
    nodes = [made_up("bad", (), ("a",)), made_up("round", ("a",), ("b",)), made_up("fine", ("b",), ("c",)),
             made_up("last", ("c",))]  # fmt: skip
    same = dict.fromkeys("abcy", 1)
    own, values = same | {"a": 9, "c": 1.1}, same | {"a": 9, "c": 1.1, "y": 1.1}
    assert rows_of(nodes, same, own, values)[1::2] == [EQUAL, begins("fine")]
    assert rows_of(nodes, same, own, values | {"b": 9})[3] == begins("fine")
    assert rows_of(nodes, same, own, values | {"b": 9, "c": 5, "y": 5})[3] == begins("bad")


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_the_larger_of_two_errors(names):
    nodes = [made_up("one", (), ("a",)), made_up("two", (), ("b",)), made_up("last", tuple(names))]
    same = dict.fromkeys("aby", 1)
    for larger, name in (("a", "one"), ("b", "two")):
        own = same | {"a": 1.1, "b": 1.1} | {larger: 2}
        assert rows_of(nodes, same, own, own | {"y": 3})[2] == begins(name)


def test_only_outputs_that_differ_pass_an_error_on():
    nodes = [made_up("bad", (), ("a", "b")), made_up("small", (), ("c",)), made_up("last", ("b", "c"))]
    same = dict.fromkeys("abcy", 1)
    own = same | {"a": 9, "c": 1.1}
    assert rows_of(nodes, same, own, own | {"y": 1.1})[2] == begins("small")
    assert rows_of([nodes[0], made_up(inputs=("b",))], same, own, own | {"y": 1.1})[1] == XLA


def test_values_that_the_file_lacks_pass_an_error_on():
    nodes = [made_up("bad", (), ("a",)), made_up("flatten", ("a",), ("absent",)), made_up("last", ("absent",))]
    own = {"a": 9, "absent": 1, "y": 1}
    assert rows_of(nodes, {"a": 1, "y": 1}, own, own | {"y": 9})[2] == begins("bad")


def test_absent_values_carry_no_blame():
    """An unused output and an absent input have the same empty name."""
    nodes = [made_up("bad", (), ("a", "")), made_up("fine", ("x", ""), ("b",)), made_up("last", ("b",))]
    values = {"a": 9, "b": 1.1, "y": 1.1}
    reasons = rows_of(nodes, dict.fromkeys("aby", 1), values | {"y": 1}, values)
    assert reasons[2] == begins("fine")
    own = dict.fromkeys("by", 1) | {"a": 9}
    assert rows_of(nodes, dict.fromkeys("aby", 1), own, own | {"b": 1.1})[1] == XLA


# Last bits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1, -1])
def test_an_output_that_depends_on_last_bits(sign, tmp_path):
    """The sine of a large multiple; with the other sign, floats above and below change their roles."""
    nodes = [node("Erf", ["x"], ["a"]), node("Mul", ["a", "large"], ["b"]), node("Sin", ["b"], ["y"])]
    proto = model(nodes, [constant(F(1e6), "large")], [("x", TensorProto.FLOAT, ("N",))])
    path, x = saved(proto, tmp_path / "model.onnx"), np.linspace(0.1, 1, 50, dtype=F) * F(sign)
    session = onnxruntime.InferenceSession(path)
    y, up, down = (session.run(None, {"x": each})[0] for each in (x, np.nextafter(x, F(2)), np.nextafter(x, F(-2))))
    moved = max(np.abs(each.astype(float) - y).max() for each in (up, down))
    assert dml.onnx.compare(path, x).notes[-1] == f"{NUDGES} move by at most {moved:.3g}"


def test_largest_floats_have_no_next_one():
    x = np.float16([65504, 1, np.inf, -np.inf, np.nan])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_bits(_next(x, np.inf), np.float16([65504, 1 + 2**-10, np.inf, -np.inf, np.nan]))


def test_last_bits_of_outputs_need_no_experiment():
    own = Difference.of(F([1]), F([1 + 2**-22]))
    assert output_reasons(own, lambda settings: own, pytest.fail) == []


@pytest.mark.parametrize(
    ("moved", "count"), [(integers(8), 1), (integers(7), 0), (integers(0), 0), (NAN, 0), (None, 0)]
)
def test_outputs_that_last_bits_do_not_move(moved, count):
    assert len(output_reasons(integers(16), lambda settings: integers(16), lambda: moved)) == count
