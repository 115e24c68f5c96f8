"""Promotion is strict and rank promotion an error, so that nothing in the library widens or broadcasts by accident."""

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(params=["x32", "x64"])
def x64(request):
    """The test runs with 64-bit types off and on."""
    with jax.enable_x64(request.param == "x64"):
        yield request.param == "x64"
