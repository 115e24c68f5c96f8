"""The picture of a run: how many times jaxdml's time each peer takes, case by case."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.cases import FLOAT, LAX, LOOP, ORT, ORT_U8

PEERS = {ORT: ("onnxruntime", "#d55e00", "o"), ORT_U8: ("onnxruntime, uint8 weights", "#e69f00", "s")}
PEERS |= {FLOAT: ("lax, float32", "#0072b2", "^"), LAX: ("lax, int8 or plain formula", "#56b4e9", "v")}
PEERS |= {LOOP: ("a loop instead of vmap", "#009e73", "D")}


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
                axes.scatter(
                    xs, ys, color=colour, marker=marker, label=name, facecolors=colour if right else "white", zorder=3
                )
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
    axes.set_title(f"{machine['processor']}, {machine['threads']} threads, {vector}", fontsize=9)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    figure.savefig(path, dpi=130)
