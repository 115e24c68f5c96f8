"""quantize with weights in blocks: products read floats, and have the bits of matrix_multiply_blocks."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from _ptq.quantized import batches_for, decibels, network
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from jaxdml.ptq import PtqError, Rule, quantize_weights

RANDOM = np.random.default_rng(0)
W = {name: RANDOM.standard_normal(shape).astype(np.float32) for name, shape in (("up", (40, 24)), ("down", (24, 40)))}
B = RANDOM.standard_normal(24).astype(np.float32)
X = RANDOM.standard_normal((6, 40)).astype(np.float32)


def mlp(w, x):
    return jnp.abs(x @ w["up"] + B[None]) @ w["down"]


def quantize(apply=mlp, params=W, x=X, **options):
    return dml.ptq.quantize(apply, params, [x], progress=False, **options)


@pytest.mark.parametrize("kind", rest_rarely([(jnp.int4, 16), (jnp.int4, 32), (jnp.int8, 32)], 1))
def test_products_are_those_of_blocks(kind):
    dtype, size = kind
    model = quantize(weights=dtype, block_size=size)

    def multiply(x, w, bias=None):
        b, scale = quantize_weights(w, 1, dtype=dtype, block_size=size)
        return dml.matrix_multiply_blocks(x, b, scale, np.zeros(scale.shape, dtype), bias=bias, precision="int22")

    expected = multiply(jnp.abs(multiply(X, W["up"], B)), W["down"])
    assert_same_bits(model.apply(model.params, X), expected)
    assert_same_bits(jax.jit(model.apply)(model.params, X[:1]), expected[:1])
    assert re.search(r"down +dot_general +matrix_multiply_blocks +integers", str(model))
    assert decibels(expected, mlp(W, X)) > (15 if dtype == jnp.int4 else 38)


def test_files_hold_weights_of_4_bits(tmp_path):
    model = quantize(weights=jnp.int4, block_size=32)
    dml.ptq.save(tmp_path / "model.npz", model)
    loaded = dml.ptq.load(tmp_path / "model.npz", mlp)
    assert_same_bits(loaded.apply(loaded.params, X[:2]), model.apply(model.params, X[:2]))
    assert loaded.graph.constants["dot_general_1:weight:quantized"].dtype == jnp.int4


@pytest.mark.rare
@pytest.mark.parametrize("name", ["transformer", "scanned transformer", "digits"])
def test_networks(name):
    apply, params, make_inputs = network(name)
    model = dml.ptq.quantize(
        apply, params, batches_for(make_inputs), weights=jnp.int8, block_size=32, products="static", progress=False
    )
    for batch in (1, 3):
        x = make_inputs(batch, seed=5)
        assert decibels(model.apply(model.params, *x), apply(params, *x)) > 28
    assert "matrix_multiply_blocks" in str(model)
    assert model.sqnr(params, *make_inputs(4)).outputs[0] > 28


def test_a_rule_keeps_a_layer_in_floats():
    model = quantize(weights=jnp.int4, block_size=32, rules=[Rule("up", keep="float")])
    assert [node.operator.name for node in model.flat(X).nodes if node.operator.is_quantized] == ["dot_of_blocks"]


def test_a_rule_names_another_mode():
    model = quantize(weights=jnp.int4, block_size=32, rules=[Rule("up", products="dynamic")])
    assert [node.operator.name for node in model.flat(X).nodes if node.operator.is_quantized] == [
        "dynamic", "dot_of_blocks"
    ]  # fmt: skip


def experts(w, x):
    return jnp.einsum("nk,ekm->nem", x, w)


def by_experts(w, x):
    return jnp.einsum("enk,ekm->enm", x, w)


def test_wrong_calls():
    for text, options in (
        ("weights is int4, which needs blocks: write block_size=32", {"weights": jnp.int4}),
        ("weights is int2, expected int4 or int8", {"weights": jnp.int2, "block_size": 32}),
        ("block_size is 20, expected None or one of 16, 32, 64, 128, 256", {"weights": jnp.int4, "block_size": 20}),
        ("block_size is True, expected None or one of", {"weights": jnp.int4, "block_size": True}),
    ):
        with pytest.raises(PtqError, match=text):
            quantize(**options)
    w, x = RANDOM.standard_normal((3, 40, 8)).astype(np.float32), RANDOM.standard_normal((3, 5, 40)).astype(np.float32)
    quantize(experts, w, X, weights=jnp.int4, block_size=32)
    remedy = re.escape(
        "have 3 dimensions, and only matrices have blocks: quantize with Rule('^weight$', products='static')"
    )
    with pytest.raises(PtqError, match=remedy):
        quantize(by_experts, w, x, weights=jnp.int4, block_size=32)
    quantize(by_experts, w, x, weights=jnp.int4, block_size=32, rules=[Rule("^weight$", products="static")])


def operators(model):
    return [node.operator.name for node in model.flat(X).nodes if node.operator.is_quantized]


def test_a_rule_sets_weights():
    """The first rule that sets products, weights or block_size decides all of them."""
    up, down = Rule("up", weights=jnp.int4, block_size=16), Rule("down", block_size=64)
    model = quantize(rules=[up, down, Rule("", products="dynamic")])
    assert operators(model) == ["dot_of_blocks", "dot_of_blocks"]
    found = {name.split(":")[0]: x for name, x in model.graph.constants.items() if name.endswith("weight:quantized")}
    assert sorted(str(x.dtype) for x in found.values()) == ["int4", "int8"]
    assert operators(quantize(rules=[up])) == ["dot_of_blocks", "dot_to_float"]
    assert operators(quantize(rules=[Rule("up", products="dynamic"), up])) == ["dynamic", "dot_to_float"]
    model = quantize(weights=jnp.int4, block_size=32, rules=[Rule("up", weights=jnp.int8)])
    assert sorted(str(x.dtype) for name, x in model.graph.constants.items() if name.endswith("quantized")) == [
        "int4", "int8"
    ]  # fmt: skip


@pytest.mark.rare
def test_weights_that_a_rule_sets_are_those_that_quantize_sets(tmp_path):
    one = quantize(weights=jnp.int4, block_size=16)
    other = quantize(rules=[Rule("", weights=jnp.int4, block_size=16)])
    assert_same_bits(one.apply(one.params, X), other.apply(other.params, X))
    dml.ptq.save(tmp_path / "model.npz", other)
    loaded = dml.ptq.load(tmp_path / "model.npz", mlp)
    assert_same_bits(loaded.apply(loaded.params, X[:2]), other.apply(other.params, X[:2]))


def test_filters_have_no_blocks():
    filters, images = RANDOM.standard_normal((4, 3, 3, 3), np.float32), RANDOM.standard_normal((2, 3, 8, 8), np.float32)

    def apply(params, x):
        return jax.lax.conv(x, params["stem"], (1, 1), "SAME")

    with pytest.raises(PtqError, match=r"Rule\('stem'\) matches no product, and filters of convolutions have no"):
        quantize(apply, {"stem": filters}, images, rules=[Rule("stem", weights=jnp.int4, block_size=32)])
