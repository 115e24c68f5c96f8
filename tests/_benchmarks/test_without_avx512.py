"""benchmarks.without_avx512 on a library that queries the processor's features."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.machine import environment  # noqa: E402
from benchmarks.without_avx512 import build_handler, replace_cpuid  # noqa: E402

ASKS = """
#include <cpuid.h>
unsigned answer(unsigned leaf, unsigned part, unsigned *registers) {
  __cpuid_count(leaf, part, registers[0], registers[1], registers[2], registers[3]);
  return 7;
}
"""
PROGRAM = """
import ctypes, sys
registers = (ctypes.c_uint * 4)()
assert ctypes.CDLL(sys.argv[1]).answer(int(sys.argv[2]), 0, registers) == 7
print(*registers)
"""


def answer(library, leaf, **variables):
    command = [sys.executable, "-c", PROGRAM, library, str(leaf)]
    run = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True)
    return [int(register) for register in run.stdout.split()]


TOOLS = ("cc", "objdump", "readelf")


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="cpuid is of x86-64")
@pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason=f"needs {', '.join(TOOLS)}")
def test_a_library_is_told_of_no_avx512_and_of_all_else(tmp_path):
    library = tmp_path / "asks.so"
    subprocess.run(["cc", "-x", "c", "-", "-shared", "-fPIC", "-o", library], input=ASKS, text=True, check=True)
    before = answer(library, 7), answer(library, 0)
    assert replace_cpuid(library) == 1
    assert replace_cpuid(library) == 0
    handler = build_handler(tmp_path / "handler.so")
    features, name = (answer(library, leaf, LD_PRELOAD=str(handler)) for leaf in (7, 0))
    assert name == before[1]
    hidden = (0, 0xD0230000, 0x00005842, 0x03C00100)  # leaf 7, from Intel's and AMD's manuals
    assert features == [register & ~bits for register, bits in zip(before[0], hidden, strict=True)]


def test_the_environment_names_what_is_hidden(monkeypatch):
    monkeypatch.setenv("BENCHMARKS_WITHOUT", "avx512 avx_vnni amx")
    assert not [kind for kind in environment()["instructions"] if kind != "avx2"]
    assert environment()["hidden"] == ["avx512", "avx_vnni", "amx"]
