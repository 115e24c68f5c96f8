"""The forms of a contraction: where each is used, and that they agree at the ends of int32's range."""

from functools import partial

import jax
import numpy as np
import pytest

import jaxdml as dml
from helpers.bodies import body
from helpers.cases import CONVOLUTION, MATRIX_MULTIPLY
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from helpers.modes import as_jax
from jaxdml._arithmetic import contractions, windows
from jaxdml._arithmetic.layouts import Filter
from jaxdml._arithmetic.platforms import arrange_filter


def test_the_cases_reach_every_form_of_convolution():
    """Depthwise end to end and strided, a convolution, products of matrices for one group and for several."""
    forms = set()
    for case in (case for chunk in CONVOLUTION for case in chunk):
        f = jax.eval_shape(
            partial(contractions.prepare_filter, is_packed=False, group_count=case.options["group_count"]),
            case.arguments[3],
        )
        is_flat = f.shape[1] == 1 and case.options["strides"] == (1, 1)
        forms.add((f.ndim, f.layout, f.shape[1] == 1, f.group_count > 1, is_flat))
    assert forms >= {(3, "WIO", False, False, False), (4, "HWIO", False, False, False)}
    assert forms >= {(4, "OIHW", False, grouped, False) for grouped in (False, True)}
    assert forms >= {(4, "OIHW", True, True, flat) for flat in (False, True)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chunk", rest_rarely(MATRIX_MULTIPLY, 4), ids=lambda chunk: str(len(chunk)))
def test_products_with_prepared_matrices(chunk):
    """Arrays are multiplied in their own layout; the layout of prepared matrices must give the same bits."""

    @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiling takes longer than running
    def together(lists):
        prepared = [(*one[:3], contractions.prepare_matrix(one[3]), *one[4:]) for one in lists]
        return [body(case, *one) for case, one in zip(chunk, prepared, strict=True)]

    for case, got in zip(chunk, together([as_jax(case.arguments) for case in chunk]), strict=True):
        assert_same_bits(got, case.expected, case)


def wrapped(exact):
    """The integers modulo 2**32, as int32."""
    return np.asarray(exact, np.int64).astype(np.uint32).astype(np.int32)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("value", [-128, 127])
@pytest.mark.parametrize("depth", [33_025, 33_026, 132_104, 132_105, 300_000])
def test_products_at_the_bound_and_beyond(value, depth):
    """int32 holds 33,025 products of 255 * 255, and 132,104 of 127 * 128: past that they wrap."""
    a, b = np.full((3, depth), value, np.int8), np.full((depth, 2), -128, np.int8)
    for a_zero_point, b_zero_point in ((None, None), (-value - 1, 127)):
        zero_points = [None if z is None else np.full((1, 1), z, np.int8) for z in (a_zero_point, b_zero_point)]
        expected = wrapped(np.full((3, 2), depth * (value - (a_zero_point or 0)) * (-128 - (b_zero_point or 0))))
        for matrix in (b, contractions.prepare_matrix(b)):
            got = jax.jit(contractions.dot)(a, zero_points[0], matrix, zero_points[1])
            assert_same_bits(got, expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("channels", "kernel"), [(3_700, 3), (8_300, 4)], ids=str)
@pytest.mark.parametrize("outputs", [2, 17])
def test_convolutions_at_the_bound_and_beyond(channels, kernel, outputs):
    """Windows of 33,300 and 132,800 products, in both layouts of the filter."""
    x = np.full((1, channels, kernel, kernel + 1), 127, np.int8)
    f = np.full((outputs, channels, kernel, kernel), -128, np.int8)
    options = {"strides": (1, 1), "dilations": (1, 1), "padding": ((0, 0), (0, 0)), "group_count": 1}
    depth, packed = channels * kernel**2, contractions.prepare_filter(f, 1)
    for x_zero_point, f_zero_point in ((None, None), (-128, 127)):
        zero_points = [None if z is None else np.full((1, 1, 1, 1), z, np.int8) for z in (x_zero_point, f_zero_point)]
        value = depth * (127 - (x_zero_point or 0)) * (-128 - (f_zero_point or 0))
        got = jax.jit(partial(contractions.conv, **options))(x, zero_points[0], packed, zero_points[1])
        assert_same_bits(got, wrapped(np.full((1, outputs, 1, 2), value)))


@pytest.mark.parametrize(
    ("outputs", "channels", "kernel", "group_count", "layout"),
    [
        (17, 8, (3,), 1, "WIO"), (16, 16, (3,), 1, "OIW"), (17, 7, (3,), 1, "OIW"), (64, 64, (1, 1), 1, "OIHW"),
        (34, 8, (3,), 2, "OIW"),
        (64, 64, (15, 17), 1, "HWIO"), (64, 64, (16, 16), 1, "OIHW"),
    ],
)  # fmt: skip
def test_the_layout_of_a_filter_is_where_its_form_is_fast(outputs, channels, kernel, group_count, layout):
    f = jax.ShapeDtypeStruct((outputs, channels, *kernel), np.int8)
    assert (
        jax.eval_shape(partial(contractions.prepare_filter, is_packed=False, group_count=group_count), f).layout
        == layout
    )


@pytest.mark.parametrize(
    ("outputs", "channels", "kernel", "group_count", "suits"),
    [(12, 1, (3, 3), 3, True), (15, 1, (3, 3), 3, False), (3, 2, (3, 3), 3, False),
     (3, 1, (8, 16), 3, True), (3, 1, (8, 17), 3, False)],
)  # fmt: skip
def test_shifted_products_are_for_depthwise_filters(outputs, channels, kernel, group_count, suits):
    f = Filter(*arrange_filter(np.zeros((outputs, channels, *kernel), np.int8), group_count))
    assert windows.suits_depthwise(f) == suits


@pytest.mark.parametrize(("channels", "kernel", "group_count"), [(2, 400, 1), (1, 100, 3), (1, 200, 3)], ids=str)
def test_a_long_kernel_makes_no_long_program(channels, kernel, group_count):
    x, f = np.ones((1, channels * group_count, 1000), np.uint8), np.arange(6 * channels * kernel).astype(np.uint8)
    f = f.reshape(6, channels, kernel)
    arguments = (x, 1.0, 3, f, 1.0, 5, None, 1e6, 7)
    options = {"group_count": group_count, "strides": 3}
    expected = dml.reference.quantized_linear_convolution(*arguments, **options)
    assert_same_bits(dml.quantized_linear_convolution(*arguments, **options), expected)
    if kernel > 128:
        call = jax.jit(lambda x, f: dml.quantized_linear_convolution(x, *arguments[1:3], f, *arguments[4:], **options))
        text = call.lower(x, f).as_text()
        assert len(text.splitlines()) < 1000
        with jax.enable_x64(True):
            assert call.lower(x, f).as_text() == text
