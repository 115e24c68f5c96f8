"""Models that quantize to int8 and to uint8, as NNCF writes them, run on integers of one type."""

from functools import partial

import numpy as np
import onnxruntime
import pytest

import jaxdml.onnx
from helpers.compare import assert_same_bits
from helpers.qdq_builder import Builder, Grid

S8, U8 = Grid("s8", 0.05, 0), Grid("u8", 0.04, 3)
X = np.random.default_rng(0).normal(size=(1, 4, 3, 3)).astype(np.float32)


def mixed(first, middle, last, shown=()):
    """Convolutions between three grids, and a sum of two of them; the integers of the `shown` ones are outputs, too."""
    build = Builder()
    weights = [build.dequantize(build.drawn((4, 4, 1, 1), "s8"), Grid("s8", 0.01, 0)) for _ in range(2)]

    def pair(name, value, grid):
        integers = build.quantize(value, grid)
        if name in shown:
            build.output(integers, grid.dtype)
        return build.dequantize(integers, grid)

    a = pair("first", build.input(X.shape), first)
    b = pair("middle", build.node("Conv", a, weights[0]), middle)
    c = pair("last", build.node("Conv", b, weights[1]), last)
    build.output(build.pair(build.node("Add", c, a), middle))
    return build.model()


def residual(blocks, before, after):
    """A residual network of 1 + 2 * blocks convolutions, with the grid `after` behind relu and `before` elsewhere."""
    build = Builder()

    def convolved(value, size, outputs=4):
        weights = build.drawn((outputs, 4, size, size), "s8")
        scales = Grid("s8", np.linspace(0.004, 0.006, outputs, dtype=np.float32), np.zeros(outputs, np.int8), axis=0)
        return build.node("Conv", value, build.dequantize(weights, scales), pads=[size // 2] * 4)

    def activated(value):
        return build.pair(build.node("Relu", value), after)

    x = activated(convolved(build.pair(build.input(X.shape), before), 3))
    for _ in range(blocks):
        branch = build.pair(convolved(activated(convolved(x, 3)), 3), before)
        x = activated(build.node("Add", branch, x))
    build.output(x)
    return build.model()


def unsigned(grid):
    return grid if grid.dtype == "u8" else grid.but(dtype="u8", zero_point=(grid.zero_point or 0) + 128)


def computed(*grids, make=mixed, **options):
    """The model, after its outputs were compared with onnxruntime's for the same model in uint8 only."""
    loaded = jaxdml.onnx.load(make(*grids, **options), numerics="onnxruntime")
    alone = make(*map(unsigned, grids), **options)
    session = onnxruntime.InferenceSession(alone.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {session.get_inputs()[0].name: X})
    for value, other in zip(loaded.apply(loaded.params, X).values(), expected, strict=True):
        value = np.asarray(value)
        assert_same_bits(value if value.dtype != np.int8 else (value.astype(np.int16) + 128).astype(np.uint8), other)
    return loaded


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "grids", [(S8, U8, S8), (U8, S8, U8), (S8, S8, U8), (U8, S8.but(zero_point=-7), S8.but(scale=0.03))]
)
def test_all_of_them_run_on_integers(grids):
    model = computed(*grids)
    assert [name for name in model.operators if name.startswith("QLinear")] == ["QLinearConv"] * 2 + ["QLinearAdd"]
    assert "2 of 2 convolutions and products" in str(model)


@pytest.mark.rare
def test_a_residual_network_of_nncf_runs_on_integers():
    """NNCF quantizes to uint8 behind relu, and to int8 elsewhere."""
    model = computed(S8, U8.but(zero_point=0), make=partial(residual, 10))
    assert "21 of 21 convolutions and products" in str(model)
    assert model.operators.count("QLinearAdd") == 10


def test_integers_that_go_out_keep_their_type():
    assert "2 of 2 convolutions and products" in str(computed(S8, U8, S8, shown=["middle"]))
    model = jaxdml.onnx.load(mixed(S8, U8, S8, shown=["last"]))
    assert {tensor.dtype.name for tensor in model.outputs} == {"int8", "float32"}
    assert "1 of 2 convolutions and products" in str(model)
    assert "its result is quantized to int8, but an input is uint8" in str(model)


def test_no_value_has_another_type_than_in_the_file():
    """A QuantizeLinear that is not fused with an operator gives its integers under another name."""
    build = Builder()
    x = build.pair(build.input((2, 4)), S8)
    build.output(build.pair(build.node("Abs", x), U8))
    proto = build.model()
    model = jaxdml.onnx.load(proto)
    first = next(node.output[0] for node in proto.graph.node if node.op_type == "QuantizeLinear")
    assert first not in model.value_names
    name = f"{first}:unsigned"
    assert model.values(model.params, name, np.zeros((2, 4), np.float32))[name].dtype == np.uint8


def test_integers_of_one_type_stay():
    model = jaxdml.onnx.load(mixed(S8, S8, S8))
    values = model.values(model.params, model.value_names, X)
    assert {value.dtype.name for value in values.values()} == {"float32", "int8"}


def test_weights_that_the_file_quantizes_stay_int8():
    build = Builder()
    x = build.pair(build.input((2, 4)), U8)
    w = build.pair(build.drawn((4, 3)), Grid("s8", 0.01, 0))
    build.output(build.pair(build.node("MatMul", x, w), U8))
    model = jaxdml.onnx.load(build.model())
    assert "1 of 1 convolutions and products" in str(model)
    assert [value.dtype for name, value in model.params.items() if name.endswith(":prepared")] == [np.int8]
