"""Calls as descs and what is bound to them, for the tests of compiled operators."""

import dataclasses

import numpy as np

import jaxdml as dml
from cases import Case

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


def described(case):
    """The desc of a call, and its arrays as the desc wants them bound: in its sizes, or flat where it has strides."""
    desc = dml.desc_of(getattr(dml, case.operator), *case.arguments, **case.options)
    names = [field.name for field in dataclasses.fields(desc) if field.name.endswith("_tensor")]
    tensors = {}
    for name, array in zip(names, case.arguments, strict=False):
        if array is not None:
            tensor = getattr(desc, name)
            tensors[name] = np.ascontiguousarray(np.reshape(array, -1 if tensor.strides else tensor.sizes))
    return desc, tensors


def owning(desc, *names):
    changes = {name: dataclasses.replace(getattr(desc, name), flags=OWNED) for name in names}
    return dataclasses.replace(desc, **changes)


def multiply():
    case = Case(
        "quantized_linear_matrix_multiply",
        (A, np.float32(0.1), np.uint8(3), B, np.float32(0.1), None, np.float32(9), np.uint8(5)),
        {},
    )
    desc, tensors = described(case)
    return dml.compile_operator(owning(desc, "b_tensor")), tensors
