"""Jit, vmap and tracing: compiled once, named in profiles, checked while tracing."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.marks import on_both_kernels
from jaxdml import reference

pytestmark = [on_both_kernels, pytest.mark.oldest]

X = np.arange(2 * 4 * 6 * 6, dtype=np.uint8).reshape(2, 4, 6, 6)
F = np.arange(6 * 4 * 3 * 3).astype(np.int8).reshape(6, 4, 3, 3)
CALLS = {
    "element_wise_dequantize_linear": (X, 0.1, 3),
    "element_wise_quantize_linear": (X.astype(np.float32), 0.1, 3),
    "element_wise_quantized_linear_add": (X, 0.1, 3, X, 0.2, 4, 0.3, 5),
    "quantized_linear_matrix_multiply": (X, 0.1, 3, X, 0.2, 4, 30.0, 5),
    "quantized_linear_convolution": (X, 0.1, 3, F, 0.2, None, None, 30.0, 5),
}


def other_values(arguments):
    """The same shapes and types with other values."""
    return [
        None if x is None else x[..., ::-1].copy() if isinstance(x, np.ndarray) else type(x)(x * 2) for x in arguments
    ]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CALLS)
def test_second_call_neither_traces_nor_compiles(name, caplog):
    operator = getattr(dml, name)
    operator(*CALLS[name])
    with jax.log_compiles(), caplog.at_level("WARNING"):
        operator(*other_values(CALLS[name]))
        assert not caplog.records
        operator(*(x[:1] if isinstance(x, np.ndarray) and x.ndim == 4 else x for x in CALLS[name]))
        assert caplog.records  # other shapes compile; otherwise the check above would prove nothing


WITH_NAN = {
    "dequantize": lambda: dml.element_wise_dequantize_linear(X, np.float32(np.nan)),
    "fake_quantize": lambda: dml.fake_quantize(X.astype(np.float32), np.float32(np.nan)),
    "product by blocks": lambda: dml.matrix_multiply_blocks(
        np.ones((2, 32), np.float32), np.ones((4, 32), np.int8), np.full((4, 1), np.nan, np.float32)
    ),
}


@pytest.mark.parametrize("check", [jax.debug_nans, jax.debug_infs])
@pytest.mark.parametrize("name", WITH_NAN)
def test_debug_nans_checks_results(name, check):
    with check(True):
        if check is jax.debug_nans:
            with pytest.raises(FloatingPointError, match="invalid value"):
                WITH_NAN[name]()
        else:  # a NaN is not an infinity
            assert np.isnan(WITH_NAN[name]()).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("f", [F, F[:, :1], np.ones((4, 1, 3, 3), np.int8)], ids=["dense", "merged", "depthwise"])
def test_no_tracer_leaks(f):
    groups = 4 // f.shape[1]
    f = f[: f.shape[0] // groups * groups]
    with jax.checking_leaks():
        convolved = jax.jit(lambda x, f: dml.convolution_integer(x, 3, f, None, group_count=groups))(X, f)
        mapped = jax.vmap(lambda x: dml.convolution_integer(x, 3, f, None, group_count=groups))(X[:, None])
    assert_same_bits(mapped[:, 0], convolved)


@pytest.mark.parametrize("name", CALLS)
def test_traced_once_inside_jit(name):
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(1)
    def caller(x):
        return getattr(dml, name)(x, *CALLS[name][1:])

    caller(CALLS[name][0])
    caller(other_values(CALLS[name])[0])
    with pytest.raises(AssertionError, match="traced > 1 times"):
        caller(CALLS[name][0][:1])


@pytest.mark.parametrize("name", CALLS)
def test_operator_names_its_scope(name):
    lowered = jax.jit(lambda x: getattr(dml, name)(x, *CALLS[name][1:])).lower(jnp.asarray(CALLS[name][0]))
    assert f"/{name}/" in lowered.compile().as_text()


@pytest.mark.parametrize("name", CALLS)
def test_shapes_without_computing(name):
    arguments = [jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, np.ndarray) else x for x in CALLS[name]]
    shapes = [a for a in arguments if isinstance(a, jax.ShapeDtypeStruct)]

    def call(*arrays):
        arrays = iter(arrays)
        return getattr(dml, name)(*(next(arrays) if isinstance(a, jax.ShapeDtypeStruct) else a for a in arguments))

    expected = getattr(reference, name)(*CALLS[name])
    got = jax.eval_shape(call, *shapes)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)


def test_vmap_over_weights_only():
    filters = np.stack([F, -F, F // 2])
    rest = (None, None, 30.0, 5)
    batch = jax.vmap(lambda f: dml.quantized_linear_convolution(X, 0.1, 3, f, 0.2, *rest))(filters)
    for f, got in zip(filters, batch, strict=True):
        assert_same_bits(got, reference.quantized_linear_convolution(X, 0.1, 3, f, 0.2, *rest))


def test_numbers_through_the_callers_jit():
    """A Python float that the caller's jit has traced is still a number, also with x64 on; an integer has no type."""
    expected = reference.element_wise_dequantize_linear(X, 0.1, np.uint8(3))
    for enabled in (False, True):
        with jax.enable_x64(enabled):
            got = jax.jit(dml.element_wise_dequantize_linear)(X, 0.1, np.uint8(3))
            assert_same_bits(got, expected)
            with pytest.raises(
                dml.DescError, match=r"weakly typed integer, whose value cannot be checked under jit; write jnp.uint8\("
            ):
                jax.jit(dml.element_wise_dequantize_linear)(X, 0.1, 3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("channels", "kernel"), [(4, 3), (24, 3), (24, 4)])
def test_nested_vmaps_over_every_kind_of_axis(channels, kernel):
    """Inputs over one axis, filters over another, scales and zero points over both; each form of a convolution."""
    rng = np.random.default_rng(0)
    xs = rng.integers(0, 256, (1, channels, 5, 5, 2), np.uint8)
    fs = rng.integers(-128, 128, (20, 3, channels, kernel, kernel), np.int8)
    scales = rng.uniform(0.1, 0.2, (3, 2)).astype(np.float32)
    zero_points = rng.integers(0, 256, 2, np.uint8)

    def call(x, f, scale, zero_point, module=dml):
        arguments = (x, scale, zero_point, f, 0.2, None, None, 500.0, np.uint8(5))
        return module.quantized_linear_convolution(*arguments)

    inner = jax.vmap(call, in_axes=(-1, None, 0, 0))
    got = jax.jit(jax.vmap(inner, in_axes=(None, 1, 0, None), out_axes=1))(xs, fs, scales, zero_points)
    for i, j in np.ndindex(3, 2):
        expected = call(xs[..., j], fs[:, i], scales[i, j], zero_points[j], reference)
        assert_same_bits(got[j, i], expected)


def test_cond_checkpoint_and_donation():
    weights = dml.prepare_convolution_filter(np.arange(24 * 24 * 9).astype(np.int8).reshape(24, 24, 3, 3))
    x = np.arange(24 * 36).astype(np.uint8).reshape(1, 24, 6, 6)

    def layer(x):
        return dml.quantized_linear_convolution(
            x, 0.1, 3, weights, 0.2, None, None, 3000.0, 5, start_padding=1, end_padding=1
        )

    expected = layer(x)
    chosen = jax.jit(lambda yes, x: jax.lax.cond(yes, layer, lambda x: x, x))
    assert_same_bits(chosen(True, x), expected)
    assert_same_bits(chosen(False, x), x)

    def loss(scale):
        return dml.element_wise_dequantize_linear(layer(x), scale, 5).sum()

    assert jax.grad(jax.checkpoint(loss))(jnp.float32(0.1)) == jax.grad(loss)(jnp.float32(0.1)) != 0
    donated = jnp.asarray(x)
    assert_same_bits(jax.jit(layer, donate_argnums=0)(donated), expected)
    assert donated.is_deleted()
