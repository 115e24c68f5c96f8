"""Every public function, called with one argument of a wrong type, raises an error of jaxdml that names the parameter.

The walk takes a right call of each function and puts, for each parameter, an object, a string, None and a number in the
place of its argument. A call that accepts such an argument is right.
"""

import functools
import inspect
import tempfile
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from _operators.calls import GOOD
from helpers.descs import CONVOLUTION, DYNAMIC_QUANTIZE, right
from jaxdml._directml.desc import page_name
from jaxdml.errors import ArgumentTypeError, DescError, DxDispatchError, ExactError, ModelError, PtqError

OWN = (DescError, DxDispatchError, ExactError, ModelError, PtqError)
FROM_JAXDML = str(Path(dml.__file__).parent)
OBJECT = object()
WRONG = (OBJECT, "?", None, 3)
X, W = np.ones((2, 3), np.float32), np.ones((2, 32), np.int8)
SCALES = np.ones((2, 1), np.float32)
PARAMS = {"kernel": np.ones((3, 2), np.float32)}
EXAMPLE = min((Path(dml.__file__).parent / "examples" / "dxdispatch").glob("*.json"))
QUANTIZED = {"input": X, "scale": np.float32(0.5), "zero_point": None}
FLAGS = ("progress", "symmetric", "show")  # any object is true or false, or may be called
# What errors say in place of the name of a parameter.
OTHER_WORDS = {
    ("desc_from_dict", "value"): "the desc",
    ("ptq.quantize", "params"): "apply cannot be traced",  # None is a pytree, which apply does not take
    ("ptq.quantize", "batches"): "apply cannot be traced",
    ("ptq.Model.apply", "x"): "input",
    ("ptq.Model.sqnr", "x"): "inputs",
    ("onnx.compare", "inputs"): "input x",
    ("onnx.Model.apply", "x"): "input x",
    ("dxdispatch.load", "maximum_bytes"): "expected an integer from 1 to 3",
}


def linear(params, x):
    return x @ params["kernel"]


@functools.cache
def folder():
    return Path(tempfile.mkdtemp())


@functools.cache
def quantized():
    """A model, and its files in `folder`."""
    model = dml.ptq.quantize(linear, PARAMS, [X], progress=False)
    dml.ptq.save(folder() / "model.npz", model)
    dml.onnx.save(model, folder() / "model.onnx")
    return model


@functools.cache
def loaded():
    quantized()
    return dml.onnx.load(folder() / "model.onnx")


def of_models():
    """Right calls that need a model: functions, and their arguments by name."""
    model = quantized()
    npz, onnx = folder() / "model.npz", folder() / "model.onnx"
    digits = dml.examples.digits
    return {
        "ptq.quantize": (dml.ptq.quantize, {"apply": linear, "params": PARAMS, "batches": [X], "progress": False}),
        "ptq.load": (dml.ptq.load, {"path": npz, "apply": linear}),
        "ptq.save": (dml.ptq.save, {"path": folder() / "other.npz", "model": model}),
        "ptq.Model.apply": (lambda params, x: model.apply(params, x), {"params": model.params, "x": X}),
        "ptq.Model.sqnr": (
            lambda params, x, advice: model.sqnr(params, x, advice=advice),
            {"params": PARAMS, "x": X, "advice": 0},
        ),
        "onnx.load": (dml.onnx.load, {"model": onnx}),
        "onnx.check": (dml.onnx.check, {"model": onnx}),
        "onnx.save": (dml.onnx.save, {"model": model, "path": folder() / "other.onnx"}),
        "onnx.compare": (dml.onnx.compare, {"path": onnx, "inputs": X, "model": model}),
        "onnx.Model.apply": (lambda params, x: loaded().apply(params, x), {"params": loaded().params, "x": X}),
        "dxdispatch.load": (dml.dxdispatch.load, {"path": EXAMPLE}),
        "dxdispatch.Model.run": (
            lambda output_dir: dml.dxdispatch.load(EXAMPLE).run(output_dir=output_dir, show=str),
            {"output_dir": folder()},
        ),
        "digits.load": (digits.load, {}),
        "digits.save": (digits.save, {"path": folder() / "digits.npz", "digits": digits.load()}),
    }


DESC = right(CONVOLUTION)
OF_ARRAYS = {
    **{name: (getattr(dml, name), good) for name, good in GOOD.items()},
    **{f"checked.{name}": (getattr(dml.checked, name), good) for name, good in GOOD.items()},
    "fake_quantize": (dml.fake_quantize, QUANTIZED),
    "checked.fake_quantize": (dml.checked.fake_quantize, QUANTIZED),
    "matrix_multiply_blocks": (dml.matrix_multiply_blocks, {"a": W.astype(np.float32), "b": W, "b_scale": SCALES}),
    "prepare_matrix_multiply_blocks": (dml.prepare_matrix_multiply_blocks, {"b": W, "b_scale": SCALES}),
    "prepare_matrix_multiply_b": (dml.prepare_matrix_multiply_b, {"b": W}),
    "prepare_convolution_filter": (dml.prepare_convolution_filter, {"filter": np.ones((4, 2, 3), np.int8)}),
    "exact": (dml.exact, {"f": jnp.sin}),
    "kernels": (dml.kernels, {}),
    "use_kernels": (dml.use_kernels, {"which": "xla"}),
    "compile_operator": (dml.compile_operator, {"desc": DESC}),
    "CompiledOperator": (
        lambda input_tensor: dml.compile_operator(right(DYNAMIC_QUANTIZE))(input_tensor=input_tensor),
        {"input_tensor": np.ones(right(DYNAMIC_QUANTIZE).input_tensor.sizes, np.float32)},
    ),
    "validate": (dml.validate, {"desc": DESC}),
    "minimum_feature_level": (dml.minimum_feature_level, {"desc": DESC}),
    "check_feature_support": (dml.check_feature_support, {"operator": CONVOLUTION}),
    "calc_buffer_tensor_size": (
        dml.calc_buffer_tensor_size,
        {"data_type": dml.DataType.UINT8, "sizes": (2, 3)},
    ),
    "desc_from_dict": (dml.desc_from_dict, {"value": dml.desc_to_dict(DESC)}),
    "desc_to_dict": (dml.desc_to_dict, {"desc": DESC}),
    "desc_of": (
        lambda function, input, scale: dml.desc_of(function, input, scale),
        {"function": dml.dequantize, "input": W, "scale": 1.0},
    ),
    "ptq.quantize_bias": (dml.ptq.quantize_bias, {"bias": X[0], "input_scale": 0.1, "filter_scale": 0.1}),
    "ptq.quantize_weights": (dml.ptq.quantize_weights, {"w": X}),
    "ptq.scale_and_zero_point": (dml.ptq.scale_and_zero_point, {"low": -1.0, "high": 1.0, "dtype": jnp.int8}),
    "ptq.LeastSquares.range": (dml.ptq.LeastSquares(bins=8).update(X).range, {"dtype": jnp.int8}),
    "onnx.supported_ops": (dml.onnx.supported_ops, {}),
}


def mistakes(name, function, good):
    """The calls with one wrong argument that raise, each with the parameter and the error."""
    for parameter in inspect.signature(function).parameters:
        if parameter in FLAGS:
            continue
        raised = 0
        for wrong in WRONG:
            if isinstance(wrong, str) and parameter == "path":
                continue
            try:
                function(**{**good, parameter: wrong})
            except Exception as error:
                raised += 1
                yield parameter, wrong, error
        assert raised, f"{name} takes anything for {parameter}"


def check(name, function, good):
    function(**good)
    for parameter, wrong, error in mistakes(name, function, good):
        case = f"{name}({parameter}={wrong!r}): {type(error).__name__}: {error}"
        assert isinstance(error, OWN), case
        words = parameter, page_name(parameter), parameter.rstrip("s"), OTHER_WORDS.get((name, parameter), parameter)
        assert any(word in str(error) for word in words), case
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if FROM_JAXDML in frame.filename]
        assert len(frames) == 1, case


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", OF_ARRAYS)
def test_a_wrong_argument_is_named_in_one_frame(name):
    check(name, *OF_ARRAYS[name])


@pytest.mark.rare
def test_a_wrong_argument_of_what_needs_a_model_is_named_in_one_frame(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a string may be the path of a file to write
    for name, (function, good) in of_models().items():
        check(name, function, good)


@pytest.mark.rare
def test_every_public_function_is_called():
    called = {*OF_ARRAYS, *of_models()}
    modules = {"": dml, "checked.": dml.checked, "ptq.": dml.ptq, "onnx.": dml.onnx, "dxdispatch.": dml.dxdispatch}
    for prefix, module in modules.items():
        names = getattr(module, "__all__", dir(module))
        functions = {f"{prefix}{name}" for name in names if inspect.isroutine(getattr(module, name))}
        assert functions <= called


MISFITS = {
    "fake_quantize": lambda **more: dml.fake_quantize(X, 0.5, **more),
    "prepare_matrix_multiply_b": lambda **more: dml.prepare_matrix_multiply_b(W, **more),
    "prepare_convolution_filter": lambda **more: dml.prepare_convolution_filter(W, **more),
    "matrix_multiply_blocks": lambda **more: dml.matrix_multiply_blocks(X, W, SCALES, **more),
    "prepare_matrix_multiply_blocks": lambda **more: dml.prepare_matrix_multiply_blocks(W, SCALES, **more),
    "quantize": lambda **more: dml.ptq.quantize(linear, PARAMS, [X], **more),
    "quantize_weights": lambda **more: dml.ptq.quantize_weights(X, **more),
    "load": lambda **more: dml.onnx.load("gone.onnx", **more),
    "Rule": lambda **more: dml.ptq.Rule("head", **more),
    "Percentile": lambda **more: dml.ptq.Percentile(**more),
    "Model.sqnr": lambda **more: dml.ptq.Model.sqnr(None, PARAMS, X, **more),
}


@pytest.mark.parametrize("name", MISFITS)
def test_an_argument_that_is_not_there_is_an_error_like_that_of_operators(name):
    with pytest.raises(ArgumentTypeError, match=f"^{name}: there is no argument other; the arguments are ") as caught:
        MISFITS[name](other=3)
    assert (caught.value.operator, caught.value.tensor, caught.value.rule) == (name, "other", "argument")
    assert isinstance(caught.value, TypeError)
    assert sum(FROM_JAXDML in frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)) == 1


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda: dml.ptq.quantize(linear, PARAMS, [X], observers="mse"), "argument observers; did you mean observer?"),
        (lambda: dml.prepare_convolution_filter(W, groups=2), "argument groups; did you mean group_count?"),
        (lambda: dml.fake_quantize(X), "missing a required argument: 'scale'; it takes input, scale, zero_point, and "),
        (lambda: dml.prepare_matrix_multiply_b(W, 3), "too many positional arguments; it takes b$"),
        (
            lambda: dml.ptq.Model.apply(),
            "Model.apply: missing a required argument: 'self'; it takes params, \\*inputs$",
        ),
    ],
)
def test_the_error_names_what_the_function_takes(wrong, text):
    with pytest.raises(ArgumentTypeError, match=text):
        wrong()


def test_inputs_that_may_not_be_named():
    model = dml.ptq.quantize(linear, PARAMS, [X], progress=False)
    with pytest.raises(ArgumentTypeError, match=r"no argument input; the arguments are params, \*inputs, by position$"):
        model.apply(model.params, input=X)


def test_keys_are_no_numbers():
    with pytest.raises(dml.ptq.PtqError, match="expected a number or an array of numbers"):
        dml.ptq.scale_and_zero_point(jax.random.key(0), 1, np.int8)


def test_a_type_error_of_the_users_code_stays_as_it_is():
    def apply(params, x):
        raise TypeError("a mistake of the user")

    with pytest.raises(TypeError, match="a mistake of the user") as caught:
        dml.exact(apply)(PARAMS, X)
    assert type(caught.value) is TypeError
