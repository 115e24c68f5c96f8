"""Networks in files have recorded bits: those of other versions of jax, and of other processors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from _ptq.recorded import DIGESTS, NETWORKS, digests
from helpers.marks import rarely_on_xla, rest_rarely
from helpers.native_calls import needs_native

ROOT = Path(__file__).parents[2]
RECORDED = json.loads(DIGESTS.read_text(encoding="utf-8"))
SETS = {
    "SSE4.2": {"XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2", "JAXDML_KERNELS": "xla"},
    "native AVX2": {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2", "JAXDML_KERNELS": "avx2"},
}


@pytest.mark.oldest
@rarely_on_xla
@pytest.mark.parametrize("name", rest_rarely(NETWORKS, 1))
def test_the_bits_are_those_that_were_recorded(name):
    assert digests(name) == RECORDED[name]


@pytest.mark.rare
@pytest.mark.oldest
@pytest.mark.parametrize("instructions", ["SSE4.2", pytest.param("native AVX2", marks=needs_native)])
def test_other_instruction_sets(instructions):
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path} | SETS[instructions]
    command = [sys.executable, ROOT / "tests" / "_ptq" / "recorded.py"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1]) == RECORDED
