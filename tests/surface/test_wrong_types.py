"""An error about a wrong type names the function that was called, and the types that this function takes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from _operators.calls import GOOD, call
from jaxdml import ptq

F = np.ones((2, 3), np.float32)
NIBBLES = np.ones((2, 3), np.int8).astype("int4")
TYPES = ("complex64", "float64", "bfloat16", "bool", "int64", "int32", "int4", "U1", "M8[s]")
EVERY = (np.float32, np.int32, "x", None)


@functools.cache
def seen():
    return jax.jit(ptq.LeastSquares().update)(F)


CALLS = {
    "fake_quantize": [
        *(lambda d=d: dml.fake_quantize(F.astype(d), 0.1) for d in TYPES[:-2]),
        *(lambda d=d: dml.fake_quantize(F, F.astype(d)) for d in TYPES),
        *(lambda d=d: dml.fake_quantize(F, 0.1, F.astype(d)) for d in TYPES),
        *(lambda d=d: dml.fake_quantize(F, 0.1, output_dtype=d) for d in TYPES),
        *(lambda d=d: dml.checked.fake_quantize(F.astype(d), 0.1) for d in TYPES[:-2]),
        *(lambda d=d: jax.jit(dml.fake_quantize)(F.astype(d), 0.1) for d in ("bool", "int32")),
    ],
    "prepare_matrix_multiply_b": [lambda d=d: dml.prepare_matrix_multiply_b(F.astype(d)) for d in TYPES],
    "prepare_convolution_filter": [
        *(lambda d=d: dml.prepare_convolution_filter(F[None].astype(d)) for d in TYPES),
        lambda: dml.prepare_convolution_filter(np.ones((2, 2, 3), np.int8), group_count=1.0),
    ],
    "matrix_multiply_blocks": [
        *(lambda d=d: dml.matrix_multiply_blocks(F.astype(d), NIBBLES, F[:, :1]) for d in TYPES if d != "bfloat16"),
        *(lambda d=d: dml.matrix_multiply_blocks(F, NIBBLES.astype(d), F[:, :1]) for d in TYPES[:5]),
        *(lambda d=d: dml.matrix_multiply_blocks(F, NIBBLES, F[:, :1].astype(d)) for d in TYPES),
    ],
    "prepare_matrix_multiply_blocks": [
        *(lambda d=d: dml.prepare_matrix_multiply_blocks(NIBBLES, F[:, :1].astype(d)) for d in TYPES),
    ],
    "scale_and_zero_point": [lambda d=d: ptq.scale_and_zero_point(-1.0, 1.0, d) for d in EVERY],
    "quantize_weights": [
        *(lambda d=d: ptq.quantize_weights(F, dtype=d) for d in EVERY),
        *(lambda d=d: ptq.quantize_weights(F.astype(d)) for d in ("complex64", "int32", "bool", "U1")),
    ],
    "LeastSquares.range": [lambda d=d: seen().range(d) for d in EVERY],
}


@pytest.mark.parametrize("name", CALLS)
def test_the_error_names_the_function_that_was_called(name):
    for wrong in CALLS[name]:
        with pytest.raises(ValueError, match=f"^{name}: ") as caught:
            wrong()
        assert getattr(caught.value, "operator", name) == name


@pytest.mark.parametrize("operator", GOOD)
def test_an_operator_names_itself_however_it_is_called(operator):
    """Under its own name, in the checked form, and by a desc."""
    function, count = getattr(dml, operator), 0
    for name, right in GOOD[operator].items():
        if not hasattr(right, "dtype"):
            continue
        for dtype in ("complex64", "bool", "bfloat16"):
            wrong = {**GOOD[operator], name: np.asarray(right).astype(dtype)}
            for form in (
                lambda wrong=wrong: call(operator, wrong),
                lambda wrong=wrong: getattr(dml.checked, operator)(**wrong),
                lambda wrong=wrong: dml.desc_of(function, **wrong),
            ):
                with pytest.raises(dml.DescError, match=f"^{operator}: ") as caught:
                    form()
                assert caught.value.operator == operator
                count += 1
    assert count >= 9


def test_no_type_that_fake_quantize_refuses_is_said_to_be_allowed():
    for dtype in ("float64", "int32"):
        with pytest.raises(dml.DescError, match=f"has type {dtype}, expected FLOAT32 or FLOAT16; "):
            dml.fake_quantize(F.astype(dtype), 0.1)
    assert dml.fake_quantize(F.astype("float64").astype(jnp.float32), 0.5).dtype == np.float32


def test_no_type_is_none_and_not_float64():
    with pytest.raises(ptq.PtqError, match="scale_and_zero_point: dtype is None, expected int8 or uint8"):
        ptq.scale_and_zero_point(-1.0, 1.0, None)
