"""An operator that DirectML does not have, made here from a page and a function alone, works in all of the library.

It has what the five operators do not have: two outputs, one of them named OutputScaleTensor, which others take as
an input; a tuple of input tensors, an enum and a bool.
"""

import dataclasses
import enum
import json
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits, assert_same_values
from jaxdml import dxdispatch
from jaxdml._directml.data_types import FLOAT32, INT32
from jaxdml._directml.desc import OperatorDesc, operator_desc
from jaxdml._directml.feature_levels import Same, Support
from jaxdml._directml.fields import INPUT, OUTPUT, boolean, choice, tensor, tensors
from jaxdml._directml.page import Page
from jaxdml._directml.pages import PAGES
from jaxdml._operators.call import OPERATORS, operator

pytestmark = pytest.mark.oldest

NAME = "made_up_sum"
LEVEL = dml.FeatureLevel.LEVEL_3_0


class Rounding(enum.IntEnum):
    """DML_MADE_UP_ROUNDING."""

    DOWN = 0
    UP = 1


@operator_desc
class MadeUpSumDesc(OperatorDesc):
    """DML_MADE_UP_SUM_OPERATOR_DESC."""

    operator: ClassVar[str] = NAME

    addend_tensors: tuple[dml.TensorDesc, ...] | None = tensors(INPUT)
    output_tensor: dml.TensorDesc | None = tensor(OUTPUT)
    output_scale_tensor: dml.TensorDesc | None = tensor(OUTPUT.scale_of("output_tensor"))
    rounding: Rounding | None = choice(Rounding, "DML_MADE_UP_ROUNDING_")
    negative: bool | None = boolean()


PAGE = Page(
    desc=MadeUpSumDesc,
    support={
        LEVEL: {
            "AddendTensors": Support((1, 3), FLOAT32),
            "OutputTensor": Support((1, 3), INT32),
            "OutputScaleTensor": Support((1, 3), FLOAT32),
        }
    },
    constraints=(
        Same("sizes", ("AddendTensors", "OutputTensor")),
        Same("dimension_count", ("OutputTensor", "OutputScaleTensor")),
    ),
)


def describe(given):
    first = given["addend"][0]
    return MadeUpSumDesc(
        addend_tensors=tuple(dml.TensorDesc(dml.DataType.of(x.dtype), x.shape) for x in given["addend"]),
        output_tensor=dml.TensorDesc(dml.DataType.INT32, first.shape),
        output_scale_tensor=dml.TensorDesc(dml.DataType.FLOAT32, (1,) * first.ndim),
        rounding=given["rounding"],
        negative=given["negative"],
    )


def expected(addends, rounding=Rounding.DOWN, negative=False):
    total = np.sum(addends, axis=0, dtype=np.float32) * np.float32(-1 if negative else 1)
    rounded = np.floor(total) if rounding is Rounding.DOWN else np.ceil(total)
    return rounded.astype(np.int32), np.full((1,) * total.ndim, np.abs(total).max(), np.float32)


def made_up_sum(addend, *, rounding=Rounding.DOWN, negative=False, feature_level=dml.FeatureLevel.LATEST):
    """The sum of the addends as integers, and the largest magnitude."""
    total = sum(addend[1:], start=addend[0]) * np.float32(-1 if negative else 1)
    rounded = jnp.floor(total) if rounding is Rounding.DOWN else jnp.ceil(total)
    return MadeUpSumDesc.Outputs(rounded.astype(jnp.int32), jnp.abs(total).max(keepdims=True))


A, B = np.float32([[1.5, -2.25, 3], [0.25, 7.75, -8]]), np.float32([[1, 2, 3], [4, 5, 6]])


@pytest.fixture(autouse=True)
def made_up():
    """The operator, registered during the test."""
    PAGES[NAME] = PAGE
    yield operator(MadeUpSumDesc, describe)(made_up_sum)
    del PAGES[NAME], OPERATORS[NAME]


def a_desc(made_up, **options):
    return dml.desc_of(made_up, (A, B), **{"rounding": Rounding.UP, "negative": True} | options)


def test_it_is_called(made_up):
    for call in (made_up, jax.jit(made_up, static_argnames=("rounding", "negative"))):
        for rounding in Rounding:
            got = call((A, B, A), rounding=rounding, negative=True)
            assert (type(got), got._fields) == (MadeUpSumDesc.Outputs, ("output", "output_scale"))
            for one, right in zip(got, expected([A, B, A], rounding, True), strict=True):
                assert_same_bits(one, right)


def test_it_is_validated(made_up):
    desc = a_desc(made_up)
    valid = dml.validate(desc)
    assert valid == (jax.ShapeDtypeStruct((2, 3), np.int32), jax.ShapeDtypeStruct((1, 1), np.float32))
    assert valid._fields == ("output", "output_scale")
    assert dml.minimum_feature_level(desc) is LEVEL
    assert list(desc.tensors()) == ["AddendTensors[0]", "AddendTensors[1]", "OutputTensor", "OutputScaleTensor"]
    assert desc.options() == {"Rounding": Rounding.UP, "Negative": True}


def other(tensor, **changes):
    return dataclasses.replace(tensor, **changes)


@pytest.mark.parametrize(
    ("change", "tensor", "text"),
    [
        (lambda d: {"addend_tensors": (d.addend_tensors[0], 3)}, "AddendTensors[1]", "is 3, expected a TensorDesc"),
        (lambda d: {"addend_tensors": ()}, "AddendTensors", "is missing"),
        (lambda d: {"addend_tensors": None}, "AddendTensors", "is missing"),
        (lambda d: {"addend_tensors": 5}, "AddendTensors", "is 5, expected a tuple of TensorDescs"),
        (lambda d: {"addend_tensors": (d.addend_tensors[0], other(d.addend_tensors[0], sizes=(2, 4)))},
         "AddendTensors[1]", "has Sizes [2, 4], expected [2, 3], that of AddendTensors[0]"),
        (lambda d: {"addend_tensors": (other(d.addend_tensors[0], data_type=dml.DataType.INT8),) * 2},
         "AddendTensors[0]", "has data type INT8, feature level 6_4 allows FLOAT32"),
        (lambda d: {"output_scale_tensor": other(d.output_scale_tensor, flags=dml.TensorFlags.OWNED_BY_DML)},
         "OutputScaleTensor", "has Flags OWNED_BY_DML, but each dispatch writes this output"),
        (lambda d: {"output_scale_tensor": other(d.output_scale_tensor, sizes=(1, 2), strides=(0, 0))},
         "OutputScaleTensor", "has Strides [0, 0] for Sizes [1, 2], so elements overlap"),
        (lambda d: {"rounding": 1}, "Rounding", "is 1, expected "),
        (lambda d: {"negative": 1}, "Negative", "is 1, expected True or False"),
        (lambda d: {"negative": None}, "Negative", "is None, expected True or False"),
    ],
)  # fmt: skip
def test_its_descs_are_refused_where_they_are_wrong(made_up, change, tensor, text):
    desc = a_desc(made_up)
    with pytest.raises(dml.DescError) as error:
        dml.validate(dataclasses.replace(desc, **change(desc)))
    assert error.value.tensor == tensor
    assert f"{NAME}: {tensor} {text}" in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((A,), {}, "AddendTensors is an array, expected a tuple of arrays; write (addend,)"),
        (((A, None),), {}, "AddendTensors[1] is None, but required"),
        (((A, [1.0]),), {}, "AddendTensors[1] is a list, expected an array"),
        (((A, B.astype(bool)),), {}, "AddendTensors[1] has type bool"),
        (((A, B[:1]),), {}, "AddendTensors[1] has Sizes [1, 3], expected [2, 3]"),
        (((A, B),), {"rounding": 1}, "Rounding is an int, expected a Rounding"),
        (((A, B),), {"negative": 1}, "Negative is an int, expected True or False"),
        (((A, B),), {"feature_level": dml.FeatureLevel.LEVEL_2_1}, "not available at feature level 2_1"),
    ],
)
def test_its_calls_are_refused_where_they_are_wrong(made_up, arguments, options, text):
    made_up((A, B), rounding=Rounding.UP, negative=True)
    with pytest.raises(dml.DescError) as error:
        made_up(*arguments, **options)
    assert text in str(error.value)


def test_it_goes_through_json_both_ways(made_up):
    desc = a_desc(made_up)
    written = json.loads(json.dumps(dml.desc_to_dict(desc)))
    assert written["type"] == "DML_OPERATOR_MADE_UP_SUM"
    assert [one["Sizes"] for one in written["desc"]["AddendTensors"]] == [[2, 3], [2, 3]]
    assert written["desc"]["Rounding"] == "DML_MADE_UP_ROUNDING_UP"
    assert written["desc"]["Negative"] is True
    assert dml.desc_from_dict(written) == desc
    assert dml.desc_from_dict({**written, "desc": {**written["desc"], "Rounding": "UP"}}) == desc
    for field, value, text in (
        ("Rounding", "SIDEWAYS", "desc.Rounding is 'SIDEWAYS', expected DML_MADE_UP_ROUNDING_DOWN or "),
        ("Negative", 1, "desc.Negative is 1, expected true or false"),
        ("AddendTensors", {}, "desc.AddendTensors is {}, expected a list"),
        ("AddendTensors", [{}], "desc.AddendTensors[0] has no Sizes"),
        ("AddendTensors", [{}] * 9, "desc.AddendTensors has 9 elements, expected at most 8"),
    ):
        with pytest.raises(dml.DescError) as error:
            dml.desc_from_dict({**written, "desc": {**written["desc"], field: value}})
        assert text in str(error.value)


def test_it_is_shown(made_up):
    lines = str(a_desc(made_up)).splitlines()
    assert lines[:2] == [f"{NAME}, feature level 6_4", "Rounding UP, Negative True"]
    assert [line.split()[:2] for line in lines[3:]] == [
        ["AddendTensors[0]", "input"], ["AddendTensors[1]", "input"], ["OutputTensor", "output"],
        ["OutputScaleTensor", "output"],
    ]  # fmt: skip
    assert "<table>" in a_desc(made_up)._repr_html_()
    support = dml.check_feature_support(made_up, LEVEL)
    assert support == dml.check_feature_support("DML_OPERATOR_MADE_UP_SUM", LEVEL)
    assert support.options == {
        "Rounding": "DML_MADE_UP_ROUNDING_DOWN or DML_MADE_UP_ROUNDING_UP",
        "Negative": "true or false",
    }
    assert not dml.check_feature_support(NAME, dml.FeatureLevel.LEVEL_2_1).is_supported
    assert "AddendTensors" in str(support)


def strided(desc):
    """Addends in NHWC-like order, the first owned alike; outputs with gaps."""
    by_column = tuple(other(one, strides=(1, 2)) for one in desc.addend_tensors)
    outputs = {"output_tensor": (4, 1), "output_scale_tensor": (7, 3)}
    outputs = {name: other(getattr(desc, name), strides=strides) for name, strides in outputs.items()}
    return dataclasses.replace(desc, addend_tensors=by_column, **outputs)


@pytest.mark.parametrize("is_owned", [False, True])
def test_it_is_compiled_over_strided_buffers(made_up, is_owned):
    desc, (total, largest) = strided(a_desc(made_up)), expected([A, B], Rounding.UP, True)
    buffers = tuple(x.T.ravel() for x in (A, B))
    persistent, bound = None, {"addend_tensors": buffers}
    if is_owned:
        flagged = tuple(other(one, flags=dml.TensorFlags.OWNED_BY_DML) for one in desc.addend_tensors)
        op = dml.compile_operator(dataclasses.replace(desc, addend_tensors=flagged))
        persistent, bound = op.initialize(addend_tensors=buffers), {}
    op = op if is_owned else dml.compile_operator(desc)
    got = op(persistent, **bound)
    assert got._fields == ("output", "output_scale")
    assert_same_values(got.output, [*total[0], 0, *total[1]])
    assert_same_bits(got.output_scale, largest.ravel())
    into = jnp.full(9, -5, jnp.int32)
    got = jax.jit(op)(persistent, **bound, output_tensor=into)
    assert_same_values(got.output, [*total[0], -5, *total[1], -5, -5])
    assert_same_bits(got.output_scale, largest.ravel())


def test_what_is_bound_wrongly_is_refused(made_up):
    desc = a_desc(made_up)
    op = dml.compile_operator(desc)
    for bound, text in (
        ({"addend_tensors": A}, "AddendTensors is bound to a value of type ndarray, expected a tuple of 2 arrays"),
        ({"addend_tensors": (A,)}, "AddendTensors is bound to a value of type tuple, expected a tuple of 2 arrays"),
        ({"addend_tensors": (A, B.astype(np.int32))}, "AddendTensors[1] is bound to int32, the desc says FLOAT32"),
        ({"addend_tensors": (A, B), "output_scale_tensor": np.zeros(3)}, "OutputScaleTensor is bound to float64"),
        ({}, "AddendTensors is not bound; give addend_tensors to the call"),
    ):
        with pytest.raises(dml.DescError) as error:
            op(**bound)
        assert text in str(error.value)
    owned = other(desc.addend_tensors[0], flags=dml.TensorFlags.OWNED_BY_DML)
    mixed = dataclasses.replace(desc, addend_tensors=(owned, desc.addend_tensors[1]))
    with pytest.raises(dml.DescError, match="AddendTensors has tensors with Flags OWNED_BY_DML and without"):
        dml.compile_operator(mixed)


def model(desc, **bindings):
    def values(x):
        return {"initialValuesDataType": dml.DataType.of(x.dtype).name, "initialValues": x.ravel().tolist()}

    arrays = {"a": A, "b": B, "sum": np.zeros(8, np.int32), "scale": np.zeros(1, np.float32)}
    named = {"AddendTensors": ["a", "b"], "OutputTensor": "sum", "OutputScaleTensor": "scale"}
    return {
        "resources": {name: values(x) for name, x in arrays.items()},
        "dispatchables": {"d": dml.desc_to_dict(desc)},
        "commands": [{"type": "dispatch", "dispatchable": "d", "bindings": named | bindings}],
    }


def test_it_runs_in_a_dxdispatch_model(made_up, tmp_path):
    desc, path = a_desc(made_up), tmp_path / "model.json"
    desc = dataclasses.replace(desc, output_tensor=other(desc.output_tensor, strides=(4, 1)))
    path.write_text(json.dumps(model(desc)), encoding="utf-8")
    got, (total, largest) = dxdispatch.load(path).run(), expected([A, B], Rounding.UP, True)
    assert_same_values(got["sum"], [*total[0], 0, *total[1], 0])
    assert_same_bits(got["scale"], largest.ravel())
    for bindings, place, text in (
        ({"AddendTensors": "a"}, "AddendTensors", "is 'a', expected a list"),
        ({"AddendTensors": ["a"]}, "AddendTensors", "is ['a'], expected 2 resources"),
        ({"AddendTensors": ["a", "c"]}, "AddendTensors[1]", "is 'c', expected a, b, sum or scale"),
        ({"OutputScaleTensor": None}, "", "has no OutputScaleTensor, which the desc has"),
    ):
        path.write_text(json.dumps(model(desc, **bindings)), encoding="utf-8")
        with pytest.raises(dml.DxDispatchError) as error:
            dxdispatch.load(path)
        assert error.value.path == ".".join(filter(None, ["commands[0].bindings", place]))
        assert text in str(error.value)
    written = model(desc)
    written["dispatchables"]["d"]["desc"]["AddendTensors"][1]["DataType"] = "INT8"
    path.write_text(json.dumps(written), encoding="utf-8")
    with pytest.raises(dml.DxDispatchError, match=r"^dispatchables.d.desc.AddendTensors\[1\] is refused: "):
        dxdispatch.load(path)
