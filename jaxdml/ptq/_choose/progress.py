"""A line on stderr that says how far a long computation is."""

import sys
import time
from types import TracebackType
from typing import Self


class Progress:
    """Shows the latest text on one line of stderr. The line ends with the `with` block, also if an error leaves it."""

    def __init__(self, is_shown: bool) -> None:
        self._is_shown, self._start, self._is_open = is_shown, time.monotonic(), False

    def show(self, text: str) -> None:
        """Replaces the text of the line, and adds the seconds so far."""
        if self._is_shown:
            self._is_open = True
            print(f"\r{text}, {time.monotonic() - self._start:.0f} s", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:  # fmt: skip
        if self._is_open:
            print(file=sys.stderr)
