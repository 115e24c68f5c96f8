"""The transformer block of benchmarks.exact_block, and onnxruntime's."""

import sys
from pathlib import Path

import jax
import numpy as np
import onnxruntime
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import exact_block


@pytest.mark.rare
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="onnxruntime runs on a CPU")
def test_both_sides_compute_the_same_block():
    p = exact_block.params()
    x = np.random.default_rng(0).normal(size=(1, exact_block.TOKENS, exact_block.WIDTH)).astype(np.float32)
    file = exact_block.onnx_block(p, x).SerializeToString()
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as people write it
        y = jax.jit(exact_block.block)(p, x)
    np.testing.assert_allclose(y, session.run(None, {"x": x})[0], atol=1e-4)
