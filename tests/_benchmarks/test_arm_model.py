"""The loop that benchmarks.arm_model finds in a kernel, and the number of products that it counts."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.arm_model import main_loop, products

ASSEMBLY = """
tile:
\tcbz\tx0, .L1
.L2:
\tldr\tq1, [x1], 16
\tsdot\tv0.4s, v1.16b, v2.16b
\tbne\t.L2
.L3:
\tldp\tq1, q2, [x1], 32
#APP
\tsdot\tv0.4s, v1.16b, v3.4b[0]  // a dot product
\tsmmla\tv4.4s, v2.16b, v3.16b
\tsmull2\tv5.8h, v2.16b, v3.16b
\tfmla\tv6.2d, v2.2d, v3.2d
\tfmla\tv6.4s, v2.4s, v3.4s
\tb.ne\t.L3
.L1:
\tret
"""


def test_the_main_loop_has_most_products():
    loop = main_loop(ASSEMBLY)
    assert loop[0] == "ldp\tq1, q2, [x1], 32"
    assert loop[-1] == "b.ne\t.L3"
    assert products(loop) == 16 + 32 + 8 + 2
