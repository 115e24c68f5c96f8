"""The sum over blocks of a product by a block-quantized matrix, with one block after another and with many at once."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.block_cases import Case, floats, matrix
from helpers.compare import assert_same_bits
from helpers.marks import on_xla_alone
from jaxdml._arithmetic import blocks

pytestmark = on_xla_alone


@pytest.mark.rare
@pytest.mark.parametrize("kind", ["wide", "special", "zeros"])
def test_the_oracle_s_bits_however_many_blocks_are_multiplied_at_once(kind, monkeypatch):
    """A CPU multiplies one block at a time; here it multiplies 3, 7 and 32, as a GPU does."""
    rng, depth = np.random.default_rng(0), 7 * 32 - 9
    case = Case((floats(rng, kind, (5, depth)), *matrix(rng, "uint4", (9, depth), 32), None), "int15")
    for at_once in (3, 7, 32):
        monkeypatch.setattr(blocks, "ON_CPU", at_once)
        jax.clear_caches()  # of programs with another number
        assert_same_bits(jax.jit(case.call)(*case.arguments), case.expected, at_once)
    jax.clear_caches()


@pytest.mark.rare
@pytest.mark.parametrize(("rows", "at_once"), [(16, 32), (1024, 4), (8192, 1)])
def test_a_gpu_multiplies_as_many_blocks_at_once_as_its_memory_allows(rows, at_once):
    """64 MiB for the sums of a plane."""
    a, b, scale = ((rows, 2048), jnp.float32), ((4096, 2048), jnp.int8), ((4096, 64), jnp.float32)
    multiply = partial(dml.matrix_multiply_blocks, precision="int8")
    traced = jax.jit(multiply).trace(*(jax.ShapeDtypeStruct(*each) for each in (a, b, scale)))
    program = traced.lower(lowering_platforms=("cuda",)).as_text()
    counts = {int(count) for count in re.findall(rf"dot_general.* -> tensor<(\d+)x{rows}x4096xf32>", program)}
    assert counts == {at_once}
