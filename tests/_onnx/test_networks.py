"""Quantized networks give onnxruntime's bits; where they do not, the last bits of float operators are the cause.

Sums in floats, and exponential and error functions, have no order or formula that all processors share. Where their
last bits differ, quantization may give another integer, and later values differ more.
"""

import functools
import itertools

import jax
import numpy as np
import onnx
import pytest

import jaxdml.onnx
from _onnx.float_models import encoder, mlp, mobilenet_v2, resnet18
from _onnx.quantized_models import FORMS, onnxruntime_outputs, quantized, random_inputs
from helpers.one_node import on_x64_alone
from jaxdml._graph.evaluate import results

pytestmark = on_x64_alone
NETWORKS = {  # and batches, with 10,000 outputs in all
    "ResNet-18": (functools.partial(resnet18, size=64, width=16), (1, 3, 8)),
    "MobileNetV2": (functools.partial(mobilenet_v2, size=64, width=8), (1, 3, 8)),
    "MLP": (mlp, (1, 7, 1000)),
    "encoder": (encoder, (1, 3, 8)),
}
WEIGHTS = {"per tensor": {}, "per channel": {"per_channel": True, "weight": "int8", "reduce_range": True}}
PARTING = {  # by network and form: the float operators whose last bits are not onnxruntime's
    ("MLP", "dynamic"): {"Softmax"},
    ("MobileNetV2", "qoperator"): {"ReduceMean"},  # its result is quantized to the same integers
    ("MobileNetV2", "dynamic"): {"ReduceMean", "Sigmoid", "AveragePool"},
    ("encoder", "qoperator"): {"LayerNormalization", "Erf"},
    ("encoder", "dynamic"): {"Softmax", "LayerNormalization", "Erf"},
}
DIFFERING = {("MLP", "dynamic"), ("MobileNetV2", "dynamic"), ("encoder", "qoperator"), ("encoder", "dynamic")}
ULPS = 8  # the largest difference of float operators, for the largest value of a tensor


def cases(forms, *quick):
    """Parameters for every network, form and granularity; all except the quick ones run only in `make test-all`."""
    every = [case for case in itertools.product(NETWORKS, FORMS, WEIGHTS) if case[:2] in forms]
    return [pytest.param(*case, marks=() if case in quick else pytest.mark.rare, id="-".join(case)) for case in every]


@functools.cache
def loaded(network, form, weights):
    """The file of onnxruntime's quantizer, and the model that is loaded from it."""
    proto = quantized(NETWORKS[network][0](), form, **WEIGHTS[weights])
    return proto, jaxdml.onnx.load(proto, numerics="onnxruntime")


def onnxruntime_values(proto, inputs):
    """All values of a model that onnxruntime runs without optimizations."""
    every = onnx.ModelProto()
    every.CopyFrom(proto)
    declared = {value.name for value in proto.graph.output}
    made = [name for node in proto.graph.node for name in node.output if name and name not in declared]
    every.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    return onnxruntime_outputs(every, inputs, optimized=False)


def differing(ours, theirs):
    ours = np.asarray(ours)
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    return np.count_nonzero(ours != theirs)


def ulps(ours, theirs):
    """The difference of two tensors, in units in the last place of the largest value."""
    assert theirs.dtype == np.float32
    return np.abs(np.asarray(ours) - theirs).max() / np.spacing(np.abs(theirs).max())


EQUAL = set(itertools.product(NETWORKS, FORMS)) - DIFFERING
AS_IN_THE_FILE = set(itertools.product(NETWORKS, ("qoperator", "dynamic")))  # not fused, so that all values are there
WITH_A_DYNAMIC_MLP = cases(AS_IN_THE_FILE, ("MLP", "dynamic", "per tensor"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("network", "form", "weights"), cases(EQUAL, ("MLP", "qoperator", "per channel"), ("MLP", "qdq", "per tensor"))
)
def test_the_outputs_are_those_of_onnxruntime(network, form, weights):
    """QDQ models are compared with onnxruntime's optimized models: without optimization, they compute in floats."""
    proto, model = loaded(network, form, weights)
    count = 0
    for batch in NETWORKS[network][1]:
        inputs = random_inputs(proto, batch, seed=20 + batch)
        received = model.apply(model.params, **inputs)
        for optimized in (True,) if form == "qdq" else (True, False):
            for name, expected in onnxruntime_outputs(proto, inputs, optimized=optimized).items():
                assert differing(received[name], expected) == 0
                count += expected.size
    assert count >= 10_000


@pytest.mark.rare
@pytest.mark.parametrize(("network", "form", "weights"), WITH_A_DYNAMIC_MLP)
def test_values_part_at_a_float_operator(network, form, weights):
    """All values in the order of the nodes; the first one that differs does so only in its last bits."""
    proto, model = loaded(network, form, weights)
    kinds = {name: node.op_type for node in proto.graph.node for name in node.output}
    for batch in NETWORKS[network][1]:
        inputs = random_inputs(proto, batch, seed=20 + batch)
        theirs = onnxruntime_values(proto, inputs)
        made = [name for node in model.nodes for name in node.outputs if name]
        ours = model.values(model.params, made, **inputs)
        first = next((name for name in made if differing(ours[name], theirs[name])), None)
        if first is not None:
            assert kinds[first] in PARTING.get((network, form), ()), first
            assert ulps(ours[first], theirs[first]) <= ULPS, first


@pytest.mark.parametrize(("network", "form", "weights"), WITH_A_DYNAMIC_MLP)
def test_nodes_give_the_bits_of_onnxruntime_on_its_values(network, form, weights):
    """Each node computes onnxruntime's result from the inputs that it has in onnxruntime."""
    proto, model = loaded(network, form, weights)
    graph = model._graph

    @jax.jit
    def computed(params, values):
        given, made = {**graph.constants, **params, **values}, {}
        for node in graph.nodes:
            made.update(zip(node.outputs, results(node, given, lambda *_: None), strict=False))
        return made

    inputs = random_inputs(proto, NETWORKS[network][1][1], seed=5)
    theirs = onnxruntime_values(proto, inputs)
    ours = computed(model.params, theirs | inputs)
    for node in graph.nodes:
        may_part = node.operator.name in PARTING.get((network, form), ())
        for name in node.outputs:
            assert may_part or differing(ours[name], theirs[name]) == 0, name
            assert not may_part or ulps(ours[name], theirs[name]) <= ULPS, name
