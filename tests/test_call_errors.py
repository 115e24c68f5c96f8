"""Wrong calls of the five functions: a DescError that says what to write, before XLA hears of it, and while tracing."""

import dataclasses
import fractions
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from jaxdml import ArgumentTypeError, DescError, FeatureLevelError
from test_descs import (
    ADD,
    CONVOLUTION,
    DEQUANTIZE,
    DESCS,
    MATRIX_MULTIPLY,
    OPERATORS,
    QUANTIZE,
    f32,
    level,
    refusal,
    tensor_of,
)


def u8(*shape):
    """Data of 7, or a zero point of 3."""
    return np.full(shape, 7 if shape else 3, np.uint8)


def s8(*shape):
    """Data of 4, or a zero point of 3."""
    return np.full(shape, 4 if shape else 3, np.int8)


def steps(*shape):
    """Scales that are all different."""
    return np.arange(1, math.prod(shape) + 1, dtype=np.float32).reshape(shape) / 8


HALF = np.asarray(0.5, np.float32)
GOOD = {
    DEQUANTIZE: {"input": u8(2, 3), "scale": HALF, "zero_point": u8()},
    QUANTIZE: {"input": np.full((2, 3), 1.5, np.float32), "scale": HALF, "zero_point": u8()},
    ADD: {
        "a": u8(2, 3), "a_scale": HALF, "a_zero_point": u8(),
        "b": s8(2, 3), "b_scale": HALF, "b_zero_point": s8(),
        "output_scale": HALF, "output_zero_point": u8(),
    },
    MATRIX_MULTIPLY: {
        "a": u8(2, 4, 5), "a_scale": HALF, "a_zero_point": u8(),
        "b": s8(2, 5, 6), "b_scale": HALF, "b_zero_point": s8(),
        "output_scale": HALF, "output_zero_point": u8(),
    },
    CONVOLUTION: {
        "input": u8(2, 4, 7, 9), "input_scale": HALF, "input_zero_point": u8(),
        "filter": s8(6, 4, 3, 4), "filter_scale": HALF, "filter_zero_point": s8(),
        "bias": np.zeros(6, np.int32), "output_scale": HALF, "output_zero_point": u8(),
    },
}  # fmt: skip
DATA = {
    DEQUANTIZE: ("input",),
    QUANTIZE: ("input",),
    ADD: ("a", "b"),
    MATRIX_MULTIPLY: ("a", "b"),
    CONVOLUTION: ("input", "filter"),
}
OPTIONS = {"strides": 1, "dilations": 1, "start_padding": 0, "end_padding": 0, "group_count": 1}  # and their least


def ending(suffix):
    """[(operator, argument)] of all arguments whose name ends so."""
    return [(operator, name) for operator, good in GOOD.items() for name in good if name.endswith(suffix)]


def page_name(argument):
    """The page's name of the tensor that the function calls so."""
    return "".join(word.capitalize() for word in argument.split("_")) + "Tensor"


def upper(dtype):
    return np.dtype(dtype).name.upper()


def aligned(shape, rank):
    """How a message writes a parameter's shape."""
    return list(((1,) * rank + shape)[-rank:])


# The wrong calls: (name, operator, what differs from the good call, (error, tensor, rule), *what the error says).


def data_of_wrong_types():
    for operator, names in DATA.items():
        other = np.int16 if operator == QUANTIZE else np.float32
        for name in names:
            tensor, shape = page_name(name), GOOD[operator][name].shape
            for dtype in (bool, np.complex64, jnp.bfloat16, jnp.float8_e4m3fn, "U1", object, ">i4"):
                said = f"{tensor} has type {np.dtype(dtype)}, which DirectML does not have; convert it with .astype"
                changes = {name: np.zeros(shape, dtype)}
                yield f"{name} of {np.dtype(dtype)}", operator, changes, (DescError, tensor, "data_type"), said
            for dtype in (np.float64, np.int64, np.uint64, jnp.int4, other):
                said = f"{tensor} has data type {upper(dtype)}, feature level 6_4 allows "
                fix = f"; convert it with {name}.astype to a type that holds its values"
                if operator == QUANTIZE:
                    fix = f"; write {name}.astype(jnp.float32)"
                elif np.issubdtype(dtype, np.floating):
                    fix = f"; quantize it first: element_wise_quantize_linear({name}, scale, zero_point, "
                changes = {name: np.zeros(shape, dtype)}
                yield f"{name} of {upper(dtype)}", operator, changes, (DescError, tensor, "data_type"), said, fix
            for wrong in ([[0, 1]], (0, 1), "data", 3, 0.5, 1j, np.uint8(3), {}, jnp.uint8, object()):
                kind, fix = (
                    (wrong if isinstance(wrong, type) else type(wrong)).__name__,
                    f", expected an array; write jnp.asarray({name}, dtype=...)",
                )
                error = ArgumentTypeError, tensor, "array"
                case = f"{name} a {type(wrong).__module__} {kind}"
                yield case, operator, {name: wrong}, error, f"{tensor} is ", kind, fix
            error, said = (ArgumentTypeError, tensor, "required"), f"{tensor} is None, but required; give {name}"
            yield f"{name} None", operator, {name: None}, error, said
    error, fix = (DescError, "ATensor", "data_type"), "INT8 or UINT8; convert it with a.astype"
    yield "int16", ADD, {"a": np.zeros((2, 3), np.int16)}, error, "ATensor has data type INT16", fix
    yield (
        "float with an int zero point",
        ADD,
        {"a": np.zeros((2, 3), np.float32), "a_zero_point": 3},
        error,
        "data type FLOAT32",
    )
    bias = np.zeros(6, np.float32)
    said, fix = (
        "BiasTensor has data type FLOAT32, feature level 6_4 allows INT32",
        "; it counts steps of input_scale * filter_scale: divide by them, then jnp.rint and .astype(",
    )
    yield (
        "bias of float32",
        CONVOLUTION,
        {"bias": bias},
        (DescError, "BiasTensor", "data_type"),
        said + fix + "jnp.int32)",
    )
    said = "BiasTensor is a list, expected an array; write jnp.asarray(bias, dtype=...)"
    yield "bias a list", CONVOLUTION, {"bias": [0] * 6}, (ArgumentTypeError, "BiasTensor", "array"), said


def wrong_scales():
    for operator, name in ending("scale"):
        tensor = page_name(name)
        for wrong in (True, "0.5", [0.5], (0.5,), 1j, {}, object(), np.bool_(1), np.complex64(1)):
            kind, fix = type(wrong).__name__, f", expected a number or an array; write jnp.asarray({name}, jnp.float32)"
            case, error = f"{name} a {type(wrong).__module__} {kind}", (ArgumentTypeError, tensor, "array")
            yield case, operator, {name: wrong}, error, f"{tensor} is a", kind, fix
        too_large = 1e300, -1e300, 10**400, 2**128, 10**5000, np.float64(1e39), fractions.Fraction(10**400)
        for index, wrong in enumerate(too_large):
            error, said = (DescError, tensor, "range"), ", which FLOAT32 cannot hold"
            yield f"{name} too large {index}", operator, {name: wrong}, error, f"{tensor} is ", said
        for dtype in (np.float64, np.int32):
            said = f"{tensor} has data type {upper(dtype)}, feature level 6_4 allows FLOAT32"
            fix = f"; write {name}.astype(jnp.float32)"
            changes, error = {name: np.ones((), dtype)}, (DescError, tensor, "data_type")
            yield f"{name} of {upper(dtype)}", operator, changes, error, said, fix
        error, said = (ArgumentTypeError, tensor, "required"), f"{tensor} is None, but required; give {name}"
        yield f"{name} None", operator, {name: None}, error, said
    half = np.ones((), np.float16)
    error, said = (DescError, "AScaleTensor", "data_type"), "FLOAT16, feature level 6_4 allows FLOAT32;"
    yield "float16 scale", ADD, {"a_scale": half}, error, said
    error, said = (DescError, "ScaleTensor", "range"), "ScaleTensor is 1000000.0, which FLOAT16 cannot hold"
    yield "float16 overflow", QUANTIZE, {"input": np.zeros(3, np.float16), "scale": 1e6}, error, said
    error = DescError, "ScaleTensor", "data_type"
    said = "ScaleTensor has data type FLOAT16, expected FLOAT32 for an InputTensor of FLOAT32"
    yield "float16 scale of float32", QUANTIZE, {"scale": half}, error, said
    said = "ScaleTensor has data type FLOAT32, expected FLOAT16 for an InputTensor of FLOAT16"
    yield "float32 scale of float16", QUANTIZE, {"input": np.zeros(3, np.float16)}, error, said


def wrong_zero_points():
    for operator, name in ending("zero_point"):
        tensor, dtype = page_name(name), GOOD[operator][name].dtype
        owner = {DEQUANTIZE: "InputTensor", QUANTIZE: "OutputTensor"}.get(operator, tensor.replace("ZeroPoint", ""))
        # The output's type is what an array here says it is, so it is fixed for the other values.
        fixed = {"output_dtype": dtype} if owner == "OutputTensor" else {}
        for wrong in (True, 1.0, "1", [1], (1,), 1j, {}, np.bool_(1), np.float32(1)):
            kind, expected = type(wrong).__name__, ", expected None, an integer or an array"
            case, error = f"{name} a {type(wrong).__module__} {kind}", (ArgumentTypeError, tensor, "array")
            fix = f"; write jnp.asarray({name}, jnp.{dtype})"
            yield case, operator, {name: wrong, **fixed}, error, f"{tensor} is a", kind, expected, fix
        limits = np.iinfo(dtype)
        too_far = limits.min - 1, limits.max + 1, 2**64, -(10**400), 10**5000, np.int32(300), np.uint64(2**63)
        for index, wrong in enumerate(too_far):
            said = f", out of {upper(dtype)}'s range; write an integer from {limits.min} to {limits.max}"
            error = DescError, tensor, "range"
            yield f"{name} out of range {index}", operator, {name: wrong, **fixed}, error, f"{tensor} is ", said
        for other in (np.int64, np.float32):
            said = f"{tensor} has data type {upper(other)}, feature level 6_4 allows "
            fix = "; a zero point comes after its scale and is an integer of its tensor's type; convert it with .astype"
            changes, error = {name: np.ones((), other)}, (DescError, tensor, "data_type")
            yield f"{name} of {upper(other)}", operator, changes, error, said, fix
        said = f"{tensor} has type bool, which DirectML does not have; convert it with .astype"
        yield f"{name} of bool", operator, {name: np.ones((), bool)}, (DescError, tensor, "data_type"), said
        other = np.uint8 if dtype == np.int8 else np.int8
        if fixed:
            error, said = (DescError, "output_dtype", "output_dtype"), f"output_dtype is {dtype}, but {tensor} has "
            fix = f"data type {upper(other)}; make them equal or leave output_dtype out"
        else:
            error, said = (DescError, tensor, "same_data_type"), f"{tensor} has data type {upper(other)}, expected "
            fix = f"{upper(dtype)}, that of {owner}; write {name}.astype(jnp.{dtype})"
        yield f"{name} of {upper(other)}", operator, {name: np.ones((), other), **fixed}, error, said + fix
    changes = {"a": np.zeros((2, 3), np.float32), "a_zero_point": 2**40}
    yield "beside float data", ADD, changes, (DescError, "AZeroPointTensor", "range"), "out of INT32's range"


def wrong_output_types():
    for operator in (QUANTIZE, ADD, MATRIX_MULTIPLY, CONVOLUTION):
        name = "zero_point" if operator == QUANTIZE else "output_zero_point"
        allowed = "int16, int8, uint16 or uint8" if operator == QUANTIZE else "int8 or uint8"
        for dtype in (np.float32, np.int32, np.int64, bool, jnp.int4, jnp.bfloat16, float):
            error, changes = (DescError, "output_dtype", "data_type"), {"output_dtype": dtype, name: 3}
            said = f"output_dtype is {np.dtype(dtype)}, feature level 6_4 allows {allowed}"
            yield f"output_dtype {dtype.__name__}", operator, changes, error, said
        nonsense = "byte-like", ",", 8, True, object(), ("u1", -3), u8(2), jnp.zeros(2, np.uint8), dml.DataType.UNKNOWN
        for index, wrong in enumerate(nonsense):
            error, fix = (ArgumentTypeError, "output_dtype", "output_dtype"), ", expected a type such as jnp.uint8"
            yield f"nonsense {index}", operator, {"output_dtype": wrong}, error, "output_dtype is a", fix
        error, changes = (DescError, "output_dtype", "output_dtype"), {"output_dtype": np.uint8, name: np.int8(3)}
        said = f"output_dtype is uint8, but {page_name(name)} has data type INT8"
        yield "output_dtype and a NumPy scalar", operator, changes, error, said


def wrong_feature_levels():
    for operator in OPERATORS:
        for wrong in ("6_4", 0x6400, None, 6.4, dml.FeatureLevel):
            error = DescError, "feature_level", "feature_level"
            fix = "expected a FeatureLevel; write FeatureLevel.LEVEL_4_0 or the like"
            yield f"feature_level {wrong}", operator, {"feature_level": wrong}, error, fix
    for operator, at in ((ADD, "3_1"), (MATRIX_MULTIPLY, "2_0"), (CONVOLUTION, "2_0")):
        error, said = (FeatureLevelError, None, "feature_level"), f"not available at feature level {at} (introduced in "
        yield "not yet introduced", operator, {"feature_level": level(at)}, error, said
    small_image = {"input": u8(1, 4, 7), "filter": s8(6, 4, 3)}
    for operator, at, changes, tensor, rule, said in (
        (DEQUANTIZE, "2_1", {}, "InputTensor", "dimension_count", "has rank 2, {} allows 4 (allowed from 3_0)"),
        (DEQUANTIZE, "2_0", {"input": s8(1, 1, 2, 3), "zero_point": s8()}, "InputTensor", "data_type",
         "has data type INT8, {} allows UINT8 (allowed from 2_1)"),
        (DEQUANTIZE, "5_2", {"scale": np.float16(1)}, "ScaleTensor", "data_type",
         "has data type FLOAT16, {} allows FLOAT32 (allowed from 6_0)"),
        (DEQUANTIZE, "6_1", {"zero_point": None}, "ZeroPointTensor", "required",
         "is missing, {} requires it (optional from 6_2)"),
        (QUANTIZE, "6_3", {"zero_point": np.zeros((), np.int16)}, "ZeroPointTensor", "data_type",
         "has data type INT16, {} allows INT8 or UINT8 (allowed from 6_4)"),
        (QUANTIZE, "6_2", {"output_dtype": jnp.int16}, "output_dtype", "data_type",
         "is int16, {} allows int8 or uint8 (allowed from 6_4)"),
        (QUANTIZE, "1_0", {"output_dtype": jnp.int8}, "output_dtype", "data_type",
         "is int8, {} allows uint8 (allowed from 2_1)"),
        (MATRIX_MULTIPLY, "3_1", {}, "ATensor", "dimension_count", "has rank 3, {} allows 4 (allowed from 4_0)"),
        (CONVOLUTION, "3_1", small_image, "InputTensor", "dimension_count",
         "has rank 3, {} allows 4 (allowed from 4_0)"),
    ):  # fmt: skip
        changes, said = {**changes, "feature_level": level(at)}, f"{tensor} {said.format(f'feature level {at}')}"
        yield f"{tensor} at {at}", operator, changes, (FeatureLevelError, tensor, rule), said


def wrong_ranks():
    for operator, names in DATA.items():
        low, high = {MATRIX_MULTIPLY: (2, 4), CONVOLUTION: (3, 4)}.get(operator, (1, 8))
        for rank in sorted({0, low - 1, high + 1, 9}):
            changes = {name: np.zeros((1,) * rank, GOOD[operator][name].dtype) for name in names}
            error = DescError, page_name(names[0]), "dimension_count"
            said, fix = f" has rank {rank}, feature level 6_4 allows {low} to {high}", f"; reshape {names[0]}"
            yield f"rank {rank}", operator, changes, error, page_name(names[0]) + said + fix
        for name in names:
            good = GOOD[operator][name]
            for axis in range(good.ndim):
                empty = np.delete(good, slice(None), axis)
                error, said = (DescError, page_name(name), "sizes"), f"{page_name(name)} has Sizes {list(empty.shape)}"
                fix = ", no dimension may be empty; skip the call when there is no data"
                yield f"{name} empty {axis}", operator, {name: empty}, error, said + fix


def wrong_shapes():
    """What NumPy would broadcast, and what fits nothing."""
    for operator in (DEQUANTIZE, QUANTIZE):
        for name in ("scale", "zero_point"):
            tensor, dtype = page_name(name), GOOD[operator][name].dtype
            for shape in ((2,), (4,), (3, 1), (2, 2), (3, 2)):
                said = f"{tensor} has Sizes {aligned(shape, 2)}, expected [2, 3], that of InputTensor"
                changes, error = {name: np.ones(shape, dtype)}, (DescError, tensor, "same_sizes")
                yield f"{name} {shape}", operator, changes, error, said
            for shape in ((2, 2, 3), (2, 3, 1)):
                said = f"{tensor} has rank 3, expected 2, that of InputTensor"
                changes, error = {name: np.ones(shape, dtype)}, (DescError, tensor, "same_dimension_count")
                yield f"{name} {shape}", operator, changes, error, said
    for shape in ((1, 3), (2, 1), (3, 2), (2, 4)):
        error, said = (DescError, "BTensor", "same_sizes"), f"has Sizes {list(shape)}, expected [2, 3], that of ATensor"
        yield f"b {shape}", ADD, {"b": s8(*shape)}, error, said
    for shape in ((2, 4, 6), (1, 5, 6), (3, 5, 6), (2, 6, 5)):
        said = f"BTensor has Sizes {list(shape)}, expected [2, 5, {shape[-1]}]: ATensor has Sizes [2, 4, 5]"
        yield f"b {shape}", MATRIX_MULTIPLY, {"b": s8(*shape)}, (DescError, "BTensor", "sizes"), said
    for operator, name, shape, rank, first in (
        (ADD, "b", (3,), 2, "ATensor"),
        (ADD, "b", (1, 2, 3), 2, "ATensor"),
        (MATRIX_MULTIPLY, "b", (5, 6), 3, "ATensor"),
        (MATRIX_MULTIPLY, "b", (1, 2, 5, 6), 3, "ATensor"),
        (CONVOLUTION, "filter", (6, 4, 3), 4, "InputTensor"),
    ):
        error = DescError, page_name(name), "same_dimension_count"
        said = f"has rank {len(shape)}, expected {rank}, that of {first}"
        yield f"{name} {shape}", operator, {name: s8(*shape)}, error, said


def wrong_parameter_shapes():
    """Scales and zero points in forms that the page does not have."""
    for operator, name, forms, shapes in (
        (ADD, "a", "[1, 1]", [(3,), (2, 1), (2, 3)]),
        (ADD, "b", "[1, 1]", [(3,), (2, 1), (2, 3)]),
        (ADD, "output", "[1, 1]", [(3,), (2, 1), (2, 3)]),
        (MATRIX_MULTIPLY, "a", "[1, 1, 1] or [1, 4, 1]",
         [(4,), (5,), (1, 5), (5, 1), (2, 1, 1), (2, 4, 1), (4, 5)]),
        (MATRIX_MULTIPLY, "b", "[1, 1, 1] or [1, 1, 6]", [(5,), (6, 1), (5, 1), (2, 1, 1), (2, 1, 6), (5, 6)]),
        (MATRIX_MULTIPLY, "output", "[1, 1, 1] or [1, 4, 1]",
         [(4,), (6,), (1, 6), (6, 1), (2, 1, 1), (2, 4, 1), (4, 6)]),
        (CONVOLUTION, "input", "[1, 1, 1, 1]", [(4,), (6,), (1, 4, 1, 1), (2, 1, 1, 1), (9,)]),
        # The output is [2, 6, 5, 6]: NumPy would repeat [1, 6] over its rows.
        (CONVOLUTION, "filter", "[1, 1, 1, 1], [1, 6, 1, 1] or [6]",
         [(4,), (1, 6), (1, 1, 1, 6), (6, 1), (1, 4, 1, 1), (6, 1, 1, 1)]),
        (CONVOLUTION, "output", "[1, 1, 1, 1]", [(6,), (1, 6, 1, 1), (2, 1, 1, 1)]),
    ):  # fmt: skip
        rank = {ADD: 2, MATRIX_MULTIPLY: 3, CONVOLUTION: 4}[operator]
        for argument in (f"{name}_scale", f"{name}_zero_point"):
            for shape in shapes:
                changes = {argument: np.ones(shape, GOOD[operator][argument].dtype)}
                error, said = (
                    (DescError, page_name(argument), "sizes"),
                    f"has Sizes {aligned(shape, rank)}, expected {forms}",
                )
                yield f"{argument} {shape}", operator, changes, error, said
    for shape in ((), (4,), (1, 6), (1, 1, 1, 6), (2, 6, 1, 1), (6, 1, 1, 1)):
        error, said = (DescError, "BiasTensor", "sizes"), f"has Sizes {aligned(shape, 4)}, expected [1, 6, 1, 1]"
        yield f"bias {shape}", CONVOLUTION, {"bias": np.ones(shape, np.int32)}, error, said
    said = "BiasTensor has rank 5, feature level 6_4 allows 3 to 4; reshape bias"
    bias, error = np.zeros((2, 1, 6, 1, 1), np.int32), (DescError, "BiasTensor", "dimension_count")
    yield "bias of rank 5", CONVOLUTION, {"bias": bias}, error, said


def wrong_options():
    for name, least in OPTIONS.items():
        tensor, one = page_name(name).removesuffix("Tensor"), name == "group_count"
        kinds = [True, 1.0, "1", None, {}, np.float32(1), np.bool_(1), np.array(1), jnp.ones((), np.int32), jnp.ones(2)]
        sequences = [(1, True), [1, 1.0], (1, None), np.ones((2, 2), int), np.ones(2), range(2)]
        for index, wrong in enumerate(kinds + ([(1,), [1], np.ones(2, int)] if one else sequences)):
            alternative = "" if one else " or a tuple of 2 integers"
            expected = f"{'' if wrong is not None else 'None'}, expected an integer{alternative}"
            why = "; it decides shapes: write Python integers" if isinstance(wrong, jax.Array) else ""
            case, error = f"{name} of another kind {index}", (ArgumentTypeError, tensor, "static")
            yield case, CONVOLUTION, {name: wrong}, error, f"{tensor} is ", expected + why
        for wrong in dict.fromkeys([least - 1, -1, -7]):
            error = DescError, tensor, "group_count" if one else "values"
            said = f"{tensor} is {wrong}, expected an integer of at least 1" if one else f"{tensor} has values "
            yield f"{name} {wrong}", CONVOLUTION, {name: wrong}, error, said
        for wrong in [] if one else [(-1, 1), (1,), (1, 1, 1), ()]:
            said = f"{tensor} has values {wrong}, expected a tuple of 2 integers from {least} to 4294967295"
            yield f"{name} {wrong}", CONVOLUTION, {name: wrong}, (DescError, tensor, "values"), said
        if least and not one:
            error, said = (DescError, tensor, "values"), f"{tensor} has values [1, 0], none may be below 1"
            yield f"{name} (1, 0)", CONVOLUTION, {name: (1, 0)}, error, said
    for rule, changes, said in (
        ("kernel", {"filter": s8(6, 4, 8, 4)},
         "spans 8 elements with dilation 1, the padded input has 7; pad it or shrink the kernel"),
        ("kernel", {"filter": s8(6, 4, 3, 10)}, "spans 10 elements with dilation 1, the padded input has 9"),
        ("kernel", {"dilations": (1, 3)}, "spans 10 elements with dilation 3, the padded input has 9"),
        ("kernel", {"dilations": 5, "start_padding": (2, 9), "end_padding": (1, 9)},
         "spans 11 elements with dilation 5, the padded input has 10"),
        ("channels", {"filter": s8(6, 3, 3, 4)},
         "has 3 input channels, expected 4: InputTensor's 4 divided by GroupCount 1; channels are dimension 1"),
        ("channels", {"filter": s8(6, 1, 3, 4)}, "has 1 input channels, expected 4"),
        ("channels", {"group_count": 2}, "has 4 input channels, expected 2"),
        ("channels", {"filter": s8(6, 1, 3, 4), "group_count": 4},
         "has 6 output channels, expected a multiple of GroupCount 4"),
    ):  # fmt: skip
        yield f"filter {said}", CONVOLUTION, changes, (DescError, "FilterTensor", rule), f"FilterTensor {said}"


class Bad(NamedTuple):
    """A wrong call: the good one but for `changes`; the error's class, tensor and rule, and what it must say."""

    operator: str
    changes: dict[str, Any]
    facts: tuple[type[DescError], str | None, str]
    phrases: tuple[str, ...]

    @property
    def arguments(self):
        return {**GOOD[self.operator], **self.changes}


BAD = [
    pytest.param(Bad(operator, changes, error, tuple(phrases)), id=f"{operator}: {name}")
    for kind in (
        data_of_wrong_types,
        wrong_scales,
        wrong_zero_points,
        wrong_output_types,
        wrong_feature_levels,
        wrong_ranks,
        wrong_shapes,
        wrong_parameter_shapes,
        wrong_options,
    )
    for name, operator, changes, error, *phrases in kind()
]


def call(operator, arguments):
    return getattr(dml, operator)(**arguments)


def caught(operator, arguments):
    with pytest.raises(DescError) as error:
        call(operator, arguments)
    return error.value


# What a transformation can trace: arrays of types that jit leaves as they are.
TRACEABLE = ("bool", "uint8", "int8", "int16", "int32", "float16", "float32", "complex64", "bfloat16", "int4")


def split(arguments):
    """(arrays to trace, the rest)."""
    traced = {
        name: value
        for name, value in arguments.items()
        if isinstance(value, np.ndarray) and str(value.dtype) in TRACEABLE and name not in (*OPTIONS, "output_dtype")
    }
    return traced, {name: value for name, value in arguments.items() if name not in traced}


@pytest.fixture
def compilations():
    """What JAX traces, lowers or compiles during the test."""
    events = []

    def listen(event, *_, **__):
        if event.startswith("/jax/core/compile/"):
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("case", BAD)
def test_wrong_calls(case, compilations):
    """The error says what it must, and nothing was traced or compiled for it."""
    error = caught(case.operator, case.arguments)
    assert (type(error), error.tensor, error.rule) == case.facts
    assert error.operator == case.operator
    assert str(error).startswith(f"{case.operator}: ")
    for phrase in case.phrases:
        assert phrase in str(error)
    assert compilations == []


def test_right_calls_are_seen_to_compile(compilations):
    """Or the test above would show nothing."""
    call(DEQUANTIZE, {**GOOD[DEQUANTIZE], "input": u8(3, 1, 4, 1, 5, 2, 6)})
    assert compilations


def facts(error):
    return type(error), str(error), error.operator, error.tensor, error.rule, error.minimum_feature_level


@pytest.mark.parametrize("case", BAD)
def test_wrong_calls_while_tracing(case):
    """The same error inside jit and vmap: every array that can be traced is."""
    eager = caught(case.operator, case.arguments)
    traced, rest = split(case.arguments)
    assert traced
    stacked = {name: np.stack([value, value]) for name, value in traced.items()}
    for transformed, arrays in ((jax.jit, traced), (jax.vmap, stacked)):
        with pytest.raises(DescError) as error:
            transformed(lambda arrays: call(case.operator, {**arrays, **rest}))(arrays)
        assert facts(error.value) == facts(eager)


def test_most_cases_are_about_traced_arrays():
    """Or the test above would show little: the arguments at fault are traced in this many."""
    at_fault = [split(case.changes)[0] for (case,) in (parameter.values for parameter in BAD)]
    assert sum(map(bool, at_fault)) > len(BAD) / 4


@pytest.mark.parametrize("operator", OPERATORS)
def test_good_calls_are_right(operator):
    """So each wrong call is wrong for the one thing changed."""
    assert call(operator, GOOD[operator]).dtype in (np.float32, np.uint8)


@pytest.mark.parametrize("name", OPTIONS)
def test_options_cannot_be_traced(name):
    """They decide shapes."""
    tensor = page_name(name).removesuffix("Tensor")
    with pytest.raises(ArgumentTypeError) as error:
        jax.jit(lambda option: call(CONVOLUTION, {**GOOD[CONVOLUTION], name: option}))(1)
    assert (error.value.operator, error.value.tensor, error.value.rule) == (CONVOLUTION, tensor, "static")
    assert f"{tensor} is a traced array, expected an integer" in str(error.value)
    assert "; it decides shapes: make it static, as in static_argnames" in str(error.value)


def test_whole_messages():
    error = caught(CONVOLUTION, {**GOOD[CONVOLUTION], "strides": 1.0})  # nothing about tracing
    assert (
        str(error) == "quantized_linear_convolution: Strides is a float, expected an integer or a tuple of 2 integers"
    )
    error = caught(DEQUANTIZE, {**GOOD[DEQUANTIZE], "input": 3})
    assert str(error) == (
        "element_wise_dequantize_linear: InputTensor is an int, expected an array; write jnp.asarray(input, dtype=...)"
    )


@pytest.mark.parametrize("name", ["strides", "dilations", "start_padding", "end_padding"])
def test_options_cannot_be_traced_in_a_tuple(name):
    with pytest.raises(ArgumentTypeError) as error:
        jax.jit(lambda option: call(CONVOLUTION, {**GOOD[CONVOLUTION], name: (1, option)}))(1)
    assert (error.value.operator, error.value.rule) == (CONVOLUTION, "static")


@pytest.mark.parametrize(("operator", "name"), ending("scale"))
def test_numbers_that_jit_has_made_arrays_are_numbers_still(operator, name):
    """They are weakly typed: 2 is an int32, but fits. What is no scale does not become one."""

    def traced(number):
        return jax.jit(lambda number: call(operator, {**GOOD[operator], name: number}))(number)

    for number in (0.5, 2):
        np.testing.assert_array_equal(traced(number), call(operator, {**GOOD[operator], name: number}))
    for wrong in (1j, True, np.int32(2), np.ones(2, int)):
        with pytest.raises(DescError) as error:
            traced(wrong)
        assert (error.value.operator, error.value.tensor, error.value.rule) == (operator, page_name(name), "data_type")
    with pytest.raises(DescError, match="has data type INT32"):
        jax.jit(lambda number: call(operator, {**GOOD[operator], name: jax.lax.broadcast(number, (1,))}))(2)


@pytest.mark.parametrize(("operator", "name"), ending("zero_point"))
def test_integers_that_jit_has_made_arrays_are_no_zero_points(operator, name):
    """Their values are unknown, so none can be found to be in range."""
    with pytest.raises(DescError) as error:
        jax.jit(lambda number: call(operator, {**GOOD[operator], name: number}))(3)
    assert (error.value.operator, error.value.tensor, error.value.rule) == (operator, page_name(name), "data_type")
    assert "is a number without a type, whose range cannot be checked; write jnp." in str(error.value)


@pytest.mark.parametrize("operator", OPERATORS)
def test_feature_levels_and_output_dtypes_cannot_be_traced(operator):
    with pytest.raises(DescError, match="expected a FeatureLevel"):
        jax.jit(lambda option: call(operator, {**GOOD[operator], "feature_level": option}))(0x6400)
    if operator != DEQUANTIZE:
        with pytest.raises(ArgumentTypeError, match=r"output_dtype is a traced array, expected a type such as"):
            jax.jit(lambda option: call(operator, {**GOOD[operator], "output_dtype": option}))(u8(1))


@pytest.mark.parametrize("operator", OPERATORS)
def test_64_bit_arrays_are_refused_where_jax_has_them(operator, x64):
    """With 64-bit types on and off: NumPy's are never narrowed, JAX's never taken."""
    name = DATA[operator][0]
    wrong = np.zeros(GOOD[operator][name].shape, np.float64 if operator == QUANTIZE else np.int64)
    for array in (wrong, jnp.asarray(wrong)) if x64 else (wrong,):
        error = caught(operator, {**GOOD[operator], name: array})
        assert f"has data type {wrong.dtype.name.upper()}, feature level 6_4 allows" in str(error)


U8 = np.dtype(np.uint8)


@pytest.mark.parametrize(
    ("operator", "changes", "plainly"),
    [
        (DEQUANTIZE, {"scale": math.nan}, {"scale": np.asarray(math.nan, np.float32)}),
        (DEQUANTIZE, {"scale": math.inf}, {"scale": np.asarray(math.inf, np.float32)}),
        (DEQUANTIZE, {"scale": np.float64(-math.inf)}, {"scale": np.asarray(-math.inf, np.float32)}),
        (DEQUANTIZE, {"scale": np.float32(math.inf)}, {"scale": np.asarray(math.inf, np.float32)}),
        (DEQUANTIZE, {"scale": 3.4e38}, {"scale": np.asarray(3.4e38, np.float32)}),
        (DEQUANTIZE, {"scale": np.float64(0.1)}, {"scale": np.asarray(0.1, np.float32)}),
        (DEQUANTIZE, {"scale": 2}, {"scale": np.asarray(2, np.float32)}),
        (DEQUANTIZE, {"scale": np.int64(2)}, {"scale": np.asarray(2, np.float32)}),
        (DEQUANTIZE, {"scale": fractions.Fraction(1, 3)}, {"scale": np.asarray(1 / 3, np.float32)}),
        (DEQUANTIZE, {"scale": np.float16(0.1)}, {"scale": np.asarray(0.1, np.float16)}),
        (DEQUANTIZE, {"scale": steps(1, 1, 1, 3)}, {"scale": np.stack([steps(3), steps(3)])}),
        (DEQUANTIZE, {"zero_point": 255}, {"zero_point": np.asarray(255, np.uint8)}),
        (DEQUANTIZE, {"zero_point": np.int64(255)}, {"zero_point": np.asarray(255, np.uint8)}),
        (DEQUANTIZE, {"zero_point": np.int8(7)}, {"zero_point": np.asarray(7, np.uint8)}),
        (DEQUANTIZE, {"zero_point": None}, {"zero_point": 0}),
        (QUANTIZE, {"zero_point": np.int8(-128)}, {"zero_point": np.asarray(-128, np.int8)}),
        (QUANTIZE, {"zero_point": -32768, "output_dtype": np.int16}, {"zero_point": np.asarray(-32768, np.int16)}),
        (QUANTIZE, {"zero_point": 3}, {"output_dtype": np.uint8}),
        (QUANTIZE, {"output_dtype": "uint8"}, {}),
        (QUANTIZE, {"output_dtype": dml.DataType.UINT8}, {}),
        (QUANTIZE, {"output_dtype": U8}, {}),
        (ADD, {"a_zero_point": 3, "b_zero_point": 3, "output_zero_point": 3}, {}),
        (ADD, {"output_zero_point": 3, "output_dtype": jnp.int8}, {"output_zero_point": np.asarray(3, np.int8)}),
        (ADD, {"a_zero_point": None, "b_zero_point": None}, {"a_zero_point": 0, "b_zero_point": 0}),
        (ADD, {"output_zero_point": None}, {"output_zero_point": 0}),
        (ADD, {"b_zero_point": -128}, {"b_zero_point": np.full((1, 1, 1), -128, np.int8)}),
        (MATRIX_MULTIPLY, {"b_scale": steps(6)}, {"b_scale": steps(1, 1, 6)}),
        (MATRIX_MULTIPLY, {"a_scale": steps(4, 1)}, {"a_scale": steps(1, 4, 1)}),
        (MATRIX_MULTIPLY, {"output_zero_point": np.int64(3)}, {}),
        (MATRIX_MULTIPLY, {"a_zero_point": None, "b_zero_point": None}, {"a_zero_point": 0, "b_zero_point": 0}),
        (CONVOLUTION, {"filter_zero_point": None, "bias": None}, {"filter_zero_point": 0}),
        (CONVOLUTION, {"strides": 2}, {"strides": (2, 2)}),
        (CONVOLUTION, {"strides": [2, 1]}, {"strides": (2, 1)}),
        (CONVOLUTION, {"dilations": np.array([1, 2])}, {"dilations": (1, 2)}),
        (CONVOLUTION, {"start_padding": np.int64(2)}, {"start_padding": (2, 2)}),
        (CONVOLUTION, {"group_count": np.int64(1)}, {}),
        (CONVOLUTION, {"filter_scale": steps(6)}, {"filter_scale": steps(1, 6, 1, 1)}),
        (
            CONVOLUTION,
            {"bias": np.arange(6, dtype=np.int32).reshape(1, 1, 6, 1, 1)},
            {"bias": np.arange(6, dtype=np.int32)},
        ),
    ],
)
def test_other_ways_to_write_an_argument(operator, changes, plainly):
    """What is accepted means what it says."""
    ours, same = (call(operator, {**GOOD[operator], **arguments}) for arguments in (changes, plainly))
    assert ours.dtype == same.dtype
    np.testing.assert_array_equal(ours, same)


# The same mistake in a desc -------------------------------------------------------------------------------------------


def hand_written(operator, **changes):
    """The desc of the good call, each parameter tensor of the data's rank; changes go over it."""
    i8, byte, f = (lambda *s: tensor_of("INT8", *s)), (lambda *s: tensor_of("UINT8", *s)), f32
    if operator == DEQUANTIZE:
        tensors = byte(2, 3), f(2, 3), byte(2, 3), f(2, 3)
    elif operator == QUANTIZE:
        tensors = f(2, 3), f(2, 3), byte(2, 3), byte(2, 3)
    elif operator == ADD:
        one = (1, 1)
        tensors = byte(2, 3), f(*one), byte(*one), i8(2, 3), f(*one), i8(*one), f(*one), byte(*one), byte(2, 3)
    elif operator == MATRIX_MULTIPLY:
        one = (1, 1, 1)
        a, b, output = (byte(2, 4, 5), f(*one), byte(*one)), (i8(2, 5, 6), f(*one), i8(*one)), (f(*one), byte(*one))
        tensors = *a, *b, *output, byte(2, 4, 6)
    else:
        one, filter = (1, 1, 1, 1), i8(6, 4, 3, 4)
        image, output = (byte(2, 4, 7, 9), f(*one), byte(*one)), (f(*one), byte(*one), byte(2, 6, 5, 6))
        options = 2, (1, 1), (1, 1), (0, 0), (0, 0), 1
        tensors = *image, filter, f(*one), i8(*one), tensor_of("INT32", 1, 6, 1, 1), *output, *options
    return dataclasses.replace(DESCS[operator](*tensors), **changes)


@pytest.mark.parametrize("operator", OPERATORS)
def test_hand_written_descs_are_right(operator):
    output, computed = dml.validate(hand_written(operator)), call(operator, GOOD[operator])
    assert (output.shape, output.dtype) == (computed.shape, computed.dtype)


@pytest.mark.parametrize(
    ("operator", "arguments", "fields", "at"),
    [
        (DEQUANTIZE, {"zero_point": np.ones((2, 3), np.int8)}, {"zero_point_tensor": tensor_of("INT8", 2, 3)}, "6_4"),
        (DEQUANTIZE, {"scale": np.ones((2, 2), np.float32)}, {"scale_tensor": f32(2, 2)}, "6_4"),
        (DEQUANTIZE, {"zero_point": None}, {"zero_point_tensor": None}, "6_1"),
        (DEQUANTIZE, {}, {}, "1_0"),
        (QUANTIZE, {"scale": np.ones((2, 3), np.float16)}, {"scale_tensor": tensor_of("FLOAT16", 2, 3)}, "6_4"),
        (ADD, {"b": np.zeros((1, 3), np.int8)}, {"b_tensor": tensor_of("INT8", 1, 3)}, "6_4"),
        (ADD, {"a_scale": np.ones(3, np.float32)}, {"a_scale_tensor": f32(1, 3)}, "6_4"),
        (ADD, {}, {}, "3_1"),
        (MATRIX_MULTIPLY, {"b": np.zeros((2, 4, 6), np.int8)}, {"b_tensor": tensor_of("INT8", 2, 4, 6)}, "6_4"),
        (MATRIX_MULTIPLY, {"a_scale": np.ones((5, 1), np.float32)}, {"a_scale_tensor": f32(1, 5, 1)}, "6_4"),
        (MATRIX_MULTIPLY, {"output_scale": np.ones((), np.float64)},
         {"output_scale_tensor": tensor_of("FLOAT64", 1, 1, 1)}, "6_4"),
        (MATRIX_MULTIPLY, {}, {}, "3_1"),
        (CONVOLUTION, {"strides": 0}, {"strides": (0, 0)}, "6_4"),
        (CONVOLUTION, {"dilations": (1, 2, 3)}, {"dilations": (1, 2, 3)}, "6_4"),
        (CONVOLUTION, {"start_padding": -1}, {"start_padding": (-1, -1)}, "6_4"),
        (CONVOLUTION, {"group_count": 0}, {"group_count": 0}, "6_4"),
        (CONVOLUTION, {"group_count": 2}, {"group_count": 2}, "6_4"),
        (CONVOLUTION, {"dilations": 9}, {"dilations": (9, 9)}, "6_4"),
        (CONVOLUTION, {"filter_scale": steps(1, 1, 1, 6)}, {"filter_scale_tensor": f32(1, 1, 1, 6)}, "6_4"),
        (CONVOLUTION, {"bias": np.ones(4, np.int32)}, {"bias_tensor": tensor_of("INT32", 1, 1, 1, 4)}, "6_4"),
        (CONVOLUTION, {}, {}, "2_0"),
    ],
)  # fmt: skip
def test_a_call_and_a_desc_raise_the_same_error(operator, arguments, fields, at):
    """The same class, message and facts."""
    ours = caught(operator, {**GOOD[operator], **arguments, "feature_level": level(at)})
    theirs = refusal(hand_written(operator, **fields), level(at))
    assert (type(ours), str(ours), vars(ours)) == (type(theirs), str(theirs), vars(theirs))


def test_advice_that_leads_on():
    """Mistakes that are easily made, and what to write instead."""
    x, f = np.zeros((1, 2, 5, 5), np.uint8), np.zeros((3, 2, 3, 3), np.int8)
    floats = x.astype(np.float32)

    def convolve(x, **options):
        return dml.quantized_linear_convolution(x, 0.1, 3, f, 0.1, None, None, 0.5, None, **options)

    for call, advice in [
        (lambda: convolve(x[0]), "; a batch of one image is input[None]"),
        (lambda: convolve(x, start_padding=((1, 1), (1, 1))), "end_padding what comes after"),
        (lambda: jax.jit(lambda s: convolve(x, strides=s))(2), "make it static, as in static_argnames"),
        (lambda: jax.jit(dml.element_wise_quantize_linear)(floats, 0.1, 3), "; write jnp.uint8(...)"),
        (
            lambda: dml.quantized_linear_matrix_multiply(x, 0.1, 3, x[0, 0], 0.1, 3, 0.5, 3),
            "; tensors do not broadcast, use jax.vmap or jnp.broadcast_to",
        ),
        (
            lambda: dml.element_wise_quantize_linear(floats.astype(np.float16), np.float32(0.1).reshape(1)),
            "; write scale.astype(jnp.float16)",
        ),
        (lambda: dml.fake_quantize(floats, 0.1, np.zeros(1, np.float32)), "ZeroPointTensor has data type FLOAT32"),
    ]:
        with pytest.raises(dml.DescError) as error:
            call()
        assert advice in str(error.value)
