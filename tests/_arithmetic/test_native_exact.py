"""The results of native kernels: cases of the size of real layers, Winograd's bound, sums of int32."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from _arithmetic.processes import run
from helpers.compare import assert_same_bits
from helpers.native_calls import A, B, F, X, check_wide, convolve, needs_native
from helpers.platforms import on_x86
from jaxdml import reference
from jaxdml._arithmetic import kernel_call, native


@pytest.mark.rare
@on_x86
@needs_native
def test_winograd_on_avx2():
    """Only the AVX2 kernels use Winograd's method, so winograd_on_avx2.py runs in a process with these kernels."""
    done = run("from _arithmetic import winograd_on_avx2; winograd_on_avx2.check()", JAXDML_KERNELS="avx2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" has avx2\n")


@needs_native
def test_as_layers_are():
    assert check_wide(seed=3, count=12, largest=24) > 90_000


@needs_native
@pytest.mark.rare
@pytest.mark.parametrize("seed", range(4, 12))
def test_millions_of_outputs(seed):
    """Ten million outputs in all."""
    assert check_wide(seed, count=120, largest=40) > 1_300_000


FAR = 2**31 - 1
FAR_OPTIONS = {  # of a convolution whose windows contain at most a few columns of an 8 x 8 image
    "strides": {"strides": (FAR, FAR - 2), "start_padding": (1, 0)},
    "strides beyond a padded image": {"strides": 65536, "start_padding": 1, "end_padding": 1},
    "strides of a wide kernel": {"strides": (5, 7), "start_padding": 2, "end_padding": 3},
    "dilations of one element": {"dilations": FAR},
    "dilated rows": {"dilations": (40, 1), "start_padding": (40, 1), "end_padding": (41, 1)},
    "dilated columns": {"dilations": (1, 40), "start_padding": (1, 41), "end_padding": (1, 40)},
    "strided and dilated rows": {
        "strides": (3, 1),
        "dilations": (30, 2),
        "start_padding": (33, 1),
        "end_padding": (32, 4),
    },
    "padding": {"start_padding": (90, 70), "end_padding": (0, 80)},
}


@pytest.mark.sampled(6)
@needs_native
@pytest.mark.parametrize("groups", [1, 4, 16])
@pytest.mark.parametrize("what", FAR_OPTIONS)
def test_far_options(what, groups):
    """Memory depends on the elements that windows contain, not on the distance between them."""
    kernel = (1, 1) if what in ("strides", "dilations of one element") else (3, 3)
    rng = np.random.default_rng(0)
    x, f = rng.integers(0, 256, (2, 16, 8, 8), np.uint8), rng.integers(-128, 128, (32, 16 // groups, *kernel), np.int8)

    def call(module):
        parameters = np.float32(0.1), np.uint8(3), f, np.float32(0.1), np.int8(5), None, np.float32(50), np.uint8(5)
        return module.quantized_linear_convolution(x, *parameters, group_count=groups, **FAR_OPTIONS[what])

    assert_same_bits(call(dml), call(reference))


@needs_native
@pytest.mark.parametrize("groups", [1, 16])
def test_padding_that_no_memory_holds(groups):
    """The sizes of padded images exceed 2**64. Operators reject them; the kernel copies only what windows contain."""
    one, rows, columns = np.ones((), np.float32), 3 * 2**30, 2**32
    padding = (2**30, rows - 2**30 - X.shape[2]), (0, columns - X.shape[3])
    dilations = rows // 2 - 1, columns // 2 - 1  # two rows and columns of output
    options = {"strides": (1, 1), "dilations": dilations, "padding": padding, "group_count": groups}
    got = kernel_call.call(
        native.CONV, None, X, one, None, F[:16, : 16 // groups], one, None, None, one, None,
        output_dtype=jnp.int32, **options,
    )  # fmt: skip
    assert_same_bits(got, np.zeros((2, 16, 2, 2), np.int32))


@needs_native
def test_sums_of_int32():
    """The basis of integer products and convolutions: no scales, and wrapping modulo 2**32."""
    one = np.ones((), np.float32)
    got = kernel_call.call(native.DOT, None, A, one, np.uint8(7), B, one, None, None, one, None, output_dtype=jnp.int32)
    assert_same_bits(got, (A.astype(np.int32) - 7) @ B.astype(np.int32))
    bias = np.full(24, 2**31 - 1, np.int32)
    options = {"strides": (1, 1), "dilations": (1, 1), "padding": ((0, 0), (0, 0)), "group_count": 1}
    got = kernel_call.call(
        native.CONV, None, X, one, None, F, one, np.int8(-3), bias, one, None,
        output_dtype=jnp.int32, **options,
    )  # fmt: skip
    windows = np.lib.stride_tricks.sliding_window_view(X.astype(np.int64), (3, 3), (2, 3))
    expected = np.einsum("nchwij,ocij->nohw", windows, F.astype(np.int64) + 3) + 2**31 - 1
    assert_same_bits(got, expected.astype(np.uint32).view(np.int32))


@needs_native
@pytest.mark.sampled(4)
@pytest.mark.parametrize("columns", [46, 47, 48, 49, 113])
@pytest.mark.parametrize("strides", [(2, 2), (1, 2), (2, 1), (2, 3)])
def test_depthwise_convolutions_with_strides(columns, strides):
    """With AVX2, rows of 24 or more outputs are computed in another form than shorter rows."""
    rng = np.random.default_rng(columns)
    x = rng.integers(0, 256, (2, 18, 9, columns)).astype(np.uint8)
    for kernel, dilations in (((3, 3), 1), ((2, 5), 2)):
        f = rng.integers(-128, 128, (18, 1, *kernel)).astype(np.int8)
        options = {"group_count": 18, "strides": strides, "dilations": dilations}
        assert_same_bits(convolve(x, f, **options), convolve(x, f, reference, **options))
