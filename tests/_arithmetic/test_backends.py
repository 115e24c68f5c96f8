"""The seam: what a backend offers is taken, on its platform alone; all backends give the same bits."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.bodies import body
from helpers.cases import CONVOLUTION, MATRIX_MULTIPLY, Case
from helpers.compare import assert_same_bits
from helpers.marks import on_xla_alone, rest_rarely
from jaxdml._arithmetic import contractions, cpu, cuda, elementwise, platforms, pooling, tpu
from jaxdml._arithmetic.backend import Backend

pytestmark = on_xla_alone

# There is more to compile than to run.
quickly = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture
def on_this_platform(monkeypatch):
    """Puts a backend in the CPU's place."""
    return lambda backend: monkeypatch.setitem(platforms.BACKENDS, "cpu", backend)


def check(chunk):
    """The cases in one program, traced anew."""
    got = quickly(lambda lists: [body(case, *one) for case, one in zip(chunk, lists, strict=True)])(
        [tuple(None if x is None else jnp.asarray(x) for x in case.arguments) for case in chunk]
    )
    for case, one in zip(chunk, got, strict=True):
        assert_same_bits(one, case.expected, case)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", rest_rarely(range(len(CONVOLUTION)), 2))
def test_convolutions_of_other_backends(number, on_this_platform):
    """CUDA's, TPU's, and those of a backend that offers nothing, in turn; the CPU's are held to NumPy elsewhere."""
    on_this_platform([cuda.BACKEND, tpu.BACKEND, Backend()][number % 3])
    check(CONVOLUTION[number])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("backend", [cuda.BACKEND, tpu.BACKEND, Backend()], ids=["cuda", "tpu", "none"])
def test_other_backends_on_other_cases(backend, on_this_platform):
    """A part of the cases on every backend; products are the same on all but the CPU."""
    on_this_platform(backend)
    check(CONVOLUTION[0][:8] + MATRIX_MULTIPLY[0])


X = np.arange(-12, 12).astype(np.int8).reshape(2, 3, 4)
VALUES = np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 3, 4)
IMAGE, FILTER = (
    np.arange(72).astype(np.uint8).reshape(1, 2, 6, 6),
    np.arange(-18, 18).astype(np.int8).reshape(2, 2, 3, 3),
)
POOLED = np.float32(0.1), np.uint8(3), np.float32(0.2), np.uint8(5)
CASES = {
    "dequantized": Case("element_wise_dequantize_linear", (X, np.float32(0.1), np.int8(3)), {}),
    "quantized": Case("element_wise_quantize_linear", (VALUES, np.float32(0.1), np.uint8(3)), {}),
    "quantized_sum": Case(
        "element_wise_quantized_linear_add",
        (X, np.float32(0.1), None, X, np.float32(0.2), np.int8(3), np.float32(0.3), None),
        {},
    ),
    "requantized_dot": Case(
        "quantized_linear_matrix_multiply",
        (X, np.float32(0.1), np.int8(3), X.reshape(2, 4, 3), np.float32(0.2), None, np.float32(4), np.int8(5)),
        {},
    ),
    "requantized_conv": Case(
        "quantized_linear_convolution",
        (IMAGE, np.float32(0.1), np.uint8(3), FILTER, np.float32(0.2), np.int8(2), None, np.float32(40), np.uint8(5)),
        {"start_padding": 1, "strides": 2},
    ),
    "integer_dot": Case("matrix_multiply_integer", (X, np.int8(3), X.reshape(2, 4, 3), None), {}),
    "integer_conv": Case("convolution_integer", (IMAGE, np.uint8(3), FILTER, np.int8(2)), {"strides": 2}),
    "extremes": Case("dynamic_quantize_linear", (VALUES,), {}),
    "sums_of_images": Case("quantized_linear_average_pooling", (IMAGE, *POOLED), {"window_size": 6}),
}
RAW = {"int8_dot": "requantized_dot", "int8_conv": "requantized_conv"}
ARRANGEMENTS = {"arrange_matrix": "requantized_dot", "arrange_filter": "requantized_conv"}


def test_everything_that_can_be_offered_is_tested():
    assert {field.name for field in dataclasses.fields(Backend)} == {*CASES, *RAW, *ARRANGEMENTS}


@pytest.mark.parametrize("name", [*CASES, *RAW])
def test_what_a_backend_offers_is_computed(name, on_this_platform):
    """The offer's result is the operator's, right or wrong."""
    case, seen = CASES[RAW.get(name, name)], []
    if name == "int8_dot":
        common = contractions.int8.product
    elif name == "int8_conv":
        common = contractions.int32.conv
    else:
        module = next(module for module in (elementwise, contractions, pooling) if hasattr(module, name))
        common = getattr(module, name).__wrapped__

    def offer(added, *operands, **statics):
        seen.append(added)
        right = common(*operands, **statics)
        return right + jnp.asarray(added, right.dtype)

    for added in (0, 100):
        on_this_platform(Backend(**{name: partial(offer, added)}))
        got, expected = (jax.tree.leaves(x)[0] for x in (jax.jit(lambda: body(case))(), case.expected))
        assert added in seen
        assert (np.asarray(got) == expected).all() == (added == 0)


@pytest.mark.parametrize("name", ["requantized_dot", "int8_conv"])
def test_an_offer_stays_on_its_platform(name, monkeypatch):
    """Lowered for a platform that has none, the program has nothing of it."""

    monkeypatch.setitem(platforms.BACKENDS, "cpu", dataclasses.replace(cpu.BACKEND, **{name: None}))
    case = CASES[RAW.get(name, name)]
    without = jax.jit(lambda: body(case)).trace().lower(lowering_platforms=("cpu",)).as_text()

    def marked(*operands, **statics):
        common = contractions.int32.conv if name == "int8_conv" else contractions.requantized_dot.__wrapped__
        right = common(*operands, **statics)
        return right ^ jnp.asarray(85, right.dtype)

    monkeypatch.setitem(platforms.BACKENDS, "tpu", dataclasses.replace(tpu.BACKEND, **{name: marked}))
    traced = jax.jit(lambda: body(case)).trace()
    assert "dense<85>" not in traced.lower(lowering_platforms=("cpu",)).as_text()
    assert "dense<85>" in traced.lower(lowering_platforms=("tpu",)).as_text()
    assert "dense<85>" not in without


def test_an_arrangement_is_used_and_undone(on_this_platform):
    """Weights in another layout: the bits stay, and the array comes back."""

    def backwards(values, group_count):
        outputs, channels, *kernel = values.shape
        grouped = values.reshape(group_count, outputs // group_count, channels, *kernel)
        return jnp.moveaxis(grouped, (1, 2), (-1, -2)), "HWIO"

    on_this_platform(Backend(arrange_filter=backwards, arrange_matrix=lambda values: (values.swapaxes(-1, -2), "NK")))
    f, m = contractions.prepare_filter(FILTER, 1), contractions.prepare_matrix(X)
    assert (f.layout, m.layout) == ("HWIO", "NK")
    assert_same_bits(f.array, FILTER)
    assert_same_bits(m.array, X)
    for name in ARRANGEMENTS.values():
        assert_same_bits(jax.jit(lambda name=name: body(CASES[name]))(), CASES[name].expected)


def test_without_an_arrangement_weights_keep_their_order(monkeypatch):
    for platform in platforms.BACKENDS:
        monkeypatch.setitem(platforms.BACKENDS, platform, Backend())
    f, m = contractions.prepare_filter(FILTER, 2), contractions.prepare_matrix(X)
    assert (f.layout, f.group_count, m.layout) == ("OIHW", 2, "KN")
    assert_same_bits(f.array, FILTER)
    assert_same_bits(m.array, X)


def test_one_form_for_all_platforms_is_traced_alone(monkeypatch):
    """Nothing is chosen where no backend offers anything."""
    for platform in platforms.BACKENDS:
        monkeypatch.setitem(platforms.BACKENDS, platform, Backend())
    assert "platform_index" not in str(jax.make_jaxpr(lambda: body(CASES["requantized_conv"]))())
    monkeypatch.setitem(platforms.BACKENDS, "cpu", cpu.BACKEND)
    assert str(jax.make_jaxpr(lambda: body(CASES["requantized_conv"]))()).count("platform_index") == 1
