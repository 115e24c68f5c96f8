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


# Quick files that reach all of the library: what `make test-oldest-quick` runs.
ON_THE_OLDEST = (
    "_arithmetic/test_rounding.py",
    "_arithmetic/test_sharding.py",
    "_compiled/test_bindings.py",
    "_compiled/test_operator.py",
    "_directml/test_desc_json.py",
    "_operators/test_checked.py",
    "_operators/test_export.py",
    "_operators/test_gradients.py",
    "_operators/test_transforms.py",
    "dxdispatch/test_models.py",
    "test_an_operator_made_up.py",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.as_posix().endswith(ON_THE_OLDEST):
            item.add_marker(pytest.mark.oldest)
