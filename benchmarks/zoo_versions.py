"""python -m benchmarks.zoo_versions OLDER: the zoo's networks by this version of jaxdml and by an older one, in turns.

OLDER is a folder with the older version's `jaxdml` and, if it has native kernels, its `jaxdml_cpu`; NEWER, by default
the working tree, is another. It needs the environment of benchmarks.zoo. Each version quantizes the network in a
process of its own. The processes then take turns: one computes a few calls at batch size 1 while the other waits.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from benchmarks.timing import median
from benchmarks.zoo_models import MODELS

CALLS = 10  # in each turn; the first three do not count
AHEAD = 3


def serve(name: str, folder: str) -> None:
    """Quantizes a network by the version in `folder`. For each line of the input, prints the times of calls in ms."""
    sys.path.insert(0, folder)
    import jaxdml

    apply, params, draw = MODELS[name]()
    rng = np.random.default_rng(0)
    batches, one = [draw(4, rng)], draw(1, rng)
    model = jaxdml.ptq.quantize(apply, params, batches, progress=False)
    print(json.dumps([jaxdml.__file__, jaxdml.kernels()]), flush=True)
    for _ in sys.stdin:
        times = []
        for _ in range(CALLS):
            start = time.perf_counter()
            jax.block_until_ready(model.apply(model.params, *one))
            times.append((time.perf_counter() - start) * 1e3)
        print(json.dumps(times[AHEAD:]), flush=True)


@contextlib.contextmanager
def served(name: str, folder: str) -> Iterator[Any]:
    """A process that serves a network. It is ready when it has printed where jaxdml is, and which kernels run."""
    command = [sys.executable, "-m", "benchmarks.zoo_versions", folder, "--serve", name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        print(name, *json.loads(process.stdout.readline()), file=sys.stderr)
        yield process
        process.stdin.close()


def measured(name: str, folders: list[str], turns: int) -> list[list[float]]:
    """Milliseconds of calls by the version of each folder, taken in turns."""
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(served(name, folder)) for folder in folders]
        times: list[list[float]] = [[] for _ in folders]
        for _ in range(turns):
            for process, found in zip(processes, times, strict=True):
                process.stdin.write("\n")
                process.stdin.flush()
                found += json.loads(process.stdout.readline())
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("older", help="a folder with jaxdml and jaxdml_cpu")
    parser.add_argument("--newer", default=".", help="another such folder")
    parser.add_argument("--model", choices=MODELS, action="append", help="default: all")
    parser.add_argument("--turns", type=int, default=30, help="of each version, for each network")
    parser.add_argument("--serve", metavar="MODEL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.older)
        return
    print("| network | before, ms | now, ms | now / before |\n| --- | --- | --- | --- |")
    for name in options.model or MODELS:
        before, now = map(median, measured(name, [options.older, options.newer], options.turns))
        print(f"| {name} | {before:.2f} | {now:.2f} | {now / before:.2f} |", flush=True)


if __name__ == "__main__":
    main()
