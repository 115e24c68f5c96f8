"""Paddings with zeros are folded into the convolutions that read them, and the bits stay the same."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import jaxdml as dml
from _ptq.quantized import decibels, is_right
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from jaxdml import ptq

RANDOM = np.random.default_rng(0)
NHWC, NCHW, NWC = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("NWC", "WIO", "NWC")


def normal(*shape):
    return RANDOM.standard_normal(shape, np.float32)


X = normal(2, 13, 11, 4)
P = {"a": normal(3, 3, 4, 8) / 3, "depthwise": normal(5, 5, 1, 8) / 5, "c": normal(1, 1, 8, 6), "line": normal(3, 4, 5)}


def convolved(x, w, padding, layout, strides=1, groups=1, gap=1):
    ones = (1,) * (x.ndim - 2)
    w = w if layout[1][-1] == "O" else w.transpose(3, 2, 0, 1)
    return lax.conv_general_dilated(
        x, w, ones if strides == 1 else (strides, strides), padding, lhs_dilation=tuple(gap * one for one in ones),
        dimension_numbers=layout, feature_group_count=groups,
    )  # fmt: skip


def surrounded(x, pads, layout):
    sizes = dict(zip([letter for letter in layout[0] if letter not in "NC"], pads, strict=True))
    return jnp.pad(x, [sizes.get(letter, (0, 0)) for letter in layout[0]])


def in_itself(x, w, pads, layout, own=None, gap=1, **options):
    """The convolution whose own padding is the sum of `pads` and of `own`."""
    own = own or ((0, 0),) * len(pads)
    padding = [tuple(gap * each + o for each, o in zip(*pairs, strict=True)) for pairs in zip(pads, own, strict=True)]
    return convolved(x, w, padding, layout, gap=gap, **options)


def before(x, w, pads, layout, own=None, **options):
    return convolved(surrounded(x, pads, layout), w, own or ((0, 0),) * len(pads), layout, **options)


def in_two_steps(x, w, pads, layout, own=None, **options):
    x = surrounded(x, [(low, 0) for low, _ in pads], layout)
    return before(x, w, [(0, high) for _, high in pads], layout, own, **options)


CORNER, AROUND = ((0, 1), (0, 1)), ((1, 1), (2, 2))


def several_readers(p, x, conv):
    y = jax.nn.relu(conv(x, p["a"], AROUND))
    return conv(y, p["c"], AROUND, strides=2), conv(y, p["depthwise"], AROUND, groups=8)


def transposed(p, x, conv):
    return conv(x, p["a"], ((1, 0), (2, 1)), own=((1, 1), (0, 2)), gap=2)


FOLDED = {
    "strides": lambda p, x, conv: conv(x, p["a"], CORNER, strides=2),
    "groups": lambda p, x, conv: conv(conv(x, p["a"], CORNER), p["depthwise"], ((2, 0), (0, 3)), groups=8),
    "own padding": lambda p, x, conv: conv(jnp.tanh(conv(x, p["a"], CORNER)), p["c"], CORNER, own=((3, 0), (1, 2))),
    "large": lambda p, x, conv: conv(x, p["a"], ((20, 0), (3, 40)), strides=2),
    "several readers": several_readers,
    "transposed convolution": transposed,
    "computed in floats": lambda p, x, conv: conv(x - jnp.mean(x), p["a"], CORNER),
    "read in floats": lambda p, x, conv: jax.nn.softmax(conv(x, p["a"], CORNER)),
}
CASES = [(name, layout, way) for name in FOLDED for layout in (NHWC, NCHW) for way in (before, in_two_steps)]
QUICK = [("groups", NHWC, before), ("several readers", NCHW, in_two_steps), ("computed in floats", NHWC, before)]


def pads_of(model):
    return [node for node in model._fused.nodes if "pad" in (node.operator.name, node.operator.kind)]


def named(case):
    name, layout, way = case
    return f"{name}, {layout[0]}, {way.__name__}"


@pytest.mark.parametrize(
    "case", rest_rarely([*QUICK, *(each for each in CASES if each not in QUICK)], len(QUICK)), ids=named
)
def test_convolutions_do_the_paddings_before_them(case):
    name, layout, way = case
    x = X if layout is NHWC else X.transpose(0, 3, 1, 2)
    received, expected = (
        ptq.quantize(
            lambda p, x, conv=conv: FOLDED[name](p, x, functools.partial(conv, layout=layout)), P, [x], progress=False
        )
        for conv in (way, in_itself)
    )
    assert not pads_of(received)
    assert any("pad" in node.source for node in received._fused.nodes)
    of_both = (jax.tree.leaves(each.apply(each.params, x)) for each in (received, expected))
    for y, other in zip(*of_both, strict=True):
        assert_same_bits(y, other)


def test_convolutions_over_one_dimension_do_the_paddings_before_them():
    x, causal = X[:, 0], ((4, 0),)
    received, expected = (
        ptq.quantize(lambda p, x, conv=conv: conv(x, p["line"], causal, NWC), P, [x], progress=False)
        for conv in (before, in_itself)
    )
    assert not pads_of(received)
    assert_same_bits(received.apply(received.params, x), expected.apply(expected.params, x))


@pytest.mark.parametrize("options", [{"activations": jnp.int8}, {"rules": [ptq.Rule("", activations=jnp.uint16)]}])
def test_other_types_are_padded_with_their_zero_points(options):
    received, expected = (
        ptq.quantize(lambda p, x, conv=conv: conv(x, p["a"], AROUND, NHWC), P, [X + 1], progress=False, **options)
        for conv in (before, in_itself)
    )
    assert not pads_of(received)
    assert_same_bits(received.apply(received.params, X), expected.apply(expected.params, X))


def between(p, x, pad, own=((0, 0), (0, 0))):
    return convolved(pad(jax.nn.relu(convolved(x, p["a"], "VALID", NHWC))), p["depthwise"], own, NHWC, groups=8)


def padded(config, value=0.0):
    return lambda p, x: between(p, x, lambda y: lax.pad(y, jnp.float32(value), config), ((1, 1), (1, 1)))


NONE, ONE, LESS = (0, 0, 0), (1, 1, 0), (np.int64(-1), np.int64(-1), np.int64(0))
KEPT = {
    "a constant other than 0": padded((NONE, ONE, ONE, NONE), 1.0),
    "between pixels": padded((NONE, (1, 1, 1), ONE, NONE)),
    "negative": padded((NONE, LESS, LESS, NONE)),
    "negative, as JAX writes it": padded((NONE, (-1, -1, 0), ONE, NONE)),
    "batch": padded(((1, 1, 0), ONE, ONE, NONE)),
    "channels": lambda p, x: convolved(jnp.pad(x[..., :3], ((0, 0), (1, 1), (1, 1), (0, 1))), p["a"], "VALID", NHWC),
    "a function between": lambda p, x: between(p, x, lambda y: jnp.cos(surrounded(y, AROUND, NHWC))),
}


@pytest.mark.parametrize("name", KEPT)
def test_other_paddings_stay(name):
    model = ptq.quantize(KEPT[name], P, [X], progress=False)
    assert pads_of(model)
    assert is_right(model, KEPT[name], P, X)


@pytest.mark.parametrize(("scale", "count"), [(1e-40, 1), (0.1, 0)])
def test_paddings_before_a_scale_that_counts_as_0_stay(scale, count):
    """Such a scale quantizes the zeros of the padding to 0 instead of to the zero point."""

    def apply(p, x):
        x = dml.fake_quantize(surrounded(x, AROUND, NCHW), np.float32(scale), np.uint8(7))
        return convolved(x, p["a"], "VALID", NCHW)

    assert len(pads_of(ptq.quantize(apply, P, [X.transpose(0, 3, 1, 2)], progress=False))) == count


def test_other_readers_still_read_the_result_of_the_padding():
    def apply(p, x, conv):
        y = jax.nn.relu(convolved(x, p["a"], "VALID", NHWC))
        pooled = lax.reduce_window(surrounded(y, AROUND, NHWC), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return conv(y, p["depthwise"], AROUND, NHWC, groups=8), convolved(pooled, p["c"], "VALID", NHWC)

    received, expected = (
        ptq.quantize(functools.partial(apply, conv=conv), P, [X], progress=False) for conv in (before, in_itself)
    )
    for model in (received, expected):
        (pad,) = pads_of(model)
        assert [node.operator.kind for node in model._fused.consumers()[pad.outputs[0]]] == ["max_pool"]
    for y, other in zip(received.apply(received.params, X), expected.apply(expected.params, X), strict=True):
        assert_same_bits(y, other)


def of_sizes(p, x):
    """A padding of known size, and one to 16 pixels, which crops more pixels."""
    y = jax.nn.relu(convolved(surrounded(x, CORNER, NHWC), p["a"], "VALID", NHWC))
    y = lax.pad(y, jnp.float32(0), (NONE, (0, 16 - y.shape[1], 0), ONE, NONE))
    return convolved(y, p["depthwise"], "SAME", NHWC, groups=8)


def test_paddings_of_symbolic_sizes_stay():
    model = ptq.quantize(of_sizes, P, [X], progress=False)
    assert not pads_of(model)
    (height,) = export.symbolic_shape("height", constraints=["height >= 4"])
    struct = jax.ShapeDtypeStruct((2, height, 11, 4), np.float32)
    call = export.export(jax.jit(model.apply))(model.params, struct).call
    for size in (5, 13):
        x = normal(2, size, 11, 4)
        assert_same_bits(call(model.params, x), model.apply(model.params, x))
    cropped = normal(2, 19, 11, 4)
    assert decibels(call(model.params, cropped), of_sizes(P, cropped)) > 25


def test_files_keep_the_padding(tmp_path):
    """So files of versions that did not fold paddings have the same content, and are folded when they are read."""
    apply = functools.partial(FOLDED["strides"], conv=functools.partial(before, layout=NHWC))
    model = ptq.quantize(apply, P, [X], progress=False)
    assert [node for node in model.graph.nodes if node.operator.name == "pad"]
    ptq.save(tmp_path / "model.npz", model)
    read = ptq.load(tmp_path / "model.npz", apply)
    assert not pads_of(read)
    assert_same_bits(read.apply(read.params, X), model.apply(model.params, X))
    assert str(read) == str(model)
