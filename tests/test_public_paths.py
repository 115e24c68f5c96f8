"""Public objects name a public module, jaxdml, and a pickle stores no private path, so that files may move."""

import copy
import inspect
import pickle
import traceback

import jax
import numpy as np
import pytest

import jaxdml as dml
from helpers.descs import CONVOLUTION, OPERATORS, case, f32, level, refusal, right

PUBLIC = {name: getattr(dml, name) for name in dml.__all__}
CLASSES = {name for name, value in PUBLIC.items() if inspect.isclass(value)}
B, F = np.ones((2, 3), np.uint8), np.ones((4, 2, 3, 3), np.int8)


def instances():
    """At least one of each public class."""
    yield from map(right, OPERATORS)
    yield from (right(CONVOLUTION).input_tensor, dml.OperatorDesc())
    yield from (*dml.DataType, *dml.TensorFlags, *dml.FeatureLevel, *dml.QuantizationType)
    for name in OPERATORS:
        yield from (dml.check_feature_support(name, at) for at in (level("1_0"), level("6_4"), level("jaxdml")))
    yield dml.compile_operator(right(CONVOLUTION), level("5_2"))
    yield from (dml.prepare_matrix_multiply_b(B), dml.prepare_convolution_filter(F))
    yield dml.prepare_matrix_multiply_blocks(B, np.ones((2, 1), np.float32))
    yield refusal(right(CONVOLUTION, group_count=0))
    yield refusal(right(CONVOLUTION, filter_scale_tensor=f32(6)), level("4_0"))
    yield from (dml.DxDispatchError("commands[0]", "is 3, expected an object"), dml.DxDispatchError("", "is empty"))
    with pytest.raises(dml.ArgumentTypeError) as caught:
        dml.ElementWiseQuantizeLinearDesc(inputs=None)
    yield caught.value
    with pytest.raises(dml.ExactError) as refused:
        dml.exact(lambda x: x @ x)(np.ones((2, 2), np.float32))
    yield refused.value


def parts(value):
    """The parts that two equal objects of a kind have in common."""
    if isinstance(value, Exception):
        return str(value), vars(value)
    if isinstance(value, dml.PreparedMatrix | dml.PreparedFilter | dml.PreparedBlocks):
        leaves, structure = jax.tree.flatten(value)
        return [np.asarray(leaf).tolist() for leaf in leaves], structure
    return value


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_store_public_paths_and_load_again(protocol):
    seen = set()
    for value in instances():
        with case(repr(value)):
            pickled = pickle.dumps(value, protocol)
            assert b"jaxdml" in pickled
            assert b"jaxdml._" not in pickled
            for twin in (pickle.loads(pickled), copy.copy(value), copy.deepcopy(value)):
                assert type(twin) is type(value)
                assert parts(twin) == parts(value)
        seen.add(type(value).__name__)
    assert seen == CLASSES


def test_enums_and_descs_that_are_equal_are_so_again_after_pickling():
    """Members of enums are loaded as themselves; a loaded desc is found in a dict that has its equal."""
    for value in (*dml.DataType, *dml.FeatureLevel):
        assert pickle.loads(pickle.dumps(value)) is value
    desc = right(CONVOLUTION)
    assert {desc: "found"}[pickle.loads(pickle.dumps(desc))] == "found"


def test_public_classes_and_functions_are_of_jaxdml():
    functions = {name for name, value in PUBLIC.items() if inspect.isroutine(value)}
    modules = {name for name, value in PUBLIC.items() if inspect.ismodule(value)}
    assert set(PUBLIC) == CLASSES | functions | modules
    for name in CLASSES | functions:
        assert (PUBLIC[name].__module__, PUBLIC[name].__qualname__) == ("jaxdml", name)
    assert modules == {"checked", "dxdispatch", "ptq"}
    for module in (dml.dxdispatch, dml.onnx, dml.ptq):
        for name in (name for name in module.__all__ if not name.endswith("Error")):
            assert getattr(module, name).__module__ == module.__name__


def test_functions_are_pickled_by_their_public_path():
    for value in (*(getattr(dml, name) for name in OPERATORS), dml.validate, dml.desc_of, dml.fake_quantize):
        pickled = pickle.dumps(value)
        assert b"jaxdml._" not in pickled
        assert pickle.loads(pickled) is value


def test_shown_paths_are_public():
    for name in CLASSES:
        assert "jaxdml._" not in repr(PUBLIC[name])
    for error in (value for value in instances() if isinstance(value, Exception)):
        (last_line,) = traceback.format_exception_only(error)
        assert last_line == f"jaxdml.{type(error).__name__}: {error}\n"
