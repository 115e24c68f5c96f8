"""The list of nodes from which other formats are written computes what the model does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import jaxdml as dml
from _ptq.quantized import network, quantized
from _ptq.test_scans_over_steps import CELL, both_ways, indexed, looped, mapped, with_positions
from helpers.compare import assert_same_bits
from jaxdml._graph.evaluate import evaluate
from jaxdml.ptq import PtqError

pytestmark = pytest.mark.rare

X = np.random.default_rng(0).standard_normal((4, 6, 8)).astype(np.float32)


def float_scan(p, x):
    """A scan whose body has nothing to quantize."""
    sums = lax.scan(lambda total, row: (total + row, jnp.tanh(total)), x[:, 0], x.swapaxes(0, 1), reverse=True)[1]
    return sums[0] @ p["head"]


LOOPS = {"LSTM": both_ways, "fori_loop": looped, "by index": indexed, "map": mapped, "positions": with_positions,
         "floats": float_scan}  # fmt: skip


def results(flat, *inputs):
    def compute(*inputs):
        values = evaluate(flat.nodes, {**flat.constants, **dict(zip(flat.inputs, inputs, strict=True))})
        return [values[name] for name in flat.outputs]

    return jax.jit(compute)(*inputs)


@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_unrolled(name):
    model = dml.ptq.quantize(LOOPS[name], CELL, [X], progress=False)
    flat = model.flat(X[:3])
    assert not [node for node in flat.nodes if node.operator.name in ("loop", "scan")]
    np.testing.assert_allclose(results(flat, X[:3])[0], model.apply(model.params, X[:3]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["digits", "scanned MLP"])
def test_the_bits_are_those_of_the_model(name):
    model, inputs = quantized(name), network(name).make_inputs(3)
    assert_same_bits(results(model.flat(*inputs), *inputs)[0], model.apply(model.params, *inputs))


def test_shapes_are_symbolic_where_those_of_inputs_are():
    model, (x,) = quantized("digits"), network("digits").make_inputs(2)
    (batch,) = export.symbolic_shape("batch")
    given = [jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype)]
    flat = model.flat(*given)
    shapes = flat.shapes(given)
    assert shapes[flat.outputs[0]].shape == (batch, 10)
    assert all(name in shapes for node in flat.nodes for name in (*node.inputs, *node.outputs) if name)


def test_a_number_of_steps_must_be_known():
    model = dml.ptq.quantize(both_ways, CELL, [X], progress=False)
    (steps,) = export.symbolic_shape("steps")
    with pytest.raises(PtqError, match=r"scan_1 has steps steps; scans are unrolled: give the sizes of the inputs"):
        model.flat(jax.ShapeDtypeStruct((4, steps, 8), np.float32))
