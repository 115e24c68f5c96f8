"""16-bit outputs of quantize: an extension that no level of DirectML allows, and that must be asked for by name."""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.descs import CONVOLUTION, OPERATORS, QUANTIZE, case, desc_of, example, refusal, right, tensor_of
from helpers.spec_tables import TABLES

LATEST, JAXDML = dml.FeatureLevel.LATEST, dml.FeatureLevel.JAXDML
WORDS = ("INT16", "UINT16")
HINT = " (allowed from FeatureLevel.JAXDML, an extension that DirectML does not have)"


def words(data_type, *, zero_point=True, **tensors):
    """The desc of a quantize to 16 bits."""
    extended = {"ZeroPointTensor": (data_type, 4) if zero_point else None, "OutputTensor": (data_type, 4)}
    return desc_of(QUANTIZE, {**example(QUANTIZE), **extended, **tensors})


def test_the_level_is_above_latest_and_not_of_directml():
    assert JAXDML > LATEST
    assert (str(JAXDML), str(LATEST)) == ("jaxdml", "6_4")
    assert max(dml.FeatureLevel) is JAXDML


def test_no_level_of_directml_allows_16_bit_outputs():
    for data_type, zero_point in itertools.product(WORDS, (True, False)):
        desc = words(data_type, zero_point=zero_point)
        tensor = "ZeroPointTensor" if zero_point else "OutputTensor"
        for at in sorted(set(dml.FeatureLevel) - {JAXDML}):
            with case(data_type, zero_point, at):
                error = refusal(desc, at)
                assert type(error) is dml.FeatureLevelError
                assert error.feature_level is at
                if error.rule == "data_type":
                    assert error.minimum_feature_level is JAXDML
        error = refusal(desc)
        byte_types = (dml.DataType.INT8, dml.DataType.UINT8)
        assert (error.tensor, error.rule, error.feature_level) == (tensor, "data_type", LATEST)
        assert (error.expected, error.received) == (byte_types, dml.DataType[data_type])
        assert str(error) == (
            f"element_wise_quantize_linear: {tensor} has data type {data_type}{HINT}"
            ", feature level 6_4 allows INT8 or UINT8"
        )


def test_the_level_that_the_error_names_allows_them():
    for data_type, zero_point in itertools.product(WORDS, (True, False)):
        desc = words(data_type, zero_point=zero_point)
        with case(data_type, zero_point):
            assert refusal(desc).minimum_feature_level is dml.minimum_feature_level(desc) is JAXDML
            output = dml.validate(desc, refusal(desc).minimum_feature_level)
            assert (output.shape, output.dtype) == ((2, 3, 1, 2), np.dtype(data_type.lower()))


def test_bytes_are_no_extension():
    """The minimum level of a desc is one of DirectML's if one of them allows the desc."""
    for data_type, inputs in itertools.product(("INT8", "UINT8"), ("FLOAT32", "FLOAT16", "INT32")):
        scale = "FLOAT32" if inputs == "INT32" else inputs
        desc = words(data_type, InputTensor=(inputs, 4), ScaleTensor=(scale, 4))
        assert dml.minimum_feature_level(desc) <= LATEST
    for operator in OPERATORS:
        assert dml.minimum_feature_level(right(operator)) <= LATEST


def test_a_desc_that_is_wrong_at_every_level_is_not_told_to_ask_for_the_extension():
    for data_type in ("INT32", "UINT32", "FLOAT32"):
        error = refusal(words(data_type, zero_point=False))
        assert type(error) is dml.DescError
        assert error.minimum_feature_level is None
        assert "JAXDML" not in str(error)


def test_a_wrong_desc_of_16_bits_is_refused_at_the_level_too():
    desc = right(QUANTIZE, output_tensor=tensor_of("INT16", 2, 3, 1, 3), zero_point_tensor=None)
    error = refusal(desc, JAXDML)
    assert (type(error), error.rule, error.minimum_feature_level) == (dml.DescError, "same_sizes", None)


def test_calls_ask_for_the_extension_too():
    x, scale = jnp.asarray([[1.0, -3.0]]), jnp.float32(0.5)
    for dtype in (jnp.int16, jnp.uint16):
        for options in ({"output_dtype": dtype}, {}):
            zero_point = None if options else np.zeros((), dtype)
            with case(dtype, options):
                with pytest.raises(dml.FeatureLevelError) as error:
                    dml.element_wise_quantize_linear(x, scale, zero_point, **options)
                assert error.value.minimum_feature_level is JAXDML
                assert HINT in str(error.value)
                options = {**options, "feature_level": JAXDML}
                output = dml.element_wise_quantize_linear(x, scale, zero_point, **options)
                assert output.dtype == dtype
                assert output.tolist() == [[2, -6 if dtype is jnp.int16 else 0]]
                desc = dml.desc_of(dml.element_wise_quantize_linear, x, scale, zero_point, **options)
                assert dml.minimum_feature_level(desc) is JAXDML
                assert dml.desc_from_dict(dml.desc_to_dict(desc)) == desc


@pytest.mark.parametrize("operator", OPERATORS)
def test_nothing_else_is_extended(operator):
    """Feature support at the level differs from LATEST's only in the 16-bit types, and names the level."""
    latest, ours = (dml.check_feature_support(operator, at) for at in (LATEST, JAXDML))
    assert (latest.options, latest.constraints) == (ours.options, ours.constraints)
    assert latest.minimum_feature_level is ours.minimum_feature_level < JAXDML
    extended = {"ZeroPointTensor", "OutputTensor"} if operator == QUANTIZE else set()
    assert {name for name in ours.tensors if ours.tensors[name] != latest.tensors[name]} == extended
    for name in extended:
        added = set(ours.tensors[name].data_types) - set(latest.tensors[name].data_types)
        assert {data_type.name for data_type in added} == set(WORDS)
    assert str(ours).startswith(f"{operator}, feature level jaxdml\n")
    assert ("jaxdml" in TABLES[operator]) == bool(extended)


def test_a_desc_compiled_at_the_level_says_so():
    compiled = dml.compile_operator(words("INT16"), JAXDML)
    assert str(compiled).startswith("element_wise_quantize_linear, feature level jaxdml\n")
    assert "INT16, " in str(compiled)
    with pytest.raises(dml.FeatureLevelError, match=r"allowed from FeatureLevel\.JAXDML"):
        dml.compile_operator(words("INT16"))
    assert dml.compile_operator(right(CONVOLUTION), JAXDML).feature_level is JAXDML


def test_another_fault_of_a_16_bit_desc_is_told():
    """The error is about the other fault, not about the level that would allow the type."""
    desc = desc_of(QUANTIZE, example(QUANTIZE, "OutputTensor", data_type="INT16"))
    wrong = dataclasses.replace(desc, scale_tensor=dataclasses.replace(desc.scale_tensor, sizes=(2, 3, 1, 1)))
    with pytest.raises(dml.DescError, match="ScaleTensor has Sizes"):
        dml.minimum_feature_level(wrong)
    assert dml.minimum_feature_level(desc) is dml.FeatureLevel.JAXDML
