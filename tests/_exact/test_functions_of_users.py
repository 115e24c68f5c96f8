"""What functions do inside: close over traced values, call others, use empty arrays, partition, and fail with NaN."""

import contextlib
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely

X = np.float32([0.5, -2, 3])
(SIZE,) = jax.export.symbolic_shape("n")


@pytest.mark.parametrize("transform", rest_rarely([lambda f: f, jax.jit, jax.checkpoint], 1))
def test_values_that_a_function_closes_over_have_derivatives(transform):
    def loss(w, exact):
        return transform(exact(lambda x: jnp.tanh(x * w)))(X).sum()

    want, got = (jax.grad(loss)(X, exact) for exact in (lambda f: f, dml.exact))
    assert_same_bits(got, want)

    def of_others(w, labels, mask, key, exact):
        def inside(x):
            return jnp.where(mask & jax.random.bernoulli(key, 0.5, x.shape), x * labels.astype(x.dtype), w)

        return transform(exact(inside))(X).sum()

    def gradient(exact):
        others = np.int32([1, 2, 3]), np.array([True, False, True]), jax.random.key(0)
        return jax.grad(jax.jit(functools.partial(of_others, exact=exact)))(X, *others)

    assert_same_bits(gradient(dml.exact), gradient(lambda f: f))
    rows = jax.vmap(lambda w: dml.exact(lambda x: jnp.tanh(x * w))(X))(X)
    assert_same_bits(rows, dml.exact(jnp.tanh)(X * X[:, None]))


def with_a_name(x):
    return checkpoint_name(jnp.sin(x), "kept")


of_vjp = jax.custom_vjp(jnp.sin)
of_vjp.defvjp(lambda x: (jnp.sin(x), jnp.cos(x)), lambda cos, g: (cos * g,), optimize_remat=True)
of_vmap = jax.custom_batching.custom_vmap(jnp.sin)
of_vmap.def_vmap(lambda size, batched, x: (jnp.sin(x), batched[0]))
CALLS = {
    "name": (with_a_name, jnp.sin),
    "custom_vjp": (jax.grad(lambda x: of_vjp(x).sum()), jnp.cos),
    "custom_vmap": (of_vmap, jnp.sin),
    "composite": (lax.composite(lambda x: jnp.sin(x), "sine"), jnp.sin),
    "sequential_vmap": (jax.custom_batching.sequential_vmap(jnp.sin), jnp.sin),
    "empty": (lambda x: jnp.sin(x) + jnp.empty(3), jnp.sin),  # empty arrays have zeros
}


@pytest.mark.parametrize("name", rest_rarely(CALLS, 2))
def test_calls_and_empty_arrays(name):
    function, plain = CALLS[name]
    assert_same_bits(dml.exact(function)(X), dml.exact(plain)(X))


def test_products_of_groups_are_refused_or_left_to_xla():
    def ragged(x):
        return lax.ragged_dot(x, x[None], jnp.int32([3]))

    x = np.eye(3, dtype=np.float32)
    with pytest.raises(
        dml.ExactError,
        match=r'no rule for the float products of ragged_dot_general .*: write exact\(f, products="xla"\)',
    ):
        dml.exact(ragged)(x)
    assert_same_bits(dml.exact(ragged, products="xla")(x), x)


@pytest.mark.rare
def test_a_partition_with_nan_keeps_all_elements():
    x = np.float32([3, 1, np.nan, 2, -np.inf])
    for count in (0, 2, 4):
        for partition in (jnp.partition, jnp.argpartition):
            got = np.asarray(jax.jit(dml.exact(lambda x, part=partition, kth=count: part(x, kth)))(x))
            found = got if partition is jnp.partition else x[got]
            assert_same_bits(found[count], np.sort(x)[count])
            assert_same_bits(np.sort(found), np.sort(x))
    assert_same_bits(dml.exact(lambda x: lax.top_k(x, 2)[0])(x), np.float32([np.nan, 3]))
    assert_same_bits(dml.exact(lambda x: lax.top_k(-x, 1)[0])(np.int32([3, 1])), np.int32([-1]))
    with jax.enable_x64(True):  # ptq leaves float64 to XLA
        model = dml.ptq.quantize(lambda w, x: lax.top_k(-(x @ w).astype(float), 1)[0], X[:, None], [X[None]])
        assert model.by_xla
        assert model.apply(model.params, X[None]).dtype == np.float64


def test_an_error_names_the_function():
    def of_signs(x, is_known=None):
        return x if x[0] > 0 else -x

    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"(?s)function of_signs at .*argument x"):
        dml.exact(of_signs)(X)
    offsets = [0.0]
    shifted = dml.exact(lambda x: x + offsets[0])
    assert_same_bits(shifted(X), X)
    offsets[0] = 1.0
    assert_same_bits(shifted(X), X + 1)  # the function is traced anew


@pytest.mark.parametrize("check", [jax.debug_nans, jax.debug_infs])
def test_debug_nans_checks_results(check):
    with check(True):
        assert float(dml.exact(jnp.sum)(X)) == 1.5
        with pytest.raises(FloatingPointError, match="invalid value"):
            dml.exact(lambda x: jnp.log(x) if check is jax.debug_nans else jnp.exp(x * 100))(X)


def test_infinite_python_numbers_warn_of_nothing():
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_bits(dml.exact(lambda x: jnp.where(x > 0, x, jnp.inf))(X), np.float32([0.5, np.inf, 3]))


def test_windows_longer_than_the_axis():
    x = np.ones((7, 1), np.float32)
    for first, join in ((0.0, lax.add), (-np.inf, lax.max)):
        for size in (2, 3, 6):
            window = (2, size)
            got = dml.exact(lambda x, a=first, j=join, w=window: lax.reduce_window(x, a, j, w, (1, 1), "VALID"))(x)
            assert got.shape == (6, 0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [
    lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3), (1, 1), "VALID"), lambda x: lax.top_k(x, 2)[0],
])  # fmt: skip
def test_windows_and_orders_of_symbolic_sizes(function):
    exact = jax.jit(dml.exact(function))
    struct = jax.ShapeDtypeStruct(jax.export.symbolic_shape("2, n", constraints=["n >= 3"]), jnp.float32)
    x = np.random.default_rng(0).standard_normal((2, 7), np.float32)
    assert_same_bits(jax.export.export(exact)(struct).call(x), exact(x))


@pytest.mark.parametrize("options", [
    {"window_dimensions": (1, SIZE), "window_strides": (1, 1), "padding": "VALID"},
    {"window_dimensions": (1, 3), "window_strides": (1, 1), "padding": "SAME", "window_dilation": (1, SIZE)},
])  # fmt: skip
def test_sums_over_windows_of_symbolic_sizes_are_refused_with_a_remedy(options):
    struct, x = jax.ShapeDtypeStruct((2, SIZE), jnp.float32), np.arange(14, dtype=np.float32).reshape(2, 7)
    with pytest.raises(
        dml.ExactError, match=r"a sum over windows of .*n.* elements .*: export .* or write jnp.sum ove"
    ):
        jax.export.export(jax.jit(dml.exact(lambda x: lax.reduce_window(x, 0.0, lax.add, **options))))(struct)
    remedy = jax.jit(dml.exact(lambda x: jnp.sum(x, 1, keepdims=True)))
    assert_same_bits(jax.export.export(remedy)(struct).call(x), x.sum(1, keepdims=True))


@pytest.mark.parametrize("is_set", rest_rarely([False, True], 1))
@pytest.mark.parametrize("name", ["top_k", "add", "max", "windows"])
def test_explicit_mesh_axes(name, is_set):
    """With and without a mesh that is set. on_eight_devices.py compares the bits."""
    at = jnp.array([1, 1])
    function = {
        "top_k": lambda x: lax.top_k(x, 2)[0],
        "add": lambda x: x.at[:, at].add(x[:, :2]),
        "max": lambda x: x.at[:, at].max(x[:, :2]),
        "windows": lambda x: lax.reduce_window(x, 0.0, lax.add, (4, 1), (1, 1), "SAME"),  # padded to an odd size
    }[name]
    mesh = jax.sharding.AbstractMesh((2,), ("rows",), axis_types=(AxisType.Explicit,))
    struct = jax.ShapeDtypeStruct((4, 20), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("rows", None)))
    with jax.sharding.use_abstract_mesh(mesh) if is_set else contextlib.nullcontext():
        got, want = (jax.eval_shape(f, struct) for f in (dml.exact(function), function))
    assert (got.shape, got.sharding) == (want.shape, want.sharding)


def test_vmap_on_explicit_mesh_axes_without_a_mesh_that_is_set():
    mesh = jax.sharding.AbstractMesh((2,), ("rows",), axis_types=(AxisType.Explicit,))
    struct = jax.ShapeDtypeStruct((4, 20), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("rows", None)))
    got = jax.eval_shape(jax.vmap(dml.exact(jax.nn.softmax)), struct)
    assert (got.shape, got.sharding) == (struct.shape, struct.sharding)
    alone = jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Explicit,))
    x = jax.device_put(X, NamedSharding(alone, PartitionSpec("rows")))
    assert_same_bits(
        jax.vmap(lambda y: dml.exact(lambda x: jnp.sin(x + y))(x))(X[:2]), dml.exact(jnp.sin)(X + X[:2, None])
    )


REMEDIES = {  # jax 0.11 computes log2 from log
    **({"log2": (lax.log2, lambda x: jnp.log(x) * np.float32(1 / np.log(2)))} if hasattr(lax, "log2") else {}),
    "cbrt": (lax.cbrt, lambda x: jnp.sign(x) * jnp.abs(x) ** (1 / 3)),
    "apply": (lambda x: jnp.asarray(x).at[1].apply(jnp.sin), lambda x: jnp.asarray(x).at[1].set(jnp.sin(x[1]))),
}


@pytest.mark.parametrize("name", rest_rarely(REMEDIES, 2))
def test_remedies_work(name):
    f, remedy = REMEDIES[name]
    x = np.abs(X) + np.float32(0.1)
    with pytest.raises(dml.ExactError, match="write "):
        dml.exact(f)(x)
    want = f(x)
    for x64 in (False, True):
        with jax.enable_x64(x64):
            assert np.allclose(dml.exact(remedy)(x), want, rtol=1e-5, atol=1e-6)


def test_a_literal_of_a_call_that_is_reshaped():
    ones = jax.jit(lambda number: lax.broadcast_in_dim(number, (1,), ()))  # the call's argument is a literal
    assert_same_bits(dml.exact(lambda x: x * ones(np.float32(3)))(np.ones(2, np.float32)), np.full(2, 3, np.float32))
