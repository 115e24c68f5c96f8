"""The checked operators: the errors that they find under checkify; otherwise they are the operators."""

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

import jaxdml as dml
from _operators.calls import page_name
from helpers.compare import assert_same_bits
from helpers.descs import OPERATORS
from helpers.marks import rarely_on_xla

pytestmark = [rarely_on_xla, pytest.mark.oldest]

X = np.arange(32, dtype=np.uint8).reshape(1, 2, 16)
F = np.arange(12, dtype=np.int8).reshape(2, 2, 3)
CALLS = {
    "element_wise_dequantize_linear": (X, 0.1, 3),
    "element_wise_quantize_linear": (X.astype(np.float32), 0.1, 3),
    "fake_quantize": (X.astype(np.float32), 0.1, 3),
    "element_wise_quantized_linear_add": (X, 0.1, 3, X, 0.2, 4, 0.3, 5),
    "quantized_linear_matrix_multiply": (X, 0.1, 3, F[:1].repeat(16, 1)[:, :16], 0.2, None, 30.0, 5),
    "quantized_linear_convolution": (X, 0.1, 3, F, 0.2, None, None, 30.0, 5),
    "matrix_multiply_integer": (X, 3, F[:1].repeat(16, 1)[:, :16], None),
    "convolution_integer": (X, 3, F, None),
    "dynamic_quantize_linear": (X.astype(np.float32),),
    "matrix_multiply_integer_to_float": (X, 0.1, 3, F[:1].repeat(16, 1)[:, :16], 0.2, None, np.ones(3, np.float32)),
    "quantized_linear_average_pooling": (X[None], 0.1, 3, 0.2, 5),
    "quantize": (X.astype(np.float32), 0.1, 3),
    "dequantize": (X, 0.1, 3),
}
OPTIONS = {"quantized_linear_average_pooling": {"window_size": 1}}  # where some are required
SCALES = [
    (name, place, parameter)
    for name in CALLS
    for place, parameter in enumerate(inspect.signature(getattr(dml, name)).parameters)
    if parameter.endswith("scale")
]


def test_every_operator_has_its_checked_form():
    assert set(CALLS) == {*OPERATORS, "fake_quantize"}
    for name in CALLS:
        ours, theirs = getattr(dml.checked, name), getattr(dml, name)
        assert inspect.signature(ours) == inspect.signature(theirs)
        assert ours.__doc__ == theirs.__doc__


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CALLS)
def test_right_calls_give_the_same_bits(name):
    options = OPTIONS.get(name, {})
    error, got = checkify.checkify(jax.jit(lambda: getattr(dml.checked, name)(*CALLS[name], **options)))()
    assert error.get() is None
    expected = getattr(dml, name)(*CALLS[name], **options)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert_same_bits(one, other)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "place", "parameter"), SCALES)
def test_wrong_scales_are_named(name, place, parameter):
    arguments = list(CALLS[name])

    def call(scale):
        arguments[place] = scale
        return getattr(dml.checked, name)(*arguments, **OPTIONS.get(name, {}))

    page = page_name(parameter, name)
    checked = jax.jit(checkify.checkify(call))
    for value in (0.0, -0.5, np.nan, np.inf):
        error, _ = checked(jnp.float32(value))
        assert f"{name}: {page} has the value {value}, expected a finite number above 0" in error.get()
        with pytest.raises(checkify.JaxRuntimeError, match=re.escape(page)):
            error.throw()
    error, _ = checked(jnp.float32(0.5))
    assert error.get() is None


@pytest.mark.parametrize("name", CALLS)
def test_checks_that_are_off_cost_nothing(name):
    """The same program, error and output as the operator; with the checks on, another program."""
    places = [place for other, place, _ in SCALES if other == name]

    def program(module, errors):
        def call(x, *scales):
            arguments = [x, *CALLS[name][1:]]
            for place, scale in zip(places, scales, strict=True):
                arguments[place] = scale
            return getattr(module, name)(*arguments, **OPTIONS.get(name, {}))

        checked = checkify.checkify(call, errors=errors)
        return jax.jit(checked).lower(CALLS[name][0], *(jnp.float32(0.1) for _ in places)).as_text()

    assert program(dml, frozenset()) == program(dml.checked, frozenset())
    has_checks = program(dml, checkify.user_checks) != program(dml.checked, checkify.user_checks)
    assert has_checks == bool(places)


def test_one_wrong_scale_among_many_is_found_under_vmap():
    scales = jnp.ones((4, 2, 1)).at[2, 1, 0].set(-3)
    call = jax.vmap(lambda s: dml.checked.element_wise_dequantize_linear(X[0], s, 3))
    error, _ = checkify.checkify(jax.jit(call))(scales)
    assert "has the value -3.0" in error.get()


def test_without_checkify_jax_says_so():
    with pytest.raises(ValueError, match="checkify"):
        jax.jit(lambda s: dml.checked.element_wise_dequantize_linear(X, s, 3))(jnp.float32(1))


def test_wrong_calls_get_the_operators_own_errors():
    with pytest.raises(dml.DescError, match="ScaleTensor is a list"):
        dml.checked.element_wise_dequantize_linear(X, [0.1], 3)
