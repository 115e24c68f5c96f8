"""Layouts of packed weights: each instruction set has one, and weights that NumPy packed are unpacked."""

import jax
import numpy as np
import pytest
from jax import lax

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


def test_packed_weights_are_sliced_before_they_are_moved():
    """In a loop that does both, XLA:CPU moves single bytes."""
    packed = jax.ShapeDtypeStruct((20_000,), np.int8)

    def repeated(packed, x):
        matrix = panels.matrix_of(packed, (64, 256), "avx512_vnni").astype(np.float32)
        return lax.fori_loop(0, 2, lambda _, x: (x @ matrix)[:, :64], x)

    hlo = jax.jit(repeated).lower(packed, jax.ShapeDtypeStruct((1, 64), np.float32)).compile().as_text()
    moving = [each for each in hlo.split("\n\n") if "s8[" in each and " transpose(" in each]
    assert moving
    assert not any(" slice(" in each for each in moving)
