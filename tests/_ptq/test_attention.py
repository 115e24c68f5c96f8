"""Products of attention that are dynamic by default, in the forms in which attention is written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from _ptq import outliers
from _ptq.quantized import batches_for, decibels
from jaxdml.ptq import Rule, quantize
from jaxdml.ptq._build.conversions import build
from jaxdml.ptq._choose.modes import modes_of
from jaxdml.ptq._trace.equations import program_of


def drawn(*shape):
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def heads(p, x):
    """Queries, keys and values [N, 2, tokens, 4]."""
    return ((x @ p[name]).reshape(*x.shape[:2], 2, 4).swapaxes(1, 2) for name in ("q", "k", "v"))


def attention(p, x, shares=jax.nn.softmax, mask=True, read=jnp.matmul, normalize=lambda queries: queries):
    queries, keys, values = heads(p, x)
    scores = normalize(queries) @ keys.swapaxes(2, 3)
    scores = jnp.where(jnp.tri(x.shape[1], dtype=bool)[None, None], scores, -1e9) if mask else scores
    return read(shares(scores), values).swapaxes(1, 2).reshape(x.shape) @ p["out"] @ p["head"]


def of(shares):
    return lambda p, x: attention(p, x, shares)


def of_sigmoids(divided):
    """Probabilities that are no softmax: sigmoids, and what `divided` makes of them and their sums."""
    return of(lambda s: divided(jax.nn.sigmoid(s), jax.nn.sigmoid(s).sum(-1, keepdims=True)))


def read_through(then):
    """Attention that computes `then` of its result and its values before the output projection."""
    return lambda p, x: attention(p, x, read=lambda shares, values: then(shares @ values, values))


def normalized(normalize):
    """Attention without probabilities, with queries that are divided by their own norms or moments."""
    return lambda p, x: attention(p, x, jax.nn.sigmoid, normalize=normalize)


def by_one_head(p, x):
    """`jax.nn.dot_product_attention` of one key and value head."""
    queries, keys, values = (each.swapaxes(1, 2) for each in heads(p, x))
    bias = jnp.zeros((1, 2, x.shape[1], x.shape[1]))
    y = jax.nn.dot_product_attention(queries, keys[:, :, :1], values[:, :, :1], bias, bias == 0, is_causal=True)
    return y.reshape(x.shape) @ p["out"] @ p["head"]


def summed(x):
    return jnp.sum(x, -1, keepdims=True)


def by_masked_moments(x):
    mask = (x > 0).astype(x.dtype)
    x = x - summed(jnp.where(x > 0, x, 0)) / summed(mask)
    return x / jnp.sqrt(summed(jnp.where(x > 0, x * x, 0)) / summed(mask))


def by_columns(shares, values):
    return (values.swapaxes(2, 3) @ shares.swapaxes(2, 3)).swapaxes(2, 3)


ATTENTION = dict(zip(("q", "k", "v", "out", "head"), drawn(5, 8, 8) / 2, strict=True)) | {
    "mask": np.ones((16, 16), np.float32)
}
BOTH = ["values", "out"]
SOFTMAX = jax.nn.softmax
DYNAMIC = {  # the products with ranges at each call
    "causal": (attention, BOTH),
    "without a mask": (lambda p, x: attention(p, x, mask=False), BOTH),
    "probabilities times values": (of(lambda s: SOFTMAX(s) * jax.nn.sigmoid(s)), BOTH),
    "probabilities times a mask": (
        lambda p, x: attention(p, x, lambda s: SOFTMAX(s) * p["mask"][None, None]),
        BOTH,
    ),
    "probabilities on the right": (lambda p, x: attention(p, x, read=by_columns), ["out"]),
    "sigmoids": (of(jax.nn.sigmoid), []),
    "products of two values alone": (lambda p, x: SOFTMAX(x @ x.swapaxes(1, 2)), []),
}
FORMS = {  # of probabilities, of what lies before the output projection, and of normalizations that are no softmax
    "softmax where": (of(lambda s: SOFTMAX(s, where=s > -1e8)), BOTH),
    "select behind": (of(lambda s: jnp.where(s > -1e8, SOFTMAX(s), 0)), BOTH),
    "dropout behind": (of(lambda s: jnp.where(np.tri(16, k=2, dtype=bool)[None, None], SOFTMAX(s) / 0.9, 0)), BOTH),
    "exp of log_softmax": (of(lambda s: jnp.exp(jax.nn.log_softmax(s))), BOTH),
    "exp after logsumexp": (of(lambda s: jnp.exp(s - jax.nn.logsumexp(s, -1, keepdims=True))), BOTH),
    "exp2 of log_softmax": (of(lambda s: jnp.exp2(jax.nn.log_softmax(s) - 0.5)), BOTH),
    "pow of log_softmax": (of(lambda s: jnp.power(2.5, jax.nn.log_softmax(s))), BOTH),
    "base 2": (of(lambda s: jnp.exp2(s - jnp.log2(summed(jnp.exp2(s))))), BOTH),
    "expm1 of log_softmax": (of(lambda s: jnp.expm1(jax.nn.log_softmax(s))), BOTH),
    "casts": (of(lambda s: SOFTMAX(s.astype(jnp.float16)).astype(jnp.float32)), BOTH),
    "a difference": (of(lambda s: SOFTMAX(s) - 0.5 * SOFTMAX(-s)), BOTH),
    "dot_product_attention": (by_one_head, BOTH),
    "quotients": (of_sigmoids(lambda e, total: e / total), BOTH),
    "reciprocals": (of_sigmoids(lambda e, total: e * (1 / total)), BOTH),
    "sums and a number": (of_sigmoids(lambda e, total: e / (total + 1e-6)), BOTH),
    "at least a number": (of_sigmoids(lambda e, total: e / jnp.maximum(total, 1e-6)), BOTH),
    "masked sums": (of_sigmoids(lambda e, _: e / summed(jnp.where(e > 0.5, e, 0))), BOTH),
    "masked quotients": (of_sigmoids(lambda e, total: jnp.where(e > 0.5, e, 0) / total), BOTH),
    "a gate": (read_through(lambda y, values: y * jax.nn.sigmoid(values)), BOTH),
    "a mask": (read_through(lambda y, values: jnp.where(values > 9, 0, y)), BOTH),
    "a bias": (read_through(lambda y, _: y - 0.125), BOTH),
    "a residual": (read_through(lambda y, values: y + values), ["values"]),
    "a mean": (read_through(lambda y, _: y - jnp.mean(y, -1, keepdims=True)), ["values"]),
    "other sums": (of(lambda s: jnp.square(s) / summed(jnp.square(s) + 1)), []),
    "sums of a choice": (of_sigmoids(lambda e, _: e / summed(jnp.where(e > 0.5, e * e, e))), []),
    "differences": (of_sigmoids(lambda e, total: e - total / 99), []),
    "L1 norm": (normalized(lambda q: q / summed(jnp.abs(q))), []),
    "L2 norm": (normalized(lambda q: q / jnp.sqrt(summed(q * q))), []),
    "RMS norm": (normalized(lambda q: q * jax.lax.rsqrt(jnp.mean(q * q, -1, keepdims=True))), []),
    "LayerNorm": (normalized(jax.nn.standardize), []),
    "log-probabilities": (normalized(jax.nn.log_softmax), []),
    "sums of powers": (normalized(lambda q: jnp.power(q, 2.5) - summed(jnp.power(q, 2.5)) / 8), []),
    "powers of log-probabilities": (normalized(lambda q: jnp.power(jax.nn.log_softmax(q), 2.5)), []),
    "a sum of exponentials": (normalized(lambda q: q + jax.nn.logsumexp(q, -1, keepdims=True)), []),
    "masked moments": (normalized(by_masked_moments), []),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", DYNAMIC)
def test_products_of_attention_are_dynamic(name):
    apply, expected = DYNAMIC[name]
    x = drawn(4, 16, 8)
    model = quantize(apply, ATTENTION, [x], progress=False)
    (modes,) = model.modes.values()
    assert dynamic_of(modes) == expected
    static = quantize(apply, ATTENTION, [x], products="static", progress=False)
    assert set(static.modes[""].values()) == {"static"}
    assert decibels(model.apply(model.params, x), apply(ATTENTION, x)) > 30


def dynamic_of(modes):
    """Which of the last products are dynamic; all others are static."""
    last = dict(zip(("head", "out", "values"), [*modes][::-1], strict=False))
    assert {name for name, mode in modes.items() if mode != "static"} <= {*last.values()}
    return [word for word in ("values", "out", "head") if word in last and modes[last[word]] == "dynamic"]


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_probabilities(name):
    apply, expected = FORMS[name]
    graph = build(program_of(apply, ATTENTION, (drawn(4, 16, 8),))).graph()
    assert dynamic_of(modes_of(graph, "mixed", ())[0]) == expected


def test_rules_for_products_of_attention():
    x = drawn(4, 16, 8)
    rules = [Rule("^out$", products="static"), Rule("dot_general_5", activations=jnp.uint16)]
    model = quantize(attention, ATTENTION, [x], rules=rules, progress=False)
    assert sorted(model.modes[""].values()) == ["static"] * 6 + ["static16"]
    blocks = quantize(attention, ATTENTION, [x], weights="int8", block_size=16, progress=False)
    assert sorted(map(str, blocks.modes[""].values())).count("dynamic") == 1  # that of two computed values


@pytest.mark.rare
@pytest.mark.parametrize("name", ["ViT", "BERT", "ViT, gains x 1 to 100", "BERT, gains x 1 to 100"])
def test_dynamic_products_of_attention_gain_accuracy(name):
    network = (outliers.WITHOUT | outliers.NETWORKS)[name]()
    batches, (x,) = batches_for(network.make_inputs, 32, 3), network.make_inputs(256, seed=-7)
    static, mixed = (
        quantize(network.apply, network.params, batches, products=each, progress=False) for each in ("static", "mixed")
    )
    exact = network.apply(network.params, x)
    gained, before = (decibels(each.apply(each.params, x), exact) for each in (mixed, static))
    assert gained > before + 0.2


def test_squares_of_squares_before_a_product_of_two_values():
    """The search for probabilities passes each value once, not each of 2**30 ways to the input."""

    def apply(params, x):
        y = x
        for _ in range(30):
            y = y * y
        return y @ jnp.swapaxes(x, -1, -2) @ params

    ones = np.ones((2, 4, 4), np.float32)
    model = quantize(apply, np.eye(4, dtype=np.float32), [ones], progress=False)
    assert "dynamic" not in str(model)
