"""Promotion is strict and rank promotion an error, so that nothing in the library widens or broadcasts by accident.

What computes is tested on native kernels and on XLA's, which give the same bits; where JAXDML_KERNELS chose the set of
instructions, on those.
"""

import collections
import importlib.util
import os
import random

import jax
import pytest

import jaxdml as dml

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


# Sphinx comes with the extra `docs`; `make docs` installs that extra, and runs this file.
collect_ignore = [] if importlib.util.find_spec("sphinx") else ["documents/test_built_site.py"]


@pytest.fixture(params=["x32", "x64"])
def x64(request):
    """The test runs with 64-bit types off and on."""
    with jax.enable_x64(request.param == "x64"):
        yield request.param == "x64"


SKIP_NOTHING = "JAXDML_TESTS_SKIP_NOTHING"  # set by continuous integration
HAS_NATIVE = dml.kernels().startswith("native")
ON_BOTH = ("/_operators/", "/_arithmetic/test_rounding.py", "/_arithmetic/test_subnormals.py", "/test_programs.py")
NOTHING_COMPUTED = ("test_wrong_", "test_remedies", "test_call_errors", "test_traced_arguments", "test_arguments")
# What these compute is compared on XLA's kernels by others, too; here XLA's turn comes in `make test-all`.
RARELY_ON_XLA = (
    "test_contractions.py::test_called", "test_contractions.py::test_vmapped", "test_prepared.py::test_same_bits",
    "test_checked", "test_element_wise", "test_export", "test_random_cases.py", "test_quantize_and_dequantize",
    "test_cited_vectors", "test_gradients", "test_onnxruntime", "test_remembered_calls", "/test_vectors", "test_ways_to_write",
)  # fmt: skip
ON_XLA = ("/_arithmetic/test_backends.py", "/_arithmetic/test_kernels.py")  # they look at what XLA makes of a program


def pytest_configure():
    if os.environ.get(SKIP_NOTHING) and not HAS_NATIVE:
        raise pytest.UsageError(f"{SKIP_NOTHING} is set, and there are no native kernels: {dml.kernels()}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Where nothing may be left out, a test that skips fails."""
    report = yield
    if report.skipped and os.environ.get(SKIP_NOTHING):
        report.outcome, report.longrepr = "failed", f"skipped, where {SKIP_NOTHING} is set: {report.longrepr}"
    return report


def pytest_generate_tests(metafunc):
    path = metafunc.definition.path.as_posix()
    if any(part in path for part in ON_XLA):
        metafunc.parametrize("kernels", ["xla"], indirect=True, ids=[""])
    elif any(part in path for part in ON_BOTH) and not any(part in path for part in NOTHING_COMPUTED):
        rarely = any(part in f"{path}::{metafunc.function.__name__}" for part in RARELY_ON_XLA)
        both = ["native", pytest.param("xla", marks=pytest.mark.rare) if rarely else "xla"]
        metafunc.parametrize("kernels", both if HAS_NATIVE else ["xla"], indirect=True)


@pytest.fixture(autouse=True)
def kernels(request):
    """The kernels that a test runs on; where it is not run on each, those that users get."""
    which = getattr(request, "param", None)
    if which is None:
        yield None
        return
    with dml.use_kernels(which):
        yield which


# Quick files that reach all of the library: what `make test-oldest-quick` runs.
ON_THE_OLDEST = (
    "_arithmetic/test_rounding.py",
    "_arithmetic/test_sharding.py",
    "_compiled/test_bindings.py",
    "_ptq/test_second_readers.py",
    "_ptq/test_ways_to_call.py",
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
    sampled = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("rare"):
            sampled[item.nodeid.split("[")[0], item.callspec.params.get("kernels")].append(item)
        if item.path.as_posix().endswith(ON_THE_OLDEST):
            item.add_marker(pytest.mark.oldest)
    for (name, _), cases in sampled.items():
        count = cases[0].get_closest_marker("sampled").args[0]
        kept = random.Random(name).sample(cases, min(count, len(cases)))  # the same in every process
        for case in cases:
            if case not in kept:
                case.add_marker(pytest.mark.rare)
