"""`python docs/generate.py` writes the parts of README.md and docs/ that come from tables and measurements.

In README.md, docs/performance.md and docs/times/ the tables of times come from the benchmark's results; in
docs/reference/onnx.md the ONNX operators come from their table; in docs/reference/ each operator's page has its fields
and its feature levels. Each table is between a mark with its name and an end mark. docs/feature_levels.md and
docs/reference/index.md are written as a whole.
"""

import inspect
import json
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import jaxdml as dml
from jaxdml._directml.desc import output_fields, page_name, parameters_of
from jaxdml._directml.feature_support import levels_table
from jaxdml._directml.pages import PAGES
from jaxdml._tables import Table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import device_times  # noqa: E402
from benchmarks.tables import ptq_table  # noqa: E402

README, LEVELS = ROOT / "README.md", ROOT / "docs" / "feature_levels.md"
PERFORMANCE, PTQ = ROOT / "docs" / "performance.md", ROOT / "docs" / "times" / "ptq.md"
REFERENCE = ROOT / "docs" / "reference"
INDEX = REFERENCE / "index.md"
ONNX_OPERATORS, ONNX_TIMES = REFERENCE / "onnx.md", ROOT / "docs" / "onnx_numerics.md"
PAGES_OF_OTHERS = (
    "descs", "matrix_multiply_blocks", "weights", "typing", "training", "exact", "kernels", "errors", "onnx", "ptq",
    "dxdispatch", "reference_module",
)  # fmt: skip
TIMES = ROOT / "benchmarks" / "results" / "cpu_avx512_vnni.json"
AVX2_TIMES = ROOT / "benchmarks" / "results" / "cpu_avx2.json"
AMX_TIMES = ROOT / "benchmarks" / "results" / "cpu_amx_int8.json"
GPU_TIMES = ROOT / "benchmarks" / "results" / "gpu_nvidia_h200.json"
TIMES_PAGES = {
    results: ROOT / "docs" / "times" / f"{name}.md"
    for results, name in {TIMES: "avx512_vnni", AVX2_TIMES: "avx2", AMX_TIMES: "amx", GPU_TIMES: "gpu"}.items()
}
PTQ_TIMES = ROOT / "benchmarks" / "results" / "ptq_avx512_vnni.json"
OVERHEAD = ROOT / "benchmarks" / "results" / "overhead_avx512_vnni.json"


SPEED = {
    "ResNet-18, 224 x 224, batch 1": "network, ResNet-18 shape, 224x224, batch 1",
    "MobileNetV2, 224 x 224, batch 1": "network, MobileNetV2 shape, 224x224, batch 1",
    "3 x 3 convolution, 64 to 64 channels at 56 x 56": "convolution, 3x3 64 to 64 at 56x56, batch 1",
    "matrix product, 1024 x 1024 x 1024": "matrix multiply, 1024 x 1024 x 1024",
}


def speed() -> str:
    """onnxruntime's time, in the form that is exact on each processor, over jaxdml's."""
    exact = {"AVX2": (AVX2_TIMES, "onnxruntime, uint8 weights"), "AVX512-VNNI": (TIMES, "onnxruntime")}
    ratios = {}
    for kernels, (path, peer) in exact.items():
        for row in json.loads(path.read_text(encoding="utf-8"))["cases"]:
            ratios[kernels, f"{row['family']}, {row['case']}"] = row["ratios"].get(peer)
    rows = [(name, *(f"{1 / ratios[kernels, case]:.2f}" for kernels in exact)) for name, case in SPEED.items()]
    return Table("speed", ("onnxruntime's time over jaxdml's", *exact), rows).markdown()


PEERS = {
    "onnxruntime": "onnxruntime, int8 weights",
    "onnxruntime, uint8 weights": "onnxruntime, uint8 weights",
    "lax int8": "lax, int8",
    "lax float32": "lax, float32, not quantized",
    "jaxdml, XLA's kernels": "jaxdml on XLA's kernels",
}
GPU_PEERS = {
    "lax int8": "lax, int8",
    "lax bfloat16": "lax, bfloat16, not quantized",
    "lax float32": "lax, float32, not quantized",
    "jaxdml": "jaxdml without prepared weights",
}


def times(path: Path) -> str:
    """The time of each peer over jaxdml's, case by case; the results have the inverse ratios."""
    peers, first = (GPU_PEERS, "lax int8") if path == GPU_TIMES else (PEERS, "onnxruntime")
    rows = [row for row in json.loads(path.read_text(encoding="utf-8"))["cases"] if first in row["ratios"]]
    lines = [(f"{row['family']}, {row['case']}", *_cells(row, peers)) for row in rows]
    return Table("times", ("case", "jaxdml, ms", *peers.values()), lines).markdown()


def device_tables() -> dict[str, str]:
    """Times in a loop on a GPU, by the name of the table."""
    paths = {name: GPU_TIMES.with_name(f"{name}_{GPU_TIMES.name}") for name in device_times.TABLES}
    return {
        name: device_times.shown(name, json.loads(path.read_text(encoding="utf-8"))[name])
        for name, path in paths.items()
    }


def missed() -> str:
    """Cases of contractions and networks that fall short of their aim: the exact onnxruntime's time over jaxdml's."""
    rows = []
    for kernels, path in {"AVX2": AVX2_TIMES, "AVX512-VNNI": TIMES, "AMX": AMX_TIMES}.items():
        for row in json.loads(path.read_text(encoding="utf-8"))["cases"]:
            ratio = row["ratios"].get(row["rival"])
            if row["rival"] in PEERS and row["at_most"] and ratio > row["at_most"]:
                case = f"{row['family']}, {row['case']}"
                rows.append((kernels, case, row["rival"], f"{1 / ratio:.2f}", f"{1 / row['at_most']:.2f}"))
    return Table("missed", ("kernels", "case", "peer", "measured", "aim"), rows).markdown()


def costs() -> str:
    """The overheads of native kernels and of XLA's."""
    kernels = json.loads(OVERHEAD.read_text(encoding="utf-8"))["kernels"]
    sides = ("native", "xla")
    rows = [(name, *(f"{1e3 * times[k]:.3g} ms" for k in sides)) for name, times in kernels["seconds"].items()]
    for name, sizes in kernels["bytes"].items():
        what = f"memory of {name.removeprefix('prepare ')}, {sizes['weights'] / 2**20:.2f} MiB of weights"
        rows.append((what, *(f"{sizes[k] / 2**20:.2f} MiB" for k in sides)))
    imports = kernels["import"]
    rows.append(
        ("import jaxdml, after jax", *(f"{1e3 * imports[k]:.0f} ms" for k in ("as installed", "without jaxdml-cpu")))
    )
    return Table("costs", ("what", "native kernels", "XLA's kernels"), rows).markdown()


def onnx_times() -> str:
    """Networks read from an ONNX model: the time of each peer over the model's."""
    peers = {"jaxdml, prepared weights": "the same by hand"} | {name: PEERS[name] for name in list(PEERS)[:2]}
    lines = []
    for row in json.loads(TIMES.read_text(encoding="utf-8"))["cases"]:
        if "jaxdml.onnx" in row["contenders"]:
            times = {name: fact["milliseconds"] for name, fact in row["contenders"].items()}
            own = times["jaxdml.onnx"]
            lines.append((row["case"], _two_digits(own), *(_two_digits(times[name] / own) for name in peers)))
    return Table("times", ("case", "jaxdml.onnx, ms", *peers.values()), lines).markdown()


def _cells(row: dict, peers: Iterable[str]) -> list[str]:
    cells = [_two_digits(row["contenders"][row["form"]]["milliseconds"])]
    for peer in peers:
        mark = " †" if row["contenders"].get(peer, {}).get("differing") else ""
        cells.append(_two_digits(1 / row["ratios"][peer]) + mark if peer in row["ratios"] else "")
    return cells


def _two_digits(time: float) -> str:
    rounded = float(f"{time:.2g}")
    return f"{rounded:.0f}" if rounded >= 10 else f"{rounded:.2g}"


def readme(text: str) -> str:
    """README.md with its table between its marks."""
    return _between_marks(text, {"speed": speed()})


def performance(text: str) -> str:
    """docs/performance.md with its tables between their marks."""
    return _between_marks(text, {"missed": missed(), "costs": costs()})


def times_page(results: Path, text: str) -> str:
    """docs/times/<processor>.md with its tables between their marks."""
    return _between_marks(text, {"times": times(results)} | (device_tables() if results == GPU_TIMES else {}))


def onnx_operators_page(text: str) -> str:
    """docs/reference/onnx.md with its table between its marks."""
    return _between_marks(text, {"onnx operators": dml.onnx.supported_ops().rstrip()})


def onnx_times_page(text: str) -> str:
    """docs/onnx_numerics.md with its table between its marks."""
    return _between_marks(text, {"onnx times": onnx_times()})


def ptq_page(text: str) -> str:
    """docs/times/ptq.md with its table between its marks."""
    return _between_marks(text, {"ptq times": ptq_table(json.loads(PTQ_TIMES.read_text(encoding="utf-8"))["rows"])})


def _between_marks(text: str, tables: dict[str, str]) -> str:
    for name, table in tables.items():
        marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
        text, count = marked.subn(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", text)
        assert count == 1, f"the page has {count} marks <!-- {name} -->"
    return text


def levels() -> str:
    """docs/feature_levels.md."""
    table = levels_table()
    rows = [(f"[{function}](reference/{function.strip('`')}.md)", *others) for function, *others in table.rows]
    parts = [
        "# What each feature level allows",
        "The types, ranks and options that an operator accepts depend on the feature level of the DirectML device.\n"
        "jaxdml checks each call at one level: 6_4, the latest, unless the call gives `feature_level`. Give a level\n"
        "to find out at trace time what devices of that level would refuse; omit it if you do not target DirectML.\n"
        "Results do not depend on the level.",
        "`python docs/generate.py` writes this page from the tables that check every call. The page of each operator\n"
        "has its full tables. In Python, `jaxdml.check_feature_support(operator, level)` returns the same tables.",
        "The level `jaxdml` is not a level of DirectML. In Python it is `FeatureLevel.JAXDML`, which adds 16-bit\n"
        "outputs of `element_wise_quantize_linear` to level 6_4.",
        "## What each level brings",
        "The last column has the changes of each later level, separated by semicolons. A rank replaces the ranks\n"
        'allowed before, "also" adds data types, and "optional" means that the tensor may now be absent. Parentheses\n'
        "enclose the tensors that a change applies to; a change without parentheses applies to all tensors of the\n"
        "operator.",
        table._replace(rows=rows).markdown(),
    ]
    return "\n\n".join(parts) + "\n"


def operator_page(operator: str, text: str) -> str:
    """docs/reference/<operator>.md with its tables between their marks."""
    return _between_marks(text, {"fields": _fields(operator), "levels": _levels_of(operator)})


def _fields(operator: str) -> str:
    """Each field of the desc, and the argument of the function that sets it."""
    desc, taken = PAGES[operator].desc, inspect.signature(getattr(dml, operator)).parameters
    arguments: dict[str, list[str]] = {}
    for name, parameter in parameters_of(desc).items():
        arguments.setdefault(parameter.field, []).extend([f"`{name}`"] if name in taken else [])
    for field in output_fields(desc):
        arguments[field] = ["what the function returns"]
    rows = [
        (f"`{field}`", page_name(field), ", ".join(names) or "set by the call") for field, names in arguments.items()
    ]
    return Table("fields", ("field of the desc", "DirectML", "argument of the function"), rows).markdown()


def _levels_of(operator: str) -> str:
    """The tables of each level that changes something."""
    parts = []
    for level in sorted(PAGES[operator].support):
        parts += [f"### Feature level {level}", dml.check_feature_support(operator, level).table().markdown()]
    return "\n\n".join(parts)


def reference_index() -> str:
    """docs/reference/index.md: every public name, grouped by page."""
    rows = [
        (f"[`{operator}`]({operator}.md)", f"[`{page.desc.__name__}`]({_url(page.desc)})", str(min(page.support)),
         _told(f"jaxdml.{operator}"))
        for operator, page in PAGES.items()
    ]  # fmt: skip
    parts = [
        "# Reference",
        "The functions and descs of the operators are in the package `jaxdml`, as in `jaxdml.quantize`. Other names\n"
        "are written in full. `python docs/generate.py` writes this page.",
        "## Operators",
        Table(
            "operators", ("function", "desc, with a link to DirectML's page", "since level", "computes"), rows
        ).markdown(),
    ]
    for page in PAGES_OF_OTHERS:
        text = (REFERENCE / f"{page}.md").read_text(encoding="utf-8")
        title = re.match(r"# (.*)\n", text)
        assert title is not None
        names = [(f"[`{name}`]({page}.md)", _told(name)) for name in documented(text)]
        parts += [f"## {title[1]}", Table(page, ("name", "what it is"), names).markdown()]
    tree = "\n".join([*PAGES, *PAGES_OF_OTHERS])
    parts.append(f"```{{toctree}}\n:hidden:\n\n{tree}\n```")
    return "\n\n".join(parts) + "\n"


def _url(desc: type) -> str:
    """DirectML's page of a desc."""
    url = re.search(r"https://\S+", desc.__doc__ or "")
    assert url is not None
    return url[0]


def documented(text: str) -> list[str]:
    """The names that the autodoc directives of a page document, in order."""
    return re.findall(r"^\.\. auto\w+:: ([\w.]+)", text, re.M)


def public(name: str) -> Any:
    """The object with a full name such as jaxdml.ptq.load."""
    return pkgutil.resolve_name(name)


def _told(name: str) -> str:
    """The first sentence of a docstring."""
    paragraph = inspect.getdoc(public(name)).split("\n\n")[0].replace("\n", " ").replace("``", "`")
    return re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0]


def _rewrite(path: Path, made: Callable[[str], str]) -> None:
    text = made(path.read_text(encoding="utf-8") if path.exists() else "")
    path.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    _rewrite(README, readme)
    _rewrite(PERFORMANCE, performance)
    for results, page in TIMES_PAGES.items():
        _rewrite(page, partial(times_page, results))
    _rewrite(ONNX_OPERATORS, onnx_operators_page)
    _rewrite(ONNX_TIMES, onnx_times_page)
    _rewrite(PTQ, ptq_page)
    _rewrite(LEVELS, lambda _: levels())
    for operator in PAGES:
        _rewrite(REFERENCE / f"{operator}.md", partial(operator_page, operator))
    _rewrite(INDEX, lambda _: reference_index())
