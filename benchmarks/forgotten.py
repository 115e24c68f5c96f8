"""python -m benchmarks.forgotten: shapes that benchmarks of large layers leave out, against onnxruntime or a twin.

A twin is another call with a result of the same shape: with a channel of zeros added, with prepared weights, or one
that computes nothing. Weights from memory are streamed from copies that exceed the caches, and compared with a plain
read of as many bytes.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import jaxdml as dml
from benchmarks import contractions, elementwise, two_processes
from benchmarks.case import ORT, ORT_U8, PLAIN, PREPARED, Case, data
from benchmarks.contractions import X_SCALE, X_ZERO, ZERO, output_scale
from benchmarks.machine import environment, has_int8_products, name_of
from benchmarks.measure import compiled, measure
from benchmarks.onnx_peer import Graph, moved, threads
from jaxdml import reference

RESULTS = Path(__file__).parent / "results"
WITH_ZEROS, EMPTY, READ = "with a channel of zeros", "nothing computed", "a read of the bytes"
MOST_ABOVE_EMPTY = "0.0010 ms more"  # the aim for a small product's time: that of nothing computed, and this
# onnxruntime's sums of int8 weights saturate on processors without int8 dot products; those of uint8 weights do not.
EXACT = ORT if has_int8_products(environment()["instructions"]) else ORT_U8
PEERS = (ORT, ORT_U8, WITH_ZEROS, PREPARED, EMPTY, READ)


def convolution(
    x_shape: tuple[int, ...], f_shape: tuple[int, ...], *, stride: int = 1, dilation: int = 1, pad: int | None = None,
    group_count: int = 1, with_zeros: bool = False,
) -> Case:  # fmt: skip
    """uint8 by int8 in one or two dimensions, a bias, no zero point of the filter; "same" padding if `pad` is None."""
    rng = np.random.default_rng([*x_shape, *f_shape])
    x, f = data(rng, x_shape, np.uint8), data(rng, f_shape, np.int8)
    outputs, spatial = f_shape[0], len(x_shape) - 2
    f_scale, scale = rng.uniform(0.005, 0.015, outputs).astype(np.float32), output_scale(int(np.prod(f_shape[1:])))
    bias = rng.integers(-5000, 5000, outputs).astype(np.int32)
    pads = [(size - 1) * dilation // 2 if pad is None else pad for size in f_shape[2:]]
    options = {"strides": stride, "dilations": dilation, "start_padding": pads, "end_padding": pads}
    rest = (f_scale, None, bias, scale, ZERO)

    def convolve(x: Any, f: Any, group_count: int = group_count) -> Any:
        return dml.quantized_linear_convolution(x, X_SCALE, X_ZERO, f, *rest, **options, group_count=group_count)

    def prepared(x: np.ndarray, f: np.ndarray, groups: int) -> tuple[Any, ...]:
        return jnp.asarray(x), dml.prepare_convolution_filter(jnp.asarray(f), group_count=groups)

    jitted = {PREPARED: (convolve, prepared(x, f, group_count))}
    if with_zeros:
        zeros = np.concatenate([x, np.full_like(x, X_ZERO)], 1), np.concatenate([f, np.zeros_like(f)], 1)
        jitted[WITH_ZEROS] = convolve, prepared(*zeros, 1)
    graph = Graph()
    weights, zeros = (f, np.zeros(outputs, np.int8)) if EXACT == ORT else (moved(f), np.full(outputs, 128, np.uint8))
    inputs = (X_SCALE, X_ZERO, weights, f_scale, zeros, scale, ZERO, bias)
    node = graph.node(
        "QLinearConv", "x", *inputs, strides=[stride] * spatial, dilations=[dilation] * spatial, pads=pads * 2,
        group=group_count,
    )  # fmt: skip
    expected = partial(
        reference.quantized_linear_convolution, x, X_SCALE, X_ZERO, f, *rest, **options, group_count=group_count
    )
    note = f", stride {stride}" * (stride > 1) + f", dilation {dilation}" * (dilation > 1)
    note += f", {group_count} groups" * (group_count > 1)
    name = f"{_by(f_shape[2:])} {x_shape[1]} to {outputs} at {_by(x_shape[2:])}, batch {x_shape[0]}{note}"
    return Case("convolution", name, expected, jitted, {EXACT: graph.session({"x": x}, node)})


def _by(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def small_product(m: int, k: int, n: int) -> Case:
    """A product, and a call with the same shapes that only reads one element of each argument."""
    case = _contenders(contractions.matrix_multiply(m, k, n), PREPARED, EXACT)
    _, arguments = case.jitted[PREPARED]

    def nothing(a: Any, b: Any) -> Any:
        return jnp.broadcast_to(a[0, 0] + jax.tree.leaves(b)[0][0].astype(jnp.uint8), (m, n))

    case.calls[EMPTY] = compiled(nothing, arguments)[0]
    return case


def from_memory(k: int, n: int, copies: int = 12) -> Case:
    """One row by a matrix; each call takes another copy of the matrix, in a shuffled order."""
    case = _contenders(contractions.matrix_multiply(1, k, n), PREPARED)
    function, (a, b) = case.jitted.pop(PREPARED)
    program = jax.jit(function).lower(a, b).compile()
    matrices = [jax.tree.map(jnp.copy, b) for _ in range(copies)]
    order = itertools.cycle(np.random.default_rng(0).permutation(copies).tolist())
    case.calls[PREPARED] = lambda: program(a, matrices[next(order)]).block_until_ready()
    case.calls[READ] = _read([np.asarray(jax.tree.leaves(matrix)[0]) for matrix in matrices], order)
    case.name += ", from memory"
    return case


def _read(arrays: list[np.ndarray], order: Iterator[int]) -> Callable[[], Any]:
    """Reads an array, in one thread per processor, by finding the largest of its 64-bit words."""
    words = [array[: array.size // 8 * 8].view(np.int64) for array in arrays]
    pool, parts = ThreadPoolExecutor(threads()), threads()

    def read() -> Any:
        return max(pool.map(np.max, np.array_split(words[next(order)], parts)))

    return read


def _contenders(case: Case, *names: str) -> Case:
    """A case of the main suite with only these contenders."""
    for kind in (case.jitted, case.calls):
        for name in set(kind) - set(names):
            del kind[name]
    return case


def without_preparing(make: Callable[[], Case]) -> Case:
    """Plain weights compared with prepared ones."""
    case = _contenders(make(), PLAIN, PREPARED, EXACT)
    case.jitted[PLAIN] = case.jitted.pop(PLAIN)
    case.name += ", plain weights"
    return case


def cases() -> Iterator[tuple[str, float | None, str, Callable[[], Case]]]:
    """The subject of a row, the aim for jaxdml's time over a peer's, the peer, and a function that makes the case."""
    one = partial(convolution, with_zeros=True)
    for x, f, options in (
        ((1, 1, 28, 28), (32, 1, 3, 3), {}),
        ((32, 1, 28, 28), (32, 1, 5, 5), {}),
        ((1, 1, 80, 300), (64, 1, 3, 3), {"stride": 2}),
        ((1, 1, 128, 128), (64, 1, 7, 7), {"stride": 2}),
        ((1, 1, 16000), (80, 1, 251), {"pad": 0}),
    ):
        yield "one input channel", 1.0, WITH_ZEROS, partial(one, x, f, **options)
    for channels, size, kernel in ((576, 14, 3), (240, 14, 5), (672, 14, 5), (960, 7, 3), (144, 10, 3)):
        shape = (channels, 1, kernel, kernel)
        yield (
            "depthwise, stride 2",
            0.9,
            EXACT,
            partial(convolution, (1, channels, size, size), shape, stride=2, group_count=channels),
        )
    for m, k, n in ((1, 384, 384), (16, 256, 10)):
        yield "small product", None, EMPTY, partial(small_product, m, k, n)
    for inputs, outputs, size in ((64, 16, 1), (96, 24, 1), (24, 96, 1), (480, 120, 1), (160, 960, 7), (960, 160, 7)):
        yield "small convolution", 1.2, EXACT, partial(convolution, (1, inputs, size, size), (outputs, inputs, 1, 1))
    for make in (
        partial(contractions.matrix_multiply, 1, 1024, 1024),
        partial(contractions.matrix_multiply, 64, 1024, 1024),
        partial(contractions.matrix_multiply, 128, 768, 3072),
        partial(contractions.convolution, 1, 64, 56, 64, 3),
        partial(contractions.convolution, 1, 256, 14, 256, 3),
        partial(contractions.convolution, 1, 64, 56, 256, 1),
        partial(contractions.convolution, 1, 144, 56, 144, 3, group_count=144),
    ):
        yield "plain weights", 1.5, PREPARED, partial(without_preparing, make)
    yield "dequantize", 0.9, ORT, lambda: _contenders(elementwise.dequantize(np.int16), PLAIN, ORT)
    for dtype in (np.uint8, np.int8):
        yield "add", 1.0, ORT, lambda dtype=dtype: _contenders(elementwise.add(dtype), PLAIN, ORT)
    for x, f, options in (
        ((1, 80, 1500), (384, 80, 3), {}),
        ((1, 128, 500), (128, 128, 3), {"dilation": 8}),
        ((1, 64, 4000), (64, 64, 9), {"stride": 4}),
        ((1, 256, 200), (256, 1, 31), {"group_count": 256}),
    ):
        yield "one dimension", 0.9, EXACT, partial(convolution, x, f, **options)
    for channels, size in ((64, 56), (128, 28), (256, 14), (512, 7)):
        make = partial(contractions.convolution, 1, channels, size, channels, 3)
        yield "3x3", 0.85, EXACT, lambda make=make: _contenders(make(), PREPARED, EXACT)
    yield "from memory", 1 / 0.9, READ, partial(from_memory, 4096, 4096)


def measured(seconds: float, only: str) -> list[dict[str, Any]]:
    """The rows; the bits of each were compared with NumPy's."""
    rows = []
    for about, aim, peer, make in tqdm([case for case in cases() if only in case[0]], desc="forgotten", unit="case"):
        case = make()
        row = measure(case, seconds, rounds=4000)
        form = PLAIN if peer == PREPARED else PREPARED if PREPARED in row["contenders"] else PLAIN
        times = {name: fact["milliseconds"] for name, fact in row["contenders"].items() if "milliseconds" in fact}
        differing = {name: fact["differing"] for name, fact in row["contenders"].items() if fact.get("differing")}
        name = f"{row['family']}, {row['case']}"
        rows.append({"about": about, "case": name, "form": form, "peer": peer, "aim": aim, "milliseconds": times}
                    | ({"differing": differing} if differing else {}))  # fmt: skip
        tqdm.write(shown(rows[-1]))
    return rows


def shown(row: dict[str, Any]) -> str:
    """A line of the table; a row's aim limits the inverse of the ratio that is shown, or else the difference."""
    times = row["milliseconds"]
    own, peer = times[row["form"]], times[row["peer"]]
    aim = f"{1 / row['aim']:.2f}" if row["aim"] else MOST_ABOVE_EMPTY
    others = ", ".join(f"{name} {time:.4f}" for name, time in times.items() if name not in (row["form"], row["peer"]))
    return f"| {row['about']} | {row['case']} | {own:.4f} | {row['peer']} | {peer / own:.2f} | {aim} | {others} |"


def table(results: dict[str, Any]) -> str:
    """The page, in Markdown."""
    about = results["environment"]
    processor, kernels = about["processor"], about["kernels"].split(": ")[1]
    hidden = f", {', '.join(about['hidden'])} hidden" if about["hidden"] else ""
    columns = ("about", "case", "jaxdml, ms", "peer", "peer / jaxdml", "aim", "others, ms")
    lines = [
        "# Shapes that other benchmarks leave out",
        "",
        f"{processor}, {about['threads']} cores{hidden}; {kernels}; onnxruntime {about['packages']['onnxruntime']}. ",
        "Medians of calls that take turns. Each ratio is the peer's time over jaxdml's: above 1, jaxdml is faster.",
        "`python -m benchmarks.forgotten` wrote this file.",
        "",
        f"| {' | '.join(columns)} |",
        "| --- " * len(columns) + "|",
        *map(shown, results["cases"]),
    ]
    if shares := results.get("two processes"):
        lines += ["", *two_processes.shown(shares)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forgotten", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose first column contains TEXT")
    parser.add_argument("--seconds", type=float, default=1.0, help="time spent on each case")
    parser.add_argument("--processes", type=float, default=0, metavar="SECONDS", help="also time two processes")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for the JSON and the table")
    parser.add_argument("--suffix", default="", help="what the names of the files end with, such as _before")
    arguments = parser.parse_args()
    about = environment()
    results: dict[str, Any] = {"environment": about, "cases": measured(arguments.seconds, arguments.only)}
    if arguments.processes:
        results["two processes"] = two_processes.measured(arguments.processes)
    if not arguments.only:
        kernels = name_of(jax.devices()[0], about["instructions"]).removeprefix("cpu_")
        path = arguments.output / f"forgotten_{kernels}{arguments.suffix}"
        path.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        path.with_suffix(".md").write_text(table(results), encoding="utf-8")
        print(f"Written to {path}.json and {path.name}.md")
    elif arguments.processes:
        print("\n".join(two_processes.shown(results["two processes"])))


if __name__ == "__main__":
    main()
