"""Constants on which shapes depend: NumPy computes them when a model is loaded, and XLA compiles nothing."""

import math

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx.parser
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.compilations import compiled_programs
from jaxdml._quantized import directml
from jaxdml.onnx._table import ROWS

F = np.float32
# Each computes r from f = [0.1, 0.8, 0.3, 0.9] or i = [1, 2, 3, 2]; y has the shape [int(r) + 2].
FLOATS = (
    "Exp", "Log", "Sigmoid", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Atanh",
    "Erf", "Sqrt", "ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2",
    "ReduceSumSquare",
)  # fmt: skip
NODES = [f"r = {name}(f)" for name in FLOATS] + [
    "r = Pow(f, half)", "r = Pow(f, i)", "r = Pow(i, half)", "r = Pow(i, i)", "r = CumSum(f, axis)",
    "r = ReduceMean(i)", "r = ReduceL2(i)", "g = Add(f, half) r = Acosh(g)", "g = ReduceSum(f) r = ReduceLogSum(g)",
    "q = QuantizeLinear(f, half) r = DequantizeLinear(q, half)", "r = Exp(h)", "r = ReduceSum(h)",
]  # fmt: skip


def sized(nodes):
    """A model whose output has sizes that the nodes compute."""
    proto = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 20]> g (float x) => (float y)
        <float[4] f = {{0.1, 0.8, 0.3, 0.9}}, float16[2] h = {{14336, 15360}}, int64[4] i = {{1, 2, 3, 2}},
         float half = {{0.5}}, int64 axis = {{0}}, int64[1] first = {{0}}, int64[1] end = {{1}}, int64 two = {{2}},
         int64[1] flat = {{-1}}>
        {{ {nodes} cast = Cast<to = 7>(r) row = Reshape(cast, flat) one = Slice(row, first, end)
           size = Add(one, two) y = Expand(x, size) }}
    """)
    proto.graph.output[0].ClearField("type")
    return proto


@pytest.mark.parametrize("nodes", NODES)
def test_nothing_is_compiled(nodes, caplog):
    proto = sized(nodes)
    with compiled_programs(caplog) as programs:
        model = dml.onnx.load(proto)
    assert programs == []
    assert len(model.operators) == 1  # Expand


def test_sizes_may_pass_through_integers_of_64_bits():
    model = dml.onnx.load(
        sized(
            "big = Constant<value_int = 40>() p = Pow(two, big) d = Constant<value_int = 274877906944>() r = Div(p, d)"
        )
    )
    assert model.apply(model.params, F(1))["y"].shape == (6,)


IN_MATH = {
    "Exp": math.exp, "Log": math.log, "Sin": math.sin, "Cos": math.cos, "Tan": math.tan, "Asin": math.asin,
    "Acos": math.acos, "Atan": math.atan, "Sinh": math.sinh, "Cosh": math.cosh, "Tanh": math.tanh,
    "Asinh": math.asinh, "Acosh": lambda x: math.acosh(1 + x), "Atanh": math.atanh, "Erf": math.erf,
    "Sigmoid": lambda x: 1 / (1 + math.exp(-x)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda dtype: dtype.__name__)
def test_functions_are_rounded_once(dtype):
    x = np.array([0.125, 0.75, 0.3125], dtype)
    folding = {name: row.operator.in_numpy for (_, name), rows in ROWS.items() for row in rows if row.operator.in_numpy}
    assert folding.keys() - {"Pow"} == IN_MATH.keys()
    for name, function in IN_MATH.items():
        expected = np.array([function(value) for value in x.tolist()]).astype(dtype)
        assert_same_bits(folding[name](x + dtype(1) if name == "Acosh" else x), expected)


def test_powers_are_those_of_float64():
    power = ROWS["", "Pow"][0].operator.in_numpy
    assert_same_bits(power(F([1.1, -2, 0]), F([0.5, 3, 0])), np.power([float(F(1.1)), -2, 0], [0.5, 3, 0]).astype(F))
    assert_same_bits(power(np.int32([46341, -3, 2]), F([2, 3, 0.5])), np.int32([2**31 - 1, -27, 1]))
    assert_same_bits(power(np.int64([3, -1, 2, 0]), np.int64([39, -3, -1, 0])), np.int64([3**39, -1, 0, 1]))


TYPES = jnp.uint8, jnp.int8, jnp.uint16, jnp.int16, jnp.uint4, jnp.int4
SPECIAL = F([0, -0.0, 1e-40, -1e-40, np.inf, -np.inf, np.nan, 0.5, 1.5, 2.5, -0.5, 1e30, 3e-38, 7, -7, 100])


@np.errstate(all="ignore")
@pytest.mark.parametrize("block_size", [0, 4, 5])
@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.__name__)
def test_quantize_and_dequantize_have_the_bits_of_jax(dtype, block_size):
    rng = np.random.default_rng(3)
    x = np.stack([SPECIAL, rng.normal(0, 9, 16).astype(F), rng.normal(0, 1e4, 16).astype(F)])
    shape = {0: 16, 4: (3, 4), 5: (3, 4)}[block_size]
    options = {"axis": 1, "block_size": block_size}
    for scale in (rng.uniform(0.1, 2, shape).astype(F), np.full(shape, 1e-39, F)):
        zero_point = rng.integers(0, 8, shape).astype(dtype)
        known = directml.known_integers(x, scale, zero_point, dtype=np.dtype(dtype), **options)
        given = jnp.asarray(x), jnp.asarray(scale), jnp.asarray(zero_point)
        assert_same_bits(known, directml.to_integers(*given, dtype=np.dtype(dtype), **options))
        floats = directml.to_floats(jnp.asarray(known), *given[1:], **options)
        assert_same_bits(directml.known_floats(known, scale, zero_point, **options), floats)
