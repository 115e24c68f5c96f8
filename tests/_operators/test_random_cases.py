"""Integer products and convolutions, products in floats, pooling, and quantization by blocks, against the oracle."""

import jax
import numpy as np
import pytest

from _operators.integer_and_block_cases import BY_OPERATOR, INTEGERS, NARROW
from helpers.cases import Case
from helpers.marks import rarely_on_xla, rest_rarely
from helpers.modes import (
    UNOPTIMISED,
    as_jax,
    assert_same,
    called,
    check,
    closed_over,
    jitted,
    op_by_op,
    stacked,
    unoptimised_calls,
    variants,
    vmapped,
)

pytestmark = rarely_on_xla

# A part of the cases runs in each run, and the rest in `make test-all`.
CHUNKS = [chunk for own in BY_OPERATOR.values() for chunk in rest_rarely(own, 1)]
FIRST = [chunks[0][:3] for chunks in BY_OPERATOR.values()]


def name(chunk):
    return chunk[0].operator


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chunk", CHUNKS, ids=name)
def test_jitted(chunk):
    """All cases as XLA optimises them."""
    check(chunk, jitted)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chunk", CHUNKS, ids=name)
def test_called(chunk):
    with unoptimised_calls():
        check(chunk[::2], called)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", [called, jitted, closed_over], ids=lambda mode: mode.__name__)
@pytest.mark.parametrize("chunk", FIRST, ids=name)
def test_every_mode_with_64_bit_types_on(chunk, mode):
    with jax.enable_x64(True):
        check(chunk, mode)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chunk", FIRST, ids=name)
def test_op_by_op(chunk):
    check(chunk[:1], op_by_op)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chunk", CHUNKS, ids=name)
def test_x64_changes_no_operation(chunk):
    for case in chunk[::2]:
        programs = []
        for enabled in (False, True):
            with jax.enable_x64(enabled):
                programs.append(str(jax.make_jaxpr(case.call)(*as_jax(case.arguments))))
        assert programs[0] == programs[1]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("chunk", CHUNKS, ids=name)
def test_vmapped_over_every_argument(chunk):
    chunk = chunk[::2]
    lists = [variants(case) for case in chunk]
    batches = [as_jax(stacked(arguments)) for arguments in lists]
    got = vmapped(chunk, batches, UNOPTIMISED)
    for case, arguments, batch in zip(chunk, lists, got, strict=True):
        for place, one in enumerate(arguments):
            values = jax.tree.map(lambda x, place=place: x[place], batch)
            values = tuple(values) if isinstance(values, tuple) else values
            assert_same(case, values, Case(case.operator, one, case.options).expected)


def test_the_cases_reach_every_option():
    cases = {operator: [case for chunk in chunks for case in chunk] for operator, chunks in BY_OPERATOR.items()}
    assert {case.arguments[0].ndim for case in cases["pooling"]} == {4, 5}
    assert {case.options["include_padding"] for case in cases["pooling"]} == {True, False}
    assert any(max(case.options["dilations"]) > 1 for case in cases["pooling"])
    assert any(case.options["window_size"] == case.arguments[0].shape[2:] for case in cases["pooling"])
    for operator, dtypes in (("quantize", NARROW), ("dequantize", NARROW)):
        own = [c.options.get("output_dtype", c.arguments[0].dtype) for c in cases[operator]]
        assert set(own) == set(dtypes)
        sizes = [(c.arguments[1].shape, c.arguments[0].shape) for c in cases[operator] if c.arguments[1].ndim]
        assert any(1 < n < size for pair in sizes for n, size in zip(*pair, strict=True))
    kinds = {(case.arguments[0].dtype, case.arguments[3].dtype) for case in cases["to_float"]}
    assert {np.dtype(dtype) for pair in kinds for dtype in pair} == {np.dtype(dtype) for dtype in INTEGERS}
    scales = {case.expected[1].item() == 1 for case in cases["dynamic"]}
    assert False in scales
