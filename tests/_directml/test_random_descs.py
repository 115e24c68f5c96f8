"""Random descs, valid, nearly valid and absurd: validate gives a result or a DescError, as the pages do."""

import collections
import dataclasses
import math
import random

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.descs import (
    CONVOLUTIONS,
    OPERATORS,
    POOLING,
    case,
    changed,
    desc_of,
    example,
    put,
    right,
    tensor_of,
    validated,
)
from helpers.spec_tables import BULLETS, breach, first_breach, table_at, types_of

GARBAGE = [
    None,
    "",
    "UINT8",
    b"1",
    0,
    -1,
    7,
    2**32,
    10**30,
    10**5000,
    True,
    1.0,
    math.nan,
    1j,
    (),
    (1, 2),
    (1, -2, 3, 4),
    ((1,), (2, (3,))),
    [1, [2]],
    ["a"],
    {},
    {1: 2},
    {1, 2},
    range(4),
    object(),
    int,
    len,
    np.int64(3),
    np.float32(1),
    np.array(2),
    np.array([1, 2]),
    np.array([[1, 2], [3, 4]]),
    np.array(["a"]),
    jnp.ones(2),
    dml.DataType.FLOAT16,
    dml.DataType.UINT4,
    dml.TensorFlags(6),
    dml.FeatureLevel.LEVEL_1_0,
    dml.QuantizationType.NONE,
    (tensor_of("UINT8", 2, 3),),
    (tensor_of("FLOAT32", 2, 3), None),
    tensor_of("UINT8", 2, 3),
    dml.TensorDesc(None, None),
    dml.TensorDesc("UINT8", [[1]], {}, None, "8", 1.5),
    dml.ElementWiseDequantizeLinearDesc(),
]

PLAUSIBLE = {
    "data_type": list(dml.DataType),
    "sizes": [(), (1,), (2, 3), (1, 1, 1, 1), (2, 3, 1, 2), (2, 6, 5, 5), (1, 6, 1, 1), (6,), (2, 2, 0, 1), (1,) * 9],
    "strides": [None, (), (1,), (0, 0, 0, 0), (6, 2, 2, 1), (12, 1, 4, 2), (1, 0, 1, 0)],
    "flags": list(dml.TensorFlags),
    "total_tensor_size_in_bytes": [None, 0, 4, 16, 10**6],
    "guaranteed_base_offset_alignment": [0, 1, 2, 4, 256],
    "dimension_count": [1, 2],
    "strides of the kernel": [(1,), (1, 1), (2, 1), (9, 9)],
    "dilations": [(1,), (1, 1), (1, 2), (3, 3)],
    "start_padding": [(0,), (0, 0), (1, 2)],
    "end_padding": [(0,), (0, 0), (2, 1)],
    "group_count": [1, 2, 4],
    "window_size": [(1,), (1, 1), (3, 2), (3, 2, 2), (9, 9)],
    "include_padding": [False, True],
    "quantization_type": list(dml.QuantizationType),
    "quantization_tensor_count": [1, 2],
    "quantization_tensors": [
        (),
        (tensor_of("FLOAT32", 1, 1, 1, 1),),
        (tensor_of("FLOAT16", 2, 3, 1, 2), tensor_of("INT4", 2, 3, 1, 2)),
    ],
}


def random_desc(rng):
    """A valid desc of any operator, types and ranks, with up to two fields of it or of its tensors changed."""
    operator = rng.choice(OPERATORS)
    rows = table_at(operator, "jaxdml")
    tensors = example(operator)
    for name in rng.choices(list(rows), k=rng.randint(0, 3)):
        row = rows[name]
        types = types_of(operator, "jaxdml", name)
        data_type, rank = rng.choice(types), rng.randint(row.lowest_count, row.highest_count)
        tensors = changed(operator, tensors, name, data_type=data_type, rank=rank)
    optional = [name for name, row in rows.items() if row.optional]
    for name in rng.choices(optional, k=rng.randint(0, 2)) if optional else ():
        tensors[name] = None
    desc = desc_of(operator, tensors)
    for _ in range(rng.randint(0, 2)):
        desc = mutated(rng, desc)
    return desc


def mutated(rng, desc):
    tensors = {name: tensor for name, tensor in desc.tensors().items() if isinstance(tensor, dml.TensorDesc)}
    fields = [field.name for field in dataclasses.fields(desc)]
    name = rng.choice([*tensors, *(field for field in fields if not isinstance(getattr(desc, field), dml.TensorDesc))])
    if name in tensors:
        field = rng.choice([field.name for field in dataclasses.fields(dml.TensorDesc)])
        return put(desc, name, dataclasses.replace(tensors[name], **{field: another(rng, field)}))
    return dataclasses.replace(desc, **{name: another(rng, "strides of the kernel" if name == "strides" else name)})


def another(rng, field):
    """A plausible value three times in four, or garbage."""
    return rng.choice(PLAUSIBLE.get(field, GARBAGE) if rng.randrange(4) else GARBAGE)


def words(feature_level):
    """A feature level in the words of `spec_tables`."""
    return feature_level.name.removeprefix("LEVEL_").replace("JAXDML", "jaxdml")


def facts(desc):
    """{tensor: (data type, rank) or None}, in the pages' words."""
    return {name: tensor and (tensor.data_type.name, len(tensor.sizes)) for name, tensor in desc.tensors().items()}


FACTS = {
    "DimensionCount": lambda tensor: len(tensor.sizes),
    "Sizes": lambda tensor: tensor.sizes,
    "DataType": lambda tensor: tensor.data_type,
}


def assert_allowed(desc, feature_level, outputs):
    """A desc that validate accepted is in the pages' tables, and satisfies their constraints."""
    rows, tensors = table_at(desc.operator, words(feature_level)), desc.tensors()
    assert not [name for name, fact in facts(desc).items() if breach(rows[name], fact)]
    for what, names in BULLETS[desc.operator]:
        assert len({FACTS[what](tensors[name]) for name in names if tensors.get(name)}) <= 1
    for tensor in filter(None, tensors.values()):
        assert all(type(size) is int and size > 0 for size in tensor.sizes)
        assert tensor.strides is None or len(tensor.strides) == len(tensor.sizes)
    written = [tensor for name, tensor in tensors.items() if rows[name].is_output]
    assert [output.shape for output in outputs] == [tensor.sizes for tensor in written]
    assert [output.dtype for output in outputs] == [np.dtype(tensor.data_type.name.lower()) for tensor in written]


def judged(desc, feature_level):
    """validate's verdict: its outputs or its DescError; any other exception fails the test."""
    try:
        return validated(desc, feature_level)
    except dml.DescError as error:
        return error


def check(desc, feature_level):
    """Checks one desc at one level, and returns the verdict."""
    verdict = judged(desc, feature_level)
    if not isinstance(verdict, dml.DescError):
        assert_allowed(desc, feature_level, verdict)
        assert dml.desc_from_dict(dml.desc_to_dict(desc)) == desc
        return verdict
    assert str(verdict).startswith(f"{desc.operator}: ")
    assert (verdict.operator, bool(verdict.rule)) == (desc.operator, True)
    if isinstance(verdict, dml.FeatureLevelError):
        assert verdict.minimum_feature_level > verdict.feature_level
        if verdict.tensor:
            breached = first_breach(desc.operator, words(feature_level), facts(desc))
            assert breached == (verdict.tensor, verdict.rule)
    return verdict


def check_minimum(desc):
    """minimum_feature_level is the lowest level at which validate accepts the desc.

    If there is none, it raises the error of DirectML's highest level. If that is a FeatureLevelError, it raises the
    error of JAXDML.
    """
    at_jaxdml = judged(desc, dml.FeatureLevel.JAXDML)
    if isinstance(at_jaxdml, dml.DescError):
        latest = judged(desc, dml.FeatureLevel.LATEST)
        expected = at_jaxdml if isinstance(latest, dml.FeatureLevelError) else latest
        with pytest.raises(type(expected)) as error:
            dml.minimum_feature_level(desc)
        assert str(error.value) == str(expected)
        return
    minimum = dml.minimum_feature_level(desc)
    for feature_level in dml.FeatureLevel:
        assert isinstance(judged(desc, feature_level), dml.DescError) == (feature_level < minimum)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_random_descs(seed):
    """Valid descs and invalid ones must both be common, or this test proves little."""
    rng, verdicts = random.Random(seed), collections.Counter()
    for number in range(600):
        desc, feature_level = random_desc(rng), rng.choice(list(dml.FeatureLevel))
        with case(number):
            verdicts[type(check(desc, feature_level)).__name__] += 1
            check_minimum(desc)
    for verdict in ("tuple", "DescError", "FeatureLevelError"):
        assert verdicts[verdict] > 0.1 * verdicts.total(), verdicts


@pytest.mark.sampled(2)
@pytest.mark.parametrize("operator", OPERATORS)
def test_garbage_in_every_field(operator):
    """Every field of the desc, and of each of its tensors, holds each piece of garbage once; most are refused."""
    desc = right(operator)
    verdicts = collections.Counter()
    for number, garbage in enumerate(GARBAGE):
        variants = [dataclasses.replace(desc, **{field.name: garbage}) for field in dataclasses.fields(desc)]
        for name, tensor in desc.tensors().items():
            for field in dataclasses.fields(tensor):
                variants.append(put(desc, name, dataclasses.replace(tensor, **{field.name: garbage})))
        for place, variant in enumerate(variants):
            with case("variant", place, "of garbage", number):
                verdicts[isinstance(check(variant, dml.FeatureLevel.LATEST), dml.DescError)] += 1
                check_minimum(variant)
    assert verdicts[True] > 0.9 * verdicts.total()


def test_garbage_for_a_feature_level():
    for operator in OPERATORS:
        desc = right(operator)
        for garbage in GARBAGE:
            if not isinstance(garbage, dml.FeatureLevel):
                assert judged(desc, garbage).tensor == "feature_level"


def test_garbage_for_a_desc():
    for garbage in GARBAGE:
        if not isinstance(garbage, dml.OperatorDesc):
            for function in (dml.validate, dml.minimum_feature_level):
                with pytest.raises(dml.DescError, match="expected an operator desc"):
                    function(garbage)


def test_garbage_everywhere_at_once():
    for operator in OPERATORS:
        fields = [field.name for field in dataclasses.fields(right(operator))]
        for garbage in GARBAGE:
            everywhere = dataclasses.replace(right(operator), **dict.fromkeys(fields, garbage))
            assert isinstance(check(everywhere, dml.FeatureLevel.LATEST), dml.DescError)


@pytest.mark.rare
@pytest.mark.parametrize("operator", [*CONVOLUTIONS, POOLING])
def test_two_options_with_garbage(operator):
    """Options depend on each other, so they are also wrong in pairs."""
    desc = right(operator)
    options = [f.name for f in dataclasses.fields(desc) if not f.name.endswith("_tensor")]
    for first in options:
        for second in options:
            for garbage in GARBAGE:
                for other in (None, -1, 10**30, (1, -2)):
                    both = dataclasses.replace(desc, **{first: garbage, second: other})
                    assert isinstance(check(both, dml.FeatureLevel.LATEST), dml.DescError)
