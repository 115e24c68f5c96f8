"""Shows, runs and compares a quantized model: `python -m jaxdml.onnx model.onnx`."""

import argparse
import io
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdml.errors import ModelError
from jaxdml.onnx._compare.compare import compare
from jaxdml.onnx._load import load


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command. Returns 1 after an error, or if outputs differ from onnxruntime's; otherwise 0."""
    parser = argparse.ArgumentParser(prog="python -m jaxdml.onnx", description=__doc__)
    parser.add_argument("model", type=Path, help="a quantized .onnx file")
    parser.add_argument("--numerics", choices=("directml", "onnxruntime"), default="directml", help="formulas to use")
    parser.add_argument("--run", metavar="INPUT.NPZ", type=Path, help="run the model on these inputs, keyed by name")
    parser.add_argument("--output", metavar="OUT.NPZ", type=Path, help="write the outputs of --run here, keyed by name")
    parser.add_argument("--compare", action="store_true", help="compare with onnxruntime, on random inputs by default")
    parser.add_argument("--html", metavar="PAGE.HTML", type=Path, help="write the result of --compare here, as a page")
    arguments = parser.parse_args(argv)
    if arguments.output and not arguments.run:
        parser.error("--output needs --run: without --run there is nothing to write")
    if arguments.html and not arguments.compare:
        parser.error("--html needs --compare: without --compare there is nothing to write")
    try:
        return _run(arguments)
    except (ModelError, OSError) as error:
        print(f"python -m jaxdml.onnx: {error}", file=sys.stderr)
        return 1


def _run(arguments: argparse.Namespace) -> int:
    for option, path in (("--output", arguments.output), ("--html", arguments.html)):
        if path and not path.parent.is_dir():
            raise ModelError(f"{option}: there is no folder {str(path.parent)!r}")
    inputs = _read(arguments.run) if arguments.run else None
    model = load(arguments.model, numerics=arguments.numerics)
    if not (arguments.run or arguments.compare):
        print(model)
    if inputs is not None:
        outputs = {name: np.asarray(value) for name, value in model.apply(model.params, **inputs).items()}
        for name, value in outputs.items():
            print(f"{name}: {value.dtype}{list(value.shape)}")
        if arguments.output:
            _write(arguments.output, outputs)
            print(f"written to {arguments.output}")
    if not arguments.compare:
        return 0
    comparison = compare(arguments.model, inputs, model)
    print(comparison)
    if inputs is None:
        print("use --run for your own inputs")
    if arguments.html:
        arguments.html.write_text(comparison.page(f"{arguments.model.name} and onnxruntime"), encoding="utf-8")
        print(f"written to {arguments.html}")
    return 0 if comparison.are_equal else 1


def _read(path: Path) -> dict[str, Any]:
    """The arrays in a .npz, keyed by name."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise ModelError(f"{path} is a single array, expected a .npz of inputs keyed by name")
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except (ModelError, FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except Exception as error:  # NumPy and zipfile raise many kinds of exceptions for files of other types
        raise ModelError(f"{path} cannot be read as a .npz of inputs keyed by name; numpy.savez writes one") from error


def _write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a .npz. Unlike `np.savez`, this function allows any array name, and never changes the path."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


if __name__ == "__main__":
    if isinstance(sys.stdout, io.TextIOWrapper):  # the encoding may not have all characters of a name
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main())
