"""A valid call is not checked again; a call that only looks like it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jaxdml as dml
from _operators.calls import GOOD, OPTIONS_BY_NAME, call, caught, compilations, s8, u8
from helpers.compare import assert_same_bits
from helpers.descs import CONVOLUTION, DEQUANTIZE_BLOCKS, MATRIX_MULTIPLY, OPERATORS, POOLING, QUANTIZE
from helpers.marks import rarely_on_xla
from jaxdml import ArgumentTypeError, DescError
from jaxdml._operators import call as calls_of_operators

pytestmark = rarely_on_xla


def symbolic(text, dtype, scope):
    return jax.ShapeDtypeStruct(export.symbolic_shape(text, scope=scope), dtype)


def multiply(a, b):
    return dml.quantized_linear_matrix_multiply(a, 0.1, np.uint8(3), b, np.float32(0.1), None, np.float32(2), None)


def exported(a, b):
    """Traces `multiply` for shapes that are given as text, in a scope of its own."""
    scope = export.SymbolicScope()
    return export.export(jax.jit(multiply))(symbolic(a, np.uint8, scope), symbolic(b, np.int8, scope))


@pytest.mark.rare
def test_symbolic_and_concrete_and_other_symbolic_sizes_in_turn():
    """Symbolic sizes of two scopes have the same names but are not equal; calls with concrete sizes come in between."""
    for _ in range(2):
        module = exported("m, 5", "5, 6")
        assert multiply(u8(4, 5), s8(5, 6)).shape == (4, 6)
        assert module.call(u8(3, 5), s8(5, 6)).shape == (3, 6)
        assert exported("m, k", "k, n").call(u8(3, 5), s8(5, 6)).shape == (3, 6)
        for wrong in (("m, 5", "6, 6"), ("m, k", "m, n"), ("m, k", "k + 1, n"), ("m, k", "b, k, n")):
            with pytest.raises(DescError) as error:
                exported(*wrong)
            assert error.value.tensor == "BTensor"
            assert exported("m, k", "k, m").call(u8(3, 5), s8(5, 3)).shape == (3, 3)
        with pytest.raises(DescError):
            multiply(u8(4, 5), s8(6, 6))


def test_parameters_of_symbolic_sizes():
    """One scale for each of `m` rows is right, one for each of `n` is not."""

    def with_rows(a, b, scale):
        return dml.quantized_linear_matrix_multiply(a, scale, None, b, np.float32(1), None, np.float32(1), None)

    for rows, is_right in (("m, 1", True), ("n, 1", False), ("m, 1", True), ("1, m", False)):
        scope = export.SymbolicScope()
        shapes = [symbolic(text, dtype, scope) for text, dtype in (("m, k", "uint8"), ("k, n", "int8"))]
        trace = export.export(jax.jit(with_rows))
        if is_right:
            trace(*shapes, symbolic(rows, np.float32, scope))
        else:
            with pytest.raises(DescError, match="AScaleTensor has Sizes"):
                trace(*shapes, symbolic(rows, np.float32, scope))


def test_a_call_that_was_right_for_other_constraints_is_checked_again():
    """A window of 4 fits a width that is at least 4, and may fit an open one, but not one of the same name below 4."""

    def convolve(x, f):
        one = np.float32(1)
        return dml.quantized_linear_convolution(x, one, None, f, one, None, None, one, None)

    for _ in range(2):
        for constraints, is_right in ((("w >= 4",), True), ((), True), (("w <= 3",), False)):
            shape = symbolic("b, 2, w", np.uint8, export.SymbolicScope(constraints))
            trace = export.export(jax.jit(convolve))
            if is_right:
                assert trace(shape, jax.ShapeDtypeStruct((3, 2, 4), np.int8)).out_avals[0].shape[1] == 3
            else:
                with pytest.raises(DescError, match="spans 4 elements with dilation 1, the padded input has w"):
                    trace(shape, jax.ShapeDtypeStruct((3, 2, 4), np.int8))
        assert convolve(u8(1, 2, 4), s8(3, 2, 4)).shape == (1, 3, 1)


@pytest.mark.parametrize(("operator", "option"), OPTIONS_BY_NAME)
def test_true_is_no_1_though_it_equals_it(operator, option):
    right = {**GOOD[operator], "start_padding": 1, "end_padding": 1, option: 1}
    if operator == POOLING:
        right["include_padding"] = True
    for _ in range(2):
        jax.eval_shape(lambda: call(operator, right))
        if option != "group_count":
            jax.eval_shape(lambda: call(operator, {**right, option: (1, 1)}))
        wrongs = [True, 1.0, np.bool_(True), np.float64(1)]
        wrongs += [] if option == "group_count" else [(True, True), (1, True), (1.0, 1), [1, True]]
        for wrong in wrongs:
            error = caught(operator, {**right, option: wrong})
            assert (type(error), error.rule) == (ArgumentTypeError, "static")
    shapes = (jax.eval_shape(lambda one=one: call(operator, {**right, option: one})).shape for one in (np.int64(1), 1))
    assert len(set(shapes)) == 1


def test_1_is_no_true_though_it_equals_it():
    for include_padding in (True, False):
        right = {**GOOD[POOLING], "include_padding": include_padding}
        for _ in range(2):
            jax.eval_shape(lambda right=right: call(POOLING, right))
            for wrong in (int(include_padding), float(include_padding), np.bool_(include_padding)):
                error = caught(POOLING, {**right, "include_padding": wrong})
                assert (type(error), error.tensor, error.rule) == (ArgumentTypeError, "IncludePadding", "static")


def test_4_bit_types_are_told_apart():
    """Both take one byte in memory, but have different ranges: a call may be valid for only one of the types."""
    nibbles = {**GOOD[DEQUANTIZE_BLOCKS], "input": np.ones((2, 3), "uint4"), "zero_point": np.ones((), "uint4")}
    for _ in range(2):
        assert jax.eval_shape(lambda: call(DEQUANTIZE_BLOCKS, nibbles)).shape == (2, 3)
        for name in ("input", "zero_point"):
            for dtype in ("int4", np.uint8, np.int8):
                error = caught(DEQUANTIZE_BLOCKS, {**nibbles, name: np.ones(nibbles[name].shape, dtype)})
                assert (error.tensor, error.rule) == ("QuantizationTensors[1]", "data_type")
        for number, is_right in ((15, True), (16, False), (-1, False)):
            if is_right:
                jax.eval_shape(lambda number=number: call(DEQUANTIZE_BLOCKS, {**nibbles, "zero_point": number}))
            else:
                assert caught(DEQUANTIZE_BLOCKS, {**nibbles, "zero_point": number}).rule == "range"


@pytest.mark.parametrize("operator", OPERATORS)
def test_what_equals_a_level_is_none(operator):
    for _ in range(2):
        call(operator, {**GOOD[operator], "feature_level": dml.FeatureLevel.LATEST})
        for wrong in (0x6400, np.int64(0x6400), 25600.0):
            error = caught(operator, {**GOOD[operator], "feature_level": wrong})
            assert (error.tensor, error.rule) == ("feature_level", "feature_level")


def test_what_equals_a_type_is_none():
    for _ in range(2):
        for right in (np.uint8, "uint8", np.dtype(np.uint8), dml.DataType.UINT8):
            assert call(QUANTIZE, {**GOOD[QUANTIZE], "output_dtype": right}).dtype == np.uint8
            error = caught(QUANTIZE, {**GOOD[QUANTIZE], "output_dtype": int(dml.DataType.UINT8)})
            assert error.rule == "output_dtype"


def test_wrong_numbers_are_found_after_right_ones():
    """A number is cached by its value and type; wrong numbers are never cached."""
    for zero_point, is_right in ((3, True), (300, False), (4, True), (-1, False), (True, False), (np.int64(5), True)):
        arguments = {**GOOD[QUANTIZE], "zero_point": zero_point, "output_dtype": np.uint8}
        if is_right:
            call(QUANTIZE, arguments)
        else:
            assert caught(QUANTIZE, arguments).tensor == "ZeroPointTensor"
    for scale, is_right in ((0.5, True), (1e300, False), (2, True), ("2", False)):
        arguments = {**GOOD[QUANTIZE], "scale": scale}
        if is_right:
            call(QUANTIZE, arguments)
        else:
            assert caught(QUANTIZE, arguments).tensor == "ScaleTensor"


def test_a_number_is_converted_once():
    """Eagerly and traced, whatever other numbers came in between. Arrays share an entry, whatever their values."""
    cache = calls_of_operators.OPERATORS[QUANTIZE].cache
    numbers = [(0.5, 3), (0.25, 3), (0.5, 4), (np.float32(0.5), np.uint8(3))]

    def arrays(scale, zero):
        return {"scale": np.asarray(scale, np.float32), "zero_point": np.asarray(zero, np.uint8)}

    expected = [call(QUANTIZE, {**GOOD[QUANTIZE], "scale": scale, "zero_point": zero}) for scale, zero in numbers]
    call(QUANTIZE, {**GOOD[QUANTIZE], **arrays(0.125, 5)})
    count = len(cache)
    for (scale, zero), right in zip(numbers, expected, strict=True):
        assert_same_bits(call(QUANTIZE, {**GOOD[QUANTIZE], "scale": scale, "zero_point": zero}), right)
        assert_same_bits(call(QUANTIZE, {**GOOD[QUANTIZE], **arrays(scale, zero)}), right)
    assert len(cache) == count


def test_numbers_that_equal_each_other_are_other_numbers():
    """A zero divides to an infinity of its sign, and 1 is an integer, but 1.0 is not."""
    x = np.float32([-1, 1])
    for _ in range(2):
        for zero, bits in ((0.0, [0, 255]), (-0.0, [255, 0])):
            quantized = dml.element_wise_quantize_linear(x, zero, 3, output_dtype=np.uint8)
            assert_same_bits(quantized, np.uint8(bits))
        assert dml.element_wise_quantize_linear(x, 1.0, 1).tolist() == [0, 2]
        assert caught(QUANTIZE, {**GOOD[QUANTIZE], "zero_point": 1.0}).tensor == "ZeroPointTensor"
        assert caught(QUANTIZE, {**GOOD[QUANTIZE], "zero_point": True}).tensor == "ZeroPointTensor"
        halves = (dml.dequantize(np.uint8([4, 8]), scale, np.uint8(0)).dtype for scale in (np.float16(0.5), 0.5))
        assert list(halves) == [np.float16, np.float32]


def test_weak_numbers_are_not_taken_for_typed_ones():
    def quantized(zero_point):
        return call(QUANTIZE, {**GOOD[QUANTIZE], "zero_point": zero_point})

    def scaled(scale):
        return call(QUANTIZE, {**GOOD[QUANTIZE], "scale": scale})

    for _ in range(2):
        jax.jit(scaled)(2)  # a Python number: valid, and not an int32
        with pytest.raises(DescError, match="has data type INT32"):
            jax.jit(scaled)(np.int32(2))
        jax.jit(quantized)(np.uint8(3))
        with pytest.raises(DescError, match="a weakly typed integer"):
            jax.jit(quantized)(3)
        with pytest.raises(DescError, match="has data type INT32"):
            jax.jit(quantized)(np.int32(3))


def test_prepared_weights_are_known_by_what_they_are():
    """Another layout, another group count or changed arrays are another call, and so is the array itself."""
    good = GOOD[CONVOLUTION]
    prepared = dml.prepare_convolution_filter(good["filter"])
    grouped = dml.prepare_convolution_filter(good["filter"][:, :2], group_count=2)
    for _ in range(2):
        assert_same_bits(call(CONVOLUTION, {**good, "filter": prepared}), call(CONVOLUTION, good))
        assert caught(CONVOLUTION, {**good, "filter": grouped}).tensor == "FilterTensor"
        changed = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), prepared)
        assert caught(CONVOLUTION, {**good, "filter": changed}).rule == "prepared"
        call(CONVOLUTION, {**good, "filter": grouped, "group_count": 2})
        assert caught(MATRIX_MULTIPLY, {**GOOD[MATRIX_MULTIPLY], "b": prepared}).rule == "array"


def test_the_memory_is_bounded(monkeypatch):
    """Calls are still right after it was emptied."""
    monkeypatch.setattr(calls_of_operators, "MAXIMUM_CACHED", 3)
    remembered = calls_of_operators.OPERATORS[QUANTIZE].cache
    monkeypatch.setattr(calls_of_operators.OPERATORS[QUANTIZE], "cache", {})
    for _ in range(2):
        for size in range(1, 8):
            shape = jax.eval_shape(lambda x: call(QUANTIZE, {**GOOD[QUANTIZE], "input": x}), np.ones(size, np.float32))
            assert shape.shape == (size,)
            assert len(calls_of_operators.OPERATORS[QUANTIZE].cache) <= 3
        assert caught(QUANTIZE, {**GOOD[QUANTIZE], "input": np.ones(3, np.int8)}).rule == "data_type"
    assert calls_of_operators.OPERATORS[QUANTIZE].cache is not remembered


@pytest.mark.parametrize("operator", OPERATORS)
def test_without_jit_a_second_call_compiles_nothing(operator):
    """Without jit, an operator is still one operation, as those of lax are, with the bits that it has under jit."""
    expected = call(operator, GOOD[operator])
    data = next(iter(GOOD[operator]))
    with jax.disable_jit():
        with compilations() as compiled:
            again = call(operator, GOOD[operator])
        assert compiled == []  # it is the program that the call above compiled
        with compilations() as compiled:
            call(operator, GOOD[operator])
        assert compiled == []
        with compilations() as compiled:
            call(operator, {**GOOD[operator], data: np.concatenate([GOOD[operator][data]] * 3)} if operator in (
                QUANTIZE, CONVOLUTION) else {**GOOD[operator], "feature_level": dml.FeatureLevel.JAXDML})  # fmt: skip
        assert bool(compiled) == (operator in (QUANTIZE, CONVOLUTION))  # another shape compiles, another level does not
    for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(expected), strict=True):
        assert_same_bits(one, other)
