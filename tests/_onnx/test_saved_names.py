"""Names, sizes and metadata of a saved file."""

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import lax

import jaxdml as dml
from _onnx.saved import quantized, run, saved, weights
from helpers.compare import assert_same_bits
from helpers.marks import on_both_kernels
from jaxdml.onnx._write.names import input_names, output_names

W = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((6, 8)).astype(np.float32)


def shape(value):
    return tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim)


@pytest.mark.rare
def test_nodes_have_the_names_of_layers(tmp_path):
    proto = saved(quantized("CNN"), tmp_path / "model.onnx")
    names = {node.name: node.op_type for node in proto.graph.node}
    assert len(names) == len(proto.graph.node)
    assert {name: names[name] for name in ("stem", "depthwise", "gate", "head")} == {
        "stem": "Conv", "depthwise": "Conv", "gate": "Conv", "head": "MatMulInteger",
    }  # fmt: skip
    tensors = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    assert tensors["stem.weight"] == onnx.TensorProto.INT8
    assert tensors["stem.bias"] == onnx.TensorProto.INT32
    assert next(t for t in proto.graph.initializer if t.name == "stem.weight_scale").dims == [8]
    # Nodes of unrolled layers have numbers.
    names = {node.name for node in saved(quantized("scan"), tmp_path / "model.onnx").graph.node}
    assert {"layers/0", "layers/1", "layers/2", "cell/0", "cell/2"} <= names


@pytest.mark.rare
def test_metadata(tmp_path):
    proto = saved(quantized("scan", numerics="onnxruntime"), tmp_path / "model.onnx", "qoperator")
    assert (proto.producer_name, proto.producer_version) == ("jaxdml", dml.__version__)
    assert {entry.key: entry.value for entry in proto.metadata_props} == {
        "jaxdml": dml.__version__, "form": "qoperator", "numerics": "onnxruntime",
    }  # fmt: skip
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", 17)]


def pytrees(params, batch, temperature, *, scale=2.0):
    """Inputs and outputs in dicts and tuples, and an input without a batch."""
    y = batch["ids"] @ params + batch["more"][0] @ params * temperature
    return {"logits": y, "parts": (y[:, :2], {"rest": y[:, 2:] * scale})}


@pytest.fixture
def with_pytrees():
    batch = {"ids": X, "more": (X[::-1], X)}
    return dml.ptq.quantize(pytrees, W, [(batch, np.float32(0.5))], progress=False), batch


def of_a_number(params, factor):
    return (params * factor) @ params.T


def test_functions_of_scalars_have_no_batch(tmp_path):
    model = dml.ptq.quantize(of_a_number, W, [np.float32(0.5)], progress=False)
    proto = saved(model, tmp_path / "model.onnx")
    assert [shape(value) for value in proto.graph.input] == [()]


def test_inputs_and_outputs_are_named_after_parameters_and_keys(with_pytrees, tmp_path):
    model, batch = with_pytrees
    proto = saved(model, tmp_path / "model.onnx", weights="uint8")
    assert {value.name: shape(value) for value in proto.graph.input} == {
        "ids": ("batch", 8), "more.0": ("batch", 8), "more.1": ("batch", 8), "temperature": (),
    }  # fmt: skip
    assert {value.name: shape(value) for value in proto.graph.output} == {
        "logits": ("batch", 4), "parts.0": ("batch", 2), "parts.1.rest": ("batch", 2),
    }  # fmt: skip
    batch = jax.tree.map(lambda x: x[:3], batch)
    received = run(tmp_path / "model.onnx", *jax.tree.leaves(batch), np.float32(2))
    expected = model.apply(model.params, batch, np.float32(2))
    for name, value in zip(received, jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(received[name], value, rtol=1e-6, atol=1e-6)


def test_names_of_functions_and_pytrees():
    def named(params, x, *rest):
        """More inputs than named parameters."""

    one = np.zeros(2)
    assert input_names(named, (one, one, (one, one))) == ["x", "input_1", "input_2_0", "input_2_1"]
    assert input_names(named, ({"a": one, "b": [one]}, {"a": one})) == ["a", "b.0", "input_1.a"]
    assert input_names(jax.jit(lambda params, tokens: tokens), (one,)) == ["tokens"]
    assert output_names(jax.tree.structure(1)) == ["output"]
    assert output_names(jax.tree.structure((1, {"a": 2}))) == ["output_0", "output_1.a"]
    # ONNX's names cannot be empty.
    assert output_names(jax.tree.structure({"": 1})) == ["output"]
    assert output_names(jax.tree.structure({"": 1, "output": 2})) == ["output.", "output.output"]
    assert input_names(named, ({"": one}, {"": {"": one}})) == ["x", "."]


def affine(params, x):
    return jnp.tanh(x @ params) + 1


@pytest.mark.rare
def test_sizes(tmp_path):
    model = dml.ptq.quantize(affine, W, [X], progress=False)
    for shapes, expected in (
        ("batch", ("batch", 8)), (None, (6, 8)), ("rows, 8", ("rows", 8)), (("n, ...",), ("n", 8)),
        ("1, ...", (1, 8)), ("3, 8", (3, 8)),
    ):  # fmt: skip
        proto = saved(model, tmp_path / "model.onnx", shapes=shapes)
        assert shape(proto.graph.input[0]) == expected
        assert shape(proto.graph.output[0])[0] == expected[0]


def several_sizes(params, x):  # [batch, tokens, 8]
    """Reshapes, repetitions and numbers that depend on two unknown sizes."""
    y = (x @ params).reshape(x.shape[0], x.shape[1] * 2, 2)
    rows = jnp.broadcast_to(jnp.arange(x.shape[1])[None, :, None], (*x.shape[:2], 4))
    mean, causal = jnp.mean(x @ params, 1), jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    return {
        "pairs": y, "rows": rows + (x @ params).astype(jnp.int32), "mean": mean, "doubled": jnp.concatenate([y, y], 1),
        "flat": y.reshape(-1), "other": y.reshape(x.shape[0] * 2, x.shape[1], 2), "last": y[:, -1] / x.shape[1],
        "causal": jnp.where(causal[None], (x @ params)[..., :1], 0),
    }  # fmt: skip


@pytest.mark.rare
def test_two_symbolic_sizes(tmp_path):
    x = np.random.default_rng(2).standard_normal((4, 6, 8)).astype(np.float32)
    model = dml.ptq.quantize(several_sizes, W, [x], progress=False)
    saved(model, tmp_path / "model.onnx", weights="uint8", shapes="batch, tokens, 8")
    for size in ((4, 6), (1, 9), (3, 1)):
        x = np.random.default_rng(3).standard_normal((*size, 8)).astype(np.float32)
        received, expected = run(tmp_path / "model.onnx", x), model.apply(model.params, x)
        for name, value in expected.items():
            np.testing.assert_allclose(received[name], value, rtol=1e-6, atol=1e-6, err_msg=name)
            assert received[name].shape == value.shape


KERNELS = {"first": weights(8, 3, 3, 3), "second": weights(8, 8, 3, 3), "head": weights(8, 5)}


def without_padding(p, x):
    x = jax.nn.relu(lax.conv_general_dilated(x, p["first"], (2, 2), "VALID"))
    most = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    mean = lax.reduce_window(x, 0.0, lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID") / 4
    x = lax.conv_general_dilated(jax.nn.relu(most + mean), p["second"], (1, 1), "VALID")
    return (
        lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID").transpose(0, 2, 3, 1) @ p["head"]
    )


@pytest.mark.rare
@on_both_kernels
def test_windows_without_padding_over_open_sizes(tmp_path):
    def images(*sizes):
        return np.random.default_rng(4).standard_normal((sizes[0], 3, *sizes[1:])).astype(np.float32)

    model = dml.ptq.quantize(without_padding, KERNELS, [images(2, 19, 19)], numerics="onnxruntime", progress=False)
    options = {"form": "qoperator", "weights": "uint8", "shapes": "batch, 3, height, width"}
    saved(model, tmp_path / "model.onnx", **options)
    for sizes in ((1, 19, 24), (3, 21, 33)):
        (received,) = run(tmp_path / "model.onnx", images(*sizes)).values()
        assert_same_bits(received, np.asarray(model.apply(model.params, images(*sizes))))
