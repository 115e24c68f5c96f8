"""Single layers, whose zero points, scales and limits all matter: onnxruntime computes the bits of the model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import jaxdml as dml
from _onnx.saved import EXACT, LEVELS, conv, has_int8_products, inputs_of, kinds, quantized, run, saved
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from jaxdml.errors import PtqError

DRAW = np.random.default_rng(0)
P = {
    "a": DRAW.standard_normal((8, 8)).astype(np.float32), "b": DRAW.standard_normal((8, 8)).astype(np.float32) + 0.2,
    "head": DRAW.standard_normal((8, 4)).astype(np.float32),
    "image": DRAW.standard_normal((4, 1, 3, 3)).astype(np.float32),
    "pooled": DRAW.standard_normal((3, 4, 1, 1)).astype(np.float32),
}  # fmt: skip
X = DRAW.standard_normal((40, 8)).astype(np.float32) + 0.3
IMAGES = DRAW.standard_normal((12, 1, 7, 7)).astype(np.float32)


def layers(p, x, images):
    """A product of two values, a padding, a table; a mean, and means of windows that do not count padding."""
    y = x @ p["a"]
    features = conv(images, p["image"])
    sums = lax.reduce_window(features, 0.0, lax.add, (1, 1, 3, 3), (1, 1, 1, 1), "SAME")
    counts = lax.reduce_window(jnp.ones_like(features), 0.0, lax.add, (1, 1, 3, 3), (1, 1, 1, 1), "SAME")
    return {
        "multiplied": (y * (x @ p["b"])) @ p["head"], "padded": jnp.pad(y, ((0, 0), (1, 1)))[:, :8] @ p["head"],
        "table": jax.nn.silu(y) @ p["head"], "mean": jnp.mean(features, (2, 3)) @ p["head"][:4],
        "windows": conv(sums / counts, p["pooled"]),
    }  # fmt: skip


WAYS = {
    "directml, on integers": ("qoperator", "directml", EXACT),
    "onnxruntime, on integers": ("qoperator", "onnxruntime", {}),
    "onnxruntime, fused": ("qdq", "onnxruntime", {}),
}


@pytest.mark.parametrize("activations", rest_rarely([jnp.uint8, jnp.int8], 1))
@pytest.mark.parametrize("way", rest_rarely(WAYS, 1))
def test_layers(way, activations, tmp_path):
    form, numerics, entries = WAYS[way]
    model = dml.ptq.quantize(layers, P, [(X, IMAGES)], numerics=numerics, activations=activations, progress=False)
    weights = "uint8" if activations == jnp.uint8 else "int8"
    saved(model, tmp_path / "model.onnx", form, tables="gather", weights=weights, shapes=None)
    received = run(tmp_path / "model.onnx", X, IMAGES, **entries)
    expected = model.apply(model.params, X, IMAGES)
    for name, value in received.items():
        assert_same_bits(value, np.asarray(expected[name]), name)


FLOATS = [(form, numerics) for form in ("qdq", "qoperator") for numerics in ("directml", "onnxruntime")]


@pytest.mark.rare
@pytest.mark.parametrize("case", FLOATS)
def test_convolutions_whose_results_are_floats(case, tmp_path):
    """They become ConvInteger, Cast and Mul, and have the bits of the model at each level."""
    form, numerics = case
    bias = DRAW.standard_normal((1, 4, 1, 1)).astype(np.float32)
    functions = {"plain": lambda p, x: conv(x, p["image"]), "biased": lambda p, x: conv(x, p["image"]) + bias}
    for name, function in functions.items():
        model = dml.ptq.quantize(function, P, [IMAGES], numerics=numerics, progress=False)
        expected = np.asarray(model.apply(model.params, IMAGES))
        for weights in ("uint8", "int8") if has_int8_products() else ("uint8",):
            found = kinds(saved(model, tmp_path / "model.onnx", form, weights=weights))
            assert found == {"QuantizeLinear", "ConvInteger", "Cast", "Mul"} | ({"Add"} if name == "biased" else set())
            for level in LEVELS:
                (received,) = run(tmp_path / "model.onnx", IMAGES, level=level).values()
                assert_same_bits(received, expected, f"{name} {weights} {level}")
            loaded = dml.onnx.load(tmp_path / "model.onnx", numerics=numerics)
            assert_same_bits(loaded.apply(loaded.params, IMAGES)["output"], expected)


@pytest.mark.parametrize("form", rest_rarely(["qdq", "qoperator"], 1))
def test_convolutions_do_the_paddings_before_them(form, tmp_path):
    def apply(p, x):
        y = jax.nn.relu(conv(jnp.pad(x, ((0, 0), (0, 0), (1, 2), (3, 0))), p["image"]))
        return conv(jnp.pad(y, ((0, 0), (0, 0), (0, 1), (0, 1))), p["pooled"])

    model = dml.ptq.quantize(apply, P, [IMAGES], numerics="onnxruntime", progress=False)
    assert "Pad" not in kinds(saved(model, tmp_path / "model.onnx", form, weights="uint8"))
    (received,) = run(tmp_path / "model.onnx", IMAGES, **({} if form == "qdq" else EXACT)).values()
    assert_same_bits(received, np.asarray(model.apply(model.params, IMAGES)))


@pytest.mark.rare
@pytest.mark.parametrize("numerics", ["directml", "onnxruntime"])
def test_means_that_lie_at_ties(numerics, tmp_path):
    """Equal rows in the calibration give the mean the scale of its input; means of 6 integers then have many ties."""
    rows = np.repeat(X[:, None], 6, 1)
    model = dml.ptq.quantize(
        lambda p, x: jnp.mean(x @ p["a"], 1) @ p["head"], P, [rows], numerics=numerics, progress=False
    )
    saved(model, tmp_path / "model.onnx", "qoperator", weights="uint8")
    x = np.random.default_rng(1).standard_normal((400, 6, 8)).astype(np.float32)
    (received,) = run(tmp_path / "model.onnx", x, **EXACT).values()
    assert_same_bits(received, np.asarray(model.apply(model.params, x)))


OPEN = {
    "tokens": (lambda p, x: jnp.mean(jax.nn.relu(x @ p["a"]), 1) @ p["head"], "b, t, 8", ((4, 6, 8), (1, 9, 8))),
    "batch and tokens": (lambda p, x: jnp.mean(x @ p["a"], (0, 1)) @ p["head"], "b, t, 8", ((4, 6, 8), (1, 9, 8))),
    "images": (
        lambda p, x: jnp.mean(conv(x, p["image"]), (2, 3), keepdims=True).reshape(-1, 4) @ p["head"][:4],
        "b, 1, h, w", ((12, 1, 7, 7), (2, 1, 5, 9)),
    ),
    "multiplied": (
        lambda p, x: (jnp.sum(x @ p["a"], 1) * (1 / x.shape[1])) @ p["head"], "b, t, 8", ((4, 6, 8), (1, 9, 8)),
    ),
    "one axis of images": (
        lambda p, x: jnp.mean(conv(x, p["image"]), 2)[..., :4] @ p["head"][:4],
        "b, 1, h, 7", ((12, 1, 7, 7), (2, 1, 5, 7)),
    ),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("numerics", ["directml", "onnxruntime"])
@pytest.mark.parametrize("name", OPEN)
def test_means_over_sizes_that_are_open(name, numerics, tmp_path):
    """Sums are divided by symbolic sizes: the exported function and the file have the model's bits at other sizes."""
    function, names, sizes = OPEN[name]
    batches = [np.random.default_rng(size).standard_normal(size).astype(np.float32) for size in sizes]
    with dml.use_kernels("xla"):
        model = dml.ptq.quantize(function, P, batches[:1], numerics=numerics, progress=False)
        shape = jax.ShapeDtypeStruct(export.symbolic_shape(names), np.float32)
        exported = export.export(jax.jit(model.apply))(model.params, shape)
    for form in ("qdq", "qoperator") if numerics == "onnxruntime" else ("qdq",):
        saved(model, tmp_path / "model.onnx", form, weights="uint8", shapes=names)
        for x in batches:
            expected = np.asarray(model.apply(model.params, x))
            assert_same_bits(np.asarray(exported.call(model.params, x)), expected)
            (received,) = run(tmp_path / "model.onnx", x).values()
            assert_same_bits(received, expected, f"{form} {x.shape}")
    if numerics == "directml":
        with pytest.raises(
            dml.onnx.ModelError, match=r"over .* elements.*a known number up to 65793; write form='qdq'"
        ):
            dml.onnx.save(model, tmp_path / "model.onnx", "qoperator", shapes=names)


def test_a_sum_divided_by_another_number_than_its_size_is_no_mean():
    """uint8 does not hold sizes above 255."""

    def apply(p, x):
        return (jnp.sum(x @ p["a"], 1) / jnp.asarray(x.shape[1]).astype(jnp.uint8).astype(jnp.float32)) @ p["head"]

    with dml.use_kernels("xla"):
        model = dml.ptq.quantize(apply, P, [X.reshape(8, 5, 8)], progress=False)
        shape = jax.ShapeDtypeStruct(export.symbolic_shape("b, t, 8"), np.float32)
        with pytest.raises(PtqError, match="as it was quantized"):
            export.export(jax.jit(model.apply))(model.params, shape)


@pytest.mark.rare
def test_tables_of_16_bits(tmp_path):
    model, x = quantized("MLP", numerics="onnxruntime"), inputs_of("MLP", 2000)
    saved(model, tmp_path / "model.onnx", "qoperator", weights="uint8", tables="gather")
    (received,) = run(tmp_path / "model.onnx", x).values()
    assert_same_bits(received, np.asarray(model.apply(model.params, x)))


def scores(p, x):
    """A product of two values, scaled by a number that is not a power of 2."""
    a, b = ((x @ p[name]).reshape(5, 8, 8) for name in "ab")
    return (a @ b.transpose(0, 2, 1)) * 0.3


KINDS = {
    "dynamic": {"products": "dynamic"},
    "static": {},
    "float": {"rules": [dml.ptq.Rule("dot_general_3", keep="float")]},
}


@pytest.mark.rare
@pytest.mark.parametrize("kind", KINDS)
def test_scaled_products_of_two_values(kind, tmp_path):
    model = dml.ptq.quantize(scores, P, [X], numerics="onnxruntime", progress=False, **KINDS[kind])
    saved(model, tmp_path / "model.onnx", "qoperator", weights="uint8", shapes=None)
    (received,) = run(tmp_path / "model.onnx", X).values()
    np.testing.assert_allclose(received, model.apply(model.params, X), rtol=1e-5, atol=1e-5)
