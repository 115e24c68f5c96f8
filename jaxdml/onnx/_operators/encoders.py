"""Operators into which ONNX Runtime's transformer optimizer fuses encoders such as BERT: embeddings and attention.

Attention here includes the projection of its input to queries, keys and values; QAttention computes that product on
integers. Formulas and the meaning of masks are those of ONNX Runtime's CPU kernels.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdml._quantized import directml
from jaxdml._quantized.kinds import prepared_matrix
from jaxdml.errors import ModelError
from jaxdml.onnx._operators._arrays import EXACT, Array
from jaxdml.onnx._operators.attention import (
    INT32,
    OF_HIDDEN,
    REAL,
    behind_past,
    divisible,
    expected,
    from_heads,
    in_heads,
    places,
    results_of_heads,
    sum_with_bias,
    together,
)  # fmt: skip
from jaxdml.onnx._operators.indexing import gather
from jaxdml.onnx._operators.normalization import layer_normalization
from jaxdml.onnx._table import BYTE, MICROSOFT, SCALE, operator

# Attention -----------------------------------------------------------------------------------------------------------


@operator("Attention", domain=MICROSOFT, types=(REAL, REAL, REAL, INT32, REAL, REAL, INT32), has_rule=False)
def attention_with_projection(
    x: Array, weights: Array, bias: Array | None = None, mask_index: Array | None = None, past: Array | None = None,
    attention_bias: Array | None = None, past_sequence_length: Array | None = None, *, num_heads: int,
    do_rotary: int | None = None, mask_filter_value: float = OF_HIDDEN, past_present_share_buffer: int | None = None,
    qkv_hidden_sizes: tuple[int, ...] | None = None, rotary_embedding_dim: int | None = None,
    scale: float | None = None, unidirectional: int = 0,
) -> tuple[Array, Array]:  # fmt: skip
    """Attention among the tokens x [B, S, I], projected by weights [I, O]; and past and new keys and values.

    The O columns are queries, keys and values, with the sizes `qkv_hidden_sizes`, or a third each.
    """
    if past_sequence_length is not None or past_present_share_buffer:
        raise ModelError("past_present_share_buffer and past_sequence_length are not supported; give the input past")
    if do_rotary or rotary_embedding_dim:
        raise ModelError("do_rotary is not supported; ONNX Runtime's CPU kernel has no rotary embedding here, either")
    sizes = _sizes(x, weights, bias, past, num_heads, qkv_hidden_sizes)
    projected = jnp.matmul(x, weights, precision=EXACT, preferred_element_type=jnp.float32).astype(x.dtype)
    projected = projected if bias is None else sum_with_bias(projected, bias)
    return _attended(
        projected, sizes, num_heads, mask_index, past, attention_bias, mask_filter_value, scale, unidirectional
    )


@operator(
    "QAttention", domain=MICROSOFT, types=(BYTE, BYTE, SCALE, SCALE, SCALE, INT32, BYTE, BYTE, SCALE),
    kind="float_product", is_quantized=True, uniform=(7,), prepare={(1,): prepared_matrix},
)  # fmt: skip
def quantized_attention(
    x: Array, weights: Array, bias: Array, x_scale: Array, w_scale: Array, mask_index: Array | None = None,
    x_zero_point: Array | None = None, w_zero_point: Array | None = None, past: Array | None = None, *, num_heads: int,
    do_rotary: int | None = None, mask_filter_value: float = OF_HIDDEN, past_present_share_buffer: int | None = None,
    scale: float | None = None, unidirectional: int = 0,
) -> tuple[Array, Array]:  # fmt: skip
    """`attention_with_projection` of quantized x, by quantized weights; all other values are floats."""
    if do_rotary or past_present_share_buffer:
        raise ModelError("do_rotary and past_present_share_buffer are not supported")
    sizes = _sizes(x, weights, bias, past, num_heads, None)
    for name, parameter in (("input_scale", x_scale), ("input_zero_point", x_zero_point)):
        expected(name, parameter, (), (1,))
    for name, parameter in (("weight_scale", w_scale), ("weight_zero_point", w_zero_point)):
        expected(name, parameter, (), (1,), (sum(sizes),))
    projected = directml.float_product(x, weights, x_scale, w_scale, x_zero_point, w_zero_point, bias)
    return _attended(projected, sizes, num_heads, mask_index, past, None, mask_filter_value, scale, unidirectional)


def _sizes(
    x: Array, weights: Array, bias: Array | None, past: Array | None, heads: int, given: Sequence[int] | None
) -> list[int]:  # fmt: skip
    """The numbers of columns that are queries, keys and values, after a check of the shapes."""
    expected("input", x, (None, None, None))
    expected("weights", weights, (x.shape[2], None))
    columns = weights.shape[1]
    expected("bias", bias, (columns,))
    sizes = list(given) if given else [divisible("the number of columns of weights", columns, "3", 3)] * 3
    if len(sizes) != 3 or sum(sizes) != columns or sizes[0] != sizes[1] or min(sizes) < 1:
        raise ModelError(f"qkv_hidden_sizes is {sizes}, expected three sizes of sum {columns}, the first two equal")
    for size in sizes:
        divisible("a size of queries, keys or values", size, "num_heads", heads)
    if past is not None and sizes[1] != sizes[2]:
        raise ModelError(f"past needs keys and values of one size, but they have {sizes[1]} and {sizes[2]}")
    expected("past", past, (2, x.shape[0], heads, None, sizes[1] // heads))
    return sizes


def _attended(
    projected: Array, sizes: Sequence[int], heads: int, mask_index: Array | None, past: Array | None,
    attention_bias: Array | None, mask_filter_value: float, scale: float | None, unidirectional: int,
) -> tuple[Array, Array]:  # fmt: skip
    parts = jnp.split(projected, [sizes[0], sizes[0] + sizes[1]], axis=2)
    query, key, value = (in_heads(part, heads) for part in parts)
    batch, rows, _ = projected.shape
    past_key, past_value = (None, None) if past is None else (past[0], past[1])
    key, value, count = behind_past(past_key, past_value, key, value)
    hidden = _hidden(mask_index, mask_filter_value, (batch, rows, key.shape[2]))
    result = results_of_heads(
        query, key, value, past=count, hidden=hidden, attention_bias=attention_bias, scale=scale,
        unidirectional=unidirectional,
    )  # fmt: skip
    present = jnp.stack([key, value]) if sizes[1] == sizes[2] else None
    return from_heads(result("output")), present


def _hidden(mask: Array | None, value: float, shape: tuple[int, int, int]) -> Array | None:
    """The numbers that mask_index adds to scores: `value` for keys that it hides, else 0."""
    batch, _, total = shape
    if mask is None or mask.shape in ((1, 1), (batch, 1)):  # ONNX Runtime ignores such a mask
        return None
    expected("mask_index", mask, (batch,), (2 * batch,), (3 * batch + 2,), (batch, total), shape)
    if mask.ndim > 1:
        is_shown = (mask > 0).reshape(batch, 1, -1, total)
    else:  # the ends of the sequences; a mask of 2 * batch numbers then has their starts
        place, end = places(total, -1), mask[:batch].reshape(batch, 1, 1, 1)
        is_shown = place < end
        if mask.shape == (2 * batch,):
            is_shown &= place >= mask[batch:].reshape(batch, 1, 1, 1)
    return jnp.where(is_shown, np.float32(0), np.float32(value))


# Embeddings ----------------------------------------------------------------------------------------------------------


@operator("EmbedLayerNormalization", domain=MICROSOFT, types=(INT32, INT32, *[REAL] * 5, INT32, INT32))
def embed_layer_normalization(
    input_ids: Array, segment_ids: Array | None, words: Array, positions: Array, segments: Array | None, gamma: Array,
    beta: Array, mask: Array | None = None, position_ids: Array | None = None, *,
    epsilon: float = 1e-12, mask_index_type: int | None = None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Layer normalization of the sum of embeddings; the number of ones in each row of the mask, or 0; and the sum.

    Without position_ids, the position of a token is its place in the sequence. `mask_index_type` has no effect.
    """
    rows = _rows((words, positions, segments), (input_ids, position_ids, segment_ids), gamma)
    return _normalized(rows, gamma, beta, input_ids, mask, epsilon)


@operator(
    "QEmbedLayerNormalization", domain=MICROSOFT,
    types=(INT32, INT32, *[BYTE] * 5, INT32, *[SCALE] * 5, *[BYTE] * 5),
)  # fmt: skip
def quantized_embed_layer_normalization(
    input_ids: Array, segment_ids: Array | None, words: Array, positions: Array, segments: Array | None, gamma: Array,
    beta: Array, mask: Array | None, word_scale: Array, position_scale: Array, segment_scale: Array | None,
    gamma_scale: Array, beta_scale: Array, word_zero_point: Array, position_zero_point: Array,
    segment_zero_point: Array | None, gamma_zero_point: Array, beta_zero_point: Array, *, epsilon: float = 1e-12,
) -> tuple[Array, Array]:  # fmt: skip
    """`embed_layer_normalization` of quantized embeddings, gamma and beta; two outputs."""
    segment_grid = segment_scale, segment_zero_point
    together(segment_embedding=segments, segment_embedding_scale=segment_scale)
    together(segment_embedding=segments, segment_embedding_zero_point=segment_zero_point)
    rows = _rows((words, positions, segments), (input_ids, None, segment_ids), gamma)
    grids: Any = ((word_scale, word_zero_point), (position_scale, position_zero_point), segment_grid)
    floats = [_dequantized(x, *grid) for x, grid in zip(rows, grids, strict=False)]
    gamma, beta = _dequantized(gamma, gamma_scale, gamma_zero_point), _dequantized(beta, beta_scale, beta_zero_point)
    return _normalized(floats, gamma, beta, input_ids, mask, epsilon)[:2]


def _dequantized(x: Array, scale: Array, zero_point: Array) -> Array:
    for name, parameter in (("scale", scale), ("zero point", zero_point)):
        expected(f"a {name}", parameter, (), (1,))
    return directml.to_floats(x, scale, zero_point, axis=0)


def _rows(
    tables: tuple[Array, Array, Array | None], ids: tuple[Array, Array | None, Array | None], gamma: Array
) -> list[Array]:  # fmt: skip
    """The rows of each table [rows, size] at its ids [B, S]; ids out of bounds are clamped."""
    (words, positions, segments), (input_ids, position_ids, segment_ids) = tables, ids
    together(segment_embedding=segments, segment_ids=segment_ids)
    expected("input_ids", input_ids, (None, None))
    batch, length = input_ids.shape
    expected("position_ids", position_ids, (batch, length), (1, length))
    expected("segment_ids", segment_ids, (batch, length))
    for name, table in (("word", words), ("position", positions), ("segment", segments)):
        expected(f"{name}_embedding", table, (None, gamma.size))
    if position_ids is None:
        if length > positions.shape[0]:
            raise ModelError(f"input_ids has {length} columns, but position_embedding only {positions.shape[0]} rows")
        position_ids = np.arange(length, dtype=np.int32)[None]
    found = [_at(words, input_ids), jnp.broadcast_to(_at(positions, position_ids), (batch, length, gamma.size))]
    return found if segments is None else [*found, _at(segments, segment_ids)]


def _at(table: Array, ids: Array | None) -> Array:
    """The rows at ids, which are clamped; `gather` alone would count negative ids from the end."""
    return gather(table, jnp.clip(jnp.asarray(ids), 0, table.shape[0] - 1))


def _normalized(
    rows: Sequence[Array], gamma: Array, beta: Array, input_ids: Array, mask: Array | None, epsilon: float
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Layer normalization of the sum of rows, added in order; the ones in each row of the mask, or 0; and the sum."""
    expected("gamma", gamma, (None,))
    expected("beta", beta, gamma.shape)
    expected("mask", mask, input_ids.shape)
    total = functools.reduce(sum_with_bias, rows)
    y, *_ = layer_normalization(total, gamma, beta, epsilon=epsilon)
    counts = jnp.zeros(input_ids.shape[:1], jnp.int32) if mask is None else jnp.sum(mask == 1, 1, dtype=jnp.int32)
    return y, counts, total
