"""The results as lines, a table and JSON."""

import dataclasses
import json
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from accelerators import hlo
from accelerators.cases import Case
from accelerators.verdict import Compiled
from jaxdml._tables import Table

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
PACKAGES = ("jax", "jaxlib", "jax-cuda12-plugin", "nvidia-cuda-nvcc-cu12", "libtpu")


@dataclasses.dataclass
class Row:
    """One case on one device. `floats` counts instructions with floats, and contractions."""

    case: str
    device: str
    seconds: float
    kernels: int  # of a GPU
    instructions: int
    bytes: int
    floats: dict[str, int]
    complaints: dict[str, int]


def row(case: Case, device: str, made: Compiled, complaints: Counter[str]) -> Row:
    return Row(name(case), device, made.seconds, len(made.kernels), *_counted(made), complaints=dict(complaints))


def _counted(made: Compiled) -> tuple[int, int, dict[str, int]]:
    """Instructions, bytes, and counts by opcode; operations of HLO for a TPU, whose instructions are not known."""
    size = hlo.entry_bytes(made.optimized)
    if made.kernels:
        all_of = [each for kernel in made.kernels for each in kernel.instructions]
        return len(all_of), size, dict(Counter(each.opcode for each in all_of if each.has_floats or each.is_matrix))
    all_of = list(made.optimized)
    kinds = (f"{each.opcode} {each.dtype}" for each in all_of if each.has_floats or each.opcode in hlo.CONTRACTIONS)
    return len(all_of), size, dict(Counter(kinds))


def failed(case: Case, device: str, error: Exception) -> Row:
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return Row(name(case), device, 0.0, 0, 0, 0, {}, {text: 1})


def name(case: Case) -> str:
    return f"{case.operator}: {case.form}"


def line(row: Row) -> str:
    verdict = "; ".join(counted(row.complaints)) or "right"
    return f"{row.device:5}{row.seconds:6.1f} s  {row.case}: {verdict}"


def counted(counts: dict[str, int]) -> list[str]:
    return [f"{count} {text}" if count > 1 else text for text, count in sorted(counts.items())]


def finish(rows: list[Row], seconds: float, published: str | None) -> int:
    """Prints a summary, writes files if a name is given, and returns 1 if there are complaints or no rows."""
    wrong = [row for row in rows if row.complaints]
    print(f"\n{len(rows)} programs compiled in {seconds:.0f} s, {len(wrong)} with something that is not allowed")
    totals = Counter({text: 0 for row in rows for text in row.complaints})
    for row in wrong:
        totals.update(set(row.complaints))
    for text, count in totals.most_common():
        print(f"  {count:3} programs have {text}")
    if published:
        publish(rows, published)
    if not rows:
        print("no case has this name")
    return 1 if wrong or not rows else 0


def publish(rows: list[Row], name: str) -> None:
    packages = json.dumps({package: version(package) for package in PACKAGES})
    facts = [json.dumps(dataclasses.asdict(row) | {"seconds": round(row.seconds, 1)}) for row in rows]
    text = f'{{"packages": {packages}, "rows": [\n' + ",\n".join(facts) + "\n]}\n"  # a line for each row
    (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")
    _write("Programs for GPUs and TPUs", markdown(rows), name)


def tables(shown: list[Table], published: str | None) -> int:
    """Prints tables, and writes them if a name is given."""
    print("\n\n".join(map(str, shown)))
    if published:
        text = "\n\n".join(f"{table.title}:\n\n{table.markdown()}" for table in shown)
        _write("Costs of programs for GPUs and TPUs", text, published)
    return 0


def _write(title: str, text: str, name: str) -> None:
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    page = f"# {title}\n\nCompiled with {versions}; read, never run.\n\n{text}\n"
    (RESULTS / f"{name}.md").write_text(page, encoding="utf-8")


def markdown(rows: list[Row]) -> str:
    """A row for each case, a column for each device; a cell has the complaints, or "right"."""
    devices = list(dict.fromkeys(row.device for row in rows))
    found = {(row.case, row.device): row for row in rows}
    cases = dict.fromkeys(row.case for row in rows)
    cells = [[case, *(_cell(found.get((case, device))) for device in devices)] for case in cases]
    return Table("", ("case", *devices), cells).markdown()


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    unit = "instructions" if row.device in ("H100", "A100") else "operations"
    verdict = "; ".join(f"`{text}`" for text in counted(row.complaints)) or "right"
    return f"{verdict}, of {row.instructions:,} {unit}" if row.instructions else verdict
