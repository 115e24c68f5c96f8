"""Specs of the fields of descs: the role of a tensor, the kind of an option. A field's metadata holds its spec."""

import dataclasses
import enum
from typing import Any, NamedTuple


class Role(NamedTuple):
    """Whether a tensor is an output. For a scale or zero point, `of` names the field that it belongs to."""

    is_output: bool
    parameter: str = ""  # "scale", "zero_point", or "" for data
    of: str = ""

    def scale_of(self, field: str) -> "Role":
        return self._replace(parameter="scale", of=field)

    def zero_point_of(self, field: str) -> "Role":
        return self._replace(parameter="zero_point", of=field)

    def __str__(self) -> str:
        return "output" if self.is_output else "input"


INPUT, OUTPUT = Role(is_output=False), Role(is_output=True)


class Tensor(NamedTuple):
    """Spec of a field that holds a tensor, or a tuple of tensors.

    `roles` has the role of each tensor; the last role also applies to all further tensors. sizes[:batch] are the batch
    dimensions. `parameters` names the function's parameter for each tensor of a tuple; if empty, one parameter takes
    the whole tuple.
    """

    roles: tuple[Role, ...]
    is_many: bool = False
    batch: int = 0
    parameters: tuple[str, ...] = ()

    def role(self, place: int = 0) -> Role:
        return self.roles[min(place, len(self.roles) - 1)]


class Option(NamedTuple):
    """Spec of a field that does not hold a tensor.

    `least` is the smallest allowed value of a UINT or of each UINT in a list. `words` describe further rules. If a list
    of UINTs is padding, `pads` names the field of the tensor that it pads. If `may_be_symbolic`, the list may have
    symbolic sizes of `jax.export`.
    """

    kind: type | str  # "count", "counts" (one per spatial dimension), "dimensions" (how many are spatial), or a type
    least: int = 0
    words: str = ""
    pads: str = ""
    prefix: str = ""  # the prefix of the enum's names in directml.h
    may_be_symbolic: bool = False


def tensor(role: Role, *, batch: int = 0) -> Any:
    """A field for a tensor."""
    return dataclasses.field(default=None, metadata={"spec": Tensor((role,), batch=batch)})


def tensors(*roles: Role, parameters: tuple[str, ...] = ()) -> Any:
    """A field for a tuple of tensors, which is a list in JSON."""
    return dataclasses.field(default=None, metadata={"spec": Tensor(roles, is_many=True, parameters=parameters)})


def spatial_dimensions() -> Any:
    """A field for the number of spatial dimensions, a UINT."""
    return dataclasses.field(default=None, metadata={"spec": Option("dimensions", 1)})


def counts(least: int, *, pads: str = "", may_be_symbolic: bool = False) -> Any:
    """A field for a list of UINTs, one for each spatial dimension."""
    spec = Option("counts", least, "in each dimension", pads, may_be_symbolic=may_be_symbolic)
    return dataclasses.field(default=None, metadata={"spec": spec})


def count(least: int, words: str = "") -> Any:
    """A field for a UINT."""
    return dataclasses.field(default=None, metadata={"spec": Option("count", least, words)})


def choice(kind: type[enum.Enum], prefix: str) -> Any:
    """A field for a member of an enum; `prefix` is the prefix of its names in directml.h."""
    return dataclasses.field(default=None, metadata={"spec": Option(kind, prefix=prefix)})


def boolean() -> Any:
    """A field for a BOOL."""
    return dataclasses.field(default=None, metadata={"spec": Option(bool)})
