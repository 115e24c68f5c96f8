"""GroupQueryAttention of ONNX Runtime: attention of language models, with a cache and rotary embedding."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._exact.attention import LOWEST
from jaxdml._shapes import is_integer
from jaxdml.errors import ModelError
from jaxdml.onnx._operators._arrays import Array, is_known
from jaxdml.onnx._operators.attention import (
    INT32,
    REAL,
    attended,
    divisible,
    expected,
    from_heads,
    in_heads,
    narrowed,
    places,
    together,
)  # fmt: skip
from jaxdml.onnx._operators.embeddings import rotated
from jaxdml.onnx._table import MICROSOFT, operator

INT64 = frozenset({"int64"})
EPSILON = 9.999999974752427e-07


@operator(
    "GroupQueryAttention", domain=MICROSOFT, known=(6,),
    types=(REAL,) * 5 + (INT32, INT32, REAL, REAL, INT64, REAL, REAL),
)  # fmt: skip
def group_query_attention(
    query: Array, key: Array | None, value: Array | None, past_key: Array | None, past_value: Array | None,
    seqlens_k: Array, total_sequence_length: Array, cos_cache: Array | None = None, sin_cache: Array | None = None,
    position_ids: Array | None = None, attention_bias: Array | None = None, head_sink: Array | None = None,
    k_scale: Array | None = None, v_scale: Array | None = None, q_norm_weight: Array | None = None,
    k_norm_weight: Array | None = None, query_seqlens: Array | None = None, *, num_heads: int, kv_num_heads: int,
    causal: int = 1, do_rotary: int | None = None, k_norm_epsilon: float | None = None, k_quant_type: str = "NONE",
    kv_cache_bit_width: int | None = None, local_window_size: int = -1, q_norm_epsilon: float | None = None,
    qk_norm_epsilon: float = EPSILON, qk_output: int = 0, rotary_interleaved: int | None = None,
    scale: float | None = None, sliding_window_cache: int = 0, smooth_softmax: int = -1,
    softcap: float | None = None, v_quant_type: str = "NONE", output_count: int = 1,
) -> tuple[Array, Array, Array, Array | None]:  # fmt: skip
    """The output; the caches of keys and of values, with the new tokens; scores or weights, depending on qk_output.

    The output is NaN for a sequence whose seqlens_k contradicts the sizes, and for a token whose position lies beyond
    the end of the rotary caches. JAX compiles the call before it knows these numbers, so they cannot raise an error.
    """
    _refuse(
        k_quant_type=k_quant_type != "NONE", v_quant_type=v_quant_type != "NONE", kv_cache_bit_width=kv_cache_bit_width,
        k_scale=k_scale is not None, v_scale=v_scale is not None, q_norm_weight=q_norm_weight is not None,
        k_norm_weight=k_norm_weight is not None, query_seqlens=query_seqlens is not None,
        sliding_window_cache=sliding_window_cache,
    )  # fmt: skip
    if qk_output not in (0, 1, 2) or (qk_output == 0) != (output_count < 4):
        raise ModelError(
            f"qk_output is {qk_output} with {output_count} outputs; expected 1 or 2 for 4 outputs, 0 for fewer"
        )
    if not causal and local_window_size != -1:
        raise ModelError(f"local_window_size is {local_window_size} without causal, expected -1")
    query, key, value = _queries_and_keys(query, key, value, num_heads, kv_num_heads)
    tokens = _Tokens(query, key, past_key, past_value, seqlens_k, total_sequence_length)
    total = tokens.total
    together(cos_cache=cos_cache, sin_cache=sin_cache)
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise ModelError("do_rotary needs the inputs cos_cache and sin_cache")
        _check_rotary(query.shape[3], cos_cache, sin_cache, total)
        positions = tokens.positions(position_ids)
        cos, sin = (jnp.take(jnp.asarray(x, jnp.float32), positions, 0)[:, None] for x in (cos_cache, sin_cache))
        query, key = (rotated(x, cos, sin, bool(rotary_interleaved)) for x in (query, key))
    keys, values = tokens.behind(past_key, key), tokens.behind(past_value, value)
    expected("head_sink", head_sink, (num_heads,))
    if head_sink is None and smooth_softmax == 1:
        head_sink = jnp.zeros(num_heads, jnp.float32)
    sizes = [(b, n, tokens.rows, total) for b in (tokens.batch, 1) for n in (num_heads, 1)]
    expected("attention_bias", attention_bias, *sizes)
    result = functools.partial(
        attended, query=query, key=keys[:, :, :total], value=values[:, :, :total], scale=scale, softcap=softcap or 0.0,
        seen=tokens.seen(bool(causal), local_window_size), bias=attention_bias, sink=head_sink,
    )  # fmt: skip
    output = jnp.where(tokens.is_right[:, None, None], from_heads(result("output")), np.float32(np.nan))
    scores = None
    if qk_output:
        scores = result("weights") if qk_output == 2 else result("masked")
        scores = narrowed(jnp.where(scores == LOWEST, np.float32(0), scores), query.dtype)
    return narrowed(output, query.dtype), keys, values, scores


def _refuse(**given: Any) -> None:
    """Raises ModelError for quantized caches, and for other features that ONNX Runtime's CPU kernel lacks."""
    if refused := [name for name, is_given in given.items() if is_given]:
        names, verb = " and ".join(refused), "are" if len(refused) > 1 else "is"
        raise ModelError(f"{names} {verb} not supported; export the model without {names}, and with a cache of floats")


def _queries_and_keys(query: Array, key: Array | None, value: Array | None, heads: int, groups: int) -> list[Array]:
    """Queries [B, heads, S, H], keys and values [B, groups, S, H], from three inputs or one packed input."""
    if query.ndim != 3:
        raise ModelError(f"query has {query.ndim} dimensions, expected 3")
    divisible("num_heads", heads, "kv_num_heads", groups)
    batch, rows, width = query.shape
    together(key=key, value=value)
    if key is None or value is None:
        size = divisible("the last size of packed query", width, "num_heads + 2 * kv_num_heads", heads + 2 * groups)
        query, key, value = jnp.split(query, [heads * size, (heads + groups) * size], axis=2)
    else:
        size = divisible("the last size of query", width, "num_heads", heads)
        expected("key", key, (batch, rows, groups * size))
        expected("value", value, (batch, rows, groups * size))
    divisible("the size of a head", size, "8", 8)
    return [in_heads(query, heads), in_heads(key, groups), in_heads(value, groups)]


def _check_rotary(size: int, cos: Array, sin: Array, total: int) -> None:
    divisible("the size of a head", size, "16, for rotary embedding", 16)
    expected("cos_cache", cos, (None, None))
    expected("sin_cache", sin, cos.shape)
    if cos.shape[0] < total or cos.shape[1] > size // 2 or cos.shape[1] % 8:
        raise ModelError(
            f"cos_cache has shape {cos.shape}, expected at least {total} rows, and a multiple of 8 columns, at most "
            f"{size // 2}"
        )


def _check_is_known(size: Any, name: str) -> None:
    """Raises ModelError if a number of tokens is symbolic. The numbers tell whether a call is the first."""
    if not is_integer(size):
        text = f"the number of {name} is {size}, which is symbolic; export with numbers, with one file for a prompt"
        raise ModelError(f"{text} and one for a step; only the batch may be symbolic")


class _Tokens:
    """Where the tokens of a call lie in the sequences of a batch.

    The first call, for a prompt, has as many tokens as total_sequence_length. In other calls, the new tokens are the
    last of a sequence's seqlens_k + 1 tokens. Sequences of a batch may differ in length: no token sees keys beyond the
    end of its sequence.

    Attributes:
      batch, rows: the number of sequences, and of new tokens in each.
      total: the greatest number of tokens of a sequence, old and new.
      is_right: [B], whether seqlens_k fits the sizes.
    """

    def __init__(
        self, query: Array, key: Array, past_key: Array | None, past_value: Array | None, seqlens_k: Array, total: Any
    ) -> None:
        self.batch, _, self.rows, size = query.shape
        together(past_key=past_key, past_value=past_value)
        room = past_key.shape[2] if past_key is not None and past_key.ndim == 4 else 0
        for name, past in (("past_key", past_key), ("past_value", past_value)):
            expected(name, past, (self.batch, key.shape[1], room, size))
        if seqlens_k.size != self.batch:
            raise ModelError(f"seqlens_k has shape {seqlens_k.shape}, expected ({self.batch},)")
        if total.ndim > 1 or total.size != 1:
            raise ModelError(f"total_sequence_length has shape {total.shape}, expected (1,)")
        total = total.reshape(-1)[0]
        for size, name in ((self.rows, "new tokens"), (room, "tokens in the cache"), (total, "tokens in total")):
            _check_is_known(size, name)
        self.total = int(total)
        self._is_first = self.rows == self.total
        self._room = max(self.total, room)
        if self.total < self.rows or (not self._is_first and self.total > room and self.total != room + self.rows):
            wanted = f"{self.rows + room}, the number of past and new tokens"
            wanted += f", or {self.rows} to {room} in a cache with room for the new ones" if room >= self.rows else ""
            raise ModelError(f"total_sequence_length is {self.total}; expected {wanted}")
        if not self._is_first and self.rows > 1 and self.batch > 1:
            raise ModelError(f"{self.rows} tokens after past ones need batch size 1, but it is {self.batch}")
        self._lengths = jnp.asarray(seqlens_k).astype(jnp.int32).reshape(self.batch) + np.int32(1)
        self._past = jnp.zeros_like(self._lengths) if self._is_first else self._lengths - np.int32(self.rows)
        self.is_right = (self._lengths <= self.total) & (self._lengths > 0) & (self._past >= 0)
        if is_known(seqlens_k) and not all(0 <= each < self._room for each in seqlens_k.reshape(-1)):
            raise ModelError(f"seqlens_k is {seqlens_k}, expected numbers from 0 to {self._room - 1}")

    def positions(self, position_ids: Array | None) -> Array:
        """The positions of the new tokens, [B, S]; in prompts they count up from position_ids[0, 0]."""
        expected("position_ids", position_ids, (self.batch, None))
        if position_ids is None:
            return self._past[:, None] + np.arange(self.rows, dtype=np.int32)[None]
        if position_ids.shape[1] < self.rows:
            raise ModelError(f"position_ids has shape {position_ids.shape}, expected ({self.batch}, {self.rows})")
        given = jnp.asarray(position_ids).astype(jnp.int32)
        if self._is_first:
            given = given[:1, :1] + np.arange(self.rows, dtype=np.int32)[None]
            return jnp.broadcast_to(given, (self.batch, self.rows))
        return given[:, : self.rows]

    def behind(self, past: Array | None, new: Array) -> Array:
        """The cache [B, KV, room, H] with the new tokens after the past ones; a cache that grows is padded with zeros.

        Only the new tokens are written, so that XLA updates a cache in place if nothing reads the old cache again.
        """
        if past is None or past.ndim != 4:
            past = new[:, :, :0]
        cache = lax.pad(
            past, np.zeros((), new.dtype), [(0, 0, 0), (0, 0, 0), (0, self._room - past.shape[2], 0), (0, 0, 0)]
        )
        if self.batch == 1:
            return lax.dynamic_update_slice_in_dim(cache, new, self._past[0], 2)
        update = functools.partial(lax.dynamic_update_slice_in_dim, axis=1)
        return jax.vmap(update)(cache, new, self._past)

    def seen(self, causal: bool, window: int) -> Array:
        """Which keys a new token sees, [B, 1, S, total].

        If causal, a token sees the keys up to its own, or only the last ones in a window; otherwise it sees all keys of
        its sequence.
        """
        key, end = places(self.total, -1), self._lengths[:, None, None, None]
        place = self._past[:, None, None, None] + places(self.rows, -2)
        if not causal:
            return jnp.broadcast_to(key < end, (self.batch, 1, self.rows, self.total))
        is_seen = (key <= place) & (key < end)
        return is_seen if window < 0 else is_seen & (key > place - np.int32(window))
