"""Products in the forms that networks write: with residuals, masks, several axes of rows, and nothing contracted."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxdml.ptq import quantize

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


W = {"w": normal(8, 8), "b": normal(8)}
SUMS = {  # after a product; one term of the last sum is no bias of it
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


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("products", ["static", "dynamic"])
def test_a_sum_behind_a_product(name, products):
    x = normal(2, 4, 8)
    model = quantize(SUMS[name], W, [x], products=products, progress=False)
    assert sqnr(model, SUMS[name], W, x) > 35
