"""Random calls of the attention operators: inputs and attributes that onnxruntime supports on a CPU."""

import numpy as np

F, I32 = np.float32, np.int32


class Chooser:
    """Random numbers, and a choice among values."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def floats(self, *shape):
        return self.rng.normal(size=shape).astype(F)

    def integer(self, low, high):
        return int(self.rng.integers(low, high))

    def pick(self, *values):
        return values[self.integer(0, len(values))]

    def maybe(self, attributes, name, *values):
        """Gives an attribute one of the values, in half of the cases."""
        if self.pick(True, False):
            attributes[name] = self.pick(*values)


def attention(seed):
    """ONNX's operator: arguments, attributes, the opset, and the number of outputs."""
    c, attributes = Chooser(seed), {}
    batch, groups, opset = c.pick(1, 2), c.pick(1, 2), c.pick(23, 24, 25)
    heads, size, wide = groups * c.pick(1, 3), c.pick(4, 8, 16), c.pick(4, 8)
    rows, length, past = c.integer(1, 7), c.integer(1, 8), c.pick(0, c.integer(1, 5))
    total = past + length
    parts = [c.floats(batch, heads, rows, size) * F(2), c.floats(batch, groups, length, size)]
    parts.append(c.floats(batch, groups, length, wide))
    mask = None
    if kind := c.pick("", "bool", "float"):
        shapes = ((rows, total), (1, rows, total), (heads, rows, total), (1, 1, rows, total), (batch, 1, rows, total))
        mask = c.floats(*c.pick(*shapes, (batch, heads, rows, total)))
        if kind == "bool":
            mask = mask > -0.5
        elif c.pick(True, False):
            mask[mask < -1] = c.pick(-np.inf, np.finfo(F).min)
    lengths = c.rng.integers(0, total + 1, batch) if opset > 23 and not past and c.pick(True, False) else None
    c.maybe(attributes, "is_causal", 1)
    c.maybe(attributes, "softcap", 1.5, 0.0)
    c.maybe(attributes, "scale", 0.4)
    if opset >= 25:
        c.maybe(attributes, "left_window_size", -1, 0, 1, 3)
        c.maybe(attributes, "right_window_size", -1, 0, 1, 3)
    if c.pick(True, False):
        parts = [x.swapaxes(1, 2).reshape(batch, x.shape[2], -1) for x in parts]
        attributes |= {"q_num_heads": heads, "kv_num_heads": groups}
    pasts = [c.floats(batch, groups, past, size), c.floats(batch, groups, past, wide)] if past else [None, None]
    outputs = 1  # with more outputs, onnxruntime rejects nonpad_kv_seqlen
    if lengths is None:
        outputs, attributes["qk_matmul_output_mode"] = 4, c.pick(0, 1, 2, 3)
    more = () if opset == 23 else (lengths,)
    return (*parts, mask, *pasts, *more), attributes, opset, outputs


def multi_head_attention(seed):
    """onnxruntime's operator: arguments and attributes."""
    c = Chooser(seed)
    batch, heads, size, wide = c.pick(1, 2), c.pick(1, 3), c.pick(4, 8, 16), c.pick(4, 8)
    rows, length, past = c.integer(1, 7), c.integer(1, 8), c.pick(0, c.integer(1, 5))
    is_split = not past and c.pick(True, False, False)  # into heads
    wide = size if past or is_split else wide
    total, width, attributes = past + length, heads * size, {"num_heads": heads}
    query = c.floats(batch, rows, width) * F(2)
    shapes = [(batch, heads, length, n) if is_split else (batch, length, heads * n) for n in (size, wide)]
    key, value = (c.floats(*shape) for shape in shapes)
    bias = c.pick(None, c.floats(2 * width + heads * wide))
    masks = (
        None,
        c.rng.integers(1, total + 1, batch).astype(I32),
        np.concatenate([c.rng.integers(1, total + 1, batch), c.rng.integers(0, 3, 2 * batch + 2)]).astype(I32),
        *((c.floats(*shape) > 0).astype(I32) for shape in ((batch, total), (batch, rows, total))),
    )
    mask = c.pick(*masks)
    if mask is not None and mask.ndim > 1:
        mask[..., 0] = 1
    added = c.pick(None, c.floats(c.pick(1, batch), c.pick(1, heads), rows, total))
    c.maybe(attributes, "unidirectional", 1)
    c.maybe(attributes, "mask_filter_value", -1.0, -10000.0)
    c.maybe(attributes, "scale", 0.4, 0.0)
    pasts = [c.floats(batch, heads, past, n) for n in (size, wide)] if past else [None, None]
    return (query, key, value, bias, mask, added, *pasts), attributes


KINDS = ("prompt", "prompt with room", "grown", "grown by several", "room", "room for several")


def group_query_attention(seed):
    """onnxruntime's operator: arguments, attributes, and how many tokens of each sequence count."""
    c, attributes = Chooser(seed), {}
    kind = KINDS[seed % len(KINDS)]
    batch = 1 if "several" in kind else c.pick(1, 2, 3)
    groups, size, past = c.pick(1, 2, 3), c.pick(16, 32, 64), c.integer(1, 9)
    heads, rows = groups * c.pick(1, 2, 4), 1 if kind in ("grown", "room") else c.integer(2, 9)
    counts, room, total = np.full(batch, rows), past, past + rows
    if kind.startswith("prompt"):
        total, lengths = rows, c.rng.integers(1, rows + 1, batch)
        counts, room = lengths, rows + c.integer(0, 5) if "room" in kind else 0
    elif kind.startswith("grown"):
        lengths = np.full(batch, total)
    else:
        room = past + rows + c.integer(1, 6)
        lengths, total = c.rng.integers(rows, total + 1, batch), c.pick(total, room)
    parts = [c.floats(batch, rows, heads * size) * F(2), *(c.floats(batch, rows, groups * size) for _ in range(2))]
    if c.pick(True, False):
        parts = [np.concatenate(parts, 2), None, None]
    caches = [c.floats(batch, groups, room, size) if room else None for _ in range(2)]
    attributes |= {"num_heads": heads, "kv_num_heads": groups}
    angles, positions = [None, None], None
    if c.pick(True, False):
        turns = c.rng.uniform(0, 6, (total + 9, c.pick(*(n for n in (8, 16, 32) if n <= size // 2))))
        angles = [np.cos(turns).astype(F), np.sin(turns).astype(F)]
        attributes |= {"do_rotary": 1, "rotary_interleaved": c.pick(0, 1)}
        positions = c.pick(None, c.rng.integers(0, 9, (batch, rows)))
    bias = c.pick(None, c.floats(c.pick(1, batch), c.pick(1, heads), rows, total))
    sink = c.pick(None, None, c.floats(heads))
    c.maybe(attributes, "softcap", 0.0, 2.0, -1.0, 30.0)
    c.maybe(attributes, "smooth_softmax", -1, 0, 1)
    c.maybe(attributes, "scale", 0.0, 0.3, 1.0)
    c.maybe(attributes, "causal", 0)
    if attributes.get("causal", 1):
        c.maybe(attributes, "local_window_size", 0, 1, 2, 4, 100)
    if c.pick(True, False):
        attributes["qk_output"] = c.pick(1, 2)
    lengths_and_total = ((lengths - 1).astype(I32), np.array([total], I32))
    return (*parts, *caches, *lengths_and_total, *angles, positions, bias, sink), attributes, counts


def projected(seed, is_quantized):
    """onnxruntime's operator, with a projection: arguments and attributes."""
    c, attributes = Chooser(seed), {}
    batch, heads, size, inner = c.pick(1, 2), c.pick(1, 3), c.pick(4, 8), c.pick(6, 16)
    rows, past = c.integer(1, 7), c.pick(0, c.integer(1, 5))
    total, width = past + rows, heads * size
    sizes = [width] * 3
    if not is_quantized and not past and c.pick(True, False):
        sizes[2] = heads * c.pick(4, 8)
        attributes["qkv_hidden_sizes"] = sizes
    columns = sum(sizes)
    mask = c.pick(
        None,
        c.rng.integers(1, total + 1, batch).astype(I32),
        np.concatenate([c.rng.integers(1, total + 1, batch), np.zeros(batch)]).astype(I32),
        np.concatenate([np.full(batch, total), c.rng.integers(0, total, batch)]).astype(I32),
        np.concatenate([c.rng.integers(1, total + 1, batch), c.rng.integers(0, 3, 2 * batch + 2)]).astype(I32),
        np.zeros((c.pick(1, batch), 1), I32),
        *((c.floats(*shape) > 0).astype(I32) for shape in ((batch, total), (batch, rows, total))),
    )
    if mask is not None and mask.ndim > 1 and mask.shape[-1] > 1:
        mask[..., 0] = 1
    c.maybe(attributes, "unidirectional", 1)
    c.maybe(attributes, "mask_filter_value", -1.0, -10000.0)
    c.maybe(attributes, "scale", 0.4, 0.0)
    attributes["num_heads"] = heads
    past = c.floats(2, batch, heads, past, size) if past else None
    if not is_quantized:
        bias = c.pick(None, c.floats(columns))
        added = c.pick(None, c.floats(c.pick(1, batch), c.pick(1, heads), rows, total))
        added = None if past is not None else added  # onnxruntime does not support both together
        return (c.floats(batch, rows, inner), c.floats(inner, columns), bias, mask, past, added), attributes
    x, weights = c.rng.integers(0, 256, (batch, rows, inner)), c.rng.integers(0, 256, (inner, columns))
    shape = c.pick((), (1,), (columns,))
    scale, point = c.rng.uniform(0.001, 0.01, shape).astype(F), c.rng.integers(120, 130, shape).astype(np.uint8)
    points = c.pick((None, None), (np.array(120, np.uint8), point))
    quantized = x.astype(np.uint8), weights.astype(np.uint8), c.floats(columns), F(0.02), scale
    return (*quantized, mask, *points, past), attributes
