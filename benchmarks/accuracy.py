"""python -m benchmarks.accuracy: trained networks quantized by jaxdml.ptq and by other tools, at the same bit widths.

Every tool gets the same float network and the same calibration batches, and produces 8-bit per-channel weights and
8-bit activations. The tables have the accuracy on inputs that neither training nor calibration saw, and the ratio of
the float network's outputs to the error on these inputs, in dB. onnxruntime and torch read a float ONNX file; the JSON
file has the ratio for this float file, too. torch is optional: pip install torch torchao.
"""

import argparse
import contextlib
import importlib.util
import io
import itertools
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.accuracy_models import RECIPES, Recipe, Trained, trained
from benchmarks.accuracy_peers import CONTRACTIONS, Call, float_file, of_onnxruntime, of_qwix, session
from benchmarks.machine import environment
from benchmarks.measure import decibels
from jaxdml import ptq

RESULTS = Path(__file__).parent / "results"
CALIBRATORS = "MinMax", "Entropy", "Percentile"
OWN, TUNED = "jaxdml", "jaxdml, tuned"
TUNING = {"observer": "auto", "rounding": "gptq", "sums": "float"}
LEVEL = 0.3  # differences of up to this many dB do not count
WIDEST = 5  # networks in a table that fits a page
AT_ONCE = 32  # inputs of a call; a tool with one dynamic range per call finds the range of this many inputs
HAS_TORCH = importlib.util.find_spec("torchao") is not None
PACKAGES = "flax", "qwix", "onnxruntime", "torch", "torchao", "scikit-learn"
Found = dict[str, Any]
METHOD = """\
Weights and activations have 8 bits, and weights a scale for each output channel. Five networks are trained on
scikit-learn's digits, disturbed, and on the text of Python's `pydoc_data.topics`, whose next characters the causal
transformer predicts. BatchNorms are folded before any tool sees the network. "Outliers" are channels up to 100 times
as large as others, before a convolution or after a LayerNorm, and the next layer's weights are divided to match: the
float function is the same. All tools calibrate with the same 8 batches; outputs are compared on inputs that neither
training nor calibration saw, 32 at a time. dB are 10 log10(signal / noise) of the logits against those of the float
network.

- jaxdml: the defaults of `ptq.quantize`; "auto" is `observer="auto"`; "tuned" is `observer="auto"`, `rounding="gptq"`
  and `sums="float"`. By default, two products of attention are dynamic, in the static table, too; "all static" is
  `products="static"`. "Dynamic" is `products="dynamic"`, which leaves convolutions static, so that the dynamic rows of
  the CNNs compare static convolutions with dynamic ones.
- qwix: `QtProvider` collects ranges, `PtqProvider` quantizes; "minmax" is asymmetric, which qwix refuses for products
  of two computed values. Values between layers are floats. Its static ranges are means over inputs, by default, so
  that larger values are clipped.
- onnxruntime: `quant_pre_process`, then `quantize_static` in QDQ form with uint8 activations, of all operators by
  default or of contractions alone (Conv, MatMul and Gemm), or `quantize_dynamic`. No kernel saturates. By default,
  Entropy has 128 bins and finds the ranges of MinMax.
- torch: `X86InductorQuantizer` with its defaults, which leave products of two computed values in floats, as they do
  values that no quantized operator reads. "Attention" quantizes these products, too."""


# Tools ---------------------------------------------------------------------------------------------------------------


def of_jaxdml(model: Trained, **options: Any) -> Call:
    quantized = ptq.quantize(model.network.apply, model.variables, model.calibration, progress=False, **options)
    call = jax.jit(quantized.apply)
    return lambda x: np.asarray(call(quantized.params, x))


def tools(model: Trained, file: Path) -> dict[str, dict[str, Callable[[], Call]]]:
    """The tools of static and of dynamic quantization, each as a function that quantizes."""
    static = {OWN: partial(of_jaxdml, model), f"{OWN}, auto": partial(of_jaxdml, model, observer="auto")}
    static[TUNED] = partial(of_jaxdml, model, **TUNING)
    static[f"{OWN}, all static"] = partial(of_jaxdml, model, products="static")
    static[f"{TUNED}, all static"] = partial(of_jaxdml, model, products="static", **TUNING)
    dynamic = {OWN: partial(of_jaxdml, model, products="dynamic")}
    dynamic[TUNED] = partial(of_jaxdml, model, products="dynamic", **TUNING)
    for method in ("absmax", "minmax"):
        static[f"qwix, {method}"] = partial(of_qwix, model, static=True, method=method)
        dynamic[f"qwix, {method}"] = partial(of_qwix, model, static=False, method=method)
    for name, operators in {"": None, ", contractions": CONTRACTIONS}.items():
        for each in CALIBRATORS:
            static[f"onnxruntime, {each}{name}"] = partial(of_onnxruntime, model, file, each, operators)
    dynamic["onnxruntime"] = partial(of_onnxruntime, model, file, "dynamic", None)
    if HAS_TORCH:
        from benchmarks.torch_peer import of_torch

        static["torch PT2E"] = partial(of_torch, file, model.calibration)
        static["torch PT2E, attention"] = partial(of_torch, file, model.calibration, attention=True)
        dynamic["torch PT2E"] = partial(of_torch, file, model.calibration, dynamic=True)
    return {"static": static, "dynamic": dynamic}


# Measuring -----------------------------------------------------------------------------------------------------------


def outputs(call: Call, x: np.ndarray) -> np.ndarray:
    return np.concatenate([call(x[at : at + AT_ONCE]) for at in range(0, len(x), AT_ONCE)]).astype(np.float64)


def scored(model: Trained, exact: np.ndarray, quantize: Callable[[], Call]) -> Found:
    """The ratio in dB and the accuracy of a quantized network, or the text of an error."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # some calibrators print
            received = outputs(quantize(), model.x)
    except Exception as error:  # any package may raise one; the page shows it
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    return {"dB": decibels(received, exact), "accuracy": accuracy(received, model.labels)}


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """The share of the labels that have the greatest logit, in percent."""
    return float(100 * np.mean(logits.argmax(-1) == labels))


def measured(model: Trained) -> Found:
    """The tables' entries for one network."""
    call = jax.jit(model.network.apply)
    exact = outputs(lambda x: np.asarray(call(model.variables, x)), model.x)
    found: Found = {"float": accuracy(exact, model.labels)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "float.onnx"
        float_file(model, file)
        found["float file, dB"] = decibels(outputs(session(file), model.x), exact)
        for kind, each in tools(model, file).items():
            found[kind] = {name: scored(model, exact, quantize) for name, quantize in each.items()}
    return found


def networks(recipes: dict[str, Recipe], held_out: int) -> dict[str, Found]:
    """The measurements of each network, without and with outliers."""
    found = {}
    for name, recipe in recipes.items():
        start = time.perf_counter()
        model = trained(recipe, held_out)
        seconds = time.perf_counter() - start
        found[name] = measured(model) | {"training, s": seconds}
        print(f"{name}: {json.dumps(found[name])}", flush=True)
        if recipe.pairs:
            found[f"{name}, outliers"] = measured(model.with_outliers(recipe))
            print(f"{name}, outliers: {json.dumps(found[f'{name}, outliers'])}", flush=True)
    return found


# Pages ---------------------------------------------------------------------------------------------------------------


def table(found: dict[str, Found], kind: str, what: str) -> list[str]:
    """A table in Markdown: tools by networks; the row "float" has the accuracy of the float networks."""
    rows = [["tool", *found], ["---"] * (1 + len(found))]
    if what == "accuracy":
        rows.append(["float", *(f"{each['float']:.1f}" for each in found.values())])
    for tool in next(iter(found.values()))[kind]:
        scores = [each[kind][tool] for each in found.values()]
        rows.append([tool, *(f"{score[what]:.1f}" if what in score else "none" for score in scores)])
    return [f"| {' | '.join(row)} |" for row in rows]


def behind(found: dict[str, Found], ours: str) -> list[str]:
    """Where another tool exceeds one of jaxdml's rows by more than LEVEL dB."""
    lines = []
    for network, each in found.items():
        for kind in ("static", "dynamic"):
            own = each[kind][ours]["dB"]
            others = {name: row["dB"] for name, row in each[kind].items() if not name.startswith(OWN) and "dB" in row}
            ahead = {name: ratio - own for name, ratio in others.items() if ratio > own + LEVEL}
            if ahead:
                said = ", ".join(f"{name} by {more:.1f} dB" for name, more in ahead.items())
                lines.append(f"- {network}, {kind}: {said}.")
    return lines or ["- None."]


def tables(found: dict[str, Found], what: str, unit: str) -> list[str]:
    """A section with the tables of static quantization, and one with those of dynamic quantization."""
    parts = []
    for kind in ("static", "dynamic"):
        parts += [f"## {kind.capitalize()}, {unit}", ""]
        for some in itertools.batched(found.items(), WIDEST):
            parts += [*table(dict(some), kind, what), ""]
    return parts


def page(found: dict[str, Found], about: str, note: str) -> str:
    errors = {
        f"- {name}, {kind}: {row['error']}"
        for each in found.values()
        for kind in ("static", "dynamic")
        for name, row in each[kind].items()
        if "error" in row
    }
    parts = ["# Decibels beside other quantizers", "", about, "", METHOD, *(["", note] if note else []), ""]
    parts += tables(found, "dB", "dB")
    for ours, words in ((OWN, "jaxdml's defaults are"), (TUNED, "jaxdml, tuned, is")):
        parts += [f"## Where {words} more than {LEVEL} dB behind", "", *behind(found, ours), ""]
    parts += ["## What did not run", "", *(sorted(errors) or ["- Nothing."])]
    parts += [] if HAS_TORCH else ["- torch PT2E: the package torchao is missing."]
    return "\n".join(parts) + "\n"


def page_of_accuracy(found: dict[str, Found]) -> str:
    head = "Of the same run, networks and tools as [the decibels](accuracy.md): the share of right answers."
    return "\n".join(["# Accuracy beside other quantizers", "", head, "", *tables(found, "accuracy", "percent")])


def machine() -> tuple[Found, str]:
    """The machine and the versions of packages, as a dict and as a line."""
    found = environment()
    more = [name for name in PACKAGES if importlib.util.find_spec({"scikit-learn": "sklearn"}.get(name, name))]
    found["packages"] |= {name: metadata.version(name) for name in more}
    versions = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    return found, f"{found['processor']}, {found['threads']} threads, Python {found['python']}; {versions}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=RECIPES, action="append", help="default: all")
    parser.add_argument("--held-out", type=int, default=512, help="inputs to measure with")
    parser.add_argument("--publish", action="store_true", help="write the tables and JSON to benchmarks/results")
    parser.add_argument("--note", default="", help="a paragraph for the published page")
    options = parser.parse_args()
    found = networks({name: RECIPES[name] for name in options.network or RECIPES}, options.held_out)
    where, about = machine()
    text, of_accuracy = page(found, about, options.note), page_of_accuracy(found)
    print(text, of_accuracy, sep="\n")
    if options.publish:
        results = {"environment": where, "note": options.note, "networks": found}
        (RESULTS / "accuracy.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        (RESULTS / "accuracy.md").write_text(text, encoding="utf-8")
        (RESULTS / "accuracy_percent.md").write_text(of_accuracy, encoding="utf-8")


if __name__ == "__main__":
    main()
