"""Which tests run on each set of kernels, and which only in `make test-all`."""

import shutil
from pathlib import Path

import pytest

import jaxdml as dml

HAS_NATIVE = dml.kernels().startswith("native")
CPUINFO = Path("/proc/cpuinfo")
CAN_HIDE = (  # whether `python -m benchmarks.without_avx512` can run, and has something to hide
    CPUINFO.exists() and "avx512f" in CPUINFO.read_text() and all(map(shutil.which, ("cc", "objdump", "readelf")))
)
RARE_XLA = pytest.param("xla", marks=pytest.mark.rare)


def on_kernels(*kernels, ids=None):
    """Runs the test once on each of the kernels, through the fixture `kernels` in conftest.py."""
    return pytest.mark.parametrize("kernels", kernels, indirect=True, ids=ids)


on_both_kernels = on_kernels("native", "xla") if HAS_NATIVE else on_kernels("xla")
# For tests whose results other tests compare on XLA's kernels.
rarely_on_xla = on_kernels("native", RARE_XLA) if HAS_NATIVE else on_kernels("xla")
on_xla_alone = on_kernels("xla", ids=[""])  # for tests that inspect how XLA compiles a program


def rest_rarely(values, count):
    """The values as parameters; those after the first `count` are marked as rare."""
    values = list(values)
    return values[:count] + [pytest.param(value, marks=pytest.mark.rare) for value in values[count:]]
