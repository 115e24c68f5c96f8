"""python -m benchmarks.arm_model: predicted speeds of the innermost loops of the ARM kernels.

llvm-mca predicts the cycles of each loop, as the cross compiler of `make native-test-arm` compiles it, on a few
processors. It models the throughput and latency of instructions, but no cache: the numbers are predictions, not
measurements. The script needs llvm-mca 19 or newer and aarch64-linux-gnu-g++.
"""

import argparse
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "arm_model.md"
SETS = {
    "neon": "-march=armv8-a",
    "neon_dotprod": "-march=armv8.2-a+dotprod",
    "neon_i8mm": "-march=armv8.2-a+dotprod+i8mm",
}
PROCESSORS = ("cortex-a72", "neoverse-n1", "neoverse-v1", "neoverse-v2", "apple-m1")
LACKING = {"cortex-a72": {"neon_dotprod", "neon_i8mm"}, "neoverse-n1": {"neon_i8mm"}, "apple-m1": {"neon_i8mm"}}
KERNELS = {
    "matrix multiply, convolution: a tile of 6 rows by 16 columns": """
#include "microkernel.h"
namespace jaxdml::JAXDML_ISA {
void tile(const uint8_t* const (&rows)[kRows], int64_t step, const uint8_t* lanes, int64_t dwords,
          I32 (&sums)[kRows][kVectors]) {
  multiply_runs<kRows, kVectors, WeightLanes>(rows, 3, step, lanes, dwords, sums);
}
}""",
    "1 x 1 convolution: a tile of 6 output channels by 16 pixels": """
#include "microkernel.h"
namespace jaxdml::JAXDML_ISA {
void tile(const uint8_t* const (&rows)[kRows], const uint8_t* lanes, int64_t dwords, int64_t next,
          I32 (&sums)[kRows][4]) {
  multiply_tile<kRows, 4, ActivationLanes>(rows, 1, 0, lanes, dwords, next, sums);
}
}""",
    "matrix of 4 bits in blocks: 4 rows by 16 columns": """
#include "blocks.h"
namespace jaxdml::JAXDML_ISA {
void tile(const uint8_t* w, int64_t unit, const int8_t* q, int64_t stride, int64_t size, I32 (&to)[4][4]) {
  I32 sums[4][4] = {};
  add_products<4, 4, 4>(w, unit, q, stride, size, sums);
  for (int r = 0; r < 4; r++)
    for (int v = 0; v < 4; v++) to[r][v] = sums[r][v];
}
}""",
    "attention: 12 rows by 4 columns of float64": """
#include "integer_rows.h"
namespace jaxdml::JAXDML_ISA {
void tile(const double* a, int64_t stride, const float* panel, int64_t depth, double* upper, double* lower,
          int64_t width) {
  add_tile<kSumRows>(a, stride, panel, depth, upper, lower, width);
}
}""",
}
# Multiply-adds per instruction.
PRODUCTS = {r"smmla\s": 32, r"sdot\s": 16, r"smull2?\s+v\d+\.8h": 8, r"fmla\s+v\d+\.2d": 2}


def products(instructions: list[str]) -> int:
    return sum(count for each in instructions for pattern, count in PRODUCTS.items() if re.match(pattern, each))


def loops(assembly: str) -> Iterator[list[str]]:
    """The instructions of each innermost loop of GCC's assembly."""
    lines = [line.split("//")[0].strip() for line in assembly.splitlines()]
    labels = {}
    for i, line in enumerate(lines):
        if found := re.fullmatch(r"(\.L\w+):", line):
            labels[found[1]] = i
        found = re.fullmatch(r"b\.?(?!l|r)\w+\s+(\.L\w+)", line)
        if found and found[1] in labels:
            body = [each for each in lines[labels[found[1]] + 1 : i + 1] if each and each[0] not in ".#"]
            if not any(each.endswith(":") for each in lines[labels[found[1]] + 1 : i]):
                yield body


def main_loop(assembly: str) -> list[str]:
    """The loop with the most products."""
    return max(loops(assembly), key=products)


def assembly_of(source: str, instructions: str, flag: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cc")
        path.write_text(source, encoding="utf-8")
        command = [
            "aarch64-linux-gnu-g++",
            "-std=c++17",
            "-O3",
            "-fPIC",
            "-ffp-contract=off",
            "-fno-schedule-insns",
            flag,
        ]
        command += [f"-DJAXDML_ISA={instructions}", f"-I{ROOT / 'native' / 'src'}", "-S", "-o", "-", str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def cycles(mca: str, instructions: list[str], processor: str) -> float:
    """The cycles of one iteration of the loop."""
    rounds = 200
    command = [mca, "-mtriple=aarch64", f"-mcpu={processor}", "-mattr=+dotprod,+i8mm", f"-iterations={rounds}"]
    done = subprocess.run(command, input="\n".join(instructions), capture_output=True, text=True, check=True)
    return int(re.search(r"Total Cycles:\s+(\d+)", done.stdout)[1]) / rounds  # type: ignore[index]


def table(mca: str) -> str:
    version = subprocess.run([mca, "--version"], capture_output=True, text=True, check=True).stdout
    number = re.search(r"version ([\d.]+)", version)[1]  # type: ignore[index]
    compiler = subprocess.run(["aarch64-linux-gnu-g++", "-dumpfullversion"], capture_output=True, text=True, check=True)
    lines = [
        "# A model of the kernels for ARM",
        "",
        "Multiply-adds per cycle of the innermost loops, as llvm-mca predicts them: **a model's figures, not",
        "measurements**. The model knows how many instructions a processor starts in a cycle and how long they take.",
        "It assumes that all loads hit the first-level cache. No ARM kernel has run on an ARM processor yet.",
        "",
        f"llvm-mca {number}, GCC {compiler.stdout.strip()}. `python -m benchmarks.arm_model` wrote this file.",
        "",
        f"| loop | set | {' | '.join(PROCESSORS)} |",
        "| --- " * (len(PROCESSORS) + 2) + "|",
    ]
    for kernel, source in KERNELS.items():
        for instructions, flag in SETS.items():
            body = main_loop(assembly_of(source, instructions, flag))
            cells = [
                "" if instructions in LACKING.get(each, ()) else f"{products(body) / cycles(mca, body, each):.1f}"
                for each in PROCESSORS
            ]
            lines.append(f"| {kernel} | `{instructions}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.arm_model", description=__doc__)
    parser.add_argument(
        "--mca", default="llvm-mca-19" if shutil.which("llvm-mca-19") else "llvm-mca", metavar="PROGRAM"
    )
    parser.add_argument("--output", type=Path, default=RESULT)
    arguments = parser.parse_args()
    arguments.output.write_text(table(arguments.mca), encoding="utf-8")
    print(f"Written to {arguments.output}")


if __name__ == "__main__":
    main()
