"""The pages' tensor-constraint lists: which tensors must have the same rank, sizes or data type."""

import dataclasses
import re

import pytest

import jaxdml as dml
from helpers.descs import DYNAMIC_QUANTIZE, OPERATORS, case, may_be_absent, put, refusal, right, without
from helpers.spec_tables import BULLETS, table_at
from jaxdml import DataType


def other_type(operator, name, tensor):
    """Another data type that the tensor's row allows."""
    return next(t for t in table_at(operator, "6_4")[name].data_types if t != tensor.data_type.name)


def other_rank(operator, name, tensor):
    """The tensor's sizes with one more dimension, or with one fewer if its row does not allow more."""
    roomy = len(tensor.sizes) < table_at(operator, "6_4")[name].highest_count
    return (1, *tensor.sizes) if roomy else tensor.sizes[1:]


DEVIATIONS = {
    "DimensionCount": (lambda *which: {"sizes": other_rank(*which)}, "same_dimension_count"),
    "Sizes": (lambda _, __, tensor: {"sizes": (*tensor.sizes[:-1], tensor.sizes[-1] + 1)}, "same_sizes"),
    "DataType": (lambda *which: {"data_type": DataType[other_type(*which)]}, "same_data_type"),
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_constraints(operator):
    """One tensor violates its bullet: the error names two of the bullet's tensors, including this one."""
    for what, names in BULLETS[operator]:
        for name in names:
            with case(what, name):
                assert_named(operator, what, names, name)


def assert_named(operator, what, names, name):
    desc = right(operator)
    tensor = desc.tensors()[name]
    deviate, rule = DEVIATIONS[what]
    deviant = dataclasses.replace(tensor, **deviate(operator, name, tensor))
    error = refusal(put(desc, name, deviant))
    first, second = error.tensor, re.search(r", that of ([\w\[\]]+)", str(error))[1]
    assert (type(error), error.operator, error.rule) == (dml.DescError, operator, rule)
    assert {first, second} <= set(names)
    assert name in (first, second)
    assert first != second
    values = {"DimensionCount": [4, len(deviant.sizes)], "Sizes": [tensor.sizes, deviant.sizes]}
    expected = values.get(what, [tensor.data_type, deviant.data_type])
    assert [error.expected, error.received] == (expected if first == name else expected[::-1])


@pytest.mark.parametrize("operator", OPERATORS)
def test_absent_tensors_constrain_nothing(operator):
    desc = right(operator)
    absent = [name for name in desc.tensors() if may_be_absent(operator, name)]
    assert absent or operator == DYNAMIC_QUANTIZE
    assert dml.validate(without(desc, *absent)) == dml.validate(desc)
