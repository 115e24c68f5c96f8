"""One function with every rule in it, its inputs, and its results by `jaxdml.reference.floats`."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from _exact.battery_of_order import expected_ordered, ordered
from helpers.compare import assert_same_bits
from jaxdml.reference import floats

RNG = np.random.default_rng(0)
SPECIAL = np.float32([
    0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 1.1754944e-38, -1.1754944e-38, 3.4e38, -3.4e38, 1, -1, 2, -2, 0.5,
    3, -3, 88.72283, 88.72284, -87.33654, -87.33655, 127.99999, 128, -126, -126.00001, 1e-20, 1.82e-38, 0.5625, 9.5, 20,
    0.46875, 9.194549, 9.19455, -9.3, 0.7853981, 0.7853982, 1e10, -2.5e30, 16777216, -18, 0.41421357, -0.29289323,
    89.415985, -89.41599, 8192, 8192.001, 0.99999994, 1.0000001,
])  # fmt: skip


def rows():
    """[8, 3, 96]: of all sizes, near 1, and with special values in every place."""
    x = (RNG.standard_normal((8, 3, 96)) * np.exp(RNG.standard_normal((8, 3, 1)) * 3)).astype(np.float32)
    x[0, 1] = RNG.integers(0, 2**32, 96, np.uint32).view(np.float32)
    x[1, 0, : SPECIAL.size] = SPECIAL
    x[2, 0, 5], x[2, 1, 5], x[2, 2, 5:7] = np.inf, -np.inf, (np.inf, -np.inf)
    x[3, 0, 7], x[3, 1] = np.nan, 0
    x[3, 2] = RNG.standard_normal(96) * 2e-38  # results and addends that are subnormal
    x[4, 0], x[4, 1] = 3e38 * (-1) ** np.arange(96), 3e38
    x[5, 2] = -0.0
    return x


X, Y = rows(), RNG.permuted(rows(), axis=0)
Y[6] = np.round(np.clip(Y[6], -9, 9))

ONE = ["exp", "exp2", "expm1", "logistic", "tanh", "log", "log1p", "erf", "erfc", "erf_inv", "sin", "cos", "tan",
       "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "sqrt", "rsqrt"]  # fmt: skip
TWO = ["add", "sub", "mul", "div", "max", "min", "pow", "atan2", "nextafter"]
# Several updates of an element; most elements get none. For int64 indices, JAX fails if x64 is turned on after a trace.
PLACES = (RNG.integers(0, 100, 96) // 3).astype(np.int32)
NAMES = {"max": "maximum", "min": "minimum", "pow": "power"}  # in the reference


def everything(x, y):
    """A dict of results: elementwise functions, sums, and two layers made of them."""
    results = {name: getattr(lax, name)(x) for name in ONE}
    results |= {name: getattr(lax, name)(x, y) for name in TWO}
    results |= {"prod": jnp.prod(x, -1), "cumprod": jnp.cumprod(x, -1)}
    results |= {"sum": jnp.sum(x, -1), "cumsum": jnp.cumsum(x, -1), "mean": jnp.mean(x, -1)}
    results |= {"remainder": lax.rem(x, y), "scattered": x.at[..., PLACES].add(y)}
    results |= {"softmax": jax.nn.softmax(x, -1), "layer_norm": layer_norm(x, y)}
    results |= {"largest": jnp.max(x, -1), "smallest": jnp.min(x, -1)}
    results |= {"integers": x.astype(jnp.int32), "bytes": x.astype(jnp.int8), "half": x.astype(jnp.float16)}
    return results | ordered(x, y)


def layer_norm(x, gain):
    centered = x - x.mean(-1, keepdims=True)
    return centered * lax.rsqrt(jnp.mean(centered * centered, -1, keepdims=True) + np.float32(1e-5)) * gain + x


def reduced(pick, x):
    return np.array([[pick_all(pick, row) for row in rows] for rows in x], np.float32)


def pick_all(pick, row):
    result = row[:1]
    for each in row[1:]:
        result = pick(result, np.array([each]))
    return result[0]


def expected(x, y):
    """The results of `everything`, computed by the reference."""
    x, y = floats.flushed(x), floats.flushed(y)
    results = {name: getattr(floats, name)(x) for name in ONE}
    results |= {name: getattr(floats, NAMES.get(name, name))(x, y) for name in TWO}
    results |= {"prod": floats.reduce_prod(x), "cumprod": floats.cumprod(x)}
    results |= {"sum": floats.reduce_sum(x), "cumsum": floats.cumsum(x), "mean": mean(x)}
    results |= {"remainder": floats.remainder(x, y), "scattered": floats.scatter_add(x, PLACES, y)}
    largest = reduced(floats.maximum, x)
    e = floats.exp(floats.sub(x, largest[..., None]))
    results["softmax"] = floats.div(e, floats.reduce_sum(e)[..., None])
    results["layer_norm"] = norm(x, y)
    results |= {"largest": largest, "smallest": reduced(floats.minimum, x)}
    with np.errstate(all="ignore"):
        half = x.astype(np.float16)
    results |= {"integers": floats.to_integers(x, np.int32), "bytes": floats.to_integers(x, np.int8), "half": half}
    return results | expected_ordered(x, y)


def mean(x):
    return floats.div(floats.reduce_sum(x), np.float32(x.shape[-1]))


def norm(x, gain):
    centered = floats.sub(x, mean(x)[..., None])
    variance = mean(floats.mul(centered, centered))[..., None]
    scaled = floats.mul(centered, floats.rsqrt(floats.add(variance, np.float32(1e-5))))
    return floats.add(floats.mul(scaled, gain), x)


EXPECTED = expected(X, Y)


def then(results):
    """Each result in float32 times 0.75, plus 1: a product and two sums."""
    return {name: z * np.float32(0.75) + np.float32(1) for name, z in results.items() if z.dtype == jnp.float32}


def surrounded(x, y):
    """Operations before and after, all of them exact."""
    return then(everything(x * np.float32(1.3) + y, y))


def expected_surrounded():
    x, y = floats.flushed(X), floats.flushed(Y)
    inner = expected(floats.add(floats.mul(x, np.float32(1.3)), y), y)
    return {
        name: floats.add(floats.mul(z, np.float32(0.75)), np.float32(1))
        for name, z in inner.items()
        if z.dtype == np.float32
    }


def assert_all_same(got, wanted=None):
    """Compares the bits of all results."""
    wanted = EXPECTED if wanted is None else wanted
    assert got.keys() == wanted.keys()
    for name, expected_one in wanted.items():
        assert_same_bits(got[name], expected_one, name)
