"""Calls as descs, and the arrays that are bound to them, for the tests of compiled operators."""

import dataclasses

import numpy as np

import jaxdml as dml
from helpers.cases import Case

OWNED = dml.TensorFlags.OWNED_BY_DML
RNG = np.random.default_rng(0)
X, F = RNG.integers(0, 256, (2, 4, 6, 6), np.uint8), RNG.integers(-128, 128, (6, 2, 3, 3), np.int8)
A, B = RNG.integers(0, 256, (2, 3, 5), np.uint8), RNG.integers(-128, 128, (2, 5, 4), np.int8)
V = RNG.normal(0, 50, (2, 3, 4)).astype(np.float32)
ROW, COLUMN = np.float32([[[1], [2], [3]]]) / 8, np.float32([0.1, 0.2, 0.3, 0.4])
ELEMENTWISE = [
    Case("element_wise_dequantize_linear", (A, np.float32(0.1), np.uint8(3)), {}),
    Case("element_wise_dequantize_linear", (A, np.float32([1, 2, 3, 4, 5]), None), {}),
    Case("element_wise_dequantize_linear", (A, ROW, np.uint8([1, 2, 3, 4, 5])), {}),
    Case("element_wise_quantize_linear", (V, ROW, np.int8(3)), {}),
    Case("element_wise_quantize_linear", (V.astype(np.float16), np.float16(0.5), None), {"output_dtype": np.int8}),
    Case(
        "element_wise_quantized_linear_add",
        (A, np.float32(0.1), np.uint8(3), A[::-1], np.float32(0.2), None, np.float32(0.3), np.int8(5)),
        {},
    ),
]


# Cases of the operators of `spec_more_pages`.
NIBBLES = RNG.integers(0, 16, (4, 6), np.uint8).astype("uint4")
FULL_BIAS = RNG.normal(0, 50, (2, 3, 4)).astype(np.float32)
MORE = [
    Case("matrix_multiply_integer", (A, np.uint8([[1], [2], [3]]), B, np.int8([1, 2, 3, 4])), {}),
    Case("matrix_multiply_integer", (A, None, B, np.int8(-7)), {}),
    Case("convolution_integer", (X, np.uint8(3), F, np.int8([1, 2, 3, 4, 5, 6])), {"strides": 2, "group_count": 2}),
    Case("convolution_integer", (X[:, :, 0], None, F[..., 0], None), {"start_padding": 1, "group_count": 2}),
    Case("dynamic_quantize_linear", (V,), {"output_dtype": np.int8}),
    Case("dynamic_quantize_linear", (V.astype(np.float16),), {}),
    Case("matrix_multiply_integer_to_float", (A, ROW, np.uint8(3), B, COLUMN, None, FULL_BIAS), {}),
    Case(
        "matrix_multiply_integer_to_float",
        (A.astype(np.int16), np.float16(0.25), None, B, np.float16(0.5), np.int8(3), np.float16([1, -2, 3, 4])),
        {},
    ),
    Case(
        "quantized_linear_average_pooling",
        (X, np.float32(0.1), np.uint8(3), np.float32([1, 2, 3, 4]) / 16, np.int8(5)),
        {"window_size": (3, 2), "strides": 2, "end_padding": 1},
    ),
    Case("quantize", (V, ROW, None), {"output_dtype": np.int8}),
    Case("quantize", (NIBBLES.astype(np.float32), np.float32([[1], [3]]), np.asarray(3, "int4")), {}),
    Case("dequantize", (NIBBLES, np.float16([[1, 2, 3]]), NIBBLES[:2, :1]), {}),
    Case("dequantize", (A, np.float32(0.3), None), {}),
]


def described(case):
    """The desc of a call, and its arrays as they are bound: in the desc's sizes, or flat where the desc has strides."""
    desc = dml.desc_of(getattr(dml, case.operator), *case.arguments, **case.options)
    given = iter([array for array in case.arguments if array is not None])

    def bound(tensor):
        return np.ascontiguousarray(np.reshape(next(given), -1 if tensor.strides else tensor.sizes))

    tensors = {}
    for name in dml.compile_operator(desc).dispatched:
        value = getattr(desc, name)
        tensors[name] = tuple(map(bound, value)) if isinstance(value, tuple) else bound(value)
    assert next(given, None) is None
    return desc, tensors


def of_each(value, function):
    """Applies the function to the value of a field: to one tensor, or to each of several."""
    return tuple(map(function, value)) if isinstance(value, tuple) else function(value)


def owning(desc, *names):
    changes = {
        name: of_each(getattr(desc, name), lambda tensor: dataclasses.replace(tensor, flags=OWNED)) for name in names
    }
    return dataclasses.replace(desc, **changes)


def multiply():
    case = Case(
        "quantized_linear_matrix_multiply",
        (A, np.float32(0.1), np.uint8(3), B, np.float32(0.1), None, np.float32(9), np.uint8(5)),
        {},
    )
    desc, tensors = described(case)
    return dml.compile_operator(owning(desc, "b_tensor")), tensors
