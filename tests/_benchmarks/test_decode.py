"""The benchmark of language models compares two sides that compute the same."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import decode
from benchmarks.decoder_files import Sizes, decoder
from benchmarks.measure import decibels
from helpers.compare import assert_same_values

PROMPT = np.random.default_rng(0).integers(0, 100, 7)


@pytest.fixture
def as_people_write_it():
    """JAX's default promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.rare
@pytest.mark.usefixtures("as_people_write_it")
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="onnxruntime runs on a CPU")
def test_both_sides_write_the_same(tmp_path):
    sizes = Sizes(positions=len(PROMPT) + decode.TOKENS)
    for level, file in decode.files_of(decoder(sizes), tmp_path).items():
        peer = decode.OfOnnxruntime(sizes, file, PROMPT)
        for floats in decode.FLOATS:
            sides = [decode.OfJaxdml(sizes, file, PROMPT, floats), peer]
            logits = [side.read().astype(np.float64) for side in sides]
            assert logits[0].shape == (7, 100)
            assert decibels(*logits) > {4: 40, 0: 100}[level]
            tokens = [side.generate() for side in sides]
            assert tokens[0][0] == logits[0][-1].argmax()
            if level == 0:  # at 45 dB, tokens may differ
                assert_same_values(*tokens)
            assert_same_values(sides[0].generate(), tokens[0])  # the prompt's cache is unchanged
