"""Attention in which no row's bits depend on the batch, on the size of a cache, or on keys that the row does not see.

Scores are products of rows, so a score depends on its query and its key alone. In the softmax, a key that the query
does not see has the score -inf and the weight 0. Sums over keys are sums of integers, to which weights of 0 add
nothing. More than `OF_VALUES.terms` keys are split into parts at fixed places. The sums of the parts are added in
order, so unseen keys at the end add only parts that are 0.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._arithmetic.float_products import OF_VALUES, product_of_rows, weighted_sums
from jaxdml._arithmetic.kernel_call import with_kernel
from jaxdml._arithmetic.native_attention import ATTENTION
from jaxdml._arithmetic.planes import nearest_float
from jaxdml._arithmetic.rounding import flushed
from jaxdml._exact.arithmetic import added, divided, multiplied, subtracted
from jaxdml._exact.exponentials import exp, tanh
from jaxdml._exact.order import larger, largest
from jaxdml._exact.pairs import INFINITY, NAN, nearest, where

Array = jax.Array
LOWEST = np.finfo(np.float32).min  # the masked score of keys that a query does not see
HALF = np.int32(15)  # the number of bits in each half of a 30-bit weight


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def attention(
    which: str, scale: float, softcap: float, query: Array, key: Array, value: Array, seen: Any = None,
    bias: Any = None, sink: Any = None,
) -> Array:  # fmt: skip
    """Attention of float32 queries [B, N, S, H] to keys [B, KV, T, H] and values [B, KV, T, V].

    Each N / KV consecutive heads of queries share one head of keys and values.

    Args:
      which: the result. "output" is [B, N, S, V], the weighted sums of values, 0 where a query sees no key. The others
        are [B, N, S, T]: "scores", the products of queries and keys; "capped", the scores after the softcap; "masked",
        the capped scores plus the bias, LOWEST for keys that are not seen; "weights", the softmax of the masked scores.
      scale: the factor that multiplies the queries.
      softcap: c in c * tanh(score / c); 0 for no cap.
      query, key, value: the operands; N is a multiple of KV.
      seen: a bool array, true for keys that a query sees; it broadcasts to [B, N, S, T]. None means all keys.
      bias: a float array that is added to the scores; it broadcasts to [B, N, S, T]. None means no bias.
      sink: [N], for each head the score of one more key, whose value is 0. None means no such key.
    """
    return _attention(query, key, value, seen, bias, sink, which=which, scale=scale, softcap=softcap)


@with_kernel(ATTENTION)
def _attention(
    query: Array, key: Array, value: Array, seen: Any, bias: Any, sink: Any, *, which: str, scale: float,
    softcap: float,
) -> Array:  # fmt: skip
    query, key, value = map(flushed, (query, key, value))
    scores = _by_group(product_of_rows, multiplied(query, lax.full_like(query, scale)), key)
    if which == "scores":
        return scores
    if softcap:
        cap = lax.full_like(scores, softcap)
        scores = multiplied(tanh(divided(scores, cap)), cap)
    if which == "capped":
        return scores
    masked = scores if bias is None else added(scores, jnp.broadcast_to(flushed(bias), scores.shape))
    if seen is not None:
        masked = where(jnp.broadcast_to(seen, scores.shape), masked, LOWEST)
    is_out = masked <= LOWEST
    masked = where(is_out, LOWEST, masked)
    if which == "masked":
        return masked
    sinks = None if sink is None else jnp.broadcast_to(flushed(sink)[:, None, None], (*scores.shape[:-1], 1))
    top, powers = _powers(where(is_out, -INFINITY, masked), sinks)
    total = _total(powers)
    if sinks is not None:
        total = added(total, exp(subtracted(sinks, top)))
    total = where(lax.abs(top) < INFINITY, total, NAN)
    return _over(powers if which == "weights" else _by_group(weighted_sums, powers, value), total)


@attention.defjvp
def _derivative(which: str, scale: float, softcap: float, primals: Any, tangents: Any) -> tuple[Array, Array]:
    """The derivative of the same formula, computed in plain JAX."""

    def floats(query: Array, key: Array, value: Array, bias: Any, sink: Any) -> Array:
        scores: Array = _by_group(lambda a, b: a @ jnp.swapaxes(b, -1, -2), query * scale, key)
        capped = softcap * jnp.tanh(scores / softcap) if softcap else scores
        masked = capped if bias is None else capped + jnp.broadcast_to(bias, capped.shape)
        masked = masked if seen is None else jnp.where(jnp.broadcast_to(seen, capped.shape), masked, LOWEST)
        logits = masked
        if sink is not None:
            sinks = jnp.broadcast_to(sink[:, None, None], (*scores.shape[:-1], 1))
            logits = jnp.concatenate([masked, sinks], -1)
        weights = jax.nn.softmax(logits, -1)[..., : scores.shape[-1]]
        weights = jnp.where(masked > LOWEST, weights, 0)
        output = _by_group(jnp.matmul, weights, value)
        found = {"output": output, "scores": scores, "capped": capped, "masked": masked, "weights": weights}
        return found[which]

    seen = primals[3]
    without_seen = (*primals[:3], *primals[4:]), (*tangents[:3], *tangents[4:])
    return attention(which, scale, softcap, *primals), jax.jvp(floats, *without_seen)[1]


def _by_group(product: Any, x: Array, shared: Array) -> Array:
    """product(x, shared) of x [B, N, S, size] and shared [B, KV, ...]; the heads of a group are rows of one product."""
    batch, heads, rows, size = x.shape
    groups = shared.shape[1]
    result = product(lax.reshape(x, (batch, groups, heads // groups * rows, size)), shared)
    return lax.reshape(result, (batch, heads, rows, result.shape[-1]))


def _powers(x: Array, sinks: Array | None) -> tuple[Array, Array]:
    """top, the largest of each row's scores and sink, or 0 if that is -inf; and e**(x - top), which is at most 1, and 0
    where x is -inf.
    """
    top = lax.expand_dims(largest(x, lambda keys: jnp.max(keys, -1)), (x.ndim - 1,))
    if sinks is not None:
        top = larger(top, sinks)
    top = where(top == -INFINITY, np.float32(0), top)
    return top, exp(subtracted(x, jnp.broadcast_to(top, x.shape)))


def _total(powers: Array) -> Array:
    """The sums of numbers from 0 to 1 along the last axis, [..., 1]; each number is rounded to a multiple of 2**-30.

    Each number becomes an integer up to 2**30. Its lower 15 bits and the rest, at most 2**15, are summed separately as
    int32, `OF_VALUES.terms` = 2**15 numbers at a time, so a sum is at most 2**30. The total of a part's two sums is
    rounded once.
    """
    steps = lax.convert_element_type(nearest(powers * np.float32(2.0**30)), jnp.int32)
    parts = []
    for start in range(0, steps.shape[-1], OF_VALUES.terms):
        part = lax.slice_in_dim(steps, start, min(start + OF_VALUES.terms, steps.shape[-1]), axis=steps.ndim - 1)
        upper, lower = (
            jnp.sum(half, -1, keepdims=True, dtype=jnp.int32) for half in (part >> HALF, part & np.int32(2**15 - 1))
        )
        upper = upper + (lower >> HALF)
        words = upper >> np.int32(17), (upper << HALF) | (lower & np.int32(2**15 - 1))
        parts.append(nearest_float(*words) * np.float32(2.0**-30))
    return functools.reduce(lax.add, parts)


def _over(x: Array, total: Array) -> Array:
    """x / total, 0 where the total is 0."""
    total = jnp.broadcast_to(total, x.shape)
    is_empty = total == 0
    return where(is_empty, np.float32(0), divided(x, where(is_empty, np.float32(1), total)))
