"""Files with random mutations: a ModelError, or onnxruntime's outputs for the same bytes, and nothing else."""

import warnings

import numpy as np
import onnxruntime
import pytest
from onnxruntime import GraphOptimizationLevel as Level

import jaxdml.onnx
from _onnx.mutated_models import models, mutated
from helpers.one_node import on_x64_alone
from jaxdml.errors import ModelError

pytestmark = on_x64_alone
FORMS = ("qoperator", "qdq", "dynamic", "parts")
QUICK, RARE, PART = 60, 2000, 250
SHAPES = {"qoperator": (2, 2, 4, 4), "qdq": (2, 2, 4, 4), "dynamic": (2, 4), "parts": (2, 2, 4, 4)}

# Messages of onnxruntime about models that it rejects and jaxdml runs, and why jaxdml may run them.
LAXER = {
    "ValidateOpsetForDomain": "the opset is newer than onnxruntime",
    "(28) node with name": "onnxruntime 1.32 has no kernels of the newest versions of operators",
    "does not exist in the graph": "an If has a constant condition, and the other branch lacks an output",
    "codec can't decode": "a name is not UTF-8, and onnxruntime cannot tell what it refuses",
    "'tensor(uint16)' of input parameter (z)": "a zero point of 16 bits, which came with opset 21",
    "OutputMLValue": "onnxruntime computes in place what another node still needs, or has no room for",
}


def inputs_of(form):
    return {"x": np.random.default_rng(0).normal(size=SHAPES[form]).astype(np.float32)}


def computed(data, inputs):
    """The outputs by name, or the ModelError; a warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            model = jaxdml.onnx.load(data, numerics="onnxruntime")
            return {name: np.asarray(value) for name, value in model.apply(model.params, **inputs).items()}
        except ModelError as error:
            return error


def expected(data, inputs, level):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return dict(zip((output.name for output in session.get_outputs()), session.run(None, inputs), strict=True))


def are_equal(found, wanted):
    return found.keys() == wanted.keys() and all(_is_equal(found[name], wanted[name]) for name in found)


def _is_equal(one, other):
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    return bool(np.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True))


def problem(seed):
    """What is wrong with a mutation, and whether it runs; None if nothing is.

    onnxruntime fuses QDQ where it optimizes, and computes it in floats where it does not: one of the two is expected.
    """
    form = FORMS[seed % len(FORMS)]
    data, what = mutated(models()[form], seed)
    inputs = inputs_of(form)
    found = computed(data, inputs)
    if isinstance(found, ModelError):
        return None, False
    if form == "parts" and any(np.isnan(each).any() for each in found.values() if each.dtype.kind == "f"):
        return None, True  # onnxruntime's LSTM turns NaN into numbers
    try:
        if any(
            are_equal(found, expected(data, inputs, level))
            for level in (Level.ORT_DISABLE_ALL, Level.ORT_ENABLE_EXTENDED)
        ):
            return None, True
        return f"seed {seed}, {form}: {what}: outputs differ", True
    except Exception as error:  # onnxruntime's exceptions have no common base class
        if any(word in str(error) for word in LAXER):
            return None, True
        return f"seed {seed}, {form}: {what}: only onnxruntime refuses it: {error}", True


def check(seeds):
    told = [problem(seed) for seed in seeds]
    problems = [text for text, _ in told if text]
    assert not problems, "\n".join(problems)
    # An eighth of the mutated models run; if hardly any did, little would be compared.
    assert sum(runs for _, runs in told) > len(seeds) // 20


def test_mutations():
    check(range(QUICK))


@pytest.mark.rare
@pytest.mark.parametrize("first", range(QUICK, QUICK + RARE, PART))
def test_many_mutations(first):
    check(range(first, first + PART))


@pytest.mark.parametrize("form", FORMS)
def test_models_run_before_they_are_mutated(form):
    data, inputs = models()[form], inputs_of(form)
    assert are_equal(computed(data, inputs), expected(data, inputs, Level.ORT_DISABLE_ALL))


def test_mutations_are_the_same_each_time():
    data = models()["qdq"]
    assert [mutated(data, seed) for seed in range(20)] == [mutated(data, seed) for seed in range(20)]
    assert len({mutated(data, seed)[0] for seed in range(100)} - {data}) > 90
