"""Products in the forms that networks write: with residuals, masks, several axes of rows, and nothing contracted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from helpers.compare import assert_same_bits
from jaxdml.ptq import Rule, quantize

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


W = {"w": normal(8, 8), "b": normal(8)}
SUMS = {  # after a product; one term of the last sum is not its bias
    "residual": lambda p, x: x @ p["w"] + x,
    "bias and residual": lambda p, x: x @ p["w"] + p["b"][None, None] + x,
    "residual, then bias": lambda p, x: x @ p["w"] + x + p["b"][None, None],
    "residual first": lambda p, x: x + x @ p["w"],
    "mask": lambda p, x: jnp.einsum("bqd,bkd->bqk", x @ p["w"], x) + jnp.where(jnp.tri(4, dtype=bool), 0.0, -9.0)[None],
    "itself": lambda p, x: (y := x @ p["w"]) + y,
}


def sqnr(model, function, params, x):
    y, exact = model.apply(model.params, x), function(params, x)
    assert y.shape == exact.shape
    return 10 * np.log10(np.sum(np.square(exact)) / np.sum(np.square(y - exact)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("products", ["static", "dynamic"])
def test_a_sum_behind_a_product(name, products):
    x = normal(2, 4, 8)
    model = quantize(SUMS[name], W, [x], products=products, progress=False)
    assert sqnr(model, SUMS[name], W, x) > 35


def test_layers_have_names_of_their_own():
    """Lists of parameters, such as keras's, give no name; a scope does; names of several layers are numbered."""

    def apply(params, x):
        with jax.named_scope("encoder"):
            x = x @ params[0][0]
        with jax.named_scope("decoder"):
            x = x @ params[0][1]
            x = x @ params[0][1]
        return x @ params[1][0] @ params[1][0]

    params, x = [[W["w"], W["w"].T], [W["w"]]], normal(4, 8)
    model = quantize(apply, params, [x], progress=False)
    names = ["encoder", "decoder", "decoder:2", "1/0", "1/0:2"]
    assert [node.name for node in model._fused.nodes if "dot_general" in node.source] == names
    assert [layer.name for layer in model.sqnr(params, x).layers] == ["input_0", *names]
    kept = quantize(apply, params, [x], progress=False, rules=[Rule("r:2$", keep="float")])
    assert [node.name for node in kept._fused.nodes if node.operator.name == "product"] == ["decoder:2"]


POOLS = {  # by scores, as in attention pooling
    "a row for each matrix": lambda p, x: jnp.einsum("bt,btd->bd", x[..., 0], x @ p["w"]),
    "a column for each matrix": lambda p, x: jnp.einsum(
        "btij,bt->bij", (x @ p["w"]).reshape(-1, x.shape[1], 2, 4), x[..., 0]
    ),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", POOLS)
def test_a_pool_over_any_length(name):
    apply = POOLS[name]
    model = quantize(apply, W, [normal(2, 6, 8)], products="dynamic", progress=False)
    for length in (4, 9):
        assert sqnr(model, apply, W, normal(3, length, 8)) > 35


VECTORS = {  # values whose only axes are batch axes and the contracted axis
    "first": lambda p, x: jnp.einsum("bd,bijd->bji", x[:, 0, 0], x @ p["w"]),
    "last": lambda p, x: jnp.einsum("bijd,bd->bij", x @ p["w"], x[:, 0, 0]),
    "for all": lambda p, x: jnp.einsum("bijd,d->jbi", x @ p["w"], x[0, 0, 0]),
    "for each row": lambda p, x: jnp.einsum("bid,bdijk->bjik", x[:, 0], (x @ p["w"])[..., None].swapaxes(1, 3)),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("products", ["static", "dynamic"])
def test_a_product_with_a_vector_for_each_matrix(name, products):
    x, apply = normal(2, 3, 3, 8), VECTORS[name]
    model = quantize(apply, W, [x], products=products, progress=False)
    assert sqnr(model, apply, W, x) > 35
    assert "\n2 of 2 convolutions and products" in str(model)


NOTHING_CONTRACTED = {
    "rows scaled": lambda p, x: jnp.einsum("bij,bi->bij", x @ p["w"], jnp.abs(x[..., 0])) @ p["w"],
    "outer": lambda p, x: jnp.einsum("bi,bj->bij", (x @ p["w"])[:, 0], jnp.cos(x[:, 0])) @ p["w"],
    "weights": lambda p, x: jnp.einsum("bij,j->bij", x @ p["w"], p["b"]),
    "heads swapped": lambda p, x: jnp.einsum("jh,bij->hbi", x[0], x @ p["w"][:, :4]),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NOTHING_CONTRACTED)
def test_what_contracts_nothing_is_a_multiplication(name):
    x, apply = normal(2, 4, 8), NOTHING_CONTRACTED[name]
    model = quantize(apply, W, [x], progress=False)
    assert sqnr(model, apply, W, x) > 30
    assert not [node for node in model._fused.nodes if node.operator.name == "dot_general"], model


STACKS = {
    "stacked": lambda p, x: jax.nn.relu(jnp.stack([x @ p["w"], x @ p["w"][:, ::-1]], 1)) @ p["w"],
    "unstacked": lambda p, x: jnp.concatenate(jnp.unstack((x @ p["w"]).reshape(-1, 2, 4), axis=1), 1) @ p["w"],
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", STACKS)
def test_stacks_and_their_parts_stay_integers(name):
    x, apply = normal(16, 8), STACKS[name]
    model = quantize(apply, W, [x], progress=False)
    assert sqnr(model, apply, W, x) > 30
    assert [node.operator.name for node in model._fused.nodes if node.on == "floats"] == ["quantize"], model


def recurrence(p, x):
    """As in state-space models; JAX concatenates arrays without elements for it."""
    y = x @ p["w"]
    steps = lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (jax.nn.sigmoid(y), y), axis=1)
    return steps[1] @ p["w"]


@pytest.mark.rare
def test_operands_without_elements_are_left_out():
    x = normal(16, 4, 8)
    model = quantize(recurrence, W, [x], progress=False)
    assert sqnr(model, recurrence, W, x) > 28
    assert [node.operator.name for node in model._fused.nodes if node.on == "floats"] == ["quantize"], model


def deconvolution(strides, padding, **options):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lambda p, x: lax.conv_transpose(
        jax.nn.relu(x @ p["w"]), p["filter"], strides, padding, dimension_numbers=numbers, **options
    )


CONVOLUTIONS = {
    "2 x": deconvolution((2, 2), "SAME"),
    "3 x 1, VALID": deconvolution((3, 1), "VALID"),
    "stride above the kernel": deconvolution((4, 4), "SAME"),  # negative padding
    "groups": lambda p, x: lax.conv_general_dilated(
        x,
        p["filter"][:, :, :4],
        (1, 1),
        ((1, 2), (1, 2)),
        lhs_dilation=(2, 2),
        feature_group_count=2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    ),
    "dilated": deconvolution((2, 2), "SAME", rhs_dilation=(2, 1)),
    "cropped": lambda p, x: lax.conv_general_dilated(
        x, p["filter"], (1, 1), ((-1, 2), (0, -2)), dimension_numbers=("NHWC", "HWIO", "NHWC")
    ),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_transposed_and_cropped_convolutions(name):
    """Zeros between pixels are the zero point, in groups or with dilations; test_phases.py has all others."""
    params, x, apply = {"w": W["w"], "filter": normal(3, 3, 8, 4)}, normal(2, 5, 6, 8), CONVOLUTIONS[name]
    model = quantize(apply, params, [x], progress=False)
    assert sqnr(model, apply, params, x) > 35
    assert {node.on for node in model._fused.nodes if "conv_general_dilated" in node.source} == {"integers"}
    assert sqnr(model, apply, params, x[:1, :4]) > 30


def for_each(w, x):
    return jnp.broadcast_to(w[None], (x.shape[0], *w.shape))


QUERIES = {
    "on the left": lambda w, x: for_each(w[:5], x) @ x.swapaxes(1, 2),
    "tiled": lambda w, x: jnp.tile(w[None, :5], (x.shape[0], 1, 1)) @ x.swapaxes(1, 2),
    "on the right": lambda w, x: x @ for_each(w, x),
    "of two layers": lambda w, x: (for_each(w[:5], x) @ w) @ x.swapaxes(1, 2),
    "of heads": lambda w, x: jnp.einsum(
        "bhqd,bkhd->bhqk", for_each(w.reshape(4, 16, 4), x), x.reshape(x.shape[0], -1, 4, 4)
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("products", ["static", "dynamic"])
@pytest.mark.parametrize("batches", [[4], [1], [4, 1]], ids=str)
def test_matrices_that_are_repeated_for_each_input(name, products, batches):
    """As the learned queries of a perceiver. jnp.matmul leaves out the axis of a batch of 1."""
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(16, 16)).astype(np.float32), rng.normal(size=(4, 20, 16)).astype(np.float32)
    model = quantize(QUERIES[name], w, [x[:size] for size in batches], products=products, progress=False)
    expected = np.asarray(model.apply(model.params, x))
    for size in (1, 3):
        assert_same_bits(model.apply(model.params, x[:size]), expected[:size])
    assert_same_bits(jax.vmap(lambda each: model.apply(model.params, each[None])[0])(x), expected)
    (size,) = jax.export.symbolic_shape("batch")
    shape = jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype)
    assert jax.eval_shape(model.apply, model.params, shape).shape == (size, *expected.shape[1:])
