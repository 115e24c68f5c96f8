"""Operators that move elements: known and traced values agree, sizes may be symbolic, Resize is onnxruntime's."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest
from jax import export
from onnx import TensorProto, helper, numpy_helper

import jaxdml.onnx
from helpers.compare import assert_same_bits, assert_same_values
from helpers.marks import rest_rarely
from helpers.one_node import run
from jaxdml.errors import ModelError
from jaxdml.onnx._operators import casts, elementwise, generators, indexing, joining, reductions, resize, shapes


def model_of(nodes, inputs, outputs, opset=19, **constants):
    """A model; its inputs and outputs are names of float32 values of open shapes, or declared ones."""

    def declared(values):
        return [
            helper.make_tensor_value_info(value, TensorProto.FLOAT, None) if isinstance(value, str) else value
            for value in values
        ]

    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "graph", declared(inputs), declared(outputs), initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
I64 = np.int64
CALLS = {
    "reshape": (shapes.reshape, (X, np.array([0, -1], I64)), {}),
    "flatten": (shapes.flatten, (X,), {"axis": -1}),
    "squeeze": (shapes.squeeze, (X[:, :1], np.array([-2], I64)), {}),
    "squeeze all": (shapes.squeeze, (X[:1, :, :1],), {}),
    "unsqueeze": (shapes.unsqueeze, (X, np.array([0, -1], I64)), {}),
    "transpose": (shapes.transpose, (X,), {"perm": (2, 0, 1)}),
    "expand": (shapes.expand, (X[:, :1], np.array([5, 1, 3, 1], I64)), {}),
    "tile": (shapes.tile, (X, np.array([1, 2, 3], I64)), {}),
    "concat": (joining.concat, (X, X + 1), {"axis": -2}),
    "split": (joining.split_by_count, (X,), {"output_count": 2, "num_outputs": 2, "axis": 1}),
    "pad": (joining.pad, (X, np.array([1, -1, 2, 0], I64), np.float32(7).reshape(1), np.array([0, 2], I64)), {}),
    "reflect": (joining.pad, (X, np.array([0, 1, 2, 0, -1, 1], I64)), {"mode": "reflect"}),
    "edge": (joining.pad, (X, np.array([0, 1, 2, 0, 1, 1], I64)), {"mode": "edge"}),
    "wrap": (joining.pad, (X, np.array([0, 1, 2, 0, 1, 1], I64)), {"mode": "wrap"}),
    "slice": (indexing.sliced, (X, *(np.array(v, I64) for v in ([-1, 5], [-(2**63), 1], [2, 1], [-2, -1]))), {}),
    "gather": (indexing.gather, (X, np.array([[-1, 0], [2, -3]])), {"axis": 1}),
    "gather elements": (indexing.gather_elements, (X, np.array([[[-1], [0]]])), {"axis": -1}),
    "gather nd": (indexing.gather_nd, (X, np.array([[-1, 0], [2, -3]])), {"batch_dims": 1}),
    "scatter": (indexing.scatter_elements, (X, np.array([[[-1], [0]]]), X[:1, :2, :1] - 9), {"axis": 2}),
    "scatter nd": (indexing.scatter_nd, (X, np.array([[-1], [-1]]), X), {"reduction": "add"}),
    "scatter nd max": (indexing.scatter_nd, (X, np.array([[-1], [-1]]), 30 - X), {"reduction": "max"}),
    "where": (indexing.where, (X[0] > 3, X, np.float32(7).reshape(())), {}),
    "compress": (indexing.compress, (X, np.array([True, False, True])), {"axis": 1}),
    "multiply": (elementwise.multiply, (X, X), {}),
    "one hot": (generators.one_hot, (np.array([[0, -1], [5, 2]]), np.array(3), np.float32([2, 9])), {"axis": 1}),
    "trilu": (generators.trilu, (X, np.array(-1, I64)), {"upper": 0}),
    "eye": (generators.eye_like, (X[0],), {"k": -1}),
    "depth to space": (shapes.depth_to_space, (X.reshape(1, 12, 1, 2),), {"blocksize": 2, "mode": "CRD"}),
    "space to depth": (shapes.space_to_depth, (X.reshape(1, 1, 4, 6),), {"blocksize": 2}),
}  # fmt: skip


@pytest.mark.sampled(15)
@pytest.mark.parametrize("name", CALLS)
def test_traced_equals_known(name, x64):
    function, arguments, options = CALLS[name]
    known = function(*arguments, **options)
    first, *others = arguments
    traced = jax.jit(lambda x: function(x, *others, **options))(first)
    jax.tree.map(assert_same_values, traced, known)
    assert all(isinstance(array, np.ndarray) for array in jax.tree.leaves(known))


FLOATS = np.array([0, -0.0, 1.99, -1.99, 7.5, -8.5, 300, -300, 1e10, -1e10, np.inf, -np.inf, np.nan], np.float32)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("to", [2, 3, 4, 5, 6, 7, 9, 10, 12, 13, 16, 21, 22])
@pytest.mark.parametrize("of", [np.float32, np.float16, np.int16])
def test_known_and_traced_numbers_are_cast_alike(of, to):
    with np.errstate(over="ignore"):
        x = FLOATS.astype(of) if of != np.int16 else np.array([0, 1, -1, 127, 128, 255, 256, -129, 32767], of)
    with jax.enable_x64(True):
        options = casts._options(to=to)
        known = casts.cast(x, **options)
        traced = jax.jit(lambda x: casts.cast(x, **options))(x)
    assert known.dtype == traced.dtype
    assert_same_bits(known.astype(np.float64), np.asarray(traced).astype(np.float64))


@pytest.mark.parametrize("to", [TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT16, TensorProto.INT16])
def test_narrow_integers_take_the_lower_bits_as_in_onnxruntime(to):
    x = np.random.default_rng(0).uniform(-(2.0**31), 2.0**31, 1000).astype(np.float32)
    x = np.concatenate([x, x / 2.0**16, x / 2.0**23])
    declared = helper.make_tensor_value_info("y", to, None)
    model = model_of([helper.make_node("Cast", ["x"], ["y"], to=to)], ["x"], [declared]).SerializeToString()
    expected = onnxruntime.InferenceSession(model).run(None, {"x": x})[0]
    assert_same_bits(casts.cast(x, dtype=expected.dtype), expected)


def test_a_cast_to_half_and_back_rounds():
    x = np.array([1.0001, 3.14159], np.float32)
    half, single = (casts._options(to=to) for to in (10, 1))
    there_and_back = jax.jit(lambda x: casts.cast(casts.cast(x, **half), **single))(x)
    assert_same_bits(there_and_back, x.astype(np.float16).astype(np.float32))


def test_shapes_are_computed_from_symbolic_sizes(x64):
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"]),
        helper.make_node("Unsqueeze", ["batch", "axes"], ["batches"]),
        helper.make_node("Concat", ["batches", "minus_one"], ["rows"], axis=0),
        helper.make_node("Reshape", ["x", "rows"], ["flat"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Range", ["zero", "batch", "one"], ["range"]),
        helper.make_node("Cast", ["batch"], ["count"], to=TensorProto.FLOAT),
        helper.make_node("Slice", ["shape", "one_", "far"], ["tail"]),
        helper.make_node("Expand", ["row", "shape"], ["rows_of"]),
    ]
    integers = [helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in ("range", "tail")]
    known = {"zero": 0, "one": 1, "axes": [0], "minus_one": [-1], "one_": [1], "far": [2**63 - 1]}
    row = np.arange(4, dtype=np.float32)
    model = jaxdml.onnx.load(
        model_of(
            nodes,
            ["x"],
            ["flat", "zeros", "count", "rows_of", *integers],
            row=row,
            **{name: np.array(value, np.int64) for name, value in known.items()},
        )
    )
    symbolic = jax.ShapeDtypeStruct(export.symbolic_shape("b, 3, 4"), jnp.float32)
    exported = export.export(jax.jit(lambda x: model.apply(model.params, x)))(symbolic)
    x = np.arange(60, dtype=np.float32).reshape(5, 3, 4)
    for outputs in (exported.call(x), model.apply(model.params, x)):
        assert_same_bits(outputs["flat"], x.reshape(5, 12))
        assert_same_bits(outputs["zeros"], np.zeros_like(x))
        assert_same_values(outputs["range"], np.arange(5))
        assert_same_values(outputs["tail"], [3, 4])
        assert_same_bits(outputs["count"], np.float32(5))
        assert_same_bits(outputs["rows_of"], np.broadcast_to(row, (5, 3, 4)))


HUGE = np.array([2**20, 2**20], np.int64)
TOO_LARGE = {
    "constant": (generators.constant_of_shape, (HUGE,), {}),
    "expand": (shapes.expand, (np.zeros((1, 1), np.float32), HUGE), {}),
    "tile": (shapes.tile, (np.zeros((1, 1), np.float32), HUGE), {}),
    "pad": (joining.pad, (np.zeros((1, 1), np.float32), np.array([0, 0, 2**20, 2**20])), {}),
    "range": (generators.arange, (np.array(0), np.array(2**40), np.array(1)), {}),
    "one hot": (generators.one_hot, (np.array([0]), np.array(2**40), np.array([0, 1])), {}),
    "resize": (
        resize.resize,
        (np.zeros((1, 1), np.float32), None, None, HUGE),
        {"coordinates": "asymmetric", "rounding": "floor"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_few_numbers_make_no_huge_tensor(name):
    function, arguments, options = TOO_LARGE[name]
    with pytest.raises(ModelError, match="limit"):
        function(*arguments, **options)


COORDINATES = (
    "half_pixel", "asymmetric", "align_corners", "tf_crop_and_resize", "pytorch_half_pixel", "half_pixel_symmetric",
    "tf_half_pixel_for_nn",
)  # fmt: skip
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
SIZES = [(1, 7), (7, 1), (7, 18), (5, 12), (28, 4), (9, 9), (23, 7), (2, 37), (17, 34), (30, 23)]


@pytest.mark.parametrize("modes", rest_rarely(itertools.product(COORDINATES, ROUNDINGS), 2), ids="-".join)
def test_resize_takes_the_pixels_that_onnxruntime_takes(modes):
    coordinates, rounding = modes
    options = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding, "extrapolation_value": 7.0}
    session_options = onnxruntime.SessionOptions()
    session_options.log_severity_level = 3
    for (height, taller), (wider, width) in itertools.product(SIZES, SIZES):
        x = np.arange(height * width, dtype=np.float32).reshape(1, 1, height, width)
        roi = np.array([0, 0, 0.1, 0.2, 1, 1, 1.1, 0.8], np.float32)
        sizes = np.array([1, 1, taller, wider], np.int64)
        node = helper.make_node("Resize", ["x", "roi", "", "sizes"], ["y"], **options)
        model = model_of([node], ["x"], ["y"], roi=roi, sizes=sizes)
        session = onnxruntime.InferenceSession(model.SerializeToString(), session_options)
        # Known arrays: NumPy computes, and nothing is compiled.
        crop = coordinates == "tf_crop_and_resize"
        how = {"coordinates": coordinates, "rounding": rounding, "extrapolates": crop, "extrapolation_value": 7.0}
        own = resize.resize(x, roi, None, sizes, **how)
        assert_same_bits(own, session.run(None, {"x": x})[0])


def test_a_shape_may_be_dequantized():
    """onnxruntime's quantizer also quantizes the arithmetic of shapes. Weights whose shape is read stay integers."""
    nodes = [
        helper.make_node("DequantizeLinear", ["steps", "scale", "zero"], ["sizes"]),
        helper.make_node("Mul", ["sizes", "two"], ["twice"]),
        helper.make_node("Cast", ["twice"], ["shape"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["x", "shape"], ["matrix"]),
        helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["weights"]),
        helper.make_node("Shape", ["weights"], ["shape_of_w"]),
        helper.make_node("Expand", ["matrix", "shape_of_w"], ["wide"]),
        helper.make_node("MatMul", ["wide", "weights"], ["y"]),
    ]
    w = np.arange(36, dtype=np.uint8).reshape(6, 6)
    constants = {"steps": np.uint8([6, 1]), "scale": np.float32(0.5), "zero": np.uint8(0), "two": np.float32(2)}
    model = jaxdml.onnx.load(model_of(nodes, ["x"], ["y"], w=w, **constants))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (y,) = model.apply(model.params, x).values()
    assert_same_values(y, np.broadcast_to(x.reshape(6, 1), (6, 6)) @ (w * np.float32(0.5)))
    assert {leaf.dtype for leaf in jax.tree.leaves(model.params)} >= {np.dtype(np.uint8)}


def reshaped(*sizes):
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    model = jaxdml.onnx.load(model_of([node], ["x"], ["y"], shape=np.array(sizes, I64)))
    (y,) = model.apply(model.params, np.zeros((0, 4), np.float32)).values()
    return y.shape


def test_data_without_elements():
    assert [reshaped(-1, 4), reshaped(4, -1), reshaped(3, -1)] == [(0, 4), (4, 0), (3, 0)]
    with pytest.raises(ModelError, match=r"shape \(0, -1\) has a 0 and a -1, so that any size would do for the -1"):
        reshaped(0, -1)


@pytest.mark.parametrize("largest", [0, 1])
def test_top_k_orders_equal_numbers_by_their_index(largest):
    x = np.float32([0, -0.0, 2, np.inf, -0.0, 2, -np.inf, 0, np.nan, np.inf])
    theirs = run("TopK", [x, np.int64([10])], ["float32", "int64"], largest=largest)
    for ours, expected in zip(reductions.top_k(x, np.int64([10]), largest=largest), theirs, strict=True):
        assert_same_values(ours, expected.astype(ours.dtype))
