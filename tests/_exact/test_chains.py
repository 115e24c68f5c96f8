"""Chains: two quantized products and the program on rows between them, such as attention, in one native call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from helpers.native_calls import native_calls, needs_native
from jaxdml._arithmetic.exact_calls import in_one_call
from jaxdml.ptq._integers.operators import quantized_rows

pytestmark = needs_native
RNG = np.random.default_rng(7)
SCALE, ZERO = np.float32(0.004), np.uint8(0)
SEPARATE = ["matmul", "rows", "matmul"]
QUANTIZED_APART = ["matmul", "rows", "quantized", "matmul"]  # what is quantized has other rows than the program


def integers(dtype, *shape):
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, shape, dtype)


def scores(q, k, **options):
    """Float scores of uint8 queries [..., T, D] and int8 keys [..., D, S]."""
    given = {
        "a_scale": np.float32(0.01),
        "a_zero_point": np.uint8(120),
        "b_scale": np.float32(0.02),
        "b_zero_point": None,
    } | options
    return dml.matrix_multiply_integer_to_float(q, b=k, **given)


def quantized(weights, zero=ZERO):
    return dml.element_wise_quantize_linear(weights, SCALE, zero)


def summed(weights, v, zero=ZERO):
    """The product of quantized weights and uint8 values, in uint8."""
    return dml.quantized_linear_matrix_multiply(
        weights, SCALE, zero, v, np.float32(0.03), np.uint8(99), np.float32(0.02), np.uint8(127)
    )


def attention(q, k, v):
    return summed(quantized(jax.nn.softmax(scores(q, k), -1)), v)


def masked(q, k, v, mask, bias, per_head):
    x = jnp.where(mask, scores(q, k) * np.float32(0.125) + bias, -1e9) * per_head
    return summed(quantized(jax.nn.softmax(x, -1)), v)


def in_floats(q, k, v, scale, bias):
    """Every option of the products: scales of rows and columns, biases, signed weights, a float result."""
    rows = {"a_scale": scale, "bias": bias[: k.shape[-1]]}
    weights = quantized(jnp.tanh(scores(q, k, **rows)), np.int8(-3))
    return dml.matrix_multiply_integer_to_float(
        weights, SCALE, np.int8(-3), v, np.float32(0.03), np.uint8(5), bias=bias[: v.shape[-1]]
    )


def same_bits(f, *arguments, calls):
    """Checks which kernels f calls, and compares its bits with those of XLA's kernels. Returns the result."""
    f = dml.exact(f)
    assert native_calls(f, *arguments) == calls
    with dml.use_kernels("xla"):
        wanted = jax.jit(f)(*arguments)
    got = jax.jit(f)(*arguments)
    jax.tree.map(assert_same_bits, got, wanted)
    return got


def qkv(*batch, rows=40, columns=48, depth=16, width=24):
    q, k = integers(np.uint8, *batch, rows, depth), integers(np.int8, *batch, depth, columns)
    return q, k, integers(np.uint8, *batch, columns, width)


@pytest.mark.parametrize(("rows", "columns", "depth", "width"), [(40, 48, 16, 24), (97, 130, 5, 7), (205, 33, 64, 1)])
def test_attention_of_any_size_is_one_call(rows, columns, depth, width):
    q, k, v = qkv(3, 4, rows=rows, columns=columns, depth=depth, width=width)
    y = same_bits(attention, q, k, v, calls=["chained"])
    expected = dml.reference.quantized_linear_matrix_multiply(
        np.asarray(jax.jit(dml.exact(lambda q, k: quantized(jax.nn.softmax(scores(q, k), -1))))(q, k)),
        SCALE, ZERO, v, np.float32(0.03), np.uint8(99), np.float32(0.02), np.uint8(127),
    )  # fmt: skip
    assert_same_bits(y, expected)


MASKS = {
    "of queries and keys": (1, 1, 40, 48),
    "of the keys of a batch": (3, 1, 1, 48),
    "of queries": (1, 4, 40, 1),
    "of everything": (3, 4, 40, 48),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MASKS)
def test_masks_and_biases_are_parts_of_the_chain(name):
    mask = RNG.random(MASKS[name]) > 0.3
    bias, per_head = (RNG.standard_normal(shape).astype(np.float32) for shape in ((1, 1, 1, 48), (1, 4, 1, 1)))
    same_bits(masked, *qkv(3, 4), mask, bias, per_head, calls=["chained"])


def test_each_option_of_the_products():
    q, k, v = qkv(12, rows=50)
    scale, bias = RNG.random((1, 50, 1)).astype(np.float32) / 100, RNG.standard_normal(60).astype(np.float32)
    same_bits(in_floats, q, k, v, scale, bias, calls=["chained"])


@pytest.mark.parametrize("mapped", [(0, 0, 0), (0, None, None), (None, 1, 2)])
def test_vmap_is_one_call(mapped):
    operands = qkv(2, 3, rows=60)
    stacked = [x if axis is None else np.stack([x, x[::-1], x], axis) for x, axis in zip(operands, mapped, strict=True)]
    got = jax.jit(jax.vmap(dml.exact(attention), mapped))(*stacked)
    assert native_calls(jax.vmap(dml.exact(attention), mapped), *stacked) == ["chained"]
    for i in range(3):
        one = [x if axis is None else x.take(i, axis) for x, axis in zip(stacked, mapped, strict=True)]
        with dml.use_kernels("xla"):
            assert_same_bits(got[i], jax.jit(dml.exact(attention))(*one))


def test_scores_that_mapped_values_share_are_computed_once():
    q, k, v = qkv(2, 3, rows=60)
    f = jax.vmap(dml.exact(attention), (None, None, 0))
    values = np.stack([v, v[::-1], v + 1])
    assert native_calls(f, q, k, values) == QUANTIZED_APART
    for got, each in zip(jax.jit(f)(q, k, values), values, strict=True):
        assert_same_bits(got, jax.jit(dml.exact(attention))(q, k, each))


def test_a_chain_of_mapped_operators():
    """Each item has scales of its own, for weights and as the second product reads them."""
    scales = RNG.random((3, 2)).astype(np.float32) / 100 + np.float32(0.001)

    def f(q, k, v, scales):
        weights = dml.element_wise_quantize_linear(jax.nn.softmax(scores(q, k), -1), scales[0], ZERO)
        return dml.matrix_multiply_integer_to_float(weights, scales[1], ZERO, v, np.float32(0.03), np.uint8(5))

    same_bits(jax.vmap(f), *qkv(3, 2, rows=60), scales, calls=["chained"])


def test_a_chain_in_a_scan():
    q, k, v = qkv(3, 4)

    def f(q, k, v):
        def step(carry, v):
            y = attention(carry, k, v)
            return carry + y[..., :1], y

        return lax.scan(step, q, jnp.stack([v, v + 1]))

    same_bits(f, q, k, v, calls=["chained"])


@pytest.mark.parametrize("products", rest_rarely(["dynamic", "static"], 1))
def test_attention_that_ptq_quantized_has_no_array_of_scores(products):
    """Causal attention; with dynamic products, each row of weights has its own range."""
    w = {name: RNG.standard_normal((64, 64)).astype(np.float32) / 8 for name in "qkvo"}

    def f(w, x):
        q, k, v = ((x @ w[name]).reshape(*x.shape[:2], 4, 16).transpose(0, 2, 1, 3) for name in "qkv")
        causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        weights = jax.nn.softmax(jnp.where(causal, q @ k.swapaxes(-1, -2) / 4, -1e9), -1)
        return (weights @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ w["o"]

    x = RNG.standard_normal((3, 64, 64)).astype(np.float32)
    model = dml.ptq.quantize(f, w, [x], products=products, floats="exact", progress=False)
    run = jax.jit(model.apply)
    hlo = run.lower(model.params, x).compile().as_text()
    assert "jaxdml_cpu_chained" in hlo
    assert "[3,4,64,64]" not in hlo
    with dml.use_kernels("xla"):
        plain = dml.ptq.quantize(f, w, [x], products=products, floats="exact", progress=False)
        assert_same_bits(run(model.params, x), jax.jit(plain.apply)(plain.params, x))


def test_prepared_weights_between_large_results():
    """A perceptron whose hidden layer does not fit the cache; its weights are packed once."""
    x, up, down = integers(np.uint8, 1100, 16), integers(np.int8, 16, 2000), integers(np.uint8, 2000, 16)
    prepared = dml.prepare_matrix_multiply_b(up), dml.prepare_matrix_multiply_b(down)

    def f(x, up, down):
        return summed(quantized(jax.nn.silu(scores(x, up)), np.uint8(60)), down, np.uint8(60))

    same_bits(f, x, *prepared, calls=["chained"])
    same_bits(f, x[:1000], *prepared, calls=SEPARATE)
    by_rows = native_calls(dml.exact(jax.vmap(f, (0, None, None))), x[:, None], *prepared)
    assert "chained" not in by_rows


def two_readers(q, k, v):
    x = scores(q, k)
    return summed(quantized(jax.nn.softmax(x, -1)), v), x


def weights_too(q, k, v):
    weights = jax.nn.softmax(scores(q, k), -1)
    return summed(quantized(weights), v), weights


def integers_too(q, k, v):
    weights = quantized(jax.nn.softmax(scores(q, k), -1))
    return summed(weights, v), weights


def longer_rows(q, k, v):
    """A softmax of all scores of a head: its rows are not those of the products."""
    x = scores(q, k)
    weights = jax.nn.softmax(x.reshape(3, 4, 40 * 48), -1).reshape(x.shape)
    return summed(quantized(weights), v)


def weights_twice(q, k, v):
    """The second product reads the weights as both operands."""
    weights = quantized(jax.nn.softmax(scores(q, k), -1))
    return summed(weights, weights) + v[..., :1, :1]


def weights_on_the_right(q, k, v):
    weights = quantized(jax.nn.softmax(scores(q, k), -1))
    return summed(v, weights)


def scales_too(q, k, v):
    """Each row of weights has a scale of its own, which is a result as well."""
    weights, scale, zero = quantized_rows(jax.nn.softmax(scores(q, k), -1))
    return dml.matrix_multiply_integer_to_float(weights, scale, zero, v, np.float32(0.03), np.uint8(5)), scale


def reordered(q, k, v):
    """This reshape transposes first, so it is no view."""
    x = lax.reshape(scores(q, k), (3, 4, 48, 48), dimensions=(0, 1, 3, 2))
    return summed(quantized(jax.nn.softmax(x, -1)), v)


def reordered_weights(q, k, v):
    weights = jax.nn.softmax(scores(q, k), -1)
    return summed(quantized(lax.reshape(weights, weights.shape, dimensions=(0, 1, 3, 2))), v)


def rows_of_an_operand(q, k, v):
    """The scores have one column; the rows that are reduced have more."""
    x = scores(q, k) * jnp.linspace(-1, 1, 48, dtype=np.float32).reshape(1, 1, 1, 48)
    return summed(quantized(jnp.sum(jnp.exp(x), -1, keepdims=True)), v)


def transposed(q, k, v):
    return summed(quantized(jax.nn.softmax(scores(q, k), -1)).swapaxes(-1, -2), v[..., :40, :])


def of_other_scales(q, k, v):
    """The second product reads each row of weights by a scale of its own."""
    weights = quantized(jax.nn.softmax(scores(q, k), -1))
    each = np.linspace(0.001, 0.002, 40, dtype=np.float32)[:, None]
    return dml.matrix_multiply_integer_to_float(weights, each, ZERO, v, np.float32(0.03), np.uint8(5))


BY_ROWS = ["matmul", "rows", "quantized_rows", "matmul"]
NO_CHAINS = {
    "something else reads the scores": (two_readers, qkv(3, 4), SEPARATE),
    "the weights are a result": (weights_too, qkv(3, 4), SEPARATE),
    "the integers are a result": (integers_too, qkv(3, 4), SEPARATE),
    "longer rows": (longer_rows, qkv(3, 4), QUANTIZED_APART),
    "the weights as both operands": (weights_twice, qkv(3, 4, rows=48), SEPARATE),
    "the weights as the right operand": (weights_on_the_right, qkv(3, 4, rows=48, width=48), SEPARATE),
    "the scales are a result": (
        scales_too,
        qkv(1, 1, rows=200, columns=96),
        BY_ROWS,
    ),
    "scores in another order": (reordered, qkv(3, 4, rows=48), SEPARATE),
    "weights in another order": (reordered_weights, qkv(3, 4, rows=48), QUANTIZED_APART),
    "longer rows of an operand": (rows_of_an_operand, qkv(1, 1, rows=20000, columns=1)[:3], None),
    "shared keys": (jax.vmap(attention, (0, None, None)), [qkv(30, rows=20)[0], *qkv()[1:]], None),
    "transposed weights": (transposed, qkv(3, 4), SEPARATE),
    "other scales": (of_other_scales, qkv(3, 4), SEPARATE),
    "few rows": (attention, qkv(30, 4, rows=15), SEPARATE),
    "few rows in all": (attention, qkv(3, 1, rows=60, columns=300), SEPARATE),
    "few scores": (attention, qkv(3, 1, rows=66), SEPARATE),
}


KEYS = qkv(3, 4)[1]
OTHER_CALLS = {  # exact calls of queries and keys, whose first result is scores
    "an operand is a result": lambda q, k: (scores(q, k), q),
    "a number is a result": lambda q, k: (scores(q, k), 3.0),
    "a result twice": lambda q, k: (lambda x: (x, x))(scores(q, k)),
    "a captured array": lambda q, k: (scores(q, jnp.asarray(KEYS)), k + 1),
}


@pytest.mark.parametrize("name", OTHER_CALLS)
def test_calls_of_other_forms_stay_as_they_are(name):
    def f(q, k, v):
        x, other = in_one_call(OTHER_CALLS[name], (q, k))
        return summed(quantized(jax.nn.softmax(x, -1)), v), other

    same_bits(f, *qkv(3, 4), calls=SEPARATE)


@pytest.mark.parametrize("name", NO_CHAINS)
def test_there_is_no_chain(name):
    f, operands, calls = NO_CHAINS[name]
    same_bits(f, *operands, calls=calls or native_calls(dml.exact(f), *operands))
    assert "chained" not in native_calls(dml.exact(f), *operands)


def test_exports_and_meshes_get_the_common_form():
    operands = qkv(3, 4)
    exported = jax.export.export(jax.jit(dml.exact(attention)))(*operands)
    assert "jaxdml_cpu" not in exported.mlir_module()
    assert_same_bits(exported.call(*operands), jax.jit(dml.exact(attention))(*operands))
