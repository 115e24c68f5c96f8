"""The attention operators in NumPy, around `jaxdml.reference.attention`: their masks are computed key by key."""

import numpy as np

from jaxdml.reference import floats
from jaxdml.reference.attention import attention as core

F = np.float32
LOWEST = np.finfo(F).min


def split(x, count):
    """[B, S, count * H] as [B, count, S, H]."""
    return np.stack(np.split(x, count, 2), 1)


def joined(x):
    """[B, N, S, H] as [B, S, N * H]."""
    return np.concatenate(list(np.moveaxis(x, 1, 0)), -1)


def scale_of(given, size):
    return given or 1 / np.sqrt(size)


def seen_by(sees, batch, rows, total):
    return np.array([[[[sees(b, i, j) for j in range(total)] for i in range(rows)]] for b in range(batch)])


def behind(past_k, past_v, k, v):
    """Keys and values after the past ones, and the number of past ones."""
    if past_k is None:
        return k, v, 0
    return np.concatenate([past_k, k], 2), np.concatenate([past_v, v], 2), past_k.shape[2]


def attention(
    q, k, v, mask=None, past_k=None, past_v=None, lengths=None, *, is_causal=0, softcap=0.0, scale=None,
    left_window_size=-1, right_window_size=-1, q_num_heads=None, kv_num_heads=None, qk_matmul_output_mode=0,
):  # fmt: skip
    """ONNX's operator: four outputs."""
    is_flat = q.ndim == 3
    if is_flat:
        q, k, v = split(q, q_num_heads), split(k, kv_num_heads), split(v, kv_num_heads)
    k, v, past = behind(past_k, past_v, k, v)
    batch, _, rows, size = q.shape
    total = k.shape[2]

    def sees(b, i, j):
        place = i + (past if lengths is None else lengths[b] - rows)
        is_inside = lengths is None or j < lengths[b]
        is_last = rows == 1 and past > 0 and max(left_window_size, right_window_size) < 0
        is_inside &= not is_causal or j <= place or is_last
        is_inside &= left_window_size < 0 or j >= place - left_window_size
        return is_inside and (right_window_size < 0 or j <= place + right_window_size)

    seen, bias = seen_by(sees, batch, rows, total), mask
    if mask is not None and mask.dtype == bool:
        seen, bias = seen & mask, None
    found = core(q, k, v, scale=scale_of(scale, size), softcap=softcap, seen=seen, bias=bias)
    scores = [found[name] for name in ("scores", "capped", "masked", "weights")][qk_matmul_output_mode]
    return joined(found["output"]) if is_flat else found["output"], k, v, scores


def multi_head_attention(
    q, k, v, bias=None, mask=None, added=None, past_k=None, past_v=None, *, num_heads, mask_filter_value=-10000.0,
    scale=None, unidirectional=0,
):  # fmt: skip
    """onnxruntime's operator: four outputs."""
    if bias is not None:
        parts = np.split(bias, [q.shape[2], 2 * q.shape[2]])
        q, k, v = (floats.add(x, np.broadcast_to(part, x.shape)) if x.ndim == 3 else x
                   for x, part in zip((q, k, v), parts, strict=True))  # fmt: skip
    q, k, v = (split(x, num_heads) if x.ndim == 3 else x for x in (q, k, v))
    k, v, past = behind(past_k, past_v, k, v)
    batch, _, rows, size = q.shape
    total = k.shape[2]

    def shows(b, i, j):
        if mask is None:
            return True
        if mask.ndim == 1:
            return j < mask[b]
        return (mask[b, j] if mask.ndim == 2 else mask[b, i, j]) > 0

    filtered = np.where(seen_by(shows, batch, rows, total), F(0), F(mask_filter_value))
    shape = (batch, num_heads, rows, total)
    both = filtered if added is None else floats.add(*(np.broadcast_to(x, shape) for x in (added, filtered)))
    seen = seen_by(lambda b, i, j: not unidirectional or j <= i + past or i == rows - 1, batch, rows, total)
    found = core(q, k, v, scale=scale_of(scale, size), seen=seen, bias=both)
    return joined(found["output"]), k, v, found["masked"]


def rotated(x, cos, sin, is_interleaved):
    """Pairs of one head [S, H] turned by the angles of each token."""
    result, pairs = x.copy(), cos.shape[1]
    for pair in range(pairs):
        one, two = (2 * pair, 2 * pair + 1) if is_interleaved else (pair, pair + pairs)
        a, b, c, s = x[:, one], x[:, two], cos[:, pair], sin[:, pair]
        result[:, one] = floats.sub(floats.mul(a, c), floats.mul(b, s))
        result[:, two] = floats.add(floats.mul(a, s), floats.mul(b, c))
    return result


def group_query_attention(
    query, key, value, past_k, past_v, seqlens_k, total, cos=None, sin=None, positions=None, bias=None, sink=None, *,
    num_heads, kv_num_heads, do_rotary=0, rotary_interleaved=0, softcap=0.0, smooth_softmax=-1, scale=None, causal=1,
    local_window_size=-1, qk_output=0,
):  # fmt: skip
    """onnxruntime's operator: four outputs."""
    total = int(total[0])
    if key is None:
        heads = split(query, num_heads + 2 * kv_num_heads)
        q, k, v = np.split(heads, [num_heads, num_heads + kv_num_heads], 1)
    else:
        q, k, v = split(query, num_heads), split(key, kv_num_heads), split(value, kv_num_heads)
    batch, _, rows, size = q.shape
    room = max(total, 0 if past_k is None else past_k.shape[2])
    caches = np.zeros((2, batch, kv_num_heads, room, size), F)
    for cache, past in zip(caches, (past_k, past_v), strict=True):
        if past is not None:
            cache[:, :, : past.shape[2]] = past
    starts = [0 if rows == total else length + 1 - rows for length in seqlens_k]
    for b, start in enumerate(starts):
        if do_rotary:
            first = 0 if positions is None else positions[0, 0]
            own = start + np.arange(rows) if positions is None else positions[b]
            own = first + np.arange(rows) if rows == total else own
            for x in (q[b], k[b]):
                for head in range(len(x)):
                    x[head] = rotated(x[head], cos[own], sin[own], rotary_interleaved)
        for cache, new in zip(caches, (k, v), strict=True):
            cache[b, :, start : start + rows] = new[b]

    def sees(b, i, j):
        place = starts[b] + i
        is_near = local_window_size < 0 or j > place - local_window_size
        return j <= seqlens_k[b] and (not causal or (j <= place and is_near))

    if sink is None and smooth_softmax == 1:
        sink = np.zeros(num_heads, F)
    seen = seen_by(sees, batch, rows, total)
    keys, values = (cache[:, :, :total] for cache in caches)
    options = {"scale": scale_of(scale, size), "softcap": max(softcap, 0), "seen": seen, "bias": bias, "sink": sink}
    found = core(q, keys, values, **options)
    scores = found["weights"] if qk_output == 2 else np.where(found["masked"] == LOWEST, F(0), found["masked"])
    return joined(found["output"]), *caches, scores


def with_projection(projected, mask, past, added, *, num_heads, qkv_hidden_sizes=None, **attributes):
    """onnxruntime's operator, for a projection [B, S, queries and keys and values]: two outputs."""
    batch, rows, columns = projected.shape
    sizes = qkv_hidden_sizes or [columns // 3] * 3
    q, k, v = np.split(projected, [sizes[0], sizes[0] + sizes[1]], 2)
    total = rows + (0 if past is None else past.shape[3])
    if mask is not None and mask.ndim == 1:
        starts = mask[batch:] if mask.size == 2 * batch else np.zeros(batch, int)
        mask = np.array([[[starts[b] <= j < mask[b] for j in range(total)]] * rows for b in range(batch)])
    elif mask is not None and mask.shape[1:] == (1,):
        mask = None
    pasts = (None, None) if past is None else past
    y, k, v, _ = multi_head_attention(q, k, v, None, mask, added, *pasts, num_heads=num_heads, **attributes)
    return y, np.stack([k, v]) if k.shape == v.shape else None
