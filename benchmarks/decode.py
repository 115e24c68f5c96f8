"""python -m benchmarks.decode: a language model with random 4-bit weights, compared with onnxruntime on the same file.

The model is shaped like llama, with about a billion weights in blocks of 32. A prompt of 512 tokens is read at once,
then tokens are generated one by one. `jaxdml.onnx.load` and onnxruntime run the same files: one with accuracy level 4,
whose products round in the same way in both, and one with level 0, whose products onnxruntime computes in float32.
jaxdml runs each file twice, with floats="xla" and with floats="exact". Both libraries write new keys and
values into preallocated caches in place. Times are medians of interleaved runs. The files share 0.9 GB of weights in a
temporary directory.
"""

import argparse
import json
import math
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax import lax

import jaxdml.onnx
from benchmarks.blocks import LEVELS, bytes_per_second
from benchmarks.decoder_files import Sizes, decoder
from benchmarks.machine import environment, name_of
from benchmarks.measure import decibels
from benchmarks.onnx_peer import session_options
from benchmarks.timing import in_turns

PROMPT, TOKENS = 512, 16  # tokens of the prompt, and tokens that one run generates
FLOATS: tuple[Literal["xla", "exact"], ...] = ("xla", "exact")
PEER = "onnxruntime"
BILLION = Sizes(
    layers=16,
    hidden=2048,
    feed_forward=8192,
    vocabulary=32000,
    heads=32,
    kv_heads=8,
    head_size=64,
    positions=PROMPT + TOKENS,
)

Array = jax.Array
Caches = dict[str, Array]  # keys and values [1, kv_heads, positions, head_size], by name


# Both sides ----------------------------------------------------------------------------------------------------------


class OfJaxdml:
    """A file in jaxdml. The caches have room for all tokens, and are donated, so that they are updated in place."""

    def __init__(self, sizes: Sizes, file: Path, prompt: np.ndarray, floats: Literal["exact", "xla"]) -> None:
        self.model = model = jaxdml.onnx.load(file, floats=floats, limits=jaxdml.onnx.Limits(seconds=120))

        def step(params: Any, tokens: Array, caches: Caches, total: Array | int) -> tuple[Array, Caches]:
            """Logits [T, vocabulary] of tokens [T], the last of `total`."""
            mask = (jnp.arange(sizes.positions) < total).astype(int)  # as long as the caches
            outputs = model.apply(params, input_ids=tokens[None], attention_mask=mask[None], **caches)
            logits = outputs.pop("logits")[0]
            return logits, {name.replace("present", "past_key_values"): x for name, x in outputs.items()}

        def read(params: Any, caches: Caches, tokens: Array) -> tuple[Array, Caches]:
            return step(params, tokens, caches, len(tokens))

        def generate(params: Any, caches: Caches, token: Array) -> tuple[Array, Caches]:
            def more(place: Array, carry: tuple[Array, Caches]) -> tuple[Array, Caches]:
                tokens, caches = carry
                last = lax.dynamic_slice(tokens, (place,), (1,))
                logits, caches = step(params, last, caches, len(prompt) + 1 + place)
                return lax.dynamic_update_slice(tokens, _best(logits), (place + 1,)), caches

            tokens = jnp.zeros(TOKENS + 1, int).at[0].set(token)
            return lax.fori_loop(0, TOKENS, more, (tokens, caches))

        self._read, self._generate = (jax.jit(function, donate_argnums=1) for function in (read, generate))
        shape = 1, sizes.kv_heads, sizes.positions, sizes.head_size
        self._caches = {x.name: jnp.zeros(shape) for x in model.inputs if x.name.startswith("past_key_values")}
        self._prompt = jnp.asarray(prompt)

    def read(self) -> np.ndarray:
        """Reads the prompt into the caches. Returns its logits [prompt, vocabulary]."""
        logits, self._caches = self._read(self.model.params, self._caches, self._prompt)
        self._first = _best(logits[-1:])[0]
        return np.asarray(logits)

    def generate(self) -> np.ndarray:
        """The tokens [1 + TOKENS] after the prompt, which must have been read."""
        tokens, self._caches = self._generate(self.model.params, self._caches, self._first)
        return np.asarray(tokens)


def _best(logits: Array) -> Array:
    return logits.argmax(1)


class OfOnnxruntime:
    """The file in onnxruntime. Past and present caches are the same memory, as in onnxruntime-genai."""

    def __init__(self, sizes: Sizes, file: Path, prompt: np.ndarray) -> None:
        import onnxruntime

        options, self._prompt = session_options(), prompt.astype(np.int64)[None]
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        shape = 1, sizes.kv_heads, sizes.positions, sizes.head_size
        parts = [f"{layer}.{part}" for layer in range(sizes.layers) for part in ("key", "value")]
        # An OrtValue shares the memory of its NumPy array.
        self._caches = {part: onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32)) for part in parts}

    def read(self) -> np.ndarray:
        """Returns the same as `OfJaxdml.read`."""
        logits = self._step(self._prompt, self._prompt.size)
        self._first = int(logits[-1].argmax())
        return logits

    def generate(self) -> np.ndarray:
        """Returns the same as `OfJaxdml.generate`."""
        tokens = [self._first]
        for _ in range(TOKENS):
            logits = self._step(np.array([tokens[-1:]]), self._prompt.size + len(tokens))
            tokens.append(int(logits[-1].argmax()))
        return np.array(tokens)

    def _step(self, tokens: np.ndarray, total: int) -> np.ndarray:
        """Logits [T, vocabulary] of tokens [1, T], the last of `total`."""
        binding = self._session.io_binding()
        binding.bind_cpu_input("input_ids", tokens)
        binding.bind_cpu_input("attention_mask", np.ones((1, total), np.int64))
        for part, cache in self._caches.items():
            binding.bind_ortvalue_input(f"past_key_values.{part}", cache)
            binding.bind_ortvalue_output(f"present.{part}", cache)
        binding.bind_output("logits")
        self._session.run_with_iobinding(binding)
        logits: np.ndarray = binding.get_outputs()[-1].numpy()[0]
        return logits


def files_of(model: onnx.ModelProto, folder: Path) -> dict[int, Path]:
    """Writes a file for each accuracy level. The files share the weights, which `model` then no longer holds."""
    onnx.save_model(model, folder / "model.onnx", save_as_external_data=True, location="weights")
    files = {}
    for level in LEVELS.values():
        attributes = [attribute for node in model.graph.node for attribute in node.attribute]
        for attribute in attributes:
            if attribute.name == "accuracy_level":
                attribute.i = level
        files[level] = folder / f"level_{level}.onnx"
        files[level].write_bytes(model.SerializeToString())
    return files


# What is measured ----------------------------------------------------------------------------------------------------


def measured(sizes: Sizes, runs: int) -> dict[str, Any]:
    """Milliseconds, and how close the logits and tokens are."""
    prompt = np.random.default_rng(1).integers(0, sizes.vocabulary, PROMPT)
    found: dict[str, Any] = {"sizes": asdict(sizes), "levels": {}}
    with tempfile.TemporaryDirectory() as folder:
        for level, file in files_of(decoder(sizes), Path(folder)).items():
            own = {floats: OfJaxdml(sizes, file, prompt, floats) for floats in FLOATS}
            found["levels"][level] = compared({**own, PEER: OfOnnxruntime(sizes, file, prompt)}, runs)
            found |= of_weights(own["xla"].model.params)
    return found


def compared(sides: dict[str, OfJaxdml | OfOnnxruntime], runs: int) -> dict[str, Any]:
    """What each side takes for a token and for the prompt, and how close its answers are to onnxruntime's."""
    logits = {name: side.read().astype(np.float64) for name, side in sides.items()}
    tokens = {name: side.generate() for name, side in sides.items()}
    prompts = in_turns({name: lambda _, side=side: side.read() for name, side in sides.items()}, 3, ahead=0)
    steps = in_turns({name: lambda _, side=side: side.generate() for name, side in sides.items()}, runs)
    return {
        name: {
            "token": steps[name] / TOKENS * 1e3,
            "prompt": prompts[name] * 1e3,
            "decibels": decibels(logits[name], logits[PEER]) if name != PEER else None,
            "equal tokens": int((tokens[name] == tokens[PEER]).sum()),
        }
        for name in sides
    }


def of_weights(params: Any) -> dict[str, Any]:
    """How many weights the products have, their bytes, and the milliseconds in which all threads read them."""
    leaves = jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, jaxdml.PreparedBlocks))
    products = [leaf for leaf in leaves if isinstance(leaf, jaxdml.PreparedBlocks)]
    data = [np.asarray(product.data) for product in products]
    size = sum(x.nbytes for x in data)
    weights = sum(math.prod(product.shape) for product in products)
    return {"weights": weights, "bytes": size, "read": size / bytes_per_second(data) * 1e3}


TIMES = "level", "floats", "of a", "jaxdml, ms", "onnxruntime, ms", "ratio"
AGREEMENT = "level", "floats", "logits, dB", "equal tokens"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """The lines of a table in Markdown."""
    return [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]


def report(results: dict[str, Any]) -> str:
    about, sizes = results["environment"], Sizes(**results["sizes"])
    versions = ", ".join(f"{name} {version}" for name, version in about["packages"].items())
    lines = [
        "# A language model with 4-bit weights",
        "",
        f"{results['weights'] / 1e6:,.0f} million random weights in blocks of {sizes.block_size}, "
        f"{sizes.layers} layers, {results['bytes'] / 1e6:,.0f} MB. "
        f"A prompt of {PROMPT} tokens is read at once, then {TOKENS} tokens are generated one by one. "
        "`jaxdml.onnx.load` and onnxruntime run the same file. "
        "The level is the files' accuracy level. "
        "Each ratio of times is onnxruntime's time over jaxdml's: above 1, jaxdml is faster. "
        "`python -m benchmarks.decode` writes this page, and says what is compared.",
        "",
    ]
    times, agreement = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for level, sides in results["levels"].items():
        for floats in FLOATS:
            own = sides[floats]
            for kind in ("token", "prompt"):
                ms, of_peer = own[kind], sides[PEER][kind]
                times.append((f"{level}", floats, kind, f"{ms:,.1f}", f"{of_peer:,.1f}", f"{of_peer / ms:.2f}"))
            agreement.append((f"{level}", floats, f"{own['decibels']:.0f}", f"{own['equal tokens']} of {TOKENS + 1}"))
    lines += [
        *_table(TIMES, times),
        "",
        *_table(AGREEMENT, agreement),
        "",
        f"The threads read the weights from memory in {results['read']:.1f} ms, once for a token. "
        "The decibels are the ratio of onnxruntime's logits of the prompt to their difference from jaxdml's; "
        "the last column counts greedy tokens that equal onnxruntime's.",
        "",
        f"{about['processor']}, {about['threads']} threads, kernels {about['kernels']}; {versions}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode", description=__doc__)
    parser.add_argument("--layers", type=int, default=BILLION.layers, help="fewer for a smaller model of equal widths")
    parser.add_argument("--runs", type=int, default=9, help="of generating")
    parser.add_argument("--output", type=Path, help="the folder of results")
    given = parser.parse_args()
    results = {"environment": environment(), **measured(replace(BILLION, layers=given.layers), given.runs)}
    text = report(results)
    print(text)
    if given.output:
        name = name_of(jax.devices()[0], results["environment"]["instructions"]).replace("cpu_", "decode_")
        (given.output / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        (given.output / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
