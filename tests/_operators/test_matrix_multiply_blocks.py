"""The product by a matrix that is quantized by blocks: the oracle's bits in every mode, and its accuracy."""

import functools
import itertools

import jax
import numpy as np
import pytest
from jax import export

import jaxdml as dml
from helpers.block_cases import LIMITS, PRECISIONS, Case, floats, matrix, random_case
from helpers.compare import assert_same_bits
from helpers.marks import on_both_kernels, rarely_on_xla
from helpers.modes import UNOPTIMISED
from jaxdml import reference

RNG = np.random.default_rng(0)
M, N, K = 5, 70, 150  # two panels of columns, and an incomplete last block of 32


def check_cases(cases, count_prepared):
    """In one jit, with arrays; then the first `count_prepared` cases with prepared matrices."""

    def run(every):
        return [case.call(*one) for case, one in zip(cases, every, strict=False)]

    def prepared(arguments):
        a, *parts, bias = arguments
        return a, dml.prepare_matrix_multiply_blocks(*parts), None, None, bias

    every = [case.arguments for case in cases]
    prepare = jax.jit(lambda every: [prepared(one) for one in every], compiler_options=UNOPTIMISED)
    for given in (every, prepare(every[:count_prepared])):
        for case, got in zip(cases, jax.jit(run)(given), strict=False):
            assert_same_bits(got, case.expected, case)


@rarely_on_xla
def test_the_bits_of_the_oracle(kernels):
    rng, is_native = np.random.default_rng(1), kernels == "native"
    check_cases([random_case(rng, number) for number in range(42 if is_native else 7)], 42 if is_native else 2)


@pytest.mark.rare
@on_both_kernels
@pytest.mark.parametrize("seed", range(6))
def test_the_bits_of_the_oracle_in_more_cases(seed, kernels):
    rng = np.random.default_rng(seed + 2)
    check_cases([random_case(rng, number) for number in range(seed, 84, 1 if kernels == "native" else 6)], 84)


@pytest.mark.rare
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_bits_of_the_oracle_in_a_million_outputs(precision):
    rng = np.random.default_rng(5)
    case = Case((floats(rng, "normal", (1000, 512)), *matrix(rng, "uint4", (1000, 512), 32), None), precision)
    assert_same_bits(case.call(), case.expected)


@functools.cache
def example(dtype="uint4", precision="int15"):
    rng = np.random.default_rng(7)
    return Case(
        (floats(rng, "normal", (M, K)), *matrix(rng, dtype, (N, K), 32), floats(rng, "normal", (N,))), precision
    )


@rarely_on_xla
def test_every_mode_gives_the_same_bits():
    case = example()
    a, b, scale, zero_point, bias = case.arguments
    assert_same_bits(case.call(), case.expected)
    constant = jax.jit(lambda a: case.call(a, b, scale, zero_point, bias))
    assert_same_bits(constant(a), case.expected)
    by_row = [case.call(row[None], *case.arguments[1:])[0] for row in a]  # the batch has no influence
    assert_same_bits(np.stack(by_row), case.expected)
    assert_same_bits(case.call(a[0], *case.arguments[1:]), case.expected[0])  # rank 1
    deep = case.call(np.stack([a, a[::-1]]), *case.arguments[1:])
    assert_same_bits(deep, np.stack([case.expected, case.expected[::-1]]))


@rarely_on_xla
def test_vmap_over_each_argument():
    case = example()
    rng = np.random.default_rng(9)
    a = floats(rng, "normal", (3, M, K))
    b, scale, zero_point = matrix(rng, "uint4", (3, N, K), 32)
    bias = floats(rng, "normal", (3, N))
    stacked = a, b, scale, zero_point, bias
    for mapped in ((0,), (1,), (0, 1, 2, 3, 4), (2,), (4,)):
        given = [x if i in mapped else x[0] for i, x in enumerate(stacked)]
        axes = [0 if i in mapped else None for i in range(5)]
        got = jax.jit(jax.vmap(case.call, axes))(*given)
        for place in range(3):
            one = tuple(x[place if i in mapped else 0] for i, x in enumerate(stacked))
            assert_same_bits(got[place], case.call(*one, module=reference), (mapped, place))
    prepared = jax.vmap(dml.prepare_matrix_multiply_blocks)(b, scale, zero_point)
    got = jax.vmap(lambda a, b: case.call(a, b, None, None, bias[0]))(a, prepared)
    for place in range(3):
        one = a[place], b[place], scale[place], zero_point[place], bias[0]
        assert_same_bits(got[place], case.call(*one, module=reference))


@rarely_on_xla
def test_scan_over_layers():
    rng = np.random.default_rng(11)
    a = floats(rng, "normal", (2, 64))
    layers = matrix(rng, "int4", (4, 64, 64), 16)
    prepared = jax.vmap(dml.prepare_matrix_multiply_blocks)(*layers)
    expected = a
    for layer in zip(*layers, strict=True):
        expected = reference.matrix_multiply_blocks(expected, *layer, precision="int22")
    for given in (prepared, layers):

        def step(x, layer):
            return dml.matrix_multiply_blocks(x, *(layer if isinstance(layer, tuple) else (layer,))), None

        got, _ = jax.jit(lambda a, given, step=step: jax.lax.scan(step, a, given))(a, given)
        assert_same_bits(got, expected)


@pytest.mark.rare
@rarely_on_xla
def test_exported_for_any_batch_and_platform():
    case = example()
    a, *rest = case.arguments
    (m,) = export.symbolic_shape("m")
    given = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in rest]
    with dml.use_kernels("xla"):
        prepared = dml.prepare_matrix_multiply_blocks(*rest[:3])
    exporting = export.export(jax.jit(case.call), platforms=("cpu", "cuda", "tpu"))
    for ready in (False, True):
        arguments = [prepared, None, None, rest[3]] if ready else rest
        shapes = [prepared, None, None, given[3]] if ready else given
        file = exporting(jax.ShapeDtypeStruct((m, K), a.dtype), *shapes).serialize()
        assert_same_bits(export.deserialize(file).call(a, *arguments), case.expected)


def test_the_precision_that_the_reference_page_promises():
    """In dB, with 32 elements to a block: for normal values, and with 16 channels of 60 times the size."""
    rng = np.random.default_rng(3)
    m, n, k = 16, 256, 4096
    b, scale, zero_point = matrix(rng, "uint4", (n, k), 32)
    wide = [np.repeat(x.astype(np.float64), 32, 1) for x in (scale, zero_point)]
    exact = (b.astype(np.float64) - wide[1]) * wide[0]
    prepared = dml.prepare_matrix_multiply_blocks(b, scale, zero_point)
    normal, outliers = floats(rng, "normal", (m, k)), floats(rng, "normal", (m, k))
    outliers[:, rng.choice(k, 16, False)] *= 60
    least = {"int8": (45, 37), "int15": (87, 79), "int22": (127, 120)}
    for precision, numbers in least.items():
        for a, least_db in zip((normal, outliers), numbers, strict=True):
            right = a.astype(np.float64) @ exact.T
            noise = np.asarray(dml.matrix_multiply_blocks(a, prepared, precision=precision)) - right
            db = 10 * np.log10((right**2).sum() / (noise**2).sum())
            assert least_db <= db < least_db + 4, (precision, db)


def test_derivatives_are_those_of_the_product_of_floats():
    case = example(precision="int8")
    a, b, scale, zero_point, bias = case.arguments
    weights = np.asarray(reference.dequantize(*(np.pad(b, ((0, 0), (0, 10))), scale, zero_point)))[:, :K]
    cotangent = floats(np.random.default_rng(1), "normal", (M, N))
    output, back = jax.vjp(lambda a, scale, bias: case.call(a, b, scale, zero_point, bias), a, scale, bias)
    assert_same_bits(output, case.expected)
    of_a, of_scale, of_bias = back(cotangent)
    np.testing.assert_allclose(of_a, cotangent @ weights, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(of_bias, cotangent.sum(0), rtol=1e-4, atol=1e-5)
    steps = (b.astype(np.float32) - np.repeat(zero_point.astype(np.float32), 32, 1)[:, :K]) * (cotangent.T @ a)
    by_block = np.pad(steps, ((0, 0), (0, 10))).reshape(N, 5, 32).sum(2)
    np.testing.assert_allclose(of_scale, by_block, rtol=1e-3, atol=1e-3)
    prepared = dml.prepare_matrix_multiply_blocks(b, scale, zero_point)
    of_a, of_bias = jax.vjp(lambda a, bias: case.call(a, prepared, None, None, bias), a, bias)[1](cotangent)
    np.testing.assert_allclose(of_a, cotangent @ weights, rtol=1e-4, atol=1e-5)


@on_both_kernels
def test_blocks_whose_scale_would_be_subnormal_are_zero():
    """Next to the threshold, with scales of b that show the difference, and weights of either sign."""
    b, scale, _ = matrix(np.random.default_rng(2), "int8", (4, 16), 16)
    scale[:] = 2.0**100
    b[1], b[2] = -np.abs(b[1]) - 1, np.abs(b[2] // 2) + 1
    for precision, most in (("int8", 127), ("int15", 16_319), ("int22", 2_088_895)):
        threshold = np.float32(most * 2.0**-126)
        high = [threshold, np.nextafter(threshold, 0), np.nextafter(threshold, 1), threshold / 2, 2.0**-130, 2.0**-149]
        a = np.float32(high)[:, None] * np.ones(16, np.float32)
        case = Case((a, b, scale, None, None), precision)
        assert_same_bits(case.call(), case.expected)
        assert (case.expected != 0).any(1).tolist() == [True, False, True, False, False, False]
        assert not np.signbit(case.expected[3:]).any()


@rarely_on_xla
def test_the_largest_products_and_zeros_of_either_sign():
    """Sums that 16 bits could not hold, and products of scales that are zeros with a sign."""
    a, z = np.ones((2, 256), np.float32), np.zeros((3, 1))
    for dtype, high in (("uint4", 15), ("uint8", 255)):
        for precision, of_a, of_b in itertools.product(PRECISIONS, (1, -1, 1e-12), (0.5, -1e-30)):
            b, scale = np.full((3, 256), high).astype(dtype), np.full((3, 1), of_b, np.float32)
            case = Case((a * np.float32(of_a), b, scale, z.astype(dtype), None), precision)
            assert_same_bits(case.call(), case.expected, (dtype, precision, of_a, of_b))


@pytest.mark.parametrize("is_prepared", [False, True])
def test_two_blocks_of_96_elements_have_64_and_32(is_prepared):
    """Blocks of 48 are three blocks of 16 with the same scale, as the docstring says."""
    rng = np.random.default_rng(6)
    a, (b, scale, zero_point) = floats(rng, "normal", (2, 96)), matrix(rng, "uint4", (3, 96), 64)
    for factor, lengths in ((1, [64, 32]), (3, [48, 48])):
        given = b, np.repeat(scale, factor, 1), np.repeat(zero_point, factor, 1)
        wide = [np.repeat(x.astype(np.float64), lengths, 1) for x in (scale, zero_point)]
        right = a @ ((b.astype(np.float64) - wide[1]) * wide[0]).T
        if is_prepared:
            given = (dml.prepare_matrix_multiply_blocks(*given),)
        np.testing.assert_allclose(dml.matrix_multiply_blocks(a, *given), right, rtol=1e-5, atol=1e-6)


def test_float64_mode_changes_nothing():
    case = example()
    with jax.enable_x64(True):
        assert_same_bits(case.call(), case.expected)


def test_types_without_a_zero_point_have_the_middle():
    rng = np.random.default_rng(4)
    for dtype in LIMITS:
        a, (b, scale, _) = floats(rng, "normal", (2, 32)), matrix(rng, dtype, (3, 32), 16)
        middle = np.full(scale.shape, {"uint4": 8, "uint8": 128}.get(dtype, 0)).astype(dtype)
        assert_same_bits(dml.matrix_multiply_blocks(a, b, scale), dml.matrix_multiply_blocks(a, b, scale, middle))
