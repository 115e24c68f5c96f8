"""python -m benchmarks.profile LABEL: where the time of one case goes, according to XLA's profiler."""

import argparse
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from benchmarks import suite

RUNS = 30


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("label", help="of the first case that is profiled, such as 'network 1'")
    label = parser.parse_args().label
    make = next((make for make in suite.cases(quick=False) if label in suite.label(make)), None)
    if make is None:
        parser.error(f"no case has {label!r} in its label")
    case = make()
    profiled(f"{case.family}, {case.name}", *case.jitted[case.first])


def profiled(name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Prints the time of each instruction of the compiled function."""
    program = jax.jit(function).lower(*arguments).compile()
    instructions = dict(re.findall(r"%([\w.-]+) = ((?:\(.*?\)|\S+) [\w-]+)\(", program.as_text()))
    native = dict(re.findall(r"%([\w.-]+) = .*custom_call_target=\"jaxdml_cpu_(\w+)", program.as_text()))
    jax.block_until_ready(program(*arguments))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(RUNS):
                jax.block_until_ready(program(*arguments))
        (file,) = Path(folder).rglob("*.xplane.pb")
        profile = jax.profiler.ProfileData.from_file(str(file))
    spent: Counter[str] = Counter()
    for plane in profile.planes:
        for line in plane.lines:
            for event in line.events:
                if event.name in instructions:
                    spent[event.name] += event.duration_ns
    total = sum(spent.values())
    ynnpack = sum(time for name, time in spent.items() if name.startswith("ynn_fusion")) / total
    own = sum(time for name, time in spent.items() if name in native) / total
    print(f"{name}: {total / RUNS / 1e6:.2f} ms a run", end=", ")
    print(f"{own:.0%} of it in native kernels, {ynnpack:.0%} in YNNPACK")
    for instruction, time in spent.most_common(40):
        share = f"{time / RUNS / 1e6:9.3f} ms  {time / total:6.1%}"
        print(f"{share}  {native.get(instruction, instruction):32} {instructions[instruction]}")
    kernels: Counter[str] = Counter()
    for instruction, time in spent.items():
        kernels[native.get(instruction, "XLA")] += time
    print(", ".join(f"{kernel} {time / total:.1%}" for kernel, time in kernels.most_common()))


if __name__ == "__main__":
    main()
