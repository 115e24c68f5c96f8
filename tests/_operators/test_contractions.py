"""Matrix multiply and convolution against the oracle: every option, every mode, the extremes, beyond 2**31."""

import jax
import numpy as np
import pytest

import jaxdml as dml
from helpers.cases import BYTES, CONVOLUTION, MATRIX_MULTIPLY, Case
from helpers.compare import assert_same_bits
from helpers.marks import on_both_kernels, rarely_on_xla, rest_rarely
from helpers.modes import (
    UNOPTIMISED,
    as_jax,
    assert_same,
    called,
    check,
    closed_over,
    jitted,
    op_by_op,
    stacked,
    unoptimised_calls,
    variants,
    vmapped,
)
from jaxdml import reference

# Each mode runs a part of the cases in each run, and the rest in `make test-all`.
FEW = rest_rarely(MATRIX_MULTIPLY, 1) + rest_rarely(CONVOLUTION, 1)


def name(chunk):
    return chunk[0].operator.split("_")[-1]


@rarely_on_xla
@pytest.mark.parametrize("chunk", FEW, ids=name)
def test_jitted(chunk):
    """All cases as XLA optimises them."""
    check(chunk, jitted)


@rarely_on_xla
@pytest.mark.parametrize("chunk", FEW, ids=name)
def test_called(chunk):
    """Other tests, such as test_every_mode, call operators whose programs are optimised."""
    with unoptimised_calls():
        check(chunk, called)


@pytest.mark.sampled(2)
@on_both_kernels
@pytest.mark.parametrize("chunk", FEW, ids=name)
def test_x64_changes_no_operation(chunk):
    """With 64-bit types on, the same program is traced, for every backend; test_every_mode runs it."""
    for case in chunk[::2]:
        programs = []
        for enabled in (False, True):
            with jax.enable_x64(enabled):
                programs.append(str(jax.make_jaxpr(case.call)(*as_jax(case.arguments))))
        assert programs[0] == programs[1]


@on_both_kernels
@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", [called, jitted, closed_over, op_by_op], ids=lambda mode: mode.__name__)
@pytest.mark.parametrize("chunk", [MATRIX_MULTIPLY[0][:3], CONVOLUTION[0][:3]], ids=name)
def test_every_mode(chunk, mode, x64):
    check(chunk, mode)


@pytest.mark.sampled(1)
@rarely_on_xla
@pytest.mark.parametrize("chunk", FEW, ids=name)
def test_vmapped_over_every_argument(chunk):
    lists = [variants(case) for case in chunk]
    batches = [as_jax(stacked(arguments)) for arguments in lists]
    # The first chunks compare the operators under vmap, optimised or not.
    is_first = chunk is MATRIX_MULTIPLY[0] or chunk is CONVOLUTION[0]
    got = vmapped(chunk, batches, None if is_first else UNOPTIMISED)
    for case, arguments, batch in zip(chunk, lists, got, strict=True):
        for one, values in zip(arguments, batch, strict=True):
            assert_same(case, values, Case(case.operator, one, case.options).expected)


@on_both_kernels
def test_the_cases_reach_every_option():
    multiplies = [case for chunk in MATRIX_MULTIPLY for case in chunk]
    convolutions = [case for chunk in CONVOLUTION for case in chunk]
    assert len(multiplies) + len(convolutions) >= 300
    mixes = {(c.arguments[0].dtype, c.arguments[3].dtype, np.dtype(c.options["output_dtype"])) for c in multiplies}
    assert len(mixes) == 8
    assert {c.arguments[0].ndim for c in multiplies} == {2, 3, 4}
    for parameter in (1, 2, 4, 5, 6, 7):
        forms = {None if c.arguments[parameter] is None else c.arguments[parameter].ndim for c in multiplies}
        assert {0, 2} <= forms
    assert {c.arguments[0].ndim for c in convolutions} == {3, 4}
    depthwise = [c for c in convolutions if c.options["group_count"] == c.arguments[0].shape[1] > 1]
    assert any(c.arguments[3].shape[0] > c.options["group_count"] for c in depthwise)
    expected = np.concatenate([c.expected.reshape(-1).astype(np.int16) for c in convolutions + multiplies])
    assert np.unique(expected).size == 384  # every value of both output types


@on_both_kernels
@pytest.mark.sampled(3)
@pytest.mark.parametrize("a_value", ["min", "max"])
@pytest.mark.parametrize("b_value", ["min", "max"])
@pytest.mark.parametrize("a_dtype", BYTES)
@pytest.mark.parametrize("b_dtype", BYTES)
@pytest.mark.parametrize("k", [1, 33_025, 33_026, 70_000])
def test_accumulator_is_int32_modulo_2_to_the_32(a_value, b_value, a_dtype, b_dtype, k):
    """With zero points at the far end every product is 255 * 255: int32 holds 33,025 of them."""
    a = np.full((2, k), getattr(np.iinfo(a_dtype), a_value), a_dtype)
    b = np.full((k, 3), getattr(np.iinfo(b_dtype), b_value), b_dtype)
    a_zero_point = np.asarray(getattr(np.iinfo(a_dtype), "max" if a_value == "min" else "min"), a_dtype)
    b_zero_point = np.asarray(getattr(np.iinfo(b_dtype), "max" if b_value == "min" else "min"), b_dtype)
    for output_scale in (1.0, 2.0**24):
        arguments = (a, 1.0, a_zero_point, b, 1.0, b_zero_point, output_scale, np.int8(1))
        expected = reference.quantized_linear_matrix_multiply(*arguments)
        assert_same_bits(dml.quantized_linear_matrix_multiply(*arguments), expected)


@on_both_kernels
@pytest.mark.sampled(2)
@pytest.mark.parametrize("x_dtype", BYTES)
@pytest.mark.parametrize("f_dtype", BYTES)
@pytest.mark.parametrize("group_count", [1, 4])
def test_convolution_of_extremes(x_dtype, f_dtype, group_count):
    """All extremes, all corners of the zero points, padding that must not count, a bias that wraps."""
    for x_value, f_value in np.ndindex(2, 2):
        x_limits, f_limits = np.iinfo(x_dtype), np.iinfo(f_dtype)
        x = np.full((2, 8, 6, 6), [x_limits.min, x_limits.max][x_value], x_dtype)
        f = np.full((4, 8 // group_count, 3, 3), [f_limits.min, f_limits.max][f_value], f_dtype)
        for x_zero, f_zero, bias in np.ndindex(2, 2, 2):
            arguments = (
                x, 1.0, np.asarray([x_limits.min, x_limits.max][x_zero], x_dtype),
                f, 1.0, np.asarray([f_limits.min, f_limits.max][f_zero], f_dtype),
                np.full(4, [-(2**31), 2**31 - 1][bias], np.int32), 2.0**24, np.uint8(100),
            )  # fmt: skip
            options = {"start_padding": 1, "end_padding": (1, 2), "group_count": group_count}
            expected = reference.quantized_linear_convolution(*arguments, **options)
            assert_same_bits(dml.quantized_linear_convolution(*arguments, **options), expected)
