"""The norms of language models, with the outputs that their files name, against onnxruntime."""

import functools

import jax
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

import jaxdml.onnx
from helpers.hostile_models import model, node, refused

KINDS = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16}
RNG = np.random.default_rng(0)
X, SKIP = (RNG.normal(size=(2, 5, 32)) for _ in range(2))
SCALE, BIAS, BETA = (RNG.normal(size=32) for _ in range(3))
ALL, SUM = ("y", "", "", "sum"), ("y",)

# By name: the operator, its domain, arrays, and the outputs.
NORMS = {
    "simplified": ("SimplifiedLayerNormalization", "", (X, SCALE), SUM),
    "simplified, the deviation": ("SimplifiedLayerNormalization", "", (X, SCALE), ("y", "inverse")),
    "skip simplified": ("SkipSimplifiedLayerNormalization", "com.microsoft", (X, SKIP, SCALE), SUM),
    "skip simplified, the sum": ("SkipSimplifiedLayerNormalization", "com.microsoft", (X, SKIP, SCALE), ALL),
    "skip simplified, a bias": ("SkipSimplifiedLayerNormalization", "com.microsoft", (X, SKIP, SCALE, BIAS), ALL),
    "skip simplified, one skip for all": (
        "SkipSimplifiedLayerNormalization",
        "com.microsoft",
        (X, SKIP[0], SCALE),
        ALL,
    ),
    "skip": ("SkipLayerNormalization", "com.microsoft", (X, SKIP, SCALE, BETA), ALL),
    "skip, a bias": ("SkipLayerNormalization", "com.microsoft", (X, SKIP, SCALE, BETA, BIAS), ALL),
    "ONNX": ("RMSNormalization", "", (X, SCALE), SUM),
}


@functools.cache
def norm(name, dtype, outputs=None):
    """The model, and its inputs: all arrays."""
    operator, domain, arrays, own = NORMS[name]
    names = [f"x{place}" for place in range(len(arrays))]
    given = {each: array.astype(dtype) for each, array in zip(names, arrays, strict=True)}
    nodes = [node(operator, names, list(outputs or own), domain=domain, epsilon=1e-5)]
    typed = [(each, KINDS[np.dtype(dtype)], array.shape) for each, array in given.items()]
    results = [
        (each, TensorProto.FLOAT if each == "inverse" else KINDS[np.dtype(dtype)], None)
        for each in outputs or own
        if each
    ]
    return model(nodes, (), typed, results, opset=23, ir_version=10), given


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("dtype", "distance"), [(np.float32, 2e-6), (np.float16, 4e-3)])
def test_norms(dtype, distance):
    models = {name: norm(name, dtype) for name in NORMS}
    made = {name: jaxdml.onnx.load(proto) for name, (proto, _) in models.items()}
    # One program: compiling each on its own would take most of the time.
    outputs = jax.jit(lambda given: {name: each.apply(each.params, **given[name]) for name, each in made.items()})(
        {name: given for name, (_, given) in models.items()}
    )
    for name, (proto, given) in models.items():
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        for result, theirs in zip(session.get_outputs(), session.run(None, given), strict=True):
            got = outputs[name][result.name]
            assert (got.shape, got.dtype) == (theirs.shape, theirs.dtype), name
            np.testing.assert_allclose(got, theirs, rtol=distance, atol=distance, err_msg=name)


def test_a_mean_that_is_not_computed_and_an_output_too_many_are_refused():
    proto, _ = norm("skip simplified", np.float32, ("y", "mean", "", "sum"))
    refused(proto, "SkipSimplifiedLayerNormalization", "jaxdml does not compute its output 'mean'")
    proto, _ = norm("skip simplified", np.float32, ("y", "", "", "sum", "more"))
    refused(proto, "it has 5 outputs, expected at most 4")
