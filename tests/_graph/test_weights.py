"""How constants become parameters."""

import jax
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.compilations import compiled_programs
from helpers.marks import on_both_kernels
from helpers.native_calls import needs_native
from jaxdml._arithmetic import packing
from jaxdml._graph.graph import Graph, Node, Operator
from jaxdml._graph.weights import with_weights
from jaxdml._quantized.kinds import FILTER, MATRIX
from jaxdml.errors import ModelError

W, B = np.arange(6, dtype=np.float32), np.ones(6, np.float32)


def graph(*inputs, **prepare):
    operator = Operator("made up", lambda x, w, b=None: x * w, **prepare)
    node = Node(operator, ("x", *inputs), ("y",), name="layer")
    return Graph((node,), ("x",), ("y",), dict(zip(inputs, (W, B), strict=False)))


def test_a_function_of_one_input_may_keep_it():
    made, params = with_weights(graph("w", prepare={(1,): lambda w, options: w}))
    assert made.nodes[0].inputs == ("x", "w")
    assert params.keys() == {"w"}


def test_a_function_of_several_inputs_keeps_none_of_them():
    of_both = {(1, 2): lambda w, b, options: (w + b, None)}
    made, params = with_weights(graph("w", "b", prepare=of_both))
    assert made.nodes[0].inputs == ("x", "w:prepared", "")
    never = {(1, 2): lambda w, b, options: pytest.fail("known parameters are not computed again")}
    again, _ = with_weights(graph("w", "b", prepare=never), known=params)
    assert again.nodes[0].inputs == made.nodes[0].inputs
    with pytest.raises(
        TypeError, match=r"node 'layer' .*: a function that prepares several inputs must keep none of them"
    ):
        with_weights(graph("w", "b", prepare={(1, 2): lambda w, b, options: (w + b, b)}))


def test_constants_that_the_function_looks_at_stay_in_the_program():
    made, params = with_weights(graph("w", "b", fixed=(1, 5)))
    assert made.constants.keys() == {"w"}
    assert params.keys() == {"b"}


def layers(first):
    """Products and convolutions of different shapes, whose weights are constants."""
    nodes, constants = [], {}
    for i in range(first, first + 3):
        constants[f"b{i}"] = np.full((i, 2 * i), i, np.int8)
        constants[f"w{i}"] = np.full((4, i, 3, 3), -i, np.int8)
        for letter, prepare in (("b", MATRIX), ("w", FILTER)):
            operator = Operator("made up", lambda *x: x, prepare=prepare)
            nodes.append(Node(operator, ("x", "", "", f"{letter}{i}"), (f"{letter}y{i}",)))
    return Graph(tuple(nodes), ("x",), tuple(node.outputs[0] for node in nodes), constants)


@on_both_kernels
def test_weights_are_packed_in_one_program(caplog):
    graph = layers(41)
    with compiled_programs(caplog) as programs:
        _, params = with_weights(graph)
    assert len(programs) == (1 if dml.kernels().startswith("native") else 0)
    for name, value in graph.constants.items():
        prepare = dml.prepare_matrix_multiply_b if name.startswith("b") else dml.prepare_convolution_filter
        alone, together = prepare(value), params[f"{name}:prepared"]
        assert jax.tree.structure(alone) == jax.tree.structure(together)
        assert_same_bits(alone.data, together.data)


@pytest.mark.parametrize(("sizes", "chunks"), [((6, 6, 6), [[0], [1], [2]]), ((4, 5, 6, 12), [[0, 1], [2], [3]])])
def test_a_program_packs_few_bytes(sizes, chunks, monkeypatch):
    monkeypatch.setattr(packing, "LEAST_BYTES", 1)
    monkeypatch.setattr(packing, "MOST_BYTES", 10)
    waiting = [packing.Waiting(np.zeros(size, np.int8)) for size in sizes]
    assert list(packing._chunks(range(len(sizes)), waiting)) == chunks


@needs_native
def test_very_many_weights_are_packed_in_several_programs(caplog, monkeypatch):
    """So that neither memory nor the time between checks of the time grows with the model."""
    monkeypatch.setattr(packing, "MOST_BYTES", 2 * packing.LEAST_BYTES)
    graph, checks = layers(51), []
    with compiled_programs(caplog) as programs:
        with_weights(graph, lambda: checks.append(len(caplog.records)))
    assert len(programs) == 3
    assert sum(count > 0 for count in checks) == 2

    def too_late():
        raise ModelError("too late")

    with pytest.raises(ModelError, match="too late"):
        packing.packed([packing.Waiting(np.ones((2, 2), np.int8))], too_late)
