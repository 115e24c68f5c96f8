"""Runs programs in separate processes, where choices that are made at import can differ."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def run(program, *arguments, **variables):
    """Runs a program that can import jaxdml and the modules of these tests; warnings are errors."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])} | variables
    command = [sys.executable, "-W", "error", "-c", program, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
