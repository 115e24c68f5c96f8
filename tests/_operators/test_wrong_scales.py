"""Wrong calls: scales that are not numbers, do not fit their type, or are of another type."""

import fractions

import numpy as np

from _operators.calls import at_fault, batches, conversion, ending, page_name, problems, upper
from helpers.descs import ADD, QUANTIZE
from jaxdml import ArgumentTypeError, DescError

KINDS = (True, "0.5", [0.5], (0.5,), 1j, {}, object(), np.bool_(1), np.complex64(1))
TOO_LARGE = (1e300, -1e300, 10**400, 2**128, 10**5000, np.float64(1e39), fractions.Fraction(10**400))


def wrong_scales():
    for operator, name in ending("scale"):
        tensor = page_name(name, operator)
        for wrong in KINDS:
            kind = type(wrong).__name__
            fix = f", expected a number or an array{conversion(name, wrong, f'jnp.asarray({name}, jnp.float32)')}"
            case, error = f"{name} a {type(wrong).__module__} {kind}", (ArgumentTypeError, tensor, "array")
            yield case, operator, {name: wrong}, error, f"{tensor} is a", kind, fix
        for index, wrong in enumerate(TOO_LARGE):
            error, said = (DescError, tensor, "range"), ", which FLOAT32 cannot hold"
            yield f"{name} too large {index}", operator, {name: wrong}, error, f"{tensor} is ", said
        for dtype in (np.float64, np.int32):
            said = f"{tensor} has data type {upper(dtype)}, feature level 6_4 allows FLOAT32"
            fix = f"; write {name}.astype(jnp.float32)"
            changes, error = {name: np.ones((), dtype)}, (DescError, tensor, "data_type")
            yield f"{name} of {upper(dtype)}", operator, changes, error, said, fix
        error, said = (ArgumentTypeError, tensor, "required"), f"{tensor} is None, but required; give {name}"
        yield f"{name} None", operator, {name: None}, error, said


def wrong_halves():
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


@batches(wrong_scales)
def test_wrong_scales(cases):
    assert problems(cases) == ""
    assert at_fault(cases) == sum(case.name.endswith("INT32") for case in cases)


@batches(wrong_halves)
def test_scales_of_float16(cases):
    assert problems(cases) == ""
    assert at_fault(cases) >= len(cases) - 1
