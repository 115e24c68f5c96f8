"""python -m benchmarks: checks bits against NumPy's, then compares times with those of onnxruntime and of JAX alone."""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from benchmarks import chart, suite
from benchmarks.machine import environment, name_of
from benchmarks.measure import measure
from benchmarks.tables import named, shown, tables

RESULTS = Path(__file__).parent / "results"


def run(makers: Iterable[tuple[str, suite.Make]], device: Any, seconds: float, path: Path, add: bool) -> list[str]:
    """Measures the cases on a device and returns the failures.

    `path` is the path of the files without their suffixes. JSON and tables are written after each case, so that an
    interrupted run keeps its results; `add` keeps the cases of an earlier run.
    """
    results: dict[str, Any] = {"environment": environment(device), "cases": [], "scaling": []}
    if add and path.with_suffix(".json").exists():
        before = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        results = before | {"environment": results["environment"]}
    path.parent.mkdir(parents=True, exist_ok=True)
    failures = []
    with jax.default_device(device):
        for table, make in tqdm(list(makers), desc="benchmarks", unit="case"):
            try:
                row = measure(make(), seconds)
            except Exception as error:
                failures.append(f"{suite.label(make)}: {type(error).__name__}: {error}"[:2000])
                tqdm.write(failures[-1])
                continue
            results[table] = [other for other in results[table] if named(other) != named(row)] + [row]
            tqdm.write(shown(row))
            path.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            path.with_suffix(".txt").write_text(tables(results), encoding="utf-8")
    if results["cases"] or results["scaling"]:
        print("\n" + tables(results))
        chart.draw(results, path.with_suffix(".png"))
        print(f"Written to {path.parent}: {path.name}.json, {path.name}.txt, {path.name}.png")
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--platform", choices=("cpu", "gpu"), default="cpu", help="where jaxdml and lax run")
    parser.add_argument("--quick", action="store_true", help="a few cases of each family, in under two minutes")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="cases such as 'convolution 1 64 56 64 3' whose label contains TEXT"
    )
    parser.add_argument("--add", action="store_true", help="add the cases to the results of an earlier whole run")
    parser.add_argument("--seconds", type=float, default=None, help="time spent on each case (4, or 2 if quick)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for the JSON, the tables and the chart")
    arguments = parser.parse_args()
    try:
        device = jax.devices(arguments.platform)[0]
    except RuntimeError as error:
        parser.error(f"there is no {arguments.platform} here: {error}")
    if arguments.platform != jax.default_backend():
        text = f"--platform is {arguments.platform}, but JAX runs on {jax.default_backend()}"
        parser.error(f"{text}; set JAX_PLATFORMS=" + {"cpu": "cpu", "gpu": "cuda,cpu"}[arguments.platform])
    seconds = arguments.seconds if arguments.seconds is not None else 2 if arguments.quick else 4
    if device.platform == "cpu":
        makers = [("cases", make) for make in suite.cases(arguments.quick)]
        makers += [] if arguments.quick else [("scaling", make) for make in suite.scaling()]
    else:
        makers = [("cases", make) for make in suite.on_gpu(arguments.quick)]
    makers = [(table, make) for table, make in makers if arguments.only in suite.label(make)]
    if not makers:
        parser.error(f"no case has {arguments.only!r} in its label")
    name = name_of(device, environment(device)["instructions"])
    if not arguments.add:
        name = "selected" if arguments.only else "quick" if arguments.quick else name
    failures = run(makers, device, seconds, arguments.output / name, arguments.add)
    if failures:
        sys.exit("\n".join(["Failed:", *failures]))


if __name__ == "__main__":
    main()
