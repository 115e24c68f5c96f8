"""Numbers and options under the caller's jit: they are still numbers, or the error says what to write."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from _operators.calls import (
    DATA,
    GOOD,
    OF_FLOATS,
    OPTIONS_BY_NAME,
    OUTPUT_ZERO_POINT,
    call,
    caught,
    ending,
    page_name,
    u8,
)
from helpers.compare import assert_same_bits
from helpers.descs import OPERATORS, POOLING
from jaxdml import ArgumentTypeError, DescError


@pytest.mark.parametrize("enable_x64", [False, True])
def test_numbers_are_rounded_to_float32_first(enable_x64):
    """Rounding to float16 at once gives another scale: the float32 number lies in the middle of two float16."""
    x, scale = np.arange(1, 255, dtype=np.float16) + np.float16(0.5), 1 + 2**-11 + 2**-30
    expected = dml.element_wise_quantize_linear(x, np.float16(1))
    assert np.float16(scale) != 1
    with jax.enable_x64(enable_x64):
        for function in (dml.element_wise_quantize_linear, jax.jit(dml.element_wise_quantize_linear)):
            assert_same_bits(function(x, scale), expected)


@pytest.mark.parametrize(("operator", "name"), OPTIONS_BY_NAME)
def test_options_cannot_be_traced(operator, name):
    """Options decide shapes."""
    tensor = page_name(name).removesuffix("Tensor")
    with pytest.raises(ArgumentTypeError) as error:
        jax.jit(lambda option: call(operator, {**GOOD[operator], name: option}))(1)
    assert (error.value.operator, error.value.tensor, error.value.rule) == (operator, tensor, "static")
    assert f"{tensor} is a traced array, expected an integer" in str(error.value)
    assert "; it decides shapes: make it static, for instance with static_argnames" in str(error.value)


@pytest.mark.parametrize(("operator", "name"), [pair for pair in OPTIONS_BY_NAME if pair[1] != "group_count"])
def test_options_cannot_be_traced_in_a_tuple(operator, name):
    with pytest.raises(ArgumentTypeError) as error:
        jax.jit(lambda option: call(operator, {**GOOD[operator], name: (1, option)}))(1)
    assert (error.value.operator, error.value.rule) == (operator, "static")


def test_include_padding_cannot_be_traced():
    with pytest.raises(ArgumentTypeError, match=r"IncludePadding is a traced array, expected True or False; .* static"):
        jax.jit(lambda option: call(POOLING, {**GOOD[POOLING], "include_padding": option}))(True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("operator", "name"), ending("scale"))
def test_numbers_that_jit_has_made_arrays_are_numbers_still(operator, name):
    """Such numbers are weakly typed: 2 is an int32, but is accepted. A value that is not a scale is still rejected."""

    def traced(number):
        return jax.jit(lambda number: call(operator, {**GOOD[operator], name: number}))(number)

    for number in (0.5, 2):
        assert_same_bits(traced(number), call(operator, {**GOOD[operator], name: number}))
    for wrong in (1j, True, np.int32(2), np.ones(2, int)):
        with pytest.raises(DescError) as error:
            traced(wrong)
        assert (error.value.operator, error.value.tensor, error.value.rule) == (
            operator,
            page_name(name, operator),
            "data_type",
        )
    with pytest.raises(DescError, match="has data type INT32"):
        jax.jit(lambda number: call(operator, {**GOOD[operator], name: jax.lax.broadcast(number, (1,))}))(2)


@pytest.mark.parametrize(("operator", "name"), ending("zero_point"))
def test_integers_that_jit_has_made_arrays_are_no_zero_points(operator, name):
    """Their values are unknown, so their range cannot be checked."""
    with pytest.raises(DescError) as error:
        jax.jit(lambda number: call(operator, {**GOOD[operator], name: number}))(3)
    assert (error.value.operator, error.value.tensor, error.value.rule) == (
        operator,
        page_name(name, operator),
        "data_type",
    )
    assert "is a weakly typed integer, whose value cannot be checked under jit; write jnp." in str(error.value)


@pytest.mark.parametrize("operator", OPERATORS)
def test_feature_levels_and_output_dtypes_cannot_be_traced(operator):
    with pytest.raises(DescError, match="expected a FeatureLevel"):
        jax.jit(lambda option: call(operator, {**GOOD[operator], "feature_level": option}))(0x6400)
    if operator in OUTPUT_ZERO_POINT:
        with pytest.raises(ArgumentTypeError, match=r"output_dtype is a traced array, expected a type such as"):
            jax.jit(lambda option: call(operator, {**GOOD[operator], "output_dtype": option}))(u8(1))


@pytest.mark.parametrize("operator", OPERATORS)
def test_64_bit_arrays_are_refused_where_jax_has_them(operator, x64):
    """With 64-bit types on and off: NumPy's are never narrowed, JAX's never taken."""
    name = DATA[operator][0]
    wrong = np.zeros(GOOD[operator][name].shape, np.float64 if operator in OF_FLOATS else np.int64)
    for array in (wrong, jnp.asarray(wrong)) if x64 else (wrong,):
        error = caught(operator, {**GOOD[operator], name: array})
        assert f"has data type {wrong.dtype.name.upper()}, feature level 6_4 allows" in str(error)
