"""python -m benchmarks.decode: a language model with random 4-bit weights, compared with onnxruntime on the same file.

The model is shaped like llama, with about a billion weights in blocks of 32. A prompt of 512 tokens is read, then
tokens are generated one by one. onnxruntime runs the file; jaxdml runs a JAX function of the file's weights, in which
`matrix_multiply_blocks` computes all products by weights, and XLA the rest. int8 is compared with accuracy level 4,
which rounds in the same way, and int22 with level 0, which computes in float32. Both sides write new keys and values
into caches in place. Times are medians of interleaved runs. The file takes 0.9 GB in a temporary directory.
"""

import argparse
import json
import math
import tempfile
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jax import lax
from onnx import numpy_helper

import jaxdml as dml
from benchmarks.blocks import LEVELS, bytes_per_second
from benchmarks.decoder_files import Sizes, decoder
from benchmarks.machine import environment, name_of
from benchmarks.measure import decibels
from benchmarks.onnx_peer import session_options
from benchmarks.timing import in_turns

PROMPT, TOKENS = 512, 16  # tokens of the prompt, and tokens that one run generates
QUERIES = 128  # of a prompt, whose products with keys are computed together
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
Cache = tuple[Array, Array]  # keys [kv_heads, head_size, positions] and values [kv_heads, positions, head_size]


# The model in JAX ----------------------------------------------------------------------------------------------------


def parameters(model: onnx.ModelProto) -> dict[str, Any]:
    """The prepared weights of a model of `decoder`, in the order of the nodes."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}

    def inputs(kind: str) -> list[list[np.ndarray | None]]:
        nodes = [node for node in model.graph.node if kind in node.op_type]
        return [
            [numpy_helper.to_array(constants[name]) if name in constants else None for name in node.input]
            for node in nodes
        ]

    products = [_prepared(b, scales) for _, b, scales in inputs("MatMulNBits")]
    norms = [jnp.asarray(each[-1]) for each in inputs("SimplifiedLayerNormalization")]
    (table, *_), cosines, sines = inputs("Gather")[-1], *inputs("GroupQueryAttention")[0][-2:]
    names = ("qkv", "out", "gate", "up", "down")
    layers = [
        dict(zip(names, products[5 * layer :], strict=False)) | {"norms": norms[2 * layer : 2 * layer + 2]}
        for layer in range(len(products) // 5)
    ]
    turns = (jnp.asarray(cosines), jnp.asarray(sines))
    return {"table": jnp.asarray(table), "turns": turns, "layers": layers, "norm": norms[-1], "head": products[-1]}


def _prepared(b: Any, scales: Any) -> dml.PreparedBlocks:
    """Prepares b in the form of MatMulNBits: uint8 [N, blocks, bytes], two weights to a byte."""
    nibbles = lax.bitcast_convert_type(jnp.asarray(b), jnp.uint4).reshape(len(b), -1)
    return dml.prepare_matrix_multiply_blocks(nibbles, scales)


def empty_caches(sizes: Sizes) -> list[Cache]:
    values = sizes.kv_heads, sizes.positions, sizes.head_size
    keys = sizes.kv_heads, sizes.head_size, sizes.positions
    return [(jnp.zeros(keys), jnp.zeros(values)) for _ in range(sizes.layers)]


def forward(
    sizes: Sizes, precision: str, params: Any, tokens: Array, caches: list[Cache], start: Array | int
) -> tuple[Array, list[Cache]]:
    """Logits [T, vocabulary] of tokens [T] at position `start` of the caches, and the new caches."""
    product = partial(dml.matrix_multiply_blocks, precision=precision)  # type: ignore[arg-type]
    cosines, sines = (lax.dynamic_slice_in_dim(turn, start, len(tokens)) for turn in params["turns"])
    x, found = params["table"][tokens], []
    for layer, cache in zip(params["layers"], caches, strict=True):
        before, behind = layer["norms"]
        read, cache = attention(sizes, product(norm(x, before), layer["qkv"]), cache, start, cosines, sines)
        x = x + product(read, layer["out"])
        y = norm(x, behind)
        x = x + product(jax.nn.silu(product(y, layer["gate"])) * product(y, layer["up"]), layer["down"])
        found.append(cache)
    return product(norm(x, params["norm"]), params["head"]), found


def norm(x: Array, scale: Array) -> Array:
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * scale


def attention(
    sizes: Sizes, qkv: Array, cache: Cache, start: Array | int, cosines: Array, sines: Array
) -> tuple[Array, Cache]:
    """The attention output [T, heads * head_size], and the cache with the keys and values of the tokens.

    If `start` is a number, the keys after the last query of a part of the queries are left out of its products.
    """
    count, groups, size = len(qkv), sizes.heads // sizes.kv_heads, sizes.head_size
    heads = qkv.reshape(count, -1, size).transpose(1, 0, 2)
    queries, keys, values = jnp.split(heads, (sizes.heads, sizes.heads + sizes.kv_heads))
    all_keys = lax.dynamic_update_slice_in_dim(cache[0], turned(keys, cosines, sines).mT, start, 2)
    all_values = lax.dynamic_update_slice_in_dim(cache[1], values, start, 1)
    queries = turned(queries, cosines, sines)
    parts = []
    for first in range(0, count, QUERIES):
        rows = jnp.arange(count)[first : first + QUERIES]
        seen = start + first + len(rows) if isinstance(start, int) else sizes.positions
        part = queries[:, first : first + QUERIES].reshape(sizes.kv_heads, groups * len(rows), size)
        is_seen = jnp.tile(jnp.arange(seen) <= start + rows[:, None], (groups, 1))
        scores = jnp.where(is_seen, part @ all_keys[:, :, :seen] / math.sqrt(size), -jnp.inf)
        parts.append((jax.nn.softmax(scores) @ all_values[:, :seen]).reshape(sizes.heads, len(rows), size))
    return jnp.concatenate(parts, 1).transpose(1, 0, 2).reshape(count, -1), (all_keys, all_values)


def turned(x: Array, cosines: Array, sines: Array) -> Array:
    """Rotary embedding of [heads, T, head_size]: rotates pairs of one element from each half of a head."""
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cosines - second * sines, second * cosines + first * sines], -1)


# Both sides ----------------------------------------------------------------------------------------------------------


class OfJax:
    """The model in jaxdml, with one precision."""

    def __init__(self, sizes: Sizes, precision: str, params: Any, prompt: np.ndarray) -> None:
        step, count = partial(forward, sizes, precision), len(prompt)

        def read(params: Any, prompt: Array, caches: list[Cache]) -> tuple[Array, list[Cache]]:
            return step(params, prompt, caches, 0)

        def generate(params: Any, token: Array, caches: list[Cache]) -> tuple[Array, list[Cache]]:
            def more(place: Array, carry: tuple[Array, list[Cache]]) -> tuple[Array, list[Cache]]:
                tokens, caches = carry
                logits, caches = step(params, lax.dynamic_slice(tokens, (place,), (1,)), caches, count + place)
                return lax.dynamic_update_slice(tokens, _best(logits), (place + 1,)), caches

            tokens = jnp.zeros(TOKENS + 1, jnp.int32).at[0].set(token)
            return lax.fori_loop(0, TOKENS, more, (tokens, caches))

        # Donated caches are updated in place.
        self._read, self._generate = (jax.jit(function, donate_argnums=2) for function in (read, generate))
        self._params, self._prompt, self._caches = params, jnp.asarray(prompt), empty_caches(sizes)

    def read(self) -> np.ndarray:
        """Reads the prompt into the caches. Returns its logits [prompt, vocabulary]."""
        logits, self._caches = self._read(self._params, self._prompt, self._caches)
        self._first = _best(logits[-1:])[0]
        return np.asarray(logits)

    def generate(self) -> np.ndarray:
        """The tokens [1 + TOKENS] after the prompt, which must have been read."""
        tokens, self._caches = self._generate(self._params, self._first, self._caches)
        return np.asarray(tokens)


def _best(logits: Array) -> Array:
    return lax.argmax(logits, 1, jnp.int32)


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
        """Returns the same as `OfJax.read`."""
        logits = self._step(self._prompt, self._prompt.size)
        self._first = int(logits[-1].argmax())
        return logits

    def generate(self) -> np.ndarray:
        """Returns the same as `OfJax.generate`."""
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
    model = decoder(sizes)
    params = parameters(model)
    products = [leaf for leaf in jax.tree.leaves(params, is_leaf=_is_prepared) if _is_prepared(leaf)]
    data = [np.asarray(product.data) for product in products]
    found: dict[str, Any] = {"sizes": asdict(sizes), "weights": sum(math.prod(product.shape) for product in products)}
    found |= {"bytes": sum(x.nbytes for x in data), "read": sum(x.nbytes for x in data) / bytes_per_second(data) * 1e3}
    sides: dict[str, OfJax | OfOnnxruntime] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = files_of(model, Path(folder))
        for precision, level in LEVELS.items():
            sides[precision] = OfJax(sizes, precision, params, prompt)
            sides[f"level {level}"] = OfOnnxruntime(sizes, files[level], prompt)
    logits = {name: side.read() for name, side in sides.items()}
    tokens = {name: side.generate() for name, side in sides.items()}
    prompts = in_turns({name: lambda _, side=side: side.read() for name, side in sides.items()}, 3, ahead=0)
    steps = in_turns({name: lambda _, side=side: side.generate() for name, side in sides.items()}, runs)
    for precision, level in LEVELS.items():
        names = precision, f"level {level}"
        own, other = (tokens[name] for name in names)
        found[precision] = {
            "token": [steps[name] / TOKENS * 1e3 for name in names],
            "prompt": [prompts[name] * 1e3 for name in names],
            "decibels": decibels(*(logits[name].astype(np.float64) for name in names)),
            "equal tokens": int((own == other).sum()),
        }
    return found


def _is_prepared(leaf: Any) -> bool:
    return isinstance(leaf, dml.PreparedBlocks)


HEAD = (
    "precision, accuracy level",
    "ms a token",
    "onnxruntime",
    "ratio",
    "ms a prompt",
    "onnxruntime",
    "ratio",
    "logits, dB",
)


def report(results: dict[str, Any]) -> str:
    about, sizes = results["environment"], Sizes(**results["sizes"])
    versions = ", ".join(f"{name} {version}" for name, version in about["packages"].items())
    lines = [
        "# A language model with 4-bit weights",
        "",
        f"{results['weights'] / 1e6:,.0f} million random weights in blocks of {sizes.block_size}, "
        f"{sizes.layers} layers, {results['bytes'] / 1e6:,.0f} MB. "
        f"A prompt of {PROMPT} tokens is read at once, then {TOKENS} tokens are generated one by one. "
        "Each ratio of times is onnxruntime's time over jaxdml's: above 1, jaxdml is faster. "
        "`python -m benchmarks.decode` writes this page, and says what is compared.",
        "",
        f"| {' | '.join(HEAD)} |",
        f"|{' --- |' * len(HEAD)}",
    ]
    for precision, level in LEVELS.items():
        cells = [f"{precision}, {level}"]
        for kind in ("token", "prompt"):
            own, other = results[precision][kind]
            cells += [f"{own:,.1f}", f"{other:,.1f}", f"{other / own:.2f}"]
        lines.append(f"| {' | '.join(cells)} | {results[precision]['decibels']:.0f} |")
    lines += [
        "",
        f"The threads read the weights from memory in {results['read']:.1f} ms, once for a token. "
        "The last column is the ratio of onnxruntime's logits of the prompt to their difference from jaxdml's. "
        + "; ".join(f"{results[p]['equal tokens']} of {TOKENS + 1} tokens are equal with {p}" for p in LEVELS)
        + ".",
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
