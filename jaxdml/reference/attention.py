"""Attention in NumPy, and its two products of floats, from the formulas in docs/numerics_products.md."""

from typing import Any

import numpy as np

from jaxdml.reference.float_parts import Array, _f, flushed
from jaxdml.reference.floats import add, div, exp, maximum, mul, sub, tanh

__all__ = ["attention", "product_of_rows", "weighted_sums"]

PART = 2**15  # the maximum number of terms of an exact sum of weights or of values
OF_ROWS, OF_VALUES, OF_WEIGHTS = _f(127 * 2**20), _f(127 * 2**16), _f(127 * 2**18)  # the largest integers
LOWEST = np.finfo(_f).min


def product_of_rows(a: Array, b: Array) -> Array:
    """Products of each row of `a`, [..., M, K], and each row of `b`, [..., N, K]: [..., M, N]."""
    (a_scale, of_a), (b_scale, of_b) = _integers(a, OF_ROWS), _integers(b, OF_ROWS)
    scale = mul(a_scale[..., :, None] * _f(2**26), b_scale[..., None, :])
    upper = np.rint(of_a / 2**15).astype(np.int64)
    lower = of_a - upper * 2**15
    total: Any = None
    for start in range(0, max(of_a.shape[-1], 1), 2**12):
        here = of_b[..., start : start + 2**12].swapaxes(-1, -2)
        sums = ((half[..., start : start + 2**12] @ here).astype(_f) for half in (upper, lower))
        part = (next(sums) * _f(2**15) + next(sums)) * _f(2.0**-26)
        total = part if total is None else total + part
    with np.errstate(all="ignore"):
        return flushed(scale * total)


def weighted_sums(weights: Array, values: Array) -> Array:
    """Weights [..., M, K] times values [..., K, N], where values of weight 0 add nothing: [..., M, N]."""
    values_scale, of_values = _integers(values, OF_VALUES)
    weights = flushed(weights)
    factors = np.broadcast_to((values_scale * _f(2**22))[..., None, :], weights.shape)
    scale, of_weights = _integers(np.where(weights == 0, _f(0), mul(weights, factors)), OF_WEIGHTS)
    total: Any = None
    for start in range(0, max(weights.shape[-1], 1), PART):
        sums = of_weights[..., start : start + PART] @ of_values[..., start : start + PART, :]
        part = sums.astype(_f) * _f(2.0**-22)
        total = part if total is None else total + part
    with np.errstate(all="ignore"):
        return flushed(scale[..., None] * total)


def _integers(x: Array, most: Any) -> tuple[Array, Array]:
    """The scale of each row of x, and the row's integers as int64, the largest of which is about `most`."""
    x = flushed(np.asarray(x, _f))
    high = np.abs(x).max(-1, initial=0)
    is_finite, is_live = np.isfinite(high), np.isfinite(high) & (high >= most * np.finfo(_f).smallest_normal)
    with np.errstate(all="ignore"):
        scale = np.where(is_live, high / most, np.where(is_finite, _f(0), _f(np.nan)))
        steps = np.rint(x * np.where(is_live, most / high, _f(0))[..., None])
    return scale.astype(_f), np.where(is_live[..., None], steps, 0).astype(np.int64)


def attention(
    query: Array, key: Array, value: Array, *, scale: float, softcap: float = 0, seen: Any = None, bias: Any = None,
    sink: Any = None,
) -> dict[str, Array]:  # fmt: skip
    """Attention of queries [B, N, S, H] to keys [B, KV, T, H] and values [B, KV, T, V]: the output and all stages."""
    query, key, value = (flushed(np.asarray(x, _f)) for x in (query, key, value))
    batch, heads, rows, _ = query.shape
    groups = key.shape[1]

    def by_group(product: Any, x: Array, shared: Array) -> Array:
        return product(x.reshape(batch, groups, -1, x.shape[-1]), shared).reshape(batch, heads, rows, -1)

    scores = by_group(product_of_rows, mul(query, np.full_like(query, scale)), key)
    cap = np.full_like(scores, softcap)
    capped = mul(tanh(div(scores, cap)), cap) if softcap else scores
    masked = capped if bias is None else add(capped, np.broadcast_to(flushed(np.asarray(bias, _f)), scores.shape))
    masked = masked if seen is None else np.where(seen, masked, LOWEST)
    masked = np.where(masked <= LOWEST, LOWEST, masked)
    x = np.where(masked == LOWEST, _f(-np.inf), masked)
    top = np.where(np.isnan(x).any(-1), _f(np.nan), x.max(-1))[..., None]
    if sink is not None:
        sink = np.broadcast_to(flushed(np.asarray(sink, _f))[:, None, None], top.shape)
        top = maximum(top, sink)
    top = np.where(top == -np.inf, _f(0), top)
    powers = exp(sub(x, np.broadcast_to(top, x.shape)))
    total = _total(powers)
    total = total if sink is None else add(total, exp(sub(sink, top)))
    total = np.where(np.isfinite(top), total, _f(np.nan))

    def over(x: Array) -> Array:
        return np.where(total == 0, _f(0), div(x, np.broadcast_to(np.where(total == 0, _f(1), total), x.shape)))

    results = {"scores": scores, "capped": capped, "masked": masked, "weights": over(powers)}
    return {"output": over(by_group(weighted_sums, powers, value)), **results}


def _total(powers: Array) -> Array:
    """Sums of numbers from 0 to 1 along the last axis; each number is rounded to a multiple of 2**-30."""
    with np.errstate(all="ignore"):
        steps = np.where(np.isnan(powers), 0, np.rint(powers.astype(np.float64) * 2.0**30)).astype(np.int64)
    total: Any = None
    for start in range(0, steps.shape[-1], PART):
        part = steps[..., start : start + PART].sum(-1, keepdims=True).astype(_f) * _f(2.0**-30)
        total = part if total is None else total + part
    return total
