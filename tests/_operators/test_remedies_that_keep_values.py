"""Mistakes whose obvious remedy would run and give wrong numbers: the error gives another one, which is right."""

import functools
import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import jaxdml as dml
from _operators.calls import remedied
from helpers.compare import assert_same_bits
from jaxdml import ArgumentTypeError, DescError, reference

RNG = np.random.default_rng(0)
A = RNG.integers(0, 256, (5, 8), np.uint8)
W = RNG.normal(0, 0.2, (8, 6)).astype(np.float32)
X, F = RNG.integers(0, 256, (2, 3, 6, 7), np.uint8), RNG.normal(0, 0.2, (16, 3, 3, 3)).astype(np.float32)
FLOATS = RNG.normal(0, 3, (2, 3)).astype(np.float32)
SCOPE = {"jaxdml": dml, "jnp": jnp}


def error_of(function, *arguments, **named) -> DescError:
    with pytest.raises(DescError) as error:
        function(*arguments, **named)
    return error.value


def after(error, words):
    """The text of the error after these words."""
    assert words in str(error)
    return str(error).rpartition(words)[2]


# Zero points ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("received", "expected"),
    [("int8", "uint8"), ("uint8", "int8"), ("uint16", "int16"), ("int32", "uint32"), ("uint4", "int4")],
)
def test_no_cast_changes_the_sign_of_a_zero_point(received, expected):
    """-64 would become 192."""
    is_nibble = expected.endswith("int4")
    function = dml.dequantize if is_nibble else dml.element_wise_dequantize_linear
    input, zero_point = np.ones((2, 3), expected), np.ones((1, 1), received)
    error = error_of(function, input, 0.5, zero_point)
    advice = f"give the {expected.upper()} zero point that InputTensor was quantized with"
    assert after(error, "; ") == advice
    assert np.asarray(function(input, 0.5, zero_point.astype(np.int8).astype(expected))).shape == (2, 3)


@pytest.mark.parametrize(
    ("received", "expected", "condition"),
    [
        ("int8", "int16", ""), ("uint8", "int16", ""), ("uint8", "uint32", ""), ("int16", "int32", ""),
        ("int8", "uint16", "if all values of zero_point fit UINT16, "),
        ("int32", "uint8", "if all values of zero_point fit UINT8, "),
        ("uint16", "uint8", "if all values of zero_point fit UINT8, "),
        ("uint16", "int8", "if all values of zero_point fit INT8, "),
    ],
)  # fmt: skip
def test_a_cast_that_may_lose_a_zero_point_is_told_with_its_condition(received, expected, condition):
    call = {"input": np.full((2, 3), 9, expected), "scale": 0.5, "zero_point": np.full((2, 3), 3, received)}
    error = error_of(dml.element_wise_dequantize_linear, **call)
    assert after(error, "; ") == f"{condition}write zero_point.astype(jnp.{expected})"
    got = dml.element_wise_dequantize_linear(**remedied(error, call))
    assert_same_bits(got, np.full((2, 3), 3, np.float32))


def test_scale_and_zero_point_swapped():
    """0.1 would become the zero point 0."""
    asked = "; a zero point is an integer: are scale and zero_point swapped?"
    for zero_point in (0.1, [0.1], ((0.1, 2),), np.float32(0.1), np.full((2, 3), np.float32(0.1)), jnp.float32(0.1)):
        assert str(error_of(dml.element_wise_quantize_linear, FLOATS, 3, zero_point)).endswith(asked)
    traced = jax.jit(lambda zero_point: dml.fake_quantize(FLOATS, 3, zero_point))
    for zero_point in (0.1, jnp.float32(0.1)):
        assert str(error_of(traced, zero_point)).endswith(asked)
    multiply = functools.partial(dml.quantized_linear_matrix_multiply, A, 0.1, 3, np.ones((8, 6), np.int8))
    assert str(error_of(multiply, 3, 0.2, 9.0, 5)).endswith("are b_scale and b_zero_point swapped?")
    assert str(error_of(dml.matrix_multiply_integer, A, 0.1, W, None)).endswith("; a zero point is an integer")
    for integers in ([3], True):
        error = error_of(dml.element_wise_quantize_linear, FLOATS, 0.1, integers)
        assert str(error).endswith("; write jnp.asarray(zero_point, jnp.uint8)")


class Foreign:
    """An array of a library whose arrays NumPy can read."""

    def __init__(self, x):
        self.x = x

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.x, dtype)


def test_what_no_function_of_jax_converts_is_not_to_be_converted():
    """A layer and a string are no arrays; the layer's weights, and what NumPy reads, are."""
    layer = nn.Dense(3)
    expected = dml.element_wise_quantize_linear(FLOATS, 0.1, 3)
    wrong_calls = (
        ("input", (layer, 0.1, 3)), ("scale", (FLOATS, layer, 3)), ("scale", (FLOATS, np.float32)),
        ("zero_point", (FLOATS, 0.1, layer)), ("zero_point", (FLOATS, 0.1, "3")),
    )  # fmt: skip
    for name, wrong in wrong_calls:
        error = error_of(dml.element_wise_quantize_linear, *wrong)
        remedy = f"give an array for {name}, such as a layer's output or weights, or np.asarray(x) if "
        assert after(error, "; ").startswith(remedy)
    weights = layer.init(jax.random.key(0), FLOATS)
    for given in (weights["params"]["kernel"], layer.apply(weights, FLOATS)):
        assert dml.element_wise_quantize_linear(given, 0.1, 3).shape == given.shape
    error = error_of(dml.element_wise_quantize_linear, Foreign(FLOATS), 0.1, 3)
    assert "; write jnp.asarray(input, dtype), where dtype is jnp.float32 or" in str(error)
    for given in (np.asarray(Foreign(FLOATS)), jnp.asarray(Foreign(FLOATS), jnp.float32)):
        assert_same_bits(dml.element_wise_quantize_linear(given, 0.1, 3), expected)


@pytest.mark.parametrize("zero_point", [3, np.asarray(3, np.int8)])
def test_tensors_in_another_order_are_to_be_passed_by_name(zero_point):
    """The order of other libraries, a and b first, followed by the scales."""
    a, b = np.full((2, 3), 9, np.uint8), np.full((3, 4), 2, np.int8)
    error = error_of(dml.quantized_linear_matrix_multiply, a, b, 0.5, zero_point, 0.25, 0, 2.0, 5)
    names = after(error, "pass the tensors by name: the order is ").partition(";")[0].split(", ")
    values = {"a": a, "b": b, "a_scale": 0.5, "a_zero_point": 1, "b_scale": 0.25, "b_zero_point": 0}
    values |= {"output_scale": 2.0, "output_zero_point": 5}
    assert set(names) == set(values)
    got = dml.quantized_linear_matrix_multiply(**values)
    assert_same_bits(got, dml.quantized_linear_matrix_multiply(*(values[name] for name in names)))
    assert_same_bits(got, np.full((2, 4), 8, np.uint8))  # (9 - 1) * 2 * 3 / 16 + 5
    error = error_of(dml.matrix_multiply_integer, a, b, 0, 0)
    order = "a, a_zero_point, b, b_zero_point"
    assert f"; pass the tensors by name: the order is {order}; for a number, write jnp.asarray(b, dtype)" in str(error)
    bias = {"a": a, "a_scale": 0.5, "a_zero_point": 1, "b": b, "b_scale": 0.25, "b_zero_point": 0, "bias": 0.5}
    error = error_of(dml.matrix_multiply_integer_to_float, **bias)
    assert "; for a number, write jnp.asarray(bias, dtype), where dtype is jnp.float32 or " in str(error)
    given = bias | {"bias": jnp.asarray(0.5, jnp.float32)}
    assert dml.matrix_multiply_integer_to_float(**given).shape == (2, 4)
    error = error_of(dml.prepare_matrix_multiply_b, 3)  # which has one tensor
    assert "; write jnp.asarray(b, dtype), where dtype is " in str(error)


# Weights and bias ----------------------------------------------------------------------------------------------------


def quantized(error, **weights):
    """The integers and scales, made as the error says."""
    given, _, made = after(error, "quantize it first: ").partition(" = ")
    (name,) = weights
    assert given == f"{name}, {name}_scale"
    return eval(made, {**SCOPE, **weights})


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_float_weights_become_int8_with_a_scale_for_each_channel(dtype):
    """As uint8, the default of element_wise_quantize_linear, negative weights would be 0."""
    w, f = jnp.asarray(W, dtype), jnp.asarray(F, dtype)
    floats = (A - np.float32(3)) * np.float32(0.1) @ np.asarray(w, np.float32)
    for function in (dml.quantized_linear_matrix_multiply, dml.matrix_multiply_integer_to_float):
        output = {} if function is dml.matrix_multiply_integer_to_float else {"output_scale": 0.2}
        output |= {"output_zero_point": 128} if output else {}
        call = {"a": A, "a_scale": 0.1, "a_zero_point": 3, "b_scale": 1, "b_zero_point": None, **output}
        b, b_scale = quantized(error_of(function, b=w, **call), b=w)
        assert (b.dtype, b_scale.shape) == (np.int8, (6,))
        got = function(**{**call, "b": b, "b_scale": b_scale})
        got = np.asarray(got, np.float32) if not output else (np.asarray(got, np.float32) - 128) * np.float32(0.2)
        assert np.abs(got - floats).max() < 1
        assert np.abs(floats).max() > 5
    call = {"input": X, "input_scale": 0.1, "input_zero_point": 3, "filter_scale": 1, "filter_zero_point": None}
    call |= {"bias": None, "output_scale": 0.2, "output_zero_point": 128}
    filter, filter_scale = quantized(error_of(dml.quantized_linear_convolution, filter=f, **call), filter=f)
    assert (filter.dtype, filter_scale.shape) == (np.int8, (16,))
    call |= {"filter": np.asarray(filter), "filter_scale": np.asarray(filter_scale)}
    zero_points = {"input_zero_point": np.uint8(3), "output_zero_point": np.uint8(128)}
    expected = reference.quantized_linear_convolution(
        **{**call, **zero_points, "filter_scale": call["filter_scale"].reshape(1, 16, 1, 1)}
    )
    assert_same_bits(dml.quantized_linear_convolution(**call), expected)


def test_what_prepares_weights_says_how_to_quantize_them():
    for function, name, w in ((dml.prepare_matrix_multiply_b, "b", W), (dml.prepare_convolution_filter, "filter", F)):
        integers, _ = quantized(error_of(function, w), **{name: w})
        assert function(integers).shape == w.shape


def test_a_float_bias_is_counted_in_steps():
    filter, filter_scale = dml.ptq.quantize_weights(F, axis=0)
    bias = RNG.normal(0, 1, 16).astype(np.float32)
    call = {"input": X, "input_scale": 0.1, "input_zero_point": 3, "filter": filter, "filter_scale": filter_scale}
    call |= {"filter_zero_point": None, "output_scale": 0.2, "output_zero_point": 128}
    error = error_of(dml.quantized_linear_convolution, bias=bias, **call)
    made = eval(after(error, "filter_scale: write "), {**SCOPE, **call, "bias": bias})
    assert_same_bits(made, np.rint(bias / (np.float32(0.1) * filter_scale)).astype(np.int32))
    assert dml.quantized_linear_convolution(bias=made, **call).shape == (2, 16, 4, 5)


# Layouts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "values"),
    [("filter_scale", np.ones(16, np.float32)), ("filter_zero_point", np.ones(16, np.int8)),
     ("bias", np.ones(16, np.int32))],
)  # fmt: skip
def test_a_filter_with_outputs_last(name, values):
    """A kernel of 3x3 on three channels fits in either layout; its scales do not."""
    filter, x = dml.ptq.quantize_weights(F, axis=0)[0], RNG.integers(0, 256, (1, 3, 18, 18), np.uint8)
    call = {"input": x, "input_scale": 0.1, "input_zero_point": 3, "filter": filter.transpose(2, 3, 1, 0)}
    call |= {"filter_scale": 0.1, "filter_zero_point": None, "bias": None, "output_scale": 9.0}
    call |= {"output_zero_point": 128, name: values}
    error = error_of(dml.quantized_linear_convolution, **call)
    advice = after(error, "output channels; the filter must be [O, I, H, W]: write ")
    call["filter"] = eval(advice.removesuffix(" for an HWIO filter"), {"filter": call["filter"]})
    assert_same_bits(call["filter"], filter)
    assert dml.quantized_linear_convolution(**call).shape == (1, 16, 16, 16)
    error = error_of(dml.quantized_linear_convolution, **{**call, name: values[:5]})
    assert str(error).endswith("; give bias the shape [16]" if name == "bias" else "; there are 5 values")


def test_one_value_says_nothing_of_the_layout():
    """Even if the filter is one element wide."""
    x, filter = np.ones((1, 3, 8, 8), np.uint8), np.ones((2, 3, 3, 1), np.int8)
    error = error_of(dml.quantized_linear_convolution, x, 1, None, filter, 1, None, np.ones(1, np.int32), 1, None)
    assert str(error).endswith("one for each of the 2 output channels; give bias the shape [2]")


def test_a_filter_of_one_dimension_with_outputs_last():
    x, filter = np.ones((1, 3, 18), np.uint8), np.ones((3, 3, 16), np.int8)
    error = error_of(dml.convolution_integer, x, None, filter, np.ones(16, np.int8))
    advice = after(error, "output channels; the filter must be [O, I, W]: write ")
    filter = eval(advice.removesuffix(" for a WIO filter"), {"filter": filter})
    assert dml.convolution_integer(x, None, filter, np.ones(16, np.int8)).shape == (1, 16, 16)


def test_transposed_weights():
    b = RNG.integers(-128, 128, (8, 6), np.int8)
    error = error_of(dml.matrix_multiply_integer, A, 3, b.T, None)
    advice = after(error, "BTensor has Sizes [6, 8], expected [8, N]: ATensor has Sizes [5, 8]; write ")
    got = dml.matrix_multiply_integer(A, 3, eval(advice, {"b": b.T}), None)
    assert_same_bits(got, (A.astype(np.int32) - 3) @ b.astype(np.int32))
    many = np.stack([b, -b])
    error = error_of(dml.matrix_multiply_integer, np.stack([A, A]), 3, many.swapaxes(1, 2), None)
    given = {"b": many.swapaxes(1, 2)}
    assert_same_bits(eval(after(error, "; write "), given), many)
    assert str(error_of(dml.matrix_multiply_integer, A, 3, b[:7], None)).endswith("ATensor has Sizes [5, 8]")
    error = error_of(dml.matrix_multiply_integer, np.stack([A, A]), 3, np.ones((3, 8, 8), np.int8), None)
    assert str(error).endswith("expected [2, 8, N]: ATensor has Sizes [2, 5, 8]")
    prepared = dml.prepare_matrix_multiply_b(b.T)
    assert str(error_of(dml.matrix_multiply_integer, A, 3, prepared, None)).endswith("; prepare b.T")


@pytest.mark.parametrize(
    ("a", "b", "advice"),
    [
        ((4, 8), (3, 8, 2), "write jnp.broadcast_to(a, (3, 4, 8)), or use jax.vmap over a stack of b"),
        ((4, 8), (1, 8, 2), "write a[None], or use jax.vmap over a stack of b"),
        ((8, 4), (8, 2), "write a.T"),
        ((2, 8, 4), (2, 8, 2), "write a.swapaxes(-1, -2)"),
        ((3, 4, 8), (1, 8, 2), "write jnp.broadcast_to(b, (3, 8, 2))"),
        ((3, 4, 8), (8, 2), "write jnp.broadcast_to(b, (3, 8, 2)), or use jax.vmap over a stack of a"),
        ((3, 4, 8), (2, 8), "write jnp.broadcast_to(b.T, (3, 8, 2))"),
        (
            (2, 1, 4, 8),
            (3, 8, 2),
            "write jnp.broadcast_to(a, (2, 3, 4, 8)) and write jnp.broadcast_to(b, (2, 3, 8, 2))",
        ),
        ((2, 5, 8), (7, 6), "give b the rank of a, and as many rows as a has columns"),
    ],
)
def test_matrices_that_do_not_fit(a, b, advice):
    made = {"a": RNG.integers(0, 256, a, np.uint8), "b": RNG.integers(-128, 128, b).astype(np.int8)}
    error = error_of(dml.matrix_multiply_integer, made["a"], None, made["b"], None)
    assert after(error, "; ") == advice
    if not advice.startswith("give"):
        x, y = written(advice, made)
        expected = np.matmul(np.asarray(x, np.int32), np.asarray(y, np.int32))
        assert_same_bits(dml.matrix_multiply_integer(x, None, y, None), expected)
    if "jax.vmap" in advice:
        stacked = advice[-1]
        multiply = jax.vmap(
            lambda a, b: dml.matrix_multiply_integer(a, None, b, None), [0 if n == stacked else None for n in "ab"]
        )
        assert_same_bits(multiply(made["a"], made["b"]), expected)


def test_vectors_become_matrices():
    """A row of A and a column of B."""
    a, b = RNG.integers(0, 256, 8, np.uint8), RNG.integers(-128, 128, 8).astype(np.int8)
    row = after(error_of(dml.matrix_multiply_integer, a, None, b, None), "; write ")
    assert row == "a[None]"
    column = after(error_of(dml.matrix_multiply_integer, a[None], None, b, None), "; write ")
    assert column == "b[:, None]"
    got = dml.matrix_multiply_integer(eval(row, {"a": a}), None, eval(column, {"b": b}), None)
    assert_same_bits(got, np.int32([[a.astype(np.int32) @ b.astype(np.int32)]]))


@pytest.mark.parametrize(
    ("a", "b", "advice"),
    [
        ((4, 8), (8, 4), "write b.T"),
        ((2, 3, 4), (2, 4, 3), "write b.swapaxes(-1, -2)"),
        ((4, 8), (8, 1), "write jnp.broadcast_to(b.T, (4, 8))"),
        ((3,), (2, 3), "write jnp.broadcast_to(a, (2, 3)), or use jax.vmap over a stack of b"),
        ((2, 1), (1, 3), "write jnp.broadcast_to(a, (2, 3)) and write jnp.broadcast_to(b, (2, 3))"),
        ((2, 3), (4, 5), "give b the sizes of a"),
    ],
)
def test_addends_that_do_not_fit(a, b, advice):
    made = {"a": RNG.integers(0, 100, a, np.uint8), "b": RNG.integers(0, 100, b, np.uint8)}
    error = error_of(dml.element_wise_quantized_linear_add, made["a"], 1.0, None, made["b"], 1.0, None, 1.0, None)
    assert after(error, "; ") == advice
    if not advice.startswith("give"):
        x, y = written(advice, made)
        assert_same_bits(
            dml.element_wise_quantized_linear_add(x, 1.0, None, y, 1.0, None, 1.0, None), np.asarray(x + y)
        )


def written(advice, made):
    """`a` and `b` after the advice is followed."""
    for step in advice.partition(", or use")[0].split(" and "):
        step = step.removeprefix("write ")
        (name,) = (name for name in "ab" if re.search(rf"\b{name}\b", step))
        made = {**made, name: eval(step, {**SCOPE, **made})}
    return made["a"], made["b"]


@pytest.mark.parametrize(
    ("shape", "advice"),
    [((6, 4, 3), "filter[:, :, None] for a kernel of height 1"), ((4, 3, 3), "filter[None] for one output channel")],
)
def test_a_filter_without_an_axis(shape, advice):
    x, filter = np.ones((1, 4, 5, 5), np.uint8), np.ones(shape, np.int8)
    assert after(error_of(dml.convolution_integer, x, None, filter, None), "; write ") == advice
    got = dml.convolution_integer(x, None, eval(advice.partition(" for ")[0], {"filter": filter}), None)
    assert got.shape[1] == (1 if "for one" in advice else 6)


def test_a_mean_over_an_image_with_channels_last():
    x = RNG.integers(0, 256, (2, 8, 7, 4), np.uint8)
    call = {"input_scale": 0.1, "input_zero_point": 3, "output_scale": 0.1, "output_zero_point": 3}
    pool = functools.partial(dml.quantized_linear_average_pooling, **call)
    error = error_of(pool, x, window_size=(8, 7))
    advice = after(error, "; pad the input or shrink the window, or write ").removesuffix(" if channels come last")
    first = eval(advice, {"input": x})
    assert_same_bits(first, np.moveaxis(x, -1, 1))
    assert pool(first, window_size=(8, 7)).shape == (2, 4, 1, 1)
    assert str(error_of(pool, x, window_size=(9, 7))).endswith("; pad the input or shrink the window")
    error = error_of(pool, np.ones((1, 4, 5, 6, 2), np.uint8), window_size=(4, 5, 6))
    assert "; pad the input or shrink the window, or write input.transpose(0, 4, 1, 2, 3) if" in str(error)


def test_a_mean_over_an_image_with_any_number_of_channels():
    """A symbolic size cannot be compared with the window."""
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, c, 8, 8"), np.uint8)
    exported = jax.export.export(
        jax.jit(lambda x: dml.quantized_linear_average_pooling(x, 0.1, None, 0.1, None, window_size=2))
    )(x)
    assert exported.out_avals[0].shape[2:] == (7, 7)


def test_a_constant_addend():
    """The first error says so, instead of errors about ranks and sizes, which do not fit either."""
    add = functools.partial(dml.element_wise_quantized_linear_add, A, 0.5, None)
    error = error_of(add, np.asarray(2, np.uint8), 0.5, None, 1.0, None)
    constant = eval(after(error, "; tensors do not broadcast: write "), {**SCOPE, "a": A, "b": np.uint8(2)})
    assert_same_bits(add(constant, 0.5, None, 1.0, None), add(np.full_like(A, 2), 0.5, None, 1.0, None))


# Names ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "name", "hint"),
    [
        (dml.quantized_linear_convolution, "groups", "did you mean group_count?"),
        (dml.convolution_integer, "groups", "did you mean group_count?"),
        (dml.element_wise_quantize_linear, "dtype", "did you mean output_dtype?"),
        (dml.quantized_linear_average_pooling, "dtype", "did you mean output_dtype?"),
        (dml.dequantize, "dtype", "the arguments are input, scale, zero_point, feature_level"),
        (dml.matrix_multiply_integer_to_float, "axis", "the arguments are a, a_scale, a_zero_point, b, "),
    ],
)
def test_names_of_other_libraries(function, name, hint):
    error = error_of(function, **{name: 1})
    assert isinstance(error, ArgumentTypeError)
    assert f"there is no argument {name}; {hint}" in str(error)
