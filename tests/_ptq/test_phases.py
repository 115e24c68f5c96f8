"""Transposed convolutions by their phases: the numbers of lax, and no zeros between pixels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from helpers.compare import assert_same_bits
from jaxdml import ptq
from jaxdml.ptq._build.phases import Phases, interleaved

RNG = np.random.default_rng(0)


def integers(*shape):
    return RNG.integers(-9, 10, shape).astype(np.float32)


def random_call(count):
    """Sizes of a transposed convolution over `count` dimensions that has an output."""
    while True:
        gaps, kernel, size = (RNG.integers(1, 5, count).tolist() for _ in range(3))
        padding = RNG.integers(-3, 6, (count, 2)).tolist()
        each = zip(gaps, kernel, size, padding, strict=True)
        if max(gaps) > 1 and all((n - 1) * gap + 2 + sum(pair) - k >= 1 for gap, k, n, pair in each):
            return gaps, kernel, size, padding


def convolved(x, w, padding, gaps):
    """The convolution of a spread image, by NumPy; negative padding crops."""
    spread = np.zeros((*x.shape[:2], *((n - 1) * gap + 1 for n, gap in zip(x.shape[2:], gaps, strict=True))), x.dtype)
    spread[(..., *(slice(None, None, gap) for gap in gaps))] = x
    spread = np.pad(spread, [(0, 0), (0, 0), *(tuple(max(each, 0) for each in pair) for pair in padding)])
    for axis, (low, high) in enumerate(padding, 2):
        spread = spread.take(range(max(-low, 0), spread.shape[axis] - max(-high, 0)), axis)
    windows = np.lib.stride_tricks.sliding_window_view(spread, w.shape[2:], range(2, x.ndim))
    places = "uv"[: len(gaps)], "hw"[: len(gaps)]
    return np.einsum("nc{0}{1},oc{1}->no{0}".format(*places), windows, w)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("count", [1, 2])
def test_phases_compute_the_convolution_of_the_spread_image(count):
    """Sums of small integers in float32 are exact, so that the results are equal. Paddings may be negative."""
    for _ in range(10):
        gaps, kernel, size, padding = random_call(count)
        x, w, ones = integers(2, 3, *size), integers(4, 3, *kernel), (1,) * count
        params = {"window_strides": ones, "rhs_dilation": ones, "feature_group_count": 1, "batch_group_count": 1}
        phases = Phases.of({**params, "lhs_dilation": gaps, "padding": padding}, kernel)
        assert min(map(min, phases.padding)) >= 0
        y = convolved(x, np.asarray(jax.jit(phases.filters)(w)), phases.padding, ones)
        assert_same_bits(interleaved(y, **phases.options), convolved(x, w, padding, gaps))


def upscaled(p, x):
    y = lax.conv_transpose(x, p["w"], (2, 2), "SAME", dimension_numbers=("NCHW", "IOHW", "NCHW"))
    return jax.nn.relu(y * p["gain"] + p["bias"])


PARAMS = {"w": integers(8, 6, 3, 3) / 16, "gain": 1 + integers(1, 6, 1, 1) / 16, "bias": integers(1, 6, 1, 1) / 4}


def test_what_follows_is_folded_and_no_zeros_are_multiplied():
    x = integers(2, 8, 5, 6)
    model = ptq.quantize(upscaled, PARAMS, [x], progress=False)
    (node,) = (node for node in model._fused.nodes if node.on == "integers")
    assert node.source == ("conv_general_dilated", "mul", "add")
    (prepared,) = (each for each in model.params.values() if isinstance(each, dml.PreparedFilter))
    assert prepared.shape == (24, 8, 2, 2)
    assert not [node for node in model._fused.nodes if "pad" in node.operator.name]


def test_weights_of_phases_stay_on_their_grid():
    scale = np.linspace(0.01, 0.02, 6, dtype=np.float32).reshape(1, 6, 1, 1)

    def apply(p, x):
        w = dml.fake_quantize(p["w"] / 8, scale, output_dtype=np.int8)
        plain = {"w": w, "gain": jnp.float32(1), "bias": jnp.float32(0)}
        return upscaled(plain, dml.fake_quantize(x, 0.5, np.uint8(128)))

    x = integers(2, 8, 5, 6)
    model = ptq.quantize(apply, PARAMS, [x], progress=False)
    (stored,) = (value for name, value in model.graph.constants.items() if name.endswith("weight:scale"))
    assert_same_bits(stored, np.tile(scale.reshape(-1), 4))
    error = np.abs(np.asarray(model.apply(model.params, x)) - np.asarray(apply(PARAMS, x)))
    assert error.max() < 1e-4
