"""Values read from JSON. Each has a path, which its errors name."""

import difflib
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from jaxdml._directml.messages import listed, shown
from jaxdml._shapes import is_integer


class Value(NamedTuple):
    """A JSON value and its path; `error` builds an exception from a path and a text."""

    value: Any
    path: str
    error: Callable[[str, str], Exception]

    def fail(self, text: str) -> Exception:
        return self.error(self.path, text)

    def expected(self, what: str) -> Exception:
        return self.fail(f"is {shown(self.value)}, expected {what}")

    def members(self, allowed: Collection[str] | None = None) -> dict[str, "Value"]:
        """The members of an object that are not null; if `allowed` is given, every name must be in `allowed`."""
        if not isinstance(self.value, dict):
            raise self.expected("an object")
        for name in self.value:
            if not isinstance(name, str):
                raise self.fail(f"has a member {shown(name)}, whose name is not a string")
            if allowed is not None and name not in allowed:
                close = difflib.get_close_matches(name, allowed, n=1)
                hint = f"did you mean {close[0]}?" if close else f"expected {listed(allowed)}"
                raise self.fail(f"has an unknown field {shown(name)}; {hint}")
        return {
            name: self._replace(value=value, path=f"{self.path}.{name}" if self.path else name)
            for name, value in self.value.items()
            if value is not None
        }

    def member(self, name: str) -> "Value":
        """A required member."""
        members = self.members()
        if name not in members:
            raise self.fail(f"has no {name}, which is required")
        return members[name]

    def items(self) -> Iterator["Value"]:
        if not isinstance(self.value, list):
            raise self.expected("a list")
        return (self._replace(value=value, path=f"{self.path}[{i}]") for i, value in enumerate(self.value))

    def string(self) -> str:
        if not isinstance(self.value, str):
            raise self.expected("a string")
        return self.value

    def integer(self, low: int, high: int) -> int:
        if not is_integer(self.value) or not low <= self.value <= high:
            raise self.expected(f"an integer from {low} to {high}")
        return self.value

    def boolean(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.expected("true or false")
        return self.value

    def one_of[T](self, prefix: str, options: dict[str, T]) -> T:
        """The option that the string names, with or without the prefix."""
        name = self.string().removeprefix(prefix)
        if name not in options:
            alike = {option.lower(): prefix + option for option in options}
            close = difflib.get_close_matches(name.lower(), alike, n=1)
            hint = f"; did you mean {alike[close[0]]}?" if close else ""
            raise self.expected((listed(prefix + option for option in options) or "a name, but none is defined") + hint)
        return options[name]
