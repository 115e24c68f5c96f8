"""Nodes of onnxruntime's transformer optimizer, against NumPy and onnxruntime: Attention, QAttention, embeddings."""

import jax
import numpy as np
import pytest

import jaxdml.onnx
from _onnx import attention_by_numpy, attention_cases
from _onnx.one_node_models import made
from helpers.compare import assert_same_bits
from helpers.hostile_models import refused
from helpers.marks import rest_rarely
from helpers.modes import UNOPTIMISED
from helpers.one_node import run
from jaxdml import reference
from jaxdml.errors import ModelError
from jaxdml.onnx._operators.encoders import (
    attention_with_projection,
    embed_layer_normalization,
    quantized_attention,
    quantized_embed_layer_normalization,
)

F, I32 = np.float32, np.int32
MICROSOFT = "com.microsoft"
CLOSE = 100  # decibels


def computed(function, arguments, **attributes):
    """Calls the function under jit."""
    given = {place: jax.device_put(x) for place, x in enumerate(arguments) if x is not None}

    def call(given):
        return function(*(given.get(place) for place in range(len(arguments))), **attributes)

    return jax.jit(call, compiler_options=UNOPTIMISED)(given)


def check_close(got, other, case):
    assert (got.shape, got.dtype) == (other.shape, other.dtype), case
    got, other = (np.asarray(x, np.float64) for x in (got, other))
    assert np.sum((got - other) ** 2) <= np.sum(other**2) * 10 ** (-CLOSE / 10), case


# Attention -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", rest_rarely(range(40), 1))
def test_attention_with_a_projection(seed):
    arguments, attributes = attention_cases.projected(seed, is_quantized=False)
    got = computed(attention_with_projection, arguments, **attributes)
    x, weights, bias, *rest = arguments
    projected = (x.astype(np.float64) @ weights + (0 if bias is None else bias)).astype(F)
    count = 1 if got[1] is None else 2
    others = run("Attention", arguments, ["float32"] * count, domain=MICROSOFT, **attributes)
    wanted = attention_by_numpy.with_projection(projected, *rest, **attributes)
    for one, right, other in zip(got, wanted, others, strict=False):
        check_close(one, right, attributes)
        check_close(one, other, attributes)


@pytest.mark.parametrize("seed", rest_rarely(range(40), 1))
def test_quantized_attention(seed):
    """The bits of NumPy, and of onnxruntime in the keys and values, on which no softmax acts."""
    arguments, attributes = attention_cases.projected(seed, is_quantized=True)
    x, weights, bias, x_scale, scale, mask, x_point, point, past = arguments
    got = computed(quantized_attention, arguments, **attributes)
    projected = reference.matrix_multiply_integer_to_float(x, x_scale, x_point, weights, scale, point, bias)
    wanted = attention_by_numpy.with_projection(projected, mask, past, None, **attributes)
    others = run("QAttention", arguments, ["float32"] * 2, domain=MICROSOFT, **attributes)
    for one, right, other in zip(got, wanted, others, strict=True):
        assert_same_bits(one, right, attributes)
        check_close(one, other, attributes)
    assert_same_bits(got[1], others[1], attributes)


def test_a_file_of_quantized_attention_runs_on_integers_with_prepared_weights():
    arguments, attributes = attention_cases.projected(0, is_quantized=True)
    loaded = jaxdml.onnx.load(made("QAttention", arguments, **attributes))
    assert "1 of 1 convolutions and products, 1 of 1 operators run on integers\none answer" in str(loaded)
    assert "x1:prepared" in loaded.params


X, W, BIAS = np.ones((2, 3, 6), F), np.ones((6, 24), F), np.ones(24, F)
PAST = np.ones((2, 2, 2, 5, 4), F)
ONE = np.array([1], I32)
FLOATS = (X, W, BIAS)
WRONG = [
    ((*FLOATS, *[None] * 3, ONE), {}, "past_present_share_buffer and past_sequence_length are not supported"),
    (FLOATS, {"past_present_share_buffer": 1}, "past_present_share_buffer and past_sequence_length are not supported"),
    (FLOATS, {"do_rotary": 1}, "do_rotary is not supported"),
    (FLOATS, {"rotary_embedding_dim": 32}, "do_rotary is not supported"),
    ((X[0], W, BIAS), {}, "input has shape (3, 6), expected (any, any, any)"),
    ((X, W[:5], BIAS), {}, "weights has shape (5, 24), expected (6, any)"),
    ((X, W, BIAS[:6]), {}, "bias has shape (6,), expected (24,)"),
    ((X, W[:, :23]), {}, "the number of columns of weights is 23, expected a multiple of 3"),
    (FLOATS, {"qkv_hidden_sizes": (8, 8)}, "qkv_hidden_sizes is [8, 8], expected three sizes of sum 24, the first two"),
    (FLOATS, {"qkv_hidden_sizes": (8, 8, 4)}, "qkv_hidden_sizes is [8, 8, 4], expected three sizes of sum 24"),
    (FLOATS, {"qkv_hidden_sizes": (4, 8, 12)}, "qkv_hidden_sizes is [4, 8, 12], expected three sizes of sum 24"),
    (FLOATS, {"qkv_hidden_sizes": (12, 12, 0)}, "qkv_hidden_sizes is [12, 12, 0], expected three sizes of sum 24"),
    (FLOATS, {"num_heads": 3}, "a size of queries, keys or values is 8, expected a multiple of num_heads, which is 3"),
    (FLOATS, {"num_heads": 0}, "expected a multiple of num_heads, which is 0"),
    ((*FLOATS, None, PAST), {"qkv_hidden_sizes": (6, 6, 12)}, "past needs keys and values of one size, but they have"),
    ((*FLOATS, None, PAST[:1]), {}, "past has shape (1, 2, 2, 5, 4), expected (2, 2, 2, any, 4)"),
    ((*FLOATS, np.ones((2, 1, 3, 3), I32)), {}, "mask_index has shape (2, 1, 3, 3), expected (2,) or (4,) or (8,) or"),
    ((*FLOATS, np.ones((2, 3), I32), PAST), {}, "mask_index has shape (2, 3), expected (2,) or (4,) or (8,) or (2, 8)"),
    (
        (*FLOATS, None, None, np.ones((2, 2, 3, 4), F)),
        {},
        "attention_bias has shape (2, 2, 3, 4), expected (2, 2, 3, 3)",
    ),
]


@pytest.mark.parametrize(("arguments", "attributes", "words"), WRONG, ids=lambda x: x if isinstance(x, str) else "")
def test_wrong_attention(arguments, attributes, words):
    with pytest.raises(ModelError) as caught:
        attention_with_projection(*arguments, **{"num_heads": 2} | attributes)
    assert words in str(caught.value)


S = F(1)
BYTES = (X.astype(np.uint8), W.astype(np.uint8), BIAS, S, S)
WRONG_QUANTIZED = [
    (BYTES, {"do_rotary": 1}, "do_rotary and past_present_share_buffer are not supported"),
    (BYTES, {"past_present_share_buffer": 1}, "do_rotary and past_present_share_buffer are not supported"),
    ((*BYTES[:3], BIAS, S), {}, "input_scale has shape (24,), expected () or (1,)"),
    ((*BYTES[:4], BIAS[:8]), {}, "weight_scale has shape (8,), expected () or (1,) or (24,)"),
    ((*BYTES, None, BYTES[1]), {}, "input_zero_point has shape (6, 24), expected () or (1,)"),
    ((*BYTES, None, None, BYTES[1][:, 0]), {}, "weight_zero_point has shape (6,), expected () or (1,) or (24,)"),
    ((BYTES[0], BYTES[1][:5], *BYTES[2:]), {}, "weights has shape (5, 24), expected (6, any)"),
]


@pytest.mark.parametrize(
    ("arguments", "attributes", "words"), WRONG_QUANTIZED, ids=lambda x: x if isinstance(x, str) else ""
)
def test_wrong_quantized_attention(arguments, attributes, words):
    with pytest.raises(ModelError) as caught:
        quantized_attention(*arguments, **{"num_heads": 2} | attributes)
    assert words in str(caught.value)


def test_wrong_files_of_attention():
    refused(made("QAttention", BYTES[:4], num_heads=2), "it has 4 inputs, expected 5 to 9")
    refused(made("QAttention", BYTES), "attribute 'num_heads' is missing")
    refused(made("QAttention", (X, *BYTES[1:]), num_heads=2), "input 0 is float32; supported: int8, uint8")
    refused(made("Attention", FLOATS, ("y", "z", "more"), num_heads=2), "it has 3 outputs, expected at most 2")
    wide = W.repeat(2, 1)[:, :28]
    proto = made("Attention", (X, wide), ("y", "z"), num_heads=2, qkv_hidden_sizes=[8, 8, 12])
    refused(proto, "jaxdml does not compute its output 'z'")  # keys and values of different sizes cannot be stacked


# Embeddings ----------------------------------------------------------------------------------------------------------

RANDOM = np.random.default_rng(0)
IDS, SEGMENT_IDS = RANDOM.integers(0, 20, (2, 5)).astype(I32), RANDOM.integers(0, 2, (2, 5)).astype(I32)
WORDS, PLACES, SEGMENTS, GAMMA, BETA = (
    RANDOM.normal(size=(*rows, 8)).astype(F) for rows in ((20,), (9,), (2,), (), ())
)
MASK = np.array([[1, 2, -1, 0, 0], [1, 1, 1, 0, 0]], I32)
TABLES = (WORDS, PLACES, SEGMENTS, GAMMA, BETA)
WITHOUT_SEGMENTS = (IDS, None, WORDS, PLACES, None, GAMMA, BETA)
EMBEDDED = {
    "segments": ((IDS, SEGMENT_IDS, *TABLES), {"epsilon": 0.01}),
    "a mask": ((*WITHOUT_SEGMENTS, MASK), {"mask_index_type": 1}),
    "positions": ((IDS, SEGMENT_IDS, *TABLES, None, RANDOM.integers(0, 9, (2, 5)).astype(I32)), {}),
    "positions for all": ((*WITHOUT_SEGMENTS, MASK, RANDOM.integers(0, 9, (1, 5)).astype(I32)), {}),
}


@pytest.mark.parametrize("name", rest_rarely(EMBEDDED, 1))
def test_embeddings(name):
    arguments, attributes = EMBEDDED[name]
    got = computed(embed_layer_normalization, arguments, **attributes)
    types = ["float32", "int32", "float32"]
    y, counts, total = run("EmbedLayerNormalization", arguments, types, domain=MICROSOFT, **attributes)
    check_close(got[0], y, name)
    assert_same_bits(got[1], counts, name)
    assert_same_bits(got[2], total, name)


def quantized_tables(dtype, shape, has_segments):
    low = np.iinfo(dtype).min
    tables = [(table * 40 + 100 + low).round().clip(low, low + 255).astype(dtype) for table in TABLES]
    scales = [RANDOM.uniform(0.01, 0.1, shape).astype(F) for _ in TABLES]
    points = [RANDOM.integers(low + 90, low + 110, shape).astype(dtype) for _ in TABLES]
    if not has_segments:
        tables[2] = scales[2] = points[2] = None
    return IDS, SEGMENT_IDS if has_segments else None, *tables, MASK, *scales, *points


QUANTIZED = [(np.uint8, (), True), (np.int8, (1,), True), (np.uint8, (), False)]


@pytest.mark.parametrize("case", rest_rarely(QUANTIZED, 0))
def test_quantized_embeddings(case):
    arguments = quantized_tables(*case)
    y, counts = run("QEmbedLayerNormalization", arguments, ["float32", "int32"], domain=MICROSOFT)
    got = computed(quantized_embed_layer_normalization, arguments)
    check_close(got[0], y, arguments)
    assert_same_bits(got[1], counts)


def test_ids_out_of_bounds_are_clamped():
    """Negative ids, too."""
    words, *others = TABLES
    ids = np.int32([[1, -1, 0], [len(words), 999, -999]])
    outside, inside = (
        computed(embed_layer_normalization, (given, np.zeros_like(ids), words, *others))
        for given in (ids, ids.clip(0, len(words) - 1))
    )
    for one, other in zip(outside, inside, strict=True):
        assert_same_bits(one, other)


def replaced(arguments, **others):
    """The arguments, some of which are replaced, by position."""
    return [others.get(f"at_{place}", x) for place, x in enumerate(arguments)]


ALL = EMBEDDED["positions"][0]
WRONG_EMBEDDED = [
    ({"at_0": IDS[0]}, "input_ids has shape (5,), expected (any, any)"),
    ({"at_1": None}, "segment_embedding and segment_ids must be given together"),
    ({"at_4": None}, "segment_embedding and segment_ids must be given together"),
    ({"at_1": IDS[:1]}, "segment_ids has shape (1, 5), expected (2, 5)"),
    ({"at_2": WORDS[:, :7]}, "word_embedding has shape (20, 7), expected (any, 8)"),
    ({"at_3": PLACES[0]}, "position_embedding has shape (8,), expected (any, 8)"),
    ({"at_4": SEGMENTS[:, :7]}, "segment_embedding has shape (2, 7), expected (any, 8)"),
    ({"at_5": GAMMA[None]}, "gamma has shape (1, 8), expected (any,)"),
    ({"at_6": BETA[:7]}, "beta has shape (7,), expected (8,)"),
    ({"at_7": MASK[:1]}, "mask has shape (1, 5), expected (2, 5)"),
    ({"at_8": IDS[:, :4]}, "position_ids has shape (2, 4), expected (2, 5) or (1, 5)"),
    ({"at_3": PLACES[:4], "at_8": None}, "input_ids has 5 columns, but position_embedding only 4 rows"),
]


@pytest.mark.parametrize(("others", "words"), WRONG_EMBEDDED, ids=lambda x: x if isinstance(x, str) else "")
def test_wrong_embeddings(others, words):
    with pytest.raises(ModelError) as caught:
        embed_layer_normalization(*replaced(ALL, **others))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"at_10": None}, "segment_embedding and segment_embedding_scale must be given together"),
        ({"at_15": None}, "segment_embedding and segment_embedding_zero_point must be given together"),
        ({"at_8": GAMMA}, "a scale has shape (8,), expected () or (1,)"),
        ({"at_13": GAMMA}, "a zero point has shape (8,), expected () or (1,)"),
    ],
)
def test_wrong_quantized_embeddings(others, words):
    with pytest.raises(ModelError) as caught:
        quantized_embed_layer_normalization(*replaced(quantized_tables(np.uint8, (), True), **others))
    assert words in str(caught.value)
