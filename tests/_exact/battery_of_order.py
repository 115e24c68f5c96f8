"""The second half of `battery.everything`: comparisons, rounding, order, windows, powers and conversions."""

import functools

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml.reference import floats

ONE = ["abs", "neg", "sign", "floor", "ceil", "square", "is_finite"]
COMPARISONS = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
POWERS = (-2, -1, 2, 3, 5)
LOW, HIGH = np.float32(-1.5), np.float32(2.5)
BEST, WINDOW, STRIDE = 7, 5, 2


def ordered(x, y):
    """A dict of results, as `battery.everything`."""
    last = x.ndim - 1
    results = {name: getattr(lax, name)(x) for name in ONE}
    results |= {name: getattr(lax, name)(x, y) for name in COMPARISONS}
    results |= {f"power {n}": lax.integer_pow(x, n) for n in POWERS}
    results |= {"even": lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), "away": lax.round(x)}
    results |= {"clamp": lax.clamp(LOW, x, HIGH), "select": lax.select(x > y, x, y)}
    results |= {"argmax": lax.argmax(x, last, jnp.int32), "argmin": lax.argmin(x, last, jnp.int32)}
    results["sort"] = lax.sort(x, is_stable=True)
    results["top_k"], results["places"] = lax.top_k(x, BEST)
    sizes, strides = ((1,) * last + (number,) for number in (WINDOW, STRIDE))
    results["window_sum"] = lax.reduce_window(x, np.float32(0), lax.add, sizes, strides, "VALID")
    half = x.astype(jnp.bfloat16)
    results |= {"bfloat16": half, "bfloat16 exp": jnp.exp(half), "bfloat16 sum": (half * half + half)}
    results |= {"widened": half.astype(jnp.float32), "reduce_precision": lax.reduce_precision(x, 8, 7)}
    return results


def expected_ordered(x, y):
    """The results of `ordered` for flushed x and y, by NumPy and `jaxdml.reference.floats`."""
    with np.errstate(all="ignore"):
        results = {"abs": np.abs(x), "neg": -x, "floor": np.floor(x), "ceil": np.ceil(x), "is_finite": np.isfinite(x)}
        results |= {name: compare(x, y) for name, compare in COMPARISONS.items()}
        results |= {"sign": np.where(x == 0, x, np.sign(x)), "square": floats.mul(x, x), "even": np.rint(x)}
        results["away"] = np.copysign(np.floor(np.abs(x).astype(np.float64) + 0.5).astype(np.float32), x)
        results |= {f"power {n}": power(x, n) for n in POWERS}
        results |= {"clamp": floats.minimum(floats.maximum(x, LOW), HIGH), "select": np.where(x > y, x, y)}
        results |= {"argmax": np.argmax(x, -1).astype(np.int32), "argmin": np.argmin(x, -1).astype(np.int32)}
        results["sort"] = np.sort(x, -1, kind="stable")
        places = np.argsort(-keys(x), -1, kind="stable")[..., :BEST]
        results |= {"top_k": np.take_along_axis(x, places, -1), "places": places.astype(np.int32)}
        count = (x.shape[-1] - WINDOW) // STRIDE + 1
        addends = (x[..., i : i + STRIDE * (count - 1) + 1 : STRIDE] for i in range(WINDOW))
        results["window_sum"] = functools.reduce(floats.add, addends)
        half = x.astype(jnp.bfloat16)
        wide = half.astype(np.float32)
        square = floats.mul(wide, wide).astype(jnp.bfloat16)
        results |= {"bfloat16": half, "bfloat16 exp": floats.exp(wide).astype(jnp.bfloat16)}
        results["bfloat16 sum"] = floats.add(square.astype(np.float32), wide).astype(jnp.bfloat16)
        return results | {"widened": wide, "reduce_precision": wide}


def power(x, n):
    """x to the power of n, by docs/exact_rules.md."""
    if n == -1:
        return floats.div(np.float32(1), x)
    if n in (2, 3):
        return functools.reduce(floats.mul, [x] * n)
    return floats.power(x, np.full_like(x, n))


def keys(x):
    """Integers in the order of top_k: -0 < +0, and NaN is largest."""
    bits = x.view(np.int32).astype(np.int64)
    return np.where(np.isnan(x), 2**31, np.where(bits < 0, -(2**31) - bits - 1, bits))
