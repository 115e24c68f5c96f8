"""Cases of the ONNX backend tests, and edge cases of onnxruntime: tests/vectors/*.json, facts from other projects."""

import json
from pathlib import Path

import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.marks import rarely_on_xla
from helpers.modes import as_jax

pytestmark = rarely_on_xla

VECTORS = Path(__file__).parents[1] / "vectors"
# Cases in which neither onnxruntime nor the literal formula is the rule: the results by the rule, and why.
RULED = {
    "dequantize i32 wrap": [-4294967306.0, 4294967284.0, 33554424.0],  # the difference does not wrap
    "add C_scale=0": [0, 0, 255, 255],  # IEEE 754: -inf, NaN, inf, inf; onnxruntime converts inf to the least integer
    "conv bias int32 wraps": [98],  # the accumulator is int32, as onnxruntime has it; the literal formula has no width
}


def cases():
    for file in ("onnx_node.json", "ort_edge.json"):
        for case in json.loads((VECTORS / file).read_text(encoding="utf-8"))["cases"]:
            yield pytest.param(case, id=f"{file.split('_')[0]}-{case['name']}")


def array(tensor):
    with np.errstate(over="ignore"):
        return np.asarray([float(x) if isinstance(x, str) else x for x in tensor["data"]]).astype(
            tensor["dtype"]
        ).reshape(tensor["shape"])  # fmt: skip


def along_axis(case, parameter, x):
    """ONNX puts a 1-D parameter on an axis (1 unless said otherwise), and may repeat each block_size times."""
    if parameter is None or parameter.size == 1:
        return None if parameter is None else parameter.reshape(())
    axis, block = case["attributes"].get("axis", 1), case["attributes"].get("block_size")
    if block:
        return np.repeat(parameter, block, axis=axis)[tuple(slice(size) for size in x.shape)]
    return parameter.reshape([-1 if d == axis else 1 for d in range(x.ndim)])


def scalar(x):
    return None if x is None else (x.reshape(()) if x.size == 1 else x)


def run(case):
    inputs = {name: array(tensor) for name, tensor in case["inputs"].items()}
    get = inputs.get
    match case["op"]:
        case "DequantizeLinear":
            x = get("x")
            parameters = (along_axis(case, get(name), x) for name in ("x_scale", "x_zero_point"))
            return dml.element_wise_dequantize_linear(x, *parameters)
        case "QuantizeLinear":
            x = get("x")
            parameters = (along_axis(case, get(name), x) for name in ("y_scale", "y_zero_point"))
            scale, zero_point = parameters
            is_ours = zero_point is not None and zero_point.dtype.itemsize == 2
            level = dml.FeatureLevel.JAXDML if is_ours else dml.FeatureLevel.LATEST
            return dml.element_wise_quantize_linear(x, scale, zero_point, feature_level=level)
        case "QLinearAdd":
            names = ("A", "A_scale", "A_zero_point", "B", "B_scale", "B_zero_point", "C_scale", "C_zero_point")
            return dml.element_wise_quantized_linear_add(*(get(name) for name in names))
        case "QLinearMatMul":
            names = ("a", "a_scale", "a_zero_point", "b", "b_scale", "b_zero_point", "y_scale", "y_zero_point")
            # ONNX also has float16 scales here; DirectML does not, and widening them loses nothing.
            values = (get(name) if name in "ab" else scalar(get(name)) for name in names)
            return dml.quantized_linear_matrix_multiply(
                *(x.astype(np.float32) if x.dtype == np.float16 else x for x in values)
            )
        case "QLinearConv":
            names = ("x", "x_scale", "x_zero_point", "w", "w_scale", "w_zero_point", "B", "y_scale", "y_zero_point")
            top, left, bottom, right = case["attributes"].get("pads", [0, 0, 0, 0])
            return dml.quantized_linear_convolution(
                *as_jax(scalar(get(name)) if name != "B" and name not in "xw" else get(name) for name in names),
                start_padding=(top, left), end_padding=(bottom, right),
            )  # fmt: skip
        case "MatMulInteger":
            one = (get("A"), 1.0, scalar(get("a_zero_point")), get("B"), 1.0, scalar(get("b_zero_point")))
            return dml.quantized_linear_matrix_multiply(*one, 1.0, None, output_dtype=np.int8)
        case "ConvInteger":
            top, left, bottom, right = case["attributes"].get("pads", [0, 0, 0, 0])
            return dml.quantized_linear_convolution(
                get("x"), 1.0, scalar(get("x_zero_point")), get("w"), 1.0, get("w_zero_points"), None, 1.0, None,
                start_padding=(top, left), end_padding=(bottom, right),
            )  # fmt: skip
    raise AssertionError(case["op"])


@pytest.mark.parametrize("case", list(cases()))
def test_vector(case):
    expected = array(case.get("output") or case.get("doc_formula") or case["ort_1_31_1"])
    if case["name"] in RULED:
        expected = np.asarray(RULED[case["name"]], expected.dtype).reshape(expected.shape)
    got = np.asarray(run(case))
    if case["op"] in ("MatMulInteger", "ConvInteger"):  # sums fit the output types, and scale 1 keeps them as they are
        got = got.astype(np.int32)
    assert got.dtype == expected.dtype
    assert_same_bits(got, expected)


def test_float16_scales_of_matmul_are_refused_as_they_are():
    names = ("a", "a_scale", "a_zero_point", "b", "b_scale", "b_zero_point", "y_scale", "y_zero_point")
    node = {case.values[0]["name"]: case.values[0] for case in cases()}["test_qlinearmatmul_2D_uint8_float16"]
    inputs = [array(node["inputs"][name]) for name in names]
    with pytest.raises(dml.DescError, match="AScaleTensor has data type FLOAT16, feature level 6_4 allows FLOAT32"):
        dml.quantized_linear_matrix_multiply(*inputs)
