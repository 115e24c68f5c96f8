"""Constants on which shapes depend: NumPy computes them when a model is loaded, and XLA compiles nothing."""

import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from jax import export

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.compilations import compiled_programs
from jaxdml._quantized import directml
from jaxdml.errors import ModelError
from jaxdml.onnx._table import ROWS

F = np.float32
# Each computes r from f = [0.1, 0.8, 0.3, 0.9] or i = [1, 2, 3, 2]; y has the shape [int(r) + 2].
FLOATS = (
    "Exp", "Log", "Sigmoid", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Atanh",
    "Erf", "Sqrt", "ReduceSum", "ReduceMean", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2",
    "ReduceSumSquare", "ReduceLogSumExp",
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


SHAPED = {
    "p = Pow(s, two) r = Cast<to = 7>(p)": 9,
    "f = Cast<to = 1>(s) e = Exp(f) r = Cast<to = 7>(e)": 20,
    "f = Cast<to = 1>(s) q = QuantizeLinear(f, half) d = DequantizeLinear(q, half) r = Cast<to = 7>(d)": 3,
    """i = Constant<value_int = 0>() n = Gather(s, i) f = Cast<to = 1>(n) q = QuantizeLinear(f, half)
       d = DequantizeLinear(q, half) c = Cast<to = 7>(d) one = Constant<value_ints = [1]>() r = Reshape(c, one)""": 3,
}


@pytest.mark.parametrize("nodes", SHAPED)
def test_sizes_may_be_computed_from_shapes_of_inputs(nodes):
    proto = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 20]> g (float[n] x) => (float[m] y)
        <float half = {{0.5}}, int64 two = {{2}}> {{ s = Shape(x) {nodes} y = ConstantOfShape(r) }}
    """)
    model = dml.onnx.load(proto)
    x = np.zeros(3, F)
    assert model.apply(model.params, x)["y"].shape == (SHAPED[nodes],)
    assert model.values_alone(model.params, {}, x)["y"].shape == (SHAPED[nodes],)


LARGE = {  # the largest count for which NumPy computes r
    "input": (2**16, "n = Constant<value_ints = [{}]>() big = ConstantOfShape(n) r = Erf(big)"),
    "quantized": (2**16, "n = Constant<value_ints = [{}]>() big = ConstantOfShape(n) r = QuantizeLinear(big, half)"),
    "result": (2**15, """n = Constant<value_ints = [{}, 1]>() column = ConstantOfShape(n)
                         m = Constant<value_ints = [1, 2]>() line = ConstantOfShape(m) r = Pow(column, line)"""),
}  # fmt: skip


@pytest.mark.parametrize("case", LARGE)
def test_large_constants_are_computed_by_xla(case, caplog):
    """NumPy would take minutes and gigabytes, for a file of a few hundred bytes."""
    count, nodes = LARGE[case]
    for more in (0, 1):
        with compiled_programs(caplog) as programs:
            dml.onnx.load(sized(nodes.format(count + more)))
        assert bool(programs) == bool(more)


WRONG = {
    "zero point of another type": (
        "u = Cast<to = 2>(i) z = Constant<value = int8 {2}>() r = DequantizeLinear(u, half, z)", "ZeroPointTensor"
    ),
    "more scales than indices": (
        "n = Constant<value_ints = [1, 4]>() m = Reshape(f, n) r = QuantizeLinear<axis = 0>(m, f)", "ScaleTensor"
    ),
    "int32 to int4": ("k = Cast<to = 6>(i) r = QuantizeLinear<output_dtype = 22>(k, half)", "InputTensor"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_constants_are_checked(case):
    nodes, text = WRONG[case]
    with pytest.raises(ModelError, match=text):
        dml.onnx.load(sized(nodes))


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
    assert folding.keys() - {"Pow", "QuantizeLinear", "DequantizeLinear"} == IN_MATH.keys()
    for name, function in IN_MATH.items():
        expected = np.array([function(value) for value in x.tolist()]).astype(dtype)
        assert_same_bits(folding[name](x + dtype(1) if name == "Acosh" else x), expected)


POWER = ROWS["", "Pow"][0].operator
INTEGERS = [0, 1, -1, 2, -2, 3, 7, -10, 100, 46341]


def test_powers_of_floats_are_those_of_float64():
    expected = np.power([float(F(1.1)), -2, 0], [0.5, 3, 0]).astype(F)
    assert_same_bits(POWER.in_numpy(F([1.1, -2, 0]), F([0.5, 3, 0])), expected)


@np.errstate(all="ignore")
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("base", [np.int32(INTEGERS), np.int64([*INTEGERS, 3**20])], ids=["int32", "int64"])
def test_powers_of_integers_are_those_of_jax(base, dtype):
    exponents = np.array([[2], [3], [-1], [0], [64], [0.5]], dtype)
    with jax.enable_x64(True):
        expected = jax.jit(POWER.function)(base, exponents)
    assert_same_bits(POWER.in_numpy(base, exponents), expected)


@np.errstate(all="ignore")
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8], ids=lambda dtype: dtype.__name__)
def test_powers_of_integers_are_exact_modulo_two_to_the_bits(dtype):
    base, bits = np.array(INTEGERS).astype(dtype), np.dtype(dtype).itemsize * 8
    exponents = np.int32([[0], [1], [2], [31], [39], [63], [64], [65], [128], [1001], [2**31 - 1]])
    expected = [[pow(int(each), int(exponent), 2**bits) for each in base] for exponent in exponents[:, 0]]
    expected = np.array(expected, np.uint64).astype(dtype)
    for kind in (np.int32, np.int64, np.uint64):
        assert_same_bits(POWER.in_numpy(base, exponents.astype(kind)), expected)
    with jax.enable_x64(True):
        assert_same_bits(jax.jit(POWER.function)(base, exponents), expected)


def test_negative_powers_of_integers_are_truncated():
    for dtype, one in ((np.int32, -1), (np.uint8, 1)):
        base = np.array([0, 1, one, 2, 3]).astype(dtype)
        for power in (POWER.in_numpy, jax.jit(POWER.function)):
            assert_same_bits(power(base, np.int32(-3)), np.array([0, 1, one, 0, 0]).astype(dtype))


REDUCED = {
    "ReduceSum": lambda x: x.sum(1), "ReduceMean": lambda x: x.mean(1), "ReduceProd": lambda x: x.prod(1),
    "ReduceL1": lambda x: abs(x).sum(1), "ReduceL2": lambda x: np.sqrt((x * x).sum(1)),
    "ReduceSumSquare": lambda x: (x * x).sum(1), "ReduceMax": lambda x: x.max(1), "ReduceMin": lambda x: x.min(1),
    "ReduceLogSum": lambda x: np.log(x.sum(1)),
    "ReduceLogSumExp": lambda x: np.log(np.exp(x.astype(np.float64)).sum(1)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [F, np.float16, ml_dtypes.bfloat16, np.int64], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("name", REDUCED)
def test_reductions_are_rounded_once(name, dtype):
    """float32 computes all but roots and logarithms of these elements exactly; 16-bit floats are reduced as float32."""
    rng = np.random.default_rng(5)
    x = (np.hstack([-rng.integers(1, 9, (64, 1)), rng.integers(9, 64, (64, 3))]) / 8).astype(dtype)
    expected = REDUCED[name](x.astype(F)).astype(dtype)
    assert_same_bits(ROWS["", name][-1].operator.function(x, np.int64([1]), keepdims=0), expected)


EDGES = {  # operator: x, the divisor or the axes, and the result
    "Div": ([[5, -5, 0, 7]], [[0, 0, 0, -2]], [[0, 0, 0, -3]]), "ReduceMean": (np.zeros((2, 0)), [1], [0, 0]),
    "ReduceLogSum": ([[0, 0], [-1, 0], [9, 0]], [1], ["least", 0, 2]),
    "ReduceLogSumExp": ([[3, 5], [1, 1], [-4, -24]], [1], [5, 1, -4]),
    "ReduceL2": ([[3, 4], [50, 0]], [1], [5, 50]), "Mod": ([[5, -5, 0, 7]], [[0, 0, 0, -2]], [[0, 0, 0, -1]]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int32, np.int64], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("name", EDGES)
def test_integers_at_the_edges_are_the_same_known_and_traced(name, dtype):
    """Quotients and means by 0, and logarithms: of 0, of negative numbers, and one that is whole in float32 alone."""
    x, other, expected = EDGES[name]
    expected = np.array([np.iinfo(dtype).min if each == "least" else each for each in np.ravel(expected)]).astype(dtype)
    x, other = np.asarray(x, dtype), np.asarray(other, dtype if name in ("Div", "Mod") else np.int64)
    operator = ROWS["", name][-1].operator
    with jax.enable_x64(True), np.errstate(all="ignore"):
        if operator.known:
            found = [operator.function(each, other) for each in (x, jnp.asarray(x))]
        else:
            found = [operator.function(x, other), jax.jit(operator.function)(x, other)]
    for each in found:
        assert_same_bits(np.ravel(each), expected)


SCALARS = {"ReduceMax": 3, "ReduceMin": 3, "ReduceSum": 3, "ReduceProd": 3, "ReduceMean": 3, "ReduceSumSquare": 9}


def reduced_size(name):
    return onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 20]> g (float[n] x) => (float[m] y)
        <int64 zero = {{0}}, int64[1] flat = {{-1}}>
        {{ s = Shape(x) i = Gather(s, zero) r = {name}(i) row = Reshape(r, flat) y = ConstantOfShape(row) }}
    """)


@pytest.mark.parametrize("name", SCALARS)
def test_scalars_that_are_symbolic_are_reduced(name):
    model = dml.onnx.load(reduced_size(name))
    size = jax.ShapeDtypeStruct(export.symbolic_shape("n"), F)
    exported = export.export(jax.jit(model.apply))(model.params, size)
    assert exported.call(model.params, np.zeros(3, F))["y"].shape == (SCALARS[name],)


@pytest.mark.parametrize("name", ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"])
def test_symbolic_sizes_have_no_roots(name):
    model = dml.onnx.load(reduced_size(name))
    size = jax.ShapeDtypeStruct(export.symbolic_shape("n"), F)
    text = rf"\({name}\): sizes are symbolic, and have no .*; trace the model with fixed sizes"
    with pytest.raises(ModelError, match=text):
        export.export(jax.jit(model.apply))(model.params, size)
    assert model.apply(model.params, np.zeros(3, F))["y"].ndim == 1


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


LIMITS = np.int32([5, -(2**31), 2**31 - 1, 16777217, -16777219, 0])


def test_int32_is_quantized_and_dequantized_like_in_jax():
    scale = F(2**25)  # where 16777217 is rounded to float32, its quotient is a tie
    known = directml.known_integers(LIMITS, scale, None, axis=0, dtype=np.dtype(np.int8))
    assert_same_bits(known, directml.to_integers(jnp.asarray(LIMITS), scale, None, axis=0, dtype=jnp.int8))
    for zero_point in (None, np.int32(7), np.int32(2**31 - 1)):
        floats = directml.to_floats(jnp.asarray(LIMITS), scale, zero_point, axis=0)
        assert_same_bits(directml.known_floats(LIMITS, scale, zero_point, axis=0), floats)


@np.errstate(all="ignore")
def test_float16_is_quantized_and_dequantized_like_in_jax():
    x, scale = SPECIAL.astype(np.float16), np.float16(0.3)
    known = directml.known_integers(x, scale, np.uint8(9), axis=0, dtype=np.dtype(np.uint8))
    given = jnp.asarray(x), jnp.asarray(scale), jnp.uint8(9)
    assert_same_bits(known, directml.to_integers(*given, axis=0, dtype=jnp.uint8))
    floats = directml.to_floats(jnp.asarray(known), *given[1:], axis=0)
    assert_same_bits(directml.known_floats(known, scale, np.uint8(9), axis=0), floats)
