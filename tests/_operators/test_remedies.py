"""Common mistakes: the error's remedy, and that following it works."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from _operators.calls import remedied, steps
from helpers.compare import assert_same_bits
from jaxdml import ArgumentTypeError, DescError, reference

RNG = np.random.default_rng(0)
A, B = RNG.integers(0, 256, (5, 8), np.uint8), RNG.integers(-128, 128, (8, 6), np.int8)
X, F = RNG.integers(0, 256, (2, 4, 6, 7), np.uint8), RNG.integers(-128, 128, (8, 4, 3, 2), np.int8)
FLOATS = RNG.normal(0, 3, (2, 3)).astype(np.float32)
MULTIPLY = {
    "a": A, "a_scale": 0.1, "a_zero_point": 3, "b": B, "b_scale": 0.2, "b_zero_point": None,
    "output_scale": 9.0, "output_zero_point": 5,
}  # fmt: skip
CONVOLVE = {
    "input": X, "input_scale": 0.1, "input_zero_point": 3, "filter": F, "filter_scale": 0.2,
    "filter_zero_point": None, "bias": None, "output_scale": 30.0, "output_zero_point": 5,
}  # fmt: skip
dequantize, quantize = dml.element_wise_dequantize_linear, dml.element_wise_quantize_linear
multiply = functools.partial(dml.quantized_linear_matrix_multiply)
convolve = functools.partial(dml.quantized_linear_convolution)


def error_of(function, *arguments, **named) -> DescError:
    with pytest.raises(DescError) as error:
        function(*arguments, **named)
    return error.value


def with_remedy(function, arguments, *phrases):
    """The result of a wrong call after its error's remedy is followed; the error contains all phrases."""
    error = error_of(function, **arguments)
    for phrase in phrases:
        assert phrase in str(error)
    changed = remedied(error, arguments)
    assert changed is not None
    return function(**changed), changed


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int4"])
def test_quantize_of_integers_says_to_dequantize_them(dtype):
    """The error does not say to convert them, which would discard their scale and zero point."""
    q = jnp.asarray(RNG.integers(0, 7, (2, 3)), dtype)
    error = error_of(quantize, q, 0.5, 3)
    wide = ".astype(jnp.int8)" if dtype == "int4" else ""
    advice = f"dequantize it first: element_wise_dequantize_linear(input{wide}, scale, zero_point)"
    assert str(error).endswith(f"feature level 6_4 allows FLOAT32, FLOAT16 or INT32; {advice}")
    scope = {"input": q, "scale": 0.25, "zero_point": 1, "element_wise_dequantize_linear": dequantize, "jnp": jnp}
    floats = eval(advice.removeprefix("dequantize it first: "), scope)
    assert_same_bits(floats, (np.asarray(q, np.float32) - 1) / 4)
    assert_same_bits(quantize(floats, 0.25, 1), np.asarray(q, np.uint8))


def test_a_scale_for_each_row():
    rows = steps(5)
    possible = "AScaleTensor has Sizes [1, 5], expected [1, 1] or [5, 1]: one value, or one for each of the 5 rows"
    expected = reference.quantized_linear_matrix_multiply(**{**MULTIPLY, "a_scale": rows[:, None]})
    for given, advice in ((rows, "; write a_scale[:, None]"), (rows[None], "; write a_scale.reshape(-1, 1)")):
        got, _ = with_remedy(multiply, {**MULTIPLY, "a_scale": given}, possible, advice)
        assert_same_bits(got, expected)
    zeros = np.arange(5, dtype=np.uint8)
    got, changed = with_remedy(multiply, {**MULTIPLY, "output_zero_point": zeros}, "; write output_zero_point[:, None]")
    assert_same_bits(got, reference.quantized_linear_matrix_multiply(**changed))
    for name in ("a_scale", "output_scale"):
        error = error_of(multiply, **{**MULTIPLY, name: steps(6)})
        said = "one value, or one for each of the 5 rows; a value for each column or matrix is not allowed"
        assert str(error).endswith(said)


def test_a_scale_for_each_column():
    columns = steps(6, 1)
    possible = "BScaleTensor has Sizes [6, 1], expected [1, 1] or [1, 6]: one value, or one for each of the 6 columns"
    got, _ = with_remedy(multiply, {**MULTIPLY, "b_scale": columns}, possible, "; write b_scale.reshape(-1)")
    expected = reference.quantized_linear_matrix_multiply(**{**MULTIPLY, "b_scale": columns.T})
    assert_same_bits(got, expected)


@pytest.mark.parametrize(("axis", "ones"), [(0, ", 1, 1"), (1, ", 1")])
def test_a_scale_for_each_channel_of_dequantize(axis, ones):
    x = RNG.integers(0, 256, (3, 4, 5), np.uint8)
    shape = [size if dimension == axis else 1 for dimension, size in enumerate(x.shape)]
    scale, zeros = steps(x.shape[axis]), np.arange(x.shape[axis], dtype=np.uint8)
    for name, value in (("scale", scale), ("zero_point", zeros)):
        advice = f"; for one value per entry of dimension {axis} write {name}.reshape(-1{ones})"
        error = error_of(dequantize, **{"input": x, "scale": 0.5, name: value})
        assert str(error).endswith(advice)
        reshaped = eval(advice.split(" write ")[1], {name: value})
        assert list(reshaped.shape) == [size for dimension, size in enumerate(shape) if dimension >= axis]
        got = dequantize(**{"input": x, "scale": 0.5, name: reshaped})
        expected = reference.element_wise_dequantize_linear(**{"input": x, "scale": 0.5, name: value.reshape(shape)})
        assert_same_bits(got, expected)
    error = error_of(dequantize, x, steps(7))
    assert str(error).endswith(
        "; give scale one value, one for each entry of a dimension, or sizes that broadcast to [3, 4, 5]"
    )


def test_a_scale_for_each_channel_of_a_filter_and_none_of_an_output():
    channels = steps(8)
    expected = reference.quantized_linear_convolution(**{**CONVOLVE, "filter_scale": channels.reshape(1, 8, 1, 1)})
    wrong = {**CONVOLVE, "filter_scale": channels.reshape(1, 1, 1, 8)}
    got, _ = with_remedy(convolve, wrong, "one for each of the 8 output channels; write filter_scale.reshape(-1)")
    assert_same_bits(got, expected)
    bias = np.arange(8, dtype=np.int32) * 1000
    got, _ = with_remedy(convolve, {**CONVOLVE, "bias": bias.reshape(1, 8)}, "; write bias.reshape(-1, 1, 1)")
    assert_same_bits(got, convolve(**{**CONVOLVE, "bias": bias}))
    for name, tensor, values in (
        ("output_scale", "OutputScaleTensor", channels),
        ("output_zero_point", "OutputZeroPointTensor", np.arange(8, dtype=np.uint8)),
        ("input_scale", "InputScaleTensor", channels),
    ):
        error = error_of(convolve, **{**CONVOLVE, name: values})
        kind = name.partition("_")[0]
        alone = f"only the filter may have one for each channel, not the {kind}"
        assert str(error).endswith(f"{tensor} has Sizes [1, 1, 1, 8], expected [1, 1, 1, 1]: one value; {alone}")


def test_input_and_filter_swapped():
    """The error asks about a filter that is larger than the input in both directions, but not in one direction."""
    for function, swapped in (
        (convolve, {**CONVOLVE, "input": F, "input_zero_point": None, "filter": X}),
        (dml.convolution_integer, {"input": F, "input_zero_point": None, "filter": X, "filter_zero_point": None}),
    ):
        error = error_of(function, **swapped)
        assert str(error).endswith("the padded input has 3; pad the input, shrink the kernel, or swap input and filter")
        function(**{**swapped, "input": X, "filter": F})
    error = error_of(convolve, **{**CONVOLVE, "input": X[:, :, :2]})
    assert str(error).endswith("the padded input has 2; pad the input or shrink the kernel")


def test_wide_integers():
    """The error names the type if only one is allowed; int32 may be sums, which are quantized."""
    bias = np.arange(8, dtype=np.int64) * 1000
    advice = "if all values of bias fit INT32, write bias.astype(jnp.int32)"
    got, _ = with_remedy(convolve, {**CONVOLVE, "bias": bias}, f"allows INT32; {advice}")
    assert_same_bits(got, reference.quantized_linear_convolution(**{**CONVOLVE, "bias": np.int32(bias)}))
    sums = RNG.integers(-(10**6), 10**6, A.shape, np.int32)
    error = error_of(multiply, **{**MULTIPLY, "a": sums, "a_zero_point": None})
    advice = "element_wise_quantize_linear(a, scale, zero_point, output_dtype=...)"
    assert str(error).endswith(f"; convert it with a.astype to a type that holds its values, or quantize it: {advice}")
    scope = {"a": sums, "scale": 8000.0, "zero_point": 0, "element_wise_quantize_linear": quantize, "jnp": jnp}
    quantized = eval(advice.replace("...", "jnp.int8"), scope)
    assert multiply(**{**MULTIPLY, "a": quantized, "a_zero_point": None}).dtype == np.int8
    for error in (
        error_of(multiply, **{**MULTIPLY, "a": sums.astype(np.int64)}),  # quantize does not take int64
        error_of(dml.dequantize, sums, np.float32([[0.5]])),  # this would turn quantized values back into floats
    ):
        assert str(error).endswith("to a type that holds its values")


def test_stacked_filters():
    stack = np.stack([F, F[::-1], -F])
    advice = "prepare it with jax.vmap(dml.prepare_convolution_filter), and convolve under jax.vmap"
    error = error_of(convolve, **{**CONVOLVE, "filter": stack})
    assert str(error).endswith(f"FilterTensor has rank 5, feature level 6_4 allows 3 to 4; a stack of filters is "
                               f"not a filter: {advice}")  # fmt: skip
    assert advice in str(error_of(dml.prepare_convolution_filter, stack))
    prepare = eval("jax.vmap(dml.prepare_convolution_filter)", {"jax": jax, "dml": dml})
    prepared = prepare(stack)
    got = jax.vmap(lambda f: convolve(**{**CONVOLVE, "filter": f}))(prepared)
    for f, one in zip(stack, got, strict=True):
        assert_same_bits(one, reference.quantized_linear_convolution(**{**CONVOLVE, "filter": f}))


def test_bfloat16():
    """The error says which type to write or, where integers are required, how to make them."""
    half = functools.partial(jnp.asarray, dtype=jnp.bfloat16)
    unknown = "has type bfloat16, which DirectML does not have; write "
    got, _ = with_remedy(
        quantize, {"input": half(FLOATS), "scale": 0.1}, f"InputTensor {unknown}input.astype(jnp.float32)"
    )
    assert_same_bits(got, reference.element_wise_quantize_linear(np.float32(half(FLOATS)), 0.1))
    got, _ = with_remedy(
        dequantize, {"input": A, "scale": half(0.5)}, f"ScaleTensor {unknown}scale.astype(jnp.float32)"
    )
    assert_same_bits(got, A / np.float32(2))
    error = error_of(multiply, **{**MULTIPLY, "a": half(FLOATS)})
    advice = "element_wise_quantize_linear(a.astype(jnp.float32), scale, zero_point, output_dtype=...)"
    assert str(error).endswith(f"ATensor has type bfloat16, which DirectML does not have; quantize it first: {advice}")
    scope = {"a": half(A), "scale": 1.0, "zero_point": 0, "element_wise_quantize_linear": quantize, "jnp": jnp}
    quantized = eval(advice.replace("...", "jnp.uint8"), scope)
    assert multiply(**{**MULTIPLY, "a": quantized}).dtype == np.uint8


@pytest.mark.parametrize(("dtype", "number"), [(np.uint8, 3), (np.int8, -3)])
def test_a_concrete_integer_without_a_type(dtype, number):
    x = RNG.integers(0, 100, (2, 3)).astype(dtype)
    error = error_of(dequantize, x, 0.5, jnp.asarray(number))
    advice = f"jnp.{np.dtype(dtype)}({number})"
    assert str(error).endswith(
        f"ZeroPointTensor is a weakly typed integer, whose value cannot be checked under jit; write {advice}"
    )
    got = dequantize(x, 0.5, eval(advice, {"jnp": jnp}))
    assert_same_bits(got, reference.element_wise_dequantize_linear(x, 0.5, dtype(number)))
    traced = pytest.raises(DescError, match=rf"; write jnp\.{np.dtype(dtype)}\(\.\.\.\)")
    with traced:
        jax.jit(dequantize)(x, 0.5, number)


def test_matrix_multiply_has_no_bias():
    """The error says how a convolution adds one; the result is that of the formula with the bias."""
    bias = (np.arange(6, dtype=np.int32) - 3) * 5000
    error = error_of(multiply, **MULTIPLY, bias=bias)
    assert isinstance(error, ArgumentTypeError)
    said = re.fullmatch(
        r"quantized_linear_matrix_multiply: there is no argument bias; DirectML's matrix product has no bias, but its "
        r"convolution has one. For two matrices, convolve with (?P<input>.+) as input, (?P<filter>.+) as filter and a "
        r"bias in units of a_scale \* b_scale; if the result is y, the matrix product is (?P<result>y.*). For leading "
        r"dimensions, use jax.vmap",
        str(error),
    )

    def as_said(a, b, bias):
        input, filter = (eval(said[name], {"a": a, "b": b}) for name in ("input", "filter"))
        y = dml.quantized_linear_convolution(input, 0.1, 3, filter, 0.2, None, bias, 9.0, 5)
        return eval(said["result"], {"y": y})

    for steps_of_bias in (bias, np.zeros(6, np.int32)):
        got = as_said(A, B, steps_of_bias)
        accumulator = (A.astype(np.int32) - 3) @ B.astype(np.int32) + steps_of_bias
        multiplier = np.float32(0.1) * np.float32(0.2) / np.float32(9)
        expected = np.clip(np.rint(accumulator.astype(np.float32) * multiplier) + 5, 0, 255).astype(np.uint8)
        assert_same_bits(got, expected)
    assert_same_bits(got, multiply(**MULTIPLY))
    assert np.unique(expected).size > 15
    batched = jax.vmap(as_said, (0, 0, None))(np.stack([A, A[::-1]]), np.stack([B, B]), steps_of_bias)
    assert_same_bits(batched, np.stack([got, got[::-1]]))


def test_bfloat16_where_float32_would_not_do_either():
    """The error says what a zero point is, and what a bias counts."""
    x, zero_point = np.ones((2, 3), np.uint8), jnp.ones((), jnp.bfloat16)
    for wrong in (
        lambda: dml.element_wise_dequantize_linear(x, 0.1, zero_point),
        lambda: dml.element_wise_quantize_linear(x.astype(np.float32), 0.1, zero_point),
    ):
        with pytest.raises(
            dml.DescError, match=r"has type bfloat16, .*; a zero point is an integer: are scale and zero_point swapped"
        ):
            wrong()
    image, filter = np.ones((1, 2, 5, 5), np.uint8), np.ones((3, 2, 3, 3), np.int8)
    with pytest.raises(dml.DescError, match=r"BiasTensor has type bfloat16, .*; a bias is in units of input_scale"):
        dml.quantized_linear_convolution(image, 0.1, None, filter, 0.1, None, jnp.ones(3, jnp.bfloat16), 0.1, None)


@pytest.mark.parametrize("number", [300, -3])
def test_an_untyped_integer_out_of_range_is_told_the_range(number):
    """The error does not say to write jnp.uint8(300)."""
    with pytest.raises(
        dml.DescError, match=rf"ZeroPointTensor is {number}, out of UINT8's range; write an integer from 0"
    ):
        dml.element_wise_dequantize_linear(np.ones(3, np.uint8), 0.1, jnp.asarray(number))
