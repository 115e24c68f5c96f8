"""Two processes that share the cores: the rate of calls of both together over that of one process alone."""

import statistics
import subprocess
import sys
import threading
import time
from typing import Any

import jax
import numpy as np

from benchmarks import contractions, elementwise
from benchmarks.case import PLAIN, PREPARED

WORK = {
    "convolution": lambda: contractions.convolution(1, 64, 56, 64, 3, peers=""),
    "product": lambda: contractions.matrix_multiply(64, 1024, 1024, peers=""),
    "add": lambda: elementwise.add(np.uint8, peers=""),
}
START, STOP = "start", "stop"


def serve() -> None:
    """Reads names of work from the input, runs each until the next line arrives, and prints the calls per second."""
    programs = {}
    for name, make in WORK.items():
        case = make()
        function, arguments = case.jitted.get(PREPARED) or case.jitted[PLAIN]
        programs[name] = jax.jit(function).lower(*arguments).compile(), arguments
        programs[name][0](*arguments).block_until_ready()
    print(START, flush=True)
    stopped = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        stopped.set()

    waiting = sys.stdin.readline().strip()
    while waiting:
        program, arguments = programs[waiting]
        stopped.clear()
        listener = threading.Thread(target=listen)
        listener.start()
        calls, start = 0, time.perf_counter()
        while not stopped.is_set():
            program(*arguments).block_until_ready()
            calls += 1
        print(calls / (time.perf_counter() - start), flush=True)
        listener.join()
        waiting = sys.stdin.readline().strip()


def measured(seconds: float, rounds: int = 3) -> dict[str, dict[str, float]]:
    """Calls per second of one process alone and of two together: medians of rounds that take turns."""
    command = [sys.executable, "-m", "benchmarks.two_processes"]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as first, subprocess.Popen(command, **pipes) as second:
        for process in (first, second):
            assert process.stdout.readline().strip() == START
        rates: dict[str, dict[str, list[float]]] = {name: {"alone": [], "together": []} for name in WORK}
        for _ in range(rounds):
            for name, of in rates.items():
                of["alone"].append(_rate([first], name, seconds))
                of["together"].append(_rate([first, second], name, seconds))
        for process in (first, second):
            process.stdin.close()
    return {name: {kind: statistics.median(each) for kind, each in of.items()} for name, of in rates.items()}


def _rate(processes: list[Any], name: str, seconds: float) -> float:
    for line, pause in ((name, seconds), (STOP, 0.0)):
        for process in processes:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        time.sleep(pause)
    return sum(float(process.stdout.readline()) for process in processes)


def shown(rates: dict[str, dict[str, float]]) -> list[str]:
    """A table in Markdown."""
    lines = ["| work | calls a second, alone | two processes together | together / alone |", "| --- " * 4 + "|"]
    for name, of in rates.items():
        alone, together = of["alone"], of["together"]
        lines.append(f"| {name} | {alone:.0f} | {together:.0f} | {together / alone:.2f} |")
    return lines


if __name__ == "__main__":
    serve()
