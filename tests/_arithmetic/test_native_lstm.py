"""The native kernel of quantized LSTMs: where it runs, and its bits against those of the scan that it replaces.

tests/_onnx/test_recurrent.py compares it with onnxruntime.
"""

from functools import partial

import jax
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.native_calls import native_calls, needs_native
from jaxdml.onnx._operators import recurrent

F = np.float32
STRANGE = np.array([np.nan, np.inf, -np.inf, 1e-39, 3e38, -0.0, 1e-30], F)
pytestmark = needs_native


def cell_of(**attributes):
    return recurrent.quantized_lstm_options(**attributes)["cell"]


def steps_of(rng, cell, steps, batch, units, *, strange=0.0):
    """The arguments of the steps; about every second of the optional ones is None. The lengths may be invalid."""
    count = len(cell.backward)

    def floats(*shape):
        x = rng.standard_normal(shape).astype(F)
        return np.where(rng.random(shape) < strange, rng.choice(STRANGE, shape), x)

    def either(x):
        return x if rng.integers(2) else None

    dtype = rng.choice([np.int8, np.uint8])
    size = F(
        rng.choice([1, 1e-37])
    )  # of the states before the first step; the range of tiny ones over 255 is subnormal
    of_columns = (count, 4 * units) if rng.integers(2) else (count,)
    return (
        rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (count, units, 4 * units), dtype, endpoint=True),
        rng.uniform(0.002, 0.02, of_columns).astype(F) / size,
        either(rng.integers(100, 120, of_columns).astype(dtype)),
        floats(count, steps, batch, 4 * units),
        either(rng.integers(-1, steps + 2, batch, np.int32)),
        floats(count, batch, units) * size,
        floats(count, batch, units),
        either(floats(count, 4 * units)),
        either(floats(count, 3 * units)),
    )


@pytest.mark.parametrize("direction", recurrent.DIRECTIONS)
def test_one_call_computes_all_steps(direction):
    cell = cell_of(direction=direction)
    arguments = steps_of(np.random.default_rng(0), cell, 5, 2, 7)
    assert native_calls(partial(recurrent._quantized_steps, cell=cell), *arguments) == ["lstm"]


@pytest.mark.rare
def test_other_activations_are_scanned():
    cell = cell_of(activations=("Sigmoid", "Tanh", "Relu"))
    arguments = steps_of(np.random.default_rng(0), cell, 5, 2, 7)
    calls = native_calls(partial(recurrent._quantized_steps, cell=cell), *arguments)
    assert "lstm" not in calls
    assert "matmul" in calls


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(60))
def test_the_kernel_has_the_bits_of_the_scan(seed):
    rng = np.random.default_rng(seed)
    direction = tuple(recurrent.DIRECTIONS)[seed % 3]
    clip = rng.choice([None, 0.5, 3e38])
    cell = cell_of(direction=direction, clip=clip, input_forget=int(rng.integers(2)))
    steps, batch, units = rng.integers(1, (7, 12, 40)).tolist()
    arguments = list(steps_of(rng, cell, steps, batch, units, strange=(seed % 4) / 100))
    function = partial(recurrent._quantized_steps, cell=cell)
    expected = jax.jit(partial(recurrent._quantized_steps.__wrapped__, cell=cell))(*arguments)
    if rng.integers(2):
        arguments[0] = dml.prepare_matrix_multiply_b(arguments[0])
    for found, wanted in zip(jax.jit(function)(*arguments), expected, strict=True):
        assert_same_bits(found, wanted, (seed, cell))


def test_vmap_is_folded_into_one_call():
    """Some arguments are mapped, among them the weights."""
    cell = cell_of(direction="bidirectional")
    function = partial(recurrent._quantized_steps, cell=cell)
    several = [steps_of(np.random.default_rng(0), cell, 3, 2, 9) for _ in range(2)]
    several[1] = tuple(x if x is None or i % 2 else x[..., ::-1].copy() for i, x in enumerate(several[1]))
    axes = [None if x is None or i % 2 else 0 for i, x in enumerate(several[0])]
    stacked = [x if axis is None else np.stack([x, y]) for x, y, axis in zip(*several, axes, strict=True)]
    mapped = jax.vmap(function, axes)
    assert native_calls(mapped, *stacked) == ["lstm"]
    found = jax.jit(mapped)(*stacked)
    for i, arguments in enumerate(several):
        for each, wanted in zip(found, jax.jit(function)(*arguments), strict=True):
            assert_same_bits(each[i], wanted)


def test_changed_weights_are_refused():
    cell = cell_of()
    arguments = list(steps_of(np.random.default_rng(0), cell, 2, 1, 4))
    prepared = dml.prepare_matrix_multiply_b(arguments[0])
    arguments[0] = jax.tree.map(lambda leaf: leaf // 2, prepared)
    with pytest.raises(jax.errors.JaxRuntimeError, match="the prepared R is not as these kernels packed it"):
        jax.block_until_ready(jax.jit(partial(recurrent._quantized_steps, cell=cell))(*arguments))
