"""Files of models whose layers have 16-bit inputs: QuantizeLinear and DequantizeLinear of opset 21 around floats."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from _onnx.saved import EXACT, conv, inputs_of, kinds, quantized, run, saved
from _ptq.layers import max_pool
from _ptq.quantized import decibels
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from jaxdml.errors import DescError
from jaxdml.ptq import Rule

LAYERS = {"MLP": "second|last", "CNN": "stem|mix|last", "block": "dot_general|up", "scan": "layers|head"}
NOT_ROUNDED = {"session.qdq_matmulnbits_accuracy_level": "0"}  # onnxruntime rounds no floats to int8
CASES = [(name, form) for form in ("qdq", "qoperator") for name in LAYERS]


@pytest.mark.rare
@pytest.mark.parametrize("case", rest_rarely(CASES, 1))
def test_a_loaded_file_has_the_bits_of_apply(case, tmp_path):
    name, form = case
    model, x = quantized(name, rules=(Rule(LAYERS[name], activations=jnp.uint16),)), inputs_of(name)
    ours = model.apply(model.params, x)
    proto = saved(model, tmp_path / "model.onnx", form, weights="uint8", tables="gather")
    assert proto.opset_import[0].version == 21
    loaded = dml.onnx.load(tmp_path / "model.onnx")
    assert_same_bits(loaded.apply(loaded.params, x)["output"], ours)
    for options in (EXACT, NOT_ROUNDED):
        assert decibels(*run(tmp_path / "model.onnx", x, **options).values(), ours) > 36
    types = {str(each.dtype) for each in model.graph.constants.values() if each.dtype == np.uint16}
    assert types
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds(proto)


@pytest.mark.rare
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_poolings_of_16_bits_are_of_floats(form, tmp_path):
    """ONNX has no poolings of 16-bit integers."""
    random = np.random.default_rng(0)
    w = [random.standard_normal(shape, np.float32) for shape in ((4, 3, 3, 3), (2, 4, 3, 3))]
    x = random.standard_normal((2, 3, 8, 8), np.float32)

    def apply(w, x):
        return conv(max_pool(jnp.abs(conv(x, w[0])), 2, 2), w[1])

    model = dml.ptq.quantize(apply, w, [x], rules=[Rule(r"1$", activations=jnp.uint16)], progress=False)
    assert any(node.operator.kind == "max_pool" and node.on == "integers" for node in model._fused.nodes)
    saved(model, tmp_path / "model.onnx", form)
    loaded = dml.onnx.load(tmp_path / "model.onnx")
    assert_same_bits(loaded.apply(loaded.params, x)["output"], model.apply(model.params, x))


@pytest.mark.rare
def test_onnxruntime_computes_the_same_but_for_the_last_bits(tmp_path):
    model, x = quantized("MLP", rules=(Rule("", activations=jnp.uint16),)), inputs_of("MLP")
    saved(model, tmp_path / "model.onnx")
    for options in (EXACT, NOT_ROUNDED):
        assert decibels(*run(tmp_path / "model.onnx", x, **options).values(), model.apply(model.params, x)) > 90


def moved(w, x):
    """Moves the integers between a layer and operators of several kinds; x [N, 3, 8]."""
    y = jax.nn.relu(x @ w["first"])
    q, k, v = (part.reshape(*x.shape[:2], 2, 4) for part in jnp.split(y @ w["qkv"], 3, -1))
    return {
        "attention": jax.nn.dot_product_attention(q, k, v).reshape(x.shape) @ w["last"],
        "biased": jax.nn.relu(y @ w["first"] + w["bias"][None, None]) @ w["last"], "mean": jnp.mean(y, 1) @ w["last"],
        "floats": lax.sort(y.swapaxes(1, 2)), "integers": y.swapaxes(1, 2) @ w["small"],
    }  # fmt: skip


@pytest.mark.rare
def test_opset_21_with_int8_between_layers(tmp_path):
    """onnxruntime loads the file although it adds pairs of QuantizeLinear and DequantizeLinear wrongly in opset 21."""
    sizes = {"first": (8, 8), "qkv": (8, 24), "last": (8, 8), "bias": (8,), "small": (3, 5)}
    random = np.random.default_rng(0)
    w = {name: random.standard_normal(shape, np.float32) for name, shape in sizes.items()}
    x = random.standard_normal((4, 3, 8), np.float32)
    options = {"activations": jnp.int8, "numerics": "onnxruntime", "products": "static", "progress": False}
    model = dml.ptq.quantize(moved, w, [x], **options)
    ours, path = model.apply(model.params, x), tmp_path / "model.onnx"
    pairs = {}
    for opset in (20, 21):
        proto = saved(model, path, opset=opset)
        pairs[opset] = sum(node.op_type == "QuantizeLinear" for node in proto.graph.node)
        loaded = dml.onnx.load(path, numerics="onnxruntime")
        for results in (run(path, x, **{"session.x64quantprecision": "1"}), loaded.apply(loaded.params, x)):
            for name, expected in ours.items():
                assert_same_bits(results[name], expected, name)
    assert pairs[21] - pairs[20] == 4  # none before another QuantizeLinear
    wide = dml.ptq.quantize(moved, w, [x], rules=[Rule("last", activations=jnp.uint16)], **options)
    saved(wide, path)
    run(path, x)


@pytest.mark.rare
def test_earlier_opsets_are_refused(tmp_path):
    model = quantized("MLP", rules=(Rule(LAYERS["MLP"], activations=jnp.uint16),))
    with pytest.raises(DescError, match="opset is 20, and layers with 16-bit inputs need opset 21"):
        dml.onnx.save(model, tmp_path / "model.onnx", opset=20)
    dml.onnx.save(model, tmp_path / "model.onnx", opset=21)


def test_the_opset_is_that_of_what_layers_read(tmp_path):
    """A rule for 16 bits may change no layer, if an earlier rule decides or fake_quantize rounds to 8 bits."""
    w, x = (np.random.default_rng(0).standard_normal(shape, np.float32) for shape in ((8, 8), (16, 8)))

    def apply(p, x):
        return dml.fake_quantize(jnp.sin(x @ p["first"]), np.float32(1 / 127), np.int8(0)) @ p["second"]

    wide = Rule("", activations=jnp.uint16)
    for rules, opset in (((wide,), 21), ((Rule("first", products="static"), wide), 17)):
        model = dml.ptq.quantize(apply, {"first": w, "second": w}, [x], rules=rules, progress=False)
        assert saved(model, tmp_path / "model.onnx").opset_import[0].version == opset
