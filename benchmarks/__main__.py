"""python -m benchmarks: bits first, then times, against onnxruntime and what JAX has without jaxdml."""

import argparse
import datetime
import json
import platform
import re
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from benchmarks import chart, suite
from benchmarks.cases import LAX, LOOP, ORT, ORT_U8, PLAIN, PREPARED, Case
from benchmarks.onnx_peer import threads
from benchmarks.timing import interleaved, median

RESULTS = Path(__file__).parent / "results"


def path_of(hlo: str) -> str:
    """How XLA:CPU runs the contractions of a compiled program: on YNNPACK's kernels, in loops, or without any."""
    fusions = set(re.findall(r"fusion\(.*?calls=%?([\w.-]+).*?__ynn_fusion", hlo))
    kinds: dict[str, int] = {}
    for computation in re.split(r"\n\n", hlo):
        name = computation.strip().removeprefix("ENTRY ").removeprefix("%").split(" ")[0]
        for operation in re.findall(r" (dot|convolution)\(", computation):
            kind = f"YNNPACK {operation}" if name in fusions else f"{operation} in a loop"
            kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "one fused loop"


def compiled(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Callable[[], Any], dict[str, Any]]:
    """A call of the compiled function, and what compiling says of it."""
    start = time.perf_counter()
    program = jax.jit(function).lower(*arguments).compile()
    seconds = time.perf_counter() - start
    facts = {
        "compile_seconds": round(seconds, 3),
        "temporary_bytes": program.memory_analysis().temp_size_in_bytes,
        "path": path_of(program.as_text()),
    }
    return lambda: program(*arguments).block_until_ready(), facts


def measure(case: Case, seconds: float) -> dict[str, Any]:
    """Checks every contender's bits against NumPy, then times them all in one interleaved run."""
    calls, facts = dict(case.calls), {name: {} for name in case.calls}
    for name, (function, arguments) in case.jitted.items():
        calls[name], facts[name] = compiled(function, arguments)
    expected = case.expected()
    for name, call in calls.items():
        got = np.asarray(call())
        same_kind = got.shape == expected.shape and got.dtype == expected.dtype
        facts[name]["differing"] = int((got != expected).sum()) if same_kind else None
    for name in (PREPARED, PLAIN):
        if facts.get(name, {}).get("differing", 0) != 0:
            raise SystemExit(f"{case.family}, {case.name}: {name} does not have the bits that NumPy computes")
    for name, samples in interleaved(calls, seconds).items():
        facts[name] |= {"milliseconds": median(samples), "runs": len(samples)}
    row = {"family": case.family, "case": case.name, "outputs": int(expected.size), "multiply_adds": case.multiply_adds}
    ours = facts[case.first]["milliseconds"]
    ratios = {name: float(f"{ours / fact['milliseconds']:.4g}") for name, fact in facts.items() if name != case.first}
    return row | {"at_most": case.at_most, "form": case.first, "ratios": ratios, "contenders": facts}


def shown(row: dict[str, Any]) -> str:
    lines = [f"{row['family']}, {row['case']}"]
    for name, fact in row["contenders"].items():
        ratio = row["ratios"].get(name)
        parts = [f"  {name:27}{fact['milliseconds']:10.3f} ms"]
        parts.append(f"{1 / ratio:7.2f}x ours" if ratio else f"{'':12}")
        differing = fact["differing"]
        parts.append("other output" if differing is None else f"{differing} differ" if differing else "same bits")
        if "path" in fact:
            parts.append(f"compiled in {fact['compile_seconds']:.2f} s, {fact['temporary_bytes'] / 1e6:.1f} MB")
            parts.append(fact["path"])
        lines.append("  ".join(parts))
    return "\n".join(lines)


def summary(rows: list[dict[str, Any]]) -> str:
    """One line for each case that onnxruntime ran: its two times, and that of `lax`, over ours."""
    rows = [row for row in rows if ORT in row["ratios"]]
    if not rows:
        return ""
    lines = [f"{'the time of the peer over that of jaxdml: above 1, jaxdml is faster':70}"]
    lines += [f"{'':56}{'int8':>7}{'uint8':>7}{'aim':>9}{'lax':>10}"]
    for row in rows:
        ratios = row["ratios"]
        exact = f"{1 / ratios[ORT_U8]:7.2f}" if ORT_U8 in ratios else " " * 7
        limit = f"{1 / row['at_most']:9.2f}" if row["at_most"] else " " * 9
        lax = f"{1 / ratios[LAX]:10.1f}" if LAX in ratios else ""
        lines.append(f"{row['family'] + ', ' + row['case']:56}{1 / ratios[ORT]:7.2f}{exact}{limit}{lax}")
    return "\n".join(line.rstrip() for line in lines)


def vmap_table(rows: list[dict[str, Any]]) -> str:
    """A loop of calls over the same calls under vmap."""
    rows = [row for row in rows if LOOP in row["ratios"]]
    lines = [f"{'a loop over vmap, prepared weights: above 1, vmap is faster':63}{'aim':>16}"]
    lines += [
        f"{row['family'] + ', ' + row['case']:56}{1 / row['ratios'][LOOP]:7.2f}{1 / row['at_most']:16.2f}"
        for row in rows
    ]
    return "\n".join(lines) if rows else ""


def scaling_table(rows: list[dict[str, Any]]) -> str:
    """Time for each multiply-add, which should not grow."""
    if not rows:
        return ""
    lines = [f"{'scaling, prepared weights':56}{'ms':>9}{'ps for a multiply-add':>25}"]
    for row in rows:
        milliseconds = row["contenders"][PREPARED]["milliseconds"]
        each = milliseconds * 1e9 / row["multiply_adds"]
        lines.append(f"{row['family'] + ', ' + row['case']:56}{milliseconds:9.2f}{each:25.1f}")
    return "\n".join(lines)


def environment() -> dict[str, Any]:
    flags = re.findall(r"^flags\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M) if sys.platform == "linux" else []
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M) if flags else []
    kinds = [
        flag
        for flag in ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "amx_int8")
        if flags and flag in flags[0].split()
    ]
    return {
        "date": datetime.date.today().isoformat(),
        "processor": names[0] if names else platform.processor(),
        "instructions": kinds,
        "threads": threads(),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy", "onnxruntime", "jaxdml")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few cases of each family, in under two minutes")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="cases such as 'convolution 1 64 56 64 3' whose label contains TEXT"
    )
    parser.add_argument("--seconds", type=float, default=None, help="time spent on each case (4, or 2 if quick)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for the JSON and the chart")
    arguments = parser.parse_args()
    if jax.default_backend() != "cpu":
        parser.error(f"compares on a CPU, JAX runs on {jax.default_backend()}; set JAX_PLATFORMS=cpu")
    seconds = arguments.seconds if arguments.seconds is not None else 2 if arguments.quick else 4
    makers = [("cases", make) for make in suite.cases(arguments.quick)]
    makers += [] if arguments.quick else [("scaling", make) for make in suite.scaling()]
    makers = [(table, make) for table, make in makers if arguments.only in suite.label(make)]
    if not makers:
        parser.error(f"no case has {arguments.only!r} in its label")
    results: dict[str, Any] = {"environment": environment(), "cases": [], "scaling": []}
    for table, make in tqdm(makers, desc="benchmarks", unit="case"):
        row = measure(make(), seconds)
        results[table].append(row)
        tqdm.write(shown(row))
    rows = results["cases"]
    tables = "\n\n".join(filter(None, [summary(rows), vmap_table(rows), scaling_table(results["scaling"])])) + "\n"
    print("\n" + tables)
    arguments.output.mkdir(parents=True, exist_ok=True)
    kinds = results["environment"]["instructions"]
    processor = next((kind for kind in ("avx512_vnni", "avx_vnni", "avx2") if kind in kinds), "other")
    name = "selected" if arguments.only else "quick" if arguments.quick else f"cpu_{processor}"
    (arguments.output / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    (arguments.output / f"{name}.txt").write_text(tables)
    chart.draw(results, arguments.output / f"{name}.png")
    print(f"Written to {arguments.output}: {name}.json, {name}.txt, {name}.png")


if __name__ == "__main__":
    main()
