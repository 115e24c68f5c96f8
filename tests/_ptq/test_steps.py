"""The steps of a loop: XLA's kernels for one small row, native kernels for the rest, with the same bits.

Products of one value are one product, and products of a sequence are computed before the loop.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import jaxdml as dml
from _ptq.quantized import is_right
from helpers.compare import assert_same_bits
from helpers.native_calls import native_calls, needs_native
from jaxdml.ptq import quantize
from jaxdml.ptq._integers import joint
from jaxdml.ptq._trace import steps

NATIVE = 'custom_call_target="jaxdml_cpu_'


def normal(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def over_steps(p, x):
    step = lambda h, x: (jnp.maximum(x @ p["input"] + h @ p["state"], 0), None)  # noqa: E731
    return lax.scan(step, jnp.zeros((x.shape[0], p["state"].shape[0])), x.swapaxes(0, 1))[0]


def over_layers(p, x):
    return lax.scan(lambda x, w: (jnp.maximum(x @ w, 0), None), x[:, 0], p["layers"])[0]


@functools.cache
def model_of(apply, units, floats="exact"):
    shapes = {"input": (8, units), "state": (units, units), "layers": (3, 8, 8)}
    params = {name: normal(*shape) / shape[-2] ** 0.5 for name, shape in shapes.items()}
    return quantize(apply, params, [normal(16, 5, 8)], floats=floats, progress=False)


def body_of(model, x):
    """The compiled program without its entry computation: the code of loops."""
    hlo = jax.jit(lambda *given: model.apply(*given)).lower(model.params, x).compile().as_text()
    return hlo[: hlo.index("\nENTRY")]


@needs_native
@pytest.mark.parametrize(
    ("apply", "units", "rows", "is_native"),
    [
        (over_steps, 8, 1, False),
        pytest.param(over_steps, 8, 2, True, id="two rows", marks=pytest.mark.rare),
        pytest.param(over_steps, 129, 1, True, id="a large matrix", marks=pytest.mark.rare),
        pytest.param(over_layers, 8, 1, True, id="layers", marks=pytest.mark.rare),
    ],
)
def test_steps_of_one_small_row_call_no_native_kernel(apply, units, rows, is_native):
    body = body_of(model_of(apply, units, "xla"), normal(rows, 5, 8))
    assert (NATIVE in body) == is_native
    assert is_native or " dot(" in body


@needs_native
@pytest.mark.parametrize("rows", [1, 2])
def test_all_steps_are_one_native_call_with_exact_floats(rows):
    model, x = model_of(over_steps, 8), normal(rows, 5, 8)
    assert native_calls(lambda *given: model.apply(*given), model.params, x) == ["quantized", "matmul", "steps"]
    assert " while(" not in jax.jit(model.apply).lower(model.params, x).compile().as_text()


@pytest.mark.parametrize("apply", [over_steps, pytest.param(over_layers, marks=pytest.mark.rare)])
def test_a_row_has_the_bits_that_it_has_among_others_and_on_all_kernels(apply):
    model, x = model_of(apply, 8), normal(3, 5, 8)
    together = np.asarray(model.apply(model.params, x))
    alone = np.concatenate([model.apply(model.params, row[None]) for row in x])
    assert_same_bits(alone, together)
    with dml.use_kernels("xla"):
        assert_same_bits(np.asarray(model.apply(model.params, x)), together)


@pytest.mark.rare
def test_a_row_may_have_a_symbolic_size():
    def gated(p, x):
        step = lambda i, x: jnp.tanh(x @ p["layers"][0]) * jax.nn.sigmoid(x[..., 0])[..., None]  # noqa: E731
        return lax.fori_loop(0, 3, step, x)

    model = quantize(gated, {"layers": normal(3, 8, 8)}, [normal(1, 5, 8)], progress=False)
    (length,) = export.symbolic_shape("length")
    struct = jax.ShapeDtypeStruct((1, length, 8), np.float32)
    assert jax.eval_shape(model.apply, model.params, struct).shape == (1, length, 8)


def test_numbers_that_all_steps_share_are_constants():
    """XLA computes with them once, when it compiles the loop. Numbers of layers are parameters, stacked."""
    found = {apply: {(leaf.dtype.name, leaf.size) for leaf in model_of(apply, 8).params.values()
                     if isinstance(leaf, jax.Array)} for apply in (over_steps, over_layers)}  # fmt: skip
    assert found == {
        over_steps: {("float32", 8)},
        over_layers: {("float32", 24), ("float32", 3), ("uint8", 3), ("int8", 3)},
    }


# Products of one value, and of sequences -----------------------------------------------------------------------------

GATES = {"of_x": normal(3, 8, 8), "of_h": normal(3, 8, 8) / 3, "bias": normal(1, 8)}


def gated(p, x, reverse=False):
    """A GRU, some of whose gates have a bias."""

    def step(h, x):
        of_x, (r, z, n) = ([v @ w for w in weights] for v, weights in ((x, p["of_x"]), (h, p["of_h"])))
        r, z = jax.nn.sigmoid(of_x[0] + r), jax.nn.sigmoid(of_x[1] + z)
        h = (1 - z) * jnp.tanh(of_x[2] + r * (n + p["bias"])) + z * h
        return h, h

    return lax.scan(step, jnp.zeros((x.shape[0], 8)), x.swapaxes(0, 1), reverse=reverse)[1]


@functools.cache
def gated_model(apply=gated, products="static", floats="xla"):
    return quantize(apply, GATES, [normal(4, 5, 8)], products=products, floats=floats, progress=False)


def apart(monkeypatch):
    """Leaves each product as it is, in its step."""
    monkeypatch.setattr(joint, "MOST_WEIGHTS", 0)
    monkeypatch.setattr(steps, "MOST_BYTES", 0)


def calls_of(model, x):
    """How many products the native library computes in a loop, and before it."""
    hlo = jax.jit(lambda *given: model.apply(*given)).lower(model.params, x).compile().as_text()
    body, entry = hlo.split("\nENTRY")
    return body.count(f"{NATIVE}matmul"), entry.count(f"{NATIVE}matmul")


@needs_native
@pytest.mark.parametrize("products", ["static", pytest.param("dynamic", marks=pytest.mark.rare)])
def test_gates_are_one_product_and_those_of_a_sequence_precede_the_loop(products, monkeypatch):
    x = normal(2, 6, 8)
    assert calls_of(gated_model(products=products), x) == (1, 1)
    apart(monkeypatch)
    assert calls_of(gated_model.__wrapped__(products=products), x) == (6, 0)


@needs_native
@pytest.mark.rare
def test_products_of_long_sequences_stay_in_the_steps(monkeypatch):
    """Those of 2 items, 6 steps and 24 columns of floats take 1152 bytes."""
    for limit, calls in ((1152, (1, 1)), (1151, (2, 0))):
        monkeypatch.setattr(steps, "MOST_BYTES", limit)
        assert calls_of(gated_model.__wrapped__(), normal(2, 6, 8)) == calls


@needs_native
@pytest.mark.rare
def test_gates_do_not_look_products_of_sequences_up():
    """XLA:CPU does not vectorize a loop that computes where it reads."""
    body = body_of(gated_model(), normal(2, 6, 8))
    assert " dynamic-slice(" in body
    assert not any(" dynamic-slice(" in each and " tanh(" in each for each in body.split("\n\n"))


def test_the_table_counts_the_products_of_a_joint_product():
    text = str(gated_model())
    assert re.search(r"^of_x ... of_x:3 +3 dot_general +matrix_multiply_integer_to_float +integers", text, re.M)
    assert "\n6 of 6 convolutions and products" in text


WAYS = {
    "jit": lambda apply, x: apply(x),
    "reverse": lambda apply, x: apply(x),
    "vmap": lambda apply, x: jax.vmap(apply, out_axes=1)(x[:, None]),
    "export": lambda apply, x: export.export(jax.jit(apply))(x).call(x),
    "symbolic": lambda apply, x: export.export(jax.jit(apply))(
        jax.ShapeDtypeStruct(export.symbolic_shape("batch, length, 8"), x.dtype)
    ).call(x),
    "eager": lambda apply, x: disabled(apply, x),
}


def disabled(apply, x):
    with jax.disable_jit():
        return apply(x)


@pytest.mark.rare
@pytest.mark.parametrize("products", ["static", "dynamic"])
@pytest.mark.parametrize("way", WAYS)
def test_joint_products_before_the_loop_have_the_bits_of_each(way, products, monkeypatch):
    function = functools.partial(gated, reverse=True) if way == "reverse" else gated
    shapes = [(1, 5, 8), (3, 9, 8), (2, 1, 8)]
    model = gated_model.__wrapped__(function, products, "exact")
    received = [WAYS[way](functools.partial(model.apply, model.params), normal(*shape)) for shape in shapes]
    apart(monkeypatch)
    model = gated_model.__wrapped__(function, products, "exact")
    for shape, value in zip(shapes, received, strict=True):
        expected = model.apply(model.params, normal(*shape))
        assert_same_bits(np.asarray(value).reshape(expected.shape), expected, (way, shape))


def test_products_without_a_bias_keep_the_signs_of_zeros(monkeypatch):
    """The scale of weights below the normal numbers counts as 0, so negative sums become -0."""

    def apply(p, x):
        step = lambda h, x: (h + 1, (x @ p["tiny"], x @ p["w"] + p["bias"]))  # noqa: E731
        return lax.scan(step, 0, x)[1]

    params = {"tiny": np.float32(1e-37) * normal(8, 8), "w": normal(8, 8), "bias": normal(1, 8)}
    x, found = normal(5, 2, 8), []
    for limit in (2**16, 0):
        monkeypatch.setattr(joint, "MOST_WEIGHTS", limit)
        model = quantize(apply, params, [x], progress=False)
        found.append(model.apply(model.params, x))
    tiny = np.asarray(found[0][0])
    assert (tiny == 0).all()
    assert 0 < np.signbit(tiny).mean() < 1
    jax.tree.map(assert_same_bits, *found)


MATRIX = normal(4, 8)
PAIRS = {
    "vectors": lambda p, h: (h @ p["w"][0, 0])[:, None] * jnp.tanh(h @ p["w"][1, 1])[:, None] + 0 * h,
    "stacks": lambda p, h: jnp.sum(jnp.tanh(jnp.einsum("bi,gio->gbo", h, p["w"])), 0),
    "ensembles": lambda p, h: (
        jnp.einsum("bgi,gio->bgo", jnp.stack([h, h], 1), p["w"])[:, 0]
        * jnp.einsum("bgi,gio->bgo", jnp.stack([h, h], 1), p["v"])[:, 1]
    ),
    "a bias of rows": lambda p, h: jnp.tanh(h @ p["w"][0] + MATRIX) * jax.nn.sigmoid(h @ p["w"][1]),
    "values": lambda p, h: jnp.tanh(h @ h.T) @ jnp.tanh(h @ p["w"][0]),
    "a multiple": lambda p, h: jnp.tanh(h @ p["w"][0]) * jax.nn.sigmoid(h @ p["w"][1] / 4),
    "equal weights": lambda p, h: jnp.tanh(h @ p["w"][0]) * jax.nn.sigmoid(h @ (p["w"][0] + 0)),
}


@pytest.mark.rare
@pytest.mark.parametrize("products", ["static", "dynamic"])
@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_products_have_the_bits_of_each(name, products, monkeypatch):
    def apply(p, x):
        return lax.fori_loop(0, 3, lambda i, h: PAIRS[name](p, h), x)

    params, x, found = {"w": normal(2, 8, 8), "v": normal(2, 8, 8) / 3}, normal(4, 8), []
    for limit in (2**16, 0):
        monkeypatch.setattr(joint, "MOST_WEIGHTS", limit)
        model = quantize(apply, params, [x], products=products, floats="exact", progress=False)
        found.append(model.apply(model.params, x))
    assert_same_bits(*found)


@pytest.mark.parametrize("products", ["static", pytest.param("dynamic", marks=pytest.mark.rare)])
def test_products_by_a_matrix_and_by_stacks_of_them_stay_apart(products):
    """All of them read the same rows; their weights have other axes."""

    def step(p, h):
        return jnp.tanh(
            jax.nn.sigmoid(jnp.einsum("abfk,abkn->abfn", h, p["each"]))
            + jax.nn.sigmoid(jnp.einsum("abfk,akn->abfn", h, p["first"]))
            + jax.nn.sigmoid(h @ p["all"]) * jnp.tanh(h @ p["more"])
        )

    def apply(p, x):
        return lax.fori_loop(0, 2, lambda i, h: step(p, h), x)

    params = {"each": normal(2, 3, 8, 8), "first": normal(2, 8, 8), "all": normal(8, 8), "more": normal(8, 8)}
    x = normal(2, 3, 5, 8)
    model = quantize(apply, params, [x], products=products, progress=False)
    assert is_right(model, apply, params, x)
    assert "4 of 4 convolutions and products" in str(model)


def test_joint_weights_are_arguments_for_other_sizes_too():
    model = gated_model()
    constants = jax.make_jaxpr(model.apply)(model.params, normal(3, 2, 8)).consts
    assert sum(np.size(each) for each in constants) < GATES["of_x"].size


@pytest.mark.rare
def test_floats_and_callbacks_of_a_sequence_stay_in_the_steps():
    """`jax.pure_callback` refuses vmap."""

    def apply(p, x):
        def step(h, x):
            x = jax.pure_callback(lambda x: np.asarray(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x)
            return jnp.tanh(x @ p["of_x"][0] + h @ p["of_h"][0]), None

        return lax.scan(step, jnp.zeros((x.shape[0], 8)), x.swapaxes(0, 1))[0]

    model, x = gated_model(apply), normal(2, 6, 8)
    assert model.apply(model.params, x).shape == (2, 8)


@pytest.mark.rare
def test_layers_keep_products_of_their_own():
    def apply(p, x):
        return lax.scan(lambda x, w: (jnp.tanh(x @ w[0]) * jnp.tanh(x @ w[1]), None), x, p["layers"])[0]

    model = quantize(apply, {"layers": normal(3, 2, 8, 8)}, [normal(4, 8)], progress=False)
    assert "2 of 2 convolutions and products, 2 of" in str(model)


def test_no_step_means_no_product():
    model = gated_model()
    assert model.apply(model.params, np.zeros((2, 0, 8), np.float32)).shape == (0, 2, 8)
