"""Models: resources, dispatchables and commands, read and checked as a whole, then run in order."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.json_values import Value
from jaxdml._directml.messages import told
from jaxdml._directml.validate import check_is_level
from jaxdml.dxdispatch._commands import Command, State, WriteFile, read_command
from jaxdml.dxdispatch._dispatchables import Dispatchable, read_dispatchable
from jaxdml.dxdispatch._files import read_json
from jaxdml.dxdispatch._paths import folded
from jaxdml.dxdispatch._resources import Resource, read_resource
from jaxdml.errors import api_boundary


@dataclasses.dataclass(frozen=True, repr=False)
class Model:
    """A DxDispatch model, made by `load`, and checked but for the files that it may write.

    Attributes:
      path: the file.
      resources: the buffers by name, as they are at the start.
      dispatchables: the compiled operators by name.
      commands: what `run` does, in order.
      options: what `load` was called with beside the path.
    """

    path: Path
    resources: dict[str, Resource]
    dispatchables: dict[str, Dispatchable]
    commands: tuple[Command, ...]
    options: Mapping[str, Any]

    def __reduce__(self) -> Any:
        """A pickle holds the path, whose file is read again where it is loaded."""
        return functools.partial(load, **self.options), (self.path,)

    def __repr__(self) -> str:
        resources, dispatchables = ", ".join(self.resources), ", ".join(self.dispatchables)
        parts = f"resources {resources}", f"dispatchables {dispatchables}", f"{len(self.commands)} commands"
        return f"Model({self.path.name}: {'; '.join(parts)})"

    @api_boundary
    def run(
        self, *, output_dir: str | Path | None = None, show: Callable[[str], object] = print
    ) -> dict[str, np.ndarray]:
        """Initializes the operators, then executes the commands. Each run starts from the initial values.

        Args:
          output_dir: the folder that writeFile writes into; the model's own if None.
          show: takes what the print commands say, a line or several at a time.

        Returns:
          The resources as they are at the end, by name; arrays of rank 1, of the type of their initial values, or of
          bytes if these are of several types.

        Raises:
          DxDispatchError: saying where in the JSON: a file outside the folder, before anything is executed, or one
            that cannot be written, after the commands before it.
        """
        buffers = {name: resource.data.copy() for name, resource in self.resources.items()}
        read_from = [self.path.resolve(), *(r.source for r in self.resources.values() if r.source)]
        state = State(
            resources=self.resources,
            buffers=buffers,
            persistent={name: dispatchable.initialize(buffers) for name, dispatchable in self.dispatchables.items()},
            folder=self.path.parent if output_dir is None else Path(output_dir),
            read_from=frozenset(map(folded, read_from)),
            show=show,
        )
        for command in self.commands:
            if isinstance(command, WriteFile):
                command.path(state)
        for command in self.commands:
            command.execute(state)
        return {
            name: resource.elements(buffers[name][: resource.size_in_bytes])
            for name, resource in self.resources.items()
        }


@api_boundary
def load(path: str | Path, *, feature_level: FeatureLevel = FeatureLevel.LATEST, maximum_bytes: int = 2**30) -> Model:
    """Reads a DxDispatch model: the JSON file and the data files that it names, which must lie in its folder.

    Args:
      path: the JSON file; comments and trailing commas are allowed.
      feature_level: the level at which the operators are checked.
      maximum_bytes: what all resources together may take, and each tensor, as strides of 0 repeat it.

    Returns:
      Model, to be run with `Model.run`.

    Raises:
      DxDispatchError: saying where in the JSON, and what is wrong there.
      DescError: if feature_level is none.

    Source: https://github.com/microsoft/DirectML/blob/master/DxDispatch/doc/Guide.md
    """
    with told():
        check_is_level("dxdispatch.load", feature_level)
    path = Path(path)
    document = read_json(path)
    document.members({"$schema", "resources", "dispatchables", "commands"})
    resources: dict[str, Resource] = {}
    for name, value in _all(document.member("resources")).items():
        used = sum(resource.data.size for resource in resources.values())
        resources[name] = read_resource(value, path.parent, maximum_bytes - used)
    dispatchables = {
        name: read_dispatchable(value, resources, feature_level, maximum_bytes)
        for name, value in _all(document.member("dispatchables")).items()
    }
    values = document.member("commands").items()
    commands = tuple(read_command(value, resources, dispatchables) for value in values)
    options = {"feature_level": feature_level, "maximum_bytes": maximum_bytes}
    return Model(path, resources, dispatchables, commands, options)


def _all(value: Value) -> dict[str, Value]:
    """The members of an object, none of them null."""
    members = value.members()
    for name in value.value:
        if name not in members:
            raise value.fail(f"has {name!r}, which is null")
    return members
