"""`python docs/figure.py` draws the times of a few cases as bars: one chart in docs/figures/ for each processor."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from generate import AMX_TIMES, AVX2_TIMES, TIMES  # noqa: E402

from benchmarks.chart import bars  # noqa: E402

CASES = (
    "matrix multiply, 1024 x 1024 x 1024",
    "matrix multiply, 1 x 4096 x 4096",
    "convolution, 3x3 64 to 64 at 56x56, batch 1",
    "convolution, 3x3 512 to 512 at 7x7, batch 1",
    "convolution, 3x3 144 to 144 at 56x56, batch 1, 144 groups",
    "add, 1M uint8",
    "network, ResNet-18 shape, 224x224, batch 1",
    "network, MobileNetV2 shape, 224x224, batch 1",
)
FOLDER = ROOT / "docs" / "figures"
# A GPU has no onnxruntime to compare with, and most times of its calls are overhead.
FIGURES = {
    FOLDER / f"times_{name}.svg": results
    for name, results in {"avx2": AVX2_TIMES, "avx512_vnni": TIMES, "amx": AMX_TIMES}.items()
}


def draw() -> None:
    """Writes the charts of the results in the repository."""
    FOLDER.mkdir(exist_ok=True)
    for path, results in FIGURES.items():
        bars(json.loads(results.read_text(encoding="utf-8")), CASES, path)


if __name__ == "__main__":
    draw()
