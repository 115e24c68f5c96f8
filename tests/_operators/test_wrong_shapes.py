"""Wrong calls: ranks that the operator does not have, empty data, and shapes that do not fit each other."""

import itertools

import numpy as np

from _operators.calls import DATA, GOOD, at_fault, batches, page_name, problems, s8
from helpers.descs import (
    ADD,
    CONVOLUTION,
    CONVOLUTION_INTEGER,
    CONVOLUTIONS,
    DEQUANTIZE,
    MATRIX_MULTIPLY,
    MATRIX_MULTIPLY_TO_FLOAT,
    POOLING,
    PRODUCTS,
    QUANTIZE,
)
from helpers.spec_tables import table_at
from jaxdml import DescError


def aligned(shape, rank):
    """How a message writes a parameter's shape."""
    return list(((1,) * rank + shape)[-rank:])


def wrong_ranks():
    for operator, names in DATA.items():
        _, low, high, *_ = table_at(operator, "6_4")[page_name(names[0])]
        for rank in sorted({0, low - 1, high + 1, 9}):
            changes = {name: np.zeros((1,) * rank, GOOD[operator][name].dtype) for name in names}
            error = DescError, page_name(names[0]), "dimension_count"
            said, fix = f" has rank {rank}, feature level 6_4 allows {low} to {high}", f"; reshape {names[0]}"
            if rank < low:
                fix = f"; write {names[0]}[{', '.join(['None'] * (low - rank))}]"
            if operator == CONVOLUTION_INTEGER and rank > 4:
                fix = "; DirectML convolves in one or two spatial dimensions"
            yield f"rank {rank}", operator, changes, error, page_name(names[0]) + said + fix
        for name in names:
            good = GOOD[operator][name]
            for axis in range(good.ndim):
                empty = np.delete(good, slice(None), axis)
                error, said = (DescError, page_name(name), "sizes"), f"{page_name(name)} has Sizes {list(empty.shape)}"
                fix = ", no dimension may be empty; skip the call when there is no data"
                yield f"{name} empty {axis}", operator, {name: empty}, error, said + fix


def wrong_shapes():
    """Shapes that NumPy would broadcast, and shapes that fit nothing."""
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
    for operator, shape in itertools.product(PRODUCTS, ((2, 4, 6), (1, 5, 6), (3, 5, 6), (2, 6, 5))):
        said = f"BTensor has Sizes {list(shape)}, expected [2, 5, N]: ATensor has Sizes [2, 4, 5]"
        without_bias = {"bias": None} if operator == MATRIX_MULTIPLY_TO_FLOAT else {}  # a bias would not fit either
        changes = {"b": s8(*shape), **without_bias}
        yield f"b {shape}", operator, changes, (DescError, "BTensor", "sizes"), said
    for operator, name, shape, rank, first in (
        (ADD, "b", (3,), 2, "ATensor"),
        (ADD, "b", (1, 2, 3), 2, "ATensor"),
        *((operator, "b", (5, 6), 3, "ATensor") for operator in PRODUCTS),
        *((operator, "b", (1, 2, 5, 6), 3, "ATensor") for operator in PRODUCTS),
        *((operator, "filter", (6, 4, 3), 4, "InputTensor") for operator in CONVOLUTIONS),
    ):
        error = DescError, page_name(name), "same_dimension_count"
        said = f"has rank {len(shape)}, expected {rank}, that of {first}"
        yield f"{name} {shape}", operator, {name: s8(*shape)}, error, said


def wrong_parameter_shapes():
    """Scales and zero points in forms that the page does not have."""
    rows = "[1, 1, 1] or [1, 4, 1]", [(4,), (5,), (1, 5), (5, 1), (2, 1, 1), (2, 4, 1), (4, 5)]
    columns = "[1, 1, 1] or [1, 1, 6]", [(5,), (6, 1), (5, 1), (2, 1, 1), (2, 1, 6), (5, 6)]
    image = "[1, 1, 1, 1]", [(4,), (6,), (1, 4, 1, 1), (2, 1, 1, 1), (9,)]
    # The output is [2, 6, 5, 6]: NumPy would repeat [1, 6] over its rows.
    kernel = "[1, 1, 1, 1], [1, 6, 1, 1] or [6]", [(4,), (1, 6), (1, 1, 1, 6), (6, 1), (1, 4, 1, 1), (6, 1, 1, 1)]
    channels = "[1, 1, 1, 1] or [1, 4, 1, 1]", [(6,), (4, 1), (1, 1, 1, 4), (1, 6, 1, 1), (2, 1, 1, 1), (4, 1, 1, 1)]
    for operator, name, forms, shapes in (
        (ADD, "a", "[1, 1]", [(3,), (2, 1), (2, 3)]),
        (ADD, "b", "[1, 1]", [(3,), (2, 1), (2, 3)]),
        (ADD, "output", "[1, 1]", [(3,), (2, 1), (2, 3)]),
        *((operator, "a", *rows) for operator in PRODUCTS),
        *((operator, "b", *columns) for operator in PRODUCTS),
        (MATRIX_MULTIPLY, "output", "[1, 1, 1] or [1, 4, 1]",
         [(4,), (6,), (1, 6), (6, 1), (2, 1, 1), (2, 4, 1), (4, 6)]),
        *((operator, "input", *image) for operator in CONVOLUTIONS),
        *((operator, "filter", *kernel) for operator in CONVOLUTIONS),
        (POOLING, "input", *channels),
        (POOLING, "output", *channels),
        (CONVOLUTION, "output", "[1, 1, 1, 1]", [(6,), (1, 6, 1, 1), (2, 1, 1, 1)]),
    ):  # fmt: skip
        rank = GOOD[operator][DATA[operator][0]].ndim
        for argument in [f"{name}_{kind}" for kind in ("scale", "zero_point") if f"{name}_{kind}" in GOOD[operator]]:
            for shape in shapes:
                changes = {argument: np.ones(shape, GOOD[operator][argument].dtype)}
                error = DescError, page_name(argument), "sizes"
                said = f"has Sizes {aligned(shape, rank)}, expected {forms}"
                yield f"{argument} {shape}", operator, changes, error, said
    for shape in ((), (4,), (1, 6), (1, 1, 1, 6), (2, 6, 1, 1), (6, 1, 1, 1)):
        error, said = (DescError, "BiasTensor", "sizes"), f"has Sizes {aligned(shape, 4)}, expected [1, 6, 1, 1]"
        yield f"bias {shape}", CONVOLUTION, {"bias": np.ones(shape, np.int32)}, error, said
    said = "BiasTensor has rank 5, feature level 6_4 allows 3 to 4; reshape bias"
    bias, error = np.zeros((2, 1, 6, 1, 1), np.int32), (DescError, "BiasTensor", "dimension_count")
    yield "bias of rank 5", CONVOLUTION, {"bias": bias}, error, said


@batches(wrong_ranks)
def test_wrong_ranks(cases):
    assert problems(cases) == ""
    assert at_fault(cases) == len(cases)


@batches(wrong_shapes)
def test_wrong_shapes(cases):
    assert problems(cases) == ""
    assert at_fault(cases) == len(cases)


@batches(wrong_parameter_shapes)
def test_wrong_shapes_of_parameters(cases):
    assert problems(cases) == ""
    assert at_fault(cases) == len(cases)
