"""python -m benchmarks.networks: files that onnxruntime's quantizer wrote, in jaxdml and in onnxruntime itself.

ResNet-18, MobileNetV2, EfficientNet-B0 and MobileNetV3 with random weights, in QOperator format, one image. Each time
is the median of interleaved runs. On processors without int8 dot products onnxruntime's sums of int8 weights saturate;
there its session gets the option that makes them exact. `--profile` shows where a network's time goes in jaxdml.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxdml as dml
from benchmarks.machine import environment, has_int8_products
from benchmarks.measure import compiled
from benchmarks.network_files import IMAGE, NETWORKS, images, quantized
from benchmarks.onnx_peer import session_of
from benchmarks.profile import profiled
from benchmarks.timing import interleaved, median

RESULTS = Path(__file__).parent / "results"
# Limits of jaxdml's time over onnxruntime's. That of ResNet-18 is 0.65 on AVX2.
AT_MOST = {"ResNet-18": 0.8, "MobileNetV2": 0.65, "EfficientNet-B0": 0.9, "MobileNetV3": 0.9}
ABOUT = "One image, int8 weights. The ratio is onnxruntime's time over jaxdml's: above 1, jaxdml is faster."
HEAD = ("network", "jaxdml, ms", "onnxruntime, ms", "ratio", "aim", "outputs that differ", "runs")


EXACT = {"x64quantprecision": "1"}  # turns int8 weights into uint8; with int8 dot products, it would only cost time


def of_jaxdml(file: bytes, numerics: str) -> tuple[Any, tuple[Any, ...]]:
    model = dml.onnx.load(file, numerics=numerics)

    def run(params: Any, image: Any) -> Any:
        (logits,) = model.apply(params, image).values()
        return logits

    return run, (model.params, jax.numpy.asarray(images(2)))


def measured(name: str, seconds: float) -> dict[str, Any]:
    """Times of one network, and how many outputs differ from onnxruntime's if jaxdml uses onnxruntime's formulas."""
    file = quantized(name)
    call, facts = compiled(*of_jaxdml(file, "directml"))
    entries = {} if has_int8_products(environment()["instructions"]) else EXACT
    rival = session_of(file, {IMAGE: images(2)}, **entries)
    same, _ = compiled(*of_jaxdml(file, "onnxruntime"))
    differing = int((np.asarray(same()) != rival()).sum())
    times = interleaved({"jaxdml": call, "onnxruntime": rival}, seconds, rounds=2000)
    own, other = median(times["jaxdml"]), median(times["onnxruntime"])
    return {
        "jaxdml": own,
        "onnxruntime": other,
        "ratio": float(f"{own / other:.4g}"),
        "differing": differing,
        "runs": [len(samples) for samples in times.values()],
        **facts,
    }


def row(name: str, found: dict[str, Any], is_avx2: bool) -> str:
    at_most = 0.65 if is_avx2 and name == "ResNet-18" else AT_MOST[name]
    own, other = found["jaxdml"], found["onnxruntime"]
    cells = [name, f"{own:.3f}", f"{other:.3f}", f"{other / own:.2f}", f"{1 / at_most:.2f}"]
    cells += [str(found["differing"]), " and ".join(map(str, found["runs"]))]
    return f"| {' | '.join(cells)} |"


def table(results: dict[str, Any]) -> list[str]:
    is_avx2 = not has_int8_products(results["environment"]["instructions"])
    rows = [row(name, results["networks"][name], is_avx2) for name in NETWORKS if name in results["networks"]]
    return ["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD), *rows]


def page(results: dict[str, Any]) -> str:
    """The page, in Markdown."""
    machine = results["environment"]
    hidden = f", without {' '.join(machine['hidden'])}" if machine["hidden"] else ""
    packages = ", ".join(f"{package} {version}" for package, version in machine["packages"].items())
    about = f"{machine['processor']}{hidden}, {machine['threads']} threads, {machine['kernels']}; {packages}."
    lines = ["# Networks of onnxruntime's quantizer", "", about, ABOUT, "", *table(results)]
    return "\n".join(lines) + "\n"


def publish(name: str, found: dict[str, Any]) -> None:
    """Writes the measurements into benchmarks/results, and keeps the other networks of the same set."""
    file = RESULTS / f"networks_{name}.json"
    old = json.loads(file.read_text(encoding="utf-8"))["networks"] if file.exists() else {}
    results = {"environment": environment(), "networks": old | found}
    file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    file.with_suffix(".md").write_text(page(results), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=NETWORKS, action="append", help="default: all")
    parser.add_argument("--seconds", type=float, default=8, help="of timing, for each network")
    parser.add_argument("--profile", action="store_true", help="only print where time goes")
    parser.add_argument("--publish", metavar="SET", help="write benchmarks/results/networks_SET")
    options = parser.parse_args()
    names = options.network or list(NETWORKS)
    if options.profile:
        for name in names:
            profiled(name, *of_jaxdml(quantized(name), "directml"))
        return
    found = {name: measured(name, options.seconds) for name in names}
    print(*table({"environment": environment(), "networks": found}), sep="\n")
    for name in names:
        print(f"{name}: {found[name]['path']}")
    if options.publish:
        publish(options.publish, found)


if __name__ == "__main__":
    main()
