"""`python -m jaxdml`: runs an int8 network and compares every output of every layer with NumPy, bit by bit."""

import argparse
import importlib.resources
import importlib.util
import statistics
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import jaxdml
from jaxdml.examples import digits

LOWEST_ACCURACY = 95.0  # percent
LARGEST_LOSS = 1.0  # percentage points of accuracy that int8 may lose against float
TIMED_RUNS = 21
CALIBRATION = 64  # images


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the results; returns 1 and prints the problems to stderr if a result is wrong."""
    parser = argparse.ArgumentParser(prog="python -m jaxdml", description=__doc__)
    parser.add_argument("npz", nargs="?", help="a network from notebooks/02_digits_network; default: jaxdml's own")
    path = parser.parse_args(argv).npz
    try:
        images, labels, parameters, float_parameters = digits.load(path)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        parser.error(f"cannot read {path}: {error}")

    _show(f"jaxdml {jaxdml.__version__}: DirectML's quantized operators as exact int8 JAX functions.")
    _show(f"A residual CNN reads {len(images)} handwritten digits that it was not trained on, in float and in int8.")
    _show("NumPy then computes every int8 layer again from the same inputs, and each output is compared bit for bit.\n")

    device = jax.devices()[0]
    _show(f"{'device':16}{device.platform} ({device.device_kind})")
    _show(f"{'kernels':16}{jaxdml.kernels()}")
    float_network = jax.jit(digits.float_network)
    float_accuracy = _accuracy(float_network(float_parameters, images), labels)
    _show(f"{'float accuracy':16}{float_accuracy:.2f} %")
    network = jax.jit(digits.int8_network)
    logits = network(parameters, images)
    accuracy = _accuracy(logits, labels)
    _show(f"{'int8 accuracy':16}{accuracy:.2f} %\n")

    calls = jax.tree.map(np.asarray, jax.jit(digits.int8_calls)(parameters, images))
    differing = _compare(calls)
    of_onnx = _compare_onnx()
    ptq_accuracy = _quantize(float_parameters, images, labels)

    runs = {"int8": lambda: network(parameters, images), "float": lambda: float_network(float_parameters, images)}
    speeds = {name: len(images) / seconds for name, seconds in zip(runs, _median_seconds(*runs.values()), strict=True)}
    text = ", ".join(f"{name} {speed:,.0f} images/s" for name, speed in speeds.items())
    _show(f"\n{'speed':16}{text} ({len(images)} at a time, medians of {TIMED_RUNS} runs)")

    loss, ptq_loss, most = float_accuracy - accuracy, float_accuracy - ptq_accuracy, f"at most {LARGEST_LOSS}"
    is_unstable = _count_differing(np.asarray(logits), calls[-1].output)
    checks = (
        (accuracy < LOWEST_ACCURACY, f"int8 accuracy is {accuracy:.2f} %, expected at least {LOWEST_ACCURACY} %"),
        (loss > LARGEST_LOSS, f"int8 loses {loss:.2f} points to float, expected {most}"),
        (ptq_loss > LARGEST_LOSS, f"jaxdml.ptq loses {ptq_loss:.2f} points to float, expected {most}"),
        (of_onnx, f"{of_onnx:,} logits of the ONNX model differ from onnxruntime's"),
        (differing, f"{differing:,} outputs differ from NumPy's"),
        (is_unstable, "the logits change if the network also returns the outputs of its layers"),
    )
    problems = [text for is_wrong, text in checks if is_wrong]
    for problem in problems:
        print(f"python -m jaxdml: {problem}", file=sys.stderr)
    if not problems:
        _show("\nOK: every output has the bits that NumPy computes.")
    return 1 if problems else 0


def _show(line: str) -> None:
    print(line, flush=True)


def _accuracy(logits: jax.Array, labels: jax.Array) -> float:
    """The percentage of images whose largest logit is that of the label."""
    return 100 * float(np.mean(np.argmax(logits, axis=1) == np.asarray(labels)))


def _compare(calls: list[digits.Call]) -> int:
    """Prints a line for each operator; returns the number of outputs that differ from jaxdml.reference."""
    _show(f"{'operator':34}{'calls':>7}{'outputs':>12}{'differing':>12}")
    total = 0
    for operator in dict.fromkeys(call.layer.operator for call in calls):
        own = [call for call in calls if call.layer.operator == operator]
        expected = [getattr(jaxdml.reference, operator)(*call.arguments, **call.layer.options) for call in own]
        differing = sum(_count_differing(call.output, right) for call, right in zip(own, expected, strict=True))
        _show(f"{operator:34}{len(own):7}{sum(call.output.size for call in own):12,}{differing:12,}")
        total += differing
    return total


def _compare_onnx() -> int:
    """Runs a model that onnxruntime quantized; returns the number of logits that differ from onnxruntime's."""
    _show("\nThe same network, quantized by onnxruntime; jaxdml's logits are compared with onnxruntime's:\n")
    if importlib.util.find_spec("onnx") is None:
        _show("not run: this needs the package onnx; run pip install 'jaxdml[onnx]'")
        return 0
    folder = importlib.resources.files("jaxdml.examples")
    model = jaxdml.onnx.load((folder / "digits.onnx").read_bytes(), numerics="onnxruntime")
    with (folder / "digits_onnx.npz").open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        expected, version = stored["logits"], stored["onnxruntime"]
    images = digits.load().images
    (logits,) = (np.asarray(value) for value in jax.jit(model.apply)(model.params, images).values())
    differing = _count_differing(logits, expected)
    _show(f"{'nodes':16}{', '.join(f'{count} {name}' for name, count in Counter(model.operators).items())}")
    _show(f"{'onnxruntime ' + str(version):32}{expected.size:,} logits, {differing:,} differing")
    return differing


def _count_differing(output: np.ndarray, expected: np.ndarray) -> int:
    """The number of elements with different bits: NaN equals itself; -0.0 differs from 0.0."""
    if (output.shape, output.dtype) != (expected.shape, expected.dtype):
        return output.size
    bits = f"uint{8 * output.itemsize}"
    return int(np.count_nonzero(output.view(bits) != expected.view(bits)))


def _quantize(parameters: dict[str, jax.Array], images: jax.Array, labels: jax.Array) -> float:
    """Quantizes the float network in one call and returns its accuracy in percent."""
    _show(f"\nThe float network, quantized by one call of jaxdml.ptq.quantize with {CALIBRATION} of the images:\n")
    batches = [images[:CALIBRATION]]
    model = jaxdml.ptq.quantize(digits.float_network, parameters, batches, progress=False)
    logits = jax.jit(model.apply)(model.params, images)
    accuracy = _accuracy(logits, labels)
    _show(f"{'int8 accuracy':16}{accuracy:.2f} %")
    (ratio,) = model.sqnr(parameters, images).outputs
    _show(f"{'error':16}the logits are {ratio:.1f} dB above their quantization noise")
    return accuracy


def _median_seconds(*runs: Callable[[], Any]) -> list[float]:
    """The median time of each function in seconds; the functions are called in turn."""
    seconds: list[list[float]] = [[] for _ in runs]
    for number in range(TIMED_RUNS + 1):  # the first call compiles
        for run, own in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(run())
            if number:
                own.append(time.perf_counter() - start)
    return list(map(statistics.median, seconds))


if __name__ == "__main__":
    sys.exit(main())
