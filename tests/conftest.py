"""Implicit promotion of types and of ranks raises errors, so that the library never widens or broadcasts by accident.

Computations are tested on native kernels and on XLA's, which give the same bits. If JAXDML_KERNELS chooses an
instruction set, they are tested on that set.
"""

import gc
import importlib.util
import os

import jax
import pytest

import jaxdml as dml
from helpers.programs import pytest_configure_node, share_programs  # noqa: F401 - the first is a hook of xdist
from helpers.samples import mark_the_rest_of_samples, outside_of_part

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


# Sphinx and playwright come with the extra `docs`; `make docs` installs that extra, and runs these files.
NEED_DOCS = {"sphinx": "documents/test_built_site.py", "playwright": "documents/test_browse.py"}
collect_ignore = [file for package, file in NEED_DOCS.items() if not importlib.util.find_spec(package)]


@pytest.fixture(params=["x32", "x64"])
def x64(request):
    """The test runs with 64-bit types off and on."""
    with jax.enable_x64(request.param == "x64"):
        yield request.param == "x64"


# Set by continuous integration.
SKIP_NOTHING = "JAXDML_TESTS_SKIP_NOTHING"
PART = "JAXDML_TESTS_PART"  # "0/8" to "7/8" are the eighths


def pytest_configure(config):
    share_programs(config)
    if os.environ.get(SKIP_NOTHING) and not dml.kernels().startswith("native"):
        raise pytest.UsageError(f"{SKIP_NOTHING} is set, and there are no native kernels: {dml.kernels()}")


def pytest_collection_finish():
    """Objects from collection live to the end, so the garbage collector need not scan them repeatedly."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """If no test may be left out, a test that skips fails."""
    report = yield
    if report.skipped and os.environ.get(SKIP_NOTHING):
        report.outcome, report.longrepr = "failed", f"skipped, where {SKIP_NOTHING} is set: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def kernels(request):
    """The kernels that a test runs on; by default those that users get."""
    which = getattr(request, "param", None)
    if which is None:
        yield None
        return
    with dml.use_kernels(which):
        yield which


def pytest_collection_modifyitems(config, items):
    mark_the_rest_of_samples(items)
    if part := os.environ.get(PART):
        left_out = outside_of_part(items, *map(int, part.split("/")))
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]
