"""Feature levels against a second transcription of the pages: a desc is accepted from its level on, and not below."""

import itertools

import pytest

import jaxdml as dml
from helpers.descs import (
    ADD,
    CONVOLUTION,
    CONVOLUTION_INTEGER,
    DEQUANTIZE,
    DEQUANTIZE_BLOCKS,
    DYNAMIC_QUANTIZE,
    MATRIX_MULTIPLY,
    MATRIX_MULTIPLY_INTEGER,
    MATRIX_MULTIPLY_TO_FLOAT,
    OPERATORS,
    POOLING,
    QUANTIZE,
    QUANTIZE_BLOCKS,
    case,
    desc_of,
    example,
    level,
    refusal,
    right,
    validated,
)  # fmt: skip
from helpers.spec_pages import DATA_TYPES, FEATURE_LEVELS, INTRODUCED
from helpers.spec_tables import (
    LEVELS,
    ON_THE_PAGES,
    PRINTED_BULLETS,
    PRINTED_TABLES,
    TABLES,
    breach,
    first_breach,
    lowest_level,
    table_at,
    types_of,
)
from jaxdml._directml.pages import PAGES


def test_data_types_have_the_values_of_directml_h():
    assert {name: int(value) for name, value in dml.DataType.__members__.items()} == DATA_TYPES


def test_flags_have_the_values_of_directml_h():
    assert {name: int(value) for name, value in dml.TensorFlags.__members__.items()} == {"NONE": 0, "OWNED_BY_DML": 1}


def test_feature_levels_have_the_values_of_directml_h():
    """JAXDML, which is not a level of DirectML, is above all of them."""
    ours = {f"LEVEL_{words}": value for words, value in FEATURE_LEVELS.items() if words != "jaxdml"}
    ours |= {"LATEST": 0x6400, "JAXDML": 0xFFFF}
    assert {name: int(value) for name, value in dml.FeatureLevel.__members__.items()} == ours
    assert dml.FeatureLevel.LATEST is dml.FeatureLevel.LEVEL_6_4
    assert [str(level(words)) for words in LEVELS] == list(LEVELS)


@pytest.mark.parametrize("operator", ON_THE_PAGES)
def test_support_is_the_pages(operator):
    """Row by row, and in the order of the struct's fields."""
    ours = {
        str(at): [
            (name, row.optional, *row.dimension_counts, {data_type.name for data_type in row.data_types})
            for name, row in rows.items()
        ]
        for at, rows in PAGES[operator].support.items()
    }
    pages = {
        at: [(name, r.optional, r.lowest_count, r.highest_count, set(r.data_types)) for name, r in rows.items()]
        for at, rows in PRINTED_TABLES[operator].items()
    }
    assert ours == pages
    assert min(PRINTED_TABLES[operator]) == INTRODUCED[operator]


def test_every_operator_is_on_a_page():
    assert list(PAGES) == sorted(ON_THE_PAGES)


@pytest.mark.parametrize("operator", ON_THE_PAGES)
def test_constraints_are_the_pages(operator):
    what = {"dimension_count": "DimensionCount", "sizes": "Sizes", "data_type": "DataType"}
    ours = {(what[constraint.what], frozenset(constraint.tensors)) for constraint in PAGES[operator].constraints}
    assert ours == {(what, frozenset(names)) for what, names in PRINTED_BULLETS[operator]}


def assert_judged(desc, tensors, at):
    """validate accepts the desc of these tensors, {name: (data type, rank) or None}, exactly where its table does."""
    operator = desc.operator
    known = table_at(operator, at) is not None
    expected = first_breach(operator, at, tensors) if known else (None, "feature_level")
    if expected is None:
        assert validated(desc, level(at))[0].dtype == desc.output_tensor.data_type.dtype
        return
    name, rule = expected
    minimum = lowest_level(operator, name, tensors[name]) if known else INTRODUCED[operator]
    error = refusal(desc, level(at))
    assert type(error) is (dml.FeatureLevelError if minimum else dml.DescError)
    assert (error.operator, error.tensor, error.rule) == (operator, name, rule)
    assert error.feature_level == level(at)
    assert error.minimum_feature_level == (level(minimum) if minimum else None)
    word, text = {"required": "optional from", "feature_level": "introduced in"}.get(rule, "allowed from"), str(error)
    assert f"feature level {at}" in text
    if minimum:
        assert f" ({word} {SAID.get(minimum, minimum)})" in text
    else:
        assert f"({word}" not in text


SAID = {"jaxdml": "FeatureLevel.JAXDML, an extension that DirectML does not have"}


@pytest.mark.parametrize("operator", OPERATORS)
def test_rows_are_accepted_at_their_level_and_where_new_not_below(operator):
    for at, table in TABLES[operator].items():
        for name, row in table.items():
            types = types_of(operator, at, name)
            for data_type, rank in itertools.product(types, {row.lowest_count, row.highest_count}):
                with case(at, name, data_type, rank):
                    assert_accepted_from(operator, at, name, data_type, rank)


def assert_accepted_from(operator, at, name, data_type, rank):
    tensors = example(operator, name, data_type=data_type, rank=rank)
    desc = desc_of(operator, tensors)
    assert tensors[name] == (data_type, rank)
    assert dml.validate(desc, level(at))
    if at == LEVELS[0]:
        return
    below = LEVELS[LEVELS.index(at) - 1]
    table = table_at(operator, below)
    if table is None or breach(table[name], tensors[name]):
        assert isinstance(refusal(desc, level(below)), dml.FeatureLevelError)
    assert_judged(desc, tensors, below)


@pytest.mark.parametrize("operator", OPERATORS)
def test_absent_tensors_at_every_level(operator):
    for name in TABLES[operator][INTRODUCED[operator]]:
        without = {**example(operator), name: None}
        desc = desc_of(operator, without)
        for at in LEVELS:
            with case(name, at):
                assert_judged(desc, without, at)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_type_and_rank_at_every_level(operator):
    """Each tensor with all 14 data types and ranks 0 to 9, in its table or not, at all 16 levels."""
    for name, row in table_at(operator, "jaxdml").items():
        accepted = 0
        for data_type, rank in itertools.product(DATA_TYPES, range(10)):
            tensors = example(operator, name, data_type=data_type, rank=rank)
            desc = desc_of(operator, tensors)
            for at in LEVELS:
                with case(name, data_type, rank, at):
                    assert_judged(desc, tensors, at)
            allowing = [at for at in LEVELS if table_at(operator, at) and not first_breach(operator, at, tensors)]
            if allowing:
                with case(name, data_type, rank):
                    assert dml.minimum_feature_level(desc) is level(allowing[0])
                accepted += 1
        types = types_of(operator, "jaxdml", name)
        assert accepted == len(types) * (row.highest_count - row.lowest_count + 1), name


def test_levels_between_tables_inherit():
    """Every tensor with every type of that table's rows, at its highest rank."""
    for operator, between, table in (
        (DEQUANTIZE, "2_0", "1_0"),
        (DEQUANTIZE, "3_1", "3_0"),
        (DEQUANTIZE, "5_2", "3_0"),
        (DEQUANTIZE, "6_1", "6_0"),
        (DEQUANTIZE, "6_4", "6_2"),
        (QUANTIZE, "2_0", "1_0"),
        (QUANTIZE, "5_0", "3_0"),
        (QUANTIZE, "6_1", "6_0"),
        (QUANTIZE, "6_3", "6_2"),
        (ADD, "6_4", "4_0"),
        (MATRIX_MULTIPLY, "3_1", "2_1"),
        (MATRIX_MULTIPLY, "6_4", "4_0"),
        (CONVOLUTION, "3_0", "2_1"),
        (CONVOLUTION, "5_1", "4_0"),
        (CONVOLUTION, "6_4", "5_2"),
        (QUANTIZE, "6_4", "6_2"),
        (DEQUANTIZE, "jaxdml", "6_2"),
        (CONVOLUTION, "jaxdml", "5_2"),
        (MATRIX_MULTIPLY_INTEGER, "3_1", "2_1"),
        (MATRIX_MULTIPLY_INTEGER, "5_1", "4_0"),
        (MATRIX_MULTIPLY_INTEGER, "6_4", "5_2"),
        (CONVOLUTION_INTEGER, "3_1", "2_1"),
        (CONVOLUTION_INTEGER, "6_4", "4_0"),
        (DYNAMIC_QUANTIZE, "6_4", "4_0"),
        (MATRIX_MULTIPLY_TO_FLOAT, "6_4", "6_2"),
        (POOLING, "6_3", "6_2"),
        (QUANTIZE_BLOCKS, "6_4", "6_3"),
        (DEQUANTIZE_BLOCKS, "jaxdml", "6_3"),
    ):
        assert table_at(operator, between) is TABLES[operator][table]
        for name, row in TABLES[operator][table].items():
            for data_type in types_of(operator, table, name):
                desc = desc_of(operator, example(operator, name, data_type=data_type, rank=row.highest_count))
                with case(operator, between, name, data_type):
                    assert dml.validate(desc, level(between)) == dml.validate(desc, level(table))


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_are_refused_below_their_introduction(operator):
    for at in LEVELS[: LEVELS.index(INTRODUCED[operator])]:
        error = refusal(right(operator), level(at))
        assert type(error) is dml.FeatureLevelError
        assert (error.operator, error.tensor, error.rule) == (operator, None, "feature_level")
        assert (error.feature_level, error.minimum_feature_level) == (level(at), level(INTRODUCED[operator]))
        assert (error.expected, error.received) == (error.minimum_feature_level, error.feature_level)
    assert dml.validate(right(operator), level(INTRODUCED[operator]))


MINIMA = (
    (DEQUANTIZE, {}, "1_0"),
    (DEQUANTIZE, {"InputTensor": ("INT8", 4), "ZeroPointTensor": ("INT8", 4)}, "2_1"),
    (DEQUANTIZE, dict.fromkeys(["InputTensor", "ZeroPointTensor"], ("UINT8", 3))
     | dict.fromkeys(["ScaleTensor", "OutputTensor"], ("FLOAT32", 3)), "3_0"),
    (DEQUANTIZE, dict.fromkeys(["ScaleTensor", "OutputTensor"], ("FLOAT16", 4)), "6_0"),
    (DEQUANTIZE, {"ZeroPointTensor": None}, "6_2"),
    (QUANTIZE, {"InputTensor": ("INT32", 4)}, "2_1"),
    (QUANTIZE, dict.fromkeys(["InputTensor", "ScaleTensor"], ("FLOAT16", 4)), "6_0"),
    (QUANTIZE, {"ZeroPointTensor": None, "OutputTensor": ("INT8", 4)}, "6_2"),
    (QUANTIZE, {"ZeroPointTensor": None, "OutputTensor": ("INT16", 4)}, "jaxdml"),
    (ADD, {}, "4_0"),
    (MATRIX_MULTIPLY, {"AZeroPointTensor": None, "BZeroPointTensor": None, "OutputZeroPointTensor": None}, "2_1"),
    (MATRIX_MULTIPLY, dict.fromkeys(["ATensor", "BTensor", "OutputTensor"], ("INT8", 2)), "4_0"),
    (CONVOLUTION, {"BiasTensor": None}, "2_1"),
    (CONVOLUTION, {"OutputScaleTensor": ("FLOAT32", 1)}, "4_0"),
    (CONVOLUTION, {"FilterScaleTensor": ("FLOAT32", 3)}, "4_0"),
    (CONVOLUTION, {"FilterScaleTensor": ("FLOAT32", 2)}, "5_2"),
    (CONVOLUTION, {"FilterScaleTensor": ("FLOAT32", 1), "BiasTensor": None}, "5_2"),
    (CONVOLUTION, {"FilterZeroPointTensor": ("INT8", 1)}, "4_0"),
    (MATRIX_MULTIPLY_INTEGER, {"AZeroPointTensor": None, "BZeroPointTensor": None}, "2_1"),
    (MATRIX_MULTIPLY_INTEGER, {"AZeroPointTensor": ("INT8", 1)}, "4_0"),
    (MATRIX_MULTIPLY_INTEGER, {"BZeroPointTensor": ("INT8", 2)}, "4_0"),
    (MATRIX_MULTIPLY_INTEGER, {"BZeroPointTensor": ("INT8", 1)}, "5_2"),
    (CONVOLUTION_INTEGER, {}, "2_1"),
    (CONVOLUTION_INTEGER, dict.fromkeys(["InputZeroPointTensor", "FilterZeroPointTensor"], ("INT8", 1)), "4_0"),
    (DYNAMIC_QUANTIZE, {"InputTensor": ("FLOAT16", 4)}, "4_0"),
    (MATRIX_MULTIPLY_TO_FLOAT, {"BiasTensor": None}, "6_2"),
    (POOLING, {"InputZeroPointTensor": None}, "6_2"),
    (QUANTIZE_BLOCKS, dict.fromkeys(["QuantizationTensors[1]", "OutputTensor"], ("INT4", 4)), "6_3"),
    (DEQUANTIZE_BLOCKS, dict.fromkeys(["InputTensor", "QuantizationTensors[1]"], ("UINT4", 4)), "6_3"),
)  # fmt: skip


@pytest.mark.parametrize("operator", OPERATORS)
def test_minimum_feature_level(operator):
    """Each tensor may require a level of its own: the highest counts. Lower levels reject the desc."""
    for its_operator, tensors, minimum in MINIMA:
        if its_operator == operator:
            with case(tensors):
                assert_minimum(desc_of(operator, {**example(operator), **tensors}), minimum)


def assert_minimum(desc, minimum):
    assert dml.minimum_feature_level(desc) is level(minimum)
    for at in LEVELS:
        with case(at):
            if FEATURE_LEVELS[at] >= FEATURE_LEVELS[minimum]:
                assert dml.validate(desc, level(at)) == dml.validate(desc, level(minimum))
            else:
                assert refusal(desc, level(at)).minimum_feature_level <= level(minimum)


def test_minimum_feature_level_of_a_wrong_desc_says_what_is_wrong():
    desc = right(CONVOLUTION, group_count=0)
    with pytest.raises(dml.DescError) as caught:
        dml.minimum_feature_level(desc)
    assert str(caught.value) == str(refusal(desc))


def test_the_message_names_the_level_that_would_do():
    desc = right(CONVOLUTION, rank=3)
    assert str(refusal(desc, level("3_1"))) == (
        "quantized_linear_convolution: InputTensor has rank 3 (allowed from 4_0), feature level 3_1 allows 4"
    )
    desc = right(DEQUANTIZE, zero_point_tensor=None)
    assert str(refusal(desc, level("6_1"))) == (
        "element_wise_dequantize_linear: ZeroPointTensor is missing (optional from 6_2), feature level 6_1 requires it"
    )
    assert str(refusal(right(ADD), level("3_1"))) == (
        "element_wise_quantized_linear_add: not available at feature level 3_1 (introduced in 4_0)"
    )
