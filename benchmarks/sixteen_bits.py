"""python -m benchmarks.sixteen_bits: QDQ files with 16-bit activations or 4-bit weights, in jaxdml and in onnxruntime.

Layers and networks with random weights, which onnxruntime's quantizer writes: uint16 activations and uint8 weights;
uint8 activations and uint4 weights; or floats by uint4 weights in blocks. onnxruntime runs with its default options.
Each time is the median of interleaved runs.
"""

import argparse
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxdml.onnx
from benchmarks.machine import best_of, environment
from benchmarks.measure import decibels
from benchmarks.network_files import IMAGE, NETWORKS, Builder, file_of
from benchmarks.onnx_peer import session_of
from benchmarks.shapes import SIZE
from benchmarks.timing import interleaved, median

RESULTS = Path(__file__).parent / "results"
DEPTH, COLUMNS, BLOCK = 1024, 4096, 32  # of the products
IN_BLOCKS = f"floats by uint4 in blocks of {BLOCK}"
TYPES = {"uint16 by uint8": ("QUInt16", "QUInt8"), "uint8 by uint4": ("QUInt8", "QUInt4")}
UNROUNDED = "unrounded"
HEAD = ("case", "activations by weights", "on integers", "jaxdml, ms", "onnxruntime, ms", "ratio", "agreement",
        "ratio, unrounded", "agreement, unrounded")  # fmt: skip
ABOUT = (
    "Each ratio is onnxruntime's time over jaxdml's: above 1, jaxdml is faster. The agreement is the ratio of "
    "onnxruntime's outputs to their difference from jaxdml's, in dB. For some products, onnxruntime rounds the "
    'activations to int8; the columns "unrounded" are for `session.qdq_matmulnbits_accuracy_level=0`, with which it '
    "does not."
)


def image_of(channels: int, size: int) -> tuple[int, ...]:
    return 1, channels, size, size


def convolution(channels: int, kernel: int, groups: int = 1) -> Callable[[Builder], str]:
    def build(net: Builder) -> str:
        net.channels[IMAGE] = channels
        return net.relu(net.conv(IMAGE, channels, kernel, groups=groups))

    return build


def product(net: Builder) -> str:
    weights = np.random.default_rng(0).normal(0, DEPTH**-0.5, (DEPTH, COLUMNS)).astype(np.float32)
    return net.node("MatMul", IMAGE, weights)


CASES: dict[str, tuple[Callable[[Builder], str], tuple[int, ...]]] = {  # a network, and the shape of its input
    **{f"product, {rows} x {DEPTH} x {COLUMNS}": (product, (rows, DEPTH)) for rows in (1, 64)},
    "convolution 1x1, 128 channels, 28x28": (convolution(128, 1), image_of(128, 28)),
    "convolution 3x3, 64 channels, 56x56": (convolution(64, 3), image_of(64, 56)),
    "depthwise 3x3, 128 channels, 56x56": (convolution(128, 3, 128), image_of(128, 56)),
    **{name: (NETWORKS[name], image_of(3, SIZE)) for name in ("ResNet-18", "MobileNetV2", "MobileNetV3")},
}


def forms_of(case: str) -> tuple[str, ...]:
    return (*TYPES, IN_BLOCKS) if case.startswith("product") else tuple(TYPES)


def drawn(case: str, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, CASES[case][1]).astype(np.float32)


def quantized(case: str, form: str) -> bytes:
    """The file of a case in a form."""
    if form == IN_BLOCKS:
        return in_blocks(case)
    return file_of(CASES[case][0], partial(drawn, case), "QDQ", *TYPES[form])


def in_blocks(case: str) -> bytes:
    """The file of a product of floats by random 4-bit weights, which have a scale for each block."""
    import ml_dtypes

    rng, net = np.random.default_rng(0), Builder()
    weights = rng.integers(0, 16, (DEPTH, COLUMNS)).astype(ml_dtypes.uint4)
    scales = rng.uniform(0.5, 1.5, (DEPTH // BLOCK, COLUMNS)).astype(np.float32) / DEPTH
    zero_points = np.full(scales.shape, 8).astype(ml_dtypes.uint4)
    matrix = net.node("DequantizeLinear", weights, scales, zero_points, axis=0, block_size=BLOCK)
    model = net.model({IMAGE: drawn(case, 0)}, net.node("MatMul", IMAGE, matrix), np.float32)
    file: bytes = model.SerializeToString()
    return file


def measured(case: str, form: str, seconds: float) -> dict[str, Any]:
    """Times of a case, its products and convolutions on integers, and how close the outputs are to onnxruntime's."""
    file, x = quantized(case, form), drawn(case, 2)
    model, given = jaxdml.onnx.load(file, numerics="onnxruntime"), jax.numpy.asarray(x)
    program = jax.jit(lambda params, x: next(iter(model.apply(params, x).values())))
    program = program.lower(model.params, given).compile()
    received = np.asarray(program(model.params, given), float)
    rivals = {
        "onnxruntime": session_of(file, {IMAGE: x}),
        UNROUNDED: session_of(file, {IMAGE: x}, qdq_matmulnbits_accuracy_level="0"),
    }
    calls = {"jaxdml": lambda: jax.block_until_ready(program(model.params, given)), **rivals}
    times = interleaved(calls, seconds, rounds=2000)
    found = re.search(r"(\d+ of \d+) convolutions and products", str(model))
    return {
        "case": case,
        "form": form,
        "on integers": found[1] if found else "0 of 0",
        "milliseconds": {name: float(f"{median(samples):.4g}") for name, samples in times.items()},
        "decibels": {name: agreement(received, np.asarray(rival(), float)) for name, rival in rivals.items()},
    }


def agreement(received: np.ndarray, expected: np.ndarray) -> int | None:
    """The ratio of the expected values to their error, in dB; None if they are equal."""
    return None if np.array_equal(received, expected) else round(decibels(received, expected))


def row(found: dict[str, Any]) -> str:
    own, cells = found["milliseconds"]["jaxdml"], [found["case"], found["form"], found["on integers"]]
    cells += [f"{own:.3g}", f"{found['milliseconds']['onnxruntime']:.3g}"]
    for name, ratio in found["decibels"].items():
        cells += [f"{found['milliseconds'][name] / own:.2f}", "equal" if ratio is None else f"{ratio} dB"]
    return f"| {' | '.join(cells)} |"


def table(rows: list[str]) -> list[str]:
    return [f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}", *rows]


def page(results: dict[str, Any]) -> str:
    """The page, in Markdown."""
    about = results["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in about["packages"].items())
    facts = f"{about['processor']}, {about['threads']} threads, {about['kernels']}; {versions}."
    lines = ["# 16-bit activations and 4-bit weights", "", facts, "", ABOUT, "", *table([*map(row, results["cases"])])]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, action="append", help="default: all")
    parser.add_argument("--seconds", type=float, default=2, help="of timing, for each row")
    parser.add_argument("--publish", action="store_true", help="write benchmarks/results/sixteen_*")
    options = parser.parse_args()
    machine, found = environment(), list[dict[str, Any]]()
    print(*table([]), sep="\n", flush=True)
    for case in options.case or CASES:
        for form in forms_of(case):
            found.append(measured(case, form, options.seconds))
            print(row(found[-1]), flush=True)
    if options.publish:
        file = RESULTS / f"sixteen_{best_of(machine['instructions'])}.json"
        results = {"environment": machine, "cases": found}
        file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        file.with_suffix(".md").write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
