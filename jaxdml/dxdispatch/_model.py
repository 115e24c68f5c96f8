"""Models: resources, dispatchables and commands. `load` checks the whole model; `run` runs it."""

import dataclasses
import functools
import numbers
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.json_values import Value
from jaxdml._directml.messages import raising_desc_errors
from jaxdml._directml.validate import check_is_level
from jaxdml.dxdispatch._commands import Command, State, WriteFile, read_command
from jaxdml.dxdispatch._dispatchables import Dispatchable, read_dispatchable
from jaxdml.dxdispatch._files import read_json
from jaxdml.dxdispatch._paths import folded
from jaxdml.dxdispatch._resources import Resource, read_resource
from jaxdml.errors import ArgumentTypeError, api_boundary, path_of


@dataclasses.dataclass(frozen=True, repr=False)
class Model:
    """A DxDispatch model, which `load` returns. Only `run` checks the paths that the model writes to.

    Attributes:
      path: the JSON file.
      resources: the initial buffers, keyed by name.
      dispatchables: the compiled operators, keyed by name.
      commands: the steps of `run`, in order.
      options: the keyword arguments of `load`.
    """

    path: Path
    resources: dict[str, Resource]
    dispatchables: dict[str, Dispatchable]
    commands: tuple[Command, ...]
    options: Mapping[str, Any]

    def __reduce__(self) -> Any:
        """Pickles the arguments of `load`; unpickling reads the files again."""
        return functools.partial(load, **self.options), (self.path,)

    def __repr__(self) -> str:
        resources, dispatchables = ", ".join(self.resources), ", ".join(self.dispatchables)
        parts = f"resources {resources}", f"dispatchables {dispatchables}", f"{len(self.commands)} commands"
        return f"Model({self.path.name}: {'; '.join(parts)})"

    @api_boundary
    def run(
        self, *, output_dir: str | Path | None = None, show: Callable[[str], object] = print
    ) -> dict[str, np.ndarray]:
        """Initializes the operators and executes the commands. Each run starts from the initial values.

        Args:
          output_dir: the folder for writeFile; None means the model's folder.
          show: receives the output of each print command, one or more lines.

        Returns:
          The final resources, keyed by name: arrays of rank 1 with the type of the initial values; uint8 if the initial
          values have several types or 4-bit elements.

        Raises:
          DxDispatchError: before any command runs, if an output file is outside the folder or is an input file; after
            the earlier commands have run, if a file cannot be written.
        """
        buffers = {name: resource.data.copy() for name, resource in self.resources.items()}
        read_from = [self.path.resolve(), *(r.source for r in self.resources.values() if r.source)]
        state = State(
            resources=self.resources,
            buffers=buffers,
            persistent={name: dispatchable.initialize(buffers) for name, dispatchable in self.dispatchables.items()},
            folder=self.path.parent if output_dir is None else path_of("output_dir", output_dir),
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
    """Reads a DxDispatch model: a JSON file, and data files in the same folder.

    Args:
      path: the JSON file; comments and trailing commas are allowed.
      feature_level: the level whose rules apply to the operators.
      maximum_bytes: the limit for all resources together, and for each tensor, including repeated elements and padding.

    Returns:
      The model.

    Raises:
      DxDispatchError: if the model is invalid; the error gives the path in the JSON.
      DescError: if path is not a path, feature_level not a FeatureLevel, or maximum_bytes not an integer.

    Source: https://github.com/microsoft/DirectML/blob/master/DxDispatch/doc/Guide.md
    """
    with raising_desc_errors():
        check_is_level("dxdispatch.load", feature_level)
    if not isinstance(maximum_bytes, numbers.Integral):
        raise ArgumentTypeError(f"maximum_bytes is {maximum_bytes!r}, expected an integer")
    path = path_of("path", path)
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
    """The members of an object, where null is an error."""
    members = value.members()
    for name in value.value:
        if name not in members:
            raise value.fail(f"has {name!r}, which is null")
    return members
