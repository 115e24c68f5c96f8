"""The commands dispatch, print and writeFile. Reading a command checks it; a run executes the commands in order."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from jaxdml._compiled.bindings import outputs
from jaxdml._directml.data_types import DataType
from jaxdml._directml.json_values import Value
from jaxdml._directml.tensor_rules import UINT_MAX
from jaxdml.dxdispatch._dispatchables import Bindings, Dispatchable, read_bindings
from jaxdml.dxdispatch._files import IMAGES, write_data
from jaxdml.dxdispatch._paths import folded, inside
from jaxdml.dxdispatch._resources import Resource


@dataclasses.dataclass
class State:
    """The state of a run: current buffers, persistent resources, and destinations of output.

    `read_from` has the paths of the model's input files, each as `_paths.folded` returns it.
    """

    resources: Mapping[str, Resource]
    buffers: dict[str, np.ndarray]
    persistent: dict[str, dict[str, Any]]
    folder: Path
    read_from: frozenset[str]
    show: Callable[[str], object]


class Command(Protocol):
    """One step of a run."""

    def execute(self, state: State) -> None: ...


@dataclasses.dataclass(frozen=True)
class Dispatch:
    """Runs an operator and writes its outputs into the bound buffers."""

    name: str
    dispatchable: Dispatchable
    bindings: Bindings
    value: Value

    def execute(self, state: State) -> None:
        try:
            self.dispatchable.dispatch(state.persistent[self.name], self.bindings, state.buffers)
        except (RuntimeError, MemoryError) as error:  # from XLA, such as out of memory
            raise self.value.fail(f"could not be executed: {error}") from error


@dataclasses.dataclass(frozen=True)
class Print:
    """Shows the current values of a resource, up to the end of its initial values."""

    name: str
    verbose: bool

    def execute(self, state: State) -> None:
        resource = state.resources[self.name]
        values = resource.elements(state.buffers[self.name][: resource.initial_bytes])
        bits, digits = values.view(f"u{values.itemsize}"), 2 * values.itemsize
        if resource.data_type.is_packed:
            bits, digits = np.stack([values & 15, values >> 4], -1).ravel(), 1
            values = (bits.astype(np.int8) ^ 8) - 8 if resource.data_type is DataType.INT4 else bits
        if not self.verbose:
            state.show(f"Resource '{self.name}': {', '.join(map(_shown, values.tolist()))}")
            return
        width = len(str(len(values)))
        lines = (
            f"[{i:{width}}] {_shown(v)} (0x{b:0{digits}X})"
            for i, (v, b) in enumerate(zip(values.tolist(), bits.tolist(), strict=True))
        )
        state.show("\n".join([f"Resource '{self.name}':", *lines]))


@dataclasses.dataclass(frozen=True)
class WriteFile:
    """Writes a resource to a .npy or raw file in the output folder."""

    name: str
    dimensions: tuple[int, ...]
    target: Value

    def path(self, state: State) -> Path:
        """The path to write to, which must be inside the folder and must not be the path of an input file."""
        path = inside(state.folder, self.target)
        if folded(path) in state.read_from:
            raise self.target.expected("another file: the model was read from this one")
        return path

    def execute(self, state: State) -> None:
        resource, path = state.resources[self.name], self.path(state)
        elements = resource.elements(state.buffers[self.name][: resource.size_in_bytes])
        write_data(path, self.target, elements.reshape(self.dimensions or -1))


def read_command(value: Value, resources: Mapping[str, Resource], dispatchables: Mapping[str, Dispatchable]) -> Command:
    """Reads an element of "commands"."""
    kind = value.member("type")
    lower = kind._replace(value=kind.string().lower())  # the tool ignores case
    return lower.one_of("", COMMANDS)(value, resources, dispatchables)


def _read_dispatch(
    value: Value, resources: Mapping[str, Resource], dispatchables: Mapping[str, Dispatchable]
) -> Dispatch:
    members = value.members({"type", "dispatchable", "bindings", "threadGroupCount"})
    if "threadGroupCount" in members:  # has no effect without HLSL
        for count in members["threadGroupCount"].items():
            count.integer(1, UINT_MAX)
    dispatchable = value.member("dispatchable").one_of("", dict(dispatchables))
    operator = dispatchable.operator
    names = (*operator.dispatched, *outputs(operator.desc))
    bindings = read_bindings(value.member("bindings"), operator, names, resources)
    return Dispatch(members["dispatchable"].string(), dispatchable, bindings, value)


def _read_print(value: Value, resources: Mapping[str, Resource], _: Mapping[str, Dispatchable]) -> Print:
    members = value.members({"type", "resource", "verbose"})
    if not value.member("resource").one_of("", dict(resources)).data_type:
        raise members["resource"].fail("has elements of several types, which cannot be printed; write it to a file")
    return Print(members["resource"].string(), "verbose" in members and members["verbose"].boolean())


def _read_write_file(value: Value, resources: Mapping[str, Resource], _: Mapping[str, Dispatchable]) -> WriteFile:
    members = value.members({"type", "resource", "targetPath", "dimensions"})
    resource, target = value.member("resource").one_of("", dict(resources)), value.member("targetPath")
    if target.string().lower().endswith(IMAGES):
        raise target.expected("a .npy or raw file; images are not supported")
    dimensions: tuple[int, ...] = ()
    if "dimensions" in members:
        dimensions = tuple(item.integer(1, UINT_MAX) for item in members["dimensions"].items())
        count = len(resource.elements(resource.data[: resource.size_in_bytes]))
        if len(dimensions) > 32 or math.prod(dimensions) != count:
            raise members["dimensions"].expected(f"dimensions of {count} elements, the size of the resource")
    return WriteFile(members["resource"].string(), dimensions, target)


COMMANDS: dict[str, Callable[..., Command]] = {
    "dispatch": _read_dispatch,
    "print": _read_print,
    "writefile": _read_write_file,
}


def _shown(value: Any) -> str:
    """A number as a C++ stream prints it: floats have six significant digits."""
    return f"{value:g}" if isinstance(value, float) else str(value)
