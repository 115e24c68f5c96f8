"""The language models of the benchmarks run in onnxruntime, and forms of one model compute the same."""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.decoder_files import Sizes, decoder, first_inputs, next_inputs

PROMPT = np.random.default_rng(0).integers(0, 100, (2, 5))


def logits(sizes, steps=3):
    """The logits of a prompt and of some tokens after it, one after the other."""
    session = onnxruntime.InferenceSession(decoder(sizes).SerializeToString(), providers=["CPUExecutionProvider"])
    names, inputs, found = [output.name for output in session.get_outputs()], first_inputs(sizes, PROMPT), []
    for _ in range(steps):
        outputs = dict(zip(names, session.run(None, inputs), strict=True))
        found.append(outputs["logits"])
        inputs = next_inputs(inputs, outputs, PROMPT[:, :1])
    return np.concatenate(found, 1)


@pytest.mark.parametrize("one", [
    {"has_zero_points": True}, {"bits": 8, "window": 3}, {"embedding": "blocks", "gate": "gelu"},
    {"has_biases": True, "has_head_norms": True, "has_output_norms": True},
    {"norm": "layer", "head_size": 32, "rotary_size": 16},
], ids=str)  # fmt: skip
def test_forms_of_one_model_compute_the_same(one):
    wanted = logits(Sizes(packed=False, **one))
    assert wanted.shape == (2, 7, 100)
    assert 0.3 < wanted.std() < 3
    # onnxruntime computes the product of the QDQ form with 8-bit a.
    for other, distance in (({"rotary": "outside"}, 1e-4), ({"form": "QDQ"}, 0.2)):
        np.testing.assert_allclose(logits(Sizes(packed=False, **one, **other)), wanted, atol=distance)
