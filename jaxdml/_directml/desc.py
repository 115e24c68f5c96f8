"""Descs: the tensor desc, and the base of the operator descs.

Fields stand in the order of directml.h, under the page's names in snake case. A desc holds what it was given; whether
that is right is decided in one place, `jaxdml.validate`. Fields left out are None, as in a zero-initialised struct.
"""

import collections
import dataclasses
import difflib
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, dataclass_transform

import numpy as np

from jaxdml._directml.data_types import DataType, TensorFlags
from jaxdml._directml.fields import Option, Role, Tensor, count, counts, tensor, tensors
from jaxdml.errors import ArgumentTypeError


@functools.cache
def page_name(field: str) -> str:
    """The page's name of a field: ``a_scale_tensor`` is ``AScaleTensor``."""
    return "".join(word.capitalize() for word in field.split("_"))


@functools.cache
def parameter_name(field: str) -> str:
    """What the functions call a tensor: ``a_scale_tensor`` is ``a_scale``."""
    return field.removesuffix("_tensor").removesuffix("_tensors")


@functools.cache
def argument_name(tensor: str) -> str:
    """What the functions call a tensor of the page: ``AScaleTensor`` is ``a_scale``."""
    return parameter_name(re.sub("(?<!^)(?=[A-Z])", "_", tensor).lower())


def is_sequence(value: Any) -> bool:
    """Whether value can stand for one of directml.h's arrays; a NumPy array of rank 0 cannot."""
    return isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _tuple(sequence: Any) -> Any:
    """A sequence as a hashable tuple of Python integers; anything else as it is, for validate to judge."""
    if not is_sequence(sequence):
        return sequence
    return tuple(_integer(item) for item in sequence)


def _integer(value: Any) -> Any:
    """A NumPy integer as a Python one; anything else as it is."""
    return int(value) if isinstance(value, np.integer) else value


@dataclasses.dataclass(frozen=True)
class TensorDesc:
    """DML_BUFFER_TENSOR_DESC.

    Attributes:
      data_type: the element type.
      sizes: elements in each dimension, 1 to 8 of them, none zero.
      strides: elements from one entry of a dimension to the next; None is packed, 0 repeats the dimension.
      flags: OWNED_BY_DML marks a tensor that is bound once, when the operator is initialised.
      total_tensor_size_in_bytes: bytes of the buffer; None is the minimum.
      guaranteed_base_offset_alignment: bytes; 0 or a power of two, at least an element.
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
    """The table that shows a desc. Descs do not know how: `desc_table`, which imports them, says it."""
    raise TypeError(f"no table shows {desc!r}")


class Slot(NamedTuple):
    """A place for one tensor in a desc.

    `name` is the page's, with an index if the field holds several; `row` is its row of a tensor-support table;
    `argument` is what a caller of the function writes.
    """

    field: str
    name: str
    row: str
    role: Role
    tensor: Any
    argument: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class OperatorDesc:
    """Base of the operator descs. `operator` is the name of the function that a desc stands for.

    Printed, and at the end of a notebook's cell, a desc is a table of its tensors and what the latest level allows.
    """

    operator: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for field, is_ in fields_of(type(self)).items():
            value = getattr(self, field)
            if isinstance(is_, Tensor):
                value = tuple(value) if is_.is_many and isinstance(value, list) else value
            else:
                value = _integer(_tuple(value))
            object.__setattr__(self, field, value)

    def __str__(self) -> str:
        return str(as_table(self))

    def _repr_html_(self) -> str:
        html: str = as_table(self).html()
        return html

    def tensors(self) -> dict[str, Any]:
        """The tensor descs by page name, None where absent; those of a tuple as ``Name[0]``, ``Name[1]``."""
        return {slot.name: slot.tensor for slot in slots(self)}

    def options(self) -> dict[str, Any]:
        """What is no tensor, by page name."""
        fields = fields_of(type(self)).items()
        return {page_name(field): getattr(self, field) for field, is_ in fields if isinstance(is_, Option)}


def fields_of(desc: Any) -> dict[str, Tensor | Option]:
    """What the fields of a desc's class are, in order."""
    return _fields_of(desc)


@functools.cache
def _fields_of(desc: Any) -> dict[str, Tensor | Option]:
    return {field.name: field.metadata["is"] for field in dataclasses.fields(desc) if "is" in field.metadata}


def slots(desc: OperatorDesc) -> Iterator[Slot]:
    """The tensors of a desc in order, those of tuples one by one; an absent field is one absent tensor."""
    kind: Any = type(desc)
    for field, name, is_ in _tensor_fields(kind):
        value = getattr(desc, field)
        argument = parameter_name(field)
        if not is_.is_many or not isinstance(value, tuple) or not value:
            one = None if is_.is_many and isinstance(value, tuple) else value
            yield Slot(field, name, name, is_.roles[0], one, argument)
            continue
        for place, one in enumerate(value):
            own = is_.parameters[place] if place < len(is_.parameters) else argument
            yield Slot(field, f"{name}[{place}]", name, is_.role(place), one, own)


@functools.cache
def _tensor_fields(desc: Any) -> tuple[tuple[str, str, Tensor], ...]:
    """The fields that hold tensors, with their names on the page."""
    return tuple((field, page_name(field), is_) for field, is_ in fields_of(desc).items() if isinstance(is_, Tensor))


def field_of(desc: Any, name: str) -> str:
    """The field of a desc's class that has this name on the page."""
    return next(field for field in fields_of(desc) if page_name(field) == name)


def output_fields(desc: Any) -> tuple[str, ...]:
    """The fields of the tensors that an operator writes, in order."""
    fields = fields_of(desc).items()
    return tuple(field for field, is_ in fields if isinstance(is_, Tensor) and is_.role().is_output)


class Parameter(NamedTuple):
    """What a parameter of an operator's function stands for: a field of its desc, or a place in a field's tuple."""

    field: str
    is_: Tensor | Option
    place: int | None = None

    @property
    def role(self) -> Role:
        """Of a tensor."""
        assert isinstance(self.is_, Tensor)
        return self.is_.role(self.place or 0)

    @property
    def page_name(self) -> str:
        return page_name(self.field) + ("" if self.place is None else f"[{self.place}]")

    @property
    def is_many(self) -> bool:
        """Whether the function takes a tuple of arrays."""
        return isinstance(self.is_, Tensor) and self.is_.is_many and self.place is None


def parameters_of(desc: Any) -> dict[str, Parameter]:
    """What an operator's function may take, by name: the fields of its desc, and places of those with several names."""
    parameters: dict[str, Parameter] = {}
    for field, is_ in fields_of(desc).items():
        names = is_.parameters if isinstance(is_, Tensor) else ()
        parameters |= {name: Parameter(field, is_, place) for place, name in enumerate(names)}
        if not names:
            parameters[parameter_name(field)] = Parameter(field, is_)
    return parameters


def one_or_named(desc: type[OperatorDesc], values: Any) -> Any:
    """What stands for an operator's outputs: the value itself if there is one, else a named tuple."""
    values = list(values)
    return values[0] if len(values) == 1 else desc.Outputs(*values)  # type: ignore[attr-defined]


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(tensor, tensors, counts, count))
def operator_desc[D: type[OperatorDesc]](desc: D) -> D:
    """Makes a frozen dataclass of an operator desc, whose fields are given by name; with several outputs, `Outputs`."""
    made: Any = dataclasses.dataclass(frozen=True, kw_only=True)(desc)
    made.__init__ = _with_advice(made.__init__, made)
    outputs = output_fields(made)
    if len(outputs) > 1:
        named = [parameter_name(field) for field in outputs]
        made.Outputs = collections.namedtuple("Outputs", named)  # type: ignore[misc] # its names are known here
        made.Outputs.__doc__ = f"The outputs of {made.operator}, in the order of its desc."
        made.Outputs.__qualname__ = f"{made.__qualname__}.Outputs"
        made.Outputs.__module__ = made.__module__
    return made


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
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
                text = f"{kind}: there is no field {name}; {hint}"
                raise ArgumentTypeError(text, operator=desc.operator, tensor=name, rule="field", expected=tuple(names))
        init(self, **values)

    return with_advice
