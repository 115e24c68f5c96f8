"""Language models of the kinds that onnxruntime-genai's model builder writes, with random weights of few bits."""

import functools
import sys
from pathlib import Path

import numpy as np

import jaxdml.onnx
from _onnx.greedy import decoded

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.decoder_files import Sizes, decoder

PROMPT = np.random.default_rng(0).integers(0, 100, (3, 5))
KINDS = {
    "llama": {"window": 12, "softcap": 20.0},
    "gemma": {
        "packed": False, "head_size": 32, "embedding": "blocks", "gate": "gelu", "window": 12, "softcap": 20.0,
        "has_head_norms": True, "has_output_norms": True,
    },
    "qwen": {"packed": False, "has_biases": True, "has_head_norms": True},
    "phi": {"norm": "layer", "head_size": 32, "rotary_size": 16},
    "rotary outside": {"packed": False, "rotary": "outside", "rotary_size": 8},
    "8 bits": {"bits": 8, "has_zero_points": True},
    "QDQ": {"form": "QDQ"},
}  # fmt: skip


def sizes_of(kind, level, **others):
    return Sizes(accuracy_level=level, **KINDS[kind], **others)


@functools.cache
def some_logits():
    """A few logits at each precision, by kind."""
    found = {}
    for kind, level in (("llama", 0), ("phi", 2), ("gemma", 4)):
        sizes = sizes_of(kind, level, layers=1)
        found[kind] = decoded(jaxdml.onnx.load(decoder(sizes), floats="exact"), sizes, PROMPT, 4)[1]
    return found
