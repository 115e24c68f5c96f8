"""Mistakes of users of other libraries' convolutions: channels last, words for padding, float options."""

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


def choices(error):
    """The error's remedies for channels: [(input, filter, group_count)], as functions of the three."""
    text, advice = str(error).split("; ", 1)
    assert advice.startswith("write "), text
    made = []
    for choice in advice.removeprefix("write ").split(", or "):
        steps = choice.partition(" for ")[0].split(" and ")
        assert all(step.startswith(("input.", "filter.", "group_count=")) for step in steps)
        made.append({step.replace("=", ".").partition(".")[0]: step.removeprefix("group_count=") for step in steps})
    return made


def assert_choices_work(x, f, count, **options):
    """Each choice in the error gives a valid call, whose result is the reference's."""
    error = error_of(x, f, **options)
    assert error.rule == "channels"
    assert len(choices(error)) == count
    for choice in choices(error):
        written = {name: eval(step, {"input": x, "filter": f}) for name, step in choice.items()}
        images, filters = written.pop("input", x), written.pop("filter", f)
        got, filters = convolve(images, filters, **{**options, **written}), np.asarray(filters)
        assert_same_values(got, convolve(images, filters, reference, **{**options, **written}))
    return str(error).split("; ", 1)[1]


@pytest.mark.parametrize(
    ("shape", "kernel", "order", "of_filter", "words"),
    [
        ((2, 6, 7, 4), (3, 2, 4, 8), (0, 3, 1, 2), (3, 2, 0, 1), ("NHWC", "an HWIO")),
        ((2, 7, 4), (3, 4, 8), (0, 2, 1), (2, 1, 0), ("NWC", "a WIO")),
    ],
)
def test_data_and_filter_with_channels_last_are_both_transposed(shape, kernel, order, of_filter, words):
    x, f = RNG.integers(0, 256, shape, np.uint8), RNG.integers(-128, 128, kernel).astype(np.int8)
    both = f"input.transpose{order} and filter.transpose{of_filter} for {words[0]} data and {words[1]} filter"
    assert assert_choices_work(x, f, 1) == f"write {both}"
    first, out = x.transpose(order), f.transpose(of_filter)
    assert assert_choices_work(x, out, 1) == f"write input.transpose{order} for {words[0]} data"
    if len(shape) == 4:  # the transposes of a filter of rank 3 have the same input channels
        assert assert_choices_work(first, f, 1) == f"write filter.transpose{of_filter} for {words[1]} filter"


@pytest.mark.parametrize(
    ("shape", "filter", "groups", "advice"),
    [
        ((1, 16, 8, 8), (4, 3, 3, 3), 1, "16 input channels"),
        ((2, 4, 6, 7), (8, 8, 3, 2), 1, "4 input channels"),
        ((1, 3, 32, 32), (8, 1, 3, 3), 1, "3 input channels"),  # not read as HWIO, with a kernel of 8x1
        ((1, 3, 8, 8), (4, 1, 3, 3), 3, "1 input channels and a multiple of 3 output channels"),
        ((1, 16, 8, 8), (5, 5, 3, 3), 2, "8 input channels and a multiple of 2 output channels"),
        ((1, 4, 3), (5, 3, 9), 1, "4 input channels"),  # the kernel of each transpose would be too long
    ],
)
def test_where_no_transpose_fits_the_filter_is_described(shape, filter, groups, advice):
    x = RNG.integers(0, 256, shape, np.uint8)
    error = error_of(x, np.zeros(filter, np.int8), group_count=groups)
    assert str(error).endswith(f"; give a filter with {advice}")
    described = (4 * groups, shape[1] // groups, *np.minimum(filter[2:], shape[2:]))
    f = RNG.integers(-128, 128, described).astype(np.int8)
    expected = convolve(x, f, reference, group_count=groups)
    assert_same_values(convolve(x, f, group_count=groups), expected)


def test_groups_that_divide_no_channels():
    x = RNG.integers(0, 256, (1, 6, 7, 7), np.uint8)
    error = error_of(x, np.zeros((8, 4, 3, 3), np.int8), group_count=4)
    assert str(error).endswith("does not divide InputTensor's 6 channels; give a group_count that divides 6")
    for groups in (1, 2, 3, 6):
        assert convolve(x, np.zeros((6, 6 // groups, 3, 3), np.int8), group_count=groups).shape == (1, 6, 5, 5)


@pytest.mark.parametrize(
    ("shape", "filter", "advice"),
    [
        ((1, 24, 24, 64), (64, 8, 3, 3), "input.transpose(0, 3, 1, 2) and group_count=8 for NHWC data"),
        ((1, 7, 9, 16), (16, 4, 3, 3), "input.transpose(0, 3, 1, 2) and group_count=4 for NHWC data"),
        ((1, 12, 12, 16), (16, 4, 3, 3), "input.transpose(0, 3, 1, 2) and group_count=4 for NHWC data"),
        (
            (1, 8, 8, 16),
            (16, 4, 3, 3),
            "group_count=2, or input.transpose(0, 3, 1, 2) and group_count=4 for NHWC data",
        ),
        ((1, 3, 9, 8), (9, 1, 3, 3), "group_count=3"),
        ((1, 4, 9, 9), (4, 2, 4, 8), "group_count=2, or filter.transpose(3, 2, 0, 1) for an HWIO filter"),
        (
            (1, 5, 5, 16),
            (3, 3, 1, 16),
            "input.transpose(0, 3, 1, 2) and filter.transpose(3, 2, 0, 1) and group_count=16 for NHWC data and an "
            "HWIO filter",
        ),
    ],
)
def test_a_group_count_left_out_is_named_with_its_transposes(shape, filter, advice):
    x, f = RNG.integers(0, 256, shape, np.uint8), RNG.integers(-128, 128, filter).astype(np.int8)
    assert assert_choices_work(x, f, 1 + advice.count(", or ")) == f"write {advice}"


def test_a_prepared_filter_is_transposed_before_it_is_prepared():
    x, f = RNG.integers(0, 256, (1, 3, 9, 9), np.uint8), RNG.integers(-128, 128, (3, 5, 3, 8)).astype(np.int8)
    error = error_of(x, dml.prepare_convolution_filter(f))
    assert str(error).endswith("; write filter.array.transpose(3, 2, 0, 1) for an HWIO filter")
    assert_choices_work(x, dml.prepare_convolution_filter(f), 1)


@pytest.mark.parametrize(
    ("shape", "filter", "groups", "fits"),
    [
        ((2, 6, 7, 4), (8, 4, 3, 2), 1, False),
        ((2, 16, 9, 8), (16, 4, 3, 3), 2, True),  # NCHW in 4 groups, too
        ((2, 9, 9, 8), (8, 1, 3, 3), 8, False),
    ],
)
def test_channels_last_data_is_to_be_transposed(shape, filter, groups, fits):
    """The error does not advise other groups, with which its second dimension would fit the filter."""
    x, f = RNG.integers(0, 256, shape, np.uint8), RNG.integers(-128, 128, filter).astype(np.int8)
    if fits:
        assert convolve(x, f, group_count=shape[1] // filter[1]).shape[1] == filter[0]
    text = str(error_of(x, f, group_count=groups))
    assert text.endswith("; write input.transpose(0, 3, 1, 2) for NHWC data")
    input = eval(text.rpartition("write ")[2].removesuffix(" for NHWC data"), {"input": x})
    expected = convolve(x.transpose(0, 3, 1, 2), f, reference, group_count=groups)
    assert_same_values(convolve(input, f, group_count=groups), expected)


def test_where_both_layouts_fit_in_other_groups_both_are_named():
    x, f = RNG.integers(0, 256, (2, 8, 5, 16), np.uint8), RNG.integers(-128, 128, (16, 1, 3, 3)).astype(np.int8)
    remedy = "write group_count=8, or input.transpose(0, 3, 1, 2) and group_count=16 for NHWC data"
    assert str(error_of(x, f)).endswith(f"; {remedy}")
    for data, groups in ((x, 8), (x.transpose(0, 3, 1, 2), 16)):
        expected = convolve(data, f, reference, group_count=groups)
        assert_same_values(convolve(data, f, group_count=groups), expected)


def test_a_filter_that_may_have_channels_last_is_told_both_ways():
    """Transposing only the image would convolve it with the HWIO filter of 3x3 windows and 3 channels, read as OIHW."""
    for x, f, options in (
        (np.ones((1, 9, 9, 3), np.uint8), np.ones((3, 3, 3, 8), np.int8), {}),
        (np.ones((1, 9, 9, 6), np.uint8), np.ones((4, 3, 3, 8), np.int8), {"group_count": 2}),
    ):
        image = "input.transpose(0, 3, 1, 2)"
        both = f"{image} and filter.transpose(3, 2, 0, 1) for NHWC data and an HWIO filter"
        assert assert_choices_work(x, f, 2, **options) == f"write {image} for NHWC data, or {both}"


def test_symbolic_channels_are_no_group_count():
    (n,) = jax.export.symbolic_shape("n")
    for shape, kernel, remedy in (
        ((n, 4, 9, 5), (8, 2, 3, 3), "; write group_count=2"),
        ((1, n, 9, 5), (n, 1, 3, 3), "; give a filter with n input channels"),
    ):
        shapes = jax.ShapeDtypeStruct(shape, np.uint8), jax.ShapeDtypeStruct(kernel, np.int8)
        with pytest.raises(DescError) as error:
            jax.export.export(jax.jit(convolve))(*shapes)
        assert str(error.value).endswith(remedy)


@pytest.mark.parametrize(
    ("shape", "filter", "of_image", "of_row"),
    [((1, 4, 6, 7), (8, 4), "filter[:, :, None, None]", ""), ((1, 4, 9), (8, 4), "", "filter[:, :, None]"),
     ((1, 1, 6, 7), (8,), "filter[:, None, None, None]", ""), ((6, 7), (8, 1, 3, 3), "input[None]", "")],
)  # fmt: skip
def test_missing_dimensions_are_written(shape, filter, of_image, of_row):
    x, f = RNG.integers(0, 256, shape, np.uint8), RNG.integers(-128, 128, filter).astype(np.int8)
    advice = str(error_of(x, f)).partition("; write ")[2]
    assert advice.startswith(of_image)
    assert advice.endswith(f"{of_row} for an input of rank 3" if len(filter) < 3 else "input[None]")
    made = {"input": x, "filter": f}
    if of_row:
        made["filter"] = eval(of_row, made)
    else:
        made[of_image.partition("[")[0]] = eval(advice.partition(", or")[0], made)
    if len(shape) == 2:  # the second step
        advice = str(error_of(made["input"], f)).partition("; write ")[2].partition(" for ")[0]
        made["input"] = eval(advice, made)
    assert_same_values(convolve(made["input"], made["filter"]), convolve(made["input"], made["filter"], reference))


X, F = RNG.integers(0, 256, (1, 2, 9, 10), np.uint8), RNG.integers(-128, 128, (3, 2, 3, 4)).astype(np.int8)


@pytest.mark.parametrize("word", ["SAME", "same", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("name", ["start_padding", "end_padding"])
@pytest.mark.parametrize("options", [{}, {"strides": 2}, {"strides": (2, 3), "dilations": (2, 1)}, {"dilations": 2}])
def test_the_word_same_is_answered_in_numbers(options, name, word):
    """The numbers are lax's, which give the output ceil(size / stride) elements."""
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
    [
        (2, (1,), "give bias the shape [2]"),
        (2, (2, 1), "write bias.reshape(-1, 1, 1)"),
        (3, (2,), "give bias the shape [3]"),
    ],
)
def test_a_bias_of_another_number_or_form_is_told_so(outputs, shape, advice):
    def biased(bias):
        return dml.quantized_linear_convolution(X, 0.1, None, F[:outputs], 0.2, None, bias, 30.0, None)

    bias = np.zeros(shape, np.int32)
    with pytest.raises(DescError) as error:
        biased(bias)
    assert str(error.value).endswith(f"[1, {outputs}, 1, 1]: one for each of the {outputs} output channels; {advice}")
    wanted = eval(advice.partition("shape ")[2] or "()")
    mended = np.zeros(wanted, np.int32) if wanted else eval(advice.removeprefix("write "), {"bias": bias})
    assert biased(mended).shape[1] == outputs
