"""The picture of a run: how many times jaxdml's time each peer takes, case by case."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.case import LOOP, ORT, ORT_U8, XLA
from benchmarks.lax_peer import BFLOAT, FLOAT, LAX

PEERS = {ORT: ("onnxruntime", "#d55e00", "o"), ORT_U8: ("onnxruntime, uint8 weights", "#e69f00", "s")}
PEERS |= {FLOAT: ("lax, float32", "#0072b2", "^"), LAX: ("lax, int8 or plain formula", "#56b4e9", "v")}
PEERS |= {BFLOAT: ("lax, bfloat16", "#cc79a7", "P"), LOOP: ("a loop instead of vmap", "#009e73", "D")}
PEERS |= {XLA: ("jaxdml on XLA's kernels", "#666666", "x")}


def draw(results: dict[str, Any], path: Path) -> None:
    """Writes the picture; filled marks have the right bits, hollow ones do not."""
    rows = results["cases"]
    figure = Figure(figsize=(9, 1.6 + 0.3 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for peer, (label, colour, marker) in PEERS.items():
        for right in (True, False):
            points = [
                (1 / row["ratios"][peer], -place)
                for place, row in enumerate(rows)
                if peer in row["ratios"]
                and row["ratios"][peer]
                and (row["contenders"][peer]["differing"] == 0) == right
            ]
            if points:
                xs, ys = zip(*points, strict=True)
                name = label if right else f"{label}: other bits"
                face = {} if marker == "x" else {"facecolors": colour if right else "white"}
                axes.scatter(xs, ys, color=colour, marker=marker, label=name, zorder=3, **face)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(
        [-place for place in range(len(rows))], [f"{row['family']}, {row['case']}" for row in rows], fontsize=8
    )
    axes.set_ylim(-len(rows) + 0.4, 0.6)
    axes.grid(axis="both", color="#dddddd", linewidth=0.6)
    axes.set_xlabel("time over that of jaxdml with prepared weights; right of 1, jaxdml is faster", fontsize=8)
    machine = results["environment"]
    vector = ", ".join(machine["instructions"]) or "unknown instructions"
    is_cpu = machine["device"] == "cpu"
    title = f"{machine['processor']}, {machine['threads']} threads, {vector}" if is_cpu else machine["device"]
    axes.set_title(f"{title}\njaxdml's kernels: {machine['kernels']}", fontsize=9)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    figure.savefig(path, dpi=130)
