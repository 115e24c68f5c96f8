"""python -m benchmarks.zoo: jaxdml.ptq on networks that others wrote, each in a process of its own.

It needs packages that jaxdml's extras do not include, in an environment of its own:
pip install . ./native keras keras-hub dm-haiku equinox flax transformers==4.49.0 onnx onnxruntime

For each network, the table has: how many convolutions and products run on integers; the ratio of the outputs to their
error on other inputs, by default and with dynamic products; the batch sizes with which the model runs, and "any" if it
can be exported with a symbolic one; seconds and memory that `quantize` takes; the time of a float32 call with one
input, and the model's time over it, both jitted and measured in turns. For the column "onnx", `jaxdml.onnx.save` writes
the model with onnxruntime's numerics, in QDQ form with uint8 weights; the package onnx checks the file and infers all
its shapes; and onnxruntime runs it. The column has the ratio of the model's outputs to onnxruntime's error.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import onnxruntime
from jax import export

from benchmarks.machine import environment
from benchmarks.timing import interleaved, median
from benchmarks.zoo_models import MODELS
from jaxdml import ptq
from jaxdml.onnx import save

RESULTS = Path(__file__).parent / "results"
LONGEST = 100  # characters of an error in the table
HEAD = (
    "network",
    "on integers",
    "dB",
    "dB, dynamic",
    "onnx",
    "batches",
    "quantize, s",
    "MiB",
    "float32, ms",
    "int8 / float32",
)


def decibels(received: Any, expected: Any) -> float:
    """The signal-to-noise ratio of all outputs together."""
    pairs = zip(jax.tree.leaves(received), jax.tree.leaves(expected), strict=True)
    ratios = [(np.sum(np.square(b, dtype=float)), np.sum(np.square(a - b, dtype=float))) for a, b in pairs]
    signal, noise = map(sum, zip(*ratios, strict=True))
    return float(10 * np.log10(signal / noise)) if noise else np.inf


def counted(model: ptq.Model) -> tuple[int, int]:
    """How many convolutions and products run on integers, and how many there are; those in a scan count once."""
    integers, total = re.findall(r"(\d+) of (\d+) convolutions and products", str(model))[-1]
    return int(integers), int(total)


def of_any_batch(model: ptq.Model, apply: Any, params: Any, inputs: tuple[Any, ...]) -> str:
    """The batch sizes with which the model runs: 1, 2, 5, and "any" if it can be exported with a symbolic one."""
    found = []
    for count in (1, 2, 5):
        given = tuple(np.resize(x, (count, *x.shape[1:])) for x in inputs)
        try:
            if decibels(model.apply(model.params, *given), jax.jit(apply)(params, *given)) > 0:
                found.append(str(count))
        except ptq.PtqError as error:
            print(f"  batch {count}: {error}", file=sys.stderr)
    (batch,) = export.symbolic_shape("batch")
    structs = [jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype) for x in inputs]
    try:
        jax.eval_shape(jax.jit(apply), params, *structs)
    except Exception:  # the float function itself does not take a symbolic batch
        return " ".join(found)
    jax.eval_shape(model.apply, model.params, *structs)
    return " ".join((*found, "any"))


def of_onnxruntime(model: ptq.Model, inputs: tuple[Any, ...]) -> str:
    """The ratio in dB of the model's outputs to the error of onnxruntime, or why onnxruntime does not compute them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            save(model, path, weights="uint8")
            onnx.checker.check_model(path, full_check=True)
            session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
            names = [each.name for each in session.get_inputs()]
            received = session.run(None, dict(zip(names, map(np.asarray, inputs), strict=True)))
        except Exception as error:  # any of three packages may raise one; the table shows it
            print(f"  onnx: {type(error).__name__}: {error}", file=sys.stderr)
            words = " ".join(str(error).replace("|", "/").split())[:LONGEST]
            return f"{type(error).__name__}: {words}"
    ratio = decibels(received, jax.tree.leaves(model.apply(model.params, *inputs)))
    return "the same bits" if np.isinf(ratio) else f"{ratio:.1f}"


def measured(name: str, seconds_of_timing: float) -> dict[str, Any]:
    """The table's entries for one network."""
    apply, params, draw = MODELS[name]()
    rng = np.random.default_rng(0)
    batches, other, one = [draw(4, rng) for _ in range(4)], draw(8, rng), draw(1, rng)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    model = ptq.quantize(apply, params, batches, progress=False)
    seconds, memory = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    dynamic = ptq.quantize(apply, params, batches, products="dynamic", progress=False)
    as_file = ptq.quantize(apply, params, batches, numerics="onnxruntime", progress=False)
    floats = jax.jit(apply)
    expected = floats(params, *other)
    times = interleaved(
        {
            "float32": lambda: jax.block_until_ready(floats(params, *one)),
            "int8": lambda: jax.block_until_ready(model.apply(model.params, *one)),
        },
        seconds_of_timing,
    )
    return {
        "on integers": counted(model),
        "dB": decibels(model.apply(model.params, *other), expected),
        "dB, dynamic": decibels(dynamic.apply(dynamic.params, *other), expected),
        "onnx": of_onnxruntime(as_file, other),
        "batches": of_any_batch(model, apply, params, other),
        "quantize, s": seconds,
        "MiB": memory / 1024,
        "float32, ms": median(times["float32"]),
        "int8 / float32": median(times["int8"]) / median(times["float32"]),
    }


def row(name: str, found: dict[str, Any]) -> str:
    """A row of the table in Markdown."""
    integers, total = found["on integers"]
    cells = [name, f"{integers} of {total}", f"{found['dB']:.1f}", f"{found['dB, dynamic']:.1f}"]
    cells += [found["onnx"], found["batches"]]
    cells += [f"{found['quantize, s']:.1f}", f"{found['MiB']:.0f}", f"{found['float32, ms']:.1f}"]
    return " | ".join(["", *cells, f"{found['int8 / float32']:.2f}", ""]).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, action="append", help="default: all")
    parser.add_argument("--seconds", type=float, default=4, help="of timing, for each network")
    parser.add_argument("--publish", metavar="NAME", help="write the table and JSON to benchmarks/results")
    parser.add_argument("--note", default="", help="a sentence for the published table, such as what else was running")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measured(options.model[0], options.seconds)))
        return
    found, table = {}, ["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
    print(*table, sep="\n")
    for name in options.model or MODELS:
        command = [sys.executable, "-m", "benchmarks.zoo", "--here", "--model", name, "--seconds", str(options.seconds)]
        unfiltered = os.environ | {"JAX_TRACEBACK_FILTERING": "off"}  # the last line of a traceback is then the error
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=unfiltered)
        if done.returncode:
            table.append(f"| {name} | {done.stderr.strip().splitlines()[-1]} |")
        else:
            found[name] = json.loads(done.stdout.splitlines()[-1])
            table.append(row(name, found[name]))
        print(table[-1], flush=True)
    if options.publish:
        publish(options.publish, found, table, options.note)


def publish(name: str, found: dict[str, Any], table: list[str], note: str = "") -> None:
    """Writes the measurements as JSON, and the table as a page."""
    machine = environment()
    text = json.dumps({"environment": machine, "note": note, "networks": found}, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    packages = ", ".join(f"{package} {version}" for package, version in machine["packages"].items())
    facts = f"{machine['processor']}, {machine['threads']} threads, {machine['kernels']}; {packages}."
    page = ["# Networks that others wrote", "", facts, *([note] if note else []), "", *table]
    (RESULTS / f"{name}.md").write_text("\n".join(page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
