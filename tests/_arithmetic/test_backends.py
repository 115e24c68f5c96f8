"""XLA's platforms: each computes with its own forms only, and all forms give the same bits."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.bodies import body
from helpers.cases import CONVOLUTION, MATRIX_MULTIPLY, Case
from helpers.compare import assert_same_bits
from helpers.marks import on_xla_alone
from jaxdml._arithmetic import contractions, cuda, int8, int32, platforms, prepared, tpu
from jaxdml._arithmetic.layouts import Filter
from jaxdml._arithmetic.zero_points import reduced

pytestmark = on_xla_alone

# Compiling takes longer than running.
quickly = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


CONVS = {"cuda": cuda.conv, "tpu": tpu.conv, "default": int32.conv}


@pytest.fixture
def on_this_platform(monkeypatch):
    """Replaces the CPU's form of a convolution, and its form of a product by the default form."""

    def replace(conv):
        monkeypatch.setitem(platforms.CONVS, "cpu", conv)
        monkeypatch.setitem(platforms.DOTS, "cpu", int8.product)

    return replace


def check(chunk):
    """Computes the cases in one program that is traced again, and compares them."""
    got = quickly(lambda lists: [body(case, *one) for case, one in zip(chunk, lists, strict=True)])(
        [tuple(None if x is None else jnp.asarray(x) for x in case.arguments) for case in chunk]
    )
    for case, one in zip(chunk, got, strict=True):
        assert_same_bits(one, case.expected, case)


@pytest.mark.rare
@pytest.mark.parametrize("number", range(len(CONVOLUTION)))
def test_convolutions_of_other_platforms(number, on_this_platform):
    """The forms of CUDA and of TPUs, and the default form, in turn; other tests compare the CPU's forms with NumPy."""
    on_this_platform([*CONVS.values()][number % 3])
    check(CONVOLUTION[number])


@pytest.mark.rare
@pytest.mark.parametrize("conv", CONVS.values(), ids=CONVS)
def test_other_platforms_on_other_cases(conv, on_this_platform):
    """A part of the cases with each form; products have the same form on all platforms except the CPU."""
    on_this_platform(conv)
    check(CONVOLUTION[0][:8] + MATRIX_MULTIPLY[0])


X = np.arange(-12, 12).astype(np.int8).reshape(2, 3, 4)
IMAGE, FILTER = (
    np.arange(72).astype(np.uint8).reshape(1, 2, 6, 6),
    np.arange(-18, 18).astype(np.int8).reshape(2, 2, 3, 3),
)
CASES = {
    "dot": Case(
        "quantized_linear_matrix_multiply",
        (X, np.float32(0.1), np.int8(3), X.reshape(2, 4, 3), np.float32(0.2), None, np.float32(4), np.int8(5)),
        {},
    ),
    "conv": Case(
        "quantized_linear_convolution",
        (IMAGE, np.float32(0.1), np.uint8(3), FILTER, np.float32(0.2), np.int8(2), None, np.float32(40), np.uint8(5)),
        {"start_padding": 1, "strides": 2},
    ),
}
TABLES = {"dot": (platforms.DOTS, int8.product), "conv": (platforms.CONVS, int32.conv)}


@pytest.mark.parametrize("name", CASES)
def test_the_form_of_a_platform_is_computed(name, monkeypatch):
    """The operator returns the form's result, right or wrong."""
    (table, common), case, seen = TABLES[name], CASES[name], []

    def form(added, *operands, **statics):
        seen.append(added)
        return common(*operands, **statics) + jnp.int32(added)

    for added in (0, 100):
        monkeypatch.setitem(table, "cpu", partial(form, added))
        got = jax.jit(lambda: body(case))()
        assert added in seen
        assert (np.asarray(got) == case.expected).all() == (added == 0)


@pytest.mark.parametrize("name", CASES)
def test_a_form_stays_on_its_platform(name, monkeypatch):
    """A program that is lowered for another platform does not contain the form."""
    table, common = TABLES[name]

    def marked(*operands, **statics):
        return common(*operands, **statics) ^ jnp.int32(85)

    monkeypatch.setitem(table, "tpu", marked)
    traced = jax.jit(lambda: body(CASES[name])).trace()
    assert "dense<85>" not in traced.lower(lowering_platforms=("cpu",)).as_text()
    assert "dense<85>" in traced.lower(lowering_platforms=("tpu",)).as_text()


def as_they_are(values, group_count):
    outputs, channels, *kernel = values.shape
    return values.reshape(group_count, outputs // group_count, channels, *kernel), "OIHW"


def channels_last(values, group_count):
    return jnp.moveaxis(as_they_are(values, group_count)[0], (1, 2), (-1, -2)), "HWIO"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("matrix", "filter"), [
    ((lambda values: (values.swapaxes(-1, -2), "NK")), channels_last), ((lambda values: (values, "KN")), as_they_are),
])  # fmt: skip
def test_an_arrangement_is_used_and_undone(matrix, filter, monkeypatch):
    """Weights in any layout: the bits are the same, and the array is restored."""
    monkeypatch.setattr(prepared, "arrange_matrix", matrix)
    for module in (prepared, contractions):
        monkeypatch.setattr(module, "arrange_filter", filter)
    b = CASES["dot"].arguments[3]
    m, f = contractions.prepare_matrix(b), contractions.prepare_filter(FILTER, 1)
    assert (m.layout, f.layout) == (matrix(b)[1], filter(FILTER, 1)[1])
    assert_same_bits(m.array, b)
    assert_same_bits(f.array, FILTER)
    assert_same_bits(contractions.prepare_filter(FILTER, 2).array, FILTER)
    for case, known in ((CASES["dot"], m), (CASES["conv"], f)):
        for weights in (case.arguments[3], known):
            arguments = [*case.arguments[:3], weights, *case.arguments[4:]]
            assert_same_bits(jax.jit(partial(body, case))(*arguments), case.expected)


def test_a_program_chooses_once_for_each_contraction_sum_and_quotient():
    assert str(jax.make_jaxpr(lambda: body(CASES["conv"]))()).count("platform_index") == 3


def test_sums_of_other_platforms():
    x = np.random.default_rng(0).integers(-128, 128, (3, 5, 7), np.int8)
    for axis in range(3):
        assert_same_bits(reduced(x, axis), x.sum(axis, dtype=np.int32, keepdims=True))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("groups", "outputs", "channels", "left"), [
    (4, 8, 16, 1), (32, 2, 4, 1), (8, 3, 64, 4), (6, 1, 50, 3), (3, 4, 100, 3), (2, 1, 64, 1), (16, 2, 1, 16),
    (1, 8, 16, 1),
])  # fmt: skip
def test_a_tpu_convolves_groups_as_wide_as_a_matrix_unit(groups, outputs, channels, left):
    rng = np.random.default_rng(2)
    x = rng.integers(-128, 128, (1, groups * channels, 4, 4), np.int8)
    values = rng.integers(-128, 128, (groups, outputs, channels, 2, 2), np.int8)
    function = jax.jit(lambda x, values: tpu.conv(x, Filter(values, "OIHW"), (1, 1), (1, 1)))
    plain = int32.conv(x, Filter(jnp.asarray(values), "OIHW"), (1, 1), (1, 1))
    assert_same_bits(function(x, values), np.asarray(plain))
    assert f"feature_group_count = {left} :" in function.lower(x, values).as_text()


def test_merged_groups_have_no_more_products_than_fit_int32():
    x, values = (jax.ShapeDtypeStruct(shape, jnp.int8) for shape in ((1, 64, 40, 40), (4, 2, 16, 40, 40)))
    convolve = jax.jit(lambda x, values: tpu.conv(x, Filter(values, "OIHW"), (1, 1), (1, 1)))
    assert "feature_group_count = 1 :" in convolve.lower(x, values).as_text()  # 64 * 40 * 40 = 102,400 products
    x, values = (jax.ShapeDtypeStruct(shape, jnp.int8) for shape in ((1, 64, 60, 60), (4, 2, 16, 60, 60)))
    assert "feature_group_count = 2 :" in convolve.lower(x, values).as_text()  # 32 * 60 * 60 = 115,200 products


def test_depthwise_sums_are_not_stored_on_a_gpu():
    values = jax.ShapeDtypeStruct((8, 1, 1, 3, 3), jnp.int8)
    x = jax.ShapeDtypeStruct((1, 8, 9, 9), jnp.int8)
    convolve = jax.jit(lambda x, values: cuda.conv(x, Filter(values, "OIHW"), (1, 1), (1, 1)))
    assert "optimization_barrier" not in convolve.lower(x, values).as_text()
