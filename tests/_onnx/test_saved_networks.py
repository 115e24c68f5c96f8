"""Saved networks: a million outputs of onnxruntime against those of the model, and the model loaded from the file."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest

import jaxdml as dml
from _onnx import reports
from _onnx import saved as small
from _onnx.others import OTHERS, other
from _onnx.saved import EXACT, LEVELS, has_int8_products, run, saved
from _onnx.test_saved_for_directml import not_registered
from _ptq.layers import BatchNorm, Weights, conv, dense, measured
from _ptq.models import Model, normal_inputs
from _ptq.quantized import batches_for, decibels, network
from benchmarks import zoo_models
from helpers.compare import assert_same_bits
from jaxdml._graph.evaluate import results
from jaxdml.ptq._integers.operators import QUANTIZE

pytestmark = pytest.mark.rare
OUTPUTS = 100_000  # compared, at least, of each network


def mobilenet_v2(params, x, batch_norm=None):
    """Inverted residuals: 4 blocks with strides 1 and 2, two of them with an add."""
    batch_norm = batch_norm or BatchNorm()

    def unit(name, x, stride=1):
        return batch_norm(params, name, conv(params[name], x, stride))

    x = jax.nn.relu6(unit("stem", x, 2))
    for i, stride in enumerate((1, 2, 1, 1)):
        y = jax.nn.relu6(unit(f"block_{i}.expand", x))
        y = jax.nn.relu6(unit(f"block_{i}.depthwise", y, stride))
        y = unit(f"block_{i}.project", y)
        x = x + y if x.shape == y.shape else y
    x = jax.nn.relu6(unit("last", x))
    return dense(params["head"], jnp.mean(x, (2, 3)))


@functools.cache
def mobilenet():
    weights, channels = Weights(), 8
    params = {"stem": weights.conv_norm(3, channels, 3, 3)}
    for i, outputs in enumerate((8, 16, 16, 24)):
        hidden = 6 * channels
        params[f"block_{i}.expand"] = weights.conv_norm(channels, hidden, 1, 1)
        params[f"block_{i}.depthwise"] = weights.conv_norm(hidden, hidden, 3, 3, groups=hidden)
        params[f"block_{i}.project"] = weights.conv_norm(hidden, outputs, 1, 1)
        channels = outputs
    params |= {"last": weights.conv_norm(channels, 64, 1, 1), "head": weights.dense(64, 1000)}
    make_inputs = normal_inputs(3, 32, 32)
    return Model(mobilenet_v2, measured(mobilenet_v2, params, *make_inputs(8, seed=1), weights), make_inputs)


@functools.cache
def made(name):
    """A network's apply, params and make_inputs."""
    if name == "MobileNetV2":
        return mobilenet()
    if name in OTHERS:
        return other(name)
    if name in small.NETWORKS:
        apply, params, _ = small.NETWORKS[name]
        return Model(apply, params, lambda batch=1, seed=0: (small.inputs_of(name, batch, seed),))
    return network(name)


@functools.cache
def quantized(name, **options):
    apply, params, make_inputs = made(name)
    return dml.ptq.quantize(apply, params, batches_for(make_inputs), progress=False, **options)


@functools.cache
def inputs_of(name):
    """As many inputs as `OUTPUTS` outputs require."""
    apply, params, make_inputs = made(name)
    (result,) = jax.tree.leaves(jax.eval_shape(apply, params, *make_inputs(1)))
    return make_inputs(-(-OUTPUTS // result.size), seed=9)


def applied(model, inputs):
    (result,) = jax.tree.leaves(jax.jit(model.apply)(model.params, *inputs))
    assert result.size >= OUTPUTS
    return np.asarray(result)


# On integers from the first quantization to the last dequantization -------------------------------------------------


class Way(NamedTuple):
    """How a file is written and run."""

    form: str
    numerics: str
    entries: dict[str, str]
    levels: tuple[str, ...]


WAYS = {
    "qoperator, onnxruntime": Way("qoperator", "onnxruntime", {}, tuple(LEVELS)),
    "qoperator, directml": Way("qoperator", "directml", EXACT, tuple(LEVELS)),
    "qdq, onnxruntime": Way("qdq", "onnxruntime", {}, ("EXTENDED", "ENABLE")),
}
ON_INTEGERS = ("digits", "ResNet-18", "ResNet-18, channels last", "MobileNetV2", "MobileNetV3", "MLP", "scanned MLP",
               "CNN", "UNet", "equinox CNN", "linen CNN")  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ON_INTEGERS)
def test_outputs_are_those_of_apply(name, way, tmp_path):
    form, numerics, entries, levels = WAYS[way]
    model, inputs, path = quantized(name, numerics=numerics), inputs_of(name), tmp_path / "model.onnx"
    expected = applied(model, inputs)
    saved(model, path, form, weights="uint8", tables="gather")
    for level in levels:
        (received,) = run(path, *inputs, level=level, **entries).values()
        assert_same_bits(received, expected, level)
    proto = saved(model, path, form, tables="gather")
    assert not_registered(proto) == []
    for level in levels if has_int8_products() else ():
        (received,) = run(path, *inputs, level=level, **entries).values()
        assert_same_bits(received, expected, level)
    (received,) = run(path, *inputs, **entries, **{"session.x64quantprecision": "1"}).values()
    assert_same_bits(received, expected)
    loaded = dml.onnx.load(path, numerics=numerics)
    (received,) = jax.jit(loaded.apply)(loaded.params, *inputs).values()
    assert_same_bits(received, expected)
    assert reports.of_file(loaded, model) == reports.of_function(model, form=form, tables="gather")
    assert not reports.moved_as_floats(model, loaded)


# With floats between ------------------------------------------------------------------------------------------------


def steps_apart(model, path, inputs, **entries):
    """How far onnxruntime's 8-bit integers are from those that jaxdml computes from the same data.

    Each integer operator, each dynamic product, and each float function between two integers, reads what onnxruntime
    computed before it.

    Returns:
      The greatest distance, by the operator that computed the integers; and the number of integers.
    """
    flat, proto, leaves = model.flat(*inputs), onnx.load(path), jax.tree.leaves(inputs)
    shapes, computed = flat.shapes(leaves), {name for node in proto.graph.node for name in node.output}
    makers = {name: node.operator.name for node in flat.nodes for name in node.outputs if name in computed}
    names = [name for name in makers if shapes[name].dtype in (np.uint8, np.int8)]
    dynamic = [name for node in flat.nodes if node.operator.name == "dynamic" for name in node.inputs]
    shown = {*names, *makers.keys() & dynamic}
    results_of_file = [output.name for output in proto.graph.output]
    proto.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(shapes[name].dtype), None)
        for name in shown.difference(results_of_file)
    )
    onnx.save(proto, path)
    received = run(path, *leaves)

    @jax.jit
    def from_theirs(leaves, theirs):
        values, ours = {**flat.constants, **dict(zip(flat.inputs, leaves, strict=True))}, {}
        for node in flat.nodes:
            for name, value in zip(node.outputs, results(node, values, lambda node, value: None), strict=False):
                values[name] = theirs.get(name, value)
                ours[name] = value
        return {name: ours[name] for name in names}, [values[name] for name in flat.outputs]

    ours, outputs = from_theirs(leaves, {name: received[name] for name in shown})
    for name, output in zip(results_of_file, outputs, strict=True):
        np.testing.assert_allclose(received[name], output, rtol=1e-4, atol=1e-4)
    apart = dict[str, int]()
    for name in names:
        distance = int(np.abs(np.asarray(ours[name], np.int32) - received[name]).max())
        apart[makers[name]] = max(apart.get(makers[name], 0), distance)
    return apart, sum(received[name].size for name in names)


WITH_FLOATS = ("MLP", "MobileNetV3", "block", "transformer", "scanned transformer", "scan", "causal",
               "tied embeddings", "equinox transformer", "linen transformer", "linen GRU")  # fmt: skip


@pytest.mark.parametrize("form", ["qoperator", "qdq"])
@pytest.mark.parametrize("name", WITH_FLOATS)
def test_functions_of_floats_are_at_most_one_step_away(name, form, tmp_path):
    model, inputs, path = quantized(name, numerics="onnxruntime"), inputs_of(name), tmp_path / "model.onnx"
    expected = applied(model, inputs)
    assert not_registered(saved(model, path, form, weights="uint8")) == []
    (received,) = run(path, *inputs).values()
    assert decibels(received, expected) > 50
    loaded = dml.onnx.load(path, numerics="onnxruntime")
    assert decibels(loaded.apply(loaded.params, *inputs)["output"], expected) > 50
    of_file, of_function = (
        reports.of_file(loaded, model), reports.of_function(model, form=form, unread=reports.UNREAD.get(name, ()))
    )  # fmt: skip
    if name in reports.REORDERED:
        of_file, of_function = map(reports.on_integers, (of_file, of_function))
    assert of_file == of_function
    assert not reports.moved_as_floats(model, loaded)
    apart, count = steps_apart(model, path, inputs)
    assert count >= OUTPUTS
    assert all(distance <= (word in (QUANTIZE.name, "table")) for word, distance in apart.items()), apart


@pytest.mark.parametrize(("name", "batch"), [("haiku ResNet18", 8), ("equinox transformer", 64)])
def test_networks_of_the_zoo(name, batch, tmp_path):
    """A million integers, and the outputs, which have the same bits if only integers lie between input and output."""
    apply, params, draw = zoo_models.MODELS[name]()
    random = np.random.default_rng(0)
    batches = [draw(8, random) for _ in range(2)]
    model = dml.ptq.quantize(apply, params, batches, numerics="onnxruntime", progress=False)
    inputs, path = draw(batch, random), tmp_path / "model.onnx"
    expected = np.asarray(model.apply(model.params, *inputs))
    saved(model, path, "qoperator", weights="uint8")
    (received,) = run(path, *inputs).values()
    assert decibels(received, expected) > 50
    if "ResNet" in name:
        assert_same_bits(received, expected)
    apart, count = steps_apart(model, path, inputs)
    assert count >= 1_000_000
    assert all(distance <= (word in (QUANTIZE.name, "table")) for word, distance in apart.items()), apart


def products_apart(model, path, inputs, **entries):
    """How far each float product that onnxruntime computes is from jaxdml's product of the same data.

    Returns:
      The greatest distances, each divided by the greatest element; by the kind of the product.
    """
    flat, proto, leaves = model.flat(*inputs), onnx.load(path), jax.tree.leaves(inputs)
    products = [node for node in flat.nodes if node.operator.name in ("dynamic", "dot_of_blocks")]
    data = {name for node in products for name in (*node.inputs, *node.outputs)} - {"", *flat.constants}
    computed = {name for node in proto.graph.node for name in node.output}
    in_file = {name: f"{name}_1" if f"{name}_1" in computed else name for name in data}  # a node may have the name
    shown = {*in_file.values()} - {output.name for output in proto.graph.output}
    float32 = onnx.TensorProto.FLOAT
    proto.graph.output.extend(onnx.helper.make_tensor_value_info(name, float32, None) for name in shown)
    onnx.save(proto, path)
    received, apart = run(path, *leaves, **entries), {}
    for node in products:
        given = {name: jnp.asarray(received[in_file[name]]) for name in node.inputs if name in data}
        (ours,) = results(node, {**flat.constants, **given}, lambda node, value: None)
        distance = np.abs(ours - received[in_file[node.outputs[0]]]).max() / np.abs(ours).max()
        apart.setdefault(node.operator.name, []).append(float(distance))
    return apart


PRODUCTS = {"dynamic": {"products": "dynamic"}, "4 bits": {"weights": jnp.int4, "block_size": 32}}
NOT_ROUNDED = {"session.qdq_matmulnbits_accuracy_level": "0"}  # onnxruntime rounds no floats to int8


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("name", ["transformer", "scanned transformer"])
def test_other_products_of_transformers(name, products, tmp_path):
    model, inputs, path = quantized(name, **PRODUCTS[products]), inputs_of(name), tmp_path / "model.onnx"
    expected = applied(model, inputs)
    saved(model, path, weights="uint8")
    (received,) = run(path, *inputs, **NOT_ROUNDED).values()
    assert decibels(received, expected) > 50
    loaded = dml.onnx.load(path)
    assert decibels(loaded.apply(loaded.params, *inputs)["output"], expected) > 50
    assert reports.of_file(loaded, model) == reports.of_function(model)
    apart = products_apart(model, path, inputs, **NOT_ROUNDED)
    counts = {kind: len(each) for kind, each in apart.items()}
    blocks = 2 if "scanned" in name else 1
    of_a_block = {"dynamic": {"dynamic": 6}, "4 bits": {"dot_of_blocks": 4, "dynamic": 1}}[products]
    assert counts == {kind: blocks * count for kind, count in of_a_block.items()}
    assert max(apart.get("dynamic", [0])) == 0
    assert max(apart.get("dot_of_blocks", [0])) < 1e-6


@pytest.mark.parametrize("products", PRODUCTS)
def test_a_loaded_product_has_the_bits_of_apply(products, tmp_path):
    w, x = (np.random.default_rng(i).standard_normal(shape, np.float32) for i, shape in enumerate(((64, 8), (99, 64))))
    model = dml.ptq.quantize(lambda w, x: x @ w, w, [x], progress=False, **PRODUCTS[products])
    saved(model, tmp_path / "model.onnx", weights="uint8")
    loaded = dml.onnx.load(tmp_path / "model.onnx")
    assert_same_bits(loaded.apply(loaded.params, x)["output"], model.apply(model.params, x))


def test_a_dynamic_product_is_exact(tmp_path):
    w, x = (
        np.random.default_rng(i).standard_normal(shape).astype(np.float32)
        for i, shape in enumerate(((64, 100), (1000, 64)))
    )
    model = dml.ptq.quantize(lambda w, x: x @ w, w, [x], products="dynamic", progress=False)
    expected = applied(model, (x,))
    saved(model, tmp_path / "model.onnx", weights="uint8")
    for level in LEVELS:
        (received,) = run(tmp_path / "model.onnx", x, level=level).values()
        assert_same_bits(received, expected, level)
