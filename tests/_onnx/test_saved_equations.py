"""Every primitive that a file may have: from the file, onnxruntime computes JAX's results."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from _onnx.saved import run, saved
from helpers.compare import assert_same_bits
from jaxdml.errors import ModelError
from jaxdml.onnx._write.graph import EQUATIONS
from jaxdml.onnx._write.table import OPERATORS
from jaxdml.ptq._build.operators import FLOAT_OPERATORS

pytestmark = pytest.mark.rare

W = np.random.default_rng(0).standard_normal((6, 12)).astype(np.float32) / 3
X = np.random.default_rng(1).standard_normal((5, 6)).astype(np.float32)
TABLE = np.random.default_rng(2).standard_normal((7, 3)).astype(np.float32)


def each(**functions):
    """A function of the result of a dense layer, [N, 12], which returns what each of these returns, by name."""
    return lambda y: {name: function(y) for name, function in functions.items()}


def unary(*names):
    return {name: getattr(lax, name) for name in names}


def small(y):
    return jnp.tanh(y) * 0.9


def compared(word):
    return lambda y: jnp.where(getattr(lax, word)(y, lax.rev(y, (1,))), y, -2 * y)


def both(word):
    return lambda y: jnp.where(getattr(lax, f"bitwise_{word}")(y > 0.1, y < 0.7), y, -2 * y)


GROUPS = {
    "functions": each(
        **unary("abs", "ceil", "cos", "erf", "erfc", "exp", "exp2", "expm1", "floor", "logistic", "neg", "sign", "sin",
                "sinh", "cosh", "square", "tan", "tanh", "asinh", "atan", "cbrt"),
        **{name: functools.partial(lambda f, y: f(small(y)), getattr(lax, name))
           for name in ("acos", "asin", "atanh", "log1p")},
        **{name: functools.partial(lambda f, y: f(lax.abs(y) + 1.1), getattr(lax, name))
           for name in ("acosh", "log", "rsqrt", "sqrt")},
        log2=lambda y: jnp.log2(lax.abs(y) + 1.1),  # its own equation since jax 0.12
        power=lambda y: lax.pow(lax.abs(y) + 0.1, small(y)),
        whole_power=lambda y: lax.integer_pow(small(y), 5) + lax.integer_pow(lax.abs(y) + 1, -3),
        no_power=lambda y: lax.integer_pow(y - y, 0) + y,
        to_even=lambda y: lax.round(y * 4, lax.RoundingMethod.TO_NEAREST_EVEN),
        from_zero=lambda y: lax.round(y * 4, lax.RoundingMethod.AWAY_FROM_ZERO),
        rest=lambda y: lax.rem(y, jnp.full_like(y, 0.3)),
        polynomial=lambda y: jnp.sinc(small(y)), slope=jax.grad(lambda y: jnp.sum(jnp.tanh(y))),
    ),
    "choices": each(
        **{word: compared(word) for word in ("eq", "ne", "ge", "gt", "le", "lt")},
        **{word: both(word) for word in ("and", "or", "xor")},
        filled=lambda y: lax.select(y > 0, jnp.full(y.shape, 0.5), jnp.full(y.shape, jnp.finfo(y.dtype).min)),
        both_ways=lambda y: ((y > 0) == (y > 0.5), (y > 0) != (y > 0.5)),
        among_truths=lambda y: lax.select(y > 0, y > 0.5, y < -0.5),
        one_of_one=lambda y: lax.select_n(y > 0, y),
        one_of_three=lambda y: lax.select_n((y * 3).astype(jnp.int32), y, -y, y + 9),
        one_of_three_truths=lambda y: lax.select_n((y * 3).astype(jnp.int32), y > 1, y < 0, y > 0.5),
        no=lambda y: jnp.where(lax.bitwise_not(y > 0), y, 1.0),
        finite=lambda y: jnp.where(lax.is_finite(1 / lax.max(y, jnp.zeros_like(y))), y, 7.0),
        clamped=lambda y: lax.clamp(jnp.full_like(y, -0.5), y, lax.abs(y)),
        clipped=lambda y: jnp.clip(y, -0.5, 0.25) + jnp.minimum(y, 0.1) + jax.nn.relu(y),
        extremes=lambda y: lax.max(y, lax.rev(y, (1,))) - lax.min(y, lax.rev(y, (1,))),
        numbers=lambda y: lax.rem(lax.add(lax.mul(y, 9.5).astype(jnp.int32), 3), 3),
        arithmetic=lambda y: (y + lax.rev(y, (1,))) * (y - 2) / (lax.abs(y) + 1),
    ),
    "reductions": each(
        total=lambda y: jnp.sum(y, 1), most=lambda y: jnp.max(y, 1, keepdims=True), least=lambda y: jnp.min(y, 1),
        product=lambda y: jnp.prod(y, 1), mean=lambda y: jnp.mean(y, 1), all=lambda y: jnp.all(y > -2, 1),
        any=lambda y: jnp.any(y > 1, 1), where=lambda y: jnp.argmax(y, 1), where_least=lambda y: jnp.argmin(y, 1),
        first_true=lambda y: jnp.argmax(y > 0, 1), first_false=lambda y: jnp.argmin(y > 0, 1),
        running=lambda y: lax.cumsum(y, 1), backwards=lambda y: lax.cumsum(y, 1, reverse=True),
        largest=lambda y: lax.top_k(y, 3), sorted=lambda y: lax.sort(y, dimension=1),
        order=lambda y: jnp.argsort(jnp.round(y), 1), order_down=lambda y: jnp.argsort(y, 1, descending=True),
        sorted_with=lambda y: lax.sort((jnp.round(y), -y, y > 0), dimension=1, num_keys=1),
        by_three_keys=lambda y: jnp.lexsort((y, jnp.floor(y), y > 0.5), 1),
        truths=lambda y: lax.sort(y > 0, dimension=1),
    ),
    "movers": each(
        reshaped=lambda y: y.reshape(y.shape[0], 3, 4), split=lambda y: jnp.split(y, (3, 8), 1),
        joined=lambda y: jnp.concatenate([y, y[:, :2], jnp.zeros((y.shape[0], 1))], 1),
        stacked=lambda y: jnp.stack([y, -y], 1), unstacked=lambda y: jnp.unstack(y.reshape(y.shape[0], 3, 4), axis=1),
        transposed=lambda y: y.reshape(-1, 3, 4).transpose(0, 2, 1) @ jnp.ones((3, 2)),
        row=lambda y: y[0], last_row=lambda y: y[-1],
        every=lambda y: y[:, 1:11:3], backwards=lambda y: y[:, ::-1],
        repeated=lambda y: jnp.tile(y, (1, 2)),
        for_each_row=lambda y: y[:, :2] + jnp.tile(TABLE[:1, :2], (y.shape[0], 1)),
        squeezed=lambda y: y[:, 3:4].squeeze(1)[:, None],
        padded=lambda y: lax.pad(y, jnp.float32(-1), ((0, 0, 0), (2, -3, 1))),
        spread=lambda y: jnp.broadcast_to(y[:, None, :], (y.shape[0], 3, 12)),
        as_integers=lambda y: (y * 10).astype(jnp.int32) + jnp.arange(12)[None],
        rows=lambda y: jnp.arange(y.shape[0])[:, None] + y[:, :2].astype(jnp.int32),
        size=lambda y: y / y.shape[0],
        precision=lambda y: lax.stop_gradient(lax.reduce_precision(y, 8, 23)),
    ),
    "indices": each(
        looked_up=lambda y: jnp.asarray(TABLE)[jnp.clip((y * 3).astype(jnp.int32) + 3, 0, 6)],
        taken=lambda y: jnp.take(y, jnp.asarray([3, 0, 5]), 1), one=lambda y: y[:, -1],
        along=lambda y: jnp.take_along_axis(y, jnp.argsort(jnp.asarray(W[:1]), 1).repeat(5, 0), 1),
        outside=lambda y: jnp.take(y, jnp.asarray([-1, 20, 3]), 1, mode="clip"),
        points_outside=lambda y: y.reshape(5, 3, 4).at[:, jnp.asarray([-8, 9]), jnp.asarray([3, 7])].get(mode="clip"),
        row_outside=lambda y: y.at[:, jnp.asarray(12)].get(mode="clip", wrap_negative_indices=False),
        clamped=lambda y: jnp.take(TABLE, (y[:, :2] * 9).astype(jnp.int32), 0, mode="clip"),
        points=lambda y: y.reshape(5, 3, 4)[:, jnp.asarray([0, 2]), jnp.asarray([3, 1])],
        part=lambda y: lax.dynamic_slice_in_dim(y, jnp.argmax(y[0]) // 2, 4, 1),
        last_part=lambda y: lax.dynamic_slice_in_dim(y, jnp.argmax(y[0]) + 9, 4, 1),
        first_part=lambda y: lax.dynamic_slice_in_dim(y, -3 - jnp.argmax(y[0]), 4, 1),
        known_part=lambda y: lax.dynamic_slice_in_dim(y, 20, 4, 1),
    ),
    "updates": each(
        part=lambda y: lax.dynamic_update_slice(y, y[:1, :2] * 2, (jnp.argmax(y[0]) // 4, jnp.argmax(y[1]))),
        known_part=lambda y: lax.dynamic_update_slice(y, -y[:2], (9, 0)),
        all_of_it=lambda y: lax.dynamic_update_slice(y, -y, (0, 0)),
        row=lambda y: y.at[jnp.argmax(y[0]) % 3].set(7),
        dropped=lambda y: y.at[jnp.argmax(y[0]) + 99].set(7),
        rows=lambda y: y.at[jnp.asarray([2, 0])].set(y[:2]),
        column=lambda y: y.at[:, -1].set(0),
        columns=lambda y: y.at[:, (y[0, :2] * 5).astype(jnp.int32) + 2].set(y[:, :2] + 9),
        clipped=lambda y: y.at[jnp.argmax(y[0]) + 99].set(7, mode="clip"),
        some=lambda y: y.at[:2, 3:5].set(1),
        point=lambda y: y.at[1, 4].set(5),
        points=lambda y: y.reshape(-1, 3, 4).at[:, *(y[:3, :2] * 3).astype(jnp.int32).T].set(8),
        added=lambda y: y.at[jnp.asarray([1, 1, 3])].add(jnp.round(y[:3])),
        added_by_data=lambda y: y.at[(y[:, 0] * 3).astype(jnp.int32)].add(jnp.round(y)),
        added_part=lambda y: y.at[:, 2:6].add(1),
    ),
    "products": each(
        einsum=lambda y: jnp.einsum("nij,nkj->nik", y.reshape(-1, 3, 4), y.reshape(-1, 3, 4)),
        outer=lambda y: jnp.einsum("nij,nkj,nl->nikl", *(y.reshape(-1, 3, 4),) * 2, y[:, :2]),
        swapped=lambda y: jnp.einsum("nij,nkj->ki", y.reshape(-1, 3, 4), y.reshape(-1, 3, 4)),
        convolved=lambda y: lax.conv_general_dilated(
            y.reshape(-1, 2, 2, 3), y[:2, :6].reshape(1, 2, 3, 2), (1, 1), "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        ),
        least=lambda y: lax.reduce_window(y, jnp.inf, lax.min, (1, 3), (1, 2), ((0, 0), (1, 1))),
        most=lambda y: lax.reduce_window(y, -jnp.inf, lax.max, (1, 3), (1, 2), ((0, 0), (1, 1))),
        sums=lambda y: lax.reduce_window(y.reshape(-1, 3, 4), 0.0, lax.add, (1, 2, 2), (1, 1, 2), "VALID"),
    ),
}  # fmt: skip
SIZES = {"indices": None, "updates": None}  # primitives that fail with a symbolic batch


@functools.cache
def written(group, folder):
    function = GROUPS[group]
    model = dml.ptq.quantize(lambda w, x: function(x @ w), W, [X], progress=False)
    saved(model, folder / f"{group}.onnx", weights="uint8", shapes=SIZES.get(group, "batch"))
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@pytest.mark.parametrize("group", GROUPS)
def test_onnxruntime_computes_what_jax_does(group, folder):
    model = written(group, folder)
    x = X if group in SIZES else np.concatenate([X, X[::-1]])[:8]
    expected = model.apply(model.params, x)
    paths = [".".join(str(getattr(key, "key", getattr(key, "idx", ""))) for key in path)
             for path, _ in jax.tree_util.tree_leaves_with_path(expected)]  # fmt: skip
    received = run(folder / f"{group}.onnx", x)
    assert list(received) == paths
    for path, leaf in zip(paths, jax.tree.leaves(expected), strict=True):
        assert received[path].dtype == leaf.dtype
        assert received[path].shape == leaf.shape
        np.testing.assert_allclose(received[path], leaf, rtol=2e-5, atol=2e-5, err_msg=path)


# Functions that lose digits where they are small if they are computed only from exp, log and erf.
SMALL = {"expm1": (np.expm1, -80, 80), "log1p": (np.log1p, -0.99, 1e30), "erfc": (np.vectorize(math.erfc), -9, 9)}


@pytest.mark.parametrize("name", SMALL)
def test_small_results_keep_their_digits(name, tmp_path):
    exact, low, high = SMALL[name]
    sizes = np.logspace(-30, 30, 1500)
    x = np.concatenate([-sizes, sizes]).astype(np.float32)
    x = np.concatenate([x[(x > low) & (x < high)], [0, np.nan, np.inf]]).astype(np.float32)
    function = getattr(lax, name)
    model = dml.ptq.quantize(
        lambda w, y: {"result": function(y), "product": y[:, None] @ w}, W[:1], [x[:-2]], progress=False
    )
    saved(model, tmp_path / "model.onnx", weights="uint8")
    received = run(tmp_path / "model.onnx", x)["result"]
    np.testing.assert_allclose(received, exact(x.astype(np.float64)), rtol=1e-5)


REFUSED = {
    "columns": lambda y: jnp.take(y, jnp.asarray([3, 12]), 1, mode="fill"),
    "one column": lambda y: y.at[:, jnp.asarray(12)].get(mode="fill"),
    "points": lambda y: y.reshape(-1, 3, 4).at[:, jnp.asarray([0, 3]), jnp.asarray([3, 1])].get(mode="fill"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_known_indices_outside_of_the_array_are_refused(name, tmp_path):
    model = dml.ptq.quantize(lambda w, x: REFUSED[name](x @ w), W, [X], progress=False)
    with pytest.raises(ModelError, match="it reads outside of the array; write mode='clip', or indices that lie insi"):
        dml.onnx.save(model, tmp_path / "model.onnx")


WRITING = "it writes outside of the array; write mode='clip', or indices that lie inside"
NOT_WRITTEN = {  # updates, and why they are refused
    "columns": (lambda y: y.at[:, jnp.asarray([3, 12])].set(0), WRITING),
    "part": (lambda y: y.at[:, jnp.asarray(12)].set(0, wrap_negative_indices=False), WRITING),
    "function": (lambda y: y.at[1].apply(jnp.sin), r"it applies a function; write x.at\[i\].set\(f\(x\[i\]\)\) in pl"),
    "of each row": (lambda y: jax.vmap(lambda row, i: row.at[i].set(0))(y, (y[:, 0]).astype(jnp.int32)), "each row"),
    "parts": (lambda y: lax.scatter(y, (y[:1, :1]).astype(jnp.int32), y[:1, :2], lax.ScatterDimensionNumbers(
        (1,), (0,), (1,))), "parts of rows at places that depend on data"),
    "several parts": (lambda y: y.at[1:3, ::2].add(1), (
        r"several parts at once; update one axis at a time: x\.at\[:, 1:3\]\.set\(x\[:, 1:3\]\.at\[:, :, ::2\]\.add\(y"
    )),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_WRITTEN)
def test_updates_that_are_refused(name, tmp_path):
    function, reason = NOT_WRITTEN[name]
    model = dml.ptq.quantize(lambda w, x: function(x @ w), W, [X], progress=False)
    with pytest.raises(ModelError, match=reason):
        dml.onnx.save(model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_updates_of_an_axis_of_unknown_size_are_refused(tmp_path):
    for update in (lambda y: y.at[jnp.argmax(y[0])].set(0), lambda y: lax.dynamic_update_slice(y, y[:1], (1, 0))):
        model = dml.ptq.quantize(lambda w, x, update=update: update(x @ w), W, [X], progress=False)
        with pytest.raises(ModelError, match="size is not known"):
            dml.onnx.save(model, tmp_path / "model.onnx")


EMBEDDING = np.random.default_rng(3).standard_normal((50, 6)).astype(np.float32)
PLACES = np.asarray([-51, -50, -1, 0, 49, 50, -101, 3], np.int32)
READERS = {  # how an embedding is read, and the indices that onnxruntime rejects, because apply gives NaN there
    "at": (lambda p, i: p["table"][i], []),
    "as bytes": (lambda p, i: p["table"][i.astype(jnp.int8)], []),
    "several": (lambda p, i: p["table"].reshape(50, 2, 3)[i, i % 2], []),
    "clipped": (lambda p, i: jnp.take(p["table"], i, 0, mode="clip"), []),
    "filled": (lambda p, i: jnp.take(p["table"], i, 0), [-51, 50, -101]),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("rows", [50, "rows"])
def test_places_outside_that_depend_on_data(rows, name, tmp_path):
    read, refused = READERS[name]

    def function(p, i, table):
        y = read({"table": table}, i)
        return y.reshape(-1, p["w"].shape[0]) @ p["w"]

    params = {"w": W[:3] if name == "several" else W}
    places = np.arange(50, dtype=np.int32)
    model = dml.ptq.quantize(function, params, [(places, EMBEDDING)], progress=False)
    shapes = "batch", None if rows == 50 else f"{rows}, ..."
    saved(model, tmp_path / "model.onnx", weights="uint8", shapes=shapes)
    allowed = np.asarray([each for each in PLACES if each not in refused])
    (received,) = run(tmp_path / "model.onnx", allowed, EMBEDDING).values()
    assert_same_bits(received, np.asarray(model.apply(model.params, allowed, EMBEDDING)))
    for each in refused:
        with pytest.raises(Exception, match="bounds"):
            run(tmp_path / "model.onnx", np.asarray([each], np.int32), EMBEDDING)


def test_every_primitive_of_the_table_is_tried(folder):
    (batch,) = jax.export.symbolic_shape("batch")
    tried = set()
    for group in GROUPS:
        x = X if group in SIZES else jax.ShapeDtypeStruct((batch, 6), np.float32)
        nodes = written(group, folder).flat(x).nodes
        tried |= {node.options["equation"].name for node in nodes if "equation" in node.options}
    # JAX has these under other names, or the graph has operators for them, or test_saved_updates tries them.
    elsewhere = {"copy", "copy_p", "name", "stop_gradient", "transpose", "sub", "expand_dims"}
    elsewhere |= {"scatter-sub", "scatter-mul", "scatter-max", "scatter-min"}
    if jax.__version_info__ < (0, 12):  # jax.numpy writes other primitives there
        elsewhere |= {"log2", "polynomial", "one_minus_square"}
    assert EQUATIONS.keys() - tried - elsewhere == set()


def transposed_convolution(w, x):
    """Of stride 2 and 3, with surplus outputs; x [N, 3, H, W]."""
    numbers = ("NCHW", "OIHW", "NCHW")
    y = lax.conv_transpose(x, w["up"], (2, 3), ((1, 2), (0, 1)), dimension_numbers=numbers)
    return lax.conv_general_dilated(y, w["down"], (1, 1), "SAME")


def test_transposed_convolutions(tmp_path):
    draw = np.random.default_rng(3).standard_normal
    params = {"up": draw((5, 3, 3, 4)).astype(np.float32), "down": draw((2, 5, 1, 1)).astype(np.float32)}
    x = draw((4, 3, 6, 5)).astype(np.float32)
    model = dml.ptq.quantize(transposed_convolution, params, [x], numerics="onnxruntime", progress=False)
    assert "interleave" in {node.operator.name for node in model.flat(x).nodes}
    for form in ("qdq", "qoperator"):
        saved(model, tmp_path / "model.onnx", form, weights="uint8")
        (received,) = run(tmp_path / "model.onnx", x[:3]).values()
        assert_same_bits(received, np.asarray(model.apply(model.params, x[:3])))


def test_every_operator_of_a_graph_has_a_writer():
    quantized = {"fake_quantize"}  # becomes quantize and dequantize
    assert {each.name for each in FLOAT_OPERATORS} - OPERATORS.keys() == quantized
