"""Exported language models: their logits and tokens against those of onnxruntime, in batches and alone."""

import numpy as np
import onnxruntime
import pytest

import jaxdml.onnx
from _arithmetic.processes import run
from _onnx.decoder_kinds import KINDS, PROMPT, sizes_of, some_logits
from _onnx.greedy import STEPS, decoded
from benchmarks.decoder_files import decoder, first_inputs, next_inputs
from helpers.compare import assert_same_bits
from helpers.native_calls import needs_native
from helpers.platforms import on_x86

DECIBELS = {0: 100, 4: 40}  # at least, by accuracy level


class Peer:
    """onnxruntime, whose products by QDQ weights have the accuracy level of MatMulNBits."""

    def __init__(self, proto, level):
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", str(level))
        providers = ["CPUExecutionProvider"]
        self._session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=providers)

    def outputs(self, inputs):
        names = [each.name for each in self._session.get_outputs()]
        return dict(zip(names, self._session.run(None, inputs), strict=True))

    def tokens(self, sizes, prompt):
        """The prompt and greedy tokens after it, in caches that grow."""
        tokens, inputs = prompt, first_inputs(sizes, prompt)
        for _ in range(STEPS):
            outputs = self.outputs(inputs)
            tokens = np.concatenate([tokens, outputs["logits"][:, -1:].argmax(-1)], 1)
            inputs = next_inputs(inputs, outputs, tokens[:, -1:])
        return tokens


# A QDQ file has no accuracy level; jaxdml computes its products as those of level 0.
CASES = [(kind, level) for kind in KINDS for level in DECIBELS if (kind, level) != ("QDQ", 4)]


@pytest.mark.rare
@pytest.mark.parametrize(("kind", "level"), CASES)
def test_logits_and_tokens(kind, level):
    """Token by token in a cache with free space, against onnxruntime's growing caches and against the whole prompt."""
    sizes = sizes_of(kind, level)
    proto = decoder(sizes)
    model = jaxdml.onnx.load(proto, floats="exact")
    tokens, logits = decoded(model, sizes, PROMPT)
    assert tokens.shape == (3, 5 + STEPS)
    alone, logits_alone = decoded(model, sizes, PROMPT[1:2])
    assert_same_bits(logits_alone, logits[1:2])
    assert (alone == tokens[1:2]).all()
    whole = model.apply(model.params, **first_inputs(sizes, tokens[:, :-1]))["logits"]
    assert_same_bits(whole, logits)

    peer = Peer(proto, level)
    right = peer.outputs(first_inputs(sizes, tokens[:, :-1]))["logits"].astype(np.float64)
    power, allowed = np.mean(right**2), 10 ** (-DECIBELS[level] / 10)
    assert np.mean((logits - right) ** 2) < power * allowed
    # Where onnxruntime's two best logits are closer than their errors, the other may be chosen, and all later tokens
    # may differ. The difference of two errors has at most this deviation; six deviations are practically never passed.
    deviation = np.sqrt(2 * power * allowed)
    second, best = np.moveaxis(np.sort(right, -1)[..., -2:], -1, 0)
    is_close = (best - second < 6 * deviation)[:, 4:]
    assert not ((right.argmax(-1) != logits.argmax(-1))[:, 4:] & ~is_close).any()
    differs = (peer.tokens(sizes, PROMPT) != tokens)[:, 5:]
    is_first = differs & (np.cumsum(differs, 1) == 1)
    assert not (is_first & ~is_close).any()
    print(f"{differs.sum()} of {differs.size} tokens differ from onnxruntime's")
    if level == 0:
        assert not differs.any()


PROCESSORS = {
    "AVX2": {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2", "JAXDML_KERNELS": "avx2"},
    "SSE4.2": {"XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2", "JAXDML_KERNELS": "xla"},
    "any": {"JAXDML_KERNELS": "xla"},
}
KERNELS = {"avx2": "has avx2", "xla": "xla: chosen"}


@pytest.mark.rare
@pytest.mark.parametrize(
    "processor",
    [pytest.param("AVX2", marks=[needs_native, on_x86]), pytest.param("SSE4.2", marks=on_x86), "any"],
)
def test_other_processors(processor, tmp_path):
    """The bits of this process, which uses the fastest kernels, in a process that uses others."""
    program = """
import sys
import numpy as np
import jaxdml
from _onnx.decoder_kinds import some_logits
np.savez(sys.argv[1], **some_logits())
print(jaxdml.kernels())
"""
    chosen = PROCESSORS[processor]
    done = run(program, tmp_path / "logits.npz", JAX_PLATFORMS="cpu", **chosen)
    assert KERNELS[chosen["JAXDML_KERNELS"]] in done.stdout, done.stderr
    with np.load(tmp_path / "logits.npz") as found:
        expected = some_logits()
        assert set(found) == set(expected)
        for kind, logits in expected.items():
            assert_same_bits(found[kind], logits, kind)
