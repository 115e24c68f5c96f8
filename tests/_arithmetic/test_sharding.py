"""Many devices and processes: the same bits, only the collectives that are needed, and an error when a peer dies."""

import contextlib
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.marks import rest_rarely
from helpers.on_devices import run_on_eight
from helpers.platforms import between_processes

pytestmark = pytest.mark.oldest

HERE = Path(__file__).parent


def environment():
    path = os.pathsep.join([str(HERE.parents[1]), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path}


PROGRAMS = {  # with the number of results that each compares
    "on_eight_devices.py few": 2 * 3 + 3 + 2,
    "on_eight_devices.py": 2 * (10 + 3) + 2 * 3 + 4 + 4 + 8 + 8,
    "on_eight_devices.py explicit": 2 * 10,
    "integers_on_eight_devices.py": 2 * (14 + 2),
}


@pytest.mark.parametrize("command", rest_rarely(PROGRAMS, 1))
def test_eight_devices(command):
    program, *arguments = command.split()
    assert run_on_eight(HERE / program, *arguments).count("ok ") == PROGRAMS[command]


@contextlib.contextmanager
def two_processes():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    command = [sys.executable, HERE / "one_of_two_processes.py", address]
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([*command, str(process)], env=environment(), **options) for process in range(2)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@between_processes
@pytest.mark.rare
@pytest.mark.parametrize("victim", [0, 1], ids=["the first, whom the others meet at", "the second"])
def test_two_processes_compute_the_same_bits_and_a_killed_one_is_an_error_not_a_hang(victim):
    with two_processes() as processes:
        for number, process in enumerate(processes):
            said = next((line for line in process.stdout if line == f"ok {number}\n"), None)  # among Gloo's output
            assert said, process.stderr.read()
        processes[victim].kill()
        survivor = processes[1 - victim]
        _, errors = survivor.communicate("\n", timeout=60)  # the heartbeat's timeout is 10 seconds
        assert survivor.returncode != 0
        assert re.search("heartbeat|unavailable|closed|reset|peer|gloo::", errors, re.I), errors
