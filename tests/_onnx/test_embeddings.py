"""GatherBlockQuantized and RotaryEmbedding: NumPy's bits, onnxruntime's shapes and numbers, and error messages."""

import jax
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import jaxdml.onnx
from helpers.compare import assert_same_bits
from helpers.hostile_models import constant, model, node, refused
from helpers.marks import rest_rarely

FLOAT, FLOAT16, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
F = np.float32


def session(proto):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


# GatherBlockQuantized ------------------------------------------------------------------------------------------------


def of_few_bits(kind, shape, bits, numbers):
    """A tensor of integers: of 4 bits, or of bytes whose rows hold several of them."""
    if kind != "uint8":
        typed = getattr(TensorProto, kind.upper())
        return lambda name: helper.make_tensor(name, typed, shape, numbers.ravel().tolist())
    each = 8 // bits
    rows = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, -numbers.shape[-1] % each)])
    parts = rows.reshape(*rows.shape[:-1], -1, each) << (bits * np.arange(each))
    return lambda name: constant(parts.sum(-1).astype(np.uint8), name)


class Rows:
    """A random table of numbers in blocks, and indices."""

    def __init__(self, kind, shape, size, bits=4, gather=0, quantize=-1, has_zero_points=True, dtype=F, indices=(2, 3)):
        self.rng = rng = np.random.default_rng(size + bits)
        self.size, self.gather, self.axis = size, gather, quantize % len(shape)
        low, high = (-8, 8) if kind == "int4" else (0, 2**bits)
        blocks = tuple(-(-n // size) if place == self.axis else n for place, n in enumerate(shape))
        self.numbers, self.points = (rng.integers(low, high, of) for of in (shape, blocks))
        self.scales = rng.uniform(0.01, 0.1, blocks).astype(dtype)
        self.indices = rng.integers(-shape[gather], shape[gather], indices)
        constants = [of_few_bits(kind, shape, bits, self.numbers)("data"), constant(self.scales, "scales")]
        names = ["data", "indices", "scales"]
        if has_zero_points:
            constants.append(of_few_bits(kind, blocks, bits, self.points)("points"))
            names.append("points")
        else:
            self.points[:] = 2 ** (bits - 1) if kind == "uint8" else 0
        options = {"bits": bits, "block_size": size, "gather_axis": gather, "quantize_axis": quantize}
        gathered = node("GatherBlockQuantized", names, ["y"], domain="com.microsoft", **options)
        typed = FLOAT if dtype == F else FLOAT16
        given = [("indices", INT64, indices)]
        self.proto = model([gathered], constants, given, [("y", typed, None)], opset=21, ir_version=10)

    @property
    def expected(self):
        block = np.arange(self.numbers.shape[self.axis]) // self.size
        steps = self.numbers - np.take(self.points, block, self.axis)
        scales = np.take(self.scales, block, self.axis)
        table = (steps.astype(F) * scales.astype(F)).astype(scales.dtype)
        return np.take(table, self.indices, self.gather)


TABLES = {
    "4 of 8 bits": ("uint8", (10, 48), 16),
    "no zero points": ("uint8", (10, 64), 32, 4, 0, 1, False),
    "2 of 8 bits": ("uint8", (10, 40), 16, 2),
    "8 bits, ragged": ("uint8", (10, 40), 32, 8),
    "three axes, float16": ("uint8", (5, 3, 32), 16, 4, 0, 2, True, np.float16),
    "uint4, ragged": ("uint4", (10, 20), 16),
    "int4, no zero points": ("int4", (10, 32), 16, 4, 0, 1, False),
    "int4, one axis": ("int4", (40, 6), 16, 4, 0, 0),
    "int4, another axis": ("int4", (32, 10), 16, 4, 1, 0),
    "int4, the middle axis": ("int4", (3, 10, 20), 16, 4, 1, 2),
    "one index": ("uint8", (10, 32), 16, 4, 0, 1, True, F, ()),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", rest_rarely(TABLES, 11))
def test_rows_of_a_quantized_table(name):
    rows = Rows(*TABLES[name])
    made = jaxdml.onnx.load(rows.proto)
    got = made.apply(made.params, rows.indices)["y"]
    assert_same_bits(got, rows.expected)
    assert_same_bits(session(rows.proto).run(None, {"indices": rows.indices})[0], got)


def test_indices_from_the_end_along_the_blocks():
    """The last block is shorter than the others."""
    data = helper.make_tensor("data", TensorProto.INT4, (40, 1), (np.arange(40) % 7).tolist())
    made = [data, constant(np.array([[1], [100]], F), "scales")]
    options = {"block_size": 32, "gather_axis": 0, "quantize_axis": 0}
    gathered = node("GatherBlockQuantized", ["data", "indices", "scales"], ["y"], domain="com.microsoft", **options)
    proto = model([gathered], made, [("indices", INT64, (3,))], [("y", FLOAT, None)], opset=21, ir_version=10)
    loaded = jaxdml.onnx.load(proto)
    indices = np.array([-9, -8, -1])
    assert_same_bits(
        loaded.apply(loaded.params, indices)["y"], loaded.apply(loaded.params, indices + 40)["y"], "from the end"
    )
    assert loaded.apply(loaded.params, indices)["y"][:, 0].tolist() == [31 % 7, 32 % 7 * 100, 39 % 7 * 100]


def table_model(data=(10, 16), scales=(10, 2), points=None, kind=np.uint8, **attributes):
    constants = [constant(np.zeros(data, kind), "data"), constant(np.ones(scales, F), "scales")]
    constants += [] if points is None else [constant(np.zeros(points, kind), "points")]
    names = ["data", "indices", "scales", *["points"] * (points is not None)]
    options = {"block_size": 16} | attributes
    gathered = node("GatherBlockQuantized", names, ["y"], domain="com.microsoft", **options)
    return model([gathered], constants, [("indices", INT64, (2,))], [("y", FLOAT, None)], opset=21, ir_version=10)


WRONG_TABLES = {
    "bits": ({"bits": 3}, "attribute 'bits' is 3; supported: 2, 4, 8"),
    "block size": ({"block_size": 24}, "attribute 'block_size' is 24, expected a power of two of at least 16"),
    "block size of 0": ({"block_size": 0}, "attribute 'block_size' is 0, expected a power of two of at least 16"),
    "axis of bytes": ({"gather_axis": 1}, "gather_axis is 1 and quantize_axis is 1, expected 0 and -1 for uint8 data"),
    "axis of blocks": ({"quantize_axis": 0}, "gather_axis is 0 and quantize_axis is 0, expected 0 and -1 for uint8"),
    "no such axis": ({"quantize_axis": 2}, "axis 2 is not in [-2, 1]"),
    "scales": ({"scales": (10, 1)}, "scales has shape (10, 1), expected (10, 2) for data of shape (10, 16)"),
    "zero points": ({"points": (10, 2)}, "zero_points has shape (10, 2), expected (10, 1) for data of shape (10, 16)"),
    "type": ({"kind": np.int8}, "input 0 is int8; supported: int4, uint4, uint8"),
}


@pytest.mark.parametrize("name", WRONG_TABLES)
def test_wrong_tables_are_refused_in_words_and_by_onnxruntime(name):
    changes, words = WRONG_TABLES[name]
    proto = table_model(**changes)
    refused(proto, "GatherBlockQuantized", words)
    with pytest.raises(Exception, match=r"GatherBlockQuantized|SafeInt|axis"):
        session(proto).run(None, {"indices": np.zeros(2, np.int64)})


def test_integers_of_4_bits_have_4_bits():
    proto = Rows("uint4", (10, 20), 16).proto
    proto.graph.node[0].attribute[0].i = 8
    refused(proto, "bits is 8, expected 4 for data of uint4")


# RotaryEmbedding -----------------------------------------------------------------------------------------------------

BATCH, SEQUENCE, HEADS, SIZE, POSITIONS = 2, 5, 3, 16, 20


class Turns:
    """A random rotation: of [batch, sequence, heads * size], or of [batch, heads, sequence, size]."""

    def __init__(self, rank=3, count=SIZE, places="each", dtype=F, domain="com.microsoft", **attributes):
        rng = np.random.default_rng(count + rank)
        shape = (BATCH, SEQUENCE, HEADS * SIZE) if rank == 3 else (BATCH, HEADS, SEQUENCE, SIZE)
        self.rank, self.count, self.is_interleaved = rank, count, attributes.get("interleaved", 0)
        rows = (BATCH, SEQUENCE) if places == "none" else (POSITIONS,)
        x, cos, sin = (rng.normal(size=of).astype(dtype) for of in (shape, (*rows, count // 2), (*rows, count // 2)))
        self.places = {"each": rng.integers(0, POSITIONS, (BATCH, SEQUENCE)), "first": np.array([3]), "none": None}[
            places
        ]
        self.given = {"x": x, "places": self.places, "cos": cos, "sin": sin}
        names = ["x", "cos", "sin", "places"] if domain == "" else ["x", "places", "cos", "sin"]
        names = [name for name in names if self.given[name] is not None]
        self.given = {name: self.given[name] for name in names}
        kinds = {np.dtype(F): FLOAT, np.dtype(np.float16): FLOAT16, np.dtype(np.int64): INT64}
        typed = [(name, kinds[self.given[name].dtype], self.given[name].shape) for name in names]
        turned = node("RotaryEmbedding", names, ["y"], domain=domain, **attributes)
        self.proto = model([turned], (), typed, [("y", kinds[np.dtype(dtype)], None)], opset=23, ir_version=10)

    @property
    def expected(self):
        x = self.given["x"]
        heads = x.reshape(BATCH, SEQUENCE, HEADS, SIZE) if self.rank == 3 else x.swapaxes(1, 2)
        cos, sin = self.given["cos"], self.given["sin"]
        if self.places is not None:
            places = self.places if self.places.ndim == 2 else self.places + np.arange(SEQUENCE)
            cos, sin = (np.broadcast_to(each[places], (BATCH, SEQUENCE, self.count // 2)) for each in (cos, sin))
        y, half = heads.astype(F), self.count // 2
        places = (
            (slice(0, self.count, 2), slice(1, self.count, 2))
            if self.is_interleaved
            else (slice(half), slice(half, self.count))
        )
        one, other = (heads[..., place].astype(F) for place in places)
        cos, sin = (each.astype(F)[:, :, None] for each in (cos, sin))
        y[..., places[0]], y[..., places[1]] = one * cos - other * sin, one * sin + other * cos
        y = y.astype(x.dtype)
        return y.reshape(x.shape) if self.rank == 3 else y.swapaxes(1, 2)


PARTLY = {"count": 8, "rotary_embedding_dim": 8, "num_heads": HEADS}
TURNS = {
    "each": {},
    "interleaved": {"interleaved": 1},
    "one position": {"places": "first", "rank": 4, "interleaved": 1},
    "a part": PARTLY,
    "a part of four axes": PARTLY | {"rank": 4},
    "float16": {"dtype": np.float16},
    "ONNX": {"domain": "", "num_heads": HEADS},
    "ONNX, no positions": {"domain": "", "rank": 4, "places": "none"},
    "ONNX, interleaved": {"domain": "", "num_heads": HEADS, "interleaved": 1, "places": "none"},
    "ONNX, a part": PARTLY | {"domain": ""},
    "ONNX, float16": {"domain": "", "rank": 4, "dtype": np.float16},
}


@pytest.mark.rare
def test_rotations():
    turns = {name: Turns(**options) for name, options in TURNS.items()}
    made = {name: jaxdml.onnx.load(each.proto) for name, each in turns.items()}
    # One program: compiling each on its own would take most of the time.
    outputs = jax.jit(lambda given: {name: each.apply(each.params, **given[name])["y"] for name, each in made.items()})(
        {name: each.given for name, each in turns.items()}
    )
    for name, each in turns.items():
        assert_same_bits(outputs[name], each.expected, name)
        theirs = session(each.proto).run(None, each.given)[0]
        assert theirs.dtype == outputs[name].dtype
        np.testing.assert_allclose(outputs[name], theirs, atol=1e-6, err_msg=name)  # onnxruntime fuses multiply-adds


WRONG_TURNS = {
    "part without heads": ({"count": 8, "rotary_embedding_dim": 8}, "num_heads is None, expected a divisor of 48"),
    "no divisor": ({"num_heads": 5}, "num_heads is 5, expected a divisor of 48, the last dimension of x"),
    "negative": ({"num_heads": -3}, "num_heads is -3, expected a divisor of 48, the last dimension of x"),
    "other caches": ({"num_heads": 4}, "cosines and sines have shapes (2, 5, 8) and (2, 5, 8), expected (2, 5, 6)"),
    "odd": (PARTLY | {"rotary_embedding_dim": 7}, "rotary_embedding_dim is 7, expected an even number from 2 to 16"),
    "too much": (
        PARTLY | {"rotary_embedding_dim": 18},
        "rotary_embedding_dim is 18, expected an even number from 2 to 16",
    ),
    "one position of ONNX": (
        {"domain": "", "num_heads": 3, "places": "first"},
        "(1, 8) and (1, 8), expected (2, 5, 8)",
    ),
    "scale": ({"scale": 2.0}, "attribute 'scale' or 'is_packed_batching' is set, which is not supported"),
    "packed": ({"is_packed_batching": 1}, "attribute 'scale' or 'is_packed_batching' is set"),
}


@pytest.mark.parametrize("name", WRONG_TURNS)
def test_wrong_rotations_are_refused_in_words_and_by_onnxruntime(name):
    changes, words = WRONG_TURNS[name]
    turns = Turns(**changes)
    refused(turns.proto, "RotaryEmbedding", words)
    if name not in ("scale", "packed", "negative"):  # which onnxruntime accepts
        with pytest.raises(Exception, match=r"RotaryEmbedding|num_heads|cos_cache|rotary_embedding_dim"):
            session(turns.proto).run(None, turns.given)
