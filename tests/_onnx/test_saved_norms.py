"""Normalizations, softmax and gelu become ONNX's operators, however they are written; similar functions do not."""

from collections import Counter

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from flax import linen, nnx
from jax import lax

import jaxdml as dml
from _onnx.saved import kinds, run, saved, session

pytestmark = pytest.mark.rare

WIDTH = 8
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((5, WIDTH, WIDTH)).astype(np.float32)
SCALE, BIAS = (RANDOM.standard_normal(WIDTH).astype(np.float32) for _ in range(2))
EQUINOX = eqx.nn.LayerNorm(WIDTH)
NNX = nnx.LayerNorm(WIDTH, rngs=nnx.Rngs(0))


def of_linen(module):
    variables = jax.tree.map(lambda x: x + SCALE, module.init(jax.random.key(0), X))
    return lambda x: module.apply(variables, x)


def two_means(x):
    mean = jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean(x * x, -1, keepdims=True) - mean * mean
    return SCALE[None, None] * ((x - mean) / jnp.sqrt(variance + 1e-3)) + BIAS[None, None]


def reciprocal(x):
    centered = x - x.mean(-1, keepdims=True)
    return centered * (1 / jnp.sqrt(jnp.mean(centered**2, -1, keepdims=True) + 1e-6))


def over_two_axes(x):
    centered = x - jnp.mean(x, (1, 2), keepdims=True)
    return centered * lax.rsqrt(jnp.mean(jnp.square(centered), (1, 2), keepdims=True) + 1e-5)


LAYER = {
    "linen": of_linen(linen.LayerNorm()), "linen, slow variance": of_linen(linen.LayerNorm(use_fast_variance=False)),
    "linen, no bias": of_linen(linen.LayerNorm(use_bias=False)), "nnx": NNX, "equinox": jax.vmap(jax.vmap(EQUINOX)),
    "two means": two_means, "reciprocal": reciprocal, "two axes": over_two_axes,
    "standardize": lambda x: jax.nn.standardize(x, epsilon=1e-5),
}  # fmt: skip
ROOT = {
    "linen": of_linen(linen.RMSNorm()),
    "division": lambda x: SCALE[None, None] * (x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)),
}


def softmax_by_hand(x):
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


SOFTMAX = {"jax": jax.nn.softmax, "another axis": lambda x: jax.nn.softmax(x, 1), "by hand": softmax_by_hand}
GELU = {
    "error function": lambda x: jax.nn.gelu(x, approximate=False),
    "tanh": jax.nn.gelu,
    "by hand": lambda x: 0.5 * x * (1 + lax.erf(x / np.sqrt(2).astype(np.float32))),
}


def transposed_sums(x):
    """A square matrix divided by its sums along the other axis."""
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1)[:, None, :]


def another_mean(x):
    centered = x - jnp.mean(x, -1, keepdims=True)
    return centered * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-5)


def scale_of_rows(x):
    centered = x - jnp.mean(x, -1, keepdims=True)
    return centered * lax.rsqrt(jnp.mean(jnp.square(centered), -1, keepdims=True) + 1e-5) * SCALE[None, :, None]


OTHERS = {"sums along another axis": transposed_sums, "root of another mean": another_mean,
          "half of gelu": lambda x: x * jnp.tanh(x)}  # fmt: skip


def written(functions, path, x=X, **options):
    """The nodes of a file with these functions of an array, whose results are those of JAX."""

    def apply(params, x):  # each function has a dense layer of its own, so that no equations are shared
        return {name: function(x @ w) for (name, function), w in zip(functions.items(), params, strict=True)}

    params = [np.eye(WIDTH, dtype=np.float32) * np.float32(1 + i / 8) for i in range(len(functions))]
    model = dml.ptq.quantize(apply, params, [x], progress=False)
    proto = saved(model, path, weights="uint8", **options)
    expected = model.apply(model.params, x)
    for name, value in run(path, x).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-4, err_msg=name)
    return Counter(node.op_type for node in proto.graph.node)


def test_layer_normalizations(tmp_path):
    found = written(LAYER, tmp_path / "model.onnx")
    assert found["LayerNormalization"] == len(LAYER)
    assert not {"ReduceMean", "Sqrt", "Pow"} & found.keys()


INPUTS = {"mean": lambda x: x.mean(-1), "square": jnp.square, "square of a mean": lambda x: jnp.square(x.mean(-1))}


@pytest.mark.parametrize("name", INPUTS)
def test_layer_normalizations_of_means_and_squares(name, tmp_path):
    """The normalized value may be a mean, such as that of an image, or a square, as in parts of a normalization."""
    ways = ("linen", "linen, slow variance", "standardize", "two passes")
    functions = {way: lambda x, of=(LAYER | {"two passes": reciprocal})[way]: of(INPUTS[name](x)) for way in ways}
    found = written(functions, tmp_path / "model.onnx")
    means = len(ways) if "mean" in name else 0
    assert (found["LayerNormalization"], found["ReduceMean"], found["Sqrt"]) == (len(ways), means, 0)


def test_a_scale_of_rows_is_no_part_of_a_layer_normalization(tmp_path):
    found = written({"rows": scale_of_rows}, tmp_path / "model.onnx")
    assert (found["LayerNormalization"], found["Mul"]) == (1, 2)  # one of the products belongs to the dense layer


def test_groups_are_normalized_layers_if_they_are_the_last_axes(tmp_path):
    """flax normalizes groups of channels that are last, together with axes before them."""
    groups = {"equinox": jax.vmap(eqx.nn.GroupNorm(4, WIDTH)), "linen": of_linen(linen.GroupNorm(4))}
    found = written(groups, tmp_path / "model.onnx")
    assert (found["LayerNormalization"], found["Sqrt"]) == (1, 1)
    assert "GroupNormalization" not in found


def test_root_mean_squares_are_joined_by_onnxruntime(tmp_path):
    found = written(ROOT, tmp_path / "model.onnx")
    assert (found["Pow"], found["ReduceMean"]) == (len(ROOT), len(ROOT))
    session(tmp_path / "model.onnx", optimized=tmp_path / "optimized.onnx")
    assert "SimplifiedLayerNormalization" in kinds(onnx.load(tmp_path / "optimized.onnx"))


def test_softmax(tmp_path):
    found = written(SOFTMAX, tmp_path / "model.onnx")
    assert found["Softmax"] == len(SOFTMAX)
    assert "Exp" not in found


@pytest.mark.parametrize("opset", [17, 20])
def test_gelu(opset, tmp_path):
    # onnxruntime does not fuse nodes that compute an output.
    functions = {name: lambda x, of=function: of(x) - 1 for name, function in GELU.items()}
    found = written(functions, tmp_path / "model.onnx", opset=opset)
    if opset == 20:
        assert found["Gelu"] == len(GELU)
    else:
        session(tmp_path / "model.onnx", optimized=tmp_path / "optimized.onnx")
        assert {"Gelu", "FastGelu"} <= kinds(onnx.load(tmp_path / "optimized.onnx"))
    assert "Neg" not in found  # as in JAX's equations


BOUNDED = {
    **{f"clip at {end}": lambda x, end=end: jnp.clip(x, -end, end) for end in (10, 50)},
    "minimum": lambda x: jnp.minimum(x, 12), "clamp": lambda x: lax.clamp(-12.0, x, 12.0),
    "select": lambda x: jnp.where(x > 11, 11 * x, x),
    "steps": lambda x: x.astype(jnp.int32).astype(x.dtype),
    "narrow": lambda x: jnp.where(jnp.abs(x - 3.1415) < 1e-3, 5, x),
}  # fmt: skip


@pytest.mark.parametrize("form", ["error function", "tanh"])
def test_a_file_of_gelu_has_what_lies_before_it(form, tmp_path):
    functions = {name: lambda x, of=function: GELU[form](of(x)) for name, function in BOUNDED.items()}
    found = written(functions, tmp_path / "model.onnx", opset=20, x=X * 1e3)
    assert found["Gelu"] == len(BOUNDED)


def test_what_differs_from_gelu_only_far_from_zero(tmp_path):
    others = {"cubic": lambda x: 0.5 * x * (1 + lax.erf(x / np.sqrt(2).astype(np.float32)) + 1e-12 * x**3)}
    assert "Gelu" not in written(others, tmp_path / "model.onnx", opset=20, x=X * 1e3)


def test_what_only_looks_like_one(tmp_path):
    assert not {"Softmax", "LayerNormalization", "Gelu"} & written(OTHERS, tmp_path / "model.onnx", opset=20).keys()
