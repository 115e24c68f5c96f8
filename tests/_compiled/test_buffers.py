"""Views of flat buffers, read and written, against NumPy's as_strided."""

from functools import partial

import jax
import numpy as np
import pytest

from helpers.compare import assert_same_bits
from jaxdml import DataType, TensorDesc
from jaxdml._compiled.buffers import read, unrepeated, write
from jaxdml._directml.strides import is_nested, may_overlap, reach

as_strided = np.lib.stride_tricks.as_strided


def random_view(rng):
    """Packed in any order of dimensions, with gaps, with repeated dimensions, or with arbitrary strides."""
    rank = int(rng.integers(1, 6))
    sizes = tuple(int(size) for size in rng.integers(1, 5, rank))
    kind = rng.choice(["packed", "gaps", "repeated", "any"])
    if kind == "any":
        return TensorDesc(DataType.UINT8, sizes, tuple(int(stride) for stride in rng.integers(0, 20, rank)))
    strides, step = [0] * rank, 1
    for axis in rng.permutation(rank):
        step += int(rng.integers(0, 4)) if kind == "gaps" else 0
        if kind == "repeated" and rng.random() < 0.4:
            continue
        strides[axis] = step
        step *= sizes[axis]
    return TensorDesc(DataType.UINT8, sizes, tuple(strides))


@pytest.mark.rare
@pytest.mark.parametrize("seed", range(10))
def test_a_hundred_random_views(seed):
    """Reads each view; also writes every third one, into zeros and into a buffer, whose gaps stay the same."""
    rng = np.random.default_rng(seed)
    views = [random_view(rng) for _ in range(100)]
    extra = rng.integers(0, 4, 100)
    buffers = [
        rng.integers(0, 256, reach(v.sizes, v.strides) + more, np.uint8) for v, more in zip(views, extra, strict=True)
    ]
    values = [rng.integers(0, 256, view.sizes, np.uint8) for view in views]
    can_write = [i % 3 == 0 and not may_overlap(view.sizes, view.strides) for i, view in enumerate(views)]
    assert 15 < sum(can_write) < 33
    assert any(is_nested(v.sizes, v.strides) for v in views)

    @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # there is little to run
    def all_views(buffers, values):
        written = [
            (write(x, view, None), write(x, view, b)) if can else None
            for x, view, b, can in zip(values, views, buffers, can_write, strict=True)
        ]
        return [read(b, view) for b, view in zip(buffers, views, strict=True)], written

    for view, buffer, x, got, written in zip(views, buffers, values, *all_views(buffers, values), strict=True):
        assert got.shape == unrepeated(view)
        assert_same_bits(np.broadcast_to(got, view.sizes), as_strided(buffer, view.sizes, view.strides))
        if written:
            into_zeros, into_buffer = np.zeros(reach(view.sizes, view.strides), np.uint8), buffer.copy()
            for expected, got in zip((into_zeros, into_buffer), written, strict=True):
                as_strided(expected, view.sizes, view.strides)[...] = x
                assert_same_bits(got, expected)
