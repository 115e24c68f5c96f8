"""MatMulNBits, and DequantizeLinear by blocks before a product, run as products by blocks: NumPy's bits."""

import functools
import pickle

import jax
import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import jaxdml as dml
import jaxdml.onnx
from helpers.compare import assert_same_bits
from helpers.hostile_models import constant, model, node, refused
from helpers.marks import rest_rarely
from helpers.native_calls import needs_native
from jaxdml import reference

F = np.float32
FLOAT, FLOAT16, UINT8 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.UINT8
PRECISIONS = {0: "int22", 1: "int22", 2: "int15", 3: "int15", 4: "int8"}
DECIBELS = {"int8": 34, "int15": 78, "int22": 110}  # at least, of random weights and activations


def packed_model(given, inputs=("a",), dtype=FLOAT, **attributes):
    """MatMulNBits of `a` [M, K] and arrays by name, "" for an absent one; those that `inputs` names are given."""
    constants = [constant(x, name) for name, x in given.items() if name not in inputs and x is not None]
    names = ["a", *(name if x is not None else "" for name, x in given.items())]
    typed = [("a", dtype, ("M", attributes["K"]))]
    typed += [
        (name, UINT8 if given[name].dtype == np.uint8 else FLOAT, given[name].shape) for name in inputs if name != "a"
    ]
    nodes = [node("MatMulNBits", names, ["y"], domain="com.microsoft", **attributes)]
    return model(nodes, constants, typed, [("y", dtype, None)], opset=21, ir_version=10)


def session(proto, level=onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def applied(proto, *inputs):
    made = jaxdml.onnx.load(proto)
    return made.apply(made.params, *inputs)["y"]


# What the file says, by NumPy ----------------------------------------------------------------------------------------


def unpacked(packed, bits, count):
    """Elements of few bits, the lowest first, of rows of bytes."""
    each = np.unpackbits(packed.reshape(len(packed), -1), axis=1, bitorder="little").reshape(len(packed), -1, bits)
    return (each * 2 ** np.arange(bits)).sum(-1)[:, :count]


class Case:
    """A random MatMulNBits: arrays by name, attributes, and activations."""

    def __init__(self, seed):
        self.rng = rng = np.random.default_rng(seed)
        self.bits, self.level = int(rng.choice([2, 4, 4, 8])), int(rng.integers(0, 5))
        self.block = int(rng.choice([16, 32, 64, 128, 256] + [512, 1024] * (self.bits > 2)))
        self.depth, self.columns = int(rng.integers(1, 4 * self.block + 1)), int(rng.integers(1, 80))
        self.depth = min(self.depth, 1100)
        self.zero_points = str(rng.choice(["none", "uint8", "floats"]))
        self.order = str(rng.choice(["none", "none", "own", "shuffled", "random"]))
        self.dtype = np.dtype(str(rng.choice(["float32", "float32", "float16"])))
        blocks = self.blocks = -(-self.depth // self.block)
        shape = (self.columns, blocks)
        of_row = -(-blocks * self.bits // 8)
        own = np.arange(self.depth) // self.block
        flat = bool(rng.integers(2))
        scales = rng.uniform(0.01, 0.1, shape).astype(self.dtype)
        points = {
            "none": None,
            "uint8": rng.integers(0, 256, (self.columns, of_row), np.uint8),
            "floats": rng.integers(0, 2**self.bits, shape).astype(self.dtype),
        }[self.zero_points]
        orders = {
            "none": None,
            "own": own,
            "shuffled": rng.permutation(own),
            "random": rng.integers(0, blocks, own.size),
        }
        order = orders[self.order]
        self.arrays = {
            "b": rng.integers(0, 256, (*shape, self.block * self.bits // 8), np.uint8),
            "scales": scales.reshape(-1) if flat else scales,
            "zero_points": points if points is None or not flat else points.reshape(-1),
            "g_idx": None if order is None else order.astype(np.int32),
            "bias": rng.normal(size=self.columns).astype(self.dtype) if rng.integers(2) else None,
        }
        self.a = rng.normal(size=(int(rng.integers(1, 7)), self.depth)).astype(self.dtype)

    def __str__(self):
        words = f"{self.bits} bits, blocks of {self.block}, {self.depth} to {self.columns}, level {self.level}"
        return f"{words}, zero points {self.zero_points}, order {self.order}, {self.dtype}"

    @functools.cached_property
    def proto(self):
        dtype = FLOAT if self.dtype == np.float32 else FLOAT16
        attributes = {"K": self.depth, "N": self.columns, "bits": self.bits, "block_size": self.block}
        return packed_model(self.arrays, dtype=dtype, accuracy_level=self.level, **attributes)

    @functools.cached_property
    def weights(self):
        """The integers minus their zero points [N, K], their scales [N, blocks], and the block of each."""
        shape = self.columns, self.blocks
        points = np.full(shape, 2 ** (self.bits - 1))
        if self.zero_points == "floats":
            points = self.arrays["zero_points"].reshape(shape).astype(int)
        elif self.zero_points == "uint8":
            points = unpacked(self.arrays["zero_points"].reshape(self.columns, -1), self.bits, self.blocks)
        block = self.arrays["g_idx"] if self.order != "none" else np.arange(self.depth) // self.block
        steps = unpacked(self.arrays["b"], self.bits, self.depth) - points[:, block]
        return steps, self.arrays["scales"].reshape(shape), block

    @property
    def exact(self):
        steps, scales, block = self.weights
        bias = self.arrays["bias"]
        product = self.a.astype(np.float64) @ (steps * scales.astype(np.float64)[:, block]).T
        return product if bias is None else product + bias

    @property
    def expected(self):
        """The bits, by the reference: the elements of each block, in pieces of at most 256, padded with zeros."""
        steps, scales, block = self.weights
        size, a, w, s = min(self.block, 256), [], [], []
        for number in range(self.blocks):
            places = np.flatnonzero(block == number)
            for start in range(0, places.size, size):
                piece = places[start : start + size]
                missing = [(0, 0), (0, size - piece.size)]
                a.append(np.pad(self.a[:, piece], missing))
                w.append(np.pad(steps[:, piece], missing))
                s.append(scales[:, number : number + 1])
        a, w, s = (np.concatenate(parts, 1) for parts in (a, w, s))
        # Differences of weights and zero points of 8 bits do not fit 8 bits, so that both are given.
        middle = 2 ** (self.bits - 1)
        offsets = np.clip(-w.reshape(*s.shape, size).min(-1) - middle, -middle, middle - 1)
        b = (w.reshape(*s.shape, size) + offsets[:, :, None]).reshape(w.shape)
        return reference.matrix_multiply_blocks(
            a, b.astype(np.int8), s, offsets.astype(np.int8), precision=PRECISIONS[self.level], bias=self.arrays["bias"]
        )

    @property
    def is_right_in_onnxruntime(self):
        """With an order, onnxruntime ignores zero points, is wrong for 2 bits, and rejects 8 bits and large blocks."""
        if self.order != "none":
            return self.bits == 4 and self.block <= 256 and self.zero_points != "uint8"
        return not (self.bits == 8 and self.zero_points == "floats")  # which onnxruntime rejects


def decibels(got, right):
    error = np.asarray(got, np.float64) - right
    return 10 * np.log10(np.sum(right.astype(np.float64) ** 2) / np.sum(error**2)) if error.any() else np.inf


@pytest.mark.rare
@pytest.mark.parametrize("seed", range(12))
def test_random_files(seed):
    """The bits of the reference; numbers close to float64's, as the precision promises, and to onnxruntime's."""
    cases = [Case(8 * seed + each) for each in range(8)]
    made = [jaxdml.onnx.load(case.proto) for case in cases]
    # One program: compiling each on its own would take most of the time.
    outputs = jax.jit(lambda inputs: [each.apply(each.params, a)["y"] for each, a in zip(made, inputs, strict=True)])(
        [case.a for case in cases]
    )
    for case, got, loaded in zip(cases, outputs, made, strict=True):
        assert_same_bits(got, case.expected, case)
        assert loaded.operators == ("MatMulNBits",)
        least = min(DECIBELS[PRECISIONS[case.level]], 65 if case.dtype == np.float16 else np.inf)
        assert decibels(got, case.exact) > least, case
        if case.is_right_in_onnxruntime:
            assert decibels(got, session(case.proto).run(None, {"a": case.a})[0]) > least, case


# Forms of the file ---------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
A = RNG.normal(size=(3, 64)).astype(np.float32)
PACKED = {
    "b": RNG.integers(0, 256, (40, 2, 16), np.uint8),
    "scales": RNG.uniform(0.01, 0.1, (40, 2)).astype(np.float32),
}
ATTRIBUTES = {"K": 64, "N": 40, "bits": 4, "block_size": 32}


def test_rows_have_the_same_bits_in_every_batch():
    made = jaxdml.onnx.load(packed_model(PACKED, **ATTRIBUTES))
    together = np.asarray(made.apply(made.params, A)["y"])
    for row in range(len(A)):
        assert_same_bits(made.apply(made.params, A[row : row + 1])["y"], together[row : row + 1])
    mapped = jax.vmap(lambda a: made.apply(made.params, a)["y"], axis_size=3)(A[:, None])
    assert_same_bits(mapped[:, 0], together)
    assert made.apply(made.params, A[:0])["y"].shape == (0, 40)


@needs_native
def test_the_native_kernel_reads_prepared_weights():
    made = jaxdml.onnx.load(packed_model(PACKED, **ATTRIBUTES))
    text = jax.jit(made.apply).lower(made.params, A).compile().as_text()
    assert "matmul_blocks" in text
    assert "pack_blocks" not in text
    assert list(made.params) == ["b:prepared"]


def test_parameters_are_pickled_and_replaced():
    made = jaxdml.onnx.load(packed_model(PACKED, **ATTRIBUTES))
    expected = made.apply(made.params, A)["y"]
    assert_same_bits(made.apply(pickle.loads(pickle.dumps(made.params)), A)["y"], expected)
    prepared = made.params["b:prepared"]
    again = dml.prepare_matrix_multiply_blocks(prepared.array, prepared.scale)
    assert_same_bits(made.apply({"b:prepared": again}, A)["y"], expected)
    with pytest.raises(dml.onnx.ModelError, match=r"write jaxdml\.prepare_matrix_multiply_blocks"):
        made.apply({"b:prepared": prepared.array}, A)


def test_computed_weights_and_zero_points_between_integers_stay_floats():
    """Within float32's error of the result with the same weights as constants."""
    expected = applied(packed_model(PACKED, **ATTRIBUTES), A)
    given = applied(packed_model(PACKED, ("a", "b"), **ATTRIBUTES), A, PACKED["b"])
    np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-4)
    points = np.full((40, 2), 7.5, np.float32)
    proto = packed_model(PACKED | {"zero_points": points}, **ATTRIBUTES)
    theirs = session(proto).run(None, {"a": A})[0]
    np.testing.assert_allclose(applied(proto, A), theirs, rtol=1e-4, atol=1e-4)
    assert "not integers" in str(jaxdml.onnx.load(proto))
    assert "no single answer is promised" in str(jaxdml.onnx.load(proto, floats="exact"))


# DequantizeLinear and a product --------------------------------------------------------------------------------------


def qdq_model(dtype="uint4", size=32, depth=64, columns=12, axis=0, has_zero_point=True, rank=2, then=(), **gemm):
    """DequantizeLinear by blocks of constants, and MatMul or Gemm; the weights and zero points as int64, and scales."""
    rng = np.random.default_rng(depth)
    limits = ml_dtypes.iinfo(dtype)
    shape = (depth, columns) if axis == 0 else (columns, depth)
    blocks = tuple(-(-each // size) if place == axis else each for place, each in enumerate(shape))
    w, z = (rng.integers(limits.min, limits.max + 1, of) for of in (shape, blocks))
    scale, bias = rng.uniform(0.01, 0.1, blocks).astype(np.float32), rng.normal(size=columns).astype(np.float32)
    kind = getattr(TensorProto, dtype.upper())
    constants = [helper.make_tensor(name, kind, x.shape, x.ravel().tolist()) for name, x in (("w", w), ("z", z))]
    constants += [constant(scale, "s"), constant(bias, "bias")]
    nodes = [node("DequantizeLinear", ["w", "s", *["z"] * has_zero_point], ["f"], axis=axis, block_size=size)]
    last = "f"
    if "Transpose" in then:
        nodes.append(node("Transpose", ["f"], ["t"], perm=[1, 0]))
        last = "t"
    if gemm:
        nodes.append(node("Gemm", ["a", last, "bias"], ["y"], **gemm))
    elif "Add" in then:
        nodes += [node("MatMul", ["a", last], ["p"]), node("Add", ["p", "bias"], ["y"])]
    else:
        nodes.append(node("MatMul", ["a", last], ["y"]))
    typed = [("a", FLOAT, (*"LM"[-rank + 1 :], depth))]
    proto = model(nodes, constants, typed, [("y", FLOAT, None)], opset=21, ir_version=10)
    parts = w, scale, z if has_zero_point else np.zeros_like(z)
    return proto, *(x.T if axis == 0 else x for x in parts), bias if gemm or "Add" in then else None


QDQ = {
    "uint4": {},
    "no zero point": {"has_zero_point": False},
    "int4, ragged": {"dtype": "int4", "depth": 100},
    "int8": {"dtype": "int8", "has_zero_point": False},
    "uint8, rank 3": {"dtype": "uint8", "rank": 3, "then": ["Add"]},
    "transposed": {"axis": 1, "then": ["Transpose"]},
    "transposed and added": {"axis": 1, "then": ["Transpose", "Add"], "dtype": "int4"},
    "Gemm": {"alpha": 1.0},
    "Gemm, transposed": {"axis": 1, "transB": 1},
    "blocks of 48": {"size": 48, "depth": 100},
    "blocks of 512": {"size": 512, "depth": 700},
}  # fmt: skip


@pytest.mark.parametrize("name", rest_rarely(QDQ, 6))
def test_a_product_by_dequantized_blocks(name):
    proto, w, scale, z, bias = qdq_model(**QDQ[name])
    a = np.random.default_rng(1).normal(size=(2, 3, w.shape[1])).astype(np.float32)
    a = a if QDQ[name].get("rank") == 3 else a[0]
    made = jaxdml.onnx.load(proto)
    assert made.operators == ("MatMulNBits",)
    got = made.apply(made.params, a)["y"]
    size = QDQ[name].get("size", 32)
    piece = next(each for each in (256, 128, 64, 32, 16) if size % each == 0)
    scales, points = (np.repeat(x, size // piece, 1)[:, : -(-w.shape[1] // piece)] for x in (scale, z))
    typed = QDQ[name].get("dtype", "uint4").replace("4", "8")
    expected = reference.matrix_multiply_blocks(a, w.astype(typed), scales, points.astype(typed), bias=bias)
    assert_same_bits(got, expected)
    assert decibels(got, session(proto).run(None, {"a": a})[0]) > DECIBELS["int22"]


def test_a_block_may_be_far_larger_than_the_matrix():
    """One scale for each column, however large the attribute says that a block is."""
    proto, w, scale, z, _ = qdq_model(size=2**44, axis=1, then=["Transpose"])
    made = jaxdml.onnx.load(proto)
    assert made.operators == ("MatMulNBits",)
    expected = reference.matrix_multiply_blocks(A, w.astype(np.uint8), scale, z.astype(np.uint8))
    assert_same_bits(made.apply(made.params, A)["y"], expected)


@pytest.mark.parametrize("options", [{}, {"axis": 1, "then": ["Transpose"]}], ids=str)
def test_an_axis_beyond_the_matrix_is_no_axis(options):
    proto, *_ = qdq_model(**options)
    proto.graph.node[0].attribute[0].i = 3
    with pytest.raises(dml.onnx.ModelError, match=r"DequantizeLinear.*: axis 3 is not in \[-2, 1\]"):
        applied(proto, A)


def test_onnxruntime_fuses_the_same_nodes(tmp_path):
    """By default, onnxruntime computes them with 8-bit a."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    proto, *_ = qdq_model()
    onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert [each.op_type for each in onnx.load(options.optimized_model_filepath).graph.node] == ["MatMulNBits"]


def test_the_printed_table_names_the_product():
    lines = str(jaxdml.onnx.load(qdq_model(axis=1, then=["Transpose", "Add"])[0])).splitlines()
    assert "DequantizeLinear + Transpose + MatMul + Add" in lines[2]
    assert lines[2].split()[-2:] == ["MatMulNBits", "integers"]
    assert lines[4] == "1 of 1 convolutions and products, 1 of 1 operators run on integers"


def test_what_moves_floats_around_a_product_is_in_floats():
    proto = packed_model(PACKED, **ATTRIBUTES)
    proto.graph.node[0].output[0] = "p"
    proto.graph.node.insert(0, node("Transpose", ["x"], ["a"], perm=[1, 0]))
    proto.graph.node.append(node("Transpose", ["p"], ["y"], perm=[1, 0]))
    proto.graph.input[0].name = "x"
    lines = str(jaxdml.onnx.load(proto)).splitlines()
    assert [line.split()[-1] for line in lines[2:5]] == ["floats", "integers", "floats"]


def test_activations_are_dequantized_by_a_node_of_their_own():
    proto, *_ = qdq_model()
    proto.graph.node.insert(0, node("DequantizeLinear", ["q", "one"], ["a"]))
    proto.graph.initializer.append(constant(F(0.5), "one"))
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("q", UINT8, ["M", 64]))
    lines = str(jaxdml.onnx.load(proto)).splitlines()
    assert [line.split()[1:] for line in lines[2:4]] == [
        ["DequantizeLinear", "DequantizeLinear", "floats"],
        ["DequantizeLinear", "+", "MatMul", "MatMulNBits", "integers"],
    ]


# Errors --------------------------------------------------------------------------------------------------------------

POINTS = np.zeros((40, 1), np.uint8)
BEYOND = np.full(64, 2, np.int32)
WRONG = {
    "bits": ({}, {"bits": 3}, "attribute 'bits' is 3; supported: 2, 4, 8"),
    "block size": ({}, {"block_size": 8}, "attribute 'block_size' is 8, expected a power of two of at least 16"),
    "no power of two": ({}, {"block_size": 48}, "attribute 'block_size' is 48, expected a power of two of at least 16"),
    "level": ({}, {"accuracy_level": 5}, "attribute 'accuracy_level' is 5; supported: 0, 1, 2, 3, 4"),
    "prepacked": ({}, {"weight_prepacked": 1}, "attribute 'weight_prepacked' is 1; supported: 0"),
    "no columns": ({}, {"N": 0}, "attributes K and N are 64 and 0, expected at least 1"),
    "very many columns": ({}, {"N": 2**62}, "B has shape (40, 2, 16), expected (4611686018427387904, 2, 16)"),
    "very deep": ({}, {"K": 2**62}, "B has shape (40, 2, 16), expected (40, 144115188075855872, 16)"),
    "two dimensions": ({"b": PACKED["b"].reshape(40, 32)}, {}, "B has shape (40, 32), expected (40, 2, 16)"),
    "scales": ({"scales": PACKED["scales"].T}, {}, "scales has shape (2, 40), expected (40, 2) or (80,)"),
    "zero points": ({"zero_points": POINTS.T}, {}, "zero_points has shape (1, 40), expected (40, 1) or (40,)"),
    "order": ({"zero_points": POINTS, "g_idx": BEYOND}, {}, "g_idx has numbers from 2 to 2, expected numbers from 0"),
    "negative": ({"zero_points": POINTS, "g_idx": -BEYOND}, {}, "g_idx has numbers from -2 to -2"),
    "short order": ({"zero_points": POINTS, "g_idx": BEYOND[:9]}, {}, "g_idx has shape (9,), expected (64,)"),
    "empty order": ({"zero_points": POINTS, "g_idx": BEYOND[:0]}, {}, "g_idx has shape (0,), expected (64,)"),
    "type": ({"scales": PACKED["scales"].astype(np.float64)}, {}, "input 2 is float64; supported: float16, float32"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files_are_refused_in_words_and_by_onnxruntime(name):
    arrays, attributes, words = WRONG[name]
    given = {"b": PACKED["b"], "scales": PACKED["scales"], "zero_points": None, "g_idx": None} | arrays
    proto = packed_model(given, **ATTRIBUTES | attributes)
    refused(proto, "MatMulNBits", words)
    if name not in (
        "level",
        "prepacked",
        "order",
        "negative",
        "short order",
        "empty order",
    ):  # which onnxruntime ignores, or reads anyway
        with pytest.raises(Exception, match=r"MatMulNBits|Type Error|Integer overflow"):
            session(proto).run(None, {"a": np.zeros((1, attributes.get("K", 64) % 2**20), np.float32)})
