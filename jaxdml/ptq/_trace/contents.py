"""Texts that identify the elements of fixed values, which are those that are computed without data.

A batch axis of params that are repeated for each input, or any other axis along which all elements are equal, does not
change a text: the axis may have any position and size, or be left out.
"""

from typing import Any

import numpy as np

from jaxdml.ptq._trace.equations import Equation, Program
from jaxdml.ptq._trace.fixed import AXES, ELEMENT_WISE, FixedValues
from jaxdml.ptq._trace.signature import digest, params_text

# Primitives that keep the order of elements: a result whose varying axes have the input's sizes has the same elements.
SPREADING = ("broadcast_in_dim", "reshape", "squeeze", "tile")
KNOWN = frozenset((*AXES, *ELEMENT_WISE, *SPREADING))  # primitives whose parameters `_params` understands
ONE_AXIS, SEVERAL_AXES = ("axis", "dimension"), ("axes", "dimensions")  # parameters that hold axes
FOR_EACH_AXIS = ("padding_config", "reps", "start_indices", "strides")  # parameters that hold numbers for each axis


def contents_of(program: Program) -> dict[str, str]:
    """Maps each fixed value of a program to the text that identifies its elements."""
    fixed = FixedValues(program)
    contents = {name: name for name in program.params}
    contents |= {name: digest(repr(bits(value)).encode()) for name, value in program.constants.items()}
    for equation in program.equations:
        if not contents.keys() >= set(equation.inputs):
            continue
        if _keeps_elements(equation, program, fixed):
            contents[equation.outputs[0]] = contents[equation.inputs[0]]
            continue
        read = (equation.name, *_params(equation, program, fixed), *(contents[name] for name in equation.inputs))
        for place, name in enumerate(equation.outputs):
            contents[name] = digest("\n".join((*read, str(place))).encode())
    return contents


def bits(value: object) -> tuple[str, tuple[int, ...], bytes]:
    """Type, shape and bytes of an array."""
    array = np.asarray(value)
    return str(array.dtype), array.shape, array.tobytes()


def _keeps_elements(equation: Equation, program: Program, fixed: FixedValues) -> bool:
    """Whether a result has the elements of its first input in the same order, apart from axes that do not vary."""
    if equation.name == "transpose":
        moved = [axis for axis in equation.params["permutation"] if axis in fixed.varying(equation.inputs[0])]
        return moved == sorted(moved)
    sizes = [_varying_sizes(name, program, fixed) for name in (*equation.inputs, *equation.outputs)]
    return equation.name in SPREADING and sizes[0] == sizes[-1]


def _params(equation: Equation, program: Program, fixed: FixedValues) -> tuple[str, ...]:
    """The parameters of an equation, and the sizes on which the elements of its results depend, as texts."""
    values = (*equation.inputs, *equation.outputs)
    if equation.name == "dot_general":
        params, sizes = _of_product(equation, program, fixed)
    elif equation.name == "gather":
        params, sizes = dict(equation.params), list[Any]()
    elif equation.name in KNOWN:
        params, sizes = _of_axes(equation, program, fixed)
    else:
        return equation.params_text, str([program.avals[name].shape for name in values])
    return params_text(params), str([sizes, *(_varying_sizes(name, program, fixed) for name in values)])


def _of_axes(equation: Equation, program: Program, fixed: FixedValues) -> tuple[dict[str, Any], list[Any]]:
    """The parameters of an equation with axes numbered among the varying ones, and the sizes of the reduced axes."""
    values = (*equation.inputs, *equation.outputs)
    rank = max(program.avals[name].ndim for name in values)
    aligned = [fixed.varying(name) for name in values if program.avals[name].ndim == rank]
    places = {axis: place for place, axis in enumerate(sorted(frozenset[int]().union(*aligned)))}

    def numbered(key: str, value: Any) -> Any:
        if key in ONE_AXIS:
            return places.get(value)
        if key in SEVERAL_AXES and value is not None:
            return [places[axis] for axis in value if axis in places]
        return [value[axis] for axis in places] if key in FOR_EACH_AXIS and value is not None else value

    params = {key: numbered(key, value) for key, value in equation.params.items()}
    params["aligned"] = [[places[axis] for axis in sorted(axes)] for axes in aligned]
    return params, [program.avals[equation.inputs[0]].shape[axis] for axis in equation.params.get("axes", ())]


def _of_product(equation: Equation, program: Program, fixed: FixedValues) -> tuple[dict[str, Any], list[Any]]:
    """The parameters of a product with axes numbered among the varying ones, and the sizes of the contracted axes."""
    contracted, batch = equation.params["dimension_numbers"]
    places = [{axis: place for place, axis in enumerate(sorted(fixed.varying(name)))} for name in equation.inputs]
    pairs = [[(places[0].get(i), places[1].get(j)) for i, j in zip(*axes, strict=True)] for axes in (contracted, batch)]
    params = {**equation.params, "dimension_numbers": (pairs[0], [pair for pair in pairs[1] if pair != (None, None)])}
    return params, [program.avals[equation.inputs[0]].shape[axis] for axis in contracted[0]]


def _varying_sizes(name: str, program: Program, fixed: FixedValues) -> list[Any]:
    """The sizes of a fixed value along the axes along which its elements may differ."""
    return [program.avals[name].shape[axis] for axis in sorted(fixed.varying(name))]
