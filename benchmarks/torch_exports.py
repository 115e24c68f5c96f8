"""python -m benchmarks.torch_exports: networks that torch exports and onnxruntime quantizes, as jaxdml.onnx reads them.

It needs packages that jaxdml's extras do not include, in an environment of its own:
pip install . ./native torch torchvision transformers onnxscript onnx onnxruntime

Each network is exported by torch's older exporter and by the newer one ("dynamo"), and each file is quantized in three
ways: QDQ with scales for each channel, QOperator, and dynamic. The table says how many convolutions and products run on
integers, and how close all outputs are to onnxruntime's when jaxdml uses its formulas: "equal" if no number differs, or
the ratio in dB of the outputs to their difference. On processors without int8 dot products, onnxruntime's products with
int8 weights saturate. Therefore weights are uint8; those of an LSTM are int8 in any case, and dynamic files run with
`session.x64quantprecision`. Where a package rejects a network or a file, the table has its error message.
"""

import argparse
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import environment
from benchmarks.quantized_files import FORMS, Inputs, attempted, compared, in_own_process, prepared, quantized
from benchmarks.torch_models import MODELS, VOCABULARY

RESULTS = Path(__file__).parent / "results"
EXPORTERS = {"older": {"dynamo": False}, "dynamo": {"dynamo": True, "external_data": False, "verbose": False}}
PACKAGES = "torch", "torchvision", "transformers", "onnxscript", "onnx"


def drawn(examples: tuple[torch.Tensor, ...], generator: torch.Generator) -> Inputs:
    """Random inputs like the examples; a mask of ones stays as it is."""

    def of(example: torch.Tensor) -> torch.Tensor:
        if example.dtype.is_floating_point:
            return torch.randn(example.shape, generator=generator)
        return example if example.max() < 2 else torch.randint(0, VOCABULARY, example.shape, generator=generator)

    return {f"x{place}": of(example).numpy() for place, example in enumerate(examples)}


def exported(module: torch.nn.Module, examples: tuple[torch.Tensor, ...], exporter: str, folder: Path) -> Path:
    """The path of an exported network after onnxruntime's preprocessing for quantization."""
    raw = folder / "raw.onnx"
    names = [f"x{place}" for place in range(len(examples))]
    with torch.no_grad():
        torch.onnx.export(module, examples, str(raw), input_names=names, **EXPORTERS[exporter])
    return prepared(raw, folder)


def cells(name: str) -> Iterator[tuple[str, str, str]]:
    """(exporter, form, cell) of a network."""
    torch.manual_seed(0)
    module, examples = MODELS[name]()
    module.eval()
    generator = torch.Generator().manual_seed(1)
    *batches, others = [drawn(examples, generator) for _ in range(4)]
    for exporter in EXPORTERS:
        with tempfile.TemporaryDirectory() as folder:
            path = attempted(exported, module, examples, exporter, Path(folder))
            for form in FORMS:
                made = path if isinstance(path, str) else attempted(quantized, path, form, batches)
                yield exporter, form, made if isinstance(made, str) else attempted(compared, made, others)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, action="append", help="default: all")
    parser.add_argument("--publish", metavar="NAME", help="write the table and JSON to benchmarks/results")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        print(json.dumps([*cells(options.model[0])]))
        return
    found = {}
    for name in options.model or MODELS:
        found[name] = in_own_process("benchmarks.torch_exports", "--model", name)
        print(*rows(name, found[name]), sep="\n", flush=True)
    if options.publish:
        publish(options.publish, found)


def rows(name: str, found: list[tuple[str, str, str]]) -> list[str]:
    """The rows of a network in Markdown, one for each exporter."""
    by = {(exporter, form): cell for exporter, form, cell in found}
    cells = {exporter: [by[exporter, form] for form in FORMS] for exporter in EXPORTERS}
    return ["| " + " | ".join([name, exporter, *cells[exporter]]) + " |" for exporter in EXPORTERS]


def publish(name: str, found: dict[str, Any]) -> None:
    """Writes the cells as JSON, and the table as a page."""
    machine = environment()
    machine["packages"] |= {package: metadata.version(package) for package in PACKAGES}
    text = json.dumps({"environment": machine, "networks": found}, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    packages = ", ".join(f"{package} {version}" for package, version in machine["packages"].items())
    table = [" | ".join(["| network", "exporter", *FORMS]) + " |", "|" + " --- |" * (2 + len(FORMS))]
    table += [line for network, each in found.items() for line in rows(network, each)]
    facts = f"{machine['processor']}, {machine['kernels']}; {packages}."
    page = ["# Networks that torch exports", "", facts, "", *table]
    (RESULTS / f"{name}.md").write_text("\n".join(page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
