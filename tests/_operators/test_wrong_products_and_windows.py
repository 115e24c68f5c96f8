"""Wrong calls of the seven operators of `spec_more_pages`, which the tests of all operators do not make."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jaxdml as dml
from _operators.calls import GOOD, HALF, batches, call, caught, problems, s8, steps, u8
from helpers.descs import (
    CONVOLUTION_INTEGER,
    DEQUANTIZE_BLOCKS,
    DYNAMIC_QUANTIZE,
    MATRIX_MULTIPLY_INTEGER,
    MATRIX_MULTIPLY_TO_FLOAT,
    POOLING,
    QUANTIZE_BLOCKS,
    case,
)
from jaxdml import ArgumentTypeError, DescError

F16, F32 = np.float16, np.float32
X = np.full((2, 4, 6), 1.5, F32)


def wrong_bias():
    """The error is about the argument that the caller can change, not about the output that follows from it."""
    for shape in ((5,), (4,), (3, 1), (3, 4, 6), (2, 4, 5)):
        changes, error = {"bias": np.zeros(shape, F32)}, (DescError, "BiasTensor", "same_sizes")
        fix = "; give bias one value for each column, or sizes that broadcast to the output's"
        yield f"bias {shape}", MATRIX_MULTIPLY_TO_FLOAT, changes, error, "expected [2, 4, 6], that of OutputTensor", fix


def products():
    three = "expected [1, 1, 1] or [1, 4, 1]: one value, or one for each of the 4 rows"
    for operator in (MATRIX_MULTIPLY_INTEGER, MATRIX_MULTIPLY_TO_FLOAT):
        for changes, tensor, *said in (
            ({"a_zero_point": u8(4)}, "AZeroPointTensor", three, "; write a_zero_point[:, None]"),
            (
                {"a_zero_point": u8(2, 1, 1)},
                "AZeroPointTensor",
                three,
                "; a value for each column or matrix is not allowed",
            ),
            ({"a_zero_point": u8(2, 4, 1)}, "AZeroPointTensor", three, "4 rows; a value for each column or matrix"),
            ({"b_zero_point": s8(2, 1, 6)}, "BZeroPointTensor", "expected [1, 1, 1] or [1, 1, 6]"),
            ({"b_zero_point": s8(6, 1)}, "BZeroPointTensor", "; write b_zero_point.reshape(-1)"),
        ):
            name = next(iter(changes))
            yield f"{name} {changes[name].shape}", operator, changes, (DescError, tensor, "sizes"), *said
        for name in "ab":
            changes = {name: GOOD[operator][name].astype(F32)}
            error, said = (DescError, f"{name.upper()}Tensor", "data_type"), "has data type FLOAT32, feature level 6_4"
            fix = "; quantize it first: element_wise_quantize_linear(a, scale, zero_point, output_dtype=...)"
            if name == "b":
                fix = "; quantize it first: b, b_scale = jaxdml.ptq.quantize_weights(b, axis=-1)"
            yield f"float {name}", operator, changes, error, said, fix
    for changes, tensor, said in (
        ({"bias": np.zeros(6, F16), "a_scale": HALF, "b_scale": HALF}, "BiasTensor",
         "has data type FLOAT16, expected FLOAT32, that of AScaleTensor; write bias.astype(jnp.float32)"),
        ({"bias": None, "a_scale": np.ones((), F16), "b_scale": HALF}, "BScaleTensor",
         "has data type FLOAT32, expected FLOAT16, that of AScaleTensor; write b_scale.astype(jnp.float16)"),
        ({"bias": None, "a_scale": HALF, "b_scale": np.ones((), F16)}, "BScaleTensor",
         "has data type FLOAT16, expected FLOAT32, that of AScaleTensor; write b_scale.astype(jnp.float32)"),
        ({"a_scale": np.ones((), F16), "b_scale": 2}, "BiasTensor",
         "has data type FLOAT32, expected FLOAT16, that of AScaleTensor; write bias.astype(jnp.float16)"),
    ):  # fmt: skip
        yield said, MATRIX_MULTIPLY_TO_FLOAT, changes, (DescError, tensor, "same_data_type"), f"{tensor} {said}"
    bias, error = np.zeros(6, np.int32), (DescError, "BiasTensor", "data_type")
    yield (
        "bias int32",
        MATRIX_MULTIPLY_TO_FLOAT,
        {"bias": bias},
        error,
        "allows FLOAT32 or FLOAT16; dequantize it first",
    )
    error, said = (DescError, "AScaleTensor", "range"), "AScaleTensor is 100000.0, which FLOAT16 cannot hold"
    changes = {"a_scale": 1e5, "b_scale": np.ones((), F16), "bias": None}
    yield "a number beside a half", MATRIX_MULTIPLY_TO_FLOAT, changes, error, said
    for wrong, kind in (
        ([0.5] * 6, "list"),
        (1.0, "float"),
        (dml.prepare_matrix_multiply_b(s8(5, 6)), "PreparedMatrix"),
    ):
        error = ArgumentTypeError, "BiasTensor", "array"
        yield f"bias a {kind}", MATRIX_MULTIPLY_TO_FLOAT, {"bias": wrong}, error, f"BiasTensor is a {kind}"


def windows():
    volume = {"input": u8(1, 2, 4, 4, 4), "filter": s8(3, 2, 2, 2, 2)}
    error, said = (
        (DescError, "InputTensor", "dimension_count"),
        "allows 3 to 4; DirectML convolves in one or two ",
    )
    yield "5-D", CONVOLUTION_INTEGER, volume, error, said
    error, said = (DescError, "FilterTensor", "dimension_count"), "; a stack of filters is not a filter: prepare "
    yield "stack", CONVOLUTION_INTEGER, {"filter": s8(3, 6, 4, 3, 4)}, error, said, "jax.vmap(dml.prepare_convolution_"
    # Input [7, 9] through windows of [3, 4] at strides of 1.
    for word, start, end in (("SAME", (1, 1), (1, 2)), ("same_upper", (1, 1), (1, 2)), ("SAME_LOWER", (1, 2), (1, 1))):
        for operator in (CONVOLUTION_INTEGER, POOLING):
            for name, tensor in (("start_padding", "StartPadding"), ("end_padding", "EndPadding")):
                fix = f"{word.upper()} in other libraries is start_padding={start}, end_padding={end} here"
                yield f"{name} {word}", operator, {name: word}, (ArgumentTypeError, tensor, "static"), fix
    for operator in (CONVOLUTION_INTEGER, POOLING):
        error, fix = (
            (ArgumentTypeError, "StartPadding", "static"),
            "padding is given in numbers: VALID in other libraries is 0 here",
        )
        yield "VALID", operator, {"start_padding": "VALID"}, error, fix
        error = ArgumentTypeError, "padding", "argument"
        fix = "write start_padding for the start of each dimension, and end_padding for the end"
        yield "padding", operator, {"padding": 1}, error, "there is no argument padding; ", fix
    for changes, tensor, rule, *said in (
        ({"window_size": (8, 2)}, "WindowSize", "kernel",
         "spans 8 elements with dilation 1, the padded input has 7; pad the input or shrink the window"),
        ({"window_size": 5, "dilations": 3}, "WindowSize", "kernel", "spans 13 elements with dilation 3"),
        ({"window_size": 2, "start_padding": (2, 0)}, "StartPadding", "padding",
         "is [2, 0]: the window at index 0 of the output covers only padding; pad less, or set include_padding"),
        ({"window_size": 2, "end_padding": (0, 2)}, "EndPadding", "padding",
         "is [0, 2]: the window at index 9 of the output covers only padding; pad less, or set include_padding"),
        ({"input": u8(4, 7, 9), "window_size": 3}, "InputTensor", "dimension_count",
         "allows 4 to 5; write input[None]"),
        ({"input_scale": steps(9)}, "InputScaleTensor", "sizes", "one for each of the 4 channels; there are 9 values"),
        ({"output_scale": steps(4, 1)}, "OutputScaleTensor", "sizes", "write output_scale.reshape(-1, 1, 1)"),
    ):  # fmt: skip
        yield said[0], POOLING, changes, (DescError, tensor, rule), *said
    for name in ("window_shape", "include_pad", "stride"):
        yield name, POOLING, {name: 1}, (ArgumentTypeError, name, "argument"), f"there is no argument {name}; did you "


def dynamic():
    for dtype in (np.uint8, np.int8, np.int32):
        error, fix = (
            (DescError, "InputTensor", "data_type"),
            "; dequantize it first: element_wise_dequantize_linear(input",
        )
        yield f"input {dtype}", DYNAMIC_QUANTIZE, {"input": np.zeros((2, 3), dtype)}, error, fix
    for dtype in (np.int16, np.uint16, jnp.int4):
        for changes in ({}, {"feature_level": dml.FeatureLevel.JAXDML}):
            error, said = (DescError, "output_dtype", "data_type"), f"output_dtype is {np.dtype(dtype)}, feature level "
            yield f"{dtype}", DYNAMIC_QUANTIZE, {**changes, "output_dtype": dtype}, error, said, "allows int8 or uint8"
    for name in ("scale", "zero_point", "output_scale"):
        error, said = (ArgumentTypeError, name, "argument"), f"there is no argument {name}; "
        yield name, DYNAMIC_QUANTIZE, {name: 0.5}, error, said


@batches(wrong_bias)
def test_bias_is_at_fault(cases):
    assert problems(cases) == ""


@batches(products)
def test_products(cases):
    assert problems(cases) == ""


@batches(windows)
def test_windows(cases):
    assert problems(cases) == ""


@batches(dynamic)
def test_dynamic_quantize(cases):
    assert problems(cases) == ""


def test_windows_in_padding_alone_are_taken_where_padding_counts():
    """As the error says; such a window is a mean of zeros, so it gives the output's zero point."""
    options = {"window_size": 2, "start_padding": (2, 0)}
    assert "set include_padding" in str(caught(POOLING, {**GOOD[POOLING], **options}))
    output = call(POOLING, {**GOOD[POOLING], **options, "include_padding": True})
    assert output.shape == (2, 4, 8, 8)
    assert (np.asarray(output)[:, :, 0] == GOOD[POOLING]["output_zero_point"]).all()
    assert (np.asarray(output)[:, :, 2:] != GOOD[POOLING]["output_zero_point"]).all()


@pytest.mark.parametrize(
    ("start_padding", "is_right"), [((1, 1), True), ((1, 2), False), pytest.param((2, 1), False, id="of the symbolic")]
)
def test_windows_over_symbolic_sizes(start_padding, is_right):
    """Whether the first window covers only padding is always known; for the last one, only if the sizes are known."""
    shape = jax.ShapeDtypeStruct(export.symbolic_shape("b, 2, h, 5", constraints=["h >= 4"]), np.uint8)
    options = {"window_size": 2, "start_padding": start_padding}
    trace = export.export(jax.jit(lambda x: call(POOLING, {**GOOD[POOLING], "input": x, **options})))
    if is_right:
        assert trace(shape).out_avals[0].shape[3] == 5
    else:
        with pytest.raises(DescError, match="the window at index 0 of the output covers only padding"):
            trace(shape)


@pytest.mark.parametrize("wrong", ["start_padding", "end_padding", "dilations", "window_size", "strides"])
def test_a_symbolic_window_is_the_whole_image(wrong):
    """Otherwise the number of windows, or of their elements, would be unknown."""

    def pooled(x):
        wrong_value = {"window_size": (2 * x.shape[2] - 1, 2), "strides": x.shape[2:]}.get(wrong, 2)
        return call(POOLING, {**GOOD[POOLING], "input": x, "window_size": (x.shape[2], 2), wrong: wrong_value})

    shape = jax.ShapeDtypeStruct(export.symbolic_shape("b, 2, h, 5"), np.uint8)
    message = {
        "window_size": r"WindowSize has symbolic size 2\*h - 1, which must be .*, or window_size=input.shape\[2:\]",
        "strides": r"Strides is \(h, 5\), expected an integer or a tuple of 2 integers",
    }.get(wrong, "WindowSize has symbolic size h, which must be the input's, h, without dilation and padding; set dil")
    with pytest.raises(DescError, match=message):
        export.export(jax.jit(pooled))(shape)


def test_the_padding_that_same_stands_for():
    """With the numbers of the error the output has the input's spatial sizes."""
    for operator in (CONVOLUTION_INTEGER, POOLING):
        options = {"start_padding": (1, 1), "end_padding": (1, 2)}
        output = jax.eval_shape(
            lambda operator=operator, options=options: call(operator, {**GOOD[operator], **options})
        )
        assert output.shape[2:] == GOOD[operator]["input"].shape[2:]


POSITIONAL = (
    (
        DYNAMIC_QUANTIZE,
        (X, np.uint8),
        "too many positional arguments; it takes input, and by name only: output_dtype, ",
    ),
    (
        MATRIX_MULTIPLY_INTEGER,
        (u8(2, 3), 3, s8(3, 2)),
        "missing a required argument: 'b_zero_point'; it takes a, a_zero",
    ),
    (
        MATRIX_MULTIPLY_INTEGER,
        (u8(2, 3), 0.1, 3, s8(3, 2), 0.1, 3),
        "too many positional arguments; it takes a, a_zero",
    ),
    (CONVOLUTION_INTEGER, (u8(1, 1, 3), 3, s8(1, 1, 2), 3, 2), "too many positional arguments; it takes input, "),
    (MATRIX_MULTIPLY_TO_FLOAT, (u8(2, 3), 0.1, 3, s8(3, 2), 0.1, 3, None, 0.5), "too many positional arguments; it ta"),
    (
        QUANTIZE_BLOCKS,
        (X, 0.1, 3, np.uint8),
        "too many positional arguments; it takes input, scale, zero_point, and by ",
    ),
    (DEQUANTIZE_BLOCKS, (u8(2),), "missing a required argument: 'scale'; it takes input, scale, zero_point, and by "),
    (POOLING, (u8(1, 1, 3, 3), 0.1, 3, 0.1, 3), "missing a required keyword-only argument: 'window_size'; it takes "),
    (POOLING, (u8(1, 1, 3, 3), 0.1, 3, 0.1, 3, 2), "; it takes input, input_scale, input_zero_point, output_scale, "),
)


def test_arguments_that_are_too_many_or_missing():
    for operator, arguments, said in POSITIONAL:
        with case(operator, said):
            with pytest.raises(ArgumentTypeError) as error:
                getattr(dml, operator)(*arguments)
            assert (error.value.operator, error.value.rule) == (operator, "argument")
            assert str(error.value).startswith(f"{operator}: ")
            assert said in str(error.value)
