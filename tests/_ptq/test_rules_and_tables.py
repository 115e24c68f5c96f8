"""Rules for layers, what `print(model)` says, progress on stderr, and biases that would not fit int32."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from _ptq.quantized import batches_for, decibels, network, quantized
from jaxdml.ptq import MinMax, Percentile, Rule
from jaxdml.ptq._integers import insert

RANDOM = np.random.default_rng(8)
PARAMS = {
    "blocks": [{"w": RANDOM.standard_normal((16, 16), np.float32)} for _ in range(2)],
    "head": {"w": RANDOM.standard_normal((16, 4), np.float32), "b": RANDOM.standard_normal(4, np.float32)},
}
X = RANDOM.standard_normal((64, 16), np.float32)


def apply(params, x):
    for block in params["blocks"]:
        x = jax.nn.relu(x @ block["w"])
    return x @ params["head"]["w"] + params["head"]["b"][None]


def quantize(*rules, **options):
    return dml.ptq.quantize(apply, PARAMS, [X], rules=rules, progress=False, **options)


def runs_as(model):
    """By layer: the operator that its contraction became, and why."""
    names = ("blocks/0", "blocks/1", "head")
    kinds = ("product", "quantized_linear_matrix_multiply", "matrix_multiply_integer_to_float")
    return {
        node.name: node.operator.name
        for node in model._fused.nodes
        if node.name in names and node.operator.name in kinds
    }


STATIC, FLOATS, TO_FLOAT = "quantized_linear_matrix_multiply", "product", "matrix_multiply_integer_to_float"


def test_without_rules():
    assert runs_as(quantize()) == {"blocks/0": STATIC, "blocks/1": STATIC, "head": TO_FLOAT}


def test_a_layer_is_kept_in_floats():
    model = quantize(Rule("blocks/1", keep="float"))
    assert runs_as(model) == {"blocks/0": TO_FLOAT, "blocks/1": FLOATS, "head": TO_FLOAT}
    assert re.search(r"blocks/1 .* floats +kept in floats by Rule\('blocks/1'\)", str(model))
    all_but_one = quantize(Rule(r"^(?!head)", keep="float"))
    assert runs_as(all_but_one) == {"blocks/0": FLOATS, "blocks/1": FLOATS, "head": TO_FLOAT}


@pytest.mark.rare
def test_kept_layers_are_exact():
    exact = jax.jit(apply)(PARAMS, X)
    found = [
        decibels(model.apply(model.params, X), exact) for model in (quantize(), quantize(Rule("blocks", keep="float")))
    ]
    assert found[0] + 3 < found[1]


@pytest.mark.rare
def test_products_of_some_layers_are_dynamic():
    model = quantize(Rule("head", products="dynamic"))
    (head,) = (node for node in model._fused.nodes if node.name == "head" and node.operator.name == TO_FLOAT)
    assert ":quantized" not in head.inputs[0]  # it reads floats
    other = quantize(Rule("head", products="static"), products="dynamic")
    (head,) = (node for node in other._fused.nodes if node.name == "head" and node.operator.name == TO_FLOAT)
    assert ":quantized" in head.inputs[0]


def test_what_moves_floats_to_a_dynamic_product_runs_on_floats():
    def apply(p, x):
        return (x @ p["first"]).reshape(-1, 2, 4).transpose(0, 2, 1) @ p["second"]

    params = {"first": np.ones((8, 8), np.float32), "second": np.ones((2, 3), np.float32)}
    model = dml.ptq.quantize(apply, params, [np.ones((2, 8), np.float32)], products="dynamic", progress=False)
    places = [(node.operator.name, node.on) for node in model._fused.nodes]
    assert places == [(TO_FLOAT, "integers"), ("reshape", "floats"), ("transpose", "floats"), (TO_FLOAT, "integers")]


@pytest.mark.rare
def test_the_first_rule_that_says_it_decides():
    observers = {"all": MinMax(), "most": Percentile(percentile=90.0)}
    models = {name: quantize(observer=each) for name, each in observers.items()}
    scales = {name: float(model.graph.constants["input_0:scale"]) for name, model in models.items()}
    assert scales["most"] < scales["all"]

    def scale_with(*rules):
        return float(quantize(*rules).graph.constants["input_0:scale"])

    first, second = Rule("blocks/0", observer=observers["most"]), Rule("blocks", observer="minmax")
    assert scale_with(first, second) == scales["most"]
    assert scale_with(second, first) == scales["all"]
    # A rule that does not set the observer is skipped.
    assert scale_with(Rule("blocks", products="static"), first) == scales["most"]
    dynamic, static = Rule("head", products="dynamic"), Rule("head", products="static")
    nodes = {node.name: node for node in quantize(dynamic, static)._fused.nodes if node.operator.name == TO_FLOAT}
    assert ":quantized" not in nodes["head"].inputs[0]
    kept = quantize(Rule("head", products="dynamic"), Rule("head", keep="float"))
    assert runs_as(kept)["head"] == FLOATS


@pytest.mark.rare
def test_observers_by_layer_and_as_objects():
    model = quantize(Rule("head", observer=Percentile(percentile=90.0)), observer=MinMax())
    default = quantize()
    changed = {
        name for name, value in model.graph.constants.items()
        if name.endswith(":scale") and (value != default.graph.constants[name]).any()
    }  # fmt: skip
    assert len(changed) == 1  # the input of head
    (name,) = changed
    assert model.graph.constants[name] < default.graph.constants[name]


# Printed -------------------------------------------------------------------------------------------------------------


def test_the_table():
    lines = str(quantized("plain")).splitlines()
    assert re.split(" {2,}", lines[0]) == ["node", "in apply", "runs as", "on"]
    assert re.search(r"^unit_1 +conv_general_dilated \+ 2 add \+ sub \+ 2 mul \+ max +quantized_linear_convolution  ",
                     "\n".join(lines), re.MULTILINE)  # fmt: skip
    assert lines[-2:] == [
        "3 of 3 convolutions and products, 6 of 7 operators run on integers",
        "one answer: the outputs have the same bits on every processor",
    ]
    assert re.fullmatch(r"<jaxdml.ptq.Model of 7 nodes, fingerprint \w{16}>", repr(quantized("plain")))


def test_weights_side_by_side_have_their_whole_path():
    def apply(p, x):
        return x @ p["block"]["q"] + x @ p["block"]["k"] @ p["head"]["w"]

    w = np.eye(4, dtype=np.float32)
    params = {"block": {"q": w, "k": w}, "head": {"w": w, "b": w[0]}}
    model = dml.ptq.quantize(apply, params, [w], progress=False)
    assert {node.name for node in model._fused.nodes if "dot_general" in node.source} == {"block/q", "block/k", "head"}


def test_layers_have_the_names_of_their_params():
    found = {name: {node.name for node in quantized(name)._fused.nodes} for name in ("linen", "nnx", "equinox")}
    assert {"unit_1/conv", "unit_2/conv", "head"} <= found["linen"]
    assert {"unit_1/conv", "unit_2/conv", "head"} <= found["nnx"]
    assert {"0/unit_1/conv", "0/unit_2/conv", "0/head"} <= found["equinox"]


# Progress ------------------------------------------------------------------------------------------------------------


def test_progress_counts_batches_on_stderr(capfd):
    apply, params, make_inputs = network("plain")
    dml.ptq.quantize(apply, params, batches_for(make_inputs, 2, 3))
    out, err = capfd.readouterr()
    assert not out
    assert re.fullmatch(r"(\rcalibrating: [123] batches?, \d+ s){3}\n", err)


def test_the_line_of_progress_ends_before_an_error(capfd):
    with pytest.raises(dml.ptq.PtqError, match="batch 1"):
        dml.ptq.quantize(apply, PARAMS, [X, np.full_like(X, np.nan)])
    assert re.fullmatch(r"\rcalibrating: 1 batches, \d+ s\n", capfd.readouterr().err)


def test_no_progress_is_silent(capfd):
    quantize()
    assert capfd.readouterr() == ("", "")


# Biases --------------------------------------------------------------------------------------------------------------


def dead_channel():
    """A convolution whose channel 1 has hardly any weights, and a bias as large as the others' results."""
    random = np.random.default_rng(9)
    w = random.standard_normal((8, 3, 3, 3), np.float32)
    w[1] *= 1e-12
    params = {"conv": {"w": w, "b": np.ones(8, np.float32)}}

    def apply(params, x):
        y = jax.lax.conv_general_dilated(x, params["conv"]["w"], (1, 1), "SAME")
        return jax.nn.relu(y + params["conv"]["b"][None, :, None, None])

    return apply, params, random.standard_normal((4, 3, 8, 8), np.float32)


@pytest.mark.rare
@pytest.mark.parametrize("is_dense", [False, True])
def test_a_bias_that_would_not_fit_int32_raises_the_scale_of_its_weights(is_dense, monkeypatch):
    apply, params, x = dead_channel()
    if is_dense:
        params = {"conv": {"w": params["conv"]["w"].reshape(8, 27).T, "b": params["conv"]["b"]}}
        x = np.random.default_rng(1).standard_normal((64, 27), np.float32)

        def apply(params, x):
            return jax.nn.relu(x @ params["conv"]["w"] + params["conv"]["b"][None]) @ jnp.eye(8)

    exact = np.asarray(jax.jit(apply)(params, x))

    def found():
        model = dml.ptq.quantize(apply, params, [x], progress=False)
        return model, np.asarray(model.apply(model.params, x))

    model, received = found()
    assert decibels(received, exact) >= 40
    (dead,) = (1,)
    np.testing.assert_allclose(np.take(received, dead, 1), np.take(exact, dead, 1), rtol=0.02)
    assert "1 channels have larger weight scales, so that the bias fits int32" in str(model)
    scales = next(value for name, value in model.graph.constants.items() if name.endswith("weight:scale"))
    others = np.delete(scales, dead)
    assert scales[dead] < others.min()
    bias = next(value for name, value in {**model.params, **model._fused.constants}.items() if "bias" in name)
    if bias.dtype == np.int32:
        assert abs(int(bias[dead])) in range(2**29, 2**31)

    # Without this, the layer is not quantized, or its results are wrong.
    integers = insert._Inserter._integer_weights
    monkeypatch.setattr(insert._Inserter, "_integer_weights", lambda self, output, w, axis, least: integers(
        self, output, w, axis, None))  # fmt: skip
    model, received = found()
    is_quantized = any(node.name == "conv" and node.on == "integers" for node in model._fused.nodes)
    assert not is_quantized or decibels(received, exact) < 40
