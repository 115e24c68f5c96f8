"""Keys that identify the values of a function."""

from dataclasses import dataclass

WIDE = "wide"  # the role of a value as read by contractions that quantize it to 16 bits


@dataclass(frozen=True)
class Value:
    """A value of the function, or something that belongs to one, such as its scale.

    `str` gives the name in a graph. No code parses such a name; code reads the fields instead.

    Attributes:
      base: the value's name in its program.
      role: the role of something that belongs to the value, such as "scale"; "" for the value itself.
      scan: the first result of the scan whose body computes the value; "" outside of scans.
    """

    base: str
    role: str = ""
    scan: str = ""

    def __str__(self) -> str:
        name = f"{self.base}:{self.role}" if self.role else self.base
        return f"{self.scan}/{name}" if self.scan else name


def wide_name(value: str) -> str:
    """The name of a value as read by contractions that quantize it to 16 bits."""
    return str(Value(value, WIDE))


def factor_name(value: str) -> str:
    """The name of the constant by which a value in floats is multiplied before contractions read it, if any."""
    return str(Value(value, "factor"))
