"""`Model.values_alone`: the results of nodes for given inputs."""

import numpy as np
import pytest
from onnx import TensorProto

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.hostile_models import model, node
from jaxdml.errors import ModelError

F = np.float32


def test_nodes_read_given_values_of_their_own_shape_and_type():
    nodes = [node("Neg", ["x"], ["a"]), node("Exp", ["a"], ["y"])]
    made = dml.onnx.load(model(nodes, inputs=[("x", TensorProto.FLOAT, (2,))]))
    x, given = F([1, 2]), F([0, 5])
    assert_same_bits(made.values_alone(made.params, {"a": given}, x)["a"], -x)
    assert_same_bits(made.values_alone(made.params, {"a": given}, x)["y"], made.apply(made.params, -given)["y"])
    for wrong in (F([0]), given.astype(np.int32)):
        assert_same_bits(made.values_alone(made.params, {"a": wrong}, x)["y"], made.apply(made.params, x)["y"])
    with pytest.raises(ModelError, match=r"given\['a'\] has type >f4.*; write given\['a'\].astype\(jnp.float32\)"):
        made.values_alone(made.params, {"a": given.astype(">f4")}, x)
    with pytest.raises(ModelError, match=r"apply lacks \['x'\]"):
        made.values_alone(made.params, {"a": given})
