"""Attention of ONNX and MultiHeadAttention of ONNX Runtime, by the exact rules of `jaxdml._exact.attention`.

A token's bits depend neither on its batch nor on the tokens that it does not see. Formulas and the meaning of masks are
those of ONNX Runtime's CPU kernels.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdml._arithmetic import rounding
from jaxdml._arithmetic.exact_calls import in_one_call
from jaxdml._exact import attention as exact
from jaxdml._exact.arithmetic import added
from jaxdml.errors import ModelError
from jaxdml.onnx._operators._arrays import Array, is_float, is_known
from jaxdml.onnx._table import BOOL, INDEX, MICROSOFT, operator

REAL = frozenset({"float32", "float16", "bfloat16"})  # the exact rules compute in float32
INT32 = frozenset({"int32"})
ALL_BUT_SCORES = 3  # outputs; only nodes with more outputs need the scores
OF_HIDDEN = -10_000.0  # ONNX Runtime adds this number to scores of hidden keys
PRECISIONS = (1, 10, 16)  # ONNX's numbers for float32, float16 and bfloat16


# Shared by the operators ---------------------------------------------------------------------------------------------


def expected(name: str, x: Any, *shapes: tuple[Any, ...]) -> None:
    """Raises ModelError if x is given and its shape is none of the shapes; None allows any size."""
    if x is not None and not any(_fits(x.shape, shape) for shape in shapes):
        raise ModelError(f"{name} has shape {x.shape}, expected {' or '.join(map(_shown, shapes))}")


def _fits(shape: tuple[Any, ...], pattern: tuple[Any, ...]) -> bool:
    pairs = zip(shape, pattern, strict=False)
    return len(shape) == len(pattern) and all(want is None or size == want for size, want in pairs)


def _shown(shape: tuple[Any, ...]) -> str:
    return str(shape).replace("None", "any")


def together(**inputs: Any) -> None:
    """Raises ModelError if some of the inputs are given and others are not."""
    if len({x is None for x in inputs.values()}) > 1:
        raise ModelError(f"{' and '.join(inputs)} must be given together, or left out together")


def divisible(name: str, size: int, count_name: str, count: int) -> int:
    """size / count; raises ModelError if the count does not divide the size."""
    if count < 1 or size % count:
        raise ModelError(f"{name} is {size}, expected a multiple of {count_name}, which is {count}")
    return size // count


def in_heads(x: Array, count: int) -> Array:
    """[B, S, count * H] as [B, count, S, H]."""
    return jnp.swapaxes(x.reshape(*x.shape[:2], count, x.shape[2] // count), 1, 2)


def from_heads(x: Array) -> Array:
    """[B, N, S, H] as [B, S, N * H]."""
    return jnp.swapaxes(x, 1, 2).reshape(x.shape[0], x.shape[2], -1)


def behind_past(past_key: Array | None, past_value: Array | None, key: Array, value: Array) -> tuple[Array, Array, int]:
    """The past keys and values followed by the new ones [B, N, S, H], and the number of past ones."""
    together(past_key=past_key, past_value=past_value)
    if past_key is None or past_value is None:
        return key, value, 0
    past = past_key.shape[2] if past_key.ndim == 4 else 0
    for name, old, new in (("past_key", past_key, key), ("past_value", past_value, value)):
        expected(name, old, (*new.shape[:2], past, new.shape[3]))
    return jnp.concatenate([past_key, key], 2), jnp.concatenate([past_value, value], 2), past


def attended(
    which: str, query: Array, key: Array, value: Array, *, scale: float | None, softcap: float, seen: Any,
    bias: Any = None, sink: Any = None,
) -> Array:  # fmt: skip
    """A float32 result of `exact.attention` for floats of any type. None and 0 mean the default scale."""
    wide = [None if x is None else jnp.asarray(x, jnp.float32) for x in (query, key, value, bias, sink)]
    scale = scale or 1 / math.sqrt(query.shape[-1])
    compute = functools.partial(exact.attention, which, float(scale), max(float(softcap), 0.0))
    found: Array = in_one_call(compute, (*wide[:3], seen, *wide[3:]))
    return found


def places(count: int, axis: int) -> Any:
    """int32 numbers from 0 to count - 1 along one of four axes: the last (-1) for keys, or -2 for queries."""
    return np.arange(count, dtype=np.int32).reshape((1, 1, 1, count) if axis == -1 else (1, 1, count, 1))


def narrowed(x: Array, dtype: Any) -> Array:
    """float32 x, rounded once to a float type."""
    return rounding.rounded_to(x, dtype)


# ONNX's own ----------------------------------------------------------------------------------------------------------


def attention_options(
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> dict[str, Any]:
    """The attributes of Attention before opset 25, which adds windows."""
    options = {"is_causal": is_causal, "kv_num_heads": kv_num_heads, "q_num_heads": q_num_heads, "scale": scale}
    options |= {"softcap": softcap, "softmax_precision": softmax_precision}
    return options | {"qk_matmul_output_mode": qk_matmul_output_mode}


SCORES = ("scores", "capped", "masked", "weights")
ATTENTION_TYPES = (REAL, REAL, REAL, REAL | BOOL, REAL, REAL, INDEX)


@operator("Attention", since=23, until=24, types=ATTENTION_TYPES, options=attention_options)
@operator("Attention", since=25, types=ATTENTION_TYPES)
def attention(
    query: Array, key: Array, value: Array, attn_mask: Array | None = None, past_key: Array | None = None,
    past_value: Array | None = None, nonpad_kv_seqlen: Array | None = None, *, is_causal: int = 0,
    kv_num_heads: int | None = None, left_window_size: int = -1, q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0, right_window_size: int = -1, scale: float | None = None, softcap: float = 0.0,
    softmax_precision: int | None = None, output_count: int = 1,
) -> tuple[Array, Array, Array, Array | None]:  # fmt: skip
    """The output; past and new keys; past and new values; the scores that qk_matmul_output_mode selects."""
    if softmax_precision not in (None, *PRECISIONS):
        raise ModelError(f"softmax_precision is {softmax_precision}, expected 1, 10 or 16; softmax is float32")
    if scale is not None and not scale > 0:
        raise ModelError(f"scale is {scale}, expected a positive number")
    if softcap < 0:
        raise ModelError(f"softcap is {softcap}, expected 0, for none, or a positive number")
    if qk_matmul_output_mode not in range(4):
        raise ModelError(f"qk_matmul_output_mode is {qk_matmul_output_mode}, expected 0 to 3")
    is_flat = query.ndim == 3
    query, key, value = _queries_and_keys(query, key, value, q_num_heads, kv_num_heads)
    batch, heads, rows, _ = query.shape
    key, value, past = behind_past(past_key, past_value, key, value)
    total = key.shape[2]
    if attn_mask is not None:
        attn_mask = _whole_mask(attn_mask, (batch, heads, rows, total))
    seen, bias = None, attn_mask
    if attn_mask is not None and not is_float(attn_mask):
        seen, bias = attn_mask, None
    offset: Any = past
    if nonpad_kv_seqlen is not None:
        lengths = _lengths(nonpad_kv_seqlen, batch, total, past_key)
        seen, offset = _both(seen, places(total, -1) < lengths), lengths - rows
    place = places(rows, -2) + offset
    has_window = max(left_window_size, right_window_size) >= 0
    if is_causal and (rows > 1 or not past or has_window):  # a single query after past keys sees all keys
        seen = _both(seen, places(total, -1) <= place)
    if left_window_size >= 0:
        seen = _both(seen, places(total, -1) >= place - np.int32(left_window_size))
    if right_window_size >= 0:
        seen = _both(seen, places(total, -1) <= place + np.int32(right_window_size))

    def result(which: str) -> Array:
        found = attended(which, query, key, value, scale=scale, softcap=softcap, seen=seen, bias=bias)
        return narrowed(found, query.dtype)

    output = from_heads(result("output")) if is_flat else result("output")
    return output, key, value, result(SCORES[qk_matmul_output_mode]) if output_count > ALL_BUT_SCORES else None


def _queries_and_keys(query: Array, key: Array, value: Array, heads: int | None, groups: int | None) -> list[Array]:
    """Queries, keys and values [B, heads, S, H], from 3 or 4 dimensions."""
    if query.ndim not in (3, 4) or not query.ndim == key.ndim == value.ndim:
        raise ModelError(
            f"Q, K and V have {query.ndim}, {key.ndim} and {value.ndim} dimensions, expected 3 each or 4 each"
        )
    if query.ndim == 3:
        if not heads or not groups:
            raise ModelError("q_num_heads and kv_num_heads are required for Q, K and V of 3 dimensions")
        for name, x, count in (("Q", query, heads), ("K", key, groups), ("V", value, groups)):
            divisible(f"the last size of {name}", x.shape[2], "its number of heads", count)
        query, key, value = in_heads(query, heads), in_heads(key, groups), in_heads(value, groups)
    batch, found_heads, _, size = query.shape
    found_groups, length = key.shape[1:3]
    expected("K", key, (batch, found_groups, length, size))
    expected("V", value, (batch, found_groups, length, None))
    for name, said, found in (("q_num_heads", heads, found_heads), ("kv_num_heads", groups, found_groups)):
        if said is not None and said != found:
            raise ModelError(f"{name} is {said}, but the input has {found} heads")
    divisible("the number of heads of Q", found_heads, "that of K and V", found_groups)
    return [query, key, value]


def _whole_mask(mask: Array, shape: tuple[int, ...]) -> Array:
    """The mask in four dimensions; it hides the last keys from all queries if it has fewer keys than `shape`."""
    total = shape[-1]
    sizes = ((1,) * 3 + mask.shape)[-4:]
    fits = 1 <= mask.ndim <= 4 and sizes[-1] <= total
    if not fits or any(size not in (1, wanted) for size, wanted in zip(sizes[:-1], shape[:-1], strict=True)):
        raise ModelError(
            f"attn_mask has shape {mask.shape}, expected one that broadcasts to {shape}; its last size may be less"
        )
    hidden = -jnp.inf if is_float(mask) else False
    ends = [(0, 0)] * 3 + [(0, total - sizes[-1])]
    return jnp.pad(jnp.asarray(mask).reshape(sizes), ends, constant_values=hidden)


def _lengths(nonpad_kv_seqlen: Array, batch: int, total: int, past_key: Array | None) -> Array:
    """nonpad_kv_seqlen as int32 [B, 1, 1, 1]."""
    if past_key is not None:
        raise ModelError("nonpad_kv_seqlen cannot be combined with past_key and past_value")
    expected("nonpad_kv_seqlen", nonpad_kv_seqlen, (batch,))
    if is_known(nonpad_kv_seqlen) and not all(0 <= each <= total for each in nonpad_kv_seqlen):
        raise ModelError(f"nonpad_kv_seqlen is {nonpad_kv_seqlen}, expected lengths from 0 to {total}")
    return jnp.asarray(nonpad_kv_seqlen).astype(jnp.int32).reshape(batch, 1, 1, 1)


def _both(seen: Any, more: Any) -> Any:
    return more if seen is None else seen & more


# ONNX Runtime's ------------------------------------------------------------------------------------------------------


@operator("MultiHeadAttention", domain=MICROSOFT, types=(REAL,) * 4 + (INT32, REAL, REAL, REAL, INT32, INT32))
def multi_head_attention(
    query: Array, key: Array | None = None, value: Array | None = None, bias: Array | None = None,
    key_padding_mask: Array | None = None, attention_bias: Array | None = None, past_key: Array | None = None,
    past_value: Array | None = None, past_sequence_length: Array | None = None,
    cache_indirection: Array | None = None, *, num_heads: int, mask_filter_value: float = OF_HIDDEN,
    scale: float | None = None, unidirectional: int = 0, output_count: int = 1,
) -> tuple[Array, Array, Array, Array | None]:  # fmt: skip
    """The output; past and new keys; past and new values; the scaled scores with masks and bias."""
    if past_sequence_length is not None or cache_indirection is not None:
        raise ModelError("past_sequence_length and cache_indirection are not supported; give past_key and past_value")
    if query.ndim != 3 or key is None or value is None or key.ndim not in (3, 4) or value.ndim != key.ndim:
        raise ModelError(
            "query must have 3 dimensions, key and value 3 or 4; packed inputs are not supported, split them"
        )
    batch, rows, width = query.shape
    size = divisible("the last size of query", width, "num_heads", num_heads)
    query, key, value = _with_bias(query, key, value, bias, num_heads)
    length = key.shape[2]
    expected("key", key, (batch, num_heads, length, size))
    expected("value", value, (batch, num_heads, length, None))
    key, value, past = behind_past(past_key, past_value, key, value)
    hidden = _filter(key_padding_mask, mask_filter_value, (batch, rows, key.shape[2]))
    result = results_of_heads(
        query, key, value, past=past, hidden=hidden, attention_bias=attention_bias, scale=scale,
        unidirectional=unidirectional,
    )  # fmt: skip
    scores = result("masked") if output_count > ALL_BUT_SCORES else None
    return from_heads(result("output")), key, value, scores


def results_of_heads(
    query: Array, key: Array, value: Array, *, past: int, hidden: Array | None, attention_bias: Array | None,
    scale: float | None, unidirectional: int,
) -> Callable[[str], Array]:  # fmt: skip
    """Maps the name of a result of `exact.attention` to this result, in the type of the query.

    Args:
      query, key, value: [B, N, S, H]; past and new keys and values.
      past: the number of past keys.
      hidden: the numbers that a mask adds to scores.
      attention_bias: is added to scores, too.
      scale: multiplies scores.
      unidirectional: whether a query sees only the keys up to its own; the last query sees all keys.
    """
    (batch, heads, rows, _), total = query.shape, key.shape[2]
    expected("attention_bias", attention_bias, *((b, n, rows, total) for b in (batch, 1) for n in (heads, 1)))
    added_to_scores = attention_bias if hidden is None else hidden
    if attention_bias is not None and hidden is not None:
        attention_bias = jnp.asarray(attention_bias, jnp.float32)
        shape = np.broadcast_shapes(attention_bias.shape, hidden.shape)
        added_to_scores = added(jnp.broadcast_to(attention_bias, shape), jnp.broadcast_to(hidden, shape))
    seen = None
    if unidirectional:
        row = places(rows, -2)
        seen = (places(total, -1) <= row + past) | (row == rows - 1)

    def result(which: str) -> Array:
        found = attended(which, query, key, value, scale=scale, softcap=0.0, seen=seen, bias=added_to_scores)
        return narrowed(found, query.dtype)

    return result


def _with_bias(query: Array, key: Array, value: Array, bias: Array | None, heads: int) -> list[Array]:
    """Query, key and value [B, heads, S, H], plus their parts of the bias; a key or value of 4 dimensions has none."""
    width, is_flat = query.shape[2], key.ndim == 3
    if is_flat:
        expected("key", key, (None, None, width))
        divisible("the last size of value", value.shape[2], "num_heads", heads)
    parts = [query, key, value]
    if bias is not None:
        wide = value.shape[2] if is_flat else width
        expected("bias", bias, (2 * width + wide,))
        of_parts = jnp.split(jnp.asarray(bias), [width, 2 * width])
        parts = [sum_with_bias(x, part) if x.ndim == 3 else x for x, part in zip(parts, of_parts, strict=True)]
    return [in_heads(x, heads) if x.ndim == 3 else x for x in parts]


def sum_with_bias(x: Array, bias: Array) -> Array:
    """x plus a bias that broadcasts to it, rounded once."""
    wide = jnp.asarray(x, jnp.float32)
    total = added(wide, jnp.broadcast_to(rounding.flushed(jnp.asarray(bias, jnp.float32)), wide.shape))
    return narrowed(total, x.dtype)


def _filter(mask: Array | None, value: float, shape: tuple[int, int, int]) -> Array | None:
    """The numbers that key_padding_mask adds to scores: `value` for keys that it hides, else 0."""
    if mask is None:
        return None
    batch, _, total = shape
    expected("key_padding_mask", mask, (batch,), (3 * batch + 2,), (batch, total), shape)
    if mask.ndim == 1:  # the first `batch` numbers are lengths
        is_shown = places(total, -1) < mask[:batch].reshape(batch, 1, 1, 1)
    else:
        is_shown = (mask > 0).reshape(batch, 1, -1, total)
    return jnp.where(is_shown, np.float32(0), np.float32(value))
