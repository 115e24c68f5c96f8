"""Functions that are mapped over the leaves of prepared weights: the result is that of the array, or an error."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.marks import on_both_kernels
from helpers.native_calls import needs_native

RNG = np.random.default_rng(3)


def as_before(function):
    """The function, with its result cast to the type of its first argument."""
    return lambda x, *more: function(x, *more).astype(x.dtype)


def masked(share):
    return lambda x, y: np.where(np.random.default_rng(0).random(x.shape) < share, x, np.zeros((), x.dtype))


SAME = {
    "times 1": lambda x, y: x * np.ones((), x.dtype),
    "to float32 and back": as_before(lambda x, y: x.astype(np.float32)),
    "where all": lambda x, y: np.where(True, x, y),
}
OTHER = {
    "mean": as_before(lambda x, y: (x.astype(np.int32) + y.astype(np.int32)) // 2),
    "float mean": as_before(lambda x, y: (x.astype(np.float32) + y.astype(np.float32)) / 2),
    "moving average": as_before(lambda x, y: (3 * x.astype(np.float32) + y.astype(np.float32)) / 4),
    "abs": lambda x, y: np.abs(x),
    "relu": lambda x, y: np.maximum(x, np.zeros((), x.dtype)),
    "times 0": lambda x, y: x * np.zeros((), x.dtype),
    "negative": lambda x, y: -x,
    "largest": lambda x, y: np.maximum(x, y),
    "without the largest": lambda x, y: np.minimum(x, np.full((), 126, x.dtype)),
}
MASKS = {
    "mask": masked(0.9),
    "sparse mask": masked(0.99),
    "one or the other": lambda x, y: np.where(np.random.default_rng(0).random(x.shape) < 0.5, x, y),
}
MAPS = SAME | OTHER | MASKS
REMEDY = "apply the function to the attribute `array`, and prepare the result"


def multiply(b):
    a = np.arange(5 * 96, dtype=np.uint8).reshape(5, 96)
    return dml.quantized_linear_matrix_multiply(a, 0.1, 3, b, 0.1, None, 20.0, 5)


def convolve(filter):
    x, groups = np.arange(2 * 16 * 25).astype(np.uint8).reshape(2, 16, 5, 5), 16 // filter.shape[1]
    return dml.quantized_linear_convolution(x, 0.1, 3, filter, 0.1, None, None, 50.0, 5, group_count=groups)


KINDS = {
    "matrix": (multiply, dml.prepare_matrix_multiply_b, (96, 80)),
    "filter": (convolve, dml.prepare_convolution_filter, (24, 16, 3, 3)),
    "depthwise": (convolve, lambda f: dml.prepare_convolution_filter(f, group_count=16), (16, 1, 3, 3)),
}


@pytest.mark.sampled(2)
@on_both_kernels
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("kind", KINDS)
def test_a_map_over_the_leaves_has_the_result_of_the_array_or_an_error(kind, dtype):
    call, prepare, shape = KINDS[kind]
    limits = np.iinfo(dtype)
    arrays = [RNG.integers(limits.min, limits.max + 1, shape).astype(dtype) for _ in range(2)]

    def mapped(x, y):
        """The results of all functions, in NumPy: JAX would compile a program for each."""
        x, y = jax.tree.map(np.asarray, (x, y))
        return {name: jax.tree.map(function, x, y) for name, function in MAPS.items()}

    weights, expected = mapped(*map(prepare, arrays)), mapped(*arrays)
    for name, changed in weights.items():
        if changed.is_packed and name not in SAME:
            with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=REMEDY):
                np.asarray(call(changed))
            with pytest.raises(ValueError, match="is not as it was packed: apply functions to `array`"):
                _ = changed.array
            continue
        array = changed.array if name in MASKS else expected[name]  # a mask of the array has another order
        assert_same_bits(call(changed), call(prepare(array)), name)
        assert_same_bits(changed.array, array, name)


@needs_native
def test_large_weights_are_sampled():
    """Masks of one weight in a hundred are detected, although a seal samples only 2 KiB."""
    b = RNG.integers(-128, 128, (512, 512), np.int8)
    prepared = dml.prepare_matrix_multiply_b(b)
    for number in range(5):
        mask = jax.random.bernoulli(jax.random.key(number), 0.99, prepared.data.shape)
        changed = jax.tree.map(lambda x, mask=mask: jnp.where(mask, x, 0), prepared)
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="is not as these kernels packed it"):
            np.asarray(dml.matrix_multiply_integer(np.ones((1, 512), np.uint8), 3, changed, None))


@needs_native
def test_a_shard_of_packed_weights_is_refused():
    prepared = dml.prepare_matrix_multiply_b(np.ones((16, 8), np.int8))
    half = jax.tree.map(lambda x: x[: x.size // 2], prepared)
    with pytest.raises(dml.DescError, match="for a mesh, shard the array first, then prepare each part"):
        dml.matrix_multiply_integer(np.ones((1, 16), np.uint8), 3, half, None)
