"""Wrong calls of quantize and dequantize: blocks of unequal sizes, and types that do not agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jaxdml as dml
from _operators.calls import GOOD, batches, call, caught, problems, refusal_of, remedied, steps, u8
from helpers.compare import assert_same_bits
from helpers.descs import DEQUANTIZE_BLOCKS, QUANTIZE_BLOCKS, case
from jaxdml import DescError

F16, F32 = np.float16, np.float32
SCALE, ZERO_POINT = "QuantizationTensors[0]", "QuantizationTensors[1]"
X = np.full((2, 4, 6), 1.5, F32)
BLOCKED_DATA = {QUANTIZE_BLOCKS: X, DEQUANTIZE_BLOCKS: u8(2, 4, 6)}


def blocks():
    """Scales and zero points have input's rank, and sizes that divide its sizes."""
    for operator, x in BLOCKED_DATA.items():
        for name, tensor, make in (("scale", SCALE, steps), ("zero_point", ZERO_POINT, u8)):
            for shape, fix in (
                ((4,), f"for blocks along dimension 1 write {name}.reshape(1, -1, 1)"),
                ((6,), f"for blocks along dimension 2 write {name}.reshape(1, 1, -1)"),
                ((3,), f"for blocks along dimension 2 write {name}.reshape(1, 1, -1)"),
                ((1,), f"write {name}.reshape(1, 1, -1)"),
                ((4, 6), f"write {name}.reshape(1, 4, 6)"),
                ((4, 1), f"write {name}.reshape(1, 4, 1)"),
            ):
                error, said = (DescError, tensor, "same_dimension_count"), f"{tensor} has rank {len(shape)}, expected 3"
                changes = {"input": x, name: make(*shape)}
                yield f"{name} {shape}", operator, changes, error, said + ", that of InputTensor; ", fix
            for shape, axis, padded in (((2, 3, 6), 1, 6), ((1, 1, 4), 2, 8), ((2, 4, 5), 2, 10)):
                said = f"has Sizes {list(shape)}, which do not divide InputTensor's [2, 4, 6]: all blocks must have "
                fix = f"; {tensor} is the argument {name}; pad the input to {padded} in dimension {axis}, "
                fix += f"or give a number of values that divides {x.shape[axis]}"
                changes, error = {"input": x, name: make(*shape)}, (DescError, tensor, "sizes")
                yield f"{name} {shape}", operator, changes, error, said, fix
            error, fix = (
                (DescError, tensor, "sizes"),
                f"{tensor} is the argument {name}; there are more values than elements in dimension 1",
            )
            yield f"{name} of too many", operator, {"input": x, name: make(2, 8, 6)}, error, fix


def types_of_blocks():
    one = np.ones((1, 1, 1))
    for operator, changes, tensor, *said in (
        (QUANTIZE_BLOCKS, {"input": X.astype(F16), "scale": one.astype(F32)}, SCALE,
         "has data type FLOAT32, expected FLOAT16: a scale has the type of InputTensor; "
         "write scale.astype(jnp.float16)"),
        (QUANTIZE_BLOCKS, {"input": X, "scale": one.astype(F16)}, SCALE,
         "has data type FLOAT16, expected FLOAT32: a scale has the type of InputTensor; "
         "write scale.astype(jnp.float32)"),
        (QUANTIZE_BLOCKS, {"input": X, "scale": one.astype(np.int8)}, SCALE, "write scale.astype(jnp.float32)"),
        (QUANTIZE_BLOCKS, {"input": u8(2, 4, 6)}, "InputTensor", "dequantize it first"),
        (QUANTIZE_BLOCKS, {"input": X, "zero_point": np.ones((), np.int16)}, ZERO_POINT, "has data type INT16"),
        (DEQUANTIZE_BLOCKS, {"input": u8(2, 4, 6).astype(np.int32), "zero_point": None}, "InputTensor",
         "has data type INT32, feature level 6_4 allows INT8, INT4, UINT8 or UINT4; convert it with input.astype"),
        (DEQUANTIZE_BLOCKS, {"input": X, "zero_point": None}, "InputTensor", "quantize it first"),
        (DEQUANTIZE_BLOCKS, {"input": u8(2, 4, 6).astype("uint4"), "zero_point": jnp.asarray(one, "int4")}, ZERO_POINT,
         "has data type INT4, expected UINT4: a zero point has the type of InputTensor; "
         "give the UINT4 zero point that InputTensor was quantized with"),
        (DEQUANTIZE_BLOCKS, {"input": u8(2, 4, 6).astype("int4"), "zero_point": one.astype(np.int8)}, ZERO_POINT,
         "has data type INT8, expected INT4: ",
         "if all values of zero_point fit INT4, write zero_point.astype(jnp.int4)"),
    ):  # fmt: skip
        yield f"{tensor} {said[0]}", operator, changes, (DescError, tensor, "data_type"), *said
    for dtype in (np.int16, np.uint16, np.int32):
        for changes in ({}, {"feature_level": dml.FeatureLevel.JAXDML}):  # its 16-bit outputs are another operator's
            said = f"output_dtype is {np.dtype(dtype)}, feature level "
            error, changes = (
                (DescError, "output_dtype", "data_type"),
                {**changes, "output_dtype": dtype, "zero_point": 3},
            )
            yield f"output_dtype {dtype}", QUANTIZE_BLOCKS, changes, error, said, "allows int8, int4, uint8 or uint4"
    for dtype, number, low, high in (
        ("uint4", 16, 0, 15),
        ("int4", 8, -8, 7),
        ("int4", -9, -8, 7),
        ("uint4", -1, 0, 15),
    ):
        said = f"is {number}, out of {dtype.upper()}'s range; write an integer from {low} to {high}, or "
        changes, error = {"output_dtype": dtype, "zero_point": number}, (DescError, ZERO_POINT, "range")
        yield f"{number} of {dtype}", QUANTIZE_BLOCKS, changes, error, said
        changes = {"input": u8(2, 4, 6).astype(dtype), "zero_point": number}
        yield (
            f"{number} of {dtype}",
            DEQUANTIZE_BLOCKS,
            changes,
            error,
            f"is {number}, out of {dtype.upper()}'s range; ",
        )


def arguments_at_fault():
    """The error is about the argument that the caller can change, not about the output that follows from it."""
    one = np.ones((1, 1, 1))
    for dtype in (F32, F16):
        changes = {"input": X, "zero_point": one.astype(dtype)}
        yield f"zero point {dtype}", QUANTIZE_BLOCKS, changes, (DescError, ZERO_POINT, "data_type"), "zero point"
    for dtype in (np.int8, "uint4"):
        changes = {"input": u8(2, 4, 6), "scale": one.astype(dtype)}
        fix = "write scale.astype(jnp.float32)"
        yield f"scale {dtype}", DEQUANTIZE_BLOCKS, changes, (DescError, SCALE, "data_type"), fix


@batches(blocks)
def test_blocks(cases):
    assert problems(cases) == ""


@batches(types_of_blocks)
def test_types_of_blocks(cases):
    assert problems(cases) == ""


@batches(arguments_at_fault)
def test_the_argument_is_at_fault(cases):
    assert problems(cases) == ""


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray])
def test_remedies_of_nibbles_can_be_followed(make):
    """The error's remedy must also work for NumPy's arrays."""
    for dtype, others in (("uint4", ("uint8", "int8")), ("int8", ("int4", "uint4"))):
        for other in others:
            zero_point = make(np.ones((1, 1, 1), other))
            nibbles = {"scale": F32(0.5), "input": u8(2, 4, 6).astype(dtype), "zero_point": zero_point}
            mended = remedied(caught(DEQUANTIZE_BLOCKS, nibbles), nibbles)
            assert_same_bits(call(DEQUANTIZE_BLOCKS, mended), np.full((2, 4, 6), 3, F32))


def test_a_scale_in_the_place_of_a_zero_point_is_not_to_be_cast():
    """A cast to an integer would silently discard it."""
    for operator, x in BLOCKED_DATA.items():
        swapped = {**GOOD[operator], "input": x, "scale": F32(0.5), "zero_point": np.full((1, 1, 1), F32(0.1))}
        error = caught(operator, swapped)
        assert str(error).endswith("; a zero point is an integer: are scale and zero_point swapped?")
        assert remedied(error, swapped) is None


def test_remedies_of_blocks_give_what_they_say():
    """A scale reshaped as the error says is one for each entry of the dimension that the error names."""
    for operator, x in BLOCKED_DATA.items():
        good = {**GOOD[operator], "input": x, "scale": steps(4)}
        error = caught(operator, good)
        assert str(error).endswith("for blocks along dimension 1 write scale.reshape(1, -1, 1)")
        spread = np.broadcast_to(steps(4)[:, None], x.shape)
        with case(operator):
            ours, same = (call(operator, {**good, "scale": s}) for s in (steps(4).reshape(1, -1, 1), spread))
            assert_same_bits(ours, same)


@pytest.mark.parametrize("operator", BLOCKED_DATA)
def test_a_scale_of_too_many_dimensions_is_to_be_reshaped(operator):
    """The remedy must be accepted: a scale has input's rank, it does not broadcast."""
    x = BLOCKED_DATA[operator]
    error = caught(operator, {**GOOD[operator], "input": x, "scale": steps(1, 2, 4, 6)})
    assert (error.tensor, error.rule) == (SCALE, "same_dimension_count")
    assert "broadcast" not in str(error)
    broadcasting = {**GOOD[operator], "input": x, "scale": steps(6)}
    assert refusal_of(call, operator, broadcasting).rule == "same_dimension_count"


@pytest.mark.parametrize(
    ("whole", "sizes", "is_right"),
    [
        ("m, 6", "1, 1", True), ("m, 6", "m, 1", True), ("m, 6", "m, 3", True), ("m, 6", "2, 1", False),
        ("m, 6", "2*m, 1", False), ("m, 6", "n, 1", False), ("4*m, 6", "2, 1", False), ("4*m, 6", "m, 1", False),
    ],
)  # fmt: skip
def test_blocks_of_symbolic_sizes(whole, sizes, is_right):
    """It is unknown which numbers divide m: a scale has one value there, or m. Multiples of m are not supported."""
    scope = export.SymbolicScope()
    x, scale = (jax.ShapeDtypeStruct(export.symbolic_shape(text, scope=scope), F32) for text in (whole, sizes))
    trace = export.export(jax.jit(lambda x, scale: dml.quantize(x, scale, 3)))
    if is_right:
        assert trace(x, scale).out_avals[0].shape == x.shape
    else:
        with pytest.raises(DescError) as error:
            trace(x, scale)
        assert (error.value.tensor, error.value.rule) == (SCALE, "sizes")
        assert str(error.value).endswith("scale; give dimension 0 size 1 or the size of the input's dimension")


def test_an_output_type_without_a_name_has_no_range():
    """DirectML has no such type: that, not the number beside it, is the mistake."""
    for dtype in (jnp.int2, jnp.uint2):
        error = caught(QUANTIZE_BLOCKS, {**GOOD[QUANTIZE_BLOCKS], "zero_point": 7, "output_dtype": dtype})
        assert "UNKNOWN" not in str(error)
        assert error.tensor == "output_dtype"
