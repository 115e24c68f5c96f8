"""Rule(activations=jnp.uint16): layers have 16-bit inputs, and their sums are exact, by formulas in NumPy."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from _ptq.outliers import vit_with_outliers
from _ptq.quantized import decibels, network, quantized
from _ptq.test_plan import flow
from _ptq.test_reference import compared
from helpers.compare import assert_same_bits
from helpers.marks import rarely_on_xla
from jaxdml._arithmetic.halves import TERMS
from jaxdml.ptq import PtqError, Rule
from jaxdml.ptq._build import operators as op
from jaxdml.ptq._choose.modes import modes_of, options_to_try

RANDOM = np.random.default_rng(0)
EVERY = Rule("", activations=jnp.uint16)


def normal(*shape):
    return RANDOM.standard_normal(shape, np.float32)


def quantize(apply, params, *inputs, rules=(EVERY,), **options):
    return dml.ptq.quantize(apply, params, [inputs], rules=rules, progress=False, **options)


# The rounding rule ---------------------------------------------------------------------------------------------------


def rounded(x, dtype=np.uint16, of=None):
    """Integers minus their zero point, and the scale, for the range of `of` and 0; of x if None."""
    steps, of = np.float32(np.iinfo(dtype).max), x if of is None else of
    low, high = min(of.min(), np.float32(0)), max(of.max(), np.float32(0))
    scale = np.float32((high - low) / steps)
    zero_point = np.clip(np.rint(-low / scale), 0, steps)
    return (np.clip(np.rint(x / scale) + zero_point, 0, steps) - zero_point).astype(np.int64), scale


def rounded_weights(w):
    scale = np.abs(w).max(0) / np.float32(127)
    return np.rint(w / scale).astype(np.int64), scale


def product(x, w, bias, dtype=np.uint16, of=None):
    """The exact sums, rounded to float32 once, times the scales, plus the bias."""
    (of_x, x_scale), (of_w, w_scale) = rounded(x, dtype, of), rounded_weights(w)
    return (of_x @ of_w).astype(np.float32) * (x_scale * w_scale) + bias


def in_all_ways(model, *inputs):
    """The result of a model, which has the same bits under jit, eagerly, and for the first input alone."""
    found = jax.jit(model.apply)(model.params, *inputs)
    with jax.disable_jit():
        assert_same_bits(model.apply(model.params, *inputs), found)
    assert_same_bits(model.apply(model.params, *(x[:1] for x in inputs)), jax.tree.map(lambda y: y[:1], found))
    return found


W, V, B, X = normal(48, 24), normal(24, 16), normal(24), normal(32, 48)


def dense(p, x):
    return x @ p["w"] + p["b"][None]


@rarely_on_xla
def test_a_product_is_exact():
    """A bias is a float of any size."""
    model, large = quantize(dense, {"w": W, "b": B}, X), np.where(np.arange(24) == 3, np.float32(1e6), B)
    assert_same_bits(in_all_ways(model, X), product(X, W, B))
    other = quantize(dense, {"w": W, "b": large}, X)
    assert_same_bits(other.apply(other.params, X), product(X, W, large))
    assert re.search(r"matrix_multiply_integer_to_float +integers +reads 16 bits$", str(model), re.MULTILINE)
    assert decibels(product(X, W, B), X @ W + B) > decibels(product(X, W, B, np.uint8), X @ W + B) + 2


@rarely_on_xla
@pytest.mark.parametrize("groups", [1, pytest.param(2, marks=pytest.mark.rare)])
def test_a_convolution_is_exact(groups):
    """A bias is a float of any size, and a large one makes no filter coarser."""
    x, w, bias = normal(3, 4, 7, 7), normal(8, 4 // groups, 3, 3), normal(8)
    bias[3] = 1e6

    def apply(p, x):
        y = lax.conv_general_dilated(x, p["w"], (2, 2), "SAME", feature_group_count=groups)
        return y + p["b"][None, :, None, None]

    (of_x, x_scale), (of_w, w_scale) = rounded(x), rounded_weights(w.reshape(8, -1).T)
    of_w, padded = of_w.T.reshape(w.shape), np.pad(of_x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    total = np.zeros((3, 8, 4, 4), np.int64)
    for o, i, j in np.ndindex(8, 4, 4):
        first = o // (8 // groups) * (4 // groups)
        window = padded[:, first : first + 4 // groups, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
        total[:, o, i, j] = (window * of_w[o]).sum((1, 2, 3))
    steps = x_scale * w_scale
    model = quantize(apply, {"w": w, "b": bias}, x)
    found = in_all_ways(model, x) if groups > 1 else model.apply(model.params, x)
    assert_same_bits(found, total.astype(np.float32) * steps[:, None, None] + bias[:, None, None])
    assert re.search(r"convolution_integer +integers +reads 16 bits$", str(model), re.MULTILINE)


@pytest.mark.rare
@rarely_on_xla
@pytest.mark.parametrize("text", ["bhqk,bhkd->bhqd", "bhqd,bhkd->bhqk"])
def test_both_operands_of_a_product_of_two_values_have_16_bits(text):
    shapes = ((2, 3, 5, 8), (2, 3, 8, 4)) if text.startswith("bhqk") else ((2, 3, 5, 8), (2, 3, 6, 8))
    a, b = (normal(*shape) for shape in shapes)
    model = quantize(lambda p, a, b: jnp.einsum(text, a, b) / 4 + p, np.float32(0), a, b)
    (of_a, a_scale), (of_b, b_scale) = rounded(a), rounded(b)
    expected = np.einsum(text, of_a, of_b).astype(np.float32) * (a_scale * (b_scale * np.float32(0.25)))
    assert_same_bits(in_all_ways(model, a, b), expected)


@pytest.mark.rare
def test_each_reader_of_a_value_gets_what_its_rule_says(tmp_path):
    """One rounds to 16 bits and one to 8 bits; both read the same floats."""

    def apply(p, x):
        y = jax.nn.relu(dense(p, x))
        return y @ p["fine"], y @ p["coarse"]

    w, b, x = (np.rint(8 * each) for each in (W, B, X))  # their products are exact in floats
    params = {"w": w, "b": b, "fine": V, "coarse": V}
    model = quantize(apply, params, x, rules=[Rule("fine", activations="uint16")])
    y, calibrated = np.maximum(product(x, w, b, np.uint8), 0), np.maximum(x @ w + b, 0)
    fine, coarse = (product(y, V, 0, dtype, calibrated) for dtype in (np.uint16, np.uint8))
    for found, expected in zip(in_all_ways(model, x), (fine, coarse), strict=True):
        assert_same_bits(found, expected)
    dml.ptq.save(tmp_path / "model.npz", model)
    loaded = dml.ptq.load(tmp_path / "model.npz", apply)
    assert_same_bits(loaded.apply(loaded.params, x[:3])[0], fine[:3])
    assert str(loaded) == str(model)
    ratios = [
        {each.name: each.own for each in made.sqnr(params, x).layers}
        for made in (model, quantize(apply, params, x, rules=()))
    ]
    assert abs(ratios[0]["w"] - ratios[1]["w"]) < 0.1  # the ratio with 8 bits


# Networks ------------------------------------------------------------------------------------------------------------


def read_by(model):
    """The type of the first input of each convolution and product; movers may lie between."""
    makers = model.graph.producers()

    def read(name):
        maker = makers[name]
        is_dequantized = maker.operator.kind == "dequantize_linear"
        return str(model.graph.constants[maker.inputs[2]].dtype) if is_dequantized else read(maker.inputs[0])

    return {node.name: read(node.inputs[0]) for node in model.graph.nodes if node.operator.kind in ("dot", "conv")}


def moved(p, x):
    y = jnp.tanh(x @ p["first"]).reshape(-1, 4, 4)
    return y.transpose(0, 2, 1) @ p["fine"] + (y.transpose(0, 2, 1) + x.reshape(-1, 4, 4)) @ p["coarse"]


def summed(p, x):
    y = x + jax.nn.gelu(x @ p["first"])
    return y @ p["fine"] + jax.nn.silu(y) @ p["coarse"]


@pytest.mark.rare
@pytest.mark.parametrize("apply", [moved, summed])
def test_movers_sums_and_tables_lie_between(apply):
    width = 4 if apply is moved else 16
    params = {"first": normal(16, 16) / 4, "fine": normal(width, 8), "coarse": normal(width, 8)}
    x = normal(64, 16)
    model = quantize(apply, params, x, rules=[Rule("fine", activations=jnp.uint16)])
    assert read_by(model) == {"first": "uint8", "fine": "uint16", "coarse": "uint8"}
    assert "kept in floats: fine reads 16 bits" in str(model)
    counts, _ = compared(model, (x,))
    assert counts["matrix_multiply_integer_to_float"] == 3
    assert decibels(model.apply(model.params, x[:5]), apply(params, x[:5])) > 33


def on_own_grid(x):
    return dml.fake_quantize(x, np.float32(1 / 32), np.uint8(128))


def mixed(p, x):
    """The first product reads the 8-bit integers of fake_quantize."""
    return jnp.sin(on_own_grid(x).T.T @ p["first"]) @ p["second"]


MIXED = {"first": W, "second": V}


def test_values_that_fake_quantize_rounds_keep_their_8_bits():
    model = quantize(mixed, MIXED, X)
    assert re.search(r"^first .*integers +reads 8 bits, to which fake_quantize rounds$", str(model), re.MULTILINE)
    assert read_by(model) == {"first": "uint8", "second": "uint16"}

    def of_two(p, x):
        return jnp.einsum("nd,md->nm", on_own_grid(x), jnp.sin(x)) + p

    assert "reads 16 bits; one operand has the 8 bits to which" in str(quantize(of_two, np.float32(0), X))


@pytest.mark.rare
def test_sums_that_are_too_long_stay_in_floats():
    x, w = np.ones((1, TERMS + 1), np.float32), np.ones((TERMS + 1, 1), np.float32)
    for apply, axes in ((jnp.matmul, ()), (lambda w, x: lax.conv(x, w, (1, 1), "SAME"), (2, 3))):
        weights = np.expand_dims(w.T if axes else w, axes)
        model = quantize(lambda w, x, of=apply: of(w, x) if axes else of(x, w), weights, np.expand_dims(x, axes))  # noqa: B023
        assert (
            f"its sums have {TERMS + 1} terms; sums of products of 16-bit and 8-bit integers have at most {TERMS}"
            in str(model)
        )


@pytest.mark.rare
@pytest.mark.parametrize("name", ["transformer", "scanned transformer", "MobileNetV3", "digits", "UNet", "causal"])
def test_every_node_of_networks_computes_what_the_reference_says(name):
    inputs = network(name).make_inputs(2, seed=30)
    fine = quantized(name, 2, rules=(EVERY,))
    assert compared(fine, inputs)[0].total() >= 4
    apply, params, _ = network(name)
    exact = jax.jit(apply)(params, *inputs)
    coarse = quantized(name, 2)
    assert decibels(fine.apply(fine.params, *inputs), exact) > decibels(coarse.apply(coarse.params, *inputs), exact)


@pytest.mark.rare
def test_channels_are_scaled_for_16_bits_too():
    """Weights become more accurate, although 16 bits hold the values of all channels."""
    apply, params, make_inputs, *_ = vit_with_outliers(100)
    (batch,), (x,) = make_inputs(256, seed=1), make_inputs(256, seed=2)
    found = []
    for equalize in (False, True):
        model = quantize(apply, params, batch, equalize=equalize)
        found.append(model.sqnr(params, x).total)
    assert found[1] > found[0] + 10


# Rules ---------------------------------------------------------------------------------------------------------------


def test_the_first_rule_decides_how_a_product_runs():
    graph = flow((op.PRODUCT, "x w", "y")).graph

    def of(*rules, products="static", **options):
        return modes_of(graph, products, rules, **options)[0]["y"]

    wide, dynamic = EVERY, Rule("", products="dynamic")
    assert of(wide, dynamic) == "static16"
    assert of(dynamic, wide) == "dynamic"
    assert of(wide, products="dynamic") == "static16"
    assert of(wide, weights=jnp.int4, block_size=16) == "static16"
    assert of(Rule("", observer="mse"), wide) == "static16"


@pytest.mark.parametrize("read", ["x w", "x own"])
def test_a_product_reads_16_bits_unless_fake_quantize_rounds_all_that_it_reads(read):
    graph = flow((op.FAKE_QUANTIZE, "x w", "own"), (op.PRODUCT, "own w", "y"), (op.PRODUCT, read, "z")).graph
    modes, reasons = modes_of(graph, "static", [EVERY])
    assert (modes, reasons) == ({"y": "static", "z": "static16"}, {"y": "reads 8 bits, to which fake_quantize rounds"})
    for can in (False, True):
        tried = [*options_to_try(graph.nodes[2], "static", can_read_wide=can, is_alone=False)]
        assert ({"activations": "uint16"} in tried) == can


ERRORS = {
    "another type": ({"activations": jnp.int16}, "Rule.activations is int16, expected uint16"),
    "dynamic": (
        {"activations": jnp.uint16, "products": "dynamic"},
        "Rule('a') has activations=uint16, but dynamic products compute ranges of 8 bits: leave out activations or pro",
    ),
    "blocks": (
        {"activations": jnp.uint16, "block_size": 32},
        "Rule('a') has activations=uint16, but weights in blocks multiply floats: leave out activations, or weights",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_wrong_rules(name):
    options, words = ERRORS[name]
    with pytest.raises(PtqError, match=re.escape(words)):
        Rule("a", **options)


def test_blocks_of_no_weights_are_refused():
    def apply(p, x):
        with jax.named_scope("pairs"):
            y = jnp.einsum("nd,md->nm", x, x)
        return y @ p

    words = "have no weights to divide into blocks: write products='dynamic' or activations=jnp.uint16 in place of"
    with pytest.raises(PtqError, match=re.escape(words)):
        quantize(apply, normal(32, 4), X, rules=[Rule("pairs", block_size=16)])
    quantize(apply, normal(32, 4), X, rules=[Rule("", block_size=16)])
    quantize(apply, normal(32, 4), X, rules=[Rule("pairs", activations=jnp.uint16)])


def test_a_rule_that_lets_no_layer_read_16_bits_is_refused():
    """Neither a layer whose inputs fake_quantize rounds nor one with a computed filter can have 16-bit inputs."""

    def computed(p, x):
        with jax.named_scope("filter"):
            y = lax.conv(x[:, :, None], x[:2, :, None], (1,), "SAME")
        return y[:, :, 0] @ p

    words = "layers that stay in floats, or read the 8 bits to which fake_quantize rounds: leave the rule out, or"
    for apply, params, name, other in ((mixed, MIXED, "first", "second"), (computed, normal(2, 3), "filter", "weight")):
        with pytest.raises(PtqError, match=re.escape(f"Rule({name!r}) matches only {words} change the pattern")):
            quantize(apply, params, X, rules=[Rule(other, observer="mse"), Rule(name, activations=jnp.uint16)])
        quantize(apply, params, X, rules=[Rule(f"{name}|{other}", activations=jnp.uint16)])
