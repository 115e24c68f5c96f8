"""Models of more than 2 GiB, the limit of a protobuf file; their tensors are in a second file."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("model_above_2_gib.py")
ROOM, MEMORY = 5 * 10**9, 8 * 10**9  # bytes


@pytest.mark.rare
def test_a_model_above_2_gib(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    if free < ROOM:
        pytest.skip(f"{tmp_path} has {free / 1e9:.1f} GB free, and this test needs {ROOM / 1e9:.0f}: set TMPDIR")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(PROGRAM.parents[1]), str(PROGRAM.parents[2])))}
    command = [sys.executable, str(PROGRAM), str(tmp_path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    finally:
        shutil.rmtree(tmp_path)
    assert done.returncode == 0, done.stderr
    refused, same, loaded, problem, peak = done.stdout.splitlines()
    assert refused == "refused: File too large"
    assert same == "onnxruntime: the same bits"
    assert loaded == "load: the model has a problem:"
    assert problem.endswith("for a file you trust, set Limits(tensor_bytes=...)")
    assert int(peak.removeprefix("peak: ")) < MEMORY
