"""How constants become parameters."""

import numpy as np
import pytest

from jaxdml._graph.graph import Graph, Node, Operator
from jaxdml._graph.weights import with_weights

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
