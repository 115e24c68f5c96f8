"""Language models with random weights of few bits, in the form that onnxruntime-genai's model builder writes.

`decoder(Sizes())` is an onnx.ModelProto of a llama-shaped decoder: an embedding, layers of GroupQueryAttention and a
gated feed-forward network, RMS norms, and a head that gives logits. Options of `Sizes` give it parts of Gemma, Qwen and
Phi. Its inputs are input_ids int64 [batch, sequence], attention_mask int64 [batch, past + sequence], and for each layer
past_key_values.<layer>.key and .value float32 [batch, kv_heads, past, head_size]; its outputs are logits float32
[batch, sequence, vocabulary] and present.<layer>.key and .value. `first_inputs` makes the inputs of a prompt,
`next_inputs` makes those of one more token from the outputs.

    sizes = Sizes(layers=2, accuracy_level=4)
    model = decoder(sizes)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    inputs = first_inputs(sizes, prompt)  # int64 [batch, sequence]
    outputs = dict(zip(names, session.run(None, inputs)))
    inputs = next_inputs(inputs, outputs, outputs["logits"][:, -1:].argmax(-1))
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


@dataclass(frozen=True)
class Sizes:
    """The sizes and the form of a decoder.

    Attributes:
      layers, hidden, feed_forward, vocabulary: sizes of the network.
      heads, kv_heads, head_size: of the attention; heads is a multiple of kv_heads.
      positions: the longest sequence, for which there are angles of the rotary embedding.
      bits, block_size, has_zero_points, accuracy_level: of each MatMulNBits.
      form: "MatMulNBits", or "QDQ" for DequantizeLinear, Transpose and MatMul.
      packed: whether one product computes queries, keys and values.
      has_biases: whether queries, keys and values have biases, which need `packed=False`; as in Qwen 2.
      has_head_norms: whether each head of queries and keys has a norm, which needs `packed=False`; as in Qwen 3.
      rotary: "inside" GroupQueryAttention, or "outside" in RotaryEmbedding nodes, which need `packed=False`.
      rotary_size: how many elements of a head are rotated; 0 means all. Phi rotates some.
      window, softcap: of GroupQueryAttention; -1 and 0 mean none.
      norm: "rms", or "layer" for LayerNormalization with a bias, as in Phi.
      has_output_norms: whether what attention and the feed-forward network add has a norm of its own, as in Gemma 2.
      embedding: "floats" for Gather, or "blocks" for GatherBlockQuantized of the head's own weights.
      gate: "silu" as Sigmoid and Mul, or "gelu" as Gelu with tanh, of the gated feed-forward network.
      seed: of the weights.
    """

    layers: int = 2
    hidden: int = 64
    feed_forward: int = 160
    vocabulary: int = 100
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 16
    positions: int = 128
    bits: int = 4
    block_size: int = 32
    has_zero_points: bool = False
    accuracy_level: int = 0
    form: str = "MatMulNBits"
    packed: bool = True
    has_biases: bool = False
    has_head_norms: bool = False
    rotary: str = "inside"
    rotary_size: int = 0
    window: int = -1
    softcap: float = 0.0
    norm: str = "rms"
    has_output_norms: bool = False
    embedding: str = "floats"
    gate: str = "silu"
    seed: int = 0


def decoder(sizes: Sizes) -> onnx.ModelProto:
    """The model. All its weights are random; activations stay near 1 in magnitude."""
    return _Builder(sizes).model()


def first_inputs(sizes: Sizes, prompt: np.ndarray) -> dict[str, np.ndarray]:
    """The inputs for a prompt, int64 [batch, sequence], without a past."""
    empty = np.zeros((len(prompt), sizes.kv_heads, 0, sizes.head_size), np.float32)
    past = {f"past_key_values.{layer}.{part}": empty for layer in range(sizes.layers) for part in ("key", "value")}
    return {"input_ids": prompt, "attention_mask": np.ones(prompt.shape, np.int64)} | past


def next_inputs(inputs: dict[str, Any], outputs: dict[str, Any], tokens: np.ndarray) -> dict[str, Any]:
    """The inputs for further tokens, int64 [batch, sequence], after those that the inputs and outputs hold."""
    past = {name.replace("present", "past_key_values"): value for name, value in outputs.items() if "present" in name}
    mask = np.concatenate([inputs["attention_mask"], np.ones(tokens.shape, np.int64)], 1)
    return {"input_ids": tokens, "attention_mask": mask} | past


class _Builder:
    """Builds a model. Values are names."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._rng = np.random.default_rng(sizes.seed)
        self._names = itertools.count()
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def model(self) -> onnx.ModelProto:
        sizes, caches = self.sizes, ("batch", self.sizes.kv_heads, "past", self.sizes.head_size)
        mask_sum = self.node("ReduceSum", "attention_mask", np.array([1]), keepdims=0)
        lengths = self.node("Cast", self.node("Sub", mask_sum, np.array([1])), to=TensorProto.INT32)
        total = self.node("Gather", self.node("Shape", "attention_mask"), np.array(1), axis=0)
        total = self.node("Cast", total, to=TensorProto.INT32)
        positions = self._positions(lengths) if sizes.rotary == "outside" else ""
        turned = sizes.rotary_size or sizes.head_size
        angles = np.arange(sizes.positions)[:, None] / 10000 ** (np.arange(0, 1, 2 / turned)[None])
        turns = [self.constant(f(angles).astype(np.float32)) for f in (np.cos, np.sin)]
        head = self._weights(sizes.hidden, sizes.vocabulary)
        residual, added = self._embedding(head), ""
        inputs = [("input_ids", INT64, ("batch", "sequence")), ("attention_mask", INT64, ("batch", "total"))]
        outputs = [("logits", FLOAT, ("batch", "sequence", sizes.vocabulary))]
        for layer in range(sizes.layers):
            pasts = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
            presents = [f"present.{layer}.{part}" for part in ("key", "value")]
            inputs += [(name, FLOAT, caches) for name in pasts]
            outputs += [(name, FLOAT, (*caches[:2], "total", caches[3])) for name in presents]
            x, residual = self._norm(residual, added)
            added = self._output_norm(self._attention(x, pasts, presents, lengths, total, turns, positions))
            x, residual = self._norm(residual, added)
            added = self._output_norm(self._feed_forward(x))
        x, _ = self._norm(residual, added)
        self._product(x, head, "logits")
        values = [[helper.make_tensor_value_info(*each) for each in group] for group in (inputs, outputs)]
        read = {name for node in self._nodes for name in node.input}
        constants = [constant for constant in self._constants if constant.name in read]
        graph = helper.make_graph(self._nodes, "decoder", *values, constants)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    # Parts of the network --------------------------------------------------------------------------------------------

    def _embedding(self, head: dict[str, Any]) -> str:
        sizes = self.sizes
        if sizes.embedding == "blocks":
            rows = self.node("Reshape", head["b"], np.array([sizes.vocabulary, -1]))
            inputs = [rows, "input_ids", head["scales"], *_points(head)]
            options = {"bits": sizes.bits, "block_size": sizes.block_size, "gather_axis": 0, "quantize_axis": 1}
            values = self.node("GatherBlockQuantized", *inputs, domain=MICROSOFT, **options)
            return self.node("Mul", values, np.float32(math.sqrt(sizes.hidden)))
        table = self._rng.normal(size=(sizes.vocabulary, sizes.hidden)).astype(np.float32)
        return self.node("Gather", table, "input_ids")

    def _norm(self, residual: str, added: str) -> tuple[str, str]:
        """The norm of the sum of `residual` and `added`, and the sum."""
        is_layer = self.sizes.norm == "layer"
        constants = [self._rng.uniform(0.5, 1.5, self.sizes.hidden).astype(np.float32)]
        if is_layer:
            constants.append(self._rng.normal(size=self.sizes.hidden).astype(np.float32))
        kind = "LayerNormalization" if is_layer else "SimplifiedLayerNormalization"
        if not added:
            return self.node(kind, residual, *constants, axis=-1, epsilon=1e-5), residual
        results, inputs = [self._name(), "", "", self._name()], [residual, added, *map(self.constant, constants)]
        self._add(f"Skip{kind}", inputs, results, MICROSOFT, epsilon=1e-5)
        return results[0], results[3]

    def _output_norm(self, added: str) -> str:
        return self._norm(added, "")[0] if self.sizes.has_output_norms else added

    def _head_norm(self, x: str, heads: int) -> str:
        """The RMS norm of each head of x [batch, sequence, heads * head_size]."""
        scale = self._rng.uniform(0.5, 1.5, self.sizes.head_size).astype(np.float32)
        x = self.node("Reshape", x, np.array([0, -1, heads, self.sizes.head_size]))
        x = self.node("SimplifiedLayerNormalization", x, scale, axis=-1, epsilon=1e-6)
        return self.node("Reshape", x, np.array([0, -1, heads * self.sizes.head_size]))

    def _attention(
        self, x: str, pasts: list[str], presents: list[str], lengths: str, total: str, turns: list[str], positions: str
    ) -> str:
        sizes, width = self.sizes, self.sizes.heads * self.sizes.head_size
        kv_width = sizes.kv_heads * sizes.head_size
        if sizes.packed:
            queries = [self._product(x, self._weights(sizes.hidden, width + 2 * kv_width)), "", ""]
        else:
            queries = [self._product(x, self._weights(sizes.hidden, each)) for each in (width, kv_width, kv_width)]
        if sizes.has_biases:
            widths = width, kv_width, kv_width
            biases = [self._rng.normal(size=each).astype(np.float32) for each in widths]
            queries = [self.node("Add", *each) for each in zip(queries, biases, strict=True)]
        if sizes.has_head_norms:
            queries[:2] = map(self._head_norm, queries, (sizes.heads, sizes.kv_heads))
        is_inside = sizes.rotary == "inside"
        if not is_inside:
            queries[:2] = [
                self.node("RotaryEmbedding", each, positions, *turns, domain=MICROSOFT, num_heads=count,
                          rotary_embedding_dim=sizes.rotary_size, interleaved=0)
                for each, count in zip(queries, (sizes.heads, sizes.kv_heads), strict=False)
            ]  # fmt: skip
        result = self._name()
        options = {"num_heads": sizes.heads, "kv_num_heads": sizes.kv_heads, "scale": sizes.head_size**-0.5}
        options |= {"do_rotary": int(is_inside), "local_window_size": sizes.window, "softcap": sizes.softcap}
        inputs = [*queries, *pasts, lengths, total, *(turns if is_inside else ())]
        self._add("GroupQueryAttention", inputs, [result, *presents], MICROSOFT, **options)
        return self._product(result, self._weights(width, sizes.hidden))

    def _positions(self, lengths: str) -> str:
        """int64 [batch, sequence]: the positions of the tokens, of which `lengths` has the last."""
        length = self.node("Gather", self.node("Shape", "input_ids"), np.array(1), axis=0)
        row = self.node("Range", self.node("Sub", np.array(1), length), np.array(1), np.array(1))
        return self.node("Add", self.node("Unsqueeze", self.node("Cast", lengths, to=INT64), np.array([1])), row)

    def _feed_forward(self, x: str) -> str:
        sizes = self.sizes
        gate, up = (self._product(x, self._weights(sizes.hidden, sizes.feed_forward)) for _ in range(2))
        if sizes.gate == "silu":
            gate = self.node("Mul", gate, self.node("Sigmoid", gate))
        else:
            gate = self.node("Gelu", gate, approximate="tanh")
        return self._product(self.node("Mul", gate, up), self._weights(sizes.feed_forward, sizes.hidden))

    def _weights(self, depth: int, columns: int) -> dict[str, Any]:
        """Random weights [columns, depth], packed as MatMulNBits requires, and the names of the constants."""
        sizes, rng = self.sizes, self._rng
        blocks = -(-depth // sizes.block_size)
        b = rng.integers(0, 256, (columns, blocks, sizes.block_size * sizes.bits // 8), np.uint8)
        deviation = 2**sizes.bits / math.sqrt(12)  # of integers of the whole range
        scales = rng.uniform(0.5, 1.5, (columns, blocks)).astype(np.float32) / np.float32(deviation * math.sqrt(depth))
        found = {"depth": depth, "columns": columns, "b": self.constant(b), "scales": self.constant(scales)}
        if sizes.has_zero_points:
            least, most = (2**sizes.bits - 1) // 2, 2**sizes.bits // 2 + 1
            found["points"] = rng.integers(least, most + 1, (columns, blocks), np.uint8)
            found["zero_points"] = self.constant(_packed(found["points"], sizes.bits))
        return found

    def _product(self, x: str, weights: dict[str, Any], result: str = "") -> str:
        sizes, result = self.sizes, result or self._name()
        inputs = [weights["b"], weights["scales"], *_points(weights)]
        if sizes.form == "MatMulNBits":
            options = {"K": weights["depth"], "N": weights["columns"], "bits": sizes.bits}
            options |= {"block_size": sizes.block_size, "accuracy_level": sizes.accuracy_level}
            self._add("MatMulNBits", [x, *inputs], [result], MICROSOFT, **options)
            return result
        matrix = self.node("DequantizeLinear", *self._unpacked(weights), axis=-1, block_size=sizes.block_size)
        self._add("MatMul", [x, self.node("Transpose", matrix, perm=[1, 0])], [result])
        return result

    def _unpacked(self, weights: dict[str, Any]) -> list[str]:
        """The same bytes as tensors of 4-bit or 8-bit integers, which QDQ needs; only for whole blocks."""
        sizes, found = self.sizes, {constant.name: constant for constant in self._constants}
        kind = {4: TensorProto.UINT4, 8: TensorProto.UINT8}[sizes.bits]
        shape, blocks = (weights["columns"], weights["depth"]), weights["depth"] // sizes.block_size
        points = weights.get("points", np.full((shape[0], blocks), 2 ** (sizes.bits - 1), np.uint8))
        packed = _packed(points.reshape(1, -1), sizes.bits).tobytes()
        names = [self._name(), weights["scales"], self._name()]
        self._constants += [
            helper.make_tensor(names[0], kind, shape, found[weights["b"]].raw_data, raw=True),
            helper.make_tensor(names[2], kind, points.shape, packed, raw=True),
        ]
        return names

    # Nodes and constants ---------------------------------------------------------------------------------------------

    def node(self, kind: str, *inputs: Any, domain: str = "", **attributes: Any) -> str:
        """Adds a node; arrays among the inputs become constants. Returns the name of its result."""
        result = self._name()
        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        self._add(kind, names, [result], domain, **attributes)
        return result

    def constant(self, value: Any) -> str:
        self._constants.append(numpy_helper.from_array(np.asarray(value), self._name()))
        return self._constants[-1].name

    def _add(self, kind: str, inputs: list[str], outputs: list[str], domain: str = "", **attributes: Any) -> None:
        name = f"{kind}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, outputs, name, domain=domain, **attributes))

    def _name(self) -> str:
        return f"value_{next(self._names)}"


def _points(weights: dict[str, Any]) -> list[str]:
    """The zero points as an optional input."""
    return [weights["zero_points"]] if "zero_points" in weights else []


def _packed(values: np.ndarray, bits: int) -> np.ndarray:
    """uint8 [rows, count] as bytes [rows, ...]: each byte holds 8 / bits values of a row, the first in its low bits."""
    each = 8 // bits
    values = np.pad(values, [(0, 0), (0, -values.shape[1] % each)]).reshape(len(values), -1, each)
    return np.bitwise_or.reduce(values << (np.arange(each, dtype=np.uint8) * bits), -1).astype(np.uint8)
