"""The observer "auto": of three models, the one whose outputs have the least error on the batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits
from jaxdml.errors import PtqError

CHOICES = ("minmax", "percentile", "mse")


def problem(share_of_large):
    """A product whose inputs have a few large values: clipping these costs more, the larger their weights are."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 256, 64)).astype(np.float32)
    x[:, 0, 0] = 300
    w = rng.normal(size=(64, 16)).astype(np.float32)
    w[0] *= share_of_large
    return {"w": w}, [*x]


def product(params, x):
    return x @ params["w"]


def two_products(params, x):
    return {"large": x @ params["w"], "small": x @ params["v"]}


def noise(model, apply, params, batches):
    """Noise over signal, summed over the leaves of the output."""
    powers = [
        [
            (np.sum((np.asarray(a, float) - np.asarray(b, float)) ** 2), np.sum(np.asarray(b, float) ** 2))
            for a, b in zip(
                jax.tree.leaves(model.apply(model.params, x)), jax.tree.leaves(apply(params, x)), strict=True
            )
        ]
        for x in batches
    ]
    noises, signals = np.sum(powers, axis=0).T
    return np.sum(noises / signals)


def assert_same_model(one, other, batches):
    """Other ranges would give other results."""
    results = [[model.apply(model.params, x) for x in batches] for model in (one, other)]
    jax.tree.map(assert_same_bits, *results)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("share", "expected"), [(30.0, "minmax"), (1.0, "mse"), (0.0, "percentile")])
def test_the_model_with_the_least_error_is_returned(share, expected, capsys):
    params, batches = problem(share)
    models = {
        name: dml.ptq.quantize(product, params, batches, observer=name, equalize=False, progress=False)
        for name in CHOICES
    }
    errors = {name: noise(model, product, params, batches) for name, model in models.items()}
    assert min(errors, key=errors.get) == expected
    model = dml.ptq.quantize(product, params, batches, observer="auto", equalize=False)
    assert_same_model(model, models[expected], batches)
    shown = ", ".join(f"{name} {-10 * np.log10(error):.1f} dB" for name, error in errors.items())
    assert f"observer: {expected}, from the outputs' signal to noise: {shown}" in capsys.readouterr().err


@pytest.mark.rare
def test_each_leaf_of_the_output_counts_alike():
    """The first output alone prefers percentile. The second, though small, is the outlier, which clipping loses."""
    params, batches = problem(0.0)
    params["v"] = np.full((64, 4), 1e-6, np.float32) * (np.arange(64) == 0)[:, None]
    models = {
        name: dml.ptq.quantize(two_products, params, batches, observer=name, equalize=False, progress=False)
        for name in (*CHOICES, "auto")
    }
    errors = {name: noise(model, two_products, params, batches) for name, model in models.items()}
    assert errors["auto"] == min(errors.values()) < errors["percentile"]


def test_an_observer_of_one_layer_is_chosen():
    params, batches = problem(0.0)
    rules = [dml.ptq.Rule(".", observer="auto")]
    model = dml.ptq.quantize(product, params, batches, rules=rules, equalize=False, progress=False)
    best = dml.ptq.quantize(product, params, batches, observer="percentile", equalize=False, progress=False)
    assert_same_model(model, best, batches)


def imaginary(params, x):
    y = product(params, x)
    return jax.lax.complex(jnp.zeros_like(y), y)


def test_the_imaginary_part_of_an_output_counts(capsys):
    """The real part is always 0, and has no error."""
    params, batches = problem(0.0)
    dml.ptq.quantize(imaginary, params, batches, observer="auto", equalize=False)
    assert "observer: percentile" in capsys.readouterr().err


@pytest.mark.rare
def test_an_output_that_is_zero_does_not_count():
    """It has neither signal nor noise."""
    params, batches = problem(0.0)
    params["v"] = np.zeros((64, 4), np.float32)
    model = dml.ptq.quantize(two_products, params, batches, observer="auto", equalize=False, progress=False)
    best = dml.ptq.quantize(two_products, params, batches, observer="percentile", equalize=False, progress=False)
    assert_same_model(model, best, batches)


def test_batches_that_can_be_read_once_are_refused():
    params, batches = problem(1.0)
    with pytest.raises(PtqError, match=r"batches is a generator, which can be read only once: write list\(batches\)"):
        dml.ptq.quantize(product, params, (x for x in batches), observer="auto")
    dml.ptq.quantize(product, params, list(batches), observer="auto", progress=False)


@pytest.mark.rare
def test_layers_of_a_scan_share_the_choice():
    rng = np.random.default_rng(1)
    w = rng.normal(size=(3, 32, 32)).astype(np.float32) / 6
    x = rng.normal(size=(2, 64, 32)).astype(np.float32)
    x[:, 0, 0] = 100

    def apply(w, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]

    models = {
        name: dml.ptq.quantize(apply, w, [*x], observer=name, equalize=False, progress=False)
        for name in (*CHOICES, "auto")
    }
    errors = {name: noise(model, apply, w, [*x]) for name, model in models.items()}
    assert errors["auto"] == min(errors.values())


@pytest.mark.rare
def test_masked_outputs_do_not_hide_errors():
    """Equal infinities are no error, and no signal."""
    params, batches = problem(0.0)
    mask = np.arange(16) % 3 == 0

    def masked(params, x):
        return jnp.where(mask[None], -jnp.inf, x @ params["w"])

    for apply in (product, masked):
        model = dml.ptq.quantize(apply, params, batches, observer="auto", progress=False)
        (ratio,) = model.sqnr(params, batches[0]).outputs
        assert 25 < ratio < np.inf

    def in_logarithms(params, x):
        return jnp.log(jnp.maximum(x @ params["w"], 0))  # -inf where rounding may give a finite value

    model = dml.ptq.quantize(in_logarithms, params, batches, progress=False)
    assert model.sqnr(params, batches[0]).outputs == (-np.inf,)
