"""Cases of the seven operators of `spec_more_pages`, tests/vectors/cited.json, as calls and as descs.

Most are facts from other projects, each with its source; those named "derived" come from the pages' formulas. A case
gives a desc in the names of directml.h; "from" says which operand is bound to a tensor.
"""

import json
import math
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits, assert_same_values
from helpers.descs import level
from helpers.marks import rarely_on_xla

pytestmark = rarely_on_xla

CITED = json.loads((Path(__file__).parents[1] / "vectors" / "cited.json").read_text(encoding="utf-8"))
CASES = {case["name"]: case for case in CITED["cases"]}
# The cases that DirectML rejects, and for which tensor.
REFUSED = {"ort.MatMulInteger_PerColumn_ND": "BZeroPointTensor", "ort.ConvInteger.Pointwise_3D_u8u8": "InputTensor"}
COMPUTED = [name for name in CASES if name not in REFUSED]
PACKED = "packed_bytes_low_nibble_first_padded_to_4"
NOT_IN_CALLS = {"DimensionCount", "QuantizationType", "QuantizationTensorCount"}  # the arrays determine them
TAKE_OUTPUT_DTYPE = {"dynamic_quantize_linear", "quantized_linear_average_pooling", "quantize"}
# Where the formula's value is not the source's, and how far the source allows it to differ: by case, the output, a
# relative tolerance, the reason.
TOLERATED = {
    "ort.DynamicQuantizeLinear_Max_Adjusted": ("y_scale", 1e-5, "written with 7 digits, 2 units in the last place off"),
}


def is_nibbles(tensor):
    return tensor["dtype"] in ("int4", "uint4")


def array(tensor):
    return np.asarray(tensor["data"]).astype(jnp.dtype(tensor["dtype"])).reshape(tensor["shape"])


def operator_of(case):
    return case["operator"].removeprefix("DML_OPERATOR_").lower()


def field_of(name):
    return re.sub("(?<!^)(?=[A-Z])", "_", name).lower()


def tensors_of(case):
    """(page name, tensor) of each field that is a tensor; of an array of tensors one by one."""
    for name, value in case["dml"].items():
        if isinstance(value, list) and isinstance(value[0], dict):
            yield from ((name, tensor) for tensor in value)
        elif value is None or isinstance(value, dict):
            yield name, value


def inputs_of(case):
    return [(name, tensor) for name, tensor in tensors_of(case) if tensor is None or tensor["from"] in case["inputs"]]


def outputs_of(case):
    """{operand: tensor}, in the order of the desc."""
    return {tensor["from"]: tensor for _, tensor in tensors_of(case) if tensor and tensor["from"] not in case["inputs"]}


def expected_of(case):
    """The source's values, by output."""
    return case.get("outputs") or dict.fromkeys(outputs_of(case), case.get("output"))


def assert_computed(case, got):
    """The case's outputs, with its types and the desc's sizes, to the bit."""
    expected = expected_of(case)
    got = [got] if len(expected) == 1 else list(got)
    for (name, right), one in zip(expected.items(), got, strict=True):
        one, right = np.asarray(one), array(right).reshape(outputs_of(case)[name]["sizes"])
        assert one.dtype == right.dtype
        if one.dtype in (jnp.int4, jnp.uint4):
            one, right = one.astype(np.int32), right.astype(np.int32)
        output, tolerance, _ = TOLERATED.get(case["name"], (None, 0, ""))
        if name == output:
            assert one.shape == right.shape
            assert (one != right).any(), "the formula gives the source's value: no tolerance is needed"
            np.testing.assert_allclose(one, right, rtol=tolerance, atol=0)
        else:
            assert_same_values(one, right)


# As calls ------------------------------------------------------------------------------------------------------------


def argument(case, name, tensor):
    """An operand as an argument of a call: strides of 0 repeat it, and a single value is a number unless it is data."""
    if tensor is None:
        return None
    operand = array(case["inputs"][tensor["from"]])
    is_parameter = "Scale" in name or "ZeroPoint" in name or name == "QuantizationTensors"
    if is_parameter and operand.size == 1:
        return operand.reshape(())
    if name == "FilterZeroPointTensor":
        return operand  # [O]
    kept = [1 if stride == 0 else size for size, stride in zip(tensor["sizes"], strides_of(tensor), strict=True)]
    return np.broadcast_to(operand.reshape(kept), tensor["sizes"]).copy()


def strides_of(tensor):
    sizes = tensor["sizes"]
    return tensor.get("strides") or [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


def called(case):
    arguments = [argument(case, name, tensor) for name, tensor in inputs_of(case)]
    tensors = {name for name, _ in tensors_of(case)}
    options = {field_of(name): value for name, value in case["dml"].items() if name not in tensors | NOT_IN_CALLS}
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    if operator_of(case) in TAKE_OUTPUT_DTYPE:
        options["output_dtype"] = jnp.dtype(case["dml"]["OutputTensor"]["dtype"])
    function = getattr(dml, operator_of(case))
    return function(*arguments, **options, feature_level=level(case["min_feature_level"]))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", COMPUTED)
def test_a_call(name):
    assert_computed(CASES[name], called(CASES[name]))


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_directml_refuses(name):
    with pytest.raises(dml.DescError) as error:
        called(CASES[name])
    assert error.value.tensor == REFUSED[name]
    assert list(REFUSED) == [name for name, case in CASES.items() if "dml_expect" in case]


def test_the_formula_rules_where_devices_differ():
    """Devices multiply by the reciprocal of the scale. The cases list their results and those of the formula."""
    for case in CASES.values():
        for place, values in case.get("accept", {}).items():
            _, first = next(iter(expected_of(case).items()))
            assert first["data"][int(place.removeprefix("index "))] in values
            assert case["directml_observed"]["value"] in set(values) - set(first["data"])


# What the cases leave out, worked out by hand -------------------------------------------------------------------------


@pytest.mark.parametrize(("include_padding", "expected"), [(False, [2, 2, 4, 6]), (True, [1, 2, 4, 6])])
def test_pooling_over_dilated_windows(include_padding, expected):
    """Of the values pad, 0, 1, 2, 3, 4 a window takes the first and the third; the pad is 0, and counts or not."""
    x = np.uint8([1, 2, 3, 4, 5]).reshape(1, 1, 1, 5)
    window = {"window_size": (1, 2), "dilations": (1, 2), "start_padding": (0, 1)}
    got = dml.quantized_linear_average_pooling(x, 1.0, 1, 0.5, None, **window, include_padding=include_padding)
    assert_same_bits(got, np.uint8(expected).reshape(1, 1, 1, 4))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "ELEMENT_WISE" in case["operator"]])
def test_quantize_divides_as_the_element_wise_operator_does(name):
    x, scale, zero_point = (array(tensor) for tensor in CASES[name]["inputs"].values())
    assert_computed(CASES[name], dml.quantize(x, scale, zero_point))


def test_dynamic_quantization_of_float16():
    got = dml.dynamic_quantize_linear(np.float16([[0, 2.5, 255]]))
    for one, expected in zip(got, (np.uint8([[0, 2, 255]]), np.float32([[1]]), np.uint8([[0]])), strict=True):
        assert_same_bits(one, expected)


def test_a_scale_and_a_zero_point_for_each_row():
    a, b = np.int8([[1, 2], [3, 4]]), np.uint32([[1, 0], [0, 1]])
    got = dml.matrix_multiply_integer_to_float(a, np.float32([[0.5], [2]]), np.int8([[1], [-1]]), b, 1.0, None)
    assert_same_bits(got, np.float32([[0, 0.5], [8, 10]]))


# As descs ------------------------------------------------------------------------------------------------------------


def desc_of(case, strides=lambda tensor: tensor.get("strides")):
    """The desc that the case's JSON describes."""

    def member(value):
        if isinstance(value, list):
            return [member(one) for one in value]
        if not isinstance(value, dict):
            return value
        written = {"DataType": value["dtype"].upper(), "Sizes": value["sizes"]}
        return written if strides(value) is None else written | {"Strides": strides(value)}

    members = {name: member(value) for name, value in case["dml"].items()}
    return dml.desc_from_dict({"type": case["operator"], "desc": members})


def bound(case, bind):
    """The operands by the desc's fields; `bind` makes each from an operand and its tensor in the desc."""
    fields = {}
    for name, tensor in inputs_of(case):
        if tensor is not None:
            fields.setdefault(field_of(name), []).append(bind(tensor, array(case["inputs"][tensor["from"]])))
    return {name: tuple(values) if name == "quantization_tensors" else values[0] for name, values in fields.items()}


def buffer(tensor, operand):
    """An array of the desc's sizes where it has no strides, else a flat buffer."""
    return operand.ravel() if tensor.get("strides") else operand.reshape(tensor["sizes"])


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", COMPUTED)
def test_a_compiled_desc(name):
    case = CASES[name]
    op = dml.compile_operator(desc_of(case), level(case["min_feature_level"]))
    assert_computed(case, op(**bound(case, buffer)))


@pytest.mark.parametrize("name", COMPUTED)
def test_the_lowest_level_of_a_desc(name):
    case, levels = CASES[name], list(dml.FeatureLevel)
    desc, lowest = desc_of(case), level(case["min_feature_level"])
    assert dml.minimum_feature_level(desc) is lowest
    valid = dml.validate(desc, lowest)
    outputs = outputs_of(case).values()
    for struct, tensor in zip([valid] if len(outputs) == 1 else valid, outputs, strict=True):
        assert (struct.shape, struct.dtype) == (tuple(tensor["sizes"]), jnp.dtype(tensor["dtype"]))
    for below in levels[: levels.index(lowest)]:
        with pytest.raises(dml.FeatureLevelError) as error:
            dml.validate(desc, below)
        assert error.value.minimum_feature_level <= lowest
    assert dml.desc_from_dict(dml.desc_to_dict(desc)) == desc


@pytest.mark.parametrize("name", REFUSED)
def test_a_desc_that_directml_refuses(name):
    desc = desc_of(CASES[name])
    for at in dml.FeatureLevel:
        with pytest.raises(dml.DescError):
            dml.validate(desc, at)
    with pytest.raises(dml.DescError) as error:
        dml.compile_operator(desc)
    assert error.value.tensor == REFUSED[name]


# Four bits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", CITED["buffer_sizes_4bit"], ids=lambda r: f"{r['dtype']}{r['sizes']}{r['strides']}")
def test_buffer_sizes(row):
    data_type = dml.DataType[row["dtype"].upper()]
    assert dml.calc_buffer_tensor_size(data_type, row["sizes"], row["strides"]) == row["bytes"]


IN_NIBBLES = [name for name in COMPUTED if any(is_nibbles(t) for _, t in tensors_of(CASES[name]) if t)]


def apart(tensor):
    """Strides with which rows of nibbles are not packed: one unused element follows each row."""
    *outer, last = tensor["sizes"]
    return [math.prod(outer[axis + 1 :]) * (last + 1) for axis in range(len(outer))] + [1]


def nibbles(tensor, strides, operand, rest=0):
    """Bytes of a 4-bit tensor, low nibble first, padded to a multiple of 4; `rest` fills the unused nibbles."""
    offsets = sum(np.indices(tensor["sizes"])[axis] * stride for axis, stride in enumerate(strides))
    places = np.full(-(-(offsets.max() + 1) // 8) * 8, rest, np.uint8)
    places[offsets] = operand.reshape(tensor["sizes"]).astype(np.int8).view(np.uint8) & 15
    return places[0::2] | places[1::2] << 4


def test_nibbles_are_packed_as_the_sources_pack_them():
    for name in IN_NIBBLES:
        case = CASES[name]
        for _, tensor in tensors_of(case):
            if tensor and is_nibbles(tensor) and PACKED in case:
                operand = case["inputs"].get(tensor["from"]) or case["output"]
                right = case[PACKED][tensor["from"]]
                assert_same_values(nibbles(tensor, strides_of(tensor), array(operand)), right)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", [strides_of, apart])
@pytest.mark.parametrize("name", IN_NIBBLES)
def test_flat_buffers_hold_two_elements_to_a_byte(name, layout):
    """4-bit tensors with strides are read from bytes and written into bytes; the gaps of a given buffer are kept."""
    case = CASES[name]
    op = dml.compile_operator(desc_of(case, lambda tensor: layout(tensor) if is_nibbles(tensor) else None))
    bind = bound(
        case, lambda tensor, x: nibbles(tensor, layout(tensor), x) if is_nibbles(tensor) else buffer(tensor, x)
    )
    output = case["dml"]["OutputTensor"]
    if not is_nibbles(output):
        assert_computed(case, op(**bind))
        return
    for rest, target in ((0, {}), (13, {"output_tensor": True})):
        right = nibbles(output, layout(output), array(case["output"]), rest)
        got = np.asarray(op(**bind, **{field: np.full(right.size, 0xDD, np.uint8) for field in target}))
        assert got.dtype == np.uint8
        assert right.size - 4 < got.size <= right.size  # its own length need not be a multiple of 4
        assert_same_bits(got, right[: got.size])
        assert not right[got.size :].any()
