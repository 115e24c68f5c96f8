"""Each row of floats in a printed model names the decision that keeps it there."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from _ptq.quantized import decibels
from jaxdml.errors import PtqError
from jaxdml.ptq import Rule, quantize

RANDOM = np.random.default_rng(0)
PARTS = {name: RANDOM.standard_normal((8, 8), np.float32) for name in "uvw"}
X = RANDOM.standard_normal((4, 8), np.float32)


def read_elsewhere(p, x):
    y = x @ p["v"] + x @ p["w"]
    z = x @ p["u"]  # on integers, between y and its reader
    return jnp.cumsum(y, -1) + z


def read_through_others(p, x):
    y = jnp.flip(x @ p["v"] + x @ p["w"])
    z = x @ p["u"]
    return jnp.cumsum(y, -1) + z


def residual(p, x):
    y = x @ p["v"]
    return x + jnp.tanh(y) @ p["w"]


CASES = {
    "no operator": (lambda p, x: jnp.cumsum(x @ p["w"], -1), {}, "there is no quantized cumsum"),
    "softmax": (lambda p, x: jax.nn.softmax(x @ p["w"]) @ p["v"], {}, "there is no quantized softmax"),
    "returned": (lambda p, x: jnp.tanh(x @ p["w"]), {}, "kept in floats: the function returns it"),
    "read elsewhere": (read_elsewhere, {}, "kept in floats: cumsum_1 ... add_2 reads it"),
    "read through others": (read_through_others, {}, "kept in floats: cumsum_1 ... add_2 reads it"),
    "a range at each call": (
        lambda p, x: jnp.maximum(x, 0) @ p["w"], {"products": "dynamic"},
        "kept in floats: w computes the range of its inputs at each call",
    ),
    "a layer in floats": (
        lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"], {"rules": [Rule("w", keep="float")]},
        "kept in floats: w computes its input",
    ),
    "the last of two layers": (residual, {"products": "dynamic"}, "kept in floats: w computes its input"),
    "a residual stream": (
        lambda p, x: (lambda h: h + jnp.cumsum(h, -1) @ p["w"])(jnp.cumsum(x, -1)), {},
        "kept in floats: cumsum_1 ... cumsum_2 computes its input",
    ),
    "what has no operator behind what has none": (
        lambda p, x: (lambda h: (h @ p["w"], jnp.sort(h @ p["v"] + h)))(jnp.cumsum(x, -1)), {},
        "there is no quantized sort",
    ),
    "through a mover on integers": (
        lambda p, x: (lambda h: h[1] * (h[0] @ p["w"][:4, :4]))(jnp.split(jnp.cumsum(x, -1), 2, -1)) @ p["v"][:4], {},
        "kept in floats: cumsum_1 computes its input",
    ),
    "an array that is no value": (
        lambda p, x: (jnp.maximum(x @ p["w"], 0) + p["u"][:4]) @ p["v"], {},
        "there is no quantized add of values and constants",
    ),
    "a product with an array that is no value": (
        lambda p, x: (jnp.maximum(x @ p["w"], 0) * p["u"][:4]) @ p["v"], {},
        "there is no quantized mul of values and constants",
    ),
    "beside an array that is no value": (
        lambda p, x: jnp.concatenate([jnp.maximum(x @ p["w"], 0), p["u"]]) @ p["v"], {},
        "there is no quantized concatenate of values and constants",
    ),
    "parameters alone": (
        lambda p, x: jnp.cumsum(x @ p["w"], -1) * jnp.exp(p["v"][:1]), {}, "there is no quantized cumsum",
    ),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_a_row_in_floats_names_the_decision(name):
    apply, options, reason = CASES[name]
    lines = str(quantize(apply, PARTS, [X], progress=False, **options)).splitlines()
    remarks = [re.split(r"  +", line)[-1] for line in lines if " floats  " in line]
    assert reason in "; ".join(remarks).split("; ")
    assert len(remarks) == len(set(remarks))


def test_nodes_of_integers_and_bools_are_neither_counted_nor_explained():
    def apply(p, ids, x):
        rows = p["v"][jnp.where(ids < 0, ids + 8, ids) % 8]
        return rows @ p["w"], jax.nn.one_hot(jnp.argmax(x @ p["u"], -1) + 1, 9)

    lines = str(quantize(apply, PARTS, [(np.arange(4), X)], floats="xla", progress=False)).splitlines()
    reasons = [re.split(r"  +", line)[-1] for line in lines if "there is no" in line]
    assert reasons == ["there is no quantized gather", "there is no quantized convert_element_type; it reads floats"]
    assert lines[-2:] == [
        "2 of 2 convolutions and products, 2 of 7 operators run on integers",
        'no single answer is promised: XLA computes the floats of convert_element_type_2; write floats="exact"',
    ]


def test_xla_casts_floats_to_integers():
    apply = lambda p, x: (x.astype(jnp.int8), x @ p["w"])  # noqa: E731
    assert quantize(apply, PARTS, [X], floats="xla", progress=False).by_xla == ("convert_element_type_1",)


def test_floats_made_of_integers_are_the_reason_of_what_they_reach():
    apply = lambda p, ids, x: (x @ p["w"] + jnp.sin(ids[:, None].astype(jnp.float32))) @ p["v"]  # noqa: E731
    text = str(quantize(apply, PARTS, [(np.arange(4), X)], progress=False))
    (row,) = (line for line in text.splitlines() if " floats  " in line and " ... " in line)
    assert row.endswith("there is no quantized convert_element_type")


IMAGES = np.ones((2, 4, 5, 5), np.float32)
FILTER = np.ones((4, 4, 3, 3), np.float32)


def convolution(**options):
    return lambda p, x: lax.conv_general_dilated(x, p["w"].astype(x.dtype), (1,) * (x.ndim - 2), "SAME", **options)


NEVER = {
    "a filter of data": (lambda p, x: lax.conv(p["w"], x, (1, 1), "SAME"), FILTER, "its filter is computed from data"),
    "no output": (convolution(), FILTER[:0], "an operand has no elements"),
    "batch groups": (convolution(batch_group_count=2), FILTER, "it has batch groups"),
    "volumes": (
        lambda p, x: convolution()({"w": p["w"][..., None]}, x[..., None]), FILTER,
        "its images have 3 dimensions, quantized convolutions take 1 or 2",
    ),
    "images of integers": (lambda p, x: convolution()(p, x.astype(jnp.int32)), FILTER, "its input is not a float"),
    "products of integers": (
        lambda p, x: x.astype(jnp.int32) @ p["w"], np.ones((5, 3), np.int32), "its inputs are not floats",
    ),
    "parameters alone": (
        lambda p, x: x + lax.conv(p["w"], p["w"], (1, 1), "SAME").sum(), FILTER,
        "it depends only on parameters",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NEVER)
def test_a_contraction_that_no_quantized_operator_computes_has_a_reason(name):
    apply, w, reason = NEVER[name]
    with pytest.raises(PtqError, match=rf"nothing to quantize.*\n.*: {reason}"):
        quantize(apply, {"w": w}, [IMAGES], progress=False)


def test_a_cast_that_is_exact_is_part_of_a_table():
    """As other elementwise functions are; beside a value that stays in floats, so does the cast."""
    rounded = lambda x: jnp.tanh(x.astype(jnp.int8).astype(jnp.float32))  # noqa: E731
    model = quantize(lambda p, x: rounded(x @ p["u"]) @ p["w"], PARTS, [X], progress=False)
    assert re.search(r"2 convert_element_type \+ tanh +table +integers", str(model))
    summed = quantize(lambda p, x: rounded(jnp.cumsum(x @ p["u"], -1)) @ p["w"], PARTS, [X], progress=False)
    assert re.search(r" there is no quantized cumsum(;|\n)", str(summed))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "bool"])
def test_inputs_that_are_integers_are_to_be_cast(dtype):
    x, w = np.eye(5, dtype=dtype), np.random.default_rng(0).standard_normal((5, 3), np.float32)
    apply = jax.numpy_dtype_promotion("standard")(lambda w, x: x @ w)
    with pytest.raises(PtqError, match=f"not floats; cast {dtype} in apply: write x.astype") as caught:
        quantize(apply, w, [x], progress=False)
    remedy = str(caught.value).rpartition("write ")[2]
    model = quantize(lambda w, x: eval(remedy, {"x": x, "jnp": jnp}) @ w, w, [x], progress=False)
    assert decibels(model.apply(model.params, x), w) > 30
    with pytest.raises(PtqError, match=r"not floats; cast both operands in apply: write x\.astype"):
        quantize(apply, w.astype(np.int8), [x], progress=False)
    with pytest.raises(PtqError, match=r"not floats$"):  # a cast would lose half of a complex number
        quantize(apply, w, [x * np.complex64(1j)], progress=False)


EMPTY = {
    "weights of no output": (lambda p, x: (x @ p["w"], x @ p["v"][:, :0]), 1),
    "weights of no input": (lambda p, x: x @ p["w"] + x[:, :0] @ p["v"][:0], 1),
    "values": (lambda p, x: x @ p["w"] + x[:, :0] @ (x @ p["v"])[:0], 2),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", EMPTY)
def test_products_of_operands_without_elements_stay_in_floats(name):
    apply, count = EMPTY[name]
    model = quantize(apply, PARTS, [X], progress=False)
    assert f"\n{count} of {count + 1} convolutions and products" in str(model)
    assert "an operand has no elements" in str(model)
    received, expected = (jax.tree.leaves(each) for each in (model.apply(model.params, X), apply(PARTS, X)))
    assert decibels(received[0], expected[0]) > 30
    assert [each.shape for each in received] == [each.shape for each in expected]


def test_products_of_parameters_alone_are_no_layers():
    """Like the first step of an RNN, whose state is zeros."""
    text = str(quantize(lambda p, x: x @ p["w"] + jnp.zeros_like(x) @ p["v"], PARTS, [X], progress=False))
    assert text.splitlines()[-2].startswith("1 of 1 convolutions and products")


def test_products_of_experts_with_their_own_rows_count_as_products():
    apply = lambda p, x: lax.ragged_dot(x @ p["w"], jnp.stack([p["u"], p["v"]]), jnp.array([1, 3]))  # noqa: E731
    text = str(quantize(apply, PARTS, [X], progress=False))
    assert "\n1 of 2 convolutions and products" in text
    assert "there is no quantized ragged_dot_general" in text


def test_products_of_experts_in_a_branch_count_as_products():
    def apply(p, x):
        experts = jnp.stack([p["u"], p["v"]])
        return lax.cond(x[0, 0] > 0, lambda h: lax.ragged_dot(h, experts, jnp.array([1, 3])), jnp.tanh, x @ p["w"])

    assert "\n1 of 2 convolutions and products" in str(quantize(apply, PARTS, [X], progress=False))


def test_a_product_of_several_axes_counts_once():
    apply = lambda p, x: jnp.einsum("nab,abc->nc", x.reshape(-1, 2, 4), p["w"].reshape(2, 4, 8))  # noqa: E731
    assert "\n1 of 1 convolutions and products" in str(quantize(apply, PARTS, [X], progress=False))


PRODUCTS = {
    "neither of its operands has exactly one axis that the other does not have": lambda p, x: jnp.einsum(
        "nd,nd->n", x @ p["w"], jnp.tanh(x @ p["v"])
    ),
    "it contracts several axes of two values": lambda p, x: jnp.einsum(
        "nab,nabc->nc", (x @ p["w"]).reshape(-1, 2, 4), (x @ p["v"]).reshape(-1, 2, 4, 1)
    ),
}


MERGED = {  # products of two values, and the same with one contracted axis and one axis of its own for one value
    "contracted": (
        PRODUCTS["it contracts several axes of two values"],
        lambda p, x: jnp.einsum("na,nac->nc", x @ p["w"], (x @ p["v"]).reshape(-1, 8, 1)),
    ),
    "own": (
        lambda p, x: jnp.einsum("aic,bjc->aibj", (x @ p["w"]).reshape(2, -1, 8), (x @ p["v"]).reshape(2, -1, 8)),
        lambda p, x: ((x @ p["w"]) @ (x @ p["v"]).T).reshape(2, -1, 2, x.shape[0] // 2),
    ),
}


@pytest.mark.rare
@pytest.mark.parametrize("name", MERGED)
def test_products_of_two_values_run_on_integers_if_axes_are_merged(name):
    separate, merged = (quantize(apply, PARTS, [X], progress=False) for apply in MERGED[name])
    assert "\n2 of 3 convolutions and products" in str(separate)
    assert "\n3 of 3 convolutions and products" in str(merged)
    assert decibels(merged.apply(merged.params, X), MERGED[name][0](PARTS, X)) > 30


@pytest.mark.parametrize("reason", PRODUCTS)
def test_products_of_two_values_that_no_operator_computes(reason):
    assert reason in str(quantize(PRODUCTS[reason], PARTS, [X], progress=False))
