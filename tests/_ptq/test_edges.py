"""Which channels can be scaled, and that scaling them does not change the float function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from _ptq.layers import average_pool, conv, max_pool
from jaxdml._graph.evaluate import evaluate
from jaxdml.ptq import Rule
from jaxdml.ptq._choose.edges import edges_of
from jaxdml.ptq._choose.equalize import CHANNELS, factors_of, multiplied, observers_of, with_ones, without_ones
from jaxdml.ptq._choose.modes import modes_of
from jaxdml.ptq._choose.unit import unit_of
from jaxdml.ptq._trace.scans import bound
from jaxdml.ptq._trace.traced import Traced
from jaxdml.ptq._trace.values import Value, factor_name

RANDOM = np.random.default_rng(0)


def normal(*shape):
    return RANDOM.standard_normal(shape, np.float32)


IMAGE, ROWS = normal(64, 6, 6, 6), normal(64, 6)
P = {
    "a": {"w": normal(6, 6, 3, 3), "b": normal(6)},
    "b": {"w": normal(8, 6, 3, 3), "b": normal(8)},
    "depthwise": {"w": normal(6, 1, 3, 3), "b": normal(6)},
    "grouped": {"w": normal(6, 2, 3, 3), "b": normal(6)},
    "third": {"w": normal(4, 3, 3, 3), "b": normal(4)},
    "wide": {"w": normal(4, 8, 3, 3), "b": normal(4)},
    "m": normal(6, 6),
    "n": normal(6, 4),
    "flat": normal(6 * 9, 4),
    "gain": normal(6),
}
relu = jax.nn.relu


def unit_for(apply, x, products="static", rules=(), block_size=None):
    program = Traced(apply, P).program((x,))
    unit = unit_of(program, lambda graph, scan: modes_of(graph, products, rules, np.int8, block_size))
    return unit.with_constants(jax.tree.leaves(P))


def found(apply, x, **options):
    """The edges from contractions as pairs of numbers of channels and readers, and those from floats."""
    edges = edges_of(unit_for(apply, x, **options))
    return [
        [(edge.count, len(edge.readers)) for edge in edges if (edge.maker is None) is of_floats]
        for of_floats in (False, True)
    ]


def rounded(x):
    return dml.fake_quantize(x, np.float32(0.05), 0)


def through(between, read="b"):
    return lambda p, x: conv(p[read], between(conv(p["a"], x)))


def to_rows(between, name="flat"):
    return lambda p, x: between(relu(conv(p["a"], x))) @ p[name]


SCALED = {
    "relu": (through(relu), 1),
    "nothing": (through(lambda y: y), 1),
    "max pooling": (through(lambda y: max_pool(relu(y), 2, 2)), 1),
    "average pooling": (through(lambda y: average_pool(relu(y), 2)), 1),
    "padding": (through(lambda y: jnp.pad(relu(y), ((0, 0), (0, 0), (1, 2), (0, 1)))), 1),
    "transpositions": (through(lambda y: relu(y.transpose(0, 2, 3, 1)).transpose(0, 3, 2, 1)), 1),
    "several channels in each channel": (through(lambda y: y[:, ::-1]), 1),
    "groups": (through(relu, "grouped"), 1),
    "depthwise": (lambda p, x: conv(p["b"], relu(conv(p["depthwise"], relu(conv(p["a"], x))))), 2),
    "two readers": (lambda p, x: (lambda y: conv(p["b"], y) + conv(p["b"], y[:, ::-1]))(relu(conv(p["a"], x))), 1),
    "flattened": (to_rows(lambda y: max_pool(y, 2, 2).reshape(len(y), -1)), 1),
    "channels last, flattened": (to_rows(lambda y: max_pool(y, 2, 2).transpose(0, 2, 3, 1).reshape(len(y), -1)), 1),
    "split": (lambda p, x: sum(conv(p["third"], y) for y in jnp.split(relu(conv(p["a"], x)), 2, 1)), 1),
    "mean": (to_rows(lambda y: jnp.mean(y, (2, 3)), "n"), 1),
    "einsum": (lambda p, x: jnp.einsum("bchw,cd->bdhw", relu(conv(p["a"], x)), p["n"]), 1),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SCALED)
def test_scaled_channels_leave_the_function_as_it_is(name):
    apply, count = SCALED[name]
    unit = unit_for(apply, IMAGE)
    edges = {"": edges_of(unit)}
    assert [edge.maker is not None for edge in edges[""]].count(True) == count
    check_function(apply, unit, edges, IMAGE)


def check_function(apply, unit, edges, x):
    """Random scales change the constants, but not the result."""
    of_contractions = [edge for edge in edges[""] if edge.maker]
    scales = [np.exp(RANDOM.normal(0, 2, edge.count)).astype(np.float32) for edge in of_contractions]
    factors = factors_of(of_contractions, unit.graph.constants, scales)
    assert len(factors) >= len(scales) + 1
    constants = multiplied(unit.graph.constants, factors)
    values = evaluate(bound(unit.graph.nodes, unit.program), {**constants, unit.graph.inputs[0]: x})
    exact = apply(P, x)
    ours = values[unit.graph.outputs[0]]
    assert np.abs(ours - exact).max() < 1e-5 * np.abs(exact).max()


def residual(p, x):
    y = relu(conv(p["a"], x))
    return conv(p["b"], y) + jnp.pad(y, ((0, 0), (0, 2), (0, 0), (0, 0)))


def on_own_grid(p, x):
    w = dml.fake_quantize(p["b"]["w"], np.float32(0.02), output_dtype=np.int8)
    return conv(p["b"] | {"w": w}, relu(conv(p["a"], x)))


def made_on_own_grid(p, x):
    w = dml.fake_quantize(p["a"]["w"], np.float32(0.02), output_dtype=np.int8)
    return conv(p["b"], relu(conv(p["a"] | {"w": w}, x)))


NOT_SCALED = {
    "relu6": through(jax.nn.relu6),
    "clamp below": through(lambda y: jnp.maximum(y, 0.1)),
    "tanh": through(jnp.tanh),
    "a gain": through(lambda y: relu(y) * P["gain"][None, :, None, None]),
    "a bias behind relu": through(lambda y: relu(y) + P["gain"][None, :, None, None]),
    "another reader": residual,
    "added to something else": lambda p, x: conv(p["b"], relu(conv(p["a"], x)) + x),
    "returned": lambda p, x: (lambda y: (conv(p["b"], y), y))(relu(conv(p["a"], x))),
    "returned before relu": lambda p, x: (lambda y: (conv(p["b"], relu(y)), y))(conv(p["a"], x)),
    "a grid of the user's": through(lambda y: rounded(relu(y))),
    "weights on a grid of the user's": on_own_grid,
    "made by weights on a grid of the user's": made_on_own_grid,
    "channels become rows": through(lambda y: relu(y).swapaxes(1, 2)),
    "channels side by side": to_rows(lambda y: y.reshape(len(y), -1)[:, : 6 * 9 * 4].reshape(-1, 54)),
    "padding with ones": through(lambda y: jnp.pad(relu(y), ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=1.0)),
    "padding by channels": through(lambda y: jnp.pad(relu(y), ((0, 0), (1, 1), (0, 0), (0, 0))), "wide"),
    "places that are computed": lambda p, x: conv(
        p["b"], jnp.take(relu(conv(p["a"], x)), jnp.argsort(p["gain"]), 1, mode="clip")
    ),
    "weights of itself": lambda p, x: (lambda y: y @ y.swapaxes(2, 3))(relu(conv(p["a"], x))),
    "places of the greatest": to_rows(
        lambda y: jnp.argmax(y, 2).astype(jnp.float32)[:, :, 0] + jnp.zeros((64, 6), np.float32), "n"
    ),
}


@pytest.mark.parametrize("name", NOT_SCALED)
def test_channels_that_must_not_be_scaled(name):
    of_contractions, _ = found(NOT_SCALED[name], IMAGE)
    assert of_contractions == []


@pytest.mark.parametrize("layer", ["a", "b"])
def test_layers_kept_in_floats_are_not_scaled(layer):
    assert found(through(relu), IMAGE)[0] == [(6, 1)]
    assert found(through(relu), IMAGE, rules=[Rule(f"^{layer}$", keep="float")])[0] == []


def test_weights_in_blocks_are_not_scaled():
    def apply(p, x):
        return relu(x @ p["m"]) @ p["n"]

    assert found(apply, ROWS) == [[(6, 1)], [(6, 1)]]
    assert found(apply, ROWS, products="dynamic") == [[(6, 1)], [(6, 1)]]
    assert found(apply, ROWS, block_size=16) == [[], []]


def softmax(x):
    return jax.nn.softmax(x, -1)


OF_FLOATS = {
    "an input": (lambda p, x: x @ p["m"], [(6, 1)]),
    "two readers": (lambda p, x: (lambda y: y @ p["m"] + y @ p["m"].T)(softmax(x)), [(6, 2)]),
    "floats read it, too": (lambda p, x: (lambda y: y @ p["m"] + jnp.cumsum(y, 1))(softmax(x)), [(6, 1)]),
    "returned": (lambda p, x: (lambda y: (y @ p["m"], y))(softmax(x)), [(6, 1)]),
    "integers read it, too": (
        lambda p, x: (lambda y: y @ p["m"] + y.reshape(32, 12).reshape(64, 6) @ p["m"])(softmax(x)),
        [],
    ),
    "a table reads it, too": (lambda p, x: (lambda y: y @ p["m"] + jnp.tanh(jax.nn.sigmoid(y)) @ p["m"].T)(x), []),
    "a grid of the user's": (lambda p, x: rounded(softmax(x)) @ p["m"], []),
    "kept in floats": (lambda p, x: softmax(x) @ p["m"], []),
}


@pytest.mark.parametrize("name", OF_FLOATS)
def test_values_in_floats(name):
    apply, expected = OF_FLOATS[name]
    rules = [Rule("^m$", keep="float")] if name == "kept in floats" else []
    assert found(apply, ROWS, rules=rules)[1] == expected


def test_a_value_whose_readers_have_channels_along_several_axes():
    assert found(lambda p, x: (conv(p["a"], x), x @ p["m"]), IMAGE)[1] == []


def test_the_float_graph_has_no_factors_and_reads_all():
    unit = unit_for(OF_FLOATS["two readers"][0], ROWS)
    edges = {"": edges_of(unit)}
    (name,) = {factor_name(edge.readers[0].value) for edge in edges[""]}
    prepared = with_ones(unit, edges)
    assert prepared.graph.constants[name].shape == (1, 6)
    assert name not in without_ones(prepared, edges).graph.constants
    (value, *_), *_ = [list(observers_of(prepared, edges))]
    assert value == Value(edges[""][0].readers[0].value, CHANNELS)
    assert not any(name in node.inputs for node in prepared.graph.nodes)


def test_readers_of_16_bits_are_scaled_as_such():
    """But not after a mover: the range of both readers is then that of the value before it."""
    rules = [Rule("n", activations=jnp.uint16)]
    (edge,) = edges_of(unit_for(lambda p, x: jnp.sin(x) @ p["n"] + jnp.sin(x) @ p["m"][:, :4], ROWS, rules=rules))
    assert sorted(reader.bits for reader in edge.readers) == [8, 16]
    turned = lambda p, x: (jnp.sin(x).reshape(-1, 3, 2).reshape(-1, 6) @ p["n"], jnp.sin(x) @ p["m"])  # noqa: E731
    assert not edges_of(unit_for(turned, ROWS, rules=rules))
