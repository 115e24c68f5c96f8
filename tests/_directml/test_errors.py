"""The errors: classes, attributes, copies; messages that stay readable for any input."""

import copy
import dataclasses
import pickle

import jaxdml as dml
from helpers.descs import (
    ADD,
    CONVOLUTION,
    CONVOLUTIONS,
    POOLING,
    assert_refused,
    case,
    f32,
    level,
    linear,
    put,
    refusal,
    right,
)


def errors():
    """One error of each class, raised by validate; ArgumentTypeError is about calls, so it is constructed here."""
    return [
        refusal(right(CONVOLUTION, group_count=0)),
        refusal(right(CONVOLUTION, filter_scale_tensor=f32(6)), level("4_0")),
        dml.ArgumentTypeError("text", operator=ADD, tensor="ATensor", rule="array", expected=int, received="x"),
    ]


def test_error_classes():
    assert [type(error) for error in errors()] == [dml.DescError, dml.FeatureLevelError, dml.ArgumentTypeError]
    assert issubclass(dml.DescError, ValueError)
    assert issubclass(dml.FeatureLevelError, dml.DescError)
    assert issubclass(dml.ArgumentTypeError, dml.DescError)
    assert issubclass(dml.ArgumentTypeError, TypeError)


def test_error_attributes():
    error = errors()[1]
    assert vars(error) == {
        "operator": "quantized_linear_convolution",
        "tensor": "FilterScaleTensor",
        "rule": "dimension_count",
        "expected": (3, 4),
        "received": 1,
        "feature_level": dml.FeatureLevel.LEVEL_4_0,
        "minimum_feature_level": dml.FeatureLevel.LEVEL_5_2,
    }
    assert str(error) == (
        "quantized_linear_convolution: FilterScaleTensor has rank 1 (allowed from 5_2), feature level 4_0 allows 3 to 4"
    )
    assert vars(dml.DescError("text")) == dict.fromkeys(vars(error))


def test_errors_survive_copying_and_pickling():
    for error in errors():
        for again in (copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))):
            with case(type(error).__name__):
                twin = again(error)
                assert type(twin) is type(error)
                assert str(twin) == str(error)
                assert vars(twin) == vars(error)


def test_messages_stay_readable():
    """However long the values are: Python writes no integer of more than 4300 digits, and nobody reads one of 400."""
    for sizes in ((10**5000,), (10**400,), ("x" * 10**6,)):
        error = assert_refused(linear("UINT8", *sizes), "InputTensor", "sizes")
        assert len(str(error)) < 500
        assert error.received == sizes


def test_an_input_that_padding_makes_too_large():
    """Only operators with windows enlarge their input; a tensor's limit also holds for the enlarged input."""
    for operator in (*CONVOLUTIONS, POOLING):
        huge = {"start_padding": (2**31, 2**31), "strides": (2**32 - 1, 2**32 - 1)}
        if operator == POOLING:
            huge |= {"window_size": (1, 1), "include_padding": True}
        desc = right(operator, **huge)
        for name, tensor in desc.tensors().items():
            desc = put(desc, name, dataclasses.replace(tensor, sizes=(1, 1, 1, 1)))
        with case(operator):
            error = assert_refused(desc, "StartPadding", "elements")
            assert "pads the input to 4611686022722355201 elements, the limit is 4294967295; pad less" in str(error)
