"""The lowerings: each gives the same integers, and on a CPU the compiled program uses XLA's int8 kernels."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from cases import BYTES, CONVOLUTION, MATRIX_MULTIPLY
from jaxdml._lowering import canonical, cpu, cuda, forms, prepared, tpu
from jaxdml._shapes import aligned, per_channel

on_cpu = pytest.mark.skipif(jax.default_backend() != "cpu", reason="looks at programs compiled for a CPU")


def name(chunk):
    return chunk[0].operator


def dot_arguments(case):
    a, _, a_zero_point, b, _, b_zero_point, _, _ = case.arguments
    a_zero_point, b_zero_point = (
        None if z is None else z.reshape(aligned(z.shape, a.ndim)) for z in (a_zero_point, b_zero_point)
    )
    return a, a_zero_point, b, b_zero_point


def conv_arguments(case):
    x, _, x_zero_point, f, _, f_zero_point = case.arguments[:6]
    x_zero_point = None if x_zero_point is None else x_zero_point.reshape((1,) * x.ndim)
    if f_zero_point is not None:
        f_zero_point = np.moveaxis(f_zero_point.reshape(per_channel(f_zero_point.shape, x.ndim, f.shape[0])), 1, 0)
    padding = tuple(zip(case.options["start_padding"], case.options["end_padding"], strict=True))
    options = {name: case.options[name] for name in ("strides", "dilations", "group_count")}
    return (x, x_zero_point, f, f_zero_point), options | {"padding": padding}


def in_one_program(function, arguments):
    return jax.jit(lambda all: [function(*one) for one in all])(arguments)


def assert_all_equal(expected, got):
    for one, other in zip(expected, got, strict=True):
        assert one.dtype == other.dtype == jnp.int32
        np.testing.assert_array_equal(one, other)


def prepared_dot(layout):
    return lambda a, az, b, bz: forms.dot(a, az, prepared.prepare_matrix(b, layout), bz)


@pytest.mark.parametrize("chunk", MATRIX_MULTIPLY, ids=name)
def test_dot_lowerings_agree(chunk):
    arguments = [dot_arguments(case) for case in chunk]
    # "KN" is what arrays become: test_contractions holds it against NumPy on all cases.
    assert_all_equal(in_one_program(canonical.dot, arguments), in_one_program(prepared_dot("NK"), arguments))


@pytest.mark.parametrize("number", range(len(CONVOLUTION)))
def test_conv_lowerings_agree(number):
    chunk = CONVOLUTION[number]
    arguments = [conv_arguments(case) for case in chunk]

    def both(lowering):
        options = [options for _, options in arguments]
        operands = [operands for operands, _ in arguments]
        together = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # it takes long to compile
        return together(lambda all: [lowering(*one, **o) for one, o in zip(all, options, strict=True)])(operands)

    def in_int8(form, x, x_zero_point, f, f_zero_point, *, group_count, **options):
        return forms.conv(form, x, x_zero_point, prepared.prepare_filter(f, group_count), f_zero_point, **options)

    expected = both(canonical.conv)
    # test_contractions holds the form for CPUs against NumPy; those for accelerators, never run here, take turns.
    assert_all_equal(expected, both(partial(in_int8, cuda.form if number % 2 else tpu.form)))


def test_the_cases_reach_every_form_of_convolution():
    """Depthwise end to end and strided, a convolution, products of matrices for one group and for several."""
    forms = set()
    for case in (case for chunk in CONVOLUTION for case in chunk):
        f = jax.eval_shape(partial(prepared.prepare_filter, group_count=case.options["group_count"]), case.arguments[3])
        is_flat = f.shape[1] == 1 and case.options["strides"] == (1, 1)
        forms.add((f.ndim, f.layout, f.shape[1] == 1, f.group_count > 1, is_flat))
    assert forms >= {(3, "WIO", False, False, False), (4, "HWIO", False, False, False)}
    assert forms >= {(4, "OIHW", False, grouped, False) for grouped in (False, True)}
    assert forms >= {(4, "OIHW", True, True, flat) for flat in (False, True)}


@pytest.mark.parametrize("value", [-128, 127])
@pytest.mark.parametrize("depth", [33_025, 33_026, 132_104, 132_105, 300_000])
def test_lowerings_agree_at_the_bound_and_beyond(value, depth):
    """int32 holds 33,025 products of 255 * 255, and 132,104 of 127 * 128: past that both wrap alike."""
    a, b = np.full((3, depth), value, np.int8), np.full((depth, 2), -128, np.int8)
    for zero_points in ((None, None), (np.full((1, 1), -value - 1, np.int8), np.full((1, 1), 127, np.int8))):
        arguments = (a, zero_points[0], b, zero_points[1])
        expected = jax.jit(canonical.dot)(*arguments)
        for layout in ("KN", "NK"):
            np.testing.assert_array_equal(jax.jit(prepared_dot(layout))(*arguments), expected)


@pytest.mark.parametrize(("channels", "kernel"), [(3_700, 3), (8_300, 4)], ids=str)
@pytest.mark.parametrize("outputs", [2, 17])
def test_convolutions_agree_at_the_bound_and_beyond(channels, kernel, outputs):
    """The same with windows: 33,300 and 132,800 products, in both layouts of the filter."""
    x, f = (
        np.full((1, channels, kernel, kernel + 1), 127, np.int8),
        np.full((outputs, channels, kernel, kernel), -128, np.int8),
    )
    options = {"strides": (1, 1), "dilations": (1, 1), "padding": ((0, 0), (0, 0))}
    packed = prepared.prepare_filter(f, 1)
    for zero_points in ((None, None), (np.full((1, 1, 1, 1), -128, np.int8), np.full((1, 1, 1, 1), 127, np.int8))):
        expected = jax.jit(partial(canonical.conv, **options, group_count=1))(x, zero_points[0], f, zero_points[1])
        got = jax.jit(partial(forms.conv, cpu.form, **options))(x, zero_points[0], packed, zero_points[1])
        np.testing.assert_array_equal(got, expected)


def compiled(function, *arguments):
    return jax.jit(function).lower(*arguments).compile().as_text()


def slow_contractions(hlo):
    """Products and convolutions that XLA:CPU runs as scalar loops: those whose operands it has widened to int32."""
    types = dict(re.findall(r"%?([\w.-]+) = (\w+)\[", hlo))
    types |= dict(re.findall(r"([\w.-]+): (\w+)\[", hlo))
    contractions = re.findall(r" (?:dot|convolution)\(%?([\w.-]+), %?([\w.-]+)\)", hlo)
    return [operands for operands in contractions if {types[name] for name in operands} & {"s32", "u8"}]


def multiply(m, k, n, a_dtype, b_dtype, zero_points):
    a, b = jax.ShapeDtypeStruct((m, k), a_dtype), jax.ShapeDtypeStruct((k, n), b_dtype)
    z = [np.asarray(3, t) if zero_points else None for t in (a_dtype, b_dtype)]
    return compiled(lambda a, b: dml.quantized_linear_matrix_multiply(a, 0.1, z[0], b, 0.1, z[1], 1.0, None), a, b)


@on_cpu
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("a_dtype", BYTES)
@pytest.mark.parametrize("b_dtype", BYTES)
@pytest.mark.parametrize("sizes", [(128, 96, 64), (1, 256, 256), (256, 256, 1), (2, 128, 64)], ids=str)
def test_matrix_multiply_uses_the_int8_kernel(sizes, a_dtype, b_dtype, zero_points):
    hlo = multiply(*sizes, a_dtype, b_dtype, zero_points)
    assert "__ynn_fusion" in hlo
    assert not slow_contractions(hlo)


@on_cpu
@pytest.mark.parametrize(
    ("channels", "size", "out", "kernel", "options", "contractions"),
    [
        (64, 14, 64, 3, {"start_padding": 1, "end_padding": 1}, {"convolution": 1}),
        (64, 14, 32, 1, {}, {"dot": 1}),
        (3, 32, 16, 7, {"strides": 2, "start_padding": 3, "end_padding": 3}, {"dot": 1}),
        (32, 14, 32, 3, {"dilations": 2}, {"convolution": 1}),
        (64, 14, 128, 3, {"group_count": 4}, {"dot": 1}),
        (64, 14, 64, 3, {"group_count": 4}, {"dot": 1}),
        (512, 7, 512, 3, {}, {"dot": 1}),
        (24, 14, 24, 3, {"group_count": 24, "start_padding": 1, "end_padding": 1}, {}),
        (24, 14, 48, 3, {"group_count": 24, "strides": 2}, {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("x_dtype", BYTES)
def test_convolution_uses_the_int8_kernel(channels, size, out, kernel, options, contractions, x_dtype):
    x = jax.ShapeDtypeStruct((2, channels, size, size), x_dtype)
    f = jax.ShapeDtypeStruct((out, channels // options.get("group_count", 1), kernel, kernel), jnp.int8)

    def convolve(x, f):
        return dml.quantized_linear_convolution(
            x, 0.1, np.asarray(3, x_dtype), f, 0.1, None, None, 1.0, None, **options
        )

    hlo = compiled(convolve, x, f)
    sums_of_filter = 1  # as a product with ones
    assert hlo.count(" convolution(") == contractions.get("convolution", 0)
    assert hlo.count(" dot(") == contractions.get("dot", 0) + sums_of_filter
    assert hlo.count('"__ynn_fusion"') == sum(contractions.values()) + sums_of_filter


@on_cpu
@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("group_count", [1, 2])
@pytest.mark.parametrize(("size", "kernel"), [((40,), (3,)), ((9, 9), (3, 3)), ((9, 9), (1, 1))], ids=str)
def test_zero_points_and_one_dimension_keep_the_kernel(size, kernel, group_count, is_prepared):
    """uint8 filters with a zero point for each channel, prepared or not, under vmap over everything and without."""
    x = jax.ShapeDtypeStruct((3, 2, 32 * group_count, *size), np.uint8)
    f = np.ones((3, 24 * group_count, 32, *kernel), np.uint8)
    if is_prepared:
        f = jax.vmap(lambda f: dml.prepare_convolution_filter(f, group_count=group_count))(f)
    zero_point = np.arange(24 * group_count).astype(np.uint8)

    def convolve(x, f):
        return dml.quantized_linear_convolution(x, 0.1, 3, f, 0.1, zero_point, None, 1.0, None, group_count=group_count)

    hlo = compiled(jax.vmap(convolve), x, f)
    assert "feature_group_count" not in hlo
    assert hlo.count('"__ynn_fusion"') == hlo.count(" convolution(") + hlo.count(" dot(") > 0
    shared = compiled(jax.vmap(convolve, (None, 0)), jax.ShapeDtypeStruct(x.shape[1:], x.dtype), f)
    assert " while(" not in shared  # filters that see the same input are one product
    assert shared.count('"__ynn_fusion"') == shared.count(" dot(") > 0
    assert " convolution(" not in shared
    one = compiled(convolve, *jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), (x, f)))
    assert one.count('"__ynn_fusion"') == one.count(" convolution(") + one.count(" dot(") > 0


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
    assert jax.eval_shape(partial(prepared.prepare_filter, group_count=group_count), f).layout == layout


@pytest.mark.parametrize(
    ("outputs", "channels", "kernel", "group_count", "suits"),
    [(12, 1, (3, 3), 3, True), (15, 1, (3, 3), 3, False), (3, 2, (3, 3), 3, False),
     (3, 1, (8, 16), 3, True), (3, 1, (8, 17), 3, False)],
)  # fmt: skip
def test_shifted_products_are_for_depthwise_filters(outputs, channels, kernel, group_count, suits):
    f = jax.eval_shape(
        partial(prepared.prepare_filter, group_count=group_count), np.zeros((outputs, channels, *kernel), np.int8)
    )
    assert forms.suits_depthwise(f) == suits


@pytest.mark.parametrize(("channels", "kernel", "group_count"), [(2, 400, 1), (1, 100, 3), (1, 200, 3)], ids=str)
def test_a_long_kernel_makes_no_long_program(channels, kernel, group_count):
    x, f = np.ones((1, channels * group_count, 1000), np.uint8), np.arange(6 * channels * kernel).astype(np.uint8)
    f = f.reshape(6, channels, kernel)
    arguments = (x, 1.0, 3, f, 1.0, 5, None, 1e6, 7)
    options = {"group_count": group_count, "strides": 3}
    expected = dml.reference.quantized_linear_convolution(*arguments, **options)
    np.testing.assert_array_equal(dml.quantized_linear_convolution(*arguments, **options), expected)
    if kernel > 128:
        call = jax.jit(lambda x, f: dml.quantized_linear_convolution(x, *arguments[1:3], f, *arguments[4:], **options))
        text = call.lower(x, f).as_text()
        assert len(text.splitlines()) < 1000
        with jax.enable_x64(True):
            assert call.lower(x, f).as_text() == text


@on_cpu
def test_a_slow_contraction_would_be_seen():
    x, f = jnp.zeros((1, 64, 14, 14), jnp.int8), jnp.zeros((64, 64, 3, 3), jnp.int8)
    options = {"strides": (1, 1), "dilations": (1, 1), "padding": ((1, 1), (1, 1)), "group_count": 1}
    hlo = compiled(lambda x, f: canonical.conv(x, None, f, None, **options), x, f)
    assert slow_contractions(hlo)
    assert "__ynn_fusion" not in hlo


@on_cpu
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("dtype", BYTES)
def test_a_zero_point_costs_a_sum_and_none_nothing(dtype, zero_points):
    """Sums are products with ones. Those of B are prepared; int8 without zero points needs none."""
    a = jax.ShapeDtypeStruct((64, 64), dtype)
    b = dml.prepare_matrix_multiply_b(np.zeros((64, 64), dtype))
    z = np.asarray(3, dtype) if zero_points else None
    products = [
        compiled(lambda a, b: dml.quantized_linear_matrix_multiply(a, 0.1, z, b, 0.1, z, 1.0, None), a, b).count(
            " dot("
        )
        for b in (b, jax.ShapeDtypeStruct(b.shape, b.dtype))
    ]
    needed = zero_points or dtype == np.uint8
    assert products == [1 + needed, 1 + 2 * needed]
    assert multiply(64, 64, 64, dtype, dtype, zero_points).count(" dot(") == products[1]


@on_cpu
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize(("channels", "size"), [(64, 56), (128, 28), (256, 14)], ids=str)
def test_a_convolution_needs_little_memory(channels, size, batch):
    """Twice the padded input and the int32 sums, where a product of matrices would need nine inputs."""
    x = jax.ShapeDtypeStruct((batch, channels, size, size), np.uint8)
    f = dml.prepare_convolution_filter(np.zeros((channels, channels, 3, 3), np.int8))

    def convolve(x, f):
        return dml.quantized_linear_convolution(x, 0.1, 3, f, 0.1, None, None, 1.0, 5, start_padding=1, end_padding=1)

    used = jax.jit(convolve).lower(x, f).compile().memory_analysis().temp_size_in_bytes
    assert 0 < used <= 2 * batch * channels * (size + 2) ** 2 + 4 * batch * channels * size**2


@on_cpu
def test_constant_weights_are_not_repacked_when_compiling():
    """XLA would transpose and add them up with its interpreter: seconds for each."""
    b, f = (np.arange(np.prod(sizes)).astype(np.int8).reshape(sizes) for sizes in ((64, 64), (64, 32, 3, 3)))

    def both(a, x):
        y = dml.quantized_linear_matrix_multiply(a, 0.1, 3, b, 0.1, None, 1.0, None)
        return y, dml.quantized_linear_convolution(x, 0.1, 3, f, 0.1, None, None, 1.0, None)

    hlo = compiled(both, jax.ShapeDtypeStruct((64, 64), np.uint8), jax.ShapeDtypeStruct((1, 32, 9, 9), np.uint8))
    assert hlo.count(" dot(") == 3  # the product, and the sums of b and of f
    constants = re.findall(r" = (s8\[[\d,]*\])\S* constant\(", hlo)
    assert {"s8[64,64]", "s8[64,32,3,3]"} <= set(constants)
    assert "s8[3,3,32,64]" not in constants
