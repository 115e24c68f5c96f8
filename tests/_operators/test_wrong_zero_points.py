"""Wrong calls: zero points that are not integers, out of their type's range, or of another type."""

import numpy as np

from _operators.calls import GOOD, at_fault, batches, conversion, ending, page_name, problems, upper
from helpers.descs import ADD, BLOCKED, DEQUANTIZE, DEQUANTIZE_BLOCKS, QUANTIZE, QUANTIZE_BLOCKS
from jaxdml import ArgumentTypeError, DescError

KINDS = (True, 1.0, "1", [1], (1,), 1j, {}, np.bool_(1), np.float32(1))


def owner_of(operator, tensor):
    """The tensor that a zero point belongs to."""
    owners = {
        DEQUANTIZE: "InputTensor",
        QUANTIZE: "OutputTensor",
        DEQUANTIZE_BLOCKS: "InputTensor",
        QUANTIZE_BLOCKS: "OutputTensor",
    }
    return owners.get(operator, tensor.replace("ZeroPoint", ""))


def not_an_integer(operator, name):
    """No float is to be cast, which would turn a scale into 0; operators without scales have none to swap."""
    scale = name.replace("zero_point", "scale")
    swapped = f": are {scale} and {name} swapped?" if scale in GOOD[operator] else ""
    return f"; a zero point is an integer{swapped}"


def wrong_values():
    for operator, name in ending("zero_point"):
        tensor, dtype = page_name(name, operator), GOOD[operator][name].dtype
        # Here an array determines the output's type, so it is fixed for the other values.
        fixed = {"output_dtype": dtype} if owner_of(operator, tensor) == "OutputTensor" else {}
        for wrong in KINDS:
            kind, expected = type(wrong).__name__, ", expected None, an integer or an array"
            case, error = f"{name} a {type(wrong).__module__} {kind}", (ArgumentTypeError, tensor, "array")
            has_fractions = kind in ("float", "float32", "complex")
            fix = conversion(name, wrong, f"jnp.asarray({name}, jnp.{dtype})")
            fix = not_an_integer(operator, name) if has_fractions else fix
            yield case, operator, {name: wrong, **fixed}, error, f"{tensor} is a", kind, expected, fix
        limits = np.iinfo(dtype)
        too_far = limits.min - 1, limits.max + 1, 2**64, -(10**400), 10**5000, np.int32(300), np.uint64(2**63)
        for index, wrong in enumerate(too_far):
            said = f", out of {upper(dtype)}'s range; write an integer from {limits.min} to {limits.max}"
            error = DescError, tensor, "range"
            yield f"{name} out of range {index}", operator, {name: wrong, **fixed}, error, f"{tensor} is ", said
    changes = {"a": np.zeros((2, 3), np.float32), "a_zero_point": 2**40}
    yield "beside float data", ADD, changes, (DescError, "AZeroPointTensor", "range"), "out of INT32's range"


def wrong_types():
    for operator, name in ending("zero_point"):
        tensor, dtype = page_name(name, operator), GOOD[operator][name].dtype
        owner = owner_of(operator, tensor)
        fixed = {"output_dtype": dtype} if owner == "OutputTensor" else {}
        for other in (np.int64, np.float32):
            said = f"{tensor} has data type {upper(other)}, feature level 6_4 allows "
            fix = f"; if all values of {name} fit {upper(dtype)}, write {name}.astype(jnp.{dtype})"
            if other == np.float32:
                fix = not_an_integer(operator, name)
            if operator == QUANTIZE_BLOCKS and other == np.float32:
                continue  # test_wrong_products_and_windows has it
            if operator == DEQUANTIZE_BLOCKS and other == np.float32:  # its row has the types of scales, too
                said, fix = f"{tensor} has data type FLOAT32, expected ", f"a zero point has the type of {owner}{fix}"
            changes, error = {name: np.ones((), other)}, (DescError, tensor, "data_type")
            yield f"{name} of {upper(other)}", operator, changes, error, said, fix
        said = f"{tensor} has type bool, which DirectML does not have; write {name}.astype(jnp.{dtype})"
        yield f"{name} of bool", operator, {name: np.ones((), bool)}, (DescError, tensor, "data_type"), said
        other = np.uint8 if dtype == np.int8 else np.int8
        if fixed:
            error, said = (DescError, "output_dtype", "output_dtype"), f"output_dtype is {dtype}, but {tensor} has "
            fix = f"data type {upper(other)}; make them equal or leave output_dtype out"
        else:
            error, said = (DescError, tensor, "same_data_type"), f"{tensor} has data type {upper(other)}, expected "
            advice = f"; give the {upper(dtype)} zero point that {owner} was quantized with"
            fix = f"{upper(dtype)}, that of {owner}{advice}"
            if operator in BLOCKED:
                error = DescError, tensor, "data_type"
                fix = f"{upper(dtype)}: a zero point has the type of {owner}{advice}"
        yield f"{name} of {upper(other)}", operator, {name: np.ones((), other), **fixed}, error, said + fix


@batches(wrong_values)
def test_wrong_values(cases):
    assert problems(cases) == ""


@batches(wrong_types)
def test_wrong_types(cases):
    assert problems(cases) == ""
    assert at_fault(cases) >= len(cases) / 2
