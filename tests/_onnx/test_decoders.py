"""Exported language models: their logits and tokens against those of onnxruntime, in batches and alone."""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import jaxdml.onnx
from _onnx.greedy import STEPS, decoded
from helpers.compare import assert_same_bits

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.decoder_files import Sizes, decoder, first_inputs, next_inputs

PROMPT = np.random.default_rng(0).integers(0, 100, (3, 5))


def of_onnxruntime(proto, sizes, prompt, steps=STEPS):
    """The tokens of onnxruntime, and its logits, in caches that grow."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names, inputs = [each.name for each in session.get_outputs()], first_inputs(sizes, prompt)
    logits, tokens = [], prompt
    while len(tokens[0]) <= steps:
        outputs = dict(zip(names, session.run(None, inputs), strict=True))
        logits.append(outputs["logits"])
        tokens = np.concatenate([tokens, logits[-1][:, -1:].argmax(-1)], 1)
        inputs = next_inputs(inputs, outputs, tokens[:, -1:])
    return tokens, np.concatenate(logits, 1)


@pytest.mark.rare
@pytest.mark.parametrize(("level", "decibels"), [(0, 100), (4, 40)])
def test_logits_and_tokens(level, decibels):
    """Token by token in a cache with free space, against onnxruntime's growing caches and against the whole prompt."""
    sizes = Sizes(accuracy_level=level, window=12, softcap=20.0)
    proto = decoder(sizes)
    model = jaxdml.onnx.load(proto, floats="exact")
    tokens, logits = decoded(model, sizes, PROMPT)
    alone, logits_alone = decoded(model, sizes, PROMPT[1:2])
    assert_same_bits(logits_alone, logits[1:2])
    assert (alone == tokens[1:2]).all()
    whole = model.apply(model.params, **first_inputs(sizes, tokens[:, :STEPS]))["logits"]
    assert_same_bits(whole, logits)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    right = session.run(["logits"], first_inputs(sizes, tokens[:, :STEPS]))[0].astype(np.float64)
    for got in (logits, whole):
        assert np.sum((np.asarray(got) - right) ** 2) < np.sum(right**2) * 10 ** (-decibels / 10)
    if level == 0:  # at level 4 another rounding may choose another token, and all that follow differ
        assert (of_onnxruntime(proto, sizes, PROMPT)[0] == tokens).all()
