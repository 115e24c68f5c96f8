"""Resize by linear interpolation: the bits of onnxruntime, and values close to those of onnx's own evaluator."""

import itertools

import jax
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import jaxdml.onnx
from helpers.compare import assert_same_bits
from helpers.hostile_models import refused
from helpers.marks import rest_rarely
from jaxdml.onnx._operators.interpolation import interpolate
from jaxdml.onnx._operators.resize import resize

CROP = "tf_crop_and_resize"
COORDINATES = (
    "half_pixel", "align_corners", CROP, "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric",
    "tf_half_pixel_for_nn",
)  # fmt: skip
TYPES = {
    "float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "uint8": TensorProto.UINT8, "int8": TensorProto.INT8,
    "float64": TensorProto.DOUBLE, "int32": TensorProto.INT32,
}  # fmt: skip
# The dimensions that onnxruntime resizes in arrays of each rank.
PLACES = {
    "two of two": (2, (0, 1)), "first": (4, (2, 3)), "last": (4, (1, 2)), "three": (3, (0, 1, 2)),
    "volume": (5, (2, 3, 4)),
}  # fmt: skip


def model_of(dtype, sizes=None, scales=None, coordinates="half_pixel", roi=None, opset=19, **attributes):
    """A model of one Resize."""
    values = {"roi": roi, "scales": scales, "sizes": sizes}
    types = {"roi": np.float32, "scales": np.float32, "sizes": np.int64}
    initializers = [
        numpy_helper.from_array(np.array(value, types[name]), name)
        for name, value in values.items()
        if value is not None
    ]
    inputs = ["x", *("" if values[name] is None else name for name in values)]
    options = {
        "coordinate_transformation_mode": coordinates,
        "mode": "linear",
        "extrapolation_value": 7.0,
        **attributes,
    }
    if opset == 10:
        inputs, options = ["x", "scales"], {"mode": "linear"}
    node = helper.make_node("Resize", inputs, ["y"], **options)
    declared = (helper.make_tensor_value_info(name, TYPES[str(dtype)], None) for name in "xy")
    graph = helper.make_graph([node], "graph", *([each] for each in declared), initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def by_onnxruntime(proto, x):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def some(shape, dtype, seed=0):
    random = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.floating):
        return (random.standard_normal(shape) * 8).astype(dtype)
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)


def region(rank, places):
    """A region: bytes and floats take its values from inside the array, floats also from outside."""
    starts, ends = np.zeros(rank), np.ones(rank)
    starts[list(places)], ends[list(places)] = 0.125, 0.75
    return [*starts, *ends]


def sizes_of(shape, places, sizes):
    resized = list(shape)
    for place, size in zip(places, sizes, strict=False):
        resized[place] = size
    return resized


CASES = list(itertools.product(COORDINATES, ("float32", "float16", "uint8", "int8"), PLACES))
QUICK = [
    ("half_pixel", "float32", "first"), ("align_corners", "float32", "volume"), (CROP, "float32", "last"),
    ("half_pixel", "uint8", "first"), ("half_pixel", "int8", "last"), ("asymmetric", "float16", "first"),
]  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", rest_rarely(dict.fromkeys([*QUICK, *CASES]), len(QUICK)), ids="-".join)
def test_bits_are_those_of_onnxruntime(case):
    coordinates, dtype, where = case
    rank, places = PLACES[where]
    for lengths, sizes in (((5, 7, 3), (11, 4, 7)), ((4, 3, 6), (9, 12, 13)), ((9, 8, 5), (1, 3, 2))):
        shape = sizes_of([2] * rank, places, lengths)
        x, resized = some(shape, dtype), sizes_of(shape, places, sizes)
        roi = region(rank, places) if coordinates == CROP else None
        proto = model_of(dtype, resized, coordinates=coordinates, roi=roi)
        expected = by_onnxruntime(proto, x)
        model = jaxdml.onnx.load(proto)
        assert_same_bits(model.apply(model.params, x)["y"], expected)
        known = interpolate(
            x, None if roi is None else np.float32(roi), None, np.array(resized), coordinates=coordinates,
            extrapolates=coordinates == CROP,
        )  # fmt: skip
        assert isinstance(known, np.ndarray)
        assert_same_bits(known, expected)


@pytest.mark.rare
@pytest.mark.parametrize("coordinates", rest_rarely(COORDINATES[:-1], 1))
def test_results_are_near_those_of_the_evaluator_of_onnx(coordinates):
    """The evaluator computes in float64, one dimension after the other; it does not support tf_half_pixel_for_nn."""
    for rank, places in ((1, (0,)), (3, (2,)), (4, (2, 3)), (5, (2, 3, 4)), (6, (1, 4, 5))):
        shape = sizes_of([2] * rank, places, (5, 3, 4))
        x, sizes = some(shape, np.float32), sizes_of(shape, places, (8, 4, 2))
        roi = region(rank, places) if coordinates == CROP else None
        proto = model_of("float32", sizes, coordinates=coordinates, roi=roi)
        expected = ReferenceEvaluator(proto).run(None, {"x": x})[0]
        model = jaxdml.onnx.load(proto, floats="exact")
        assert not model.by_xla
        y = np.asarray(model.apply(model.params, x)["y"])
        assert y.shape == expected.shape
        assert np.abs(y - expected).max() <= 2**-20 * np.abs(x).max()


@pytest.mark.rare
@pytest.mark.parametrize("floats", ["exact", "xla"])
def test_scales_opset_10_policies_and_outside_of_the_region(floats):
    cases = {
        "scales": ((1, 1, 5, 7), {"scales": (1, 1, 1.7, 0.6)}),
        "opset 10": ((1, 1, 5, 7), {"scales": (1, 1, 1.7, 0.6), "opset": 10}),
        "opset 11": ((1, 1, 5, 7), {"scales": (1, 1, 1.7, 2), "opset": 11, "roi": ()}),
        "axes": ((1, 1, 5, 7), {"sizes": (9, 3), "axes": [-2, 3]}),
        "policy": ((1, 1, 5, 7), {"sizes": (9, 3), "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}),
        "outside": (
            (1, 1, 5, 7),
            {"sizes": (1, 1, 9, 8), "coordinates": CROP, "roi": (0, 0, -0.1, 0.2, 1, 1, 1.3, 0.7)},
        ),
        "same shape": ((1, 1, 5, 7), {"scales": (1, 1, 1.1, 1.1)}),
        "infinite": ((1, 1, 5, 7), {"scales": (1, 1, 3, 3)}),
    }  # fmt: skip
    for name, (shape, options) in cases.items():
        x = some(shape, np.float32)
        if name == "infinite":
            x[0, 0, 2, 3], x[0, 0, 4, 6] = np.inf, np.nan
        proto = model_of("float32", **options)
        model = jaxdml.onnx.load(proto, floats=floats)
        assert_same_bits(model.apply(model.params, x)["y"], by_onnxruntime(proto, x))


def test_a_scale_of_1_takes_no_part():
    """In such a dimension, onnxruntime adds two halves at the last index, which rounds differently there."""
    x = some((2, 2, 5, 7), np.float32)
    proto = model_of("float32", (2, 2, 5, 12))
    model = jaxdml.onnx.load(proto, floats="exact")
    y, expected = np.asarray(model.apply(model.params, x)["y"]), by_onnxruntime(proto, x)
    assert_same_bits(y[:, :, :-1], expected[:, :, :-1])
    assert np.abs(y - expected).max() <= np.spacing(np.abs(expected).max())


@pytest.mark.rare
def test_bits_are_equal_in_batches_eager_and_jitted():
    x = some((3, 2, 5, 7), np.float32)
    model = jaxdml.onnx.load(model_of("float32", scales=(1, 1, 1.7, 2.3)), floats="exact")
    whole = model.apply(model.params, x)["y"]
    assert_same_bits(jax.jit(model.apply)(model.params, x)["y"], whole)
    assert_same_bits(np.concatenate([model.apply(model.params, row[None])["y"] for row in x]), whole)
    with jax.disable_jit():
        assert_same_bits(model.apply(model.params, x)["y"], whole)


QDQ = """
<ir_version: 9, opset_import: ["" : 19]>
graph (float[1, 2, 5, 7] x) => (float[1, 2, 8, 9] y)
<float s = {0.125}, int8 z = {3}, float t = {0.1}, int64[4] sizes = {1, 2, 8, 9}> {
    a = QuantizeLinear(x, s, z)
    b = DequantizeLinear(a, s, z)
    c = Resize<mode = "linear">(b, , , sizes)
    d = QuantizeLinear(c, t, z)
    y = DequantizeLinear(d, t, z)
}
"""


def test_between_quantized_values_it_stays_in_floats():
    proto, x = onnx.parser.parse_model(QDQ), some((1, 2, 5, 7), np.float32)
    model = jaxdml.onnx.load(proto, floats="exact")
    assert "there is no quantized Resize" in str(model)
    assert not model.by_xla
    assert_same_bits(model.apply(model.params, x)["y"], by_onnxruntime(proto, x))


def test_what_is_not_supported_is_said():
    sizes = (1, 1, 9, 9)
    refused(with_shape(model_of("float32", sizes, mode="cubic")), "mode is 'cubic'", "'linear'")
    refused(with_shape(model_of("float32", sizes, mode="nothing")), "mode is 'nothing'")
    refused(with_shape(model_of("float32", sizes, antialias=1)), "antialias is 1")
    refused(with_shape(model_of("float32", sizes, exclude_outside=1)), "exclude_outside is 1")
    refused(
        with_shape(model_of("float32", sizes, coordinates="nothing")), "coordinate_transformation_mode is 'nothing'"
    )
    refused(with_shape(model_of("float32", (9,) * 4)), "4 dimensions are resized", "3")
    refused(with_shape(model_of("int32", sizes)), "int32", "float32")
    outside = model_of("uint8", sizes, coordinates=CROP, roi=(0, 0, 0, 0, 1, 1, 2, 1))
    refused(with_shape(outside), "beyond an image of integers")


def with_shape(proto, shape=(1, 1, 4, 4)):
    for size in shape:
        proto.graph.input[0].type.tensor_type.shape.dim.add(dim_value=size)
    return proto


@pytest.mark.parametrize("function", [interpolate, resize], ids=["linear", "nearest"])
def test_dimensions_that_shrink_go_first(function):
    """Otherwise a result of 2**20 elements would need an intermediate array of 2**44 elements."""
    how = {"coordinates": "half_pixel"} | ({"rounding": "floor"} if function is resize else {})
    y = function(np.ones((1, 2**24), np.uint8), None, None, np.array([2**20, 1]), **how)
    assert y.shape == (2**20, 1)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("scale", [0, -1, np.nan, np.inf])
def test_scales_that_onnxruntime_refuses(scale, mode):
    proto = with_shape(model_of("float32", scales=(1, 1, scale, 2), mode=mode))
    with pytest.raises(Exception, match="Scale value"):
        onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    refused(proto, "resize", f"scales are [1.0, 1.0, {float(scale)}, 2.0], expected finite numbers above 0")


def test_scales_of_another_shape():
    proto = with_shape(model_of("float32", scales=(1, 1, 2, 2), mode="linear"))
    for shape in ((1, 4), (), (3,)):
        scales = numpy_helper.from_array(np.ones(shape, np.float32), "of_another_shape")
        del proto.graph.initializer[:]
        proto.graph.initializer.append(scales)
        proto.graph.node[0].input[2] = "of_another_shape"
        refused(proto, "resize", f"scales have the shape {shape}, expected (4,): one for each axis")


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_types_of_the_region_and_the_scales(mode):
    """They are checked even where the region has no meaning, as in onnxruntime."""
    for place in (1, 2):
        proto = with_shape(model_of("float32", scales=(1, 1, 2, 2), roi=(0,) * 8, mode=mode))
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.uint8), "bytes"))
        proto.graph.node[0].input[place] = "bytes"
        with pytest.raises(Exception, match=r"tensor\(uint8\)"):
            onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        refused(proto, "resize", f"input {place} is uint8; supported", "float32")
