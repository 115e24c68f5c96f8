"""Wrong calls: options that are not integers, too few or too many, too small, or that the sizes do not allow."""

import jax
import jax.numpy as jnp
import numpy as np

from _operators.calls import OPTIONS, OPTIONS_BY_NAME, at_fault, batches, page_name, problems, s8
from helpers.descs import CONVOLUTIONS, POOLING
from jaxdml import ArgumentTypeError, DescError

KINDS = (True, 1.0, "1", None, {}, np.float32(1), np.bool_(1), np.array(1), jnp.ones((), np.int32), jnp.ones(2))
SEQUENCES = ((1, True), [1, 1.0], (1, None), np.ones((2, 2), int), np.ones(2), range(2))


def wrong_kinds():
    for operator, name in OPTIONS_BY_NAME:
        tensor, one = page_name(name).removesuffix("Tensor"), name == "group_count"
        for index, wrong in enumerate((*KINDS, *([(1,), [1], np.ones(2, int)] if one else SEQUENCES))):
            alternative = "" if one else " or a tuple of 2 integers"
            expected = f"{'' if wrong is not None else 'None'}, expected an integer{alternative}"
            why = "; it decides shapes: write Python integers" if isinstance(wrong, jax.Array) else ""
            case, error = f"{name} of another kind {index}", (ArgumentTypeError, tensor, "static")
            yield case, operator, {name: wrong}, error, f"{tensor} is ", expected + why
    for index, wrong in enumerate(
        (0, 1, 1.0, "True", None, {}, (True,), np.bool_(True), jnp.ones((), bool), np.array(True))
    ):
        why = "; it decides what is computed: write a Python value" if isinstance(wrong, jax.Array) else ""
        case, error = f"include_padding of another kind {index}", (ArgumentTypeError, "IncludePadding", "static")
        yield case, POOLING, {"include_padding": wrong}, error, "IncludePadding is ", "expected True or False" + why


def wrong_values():
    for operator, name in OPTIONS_BY_NAME:
        least = OPTIONS[operator][name]
        tensor, one = page_name(name).removesuffix("Tensor"), name == "group_count"
        for wrong in dict.fromkeys([least - 1, -1, -7]):
            error = DescError, tensor, "group_count" if one else "values"
            said = f"{tensor} is {wrong}, expected an integer of at least 1" if one else f"{tensor} has values "
            yield f"{name} {wrong}", operator, {name: wrong}, error, said
        for wrong in [] if one else [(least - 1, 1), (-1, 1), (1,), (1, 1, 1), ()]:
            said = f"{tensor} has values {wrong}, expected a tuple of 2 integers from {least} to 4294967295"
            yield f"{name} {wrong}", operator, {name: wrong}, (DescError, tensor, "values"), said


def wrong_sizes():
    for rule, changes, said in (
        ("kernel", {"filter": s8(6, 4, 8, 4)},
         "spans 8 elements with dilation 1, the padded input has 7; pad the input or shrink the kernel"),
        ("kernel", {"filter": s8(6, 4, 3, 10)}, "spans 10 elements with dilation 1, the padded input has 9"),
        ("kernel", {"dilations": (1, 3)}, "spans 10 elements with dilation 3, the padded input has 9"),
        ("kernel", {"dilations": 5, "start_padding": (2, 9), "end_padding": (1, 9)},
         "spans 11 elements with dilation 5, the padded input has 10"),
        ("channels", {"filter": s8(6, 3, 3, 4)},
         "has 3 input channels, expected 4: InputTensor's 4 divided by GroupCount 1; write input.tr"),
        ("channels", {"filter": s8(6, 1, 3, 4)}, "has 1 input channels, expected 4"),
        ("channels", {"group_count": 2}, "has 4 input channels, expected 2"),
        ("channels", {"filter": s8(6, 1, 3, 4), "group_count": 4},
         "has 6 output channels, expected a multiple of GroupCount 4"),
    ):  # fmt: skip
        for operator in CONVOLUTIONS:
            yield f"filter {said}", operator, changes, (DescError, "FilterTensor", rule), f"FilterTensor {said}"


@batches(wrong_kinds)
def test_options_of_wrong_kinds(cases):
    assert problems(cases) == ""


@batches(wrong_values)
def test_options_of_wrong_values(cases):
    assert problems(cases) == ""


@batches(wrong_sizes)
def test_options_that_the_sizes_do_not_allow(cases):
    assert problems(cases) == ""
    assert at_fault(cases) > len(cases) / 2
