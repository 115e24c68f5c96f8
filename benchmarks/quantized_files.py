"""Files that onnxruntime's quantizer makes from float files, and how close jaxdml's results are to onnxruntime's."""

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from benchmarks.timing import interleaved, median
from jaxdml import onnx

FORMS = "QDQ", "QOperator", "dynamic"
LONGEST = 240  # characters of an error in a table

Inputs = dict[str, np.ndarray]


class Batches(CalibrationDataReader):  # type: ignore[misc]
    """The batches that onnxruntime calibrates with."""

    def __init__(self, batches: list[Inputs]) -> None:
        self.batches = iter(batches)

    def get_next(self) -> Inputs | None:
        return next(self.batches, None)


def prepared(path: Path, folder: Path) -> Path:
    """The path of a float file after onnxruntime's preprocessing for quantization."""
    made = folder / "prepared.onnx"
    quant_pre_process(str(path), str(made), skip_symbolic_shape=True)
    return made


def quantized(path: Path, form: str, batches: list[Inputs]) -> Path:
    """The path of a quantized file."""
    made = path.with_name(f"{form}.onnx")
    if form == "dynamic":
        quantize_dynamic(path, made, weight_type=QuantType.QUInt8)
    else:
        options = {"quant_format": QuantFormat[form], "per_channel": form == "QDQ"}
        types = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8}
        quantize_static(path, made, Batches(batches), **options, **types)
    return made


def session_of(path: Path, is_exact: bool) -> Any:
    """A session for a file; `is_exact` keeps onnxruntime's products with int8 weights from saturating."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", str(int(is_exact)))
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def compared(path: Path, inputs: Inputs) -> str:
    """How many convolutions and products of a file run on integers, and how close its outputs are to onnxruntime's."""
    session = session_of(path, is_exact=path.stem not in FORMS[:2])
    model = onnx.load(path, numerics="onnxruntime")
    received = jax.jit(model.apply)(model.params, **inputs)
    expected = session.run([*received], inputs)
    pairs = [(np.asarray(a, float), np.asarray(b, float)) for a, b in zip(received.values(), expected, strict=True)]
    error, signal = sum(np.square(a - b).sum() for a, b in pairs), sum(np.square(b).sum() for _, b in pairs)
    found = re.search(r"(\d+ of \d+) convolutions and products", str(model))
    agreement = f"{10 * np.log10(signal / error):.0f} dB" if error else "equal"
    return f"{found[1] if found else '0 of 0'}, {agreement}"


def timed(path: Path, inputs: Inputs, seconds: float) -> str:
    """onnxruntime's time over jaxdml's for a file that both run, with XLA's floats: onnxruntime has no exact ones."""
    model, session = onnx.load(path, floats="xla"), session_of(path, is_exact=False)
    apply, arrays = jax.jit(model.apply), jax.device_put(inputs)
    calls = {
        "jaxdml": lambda: jax.block_until_ready(apply(model.params, **arrays)),
        "onnxruntime": partial(session.run, None, inputs),
    }
    times = interleaved(calls, seconds, rounds=2000)
    return f"{median(times['onnxruntime']) / median(times['jaxdml']):.2f}"


def attempted(function: Any, *arguments: Any) -> Any:
    """The result of a function, or a sentence about its error, which may come from any of six packages."""
    try:
        return function(*arguments)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        words = " ".join(str(error).replace("|", "/").split())
        return f"not {function.__name__}: {type(error).__name__}: {words[:LONGEST]}"


def in_own_process(module: str, *arguments: str) -> Any:
    """What a module prints as JSON in its last line, with the option --here, in a process of its own."""
    command = [sys.executable, "-m", module, "--here", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])
