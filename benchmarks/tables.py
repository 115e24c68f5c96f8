"""The measurements as text: always the time of the peer over that of jaxdml; above 1, jaxdml is faster."""

from typing import Any

from benchmarks.case import COPY, LOOP, ONNX, ORT, ORT_U8, PLAIN, PREPARED, TWIN, XLA
from benchmarks.lax_peer import BFLOAT, FLOAT, LAX

Row = dict[str, Any]


def shown(row: Row) -> str:
    """One case, a line for each contender."""
    lines = [named(row)]
    for name, fact in row["contenders"].items():
        if "error" in fact:
            lines.append(f"  {name:27}did not run: {fact['error'][:160]}")
            continue
        ratio = row["ratios"].get(name)
        parts = [f"  {name:27}{fact['milliseconds']:10.3f} ms"]
        parts.append(f"{1 / ratio:7.2f}x ours" if ratio else f"{'':12}")
        differing = fact["differing"]
        parts.append("other output" if differing is None else f"{differing} differ" if differing else "same bits")
        if "path" in fact:
            parts.append(f"compiled in {fact['compile_seconds']:.2f} s, {fact['temporary_bytes'] / 1e6:.1f} MB")
            parts.append(fact["path"])
        lines.append("  ".join(parts))
    return "\n".join(lines)


def tables(results: dict[str, Any]) -> str:
    """All tables of a run."""
    rows = results["cases"]
    parts = [against_onnxruntime(rows), against_lax(rows), against_others(rows), vmap_table(rows)]
    parts += [onnx_table(rows), scaling_table(results["scaling"])]
    return "\n\n".join(filter(None, parts)) + "\n"


def named(row: Row) -> str:
    return f"{row['family']}, {row['case']}"


def against_onnxruntime(rows: list[Row]) -> str:
    """The peer that the aim refers to, and the aim; then the other peers, and XLA's kernels."""
    rows = [row for row in rows if row["rival"] in (ORT, ORT_U8) or (row["rival"] == TWIN and ORT in row["ratios"])]
    if not rows:
        return ""
    lines = [
        "the time of the peer over that of jaxdml: above 1, jaxdml is faster; * its results are others",
        f"{'':60}{'onnxruntime':>12}{'aim':>7}{'its int8':>10}{'lax':>10}{'XLA kernels':>13}",
    ]
    for row in rows:
        aim = f"{_aim(row)} " if row["rival"] != TWIN else ""
        peer = ORT if row["rival"] == TWIN else row["rival"]
        int8 = _times(row, ORT) if row["rival"] == ORT_U8 else ""
        cells = f"{_times(row, peer):>13}{aim:>7}{int8:>10}{_times(row, LAX):>10}{_times(row, XLA):>13}"
        lines.append(f"{named(row):59}{cells}")
    lines.append(
        "onnxruntime: with uint8 weights, which it computes exactly. its int8: with int8 weights, as they are."
    )
    lines.append("XLA kernels: jaxdml on XLA's kernels, over jaxdml on native ones.")
    return "\n".join(line.rstrip() for line in lines)


def _aim(row: Row) -> str:
    """How many times as fast as its rival jaxdml should be; "" for no aim."""
    return f"{1 / row['at_most']:.2f}" if row["at_most"] else ""


def against_lax(rows: list[Row]) -> str:
    """Cases without onnxruntime: the time of jaxdml, and the time of `lax` in each type over jaxdml's."""
    rows = [row for row in rows if row["rival"] is None]
    if not rows:
        return ""
    peers = (LAX, FLOAT, BFLOAT)
    lines = [
        "the time of lax over that of jaxdml: above 1, jaxdml is faster; * its results are others",
        f"{'':60}{'jaxdml, ms':>12}{'int8':>9} {'float32':>9} {'bfloat16':>9} {'without preparing':>18}",
    ]
    for row in rows:
        own = row["contenders"][row["form"]]["milliseconds"]
        cells = "".join(f"{_times(row, peer):>10}" for peer in peers)
        plain = _times(row, "jaxdml") if row["form"] == PREPARED else ""
        lines.append(f"{named(row):60}{own:12.3f}{cells}{plain:>19}")
    return "\n".join(line.rstrip() for line in lines)


def against_others(rows: list[Row]) -> str:
    """Cases whose aim refers to another call of jaxdml or JAX."""
    rows = [row for row in rows if row["rival"] in (TWIN, COPY)]
    lines = [f"{'another call over this one: above 1, this one is faster':60}{'other':>8}{'aim':>7}"]
    lines += [f"{named(row):60}{1 / row['ratios'][row['rival']]:8.2f}{_aim(row):>7}  {row['rival']}" for row in rows]
    return "\n".join(lines) if rows else ""


def _times(row: Row, peer: str) -> str:
    """The time of a peer over ours, followed by a mark if its bits are wrong; a dash if the peer did not run."""
    if peer not in row["ratios"]:
        return "- " if peer in row["contenders"] else ""
    time = 1 / row["ratios"][peer]
    return (f"{time:.2f}" if time < 10 else f"{time:.1f}") + (" " if row["contenders"][peer]["differing"] == 0 else "*")


def vmap_table(rows: list[Row]) -> str:
    """The time of a loop of calls over that of the same calls under vmap."""
    rows = [row for row in rows if row["rival"] == LOOP]
    lines = [
        f"{'a loop over vmap, prepared weights: above 1, vmap is faster':65}{'loop':>7}{'aim':>7}{'XLA kernels':>14}"
    ]
    lines += [
        f"{named(row):65}{1 / row['ratios'][LOOP]:7.2f}{1 / row['at_most']:7.2f}{_times(row, XLA):>14}".rstrip()
        for row in rows
    ]
    return "\n".join(lines) if rows else ""


def onnx_table(rows: list[Row]) -> str:
    """Networks from an ONNX model, compared with the same networks written by hand."""
    rows = [row for row in rows if ONNX in row["ratios"]]
    lines = [
        f"{'the time of the ONNX model over that of the same by hand':65}{'jaxdml':>7}{'aim':>7}{'onnxruntime':>14}"
    ]
    for row in rows:
        model = 1 / row["ratios"][ONNX]
        peer = f"{1 / (row['ratios'][ORT] * model):.2f}" if ORT in row["ratios"] else ""
        lines.append(f"{named(row):65}{model:7.2f}{1.05:7.2f}{peer:>14}".rstrip())
    lines.append("onnxruntime: its time over that of the ONNX model here, with int8 weights.")
    return "\n".join(lines) if rows else ""


def scaling_table(rows: list[Row]) -> str:
    """Time for each multiply-add, which should not grow."""
    if not rows:
        return ""
    lines = [f"{'scaling, prepared weights':56}{'ms':>9}{'ps for a multiply-add':>25}"]
    for row in rows:
        milliseconds = row["contenders"][PREPARED]["milliseconds"]
        each = milliseconds * 1e9 / row["multiply_adds"]
        lines.append(f"{named(row):56}{milliseconds:9.2f}{each:25.1f}")
    return "\n".join(lines)


def ptq_table(rows: dict[str, dict[str, Any]]) -> str:
    """Each form's time over jaxdml's (above 1, jaxdml is faster), and the signal-to-noise ratio of its outputs."""
    forms = [form for form in next(iter(rows.values())) if form != PLAIN]
    lines = [f"| case | jaxdml | {' | '.join(forms)} |", "| --- " * (len(forms) + 2) + "|"]
    for case, facts in rows.items():
        own = facts[PLAIN]["milliseconds"]
        cells = [f"{own:.2g} ms, {facts[PLAIN]['decibels']:.1f} dB"]
        for form in forms:
            noise = facts[form]["decibels"]
            cells.append(f"{facts[form]['milliseconds'] / own:.2g}" + (f", {noise:.1f} dB" if noise else ""))
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines)
