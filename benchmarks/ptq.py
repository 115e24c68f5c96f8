"""python -m benchmarks.ptq: float functions quantized by jaxdml.ptq, compared with float32, bfloat16 and qwix.

It prints Markdown tables: each form's time over jaxdml's (medians of one interleaved run), and the ratio in dB of the
float32 outputs to the form's error; then the aims, including that of calibration. Weights are random.
"""

import argparse
import contextlib
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import qwix
from flax import linen as nn

import jaxdml as dml
from benchmarks.machine import environment
from benchmarks.measure import compiled, decibels
from benchmarks.tables import ptq_table
from benchmarks.timing import interleaved, median
from jaxdml import ptq

FLOAT, BFLOAT, QWIX, NATIVE, XLA = "float32", "bfloat16", "qwix int8", "jaxdml", "jaxdml, XLA kernels"
FORMS = FLOAT, BFLOAT, QWIX, NATIVE, XLA
AIMS = {NATIVE: 0.5, XLA: 0.8}  # of float32's time, for one image
AT_MOST = 20  # forward passes that `quantize` takes, compiling included
HEADS, WIDTH = 8, 256


# Networks ------------------------------------------------------------------------------------------------------------


class ResNet18(nn.Module):
    """x [N, 224, 224, 3], logits [N, 1000]."""

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        def unit(x: Any, features: int, size: int, stride: int = 1) -> Any:
            padding = [(size // 2, size // 2)] * 2
            x = nn.Conv(features, (size, size), stride, padding, use_bias=False)(x)
            return nn.BatchNorm(use_running_average=not train, momentum=0.0)(x)

        x = nn.relu(unit(x, 64, 7, 2))
        x = nn.max_pool(x, (3, 3), (2, 2), [(1, 1), (1, 1)])
        for stage in range(4):
            for block in range(2):
                features, stride = 64 << stage, 2 if stage and not block else 1
                branch = unit(nn.relu(unit(x, features, 3, stride)), features, 3)
                x = unit(x, features, 1, stride) if stride > 1 else x
                x = nn.relu(x + branch)
        # A pool, because XLA for CPUs gives NaN for a mean after a residual network in bfloat16.
        x = nn.avg_pool(x, (7, 7)).reshape(x.shape[0], -1)
        return nn.Dense(1000)(x)


class Block(nn.Module):
    """Attention and an MLP with gelu: x and the result [N, tokens, WIDTH]."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        queries, keys, values = (
            part.reshape(*x.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)
            for part in jnp.split(nn.Dense(3 * WIDTH)(nn.LayerNorm()(x)), 3, -1)
        )
        scores = jnp.einsum("bhqd,bhkd->bhqk", queries, keys) / math.sqrt(WIDTH // HEADS)
        read = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), values)
        x = x + nn.Dense(WIDTH)(read.transpose(0, 2, 1, 3).reshape(x.shape))
        return x + nn.Dense(WIDTH)(jax.nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))))


def inputs(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))


def resnet18() -> tuple[nn.Module, Any, list[jax.Array]]:
    """The network, its variables with the statistics of a batch, and that batch for calibration."""
    network, images = ResNet18(), inputs(0, 8, 224, 224, 3)
    variables = jax.jit(network.init)(jax.random.key(0), images[:1])
    _, updated = jax.jit(lambda v, x: network.apply(v, x, train=True, mutable=["batch_stats"]))(variables, images)
    return network, {**variables, **updated}, [images]


def block() -> tuple[nn.Module, Any, list[jax.Array]]:
    """The block, its variables, and batches for calibration."""
    network, batches = Block(), [inputs(seed, 4, 128, WIDTH) for seed in range(3)]
    return network, jax.jit(network.init)(jax.random.key(0), batches[0]), batches


# Times ---------------------------------------------------------------------------------------------------------------


def quantized_by_qwix(network: nn.Module, variables: Any, x: jax.Array) -> tuple[Callable[..., Any], Any]:
    """qwix's function and variables: int8 weights, and int8 activations with the ranges of each call."""
    rule = qwix.QuantizationRule(module_path=".*", weight_qtype="int8", act_qtype="int8")
    quantized = qwix.quantize_model(network, qwix.PtqProvider([rule]))
    shapes = jax.eval_shape(quantized.init, jax.random.key(0), x)
    return quantized.apply, {**variables, "params": qwix.quantize_params(variables["params"], shapes["params"])}


def on_xla(model: ptq.Model, apply: Callable[..., Any], variables: Any) -> ptq.Model:
    """The model with weights that are prepared for XLA's kernels."""
    with tempfile.TemporaryDirectory() as folder, dml.use_kernels("xla"):
        path = Path(folder) / "model.npz"
        ptq.save(path, model)
        return ptq.load(path, apply, variables)


def measured(network: nn.Module, variables: Any, model: ptq.Model, x: jax.Array, seconds: float) -> dict[str, Any]:
    """Each form's milliseconds, path, and ratio in dB of the float32 outputs to the form's error."""
    forms: dict[str, tuple[Callable[..., Any], Any]] = {
        FLOAT: (network.apply, (variables, x)),
        BFLOAT: (network.apply, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), (variables, x))),
    }
    apply, params = quantized_by_qwix(network, variables, x)
    forms[QWIX] = apply, (params, x)
    forms[NATIVE] = model.apply, (model.params, x)
    if has_native():
        slower = on_xla(model, network.apply, variables)
        forms[XLA] = slower.apply, (slower.params, x)
    calls, facts, outputs = {}, {}, {}
    for name, form in forms.items():
        with dml.use_kernels("xla") if name == XLA else contextlib.nullcontext():
            calls[name], facts[name] = compiled(*form)
        outputs[name] = np.asarray(calls[name](), np.float64)
    for name, samples in interleaved(calls, seconds).items():
        facts[name] |= {"milliseconds": median(samples), "runs": len(samples)}
        facts[name]["decibels"] = decibels(outputs[name], outputs[FLOAT]) if name != FLOAT else None
    return facts


def has_native() -> bool:
    return dml.kernels().startswith("native")


def calibration(network: nn.Module, variables: Any, images: jax.Array, runs: int) -> dict[str, float]:
    """Seconds of a float forward pass, of `quantize` with one batch, and of one more batch."""
    forward, _ = compiled(network.apply, (variables, images))
    quantizing: dict[int, list[float]] = {1: [], 5: []}  # by the number of batches
    passes: list[float] = []
    for _ in range(runs):
        passes += interleaved({"forward": forward}, 0)["forward"]
        for count, seconds in quantizing.items():
            start = time.perf_counter()
            ptq.quantize(network.apply, variables, [images] * count, progress=False)
            seconds.append(time.perf_counter() - start)
    one, five = (statistics.median(seconds) for seconds in quantizing.values())
    return {"forward": median(passes) / 1e3, "quantize": one, "batch": (five - one) / 4}


# What was measured ---------------------------------------------------------------------------------------------------


def aims(rows: dict[str, dict[str, Any]], times: dict[str, float]) -> str:
    """A table of the aims and the measured ratios."""
    facts, found = rows["ResNet-18, batch 1"], dict[str, tuple[float, float]]()
    kernels = {NATIVE: "native kernels", XLA: "XLA's kernels"} if has_native() else {NATIVE: "XLA's kernels"}
    for form, name in kernels.items():
        ratio = facts[form]["milliseconds"] / facts[FLOAT]["milliseconds"]
        found[f"jaxdml's time for one image on {name}, over float32's"] = ratio, AIMS[form if has_native() else XLA]
    found["quantize with 8 images, over a forward pass of them"] = times["quantize"] / times["forward"], AT_MOST
    found["8 more images, over a forward pass of them"] = times["batch"] / times["forward"], math.nan
    return "\n".join(
        [f"| {'aim':50} | ratio | at most |", "| --- | --- | --- |"]
        + [f"| {name} | {ratio:.2f} | {'' if math.isnan(most) else most} |" for name, (ratio, most) in found.items()]
    )


def machine() -> str:
    """One line about the processor, the kernels and the versions."""
    found = environment()
    packages = found["packages"] | {name: metadata.version(name) for name in ("flax", "qwix")}
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    instructions = ", ".join(found["instructions"])
    return f"{found['processor']} ({instructions}), {found['threads']} threads, kernels {found['kernels']}; {versions}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ptq", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="time spent on each row")
    parser.add_argument("--runs", type=int, default=3, help="of calibration")
    parser.add_argument("--output", type=Path, help="a JSON file to write")
    arguments = parser.parse_args()
    rows = dict[str, dict[str, Any]]()
    network, variables, batches = resnet18()
    model = ptq.quantize(network.apply, variables, batches, progress=False)
    for count in (1, 8):
        x = inputs(1, count, 224, 224, 3)
        rows[f"ResNet-18, batch {count}"] = measured(network, variables, model, x, arguments.seconds)
    times = calibration(network, variables, batches[0], arguments.runs)
    network, variables, batches = block()
    for products in ("static", "dynamic"):
        model = ptq.quantize(network.apply, variables, batches, products=products, progress=False)
        x = inputs(9, *batches[0].shape)
        rows[f"transformer block, {products}"] = measured(network, variables, model, x, arguments.seconds)
    print(f"{machine()}\n\n{ptq_table(rows)}\n\n{aims(rows, times)}")
    if arguments.output:
        results = {"environment": environment(), "rows": rows, "calibration": times}
        arguments.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
