"""What the fields of descs are: roles of tensors, kinds of options. Each says it in metadata, none by its name."""

import dataclasses
import enum
from typing import Any, NamedTuple


class Role(NamedTuple):
    """Whether a tensor is an output; and, of a scale or zero point, the field that it belongs to."""

    is_output: bool
    parameter: str = ""  # "scale" or "zero_point", or "" for data
    of: str = ""

    def scale_of(self, field: str) -> "Role":
        return self._replace(parameter="scale", of=field)

    def zero_point_of(self, field: str) -> "Role":
        return self._replace(parameter="zero_point", of=field)

    def __str__(self) -> str:
        return "output" if self.is_output else "input"


INPUT, OUTPUT = Role(is_output=False), Role(is_output=True)


class Tensor(NamedTuple):
    """What a field is that holds a tensor, or a tuple of tensors with a role by place, the last for all that follow.

    `batch` ends the leading dimensions whose entries the operator computes each by itself, as an index into sizes.
    `parameters` are the function's names for the tensors of a tuple, by place; without them it takes a tuple.
    """

    roles: tuple[Role, ...]
    is_many: bool = False
    batch: int = 0
    parameters: tuple[str, ...] = ()

    def role(self, place: int = 0) -> Role:
        return self.roles[min(place, len(self.roles) - 1)]


class Option(NamedTuple):
    """What a field is that holds no tensor.

    `least` is the least that a UINT, or each of a list of UINTs, may be. `words` say what else holds. `pads` is the
    field of the tensor whose spatial dimensions a list of UINTs makes longer.
    """

    kind: type | str  # "count", "counts" (one for each spatial dimension), "dimensions" (how many these are), or a type
    least: int = 0
    words: str = ""
    pads: str = ""
    prefix: str = ""  # of an enum's names in directml.h


def tensor(role: Role, *, batch: int = 0) -> Any:
    """A field for a tensor."""
    return dataclasses.field(default=None, metadata={"is": Tensor((role,), batch=batch)})


def tensors(*roles: Role, parameters: tuple[str, ...] = ()) -> Any:
    """A field for a tuple of tensors; in JSON a list."""
    return dataclasses.field(default=None, metadata={"is": Tensor(roles, is_many=True, parameters=parameters)})


def spatial_dimensions() -> Any:
    """A field for the number of spatial dimensions, a UINT."""
    return dataclasses.field(default=None, metadata={"is": Option("dimensions", 1)})


def counts(least: int, *, pads: str = "") -> Any:
    """A field for a list of UINTs, one for each spatial dimension."""
    return dataclasses.field(default=None, metadata={"is": Option("counts", least, "in each dimension", pads)})


def count(least: int, words: str = "") -> Any:
    """A field for a UINT."""
    return dataclasses.field(default=None, metadata={"is": Option("count", least, words)})


def choice(kind: type[enum.Enum], prefix: str) -> Any:
    """A field for a member of an enum, whose names in directml.h have a prefix."""
    return dataclasses.field(default=None, metadata={"is": Option(kind, prefix=prefix)})


def boolean() -> Any:
    """A field for a BOOL."""
    return dataclasses.field(default=None, metadata={"is": Option(bool)})
