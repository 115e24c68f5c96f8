"""Functions that have changed since they were quantized: the error names the layer, and shows both sides."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from _ptq.quantized import is_right
from jaxdml.ptq import PtqError, load, quantize, save

random = np.random.default_rng(0)
P = {name: random.normal(size=(8, 8)).astype(np.float32) for name in ("first", "second", "third")}
X = random.normal(size=(6, 8)).astype(np.float32)


def network(p, x, *, act=jax.nn.relu, after=lambda x: x, names=("first", "second", "third")):
    for name in names[:-1]:
        x = after(act(x @ p[name]))
    return x @ p[names[-1]]


def dropped(x):
    return jnp.where(jax.random.bernoulli(jax.random.key(0), 0.5, x.shape), x / 0.5, 0)


def scanned(act):
    return lambda p, x: jax.lax.scan(lambda x, w: (act(x @ w), None), x, jnp.stack([*p.values()]))[0]


def convolved(stride):
    return lambda p, x: jax.lax.conv_general_dilated(x[:, None], p["first"][:, None], (stride,), "SAME")


def scoped(*names):
    def apply(p, x):
        for place, name in enumerate(names):
            with jax.named_scope(name):
                x = jax.nn.relu(x @ p[place])
        return x

    return apply


def with_array(array):
    return lambda p, x: network(p, x) * jnp.asarray(array)[None]


CASES = {  # the function that was quantized, another one, and the lines of the error after the fingerprints
    "a removed layer": (
        network, lambda p, x: network(p, x, names=("first", "third")),
        ("it lacks the layers ['second'], they first differ behind layer 'first':",
         "layer 'second': product params.second float32[8,8]", "layer 'third': product params.third float32[8,8]"),
    ),
    "a new layer": (
        lambda p, x: network(p, x, names=("first", "third")), network,
        ("it has the new layers ['second'], they first differ behind layer 'first':",
         "layer 'third': product params.third float32[8,8]", "layer 'second': product params.second float32[8,8]"),
    ),
    "layers in another order": (
        network, lambda p, x: network(p, x, names=("first", "third", "second")),
        ("they first differ behind layer 'first':",
         "layer 'second': product params.second float32[8,8]", "layer 'third': product params.third float32[8,8]"),
    ),
    "another width": (
        lambda p, x: x @ p["first"][:, :6], lambda p, x: x @ p["first"][:, :4],
        ("they first differ in layer 'first':",
         "layer 'first': product params.first float32[8,6]", "layer 'first': product params.first float32[8,4]"),
    ),
    "another activation": (
        network, lambda p, x: network(p, x, act=jnp.tanh),
        ("they first differ behind layer 'first':", "max 0.0", "tanh"),
    ),
    "a longer activation": (
        network, lambda p, x: network(p, x, act=jax.nn.gelu),
        ("they first differ behind layer 'first':", "max 0.0",
         "integer_pow [y=3] + mul 0.044715 + add of two values + mul 0.7978846 + tanh + ..."),
    ),
    "another number": (
        lambda p, x: network(p, x, after=lambda x: x + 1e-6), lambda p, x: network(p, x, after=lambda x: x + 1e-3),
        ("they first differ behind layer 'first':", "add 1e-06", "add 0.001"),
    ),
    "dropout": (
        network, lambda p, x: network(p, x, after=dropped),
        ("they first differ behind layer 'first':", "nothing", "random_", "draws random numbers: turn dropout off"),
    ),
    "another type": (
        network, lambda p, x: network(p, x.astype(jnp.bfloat16).astype(np.float32)),
        ("they first differ before layer 'first':", "nothing", "cast [new_dtype=bfloat16"),
    ),
    "a residual connection": (
        lambda p, x: x @ p["first"], lambda p, x: x + x @ p["first"],
        ("they first differ behind layer 'first':", "nothing", "add of two values"),
    ),
    "another term of a sum": (
        lambda p, x: x @ p["first"] @ p["second"] + x, lambda p, x: (y := x @ p["first"]) @ p["second"] + y,
        ("they first differ behind layer 'second':", "add_1 = add dot_general_2, input_0",
         "add_1 = add dot_general_2, dot_general_1"),
    ),
    "scaled weights": (
        network, lambda p, x: network(p | {"second": p["second"] * 2}, x),
        ("they first differ in layer 'second':", "dot_general_2 = dot_general max_1, params/second ",
         "dot_general_2 = dot_general max_1, mul_1 "),
    ),
    "weights scaled by another number": (
        lambda p, x: x @ p["first"] @ (p["second"] * 2), lambda p, x: x @ p["first"] @ (p["second"] * 3),
        ("they first differ in layer 'second':", "literal_1=2.0", "literal_1=3.0"),
    ),
    "transposed weights, and another activation later": (
        network, lambda p, x: jnp.tanh(network(p | {"first": p["first"].T}, x)),
        ("they first differ in layer 'first':", "dot_general_1 = dot_general input_0, params/first ",
         "dot_general_1 = dot_general input_0, transpose_1 "),
    ),
    "results computed in another order": (
        lambda p, x: (x @ p["first"], x @ p["second"]), lambda p, x: (x @ p["second"], x @ p["first"])[::-1],
        ("they first differ before layer 'first':", "layer 'first': product", "layer 'second': product"),
    ),
    "the same results, returned in another order": (
        lambda p, x: (x @ p["first"], x @ p["second"]), lambda p, x: (x @ p["first"], x @ p["second"])[::-1],
        ("they return other values:", "return dot_general_1, dot_general_2", "return dot_general_2, dot_general_1"),
    ),
    "params that no result depends on": (
        lambda p, x: x @ p["first"], lambda p, x: (p["second"] * 2, x @ p["first"])[1],
        ("they differ in values that no result depends on:", "dot_general_1 = dot_general ", "mul params/second"),
    ),
    "other captured numbers": (
        with_array(np.arange(8, dtype=np.float32)), with_array(np.ones(8, np.float32)),
        ("they first differ behind layer 'third':", "mul array", "mul array"),
    ),
    "another stride": (
        convolved(1), convolved(2), ("they first differ in layer 'first':", "window_strides=(1)", "window_strides=(2)"),
    ),
    "relu in the body of a scan": (
        scanned(jnp.tanh), scanned(jax.nn.relu),
        ("they first differ in layer 'scan_1':", "scan of dot_general + tanh", "scan of dot_general + custom_jvp_call"),
    ),
    "another body of a scan": (
        scanned(jnp.tanh), scanned(jnp.abs),
        ("they first differ in layer 'scan_1':", "scan of dot_general + tanh", "scan of dot_general + abs"),
    ),
    "another scope of params without names": (
        scoped("conv", "dense"), lambda p, x: scoped("conv", "dense")(p[::-1], x),
        ("they first differ in layer 'conv':", "layer 'conv': product params.0", "layer 'conv': product params.1"),
    ),
}  # fmt: skip


def check_raises(call, lines):
    where, was, now, *rest = map(re.escape, lines)
    text = rf"(?s)^apply is not the function that was quantized \(fingerprints \w{{16}} and \w{{16}}\); .*{where}\n"
    sides = rf"  calibrated  [^\n]*{was}.*\n  now         [^\n]*{now}.*{''.join(rest)}"
    with pytest.raises(PtqError, match=text + sides):
        call()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_a_changed_function_is_refused_with_both_sides(name, tmp_path):
    was, now, lines = CASES[name]
    params = [*P.values()][:2] if "without names" in name else P
    held = [was]
    model = quantize(lambda p, x: held[0](p, x), params, [X], progress=False)
    save(tmp_path / "model.npz", model)
    held[0] = now
    check_raises(lambda: model.apply(model.params, X[:3]), lines)
    check_raises(lambda: load(tmp_path / "model.npz", now), lines)
    if name != "dropout":  # the remedy
        assert is_right(quantize(now, params, [X], progress=False), now, params, X)


def test_other_params_are_named(tmp_path):
    save(tmp_path / "model.npz", quantize(network, P, [X], progress=False))
    for params, text in (
        (P | {"third": np.ones((8, 4), np.float32)}, r"params['third'] is float32[8, 4], but was float32[8, 8]"),
        ({"first": P["first"], "2": P["second"]}, "the pytree lacks [\"params['second']\", \"params['third']\"]"),
        ({**P, "third": [P["third"]]}, "the pytree lacks [\"params['third']\"] and was given [\"params['third'][0]\"]"),
    ):
        with pytest.raises(PtqError, match=re.escape(f"model.npz: {text}")):
            load(tmp_path / "model.npz", network, params)
    assert load(tmp_path / "model.npz", network, P).fingerprint
