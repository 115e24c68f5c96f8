"""The flags of XLA_FLAGS, which change how XLA compiles."""

import os
from collections.abc import Mapping
from pathlib import Path


def flags(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The value of each flag in XLA_FLAGS, or in the file that it names; "" for a flag without a value.

    Where a flag is given twice, the last counts.
    """
    text = environment.get("XLA_FLAGS", "").strip()
    if text and not text.startswith("--"):
        file = Path(text)
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
    words = (word.lstrip("-").partition("=") for word in text.split())
    return {name: value.strip("'\"") for name, _, value in words}


def is_on(value: str | None) -> bool:
    """Whether a value turns a flag on; None is that of a flag that is not given."""
    return value is not None and value.lower() in ("", "1", "true", "t", "yes", "y")
