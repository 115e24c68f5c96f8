"""The costs of programs as their compilers estimate them, beside those of plain `lax` on int8 and on bfloat16.

For a TPU, the cost is the time that its compiler expects; for a GPU, instructions and bytes. Nothing is run or timed.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxdml as dml
from accelerators import devices, hlo
from accelerators.cases import COARSE, FINE, S8, SCALE, U8, ZERO, of
from jaxdml._tables import Table

Call = tuple[Callable[..., Any], tuple[Any, ...]]


class Peers(NamedTuple):
    """One contraction: jaxdml's, `lax` on int8 with sums in int32, and `lax` on bfloat16."""

    name: str
    ours: Call
    int8: Call
    bfloat16: Call


def product(m: int, k: int, n: int) -> Peers:
    def ours(a: Any, b: Any) -> Any:
        return dml.quantized_linear_matrix_multiply(a, SCALE, ZERO, b, FINE, None, COARSE, ZERO)

    bytes_of, halves = (tuple(of(dtype, *shape) for shape in ((m, k), (k, n))) for dtype in (S8, jnp.bfloat16))
    return Peers(
        f"product {m} x {k} x {n}",
        (ours, (of(U8, m, k), bytes_of[1])),
        (partial(lax.dot, preferred_element_type=jnp.int32), bytes_of),
        (lax.dot, halves),
    )


def convolution(
    batch: int, channels: int, size: int, outputs: int, kernel: int, stride: int = 1, group_count: int = 1
) -> Peers:
    pad = kernel // 2
    bias = np.zeros(outputs, np.int32)

    def ours(x: Any, f: Any) -> Any:
        return dml.quantized_linear_convolution(
            x, SCALE, ZERO, f, FINE, None, bias, COARSE, ZERO,
            strides=stride, start_padding=pad, end_padding=pad, group_count=group_count,
        )  # fmt: skip

    def plain(x: Any, f: Any, dtype: Any = None) -> Any:
        options: dict[str, Any] = {"feature_group_count": group_count, "preferred_element_type": dtype}
        return lax.conv_general_dilated(x, f, (stride, stride), [(pad, pad)] * 2, **options)

    shapes = (batch, channels, size, size), (outputs, channels // group_count, kernel, kernel)
    bytes_of, halves = (tuple(of(dtype, *shape) for shape in shapes) for dtype in (S8, jnp.bfloat16))
    groups = f", {group_count} groups" if group_count > 1 else ""
    return Peers(
        f"{kernel} x {kernel}{f' stride {stride}' * (stride > 1)}, {batch} x {channels} to {outputs} at {size}{groups}",
        (ours, (of(U8, *shapes[0]), bytes_of[1])),
        (partial(plain, dtype=jnp.int32), bytes_of),
        (plain, halves),
    )


def contractions() -> Iterator[Peers]:
    yield product(64, 1024, 1024)
    yield product(1024, 1024, 1024)
    yield product(2048, 2048, 2048)
    yield convolution(8, 64, 56, 64, 3)
    yield convolution(8, 256, 14, 256, 3)
    yield convolution(8, 64, 56, 256, 1)
    yield convolution(8, 3, 224, 64, 7, stride=2)
    yield convolution(8, 64, 28, 128, 3, group_count=4)
    yield convolution(8, 64, 56, 64, 3, group_count=64)


def on_tpu(device: str) -> Table:
    """Microseconds that the compiler expects, and the ratio of jaxdml's to the lesser of the other two."""
    rows = []
    for peers in contractions():
        times = [_estimate(device, call) for call in peers[1:]]
        others = [time for time in times[1:] if time is not None]
        ratio = f"{times[0] / min(others):.2f}" if times[0] is not None and others else "-"
        rows.append([peers.name, *("-" if time is None else f"{time * 1e6:.1f}" for time in times), ratio])
    header = "microseconds", "jaxdml", "int8", "bfloat16", "jaxdml over the better"
    return Table(f"TPU {device}: what its compiler expects", header, rows)


def on_gpu(device: str) -> Table:
    """Kernels, their instructions, and the bytes that they read and write."""
    rows = [[peers.name, *map(partial(_size, device), (peers.ours, peers.int8))] for peers in contractions()]
    return Table(
        f"{device}: kernels, instructions of PTX, MB read and written", ("case", "jaxdml", "plain int8 lax"), rows
    )


def _estimate(device: str, call: Call) -> float | None:
    try:
        return devices.compiled(device, *call).estimate
    except Exception:  # the table shows "-" for a form that a compiler rejects
        return None


def _size(device: str, call: Call) -> str:
    try:
        made = devices.compiled(device, *call)
    except Exception:
        return "does not compile"
    count = sum(len(kernel.instructions) for kernel in made.kernels)
    return f"{len(made.kernels)}, {count:,}, {hlo.entry_bytes(made.optimized) / 1e6:.1f}"


def tables(names: tuple[str, ...]) -> list[Table]:
    return [on_gpu(name) if name in devices.GPUS else on_tpu(name) for name in names]
