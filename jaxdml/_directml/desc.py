"""The tensor desc and the base class of operator descs.

Fields follow the order of directml.h, and have its names in snake case. Omitted fields are None, as in a
zero-initialized struct. Constructors do not validate; `jaxdml.validate` does.
"""

import collections
import dataclasses
import difflib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, dataclass_transform

import jax
import numpy as np

from jaxdml._directml.data_types import DataType, TensorFlags
from jaxdml._directml.fields import Option, Role, Tensor, count, counts, tensor, tensors
from jaxdml.errors import ArgumentTypeError


@functools.cache
def page_name(field: str) -> str:
    """DirectML's name of a field: AScaleTensor for a_scale_tensor."""
    return "".join(word.capitalize() for word in field.split("_"))


@functools.cache
def parameter_name(field: str) -> str:
    """The function's parameter for a field: a_scale for a_scale_tensor."""
    return field.removesuffix("_tensor").removesuffix("_tensors")


@functools.cache
def argument_name(tensor: str) -> str:
    """The function's parameter for the field that DirectML calls `tensor`: a_scale for AScaleTensor."""
    return parameter_name(re.sub("(?<!^)(?=[A-Z])", "_", tensor).lower())


def is_sequence(value: Any) -> bool:
    """Whether value is a list, a tuple, or a NumPy array of rank 1 or more."""
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _tuple(sequence: Any) -> Any:
    """A sequence as a hashable tuple of Python integers; any other value unchanged. `validate` checks the result."""
    if not is_sequence(sequence):
        return sequence
    return tuple(_integer(item) for item in sequence)


def _integer(value: Any) -> Any:
    """A NumPy integer as a Python integer; any other value unchanged."""
    return int(value) if isinstance(value, np.integer) else value


@dataclasses.dataclass(frozen=True)
class TensorDesc:
    """DML_BUFFER_TENSOR_DESC.

    Attributes:
      data_type: the element type.
      sizes: the number of elements in each of 1 to 8 dimensions, at least 1.
      strides: the step from one index of a dimension to the next, in elements; None means packed, and a stride
        of 0 repeats an entry.
      flags: OWNED_BY_DML marks a tensor that is bound once, when the operator is initialized.
      total_tensor_size_in_bytes: the size of the buffer in bytes; None means the minimum.
      guaranteed_base_offset_alignment: in bytes; 0, or a power of two that is at least the size of an element.
    """

    data_type: DataType
    sizes: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    flags: TensorFlags = TensorFlags.NONE
    total_tensor_size_in_bytes: int | None = None
    guaranteed_base_offset_alignment: int = 0

    def __post_init__(self) -> None:
        for field in ("sizes", "strides"):
            object.__setattr__(self, field, _tuple(getattr(self, field)))
        for field in ("total_tensor_size_in_bytes", "guaranteed_base_offset_alignment"):
            object.__setattr__(self, field, _integer(getattr(self, field)))


# Operator descs ------------------------------------------------------------------------------------------------------


@functools.singledispatch
def as_table(desc: Any) -> Any:
    """The table that shows a desc; the module `desc_table` registers the implementation."""
    raise TypeError(f"there is no table for {desc!r}")


class Slot(NamedTuple):
    """One tensor of a desc, present or absent.

    `name` is DirectML's name, with an index if the field is a tuple. `row` is the name of the tensor's row in the
    tensor-support tables. `argument` is the function's parameter for the tensor. If the tensor is a scale or zero
    point, `owner` is the tensor that it belongs to.
    """

    field: str
    name: str
    row: str
    role: Role
    tensor: Any
    argument: str
    owner: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorDesc:
    """Base class of operator descs. `operator` is the name of the desc's function.

    `print` and notebooks show a desc as a table of its tensors, with the types and ranks that the latest feature level
    allows.
    """

    operator: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for field, spec in fields_of(type(self)).items():
            value = getattr(self, field)
            if isinstance(spec, Tensor):
                value = tuple(value) if spec.is_many and isinstance(value, list) else value
            else:
                value = _integer(_tuple(value))
            object.__setattr__(self, field, value)

    def __str__(self) -> str:
        return str(as_table(self))

    def _repr_html_(self) -> str:
        html: str = as_table(self).html()
        return html

    def tensors(self) -> dict[str, Any]:
        """Maps DirectML's names, such as ``Name`` or in a tuple ``Name[0]``, to tensor descs, or to None if absent."""
        return {slot.name: slot.tensor for slot in slots(self)}

    def options(self) -> dict[str, Any]:
        """Maps DirectML's name of each field that is not a tensor to the field's value."""
        fields = fields_of(type(self)).items()
        return {page_name(field): getattr(self, field) for field, spec in fields if isinstance(spec, Option)}


def fields_of(desc: Any) -> dict[str, Tensor | Option]:
    """Maps the fields of a desc's class to their specs, in order."""
    return _fields_of(desc)


@functools.cache
def _fields_of(desc: Any) -> dict[str, Tensor | Option]:
    return {field.name: field.metadata["spec"] for field in dataclasses.fields(desc) if "spec" in field.metadata}


def slots(desc: OperatorDesc) -> Iterator[Slot]:
    """The tensors of a desc in order, with tuples flattened; an absent tuple yields one absent tensor."""
    kind: Any = type(desc)
    for field, name, spec in _tensor_fields(kind):
        value = getattr(desc, field)
        argument = parameter_name(field)
        if not spec.is_many or not isinstance(value, tuple) or not value:
            one = None if spec.is_many and isinstance(value, tuple) else value
            role = spec.roles[0]
            yield Slot(field, name, name, role, one, argument, getattr(desc, role.of, None))
            continue
        for place, one in enumerate(value):
            own = spec.parameters[place] if place < len(spec.parameters) else argument
            role = spec.role(place)
            yield Slot(field, f"{name}[{place}]", name, role, one, own, getattr(desc, role.of, None))


@functools.cache
def _tensor_fields(desc: Any) -> tuple[tuple[str, str, Tensor], ...]:
    """For each field that holds tensors: its name, DirectML's name, and its spec."""
    return tuple((field, page_name(field), spec) for field, spec in fields_of(desc).items() if isinstance(spec, Tensor))


def field_of(desc: Any, name: str) -> str:
    """The field of a desc's class that DirectML calls `name`."""
    return next(field for field in fields_of(desc) if page_name(field) == name)


def output_fields(desc: Any) -> tuple[str, ...]:
    """The fields of the output tensors, in order."""
    fields = fields_of(desc).items()
    return tuple(field for field, spec in fields if isinstance(spec, Tensor) and spec.role().is_output)


class Parameter(NamedTuple):
    """A parameter of an operator's function, described by the field that it sets.

    If the field holds a tuple and the parameter sets one tensor of it, `place` is the tensor's index.
    """

    field: str
    spec: Tensor | Option
    place: int | None = None

    @property
    def role(self) -> Role:
        assert isinstance(self.spec, Tensor)
        return self.spec.role(self.place or 0)

    @property
    def page_name(self) -> str:
        return page_name(self.field) + ("" if self.place is None else f"[{self.place}]")

    @property
    def is_many(self) -> bool:
        """Whether the function takes a tuple of arrays."""
        return isinstance(self.spec, Tensor) and self.spec.is_many and self.place is None


def parameters_of(desc: Any) -> dict[str, Parameter]:
    """Maps names to parameters, for all parameters that the function of a desc's class may have."""
    parameters: dict[str, Parameter] = {}
    for field, spec in fields_of(desc).items():
        names = spec.parameters if isinstance(spec, Tensor) else ()
        parameters |= {name: Parameter(field, spec, place) for place, name in enumerate(names)}
        if not names:
            parameters[parameter_name(field)] = Parameter(field, spec)
    return parameters


def one_or_named(desc: type[OperatorDesc], values: Any) -> Any:
    """The value itself if there is one output, else a named tuple of the values."""
    values = list(values)
    return values[0] if len(values) == 1 else desc.Outputs(*values)  # type: ignore[attr-defined]


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(tensor, tensors, counts, count))
def operator_desc[D: type[OperatorDesc]](desc: D) -> D:
    """Turns a desc's class into a frozen, keyword-only dataclass, with a named tuple `Outputs` for several outputs."""
    cls: Any = dataclasses.dataclass(frozen=True, kw_only=True)(desc)
    cls.__init__ = _with_advice(cls.__init__, cls)
    outputs = [parameter_name(field) for field in output_fields(cls)]
    if len(outputs) > 1:
        cls.Outputs = collections.namedtuple("Outputs", outputs, module=cls.__module__)  # type: ignore[misc]
        cls.Outputs.__doc__ = f"The outputs of {cls.operator}, in the order of its desc."
        cls.Outputs.__qualname__ = f"{cls.__qualname__}.Outputs"
        jax.export.register_namedtuple_serialization(cls.Outputs, serialized_name=f"jaxdml.{cls.__name__}.Outputs")
    return cls


def _with_advice(init: Callable[..., None], desc: type[OperatorDesc]) -> Callable[..., None]:
    names = list(fields_of(desc))

    @functools.wraps(init)
    def with_advice(self: Any, *positional: Any, **values: Any) -> None:
        kind = type(self).__name__
        if positional:
            text = f"{kind}: fields are given by name: write {kind}({names[0]}=...)"
            raise ArgumentTypeError(text, operator=desc.operator, tensor=page_name(names[0]), rule="by_name")
        for name in values:
            if name not in names:
                close = [field for field in names if parameter_name(field) == argument_name(name)]
                close = close or difflib.get_close_matches(name, names, n=1, cutoff=0.5)
                hint = f"did you mean {close[0]}?" if close else f"the fields are {', '.join(names)}"
                text = f"{kind}: there is no field {name}; {hint}"
                raise ArgumentTypeError(text, operator=desc.operator, tensor=name, rule="field", expected=tuple(names))
        init(self, **values)

    return with_advice
