"""Products of one row that XLA:CPU computes in floats: the bits of NumPy's integers, at the bound and beyond it."""

import re

import jax
import numpy as np
import pytest
from jax import export

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from jaxdml._arithmetic import contractions

COLUMNS = 4
# Which operands have zero points; the greatest depth at which float32 holds every sum.
BOUNDS = rest_rarely([("a and b", 258), ("a", 514), ("b", 514), ("", 1024)], 1)


def operands(zero_points, depth):
    """Rows, a zero point of one element or None, a matrix, and zero points of its columns or None.

    Some sums are as large as sums of such a depth can be, and some are odd.
    """
    edges = np.array([-128, 127], np.int8)
    rows = [np.full((1, depth), edge, np.int8) for edge in edges]
    rows += [np.concatenate([row[:, :-1], row[:, -1:] ^ 1], 1) for row in rows]
    b = np.repeat(edges[[0, 1, 0, 1]][None], depth, 0)
    b[-1, 2:] ^= 1
    a_zero_point = np.full((1, 1), 127, np.int8) if "a" in zero_points.split() else None
    b_zero_point = edges[[1, 0, 1, 0]][None] if "b" in zero_points.split() else None
    return rows, a_zero_point, b, b_zero_point


def expected(a, a_zero_point, b, b_zero_point):
    x, y = (np.int64(z) - (0 if zero is None else np.int64(zero)) for z, zero in ((a, a_zero_point), (b, b_zero_point)))
    return x @ y


def types_of_products(*operands):
    with dml.use_kernels("xla"):
        hlo = jax.jit(contractions.dot).lower(*operands).compile().as_text()
    return set(re.findall(r"= (\w+)\[[^=\n]* dot\(", hlo))


@pytest.mark.parametrize("is_prepared", [False, pytest.param(True, marks=pytest.mark.rare)])
@pytest.mark.parametrize("beyond", [0, 1])
@pytest.mark.parametrize("case", BOUNDS)
def test_sums_are_exact_at_the_bound_and_beyond(case, beyond, is_prepared):
    zero_points, bound = case
    rows, a_zero_point, b, b_zero_point = operands(zero_points, bound + beyond)
    with dml.use_kernels("xla"):
        matrix = contractions.prepare_matrix(b) if is_prepared else b
        dot = jax.jit(contractions.dot)
        received = np.concatenate([dot(a, a_zero_point, matrix, b_zero_point) for a in rows])
    sums = expected(np.concatenate(rows), a_zero_point, b, b_zero_point)
    assert_same_bits(received, sums.astype(np.int32))
    # Beyond the bound there are sums that float32 cannot represent.
    assert (np.float32(sums) != sums).any() == bool(beyond)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other backends multiply integers")
def test_only_small_products_of_one_row_are_of_floats():
    row, rows, small, large = (np.ones(shape, np.int8) for shape in ((1, 64), (2, 64), (64, 256), (64, 257)))
    assert types_of_products(row, None, small, None) == {"f32"}
    assert types_of_products(rows, None, small, None) == {"s32"}
    assert types_of_products(row, None, large, None) == {"s32"}


@pytest.mark.rare
def test_a_symbolic_depth_is_of_integers():
    (depth,) = export.symbolic_shape("depth")
    structs = jax.ShapeDtypeStruct((1, depth), np.int8), jax.ShapeDtypeStruct((depth, COLUMNS), np.int8)
    with dml.use_kernels("xla"):
        program = export.export(jax.jit(lambda a, b: contractions.dot(a, None, b, None)))(*structs)
    (a, *_), _, b, _ = operands("", 1025)
    assert_same_bits(np.asarray(program.call(a, b)), expected(a, None, b, None).astype(np.int32))
