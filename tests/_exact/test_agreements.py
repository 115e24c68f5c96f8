"""Numbers and orders that Python and the sources of the native library share."""

import re
from pathlib import Path

from jaxdml._arithmetic.float_products import OF_ROWS
from jaxdml._arithmetic.native_attention import MOST_DEPTH
from jaxdml._arithmetic.native_rows import CODES, MOST_REDUCED, MOST_SLOTS
from jaxdml._arithmetic.native_step import CONSTANT, SEQUENCE

SOURCES = Path(__file__).parents[2] / "native" / "src"
# The names of codes in the library that differ from those in Python by more than their capitals.
NAMES = {
    "equal": "eq", "not_equal": "ne", "less": "lt", "less_or_equal": "le", "greater": "gt", "greater_or_equal": "ge",
    "select": "select_n", "sum": "reduce_sum", "largest": "reduce_max", "smallest": "reduce_min",
}  # fmt: skip


def constant(name, file):
    (value,) = re.findall(
        rf"constexpr int(?:32|64)_t {name} = ([\d <]+);", (SOURCES / file).read_text(encoding="utf-8")
    )
    base, *shift = map(int, value.split("<<"))
    return base << sum(shift)


def test_codes_of_rows_are_in_one_order():
    text = (SOURCES / "kernels.h").read_text(encoding="utf-8")
    (body,) = re.findall(r"enum class RowCode : int32_t \{(.*?)\};", text, re.DOTALL)
    words = [re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in re.findall(r"\bk(\w+)", body)]
    assert [NAMES.get(word, word) for word in words] == [*CODES, "count"]


def test_kinds_of_arguments_of_steps_are_the_same():
    text = (SOURCES / "bind_steps.cc").read_text(encoding="utf-8")
    assert f"constexpr int64_t kConstant = {CONSTANT}, kSequence = {SEQUENCE};" in text


def test_limits_are_the_same():
    assert constant("kMostSlots", "kernels.h") == MOST_SLOTS
    assert constant("kMostReduced", "bind_rows.cc") == MOST_REDUCED
    assert constant("kMostAttentionDepth", "kernels.h") == MOST_DEPTH == OF_ROWS.terms
