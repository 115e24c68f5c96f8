"""QDQ models run the operators into which onnxruntime fuses them, and give its bits; a table explains the exceptions.

If the operators are those that onnxruntime runs, by its defaults or by a deviation's settings, its optimized model
is the oracle; otherwise the oracle is its model without optimizations.
"""

import functools
import tempfile
from pathlib import Path

import jax
import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime import GraphOptimizationLevel as Level

import jaxdml.onnx
from _onnx.qdq_deviations import DEVIATIONS, OF
from helpers.one_node import on_x64_alone
from helpers.qdq_builder import Builder, random_inputs
from helpers.qdq_graphs import GROUPS, MODELS
from jaxdml.errors import ModelError

pytestmark = on_x64_alone
DOCUMENT = Path(__file__).parents[2] / "docs" / "onnx_fusing.md"
ALL_GROUPS = range(len(GROUPS))
SAMPLE = list(MODELS)[::9]


def session(model, level=Level.ORT_ENABLE_EXTENDED, settings=(), path=""):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.optimized_model_filepath = path
    for key, value in dict(settings).items():
        options.add_session_config_entry(key, value)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def optimized(model, settings=()):
    """The operators that onnxruntime runs; none if it rejects the model."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "optimized.onnx")
        try:
            session(model, settings=settings, path=path)
        except Exception:
            return None
        return sorted(node.op_type for node in onnx.load(path).graph.node)


def loaded(model):
    return jaxdml.onnx.load(model, numerics="onnxruntime")


@functools.cache
def operators(name):
    return sorted(loaded(MODELS[name]()).operators)


def wrong_operators(name):
    """What is wrong with a model's operators; None if nothing is."""
    model = MODELS[name]()
    ours, theirs, deviation = operators(name), optimized(model), OF.get(name)
    if deviation is None:
        return None if ours == theirs else f"{ours} run, onnxruntime runs {theirs}"
    if ours == theirs:
        return "is no deviation"
    expected = deviation.operators(name, model)
    expected = optimized(model, deviation.settings) if expected is None else expected
    return None if ours == expected else f"{ours} run, expected {expected}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("group", ALL_GROUPS)
def test_operators_are_onnxruntimes_or_documented(group):
    assert {name: wrong for name in GROUPS[group] if (wrong := wrong_operators(name))} == {}


@pytest.mark.parametrize("sizes", [{"kernel_shape": [2, 2, 2]}, {"strides": [2, 2, 2]}, {"pads": [0, 0, 0, 1, 1, 1]}])
def test_integer_convolutions_of_three_dimensions_are_refused_at_load(sizes):
    build = Builder()
    x, w = build.input((1, 4, 5, 5, 5), "u8"), build.drawn((8, 4, 2, 2, 2), "u8")
    build.output(build.node("ConvInteger", x, w, **sizes), "s32")
    with pytest.raises(ModelError, match="its images have 3 dimensions; supported: 1 and 2"):
        jaxdml.onnx.load(build.model())


def onnxruntime_values(name, model, inputs):
    deviation = OF.get(name)
    if deviation is None or deviation.settings:
        settings = deviation.settings if deviation else ()
        return session(model, settings=settings).run(None, inputs)
    return session(model, Level.ORT_DISABLE_ALL).run(None, inputs)


def wrong_values(names):
    """By name, the outputs of models that differ from onnxruntime's."""
    models = {name: MODELS[name]() for name in names}
    inputs = {name: random_inputs(model) for name, model in models.items()}
    runs = {name: loaded(model) for name, model in models.items()}
    # One program: compiling each on its own would take most of the time.
    computed = jax.jit(lambda given: {name: run.apply(run.params, **given[name]) for name, run in runs.items()})(inputs)
    found = {}
    for name, model in models.items():
        expected = onnxruntime_values(name, model, inputs[name])
        for output, value in zip(model.graph.output, expected, strict=True):
            mine = np.asarray(computed[name][output.name])
            bits = value.astype(jax.dtypes.canonicalize_dtype(value.dtype))
            if (mine.dtype, mine.shape, mine.tobytes()) != (bits.dtype, bits.shape, bits.tobytes()):
                found[name] = f"{mine} is {value} in onnxruntime"
    return found


@pytest.mark.rare
def test_values_of_a_sample_are_onnxruntimes():
    assert wrong_values(SAMPLE) == {}


@pytest.mark.rare
@pytest.mark.parametrize("group", ALL_GROUPS)
def test_values_are_onnxruntimes(group):
    assert wrong_values(GROUPS[group]) == {}


@pytest.mark.rare
@pytest.mark.parametrize("group", ALL_GROUPS)
def test_directml_has_the_same_operators_and_shapes(group):
    for name in GROUPS[group]:
        model = MODELS[name]()
        run = jaxdml.onnx.load(model)
        shapes = jax.eval_shape(run.apply, run.params, **random_inputs(model))
        assert sorted(run.operators) == operators(name)
        other = loaded(model)
        assert shapes == jax.eval_shape(other.apply, other.params, **random_inputs(model)), name


def test_each_deviation_is_of_models_and_in_the_documentation():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert OF.keys() <= MODELS.keys()
    assert [each.reason for each in DEVIATIONS if f"| {each.reason} |" not in text] == []
    assert sum(line.startswith("| ") for line in text.split("## Deviations")[1].splitlines()) == len(DEVIATIONS) + 2


@pytest.mark.rare
def test_models_reach_all_that_is_fused():
    found = {operator for name in MODELS for operator in operators(name)}
    quantized = "Conv MatMul Add Mul Concat AveragePool GlobalAveragePool LeakyRelu Sigmoid Softmax"
    assert {f"QLinear{name}" for name in quantized.split()} | {"QGemm", "MatMulIntegerToFloat"} <= found
