"""Attention, MultiHeadAttention and GroupQueryAttention: the bits of NumPy, close to onnxruntime, errors in words."""

import re
from functools import partial

import jax
import numpy as np
import pytest
from onnx import helper

import jaxdml.onnx
from _onnx import attention_by_numpy, attention_cases
from helpers.compare import assert_same_bits
from helpers.hostile_models import constant, model
from helpers.marks import rest_rarely
from helpers.modes import UNOPTIMISED
from helpers.one_node import run
from jaxdml.errors import ModelError
from jaxdml.onnx._operators.attention import attention, multi_head_attention
from jaxdml.onnx._operators.group_query_attention import group_query_attention

F, I32 = np.float32, np.int32
MICROSOFT = "com.microsoft"
CLOSE = 100  # decibels


def computed(function, arguments, known=(), **attributes):
    """Calls the function under jit; inputs whose values it must know are constants."""
    given = {place: x for place, x in enumerate(arguments) if x is not None and place not in known}

    def call(given):
        return function(*(given.get(place, x) for place, x in enumerate(arguments)), **attributes)

    return jax.jit(call, compiler_options=UNOPTIMISED)({place: jax.device_put(x) for place, x in given.items()})


def check_close(got, other, case):
    """At least 100 dB; LOWEST, which may be -inf in onnxruntime, is compared as 0."""
    got, other = (np.where(np.abs(x) > 3e38, 0, np.asarray(x, np.float64)) for x in (got, other))
    assert np.sum((got - other) ** 2) <= np.sum(other**2) * 10 ** (-CLOSE / 10), case


def check_same(got, wanted, case):
    for place, (one, right) in enumerate(zip(got, wanted, strict=False)):
        assert_same_bits(one, right, f"output {place} of {case}")


def seeds(count):
    return pytest.mark.parametrize("seed", rest_rarely(range(count), 1))


@seeds(40)
def test_attention(seed):
    arguments, attributes, opset, outputs = attention_cases.attention(seed)
    got = computed(partial(attention, output_count=outputs), arguments, **attributes)[:outputs]
    check_same(got, attention_by_numpy.attention(*arguments, **attributes), attributes)
    for place, other in enumerate(run("Attention", arguments, ["float32"] * outputs, opset=opset, **attributes)):
        check_close(got[place], other, (place, attributes))


@seeds(40)
def test_multi_head_attention(seed):
    arguments, attributes = attention_cases.multi_head_attention(seed)
    got = computed(partial(multi_head_attention, output_count=4), arguments, **attributes)
    check_same(got, attention_by_numpy.multi_head_attention(*arguments, **attributes), attributes)
    others = run("MultiHeadAttention", arguments, ["float32"] * 4, domain=MICROSOFT, **attributes)
    for place, other in enumerate(others):
        check_close(got[place], other, (place, attributes))


@seeds(60)
def test_group_query_attention(seed):
    arguments, attributes, counts = attention_cases.group_query_attention(seed)
    outputs = 4 if "qk_output" in attributes else 3
    call = partial(group_query_attention, output_count=outputs)
    got = [np.asarray(x) for x in computed(call, arguments, known=(6,), **attributes)][:outputs]
    check_same(got, attention_by_numpy.group_query_attention(*arguments, **attributes), attributes)
    others = run("GroupQueryAttention", arguments, ["float32"] * outputs, domain=MICROSOFT, **attributes)
    for sequence, count in enumerate(counts):  # tokens after those that count have arbitrary values
        check_close(got[0][sequence, :count], others[0][sequence, :count], attributes)
        end = int(arguments[5][sequence]) + 1  # onnxruntime clears the rest, unless caches are shared
        for one, other in zip(got[1:3], others[1:3], strict=True):
            check_close(one[sequence, :, :end], other[sequence, :, :end], attributes)
        if outputs == 4:
            check_close(got[3][sequence, :, :count], others[3][sequence, :, :count], attributes)


@pytest.mark.parametrize("function", [attention, multi_head_attention])
def test_scores_are_computed_only_for_nodes_that_have_them(function):
    heads = {"q_num_heads": 2, "kv_num_heads": 2} if function is attention else {"num_heads": 2}
    x = np.ones((1, 3, 16), F)
    assert [function(x, x, x, **heads, output_count=count)[3] is None for count in (1, 3, 4)] == [True, True, False]


@pytest.mark.rare
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats(dtype):
    """Narrow floats are widened, and each output is rounded once; caches have the type of the new keys."""
    arguments, attributes, _, _ = attention_cases.attention(4)
    narrow = [x.astype(jax.numpy.dtype(dtype)) if x is not None and x.dtype == F else x for x in arguments]
    wide = [x.astype(F) if x is not None and x.dtype == dtype else x for x in narrow]
    call = partial(attention, output_count=4)
    got, wanted = (computed(call, each, **attributes) for each in (narrow, wide))
    for one, right in zip(got, wanted, strict=True):
        assert_same_bits(np.asarray(one), np.asarray(right).astype(one.dtype))


@pytest.mark.rare
@pytest.mark.parametrize("batch", [1, 2])
def test_donated_caches_are_written_in_place(batch):
    """Only an update computes an array of a cache's shape, and its result is in the memory of the donated cache."""
    shapes = (batch, 1, 32), (batch, 1, 16), (batch, 1, 16), (batch, 2, 33, 8), (batch, 2, 33, 8)

    def step(query, key, value, past_key, past_value, lengths):
        given = query, key, value, past_key, past_value, lengths, I32(33)
        return group_query_attention(*given, **HEADS)[:3]

    given = [*(jax.ShapeDtypeStruct(shape, F) for shape in shapes), jax.ShapeDtypeStruct((batch,), I32)]
    hlo = jax.jit(step, donate_argnums=(3, 4)).lower(*given).compile().as_text()
    assert "input_output_alias={ {1}: (3, {}, may-alias), {2}: (4, {}, may-alias) }" in hlo
    operations = re.findall(rf" = f32\[{batch},2,33,8\]\S* ([\w-]+)", hlo)
    assert set(operations) == {"parameter", "fusion", "dynamic-update-slice" if batch == 1 else "scatter"}


# In a file -----------------------------------------------------------------------------------------------------------

ROW = np.ones((1, 2, 32), F)


def one_node(operator, arguments, outputs=1, domain="", opset=25, **attributes):
    """A model of an operator whose arguments are initializers, except for the first."""
    names = ["" if x is None else f"x{place}" for place, x in enumerate(arguments)]
    results = [f"y{place}" for place in range(outputs)]
    node = helper.make_node(operator, names, results, domain=domain, **attributes)
    initializers = [constant(x, name) for x, name in zip(arguments, names, strict=True) if name][1:]
    inputs = [("x0", helper.np_dtype_to_tensor_dtype(arguments[0].dtype), arguments[0].shape)]
    return model([node], initializers, inputs, [(name, 1, None) for name in results], opset=opset, ir_version=10)


@pytest.mark.rare
def test_a_file_has_as_many_outputs_as_it_likes():
    arguments, attributes, _ = attention_cases.group_query_attention(1)
    attributes.pop("qk_output", None)
    made = one_node("GroupQueryAttention", arguments, 3, MICROSOFT, **attributes)
    loaded = jaxdml.onnx.load(made)
    wanted = attention_by_numpy.group_query_attention(*arguments, **attributes)
    check_same(loaded.apply(loaded.params, arguments[0]).values(), wanted, attributes)


CACHE, PADDED = np.ones((1, 2, 5, 8), F), np.ones((1, 1, 4, 8), F)
TURNS = np.ones((9, 8), F)
BASE = (np.ones((1, 2, 64), F), np.ones((1, 2, 32), F), np.ones((1, 2, 32), F), None, None)  # 4 and 2 heads of 16
LENGTHS = (np.array([1], I32), np.array([2], I32))
HEADS = {"num_heads": 4, "kv_num_heads": 2}
CACHES = (np.ones((1, 2, 5, 16), F),) * 2
ONE = tuple(None if x is None else x[:, :1] for x in BASE)

WRONG_GROUPS = [
    ((*BASE, *LENGTHS), {"local_window_size": 2, "causal": 0}, "local_window_size is 2 without causal, expected -1"),
    ((*BASE, *LENGTHS), {"qk_output": 1}, "qk_output is 1 with 1 outputs; expected 1 or 2 for 4 outputs, 0 for fewer"),
    ((*BASE, *LENGTHS), {"sliding_window_cache": 1}, "sliding_window_cache is not supported; export the model with"),
    ((*BASE, *LENGTHS), {"k_quant_type": "PER_TENSOR"}, "k_quant_type is not supported"),
    ((*BASE, *LENGTHS), {"v_quant_type": "PER_TENSOR"}, "v_quant_type is not supported"),
    ((*BASE, *LENGTHS), {"kv_cache_bit_width": 8}, "kv_cache_bit_width is not supported"),
    ((*BASE, *LENGTHS, *[None] * 7, TURNS[0]), {}, "q_norm_weight is not supported"),
    ((*BASE, *LENGTHS, *[None] * 8, TURNS[0]), {}, "k_norm_weight is not supported"),
    ((*BASE, *LENGTHS, *[None] * 5, TURNS[0]), {}, "k_scale is not supported"),
    ((*BASE, *LENGTHS, *[None] * 6, TURNS[0]), {}, "v_scale is not supported"),
    ((*BASE, *LENGTHS, *[None] * 9, LENGTHS[0]), {}, "query_seqlens is not supported"),
    ((BASE[0][0], *BASE[1:], *LENGTHS), {}, "query has 2 dimensions, expected 3"),
    ((*BASE, *LENGTHS), {"num_heads": 3}, "num_heads is 3, expected a multiple of kv_num_heads, which is 2"),
    ((*BASE[:2], None, None, None, *LENGTHS), {}, "key and value must be given together, or left out together"),
    (
        (*BASE, *LENGTHS),
        {"num_heads": 10},
        "the last size of query is 64, expected a multiple of num_heads, which is 10",
    ),
    ((BASE[0], *[None] * 4, *LENGTHS), {"num_heads": 6}, "packed query is 64, expected a multiple of num_heads + 2 *"),
    ((*BASE, *LENGTHS), {"num_heads": 16, "kv_num_heads": 8}, "the size of a head is 4, expected a multiple of 8"),
    ((BASE[0], BASE[1][:, :, :16], *BASE[2:], *LENGTHS), {}, "key has shape (1, 2, 16), expected (1, 2, 32)"),
    ((*BASE[:2], BASE[2][:, :1], None, None, *LENGTHS), {}, "value has shape (1, 1, 32), expected (1, 2, 32)"),
    ((*ONE[:3], CACHES[0], None, *LENGTHS), {}, "past_key and past_value must be given together"),
    (
        (*ONE[:3], CACHES[0], CACHES[1][:, :, :4], *LENGTHS),
        {},
        "past_value has shape (1, 2, 4, 16), expected (1, 2, 5, 16)",
    ),
    ((*ONE[:3], CACHES[0][0], CACHES[1], *LENGTHS), {}, "past_key has shape (2, 5, 16), expected (1, 2, 0, 16)"),
    ((*BASE, np.array([1, 1], I32), LENGTHS[1]), {}, "seqlens_k has shape (2,), expected (1,)"),
    ((*BASE, np.array([2], I32), LENGTHS[1]), {}, "seqlens_k is [2], expected numbers from 0 to 1"),
    ((*BASE, LENGTHS[0], np.array([2, 2], I32)), {}, "total_sequence_length has shape (2,), expected (1,)"),
    (
        (*BASE, LENGTHS[0], np.array([1], I32)),
        {},
        "total_sequence_length is 1; expected 2, the number of past and new tokens",
    ),
    (
        (*ONE[:3], *CACHES, LENGTHS[0], np.array([7], I32)),
        {},
        "total_sequence_length is 7; expected 6, the number of past and new",
    ),
    (
        (*(np.concatenate([x, x]) for x in (*BASE[:3], *CACHES)), np.array([5, 5], I32), np.array([7], I32)),
        {},
        "2 tokens after past ones need batch size 1, but it is 2",
    ),
    ((*BASE, *LENGTHS, TURNS), {"do_rotary": 1}, "cos_cache and sin_cache must be given together"),
    ((*BASE, *LENGTHS), {"do_rotary": 1}, "do_rotary needs the inputs cos_cache and sin_cache"),
    ((*BASE, *LENGTHS, TURNS, TURNS[:8]), {"do_rotary": 1}, "sin_cache has shape (8, 8), expected (9, 8)"),
    ((*BASE, *LENGTHS, TURNS[0], TURNS[0]), {"do_rotary": 1}, "cos_cache has shape (8,), expected (any, any)"),
    ((*BASE, *LENGTHS, TURNS[:1], TURNS[:1]), {"do_rotary": 1}, "cos_cache has shape (1, 8), expected at least 2 rows"),
    ((*BASE, *LENGTHS, TURNS[:, :4], TURNS[:, :4]), {"do_rotary": 1}, "a multiple of 8 columns, at most 8"),
    (
        (*BASE, *LENGTHS, TURNS, TURNS),
        {"do_rotary": 1, "num_heads": 8, "kv_num_heads": 4},
        "the size of a head is 8, expected a multiple of 16, for rotary embedding",
    ),
    (
        (*BASE, *LENGTHS, TURNS, TURNS, np.zeros((2, 2), int)),
        {"do_rotary": 1},
        "position_ids has shape (2, 2), expected (1,",
    ),
    (
        (*BASE, *LENGTHS, TURNS, TURNS, np.zeros((1, 1), int)),
        {"do_rotary": 1},
        "position_ids has shape (1, 1), expected (1, 2)",
    ),
    (
        (*BASE, *LENGTHS, None, None, None, PADDED),
        {},
        "attention_bias has shape (1, 1, 4, 8), expected (1, 4, 2, 2) or",
    ),
    ((*BASE, *LENGTHS, *[None] * 4, TURNS[0]), {}, "head_sink has shape (8,), expected (4,)"),
]


@pytest.mark.parametrize(
    ("arguments", "attributes", "words"), WRONG_GROUPS, ids=lambda x: x if isinstance(x, str) else ""
)
def test_wrong_group_query_attention(arguments, attributes, words):
    with pytest.raises(ModelError) as caught:
        group_query_attention(*arguments, **HEADS | attributes)
    assert words in str(caught.value)


def exported(rows, room, total, batch=1):
    """The operator for sizes that may be symbolic, in a file of `jax.export`."""
    shapes = [(batch, rows, 64), *((batch, rows, 32),) * 2, *((batch, 2, room, 16),) * 2]
    given = [*(jax.ShapeDtypeStruct(shape, F) for shape in shapes), jax.ShapeDtypeStruct((batch,), I32)]
    call = jax.jit(lambda *given: group_query_attention(*given, np.array([total]), **HEADS)[:3])
    return jax.export.export(call)(*given)


def test_numbers_of_tokens_are_not_symbolic():
    (t,) = jax.export.symbolic_shape("t", constraints=["t >= 2", "t <= 5"])
    for *sizes, words in ((t, 5, 5, "new tokens"), (1, t, 5, "tokens in the cache"), (1, 5, t, "tokens in total")):
        with pytest.raises(ModelError, match=f"the number of {words} is t, .* only the batch may be symbolic"):
            exported(*sizes)


@pytest.mark.rare
def test_a_batch_may_be_symbolic():
    """In files for a prompt and for a step."""
    (b,) = jax.export.symbolic_shape("b")
    past = [np.repeat(x, 3, 0) for x in CACHES]
    for rows, total in ((2, 2), (1, 5)):
        new = [np.repeat(x[:, :rows], 3, 0) for x in BASE[:3]]
        given = (*new, *past, np.full(3, total - 1, I32))
        got = exported(rows, 5, total, b).call(*given)
        check_same(got, attention_by_numpy.group_query_attention(*given, np.array([total], I32), **HEADS), rows)


QKV = (np.ones((1, 4, 2, 8), F), np.ones((1, 2, 5, 8), F), np.ones((1, 2, 5, 8), F))
FLAT = (ROW, ROW, ROW)
WRONG = [
    (QKV, {"softmax_precision": 7}, "softmax_precision is 7, expected 1, 10 or 16"),
    (QKV, {"scale": 0.0}, "scale is 0.0, expected a positive number"),
    (QKV, {"softcap": -1.0}, "softcap is -1.0, expected 0, for none, or a positive number"),
    (QKV, {"qk_matmul_output_mode": 4}, "qk_matmul_output_mode is 4, expected 0 to 3"),
    ((QKV[0], FLAT[0], QKV[2]), {}, "Q, K and V have 4, 3 and 4 dimensions, expected 3 each or 4 each"),
    (FLAT, {"q_num_heads": 4}, "q_num_heads and kv_num_heads are required for Q, K and V of 3 dimensions"),
    (
        FLAT,
        {"q_num_heads": 3, "kv_num_heads": 1},
        "the last size of Q is 32, expected a multiple of its number of heads",
    ),
    ((QKV[0], QKV[1][..., :4], QKV[2]), {}, "K has shape (1, 2, 5, 4), expected (1, 2, 5, 8)"),
    ((QKV[0], QKV[1], QKV[2][:, :, :4]), {}, "V has shape (1, 2, 4, 8), expected (1, 2, 5, any)"),
    (QKV, {"q_num_heads": 2}, "q_num_heads is 2, but the input has 4 heads"),
    (QKV, {"kv_num_heads": 4}, "kv_num_heads is 4, but the input has 2 heads"),
    (
        (QKV[0][:, :3], *QKV[1:]),
        {},
        "the number of heads of Q is 3, expected a multiple of that of K and V, which is 2",
    ),
    ((*QKV, None, CACHE), {}, "past_key and past_value must be given together"),
    ((*QKV, None, CACHE, CACHE[:, :, :4]), {}, "past_value has shape (1, 2, 4, 8), expected (1, 2, 5, 8)"),
    ((*QKV, None, CACHE[:, :1], CACHE), {}, "past_key has shape (1, 1, 5, 8), expected (1, 2, 5, 8)"),
    ((*QKV, PADDED), {}, "attn_mask has shape (1, 1, 4, 8), expected one that broadcasts to (1, 4, 2, 5); its"),
    ((*QKV, PADDED[..., :2, :6]), {}, "attn_mask has shape (1, 1, 2, 6), expected one that broadcasts to (1, 4, 2, 5)"),
    ((*QKV, PADDED[None, ..., :2, :5]), {}, "attn_mask has shape (1, 1, 1, 2, 5), expected one that broadcasts to"),
    ((*QKV, PADDED[0, 0, 0, 0]), {}, "attn_mask has shape (), expected one that broadcasts to"),
    ((*QKV, None, CACHE, CACHE, np.array([5])), {}, "nonpad_kv_seqlen cannot be combined with past_key"),
    ((*QKV, None, None, None, np.array([5, 5])), {}, "nonpad_kv_seqlen has shape (2,), expected (1,)"),
    ((*QKV, None, None, None, np.array([6])), {}, "nonpad_kv_seqlen is [6], expected lengths from 0 to 5"),
]


@pytest.mark.parametrize(("arguments", "attributes", "words"), WRONG, ids=lambda x: x if isinstance(x, str) else "")
def test_wrong_attention(arguments, attributes, words):
    with pytest.raises(ModelError) as caught:
        attention(*arguments, **attributes)
    assert words in str(caught.value)


FOUR = np.ones((1, 4, 5, 8), F)
WRONG_HEADS = [
    ((*FLAT, *[None] * 5, np.array([1], I32)), {}, "past_sequence_length and cache_indirection are not supported"),
    (
        (*FLAT, *[None] * 6, np.zeros((1, 1, 5), I32)),
        {},
        "past_sequence_length and cache_indirection are not supported",
    ),
    ((np.ones((1, 2, 4, 3, 8), F),), {}, "packed inputs are not supported, split them"),
    ((ROW, np.ones((1, 2, 4, 2, 8), F)), {}, "packed inputs are not supported, split them"),
    (FLAT, {"num_heads": 3}, "the last size of query is 32, expected a multiple of num_heads, which is 3"),
    ((ROW, ROW[:, :, :8], ROW), {}, "key has shape (1, 2, 8), expected (any, any, 32)"),
    ((ROW, ROW, ROW[:, :, :7]), {}, "the last size of value is 7, expected a multiple of num_heads, which is 4"),
    ((ROW, ROW, ROW[:, :1]), {}, "value has shape (1, 4, 1, 8), expected (1, 4, 2, any)"),
    ((ROW, FOUR[:, :2], FOUR), {}, "key has shape (1, 2, 5, 8), expected (1, 4, 5, 8)"),
    ((*FLAT, np.ones(95, F)), {}, "bias has shape (95,), expected (96,)"),
    (
        (*FLAT, None, np.ones((1, 3), I32)),
        {},
        "key_padding_mask has shape (1, 3), expected (1,) or (5,) or (1, 2) or (1, 2, 2)",
    ),
    ((*FLAT, None, None, PADDED), {}, "attention_bias has shape (1, 1, 4, 8), expected (1, 4, 2, 2) or (1, 1, 2, 2)"),
    ((*FLAT, None, None, None, FOUR), {}, "past_key and past_value must be given together"),
    ((*FLAT, None, None, None, FOUR, FOUR[:, :, :4]), {}, "past_value has shape (1, 4, 4, 8), expected (1, 4, 5, 8)"),
]


@pytest.mark.parametrize(
    ("arguments", "attributes", "words"), WRONG_HEADS, ids=lambda x: x if isinstance(x, str) else ""
)
def test_wrong_multi_head_attention(arguments, attributes, words):
    with pytest.raises(ModelError) as caught:
        multi_head_attention(*arguments, **{"num_heads": 4} | attributes)
    assert words in str(caught.value)


def test_numbers_that_fit_no_size_give_nan():
    """When they are known, it is too late for an error: sequences of wrong length, and a position without angles."""
    arguments = [np.repeat(x, 4, 0) for x in (*ONE[:3], *CACHES)]
    arguments += [np.array([6, -1, 3, 3], I32), np.array([5], I32), TURNS, TURNS, np.array([[3], [3], [9], [3]])]
    got = np.asarray(computed(group_query_attention, arguments, known=(6,), do_rotary=1, **HEADS)[0])
    assert np.isnan(got).any((1, 2)).tolist() == [True, True, True, False]
