"""`python docs/figure.py` draws docs/figures/times.svg: times of a few cases, as bars."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from generate import TIMES  # noqa: E402

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
FIGURE = ROOT / "docs" / "figures" / "times.svg"


def draw(path: Path = FIGURE) -> None:
    """Writes the picture of the results that the repository has."""
    bars(json.loads(TIMES.read_text(encoding="utf-8")), CASES, path)


if __name__ == "__main__":
    FIGURE.parent.mkdir(exist_ok=True)
    draw()
