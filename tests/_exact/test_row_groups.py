"""Programs joined with each other, with sums of products before them, and with quantizers behind them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.native_calls import native_calls, needs_native
from jaxdml._arithmetic import elementwise
from jaxdml._arithmetic.exact_calls import named
from jaxdml.reference import floats

pytestmark = needs_native
RNG = np.random.default_rng(3)
SCALE, ZERO = np.float32(0.02), np.uint8(3)
scaled = jax.jit(named(elementwise.scaled_sums))


def array(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def inputs(batch=1, channels=64, *space):
    """Sums of a convolution, their bias and scale, a residual, and the two factors of a normalization."""
    sums = RNG.integers(-50_000, 50_000, (batch, channels, *space), np.int32)
    sums.reshape(-1)[:2] = 2**31 - 1, -(2**31)
    bias = RNG.integers(-(2**20), 2**20, (1, channels, *(1,) * len(space)), np.int32)
    scale = (RNG.random(bias.shape) * 1e-4).astype(np.float32)
    residual = array(*sums.shape)
    residual.reshape(-1)[-3:] = np.nan, np.inf, 1e-40
    return sums, bias, scale, residual, array(*bias.shape), array(*bias.shape)


def quantized(x, scale=SCALE, zero=ZERO):
    return dml.element_wise_quantize_linear(x, scale, zero)


def residual_block(sums, bias, scale, residual, factor, shift):
    """What lies between two convolutions of a ResNet v2."""
    y = scaled(sums, bias, scale) + residual
    return y, quantized(jax.nn.relu(y * factor + shift))


def of_reference(sums, bias, scale, residual, factor, shift):
    like = np.zeros_like(residual)
    y = floats.mul((sums + bias).astype(np.float32), floats.flushed(scale) + like)
    y = floats.add(y, floats.flushed(residual))
    z = floats.maximum(floats.add(floats.mul(y, factor + like), shift + like), like)
    with np.errstate(invalid="ignore"):
        steps = np.rint(z / SCALE) + np.float32(ZERO)
    return y, np.clip(np.where(np.isnan(steps), 0, steps), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("shape", [(1, 64, 6, 6), (1, 128, 3, 3), (2, 40, 24, 24), (3, 33, 7), (1, 300, 1, 1)], ids=str)
def test_a_residual_block_is_one_call(shape):
    given = inputs(*shape)
    f = dml.exact(residual_block)
    assert native_calls(f, *given) == ["rows"]
    got = jax.jit(f)(*given)
    jax.tree.map(assert_same_bits, tuple(got), of_reference(*given))
    with dml.use_kernels("xla"):
        jax.tree.map(assert_same_bits, got, jax.jit(f)(*given))


def test_nothing_but_its_results_is_in_memory():
    given = inputs(1, 256, 24, 24)
    text = jax.jit(dml.exact(residual_block)).lower(*given).compile().as_text()
    (results,) = re.findall(r"= (\(.*?\)) custom-call\(.*jaxdml_cpu_rows", text)
    assert re.findall(r"\w+\[[\d,]+\]", results) == ["f32[1,256,576]", "u8[1,256,576]"]
    assert not re.search(r"= \w+\[1,256,(24|576).* fusion\(", text)


def test_a_mapped_block():
    given = inputs(1, 64, 6, 6)
    many = [np.stack([x, x[:, ::-1], x]) for x in given]
    got = jax.jit(jax.vmap(dml.exact(residual_block)))(*many)
    for i in range(3):
        one = of_reference(*(x[i] for x in many))
        jax.tree.map(assert_same_bits, tuple(y[i] for y in got), one)


def test_exports_get_the_common_form():
    given = inputs(1, 64, 6, 6)
    exported = jax.export.export(jax.jit(dml.exact(residual_block)))(*given)
    assert "jaxdml_cpu" not in exported.mlir_module()
    jax.tree.map(assert_same_bits, tuple(exported.call(*given)), of_reference(*given))


def without_bias(sums, _, scale, *others):
    return residual_block(sums, None, scale, *others)


def read_by_two_sums(sums, bias, scale, residual, factor, shift):
    """XLA scales sums that two programs read."""
    y = scaled(sums, bias, scale)
    return jnp.sort(y * factor), jnp.sort(y + residual)


def quantized_twice(sums, bias, scale, residual, factor, shift):
    y = residual * factor
    return quantized(y), quantized(y, np.float32(0.3), np.int8(-5))


def quantized_to_words(sums, bias, scale, residual, factor, shift):
    level = dml.FeatureLevel.JAXDML
    return dml.element_wise_quantize_linear(residual * factor, SCALE, None, output_dtype=np.uint16, feature_level=level)


def with_scales_of_channels(sums, bias, scale, residual, factor, shift):
    return quantized(residual * factor, jnp.abs(factor) + 1, ZERO)


def without_zero_point(sums, bias, scale, residual, factor, shift):
    return dml.element_wise_quantize_linear(residual * factor, SCALE, None)


def by_its_own_range(sums, bias, scale, residual, factor, shift):
    """The scale depends on all elements of what is quantized."""
    return dml.dynamic_quantize_linear(jnp.nan_to_num(residual) * factor)


def read_in_two_ways(sums, bias, scale, residual, factor, shift):
    """The second program waits for a sort of the first one's result: as one, they would wait for each other."""
    y = residual * factor
    return jnp.sort(y, 1) + y * shift


def norm_of_residual(sums, bias, scale, residual, factor, shift):
    """A program that reduces rows."""
    y = jnp.nan_to_num(residual) + shift
    return y, quantized(jax.nn.softmax(y, -1))


def rows_of_other_shape(sums, bias, scale, residual, factor, shift):
    y = residual * factor
    return y, jnp.exp(y.reshape(y.shape[0], -1))


def repeated(sums, bias, scale, residual, factor, shift):
    """The second program repeats the first one's result for each item."""
    y = residual[:1] * factor
    return y, residual - jnp.broadcast_to(y, residual.shape)


def narrow(sums, bias, scale, residual, factor, shift):
    """The largest element of each row, and a program of such elements."""
    y = jnp.max(residual * factor, -1, keepdims=True)
    return y, y * shift


def largest_of_rows(sums, bias, scale, residual, factor, shift):
    """The second program repeats the first one's result for each column."""
    y = jnp.max(residual * factor, -1, keepdims=True)
    return jnp.sort(y, 1), jnp.exp(residual - y)


def read_with_what_it_gives(sums, bias, scale, residual, factor, shift):
    """The last program reads results of two others, of which the second reads the first one's."""
    y = residual * factor
    z = jnp.tanh(y.sum(-1, keepdims=True))
    return jnp.sort(y, 1), jnp.sort(z, 1), y * z


def logsumexp(sums, bias, scale, residual, factor, shift):
    """Three programs; nothing but the third one reads the results of the others."""
    return jax.nn.logsumexp(residual, -1)


def parts(sums, bias, scale, residual, factor, shift):
    """A program that reads slices, a sum of them that something else reads, and two quantizers."""
    up, gate = jnp.split(residual, 2, -1)
    y = up + gate
    return jnp.sort(y), quantized(y * jax.nn.silu(gate)), quantized(jnp.max(y, -1, keepdims=True) - y, np.float32(0.1))


def with_literals_of_equal_bytes(sums, bias, scale, residual, factor, shift):
    """A truth value and a zero point."""
    y = jnp.where(~jnp.logical_and(residual > 0, True), jnp.abs(residual), 0) * 2
    return quantized(y, zero=np.uint8(1))


OTHERS = {
    without_bias: ["rows"],
    read_by_two_sums: ["rows"] * 2,
    quantized_twice: ["rows"],
    quantized_to_words: ["quantized", "rows"],
    with_scales_of_channels: ["rows"],
    without_zero_point: ["quantized", "rows"],
    by_its_own_range: ["extremes", "quantized", "rows"],
    read_in_two_ways: ["rows", "rows"],
    norm_of_residual: ["rows"],
    rows_of_other_shape: ["rows", "rows"],
    repeated: ["rows", "rows"],
    narrow: ["rows"],
    largest_of_rows: ["rows"],
    read_with_what_it_gives: ["rows"],
    logsumexp: ["rows"],
    parts: ["rows"],
    with_literals_of_equal_bytes: ["rows"],
}


@pytest.mark.parametrize("function", OTHERS, ids=lambda each: each.__name__)
def test_other_neighbors(function):
    given = inputs(2, 64, 6, 6)
    f = dml.exact(function)
    assert sorted(native_calls(f, *given)) == OTHERS[function]
    with dml.use_kernels("xla"):
        wanted = jax.jit(f)(*given)
    jax.tree.map(assert_same_bits, jax.jit(f)(*given), wanted)


def test_a_value_that_only_the_program_reads_is_not_a_result():
    given = inputs(2, 64, 6, 6)
    text = jax.jit(dml.exact(logsumexp)).lower(*given).compile().as_text()
    assert re.findall(r"= (\S+)\{\S+ custom-call\(.*jaxdml_cpu_rows", text) == ["f32[2,64,6,1]"]


# Shapes of an array and of its factor: rows of few columns are merged.
FEW_COLUMNS = [
    ((40, 3), (1, 3)), ((40, 3), (40, 1)), ((7, 40, 3), (7, 1, 3)), ((900, 9), (900, 1)), ((5, 60, 127), (5, 60, 1)),
    ((5, 60, 128), (1, 60, 1)), ((1, 3000, 2), (1, 1, 2)), ((2, 300, 5), (2, 1, 1)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", FEW_COLUMNS, ids=str)
@pytest.mark.parametrize("of", ["floats", "truths"])
def test_rows_of_few_columns(shapes, of):
    x, factor = (array(*shape) for shape in shapes)
    if of == "floats":
        got = jax.jit(dml.exact(lambda x, factor: jnp.abs(x) * factor))(x, factor)
        assert_same_bits(got, floats.mul(np.abs(x), np.broadcast_to(factor, x.shape)))
    else:
        got = jax.jit(dml.exact(lambda x, factor: jnp.where(factor > 0, -x, x + 1)))(x, factor)
        assert_same_bits(got, np.where(factor > 0, -x, floats.add(x, np.float32(1))))


def test_programs_flush_what_they_read():
    """Parameters of channels, also reshaped, need no operation of their own."""
    x, factor = array(1, 30, 40), np.full((30,), 2.0**-130, np.float32)
    f = jax.jit(dml.exact(lambda x, factor: x * factor.reshape(1, 30, 1) + factor[None, :, None]))
    text = f.lower(x, factor).compile().as_text()
    assert " fusion(" not in text
    assert_same_bits(f(x, factor), np.zeros_like(x) + np.float32(0))


@pytest.mark.parametrize("shape", [(8, 64), (64, 8), (512, 1), (300,)])
def test_zero_points_that_vmap_maps(shape):
    def f(x, zero):
        return dml.element_wise_quantize_linear(jnp.tanh(x) * 3, np.float32(0.01), zero)

    x, zeros = np.stack([array(*shape)] * 8), np.arange(8, dtype=np.int8) * 10
    mapped = jax.jit(jax.vmap(dml.exact(f)))
    got = mapped(x, zeros)
    with dml.use_kernels("xla"):
        assert_same_bits(got, jax.jit(jax.vmap(dml.exact(lambda *given: f(*given))))(x, zeros))


def test_groups_that_would_wait_for_each_other():
    def f(x, y):
        a = jnp.tanh(x)
        p = jnp.sort(a)
        b = jnp.exp(y)
        q = jnp.sort(b)
        return p, q, b + p, a * b

    x = array(8, 64)
    got = jax.jit(dml.exact(f))(x, x)
    with dml.use_kernels("xla"):
        jax.tree.map(assert_same_bits, got, jax.jit(dml.exact(lambda *given: f(*given)))(x, x))


def test_effects_keep_their_order():
    seen = []

    def f(x, y):
        a = jnp.tanh(x)
        p = jnp.sort(a, axis=1)
        jax.debug.callback(lambda _: seen.append("first"), jnp.sort(a, axis=0), ordered=True)
        jax.debug.callback(lambda _: seen.append("second"), jnp.sort(y, axis=0), ordered=True)
        return p, a * jnp.exp(y)

    jax.block_until_ready(jax.jit(dml.exact(f))(array(8, 64), array(8, 64)))
    jax.effects_barrier()
    assert seen == ["first", "second"]


def test_a_callback_reads_a_value_of_a_program():
    seen = []

    def f(x):
        y = x * 2
        jax.debug.callback(lambda value: seen.append(np.asarray(value)), y)
        return jnp.exp(y) + 1

    x = array(8, 64)
    for kernels in ("xla", "native"):
        with dml.use_kernels(kernels):
            jax.block_until_ready(dml.exact(lambda x: f(x))(x))
            jax.effects_barrier()
            assert_same_bits(seen.pop(), x * 2)
