"""Mistakes of who comes from another library's convolution: channels last, words for padding, options of floats."""

import jax
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits, assert_same_values
from jaxdml import ArgumentTypeError, DescError, reference

RNG = np.random.default_rng(0)


def convolve(x, f, module=dml, **options):
    return module.quantized_linear_convolution(x, 0.1, np.uint8(3), f, 0.2, None, None, 30.0, np.uint8(5), **options)


def error_of(x, f, **options) -> DescError:
    with pytest.raises(DescError) as error:
        convolve(x, f, **options)
    return error.value


@pytest.mark.parametrize(
    ("shape", "kernel", "order", "of_filter", "words"),
    [
        ((2, 6, 7, 4), (3, 2, 4, 8), (0, 3, 1, 2), (3, 2, 0, 1), ("NHWC", "an HWIO")),
        ((2, 7, 4), (3, 4, 8), (0, 2, 1), (2, 1, 0), ("NWC", "a WIO")),
    ],
)
def test_every_error_about_channels_says_how_to_transpose(shape, kernel, order, of_filter, words):
    advice = (
        f"; channels are dimension 1 of both tensors: write input.transpose{order} for {words[0]} data, "
        f"filter.transpose{of_filter} for {words[1]} filter"
    )
    x, f = RNG.integers(0, 256, shape, np.uint8), RNG.integers(-128, 128, kernel).astype(np.int8)
    first, out = x.transpose(order), f.transpose(of_filter)
    channels, width = first.shape[1], x.shape[1]
    wide = np.repeat(out, 2, 1)
    for images, filters, options, tensor, problem in (
        (x, f, {}, "FilterTensor", f"input channels, expected {width}: InputTensor's {width} divided by GroupCount 1"),
        (first, f.transpose(of_filter[1:] + of_filter[:1]), {}, "FilterTensor", f"input channels, expected {channels}"),
        (first, wide, {}, "FilterTensor", f"has {2 * channels} input channels, expected {channels}"),
        (first, out[:, :3], {"group_count": 3}, "GroupCount", f"is 3, which does not divide InputTensor's {channels}"),
        (first, out[:7, :1], {"group_count": 4}, "FilterTensor", "has 7 output channels, expected a multiple of"),
    ):
        error = error_of(images, filters, **options)
        assert (error.tensor, error.rule) == (tensor, "channels")
        assert problem in str(error)
        assert str(error).endswith(advice)
    input_advice, filter_advice = (part.split(" for ")[0] for part in advice.split("write ")[1].split(", filter"))
    input, filter = eval(input_advice, {"input": x}), eval(f"filter{filter_advice}", {"filter": f})
    assert_same_bits(convolve(input, filter), convolve(first, out, reference))
    back = convolve(input, filter).transpose(np.argsort(order))
    assert back.shape == (shape[0], *(n - k + 1 for n, k in zip(shape[1:-1], kernel[:-2], strict=True)), kernel[-1])


@pytest.mark.parametrize(
    ("shape", "filter", "groups", "fits"),
    [
        ((2, 6, 7, 4), (8, 4, 3, 2), 1, False),
        ((2, 16, 9, 8), (16, 4, 3, 3), 2, True),  # NCHW in 4 groups, too
        ((2, 9, 9, 8), (8, 1, 3, 3), 8, False),
    ],
)
def test_channels_last_data_is_to_be_transposed(shape, filter, groups, fits):
    """And not convolved in other groups, where its second dimension would fit the filter in these."""
    x, f = RNG.integers(0, 256, shape, np.uint8), RNG.integers(-128, 128, filter).astype(np.int8)
    if fits:
        assert convolve(x, f, group_count=shape[1] // filter[1]).shape[1] == filter[0]
    text = str(error_of(x, f, group_count=groups))
    assert text.endswith("; jaxdml takes NCHW: write input.transpose(0, 3, 1, 2)")
    input = eval(text.rpartition("write ")[2], {"input": x})
    expected = convolve(x.transpose(0, 3, 1, 2), f, reference, group_count=groups)
    assert_same_values(convolve(input, f, group_count=groups), expected)


def test_where_both_layouts_fit_in_other_groups_both_are_named():
    x, f = RNG.integers(0, 256, (2, 8, 5, 16), np.uint8), RNG.integers(-128, 128, (16, 1, 3, 3)).astype(np.int8)
    remedy = "write group_count=8, or input.transpose(0, 3, 1, 2) and group_count=16 for NHWC data"
    assert str(error_of(x, f)).endswith(f"; {remedy}")
    for data, groups in ((x, 8), (x.transpose(0, 3, 1, 2), 16)):
        expected = convolve(data, f, reference, group_count=groups)
        assert_same_values(convolve(data, f, group_count=groups), expected)


def test_a_filter_that_may_have_channels_last_keeps_both_transposes():
    """Transposing an image alone would convolve it with the HWIO filter of 3x3 windows and 3 channels, read as OIHW."""
    x, f = np.zeros((1, 9, 9, 3), np.uint8), np.zeros((3, 3, 3, 8), np.int8)
    assert str(error_of(x, f)).endswith("for NHWC data, filter.transpose(3, 2, 0, 1) for an HWIO filter")
    x, f = np.zeros((1, 9, 9, 6), np.uint8), np.zeros((4, 3, 3, 8), np.int8)
    assert str(error_of(x, f, group_count=2)).endswith("filter.transpose(3, 2, 0, 1) for an HWIO filter")
    x, f = np.zeros((1, 4, 9, 9), np.uint8), np.zeros((4, 2, 4, 8), np.int8)  # OIHW in two groups, too
    assert str(error_of(x, f)).endswith("filter.transpose(3, 2, 0, 1) for an HWIO filter")


def test_symbolic_channels_are_no_group_count():
    (n,) = jax.export.symbolic_shape("n")
    for shape, kernel, remedy in (
        ((n, 4, 9, 5), (8, 2, 3, 3), "; write group_count=2"),
        ((1, n, 9, 5), (n, 1, 3, 3), "filter.transpose(3, 2, 0, 1) for an HWIO filter"),
    ):
        shapes = jax.ShapeDtypeStruct(shape, np.uint8), jax.ShapeDtypeStruct(kernel, np.int8)
        with pytest.raises(DescError) as error:
            jax.export.export(jax.jit(convolve))(*shapes)
        assert str(error.value).endswith(remedy)


X, F = RNG.integers(0, 256, (1, 2, 9, 10), np.uint8), RNG.integers(-128, 128, (3, 2, 3, 4)).astype(np.int8)


@pytest.mark.parametrize("word", ["SAME", "same", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("name", ["start_padding", "end_padding"])
@pytest.mark.parametrize("options", [{}, {"strides": 2}, {"strides": (2, 3), "dilations": (2, 1)}, {"dilations": 2}])
def test_the_word_same_is_answered_in_numbers(options, name, word):
    """In those of lax, which gives the output ceil(size / stride) elements."""
    error = error_of(X, F, **{**options, name: word})
    assert isinstance(error, ArgumentTypeError)
    text, _, numbers = str(error).partition(f"padding is given in numbers: {word.upper()} in other libraries is ")
    assert f"Padding is {word!r}, expected an integer or a tuple of 2 integers; " in text
    padding = eval(f"dict({numbers.removesuffix(' here')})")
    strides, dilations = (np.broadcast_to(options.get(option, 1), 2) for option in ("strides", "dilations"))
    window = 1 + (np.asarray(F.shape[2:]) - 1) * dilations
    expected = jax.lax.padtype_to_pads(X.shape[2:], window, strides, "SAME_LOWER" if "LOWER" in word else "SAME")
    assert list(zip(padding["start_padding"], padding["end_padding"], strict=True)) == [tuple(p) for p in expected]
    got = jax.eval_shape(lambda: convolve(X, F, **options, **padding))
    assert got.shape[2:] == tuple(-(-np.asarray(X.shape[2:]) // strides))


def test_the_numbers_for_same_compute_it():
    _, _, numbers = str(error_of(X, F, start_padding="SAME")).partition("in other libraries is ")
    padding = eval(f"dict({numbers.removesuffix(' here')})")
    got = convolve(X, F, **padding)
    assert got.shape == (1, 3, 9, 10)
    assert_same_bits(got, convolve(X, F, reference, **padding))


def test_other_words():
    error = error_of(X, F, start_padding="VALID")
    assert str(error).endswith("; padding is given in numbers: VALID in other libraries is 0 here")
    assert jax.eval_shape(lambda: convolve(X, F, start_padding=0)).shape == (1, 3, 7, 7)
    assert error_of(X, F, start_padding="SAME", strides=0).rule == "static"
    assert "Strides is a str, expected" in str(error_of(X, F, strides="2"))


@pytest.mark.parametrize("name", ["strides", "dilations", "start_padding", "end_padding"])
@pytest.mark.parametrize("value", [(1.5, 1), (1, None), (True, 1), [1, "1"], (1, (1, 1))])
def test_options_show_what_came(name, value):
    error = error_of(X, F, **{name: value})
    page = "".join(word.capitalize() for word in name.split("_"))
    assert f"{page} is {tuple(value)}, expected an integer or a tuple of 2 integers" in str(error)
    pads = "; start_padding is for the start of each dimension, end_padding for the end"
    assert str(error).endswith(pads if "padding" in name else "integers")


def test_unknown_arguments_name_the_nearest():
    with pytest.raises(ArgumentTypeError, match="there is no argument stride; did you mean strides\\?"):
        convolve(X, F, stride=2)
    with pytest.raises(TypeError, match="there is no argument padding; write start_padding for the start"):
        convolve(X, F, padding="SAME")
    with pytest.raises(ArgumentTypeError, match="missing a required argument: 'output_zero_point'"):
        dml.quantized_linear_convolution(X, 0.1, 3, F, 0.2, None, None, 30.0)
    with pytest.raises(ArgumentTypeError, match="too many positional arguments"):
        dml.quantized_linear_convolution(X, 0.1, 3, F, 0.2, None, None, 30.0, 5, 2)
    with pytest.raises(ArgumentTypeError, match="multiple values for argument 'input'"):
        convolve(X, F, input=X)


@pytest.mark.parametrize(
    ("outputs", "shape", "advice"),
    [(2, (1,), ""), (2, (2, 1), "; write bias.reshape(-1, 1, 1)"), (3, (2,), "; there are 2 values")],
)
def test_a_bias_of_another_number_or_form_is_told_so(outputs, shape, advice):
    """One value is no list to count, two are the fewest that another form can hold."""
    with pytest.raises(DescError) as error:
        dml.quantized_linear_convolution(X, 0.1, None, F[:outputs], 0.2, None, np.zeros(shape, np.int32), 30.0, None)
    assert str(error.value).endswith(f"[1, {outputs}, 1, 1]: one for each of the {outputs} output channels{advice}")
