"""The charts of a run: each peer's time over jaxdml's, and the times of some cases as bars."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from benchmarks.case import LOOP, ORT, ORT_U8, PREPARED, XLA
from benchmarks.lax_peer import BFLOAT, FLOAT, LAX
from benchmarks.tables import named

PEERS = {ORT: ("onnxruntime", "#d55e00", "o"), ORT_U8: ("onnxruntime, uint8 weights", "#e69f00", "s")}
PEERS |= {FLOAT: ("lax, float32, not quantized", "#0072b2", "^"), LAX: ("lax, int8", "#56b4e9", "v")}
PEERS |= {BFLOAT: ("lax, bfloat16", "#cc79a7", "P"), LOOP: ("a loop instead of vmap", "#009e73", "D")}
PEERS |= {XLA: ("jaxdml on XLA's kernels", "#666666", "x")}


def draw(results: dict[str, Any], path: Path) -> None:
    """Writes the chart; filled marks have the right bits, hollow ones do not."""
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
    axes.set_yticks([-place for place in range(len(rows))], [named(row) for row in rows], fontsize=8)
    axes.set_ylim(-len(rows) + 0.4, 0.6)
    axes.grid(axis="both", color="#dddddd", linewidth=0.6)
    axes.set_xlabel("time over that of jaxdml with prepared weights; right of 1, jaxdml is faster", fontsize=8)
    axes.set_title(_machine(results["environment"]), fontsize=9)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    figure.savefig(path, dpi=130)


OURS = "jaxdml"  # in the form that is compared with others: with prepared weights, where a case has weights
# In the order of the bars, in colours that differ in greyscale, too.
BARS = {
    OURS: (PREPARED, "#000000"),
    ORT: ("onnxruntime, int8 weights", "#e08214"),
    ORT_U8: ("onnxruntime, uint8 weights", "#bbbbbb"),
}
HATCH = {"hatch": "/////", "fill": False}
# The same results give the same file; text stays text, in the reader's font.
SVG = {"svg.hashsalt": OURS, "svg.fonttype": "none"}
UNDATED: dict[str, Any] = {"Date": None, "Creator": None}


def bars(results: dict[str, Any], cases: Sequence[str], path: Path) -> None:
    """Writes an SVG of times over jaxdml's, where shorter is better; hatched bars do not have the right bits.

    The time in milliseconds is next to each bar.

    Args:
      results: the results of a run.
      cases: the names of the cases to show, in order.
      path: the file.
    """
    rows = {named(row): row for row in results["cases"]}
    groups = [(case, _times(rows[case])) for case in cases]
    count = sum(len(times) for _, times in groups)
    with mpl.rc_context(SVG):
        figure = Figure(figsize=(8, 1.7 + 0.155 * count + 0.3 * len(groups)), layout="constrained", facecolor="white")
        axes = figure.subplots()
        place = 0.0
        for case, times in groups:
            axes.text(0.01, place, case, transform=axes.get_yaxis_transform(), va="center", fontsize=9.5, weight="bold")
            ours = times[0][1]
            for contender, milliseconds, is_right in times:
                place += 1
                _bar(axes, place, milliseconds, ours, BARS[contender][1], is_right=is_right)
            place += 1.8
        _finish(axes, max(time / times[0][1] for _, times in groups for _, time, _ in times), place)
        title = f"Times over jaxdml's: shorter is better\n{_machine(results['environment'])}"
        handles = [Patch(color=colour, label=label) for label, colour in BARS.values()]
        if not all(is_right for _, times in groups for _, _, is_right in times):
            handles.append(Patch(edgecolor="#444444", label="hatched: other results", **HATCH))
        legend = {"title": title, "title_fontsize": 9, "fontsize": 9, "frameon": False}
        figure.legend(handles=handles, loc="outside upper center", ncols=2, **legend).get_title().set_ha("center")
        figure.savefig(path, format="svg", metadata=UNDATED)


def _times(row: dict[str, Any]) -> list[tuple[str, float, bool]]:
    """The contenders that ran, their times, and whether they have the right bits."""
    facts = {name: row["contenders"].get(row["form"] if name == OURS else name, {}) for name in BARS}
    return [
        (name, fact["milliseconds"], fact["differing"] == 0) for name, fact in facts.items() if "milliseconds" in fact
    ]


def _bar(axes: Axes, place: float, milliseconds: float, ours: float, colour: str, *, is_right: bool) -> None:
    style = {"color": colour} if is_right else {"edgecolor": colour, **HATCH}
    axes.barh(place, milliseconds / ours, height=0.8, **style)
    axes.annotate(
        f"{shown(milliseconds)} ms",
        (milliseconds / ours, place),
        (4, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
    )


def _finish(axes: Axes, longest: float, place: float) -> None:
    """Sets the limits, the axis and its lines."""
    axes.set_xlim(0, 1.2 * longest)
    axes.set_ylim(place - 0.8, -1)
    axes.set_yticks([])
    axes.axvline(1, color="black", linewidth=0.8)
    axes.tick_params(labelsize=9)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("time over that of jaxdml with prepared weights", fontsize=9)


def shown(milliseconds: float) -> str:
    """A time with two significant digits: further digits vary from run to run."""
    rounded = float(f"{milliseconds:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"


def _machine(environment: dict[str, Any]) -> str:
    """The processor or device and the kernels, in two lines."""
    vector = ", ".join(environment["instructions"]) or "unknown instructions"
    if environment.get("hidden"):
        vector += f" ({', '.join(environment['hidden'])} hidden)"
    device = environment["device"]
    title = f"{environment['processor']}, {environment['threads']} threads, {vector}" if device == "cpu" else device
    return f"{title}\njaxdml's kernels: {environment['kernels']}"
