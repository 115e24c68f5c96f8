"""Awkward functions: close to the float function, on integers where possible, and otherwise with a stated reason."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from _ptq.awkward import AWKWARD
from _ptq.quantized import decibels

CASES = {case.name: case for case in AWKWARD}
FLOATS = ("conv_general_dilated", "convolution", "dot_general", "product")
QUICK = (
    "silu", "bfloat16 params and inputs", "weights on the left", "filter computed from data", "scan over layers",
    "scan over time",
)  # fmt: skip
REASONS = {  # by what a case expects: the operators that stay in floats, and words of the remarks that say why
    "int8": None,
    "batched weights": None,  # they are equivalent to one matrix
    "3-D convolution": ("conv_general_dilated", "its images have 3 dimensions, quantized convolutions take 1 or 2"),
    "filter computed from data": ("conv_general_dilated", "its filter is computed from data"),
    "cond": ("cond", "its branches"),
    "while": ("while", "its body"),
}


@functools.cache
def quantized(name):
    """The model, calibrated on four rows, and these rows."""
    case = CASES[name]
    inputs = case.inputs(4, seed=1)
    return dml.ptq.quantize(case.apply, case.params, [inputs], progress=False), inputs


def all_nodes(nodes):
    """The nodes, and those of the bodies of scans over layers."""
    inner = [each for node in nodes if "body" in node.options for each in all_nodes(node.options["body"].nodes)]
    return [node for node in nodes if "body" not in node.options] + inner


def all_cases():
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.rare) for name in CASES]


def test_there_are_many_cases():
    assert len(CASES) == len(AWKWARD) >= 100
    assert set(QUICK) <= CASES.keys()
    assert {case.expects for case in AWKWARD} == REASONS.keys()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", all_cases())
def test_at_least_25_decibels_on_what_it_was_calibrated_with(name):
    case, (model, inputs) = CASES[name], quantized(name)
    received, expected = model.apply(model.params, *inputs), jax.jit(case.apply)(case.params, *inputs)
    assert jax.tree.structure(received) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(received), jax.tree.leaves(expected), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
    assert 25 <= decibels(received, expected) < 100


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", all_cases())
def test_contractions_run_on_integers_or_it_is_said_why_not(name):
    model, _ = quantized(name)
    nodes = all_nodes(model._fused.nodes)
    reason, floats = REASONS[CASES[name].expects], [node for node in nodes if node.on == "floats"]
    assert [node for node in nodes if node.operator.is_quantized]
    if reason is None:
        assert not [node for node in floats if node.operator.name in (*FLOATS, "scan")], str(model)
        return
    (node,) = (node for node in floats if node.operator.name in (*FLOATS, "cond", "while", "scan"))
    assert node.operator.name == reason[0]
    assert reason[1] in node.remark
    assert node.remark in str(model)


@pytest.mark.rare
@pytest.mark.parametrize("name", CASES)
def test_other_batches(name):
    """Other batches, whether or not they have the same equations."""
    case, (model, inputs) = CASES[name], quantized(name)
    expected = model.apply(model.params, *inputs)
    for batch in (1, 3):
        given = [x[:batch] for x in inputs]
        received = model.apply(model.params, *given)
        exact = jax.jit(case.apply)(case.params, *given)
        assert decibels(received, exact) > 20, name
        for one, other in zip(jax.tree.leaves(received), jax.tree.leaves(expected), strict=True):
            assert one.shape == (batch, *other.shape[1:])
            assert np.isfinite(np.asarray(one, jnp.float32)).all()
