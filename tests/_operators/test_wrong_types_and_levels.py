"""Wrong calls: output types that are unknown or not the operator's; feature levels that are unknown or too low."""

import jax
import jax.numpy as jnp
import numpy as np

import jaxdml as dml
from _operators.calls import OUTPUT_ZERO_POINT, batches, call, caught, page_name, problems, s8, u8
from helpers.descs import (
    CONVOLUTION,
    CONVOLUTION_INTEGER,
    DEQUANTIZE,
    MATRIX_MULTIPLY,
    MATRIX_MULTIPLY_INTEGER,
    OPERATORS,
    QUANTIZE,
    QUANTIZE_BLOCKS,
    level,
)
from helpers.spec_pages import INTRODUCED
from helpers.spec_tables import LEVELS
from jaxdml import ArgumentTypeError, DescError, FeatureLevelError

NONSENSE = (
    "byte-like", ",", 8, True, object(), ("u1", -3), u8(2), jnp.zeros(2, np.uint8), dml.DataType.UNKNOWN,
)  # fmt: skip
OURS = "(allowed from FeatureLevel.JAXDML, an extension that DirectML does not have)"


def wrong_output_types():
    for operator, name in OUTPUT_ZERO_POINT.items():
        number = {name: 3} if name else {}
        allowed = "int8, int4, uint8 or uint4" if operator == QUANTIZE_BLOCKS else "int8 or uint8"
        others = (np.int16, np.uint16) if operator == QUANTIZE_BLOCKS else (jnp.int4, jnp.uint4)
        for dtype in (np.float32, np.int32, np.int64, bool, *others, jnp.bfloat16, float):
            error, changes = (DescError, "output_dtype", "data_type"), {"output_dtype": dtype, **number}
            said = f"output_dtype is {np.dtype(dtype)}, feature level 6_4 allows {allowed}"
            yield f"output_dtype {dtype.__name__}", operator, changes, error, said
            if operator == QUANTIZE:
                said = f"output_dtype is {np.dtype(dtype)}, feature level jaxdml allows int16, int8, uint16 or uint8"
                changes = {**changes, "feature_level": dml.FeatureLevel.JAXDML}
                yield f"output_dtype {dtype.__name__} of ours", operator, changes, error, said
        for index, wrong in enumerate(NONSENSE):
            error, fix = (ArgumentTypeError, "output_dtype", "output_dtype"), ", expected a type such as jnp.uint8"
            yield f"nonsense {index}", operator, {"output_dtype": wrong}, error, "output_dtype is a", fix
        if name:
            error, changes = (DescError, "output_dtype", "output_dtype"), {"output_dtype": np.uint8, name: np.int8(3)}
            said = f"output_dtype is uint8, but {page_name(name, operator)} has data type INT8"
            yield "output_dtype and a NumPy scalar", operator, changes, error, said


def wrong_levels():
    for operator in OPERATORS:
        for wrong, right in (("6_4", "LEVEL_6_4"), (0x6400, "LEVEL_6_4"), (None, "LEVEL_4_0 or the like")):
            error = DescError, "feature_level", "feature_level"
            fix = f"expected a FeatureLevel; write FeatureLevel.{right}"
            yield f"feature_level {wrong}", operator, {"feature_level": wrong}, error, fix
    for operator, first in INTRODUCED.items():
        for at in LEVELS[: LEVELS.index(first)]:
            error = FeatureLevelError, None, "feature_level"
            said = f"not available at feature level {at} (introduced in {first})"
            yield f"not yet introduced at {at}", operator, {"feature_level": level(at)}, error, said


def too_low_levels():
    image = {"input": np.ones((1, 1, 2, 3), np.float32)}
    small_image = {"input": u8(1, 4, 7), "filter": s8(6, 4, 3)}
    for operator, at, changes, tensor, rule, said in (
        (DEQUANTIZE, "2_1", {}, "InputTensor", "dimension_count", "has rank 2 (allowed from 3_0), {} allows 4"),
        (DEQUANTIZE, "2_0", {"input": s8(1, 1, 2, 3), "zero_point": s8()}, "InputTensor", "data_type",
         "has data type INT8 (allowed from 2_1), {} allows UINT8"),
        (DEQUANTIZE, "5_2", {"scale": np.float16(1)}, "ScaleTensor", "data_type",
         "has data type FLOAT16 (allowed from 6_0), {} allows FLOAT32"),
        (DEQUANTIZE, "6_1", {"zero_point": None}, "ZeroPointTensor", "required",
         "is missing (optional from 6_2), {} requires it"),
        (QUANTIZE, "6_3", {"zero_point": np.zeros((), np.int16)}, "ZeroPointTensor", "data_type",
         f"has data type INT16 {OURS}, {{}} allows INT8 or UINT8"),
        (QUANTIZE, "6_4", {"zero_point": np.zeros((), np.uint16)}, "ZeroPointTensor", "data_type",
         f"has data type UINT16 {OURS}, {{}} allows INT8 or UINT8"),
        (QUANTIZE, "6_4", {"output_dtype": jnp.uint16, "zero_point": 3}, "output_dtype", "data_type",
         f"is uint16 {OURS}, {{}} allows int8 or uint8"),
        (QUANTIZE, "6_2", {"output_dtype": jnp.int16, "zero_point": 3}, "output_dtype", "data_type",
         f"is int16 {OURS}, {{}} allows int8 or uint8"),
        (QUANTIZE, "1_0", {**image, "output_dtype": jnp.int8, "zero_point": 3}, "output_dtype", "data_type",
         "is int8 (allowed from 2_1), {} allows uint8"),
        (MATRIX_MULTIPLY, "3_1", {}, "ATensor", "dimension_count", "has rank 3 (allowed from 4_0), {} allows 4"),
        (CONVOLUTION, "3_1", small_image, "InputTensor", "dimension_count",
         "has rank 3 (allowed from 4_0), {} allows 4"),
        (MATRIX_MULTIPLY_INTEGER, "2_1", {}, "ATensor", "dimension_count",
         "has rank 3 (allowed from 4_0), {} allows 4"),
        (CONVOLUTION_INTEGER, "3_0", small_image, "InputTensor", "dimension_count",
         "has rank 3 (allowed from 4_0), {} allows 4"),
    ):  # fmt: skip
        changes, said = {**changes, "feature_level": level(at)}, f"{tensor} {said.format(f'feature level {at}')}"
        yield f"{tensor} at {at}", operator, changes, (FeatureLevelError, tensor, rule), said


@batches(wrong_output_types)
def test_wrong_output_types(cases):
    assert problems(cases) == ""


@batches(wrong_levels)
def test_wrong_levels(cases):
    assert problems(cases) == ""


@batches(too_low_levels)
def test_levels_that_are_too_low(cases):
    assert problems(cases) == ""
    # At the level that the error names, the call is valid; the level is jaxdml's own only where the error says so.
    for case in cases:
        error = caught(case.operator, case.arguments)
        assert (error.minimum_feature_level is dml.FeatureLevel.JAXDML) == (OURS in str(error))
        allowed = {**case.arguments, "feature_level": error.minimum_feature_level}
        jax.eval_shape(lambda case=case, allowed=allowed: call(case.operator, allowed))
