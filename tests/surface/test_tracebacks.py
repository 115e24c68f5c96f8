"""The traceback of a wrong call: the caller's line, then one frame of jaxdml, then other lines of the user, if any."""

import contextlib
import traceback
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.descs import CONVOLUTION, right

X = np.zeros((2, 3), np.float32)
FROM_JAXDML = str(Path(dml.__file__).parent)
LINEAR = {"kernel": np.ones((3, 2), np.float32)}


def linear(params, x):
    return x @ params["kernel"]


def quantized():
    return dml.ptq.quantize(linear, LINEAR, [X + 1], progress=False)


WRONG = {
    "number": lambda: dml.element_wise_quantize_linear(X, 1e300),
    "level": lambda: dml.element_wise_quantize_linear(X, 0.1, 3, feature_level=3),
    "shape": lambda: dml.element_wise_quantize_linear(X, np.ones(7, np.float32)),
    "name": lambda: dml.element_wise_quantize_linear(X, scales=0.1),
    "output_dtype": lambda: dml.element_wise_quantize_linear(X, 0.1, output_dtype="x"),
    "fake_quantize": lambda: dml.fake_quantize(X, 0.1, 1000),
    "checked": lambda: dml.checked.element_wise_quantize_linear(X, 0.1, 1000),
    "prepare b": lambda: dml.prepare_matrix_multiply_b(X),
    "blocks": lambda: dml.matrix_multiply_blocks(X, X, 1.0),
    "prepare blocks": lambda: dml.prepare_matrix_multiply_blocks(X, None),
    "prepare filter": lambda: dml.prepare_convolution_filter(np.zeros((3, 2, 1), np.int8), group_count=2),
    "desc_of": lambda: dml.desc_of(dml.dequantize, X, 1.0),
    "compile_operator": lambda: dml.compile_operator(right(CONVOLUTION, group_count=0)),
    "initialize": lambda: dml.compile_operator(right(CONVOLUTION)).initialize(x=X),
    "compiled": lambda: dml.compile_operator(right(CONVOLUTION))(input_tensor=X),
    "validate": lambda: dml.validate(right(CONVOLUTION, group_count=0)),
    "desc_from_dict": lambda: dml.desc_from_dict({"Type": "x"}),
    "check_feature_support": lambda: dml.check_feature_support("x"),
    "calc_buffer_tensor_size": lambda: dml.calc_buffer_tensor_size(3, (1,)),
    "use_kernels": lambda: dml.use_kernels("avx2"),
    "scale_and_zero_point": lambda: dml.ptq.scale_and_zero_point(1.0, -1.0, jnp.int8),
    "quantize": lambda: dml.ptq.quantize(3, LINEAR, [X]),
    "model": lambda: quantized().apply({}, X),
    "ptq.load": lambda: dml.ptq.load("gone.npz", linear),
    "onnx.load": lambda: dml.onnx.load("gone.onnx"),
    "dxdispatch.load": lambda: dml.dxdispatch.load("gone.json"),
    "rule's pattern": lambda: dml.ptq.Rule("("),
    "rule's option": lambda: dml.ptq.Rule("", keep="int8"),
    "rule's observer": lambda: dml.ptq.Rule("", observer="max"),
    "momentum": lambda: dml.ptq.MovingAverage(momentum=3),
    "bins": lambda: dml.ptq.Percentile(bins=1),
    "bins of LeastSquares": lambda: dml.ptq.LeastSquares(bins=1),
    "percentile": lambda: dml.ptq.Percentile(percentile=1),
    "type of limits": lambda: dml.onnx.Limits(nodes="x"),
    "limits": lambda: dml.onnx.Limits(nodes=-1),
    "onnx.load, type": lambda: dml.onnx.load(3),
    "onnx.load, limits": lambda: dml.onnx.load("gone.onnx", limits=3),
    "onnx.load, numerics": lambda: dml.onnx.load("gone.onnx", numerics="x"),
    "ptq.save": lambda: dml.ptq.save("/gone/model.npz", quantized()),
    "model without inputs": lambda: quantized().apply(quantized().params),
    "model with too many inputs": lambda: quantized().apply(quantized().params, X, X),
}


@contextlib.contextmanager
def filtering(mode):
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", mode)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_filtering", before)


def frames_of(error):
    """The files of a traceback, from this file's last line on, without those that jax hides itself."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    last = len(files) - 1 - files[::-1].index(__file__)
    return files[last:]


def error_of(wrong):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (every error of jaxdml)
        wrong()
    return caught.value


@pytest.mark.parametrize("name", WRONG)
def test_one_frame_of_jaxdml_follows_the_callers_line(name):
    error = error_of(WRONG[name])
    assert type(error).__module__.startswith("jaxdml")
    files = frames_of(error)
    assert [Path(file).name for file in files] == [Path(__file__).name, "errors.py"]
    printed = "".join(traceback.format_exception(error)).partition(str(error))[0]
    assert printed.count(FROM_JAXDML) == 1  # no causes that bring frames of their own


@pytest.mark.parametrize("name", WRONG)
def test_all_frames_are_there_where_jax_shows_its_own(name):
    with filtering("off"):
        files = frames_of(error_of(WRONG[name]))
    assert sum(file.startswith(FROM_JAXDML) for file in files) > 1


@pytest.mark.parametrize("around", [jax.jit, jax.vmap, lambda function: lambda x: jax.eval_shape(function, x)])
@pytest.mark.parametrize("mode", ["auto", "remove_frames", "tracebackhide", "quiet_remove_frames"])
def test_one_frame_follows_under_transformations(around, mode):
    def wrong(x):
        return dml.element_wise_quantize_linear(x, 0.1, 1000)

    with filtering(mode):
        files = frames_of(error_of(lambda: around(wrong)(jnp.asarray(X))))
    assert [Path(file).name for file in files] == [Path(__file__).name, "errors.py"]


def test_a_wrong_call_in_a_function_that_jaxdml_traces_keeps_the_line_of_that_function():
    def apply(params, x):
        return dml.element_wise_quantize_linear(linear(params, x), 0.1, 1000)

    error = error_of(lambda: dml.ptq.quantize(apply, LINEAR, [X], progress=False))
    lines = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert lines[-2:] == ["call", "apply"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, kw_only=True)
class Wrong(dml.ptq.MinMax):
    def with_values(self, x):
        raise KeyError("a mistake of the user")


def mistaken(params, x):
    return linear(params, x) @ x.T


@pytest.mark.parametrize(
    ("wrong", "line", "text"),
    [
        (
            lambda: dml.ptq.quantize(linear, LINEAR, [X], observer=Wrong(), progress=False),
            "with_values",
            "batch 0: node 'input_0' (observe) with inputs (Wrong(float32[], bool[], float32[], float32[]), "
            "float32[2, 3], float32[1, 3]): 'a mistake of the user'",
        ),
        (
            lambda: dml.ptq.quantize(mistaken, LINEAR, [X], progress=False),
            "mistaken",
            "batch 0: apply cannot be traced with the inputs (float32[2, 3]): TypeError: dot_general",
        ),
    ],
)
def test_an_error_in_the_users_code_keeps_its_line_as_the_cause(wrong, line, text):
    error = error_of(wrong)
    assert type(error) is dml.ptq.PtqError
    assert str(error).startswith(text)
    assert [Path(file).name for file in frames_of(error)] == [Path(__file__).name, "errors.py"]
    frames = traceback.extract_tb(error.__cause__.__traceback__)
    assert {frame.filename for frame in frames} == {__file__}
    assert frames[-1].name == line


def test_an_error_may_be_its_own_cause():
    def wrong(params, x):
        error = dml.ptq.PtqError("around itself")
        raise error from error

    with pytest.raises(dml.ptq.PtqError, match="around itself"):
        dml.ptq.quantize(wrong, LINEAR, [X], progress=False)


def test_the_error_is_the_same_object_with_its_facts():
    error = error_of(WRONG["shape"])
    assert (error.operator, error.tensor, error.rule) == ("element_wise_quantize_linear", "ScaleTensor", "same_sizes")
    assert error.__cause__ is None
