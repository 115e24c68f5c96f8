"""A quantized transformer block with exact floats: `python -m benchmarks.exact_block`.

It writes benchmarks/results/exact_block_*.md: times and compile times of the block with XLA's floats and with exact
ones, in float32, and of onnxruntime's own int8 files of the block, whose attention is fused.
"""

import functools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxdml as dml
from benchmarks.exact_costs import layer_norm
from benchmarks.machine import environment, name_of
from benchmarks.onnx_peer import Graph, session_of
from benchmarks.timing import interleaved, median

WIDTH, HEADS, TOKENS, EPSILON = 768, 12, 384, 1e-5
RESULTS = Path(__file__).parent / "results"
HEAD = """# A transformer block with exact floats

A block of width {width} with {heads} heads on {tokens} tokens, quantized by `ptq.quantize`. Milliseconds are medians of
interleaved runs. Each ratio is the form's time over that of the quantized block with XLA's floats: above 1, the latter
is faster. onnxruntime's own quantizer wrote its files, in QOperator form if products are static; one operator computes
the attention. `python -m benchmarks.exact_block` writes this file.
{processor}, {threads} threads, jax {jax}, onnxruntime {onnxruntime}; {kernels}.

| products | batch | form | ms | ratio | seconds to compile |
| --- | --- | --- | --- | --- | --- |
"""
Array = Any


def params() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

    ones, zeros = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
    return {
        "qkv": matrix(WIDTH, 3 * WIDTH), "out": matrix(WIDTH, WIDTH), "up": matrix(WIDTH, 4 * WIDTH),
        "down": matrix(4 * WIDTH, WIDTH), "gain": ones, "offset": zeros,
    }  # fmt: skip


def block(p: dict[str, Array], x: Array) -> Array:
    """x and the result [N, TOKENS, WIDTH]."""
    queries, keys, values = (
        part.reshape(*x.shape[:2], HEADS, -1).transpose(0, 2, 1, 3) for part in jnp.split(x @ p["qkv"], 3, -1)
    )
    scores = jnp.einsum("bhqd,bhkd->bhqk", queries, keys) / np.float32(np.sqrt(WIDTH // HEADS))
    read = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), values)
    x = layer_norm(x + read.transpose(0, 2, 1, 3).reshape(x.shape) @ p["out"], p["gain"], p["offset"])
    return layer_norm(x + jax.nn.gelu(x @ p["up"], approximate=False) @ p["down"], p["gain"], p["offset"])


def onnx_block(p: dict[str, np.ndarray], x: np.ndarray) -> Any:
    """The block as a float model with onnxruntime's fused operators."""
    from onnx import TensorProto, helper

    graph = Graph()
    attended = graph.node(
        "Attention", "x", p["qkv"], np.zeros(3 * WIDTH, np.float32), domain="com.microsoft", num_heads=HEADS
    )

    def normalized(y: str) -> str:
        return graph.node("LayerNormalization", y, p["gain"], p["offset"], axis=-1, epsilon=EPSILON)

    x_1 = normalized(graph.node("Add", "x", graph.node("MatMul", attended, p["out"])))
    hidden = graph.node("Gelu", graph.node("MatMul", x_1, p["up"]), domain="com.microsoft")
    y = normalized(graph.node("Add", x_1, graph.node("MatMul", hidden, p["down"])))
    model = graph.model({"x": x}, y, np.float32)
    for node in model.graph.node[:-1]:  # the quantizer needs the types of values
        model.graph.value_info.append(helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None))
    return model


def by_onnxruntime(products: str, p: dict[str, np.ndarray], x: np.ndarray, batch: np.ndarray) -> Callable[[], Any]:
    """A call without arguments of onnxruntime's own int8 file of the block on x; `batch` calibrates static products."""
    import onnx
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = [{"x": batch}]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(onnx_block(p, x), source)
        if products == "dynamic":
            quantization.quantize_dynamic(source, target, weight_type=quantization.QuantType.QInt8)
        else:
            quantization.quantize_static(
                source, target, Reader(), quant_format=quantization.QuantFormat.QOperator, per_channel=True,
                activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8,
            )  # fmt: skip
        return session_of(target.read_bytes(), {"x": x})


def compiled(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Callable[[], Any], float]:
    """A call of the compiled function without arguments, and the seconds that compiling took."""
    lowered, start = jax.jit(function).lower(*arguments), time.perf_counter()
    run = lowered.compile()
    seconds = time.perf_counter() - start
    return functools.partial(lambda: jax.block_until_ready(run(*arguments))), seconds


def rows(products: Any, batch: int, seconds: float) -> list[str]:
    """The table's rows for static or dynamic products and a batch size."""
    p, rng = params(), np.random.default_rng(batch)
    batches = [rng.standard_normal((4, TOKENS, WIDTH)).astype(np.float32)]
    x = rng.standard_normal((batch, TOKENS, WIDTH)).astype(np.float32)
    models = {
        floats: dml.ptq.quantize(block, p, batches, products=products, floats=floats, progress=False)
        for floats in ("xla", "exact")
    }
    forms: dict[str, Callable[[], Any]] = {}
    taken: dict[str, float] = {}
    given = jnp.asarray(x)
    for form, function, weights in (
        ("int8, XLA's floats", models["xla"].apply, models["xla"].params),
        ("int8, exact", models["exact"].apply, models["exact"].params),
        ("float32", block, p),
    ):
        forms[form], taken[form] = compiled(function, (weights, given))
    for floats, form in (("xla", "int8, XLA's floats, without native kernels"), ("exact", "int8, exact, without them")):
        with dml.use_kernels("xla"):
            model = dml.ptq.quantize(block, p, batches, products=products, floats=floats, progress=False)
            forms[form], taken[form] = compiled(model.apply, (model.params, given))
    forms["onnxruntime int8"] = by_onnxruntime(products, p, x, batches[0][:batch])
    times = {form: median(samples) for form, samples in interleaved(forms, seconds).items()}
    first = times["int8, XLA's floats"]
    return [
        f"| {products} | {batch} | {form} | {times[form]:.2f} | {times[form] / first:.2f} "
        f"| {f'{taken[form]:.2f}' if form in taken else ''} |"
        for form in forms
    ]


def main() -> None:
    jax.config.update("jax_enable_compilation_cache", False)
    about, found = environment(), list[str]()
    for products in ("static", "dynamic"):
        for batch in (1, 4):
            found += rows(products, batch, 12.0 * batch)
            print("\n".join(found[-6:]), flush=True)
    head = HEAD.format(
        width=WIDTH, heads=HEADS, tokens=TOKENS, processor=about["processor"], threads=about["threads"],
        jax=about["packages"]["jax"], kernels=about["kernels"], onnxruntime=about["packages"]["onnxruntime"],
    )  # fmt: skip
    place = RESULTS / f"exact_block_{name_of(jax.devices()[0], about['instructions']).removeprefix('cpu_')}.md"
    place.write_text(head + "\n".join(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
