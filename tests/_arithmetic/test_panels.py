"""Layouts of packed weights: each instruction set has one, and weights that NumPy packed are unpacked."""

import numpy as np
import pytest

from jaxdml._arithmetic import kernel_library, panels

FILTERS = [((10, 3, 3, 3), 2), ((8, 1, 3, 3), 8), ((24, 16, 1), 1), ((12, 2, 3), 6)]
RNG = np.random.default_rng(1)


def test_each_instruction_set_has_a_layout():
    assert {panels.OF_OTHERS.get(name, name) for name in kernel_library.SETS} == set(panels.LAYOUTS)


@pytest.mark.parametrize("layout", panels.LAYOUTS)
@pytest.mark.parametrize("shape", [(13, 37), (1, 5), (70, 64)])
def test_a_matrix(layout, shape):
    matrix = RNG.integers(-128, 128, shape, np.int8)
    packed = panels.packed_matrix_of(matrix, layout, 20_000)
    assert (panels.matrix_of(packed, shape, layout) == matrix).all()


@pytest.mark.parametrize("layout", panels.LAYOUTS)
@pytest.mark.parametrize(("shape", "groups"), FILTERS)
def test_a_filter(layout, shape, groups):
    weights = RNG.integers(-128, 128, shape, np.int8)
    packed = panels.packed_filter_of(weights, groups, layout, 20_000)
    assert (panels.filter_of(packed, shape, groups, layout) == weights).all()
