"""Flags that let XLA change any result."""

import os
from collections.abc import Mapping
from pathlib import Path

FLAGS = frozenset(("xla_cpu_enable_fast_math", "xla_enable_fast_math", "xla_allow_fast_math"))


def fast_math_flag(environment: Mapping[str, str] = os.environ) -> str | None:
    """The flag that turns fast math on, in XLA_FLAGS or in the file that XLA_FLAGS names; None if there is none."""
    text = environment.get("XLA_FLAGS", "").strip()
    if text and not text.startswith("--"):
        file = Path(text)
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
    found = dict[str, str | None]()  # if a flag is repeated, the last one counts
    for word in text.split():
        name, _, value = word.lstrip("-").partition("=")
        if name in FLAGS:
            is_on = value.strip("'\"").lower() in ("", "1", "true", "t", "yes", "y")
            found[name] = word if is_on else None
    return next(filter(None, found.values()), None)
