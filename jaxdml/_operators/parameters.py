"""The parameters of an operator's function, by what they stand for on its page."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from jaxdml._directml.desc import Parameter, output_fields, page_name, parameters_of
from jaxdml._directml.feature_levels import table_at
from jaxdml._directml.fields import INPUT, Option, Tensor
from jaxdml._directml.page import Page
from jaxdml.errors import ArgumentTypeError, DescError

MISSING = inspect.Parameter.empty
NEAR = 0.55  # how much of a name must be the same: groups is meant for group_count, dtype for output_dtype


class Parameters:
    """What the names in a function's signature are.

    Attributes:
      names: all of them, in order; tensors come first.
      tensors: those of input tensors: `data`, and `quantization` with their roles as scales and zero points.
      optional, many: the tensors that may be None, and those that are tuples of arrays.
      options: those of the desc's options, with what these are.
      named: all that are no tensors; `statics`, those of them that the result depends on.
      output: the page's name of the first output; `output_types`, what it may be at any level;
        `output_zero_point`, the parameter that is its zero point, if there is one.
    """

    def __init__(self, page: Page, function: Callable[..., Any], hints: Mapping[str, str]) -> None:
        self._operator, self._hints, self._signature = page.operator, hints, inspect.signature(function)
        self._defaults = {name: parameter.default for name, parameter in self._signature.parameters.items()}
        self.names = tuple(self._defaults)

        known = parameters_of(page.desc)
        tensors: dict[str, Parameter] = {}
        options: dict[str, Option] = {}
        for name in self.names:
            parameter = known.get(name)
            if parameter is not None and isinstance(parameter.spec, Tensor):
                tensors[name] = parameter
            elif parameter is not None and isinstance(parameter.spec, Option):
                options[name] = parameter.spec
        roles = {name: parameter.role for name, parameter in tensors.items()}
        rows, output = table_at(page.support, max(page.support)), output_fields(page.desc)[0]

        self.tensors = tuple(tensors)
        self.data = tuple(name for name, role in roles.items() if not role.parameter)
        self.quantization = tuple((name, role) for name, role in roles.items() if role.parameter)
        self.optional = {name for name, of in tensors.items() if of.place or rows[page_name(of.field)].optional}
        self.many = {name for name, parameter in tensors.items() if parameter.is_many}
        self.options = tuple(options.items())
        self.named = tuple(name for name in self.names if name not in tensors)
        self.statics = tuple(name for name in self.named if name != "feature_level")
        self.output, self.output_types = page_name(output), rows[page_name(output)].data_types
        zero_points = (name for name, role in self.quantization if role == INPUT.zero_point_of(output))
        self.output_zero_point = next(zero_points, None)

    def bound(self, positional: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, with the defaults."""
        bound: dict[str, Any] = self._defaults | dict(zip(self.names, positional, strict=False)) | named
        if (
            len(positional) > len(self.tensors)
            or len(bound) > len(self.names)
            or not named.keys().isdisjoint(self.names[: len(positional)])
            or any(value is MISSING for value in bound.values())
        ):
            try:
                self._signature.bind(*positional, **named)
            except TypeError as error:
                raise self._no_call(named, error) from None
        return bound

    def _no_call(self, named: dict[str, Any], misfit: TypeError) -> DescError:
        for name in named:
            if name not in self.names:
                close = difflib.get_close_matches(name, self.names, n=1, cutoff=NEAR)
                known = f"did you mean {close[0]}?" if close else f"there are {', '.join(self.names)}"
                text = f"{self._operator}: there is no argument {name}; {self._hints.get(name, known)}"
                return ArgumentTypeError(text, operator=self._operator, tensor=name, rule="argument")
        takes = f"it takes {', '.join(self.tensors)}, and by name alone {', '.join(self.named)}"
        text = f"{self._operator}: {misfit}; {takes}"
        return ArgumentTypeError(text, operator=self._operator, rule="argument", expected=self.names)
