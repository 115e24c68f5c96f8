"""The parameters of an operator's function: which are tensors, which are options, and what their roles are."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from jaxdml._directml.desc import Parameter, output_fields, page_name, parameters_of
from jaxdml._directml.feature_levels import table_at
from jaxdml._directml.fields import INPUT, Option, Tensor
from jaxdml._directml.page import Page
from jaxdml.errors import misfit

MISSING = inspect.Parameter.empty


class Parameters:
    """The parameters of an operator's function.

    Attributes:
      names: all parameters in order; tensors come first.
      tensors: all input tensors.
      quantization: the scales and zero points, each with its role.
      data: the tensors that are neither.
      optional: tensors that may be None.
      many: tensors that are tuples of arrays.
      options: options of the desc, each with its kind.
      named: parameters that are not tensors, all keyword-only.
      statics: the named parameters that affect the result.
      output: the page's name of the first output.
      output_types: all types that some feature level allows for the first output.
      output_zero_point: the parameter that holds the first output's zero point, or None.
    """

    def __init__(self, page: Page, function: Callable[..., Any], hints: Mapping[str, str]) -> None:
        self._operator, self._hints, self._signature = page.operator, hints, inspect.signature(function)
        defaults = {name: parameter.default for name, parameter in self._signature.parameters.items()}
        self._defaults = {name: default for name, default in defaults.items() if default is not MISSING}
        self.names = tuple(defaults)
        self._named_from = [frozenset(self.names[count:]) for count in range(len(self.names))]

        on_page = parameters_of(page.desc)
        tensors: dict[str, Parameter] = {}
        options: dict[str, Option] = {}
        for name in self.names:
            parameter = on_page.get(name)
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
        """Maps names to the arguments of a call or to defaults; much faster than `inspect.Signature.bind`.

        Raises:
          ArgumentTypeError: if the arguments do not fit the signature.
        """
        bound: dict[str, Any] = self._defaults | dict(zip(self.names, positional, strict=False)) | named
        if (
            len(positional) > len(self.tensors)
            or len(bound) != len(self.names)
            or (named and not named.keys() <= self._named_from[len(positional)])
        ):
            wrong = misfit(self._operator, self._signature, positional, named, self._hints)
            if wrong is not None:
                raise wrong
        return bound
