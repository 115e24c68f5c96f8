"""Texts that identify the elements of fixed values, which are those that are computed without data.

A batch axis of params that are repeated for each input, or any other axis along which all elements are equal, does not
change a text: the axis may have any position and size, or be left out. So a text does not tell along which axes
elements differ; `places_of` does.
"""

import itertools
from typing import Any

from jaxdml.ptq._trace.equations import Equation, Program
from jaxdml.ptq._trace.fixed import AXES, ELEMENT_WISE, FixedValues
from jaxdml.ptq._trace.signature import bits, digest, params_text

# Primitives that keep the order of elements: a result whose varying axes have the input's sizes has the same elements.
SPREADING = ("broadcast_in_dim", "reshape", "squeeze", "tile")
KNOWN = frozenset((*AXES, *ELEMENT_WISE, *SPREADING))  # primitives whose parameters `_params` understands
ONE_AXIS, SEVERAL_AXES = ("axis", "dimension"), ("axes", "dimensions")  # parameters that hold axes
FOR_EACH_AXIS = ("padding_config", "reps", "start_indices", "strides")  # parameters that hold numbers for each axis


def contents_of(program: Program, fixed: FixedValues) -> dict[str, str]:
    """Maps each fixed value of a program to the text that identifies its elements."""
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


def _keeps_elements(equation: Equation, program: Program, fixed: FixedValues) -> bool:
    """Whether a result has the elements of its first input in the same order, apart from axes that do not vary."""
    if equation.name == "transpose":
        moved = [axis for axis in equation.params["permutation"] if axis in fixed.varying(equation.inputs[0])]
        return moved == sorted(moved)
    sizes = [_varying_sizes(name, program, fixed) for name in (*equation.inputs, *equation.outputs)]
    return equation.name in SPREADING and sizes[0] == sizes[-1]


def places_of(name: str, equation: Equation | None, program: Program, fixed: FixedValues) -> str:
    """The axes along which elements of a fixed value may differ: by their roles in a product that reads the value, else
    counted from the last axis, because JAX leaves out leading axes for some sizes.
    """
    groups: dict[str, Any] = {"": range(program.avals[name].ndim)}
    if equation is not None and equation.name == "dot_general":
        contracted, batch = (axes[equation.inputs.index(name)] for axes in equation.params["dimension_numbers"])
        free = [axis for axis in groups[""] if axis not in (*contracted, *batch)]
        groups = {"contracted": contracted, "batch": batch, "free": free}
    axes = sorted(fixed.varying(name))
    return str(
        [(role, group.index(axis) - len(group)) for axis in axes for role, group in groups.items() if axis in group]
    )


def _params(equation: Equation, program: Program, fixed: FixedValues) -> tuple[str, ...]:
    """The parameters of an equation, and the sizes on which the elements of its results depend, as texts."""
    values = (*equation.inputs, *equation.outputs)
    varying = [_varying_sizes(name, program, fixed) for name in values]
    if equation.name == "dot_general":
        return params_text(_of_product(equation, fixed)), str((varying, _sizes(equation, program, fixed)))
    if equation.name in KNOWN:
        return params_text(_of_axes(equation, program, fixed)), str((varying, _sizes(equation, program, fixed)))
    places = [places_of(name, None, program, fixed) for name in values]
    text = "" if equation.called else params_text(equation.params, in_full=True)
    return text, str((varying, _sizes(equation, program, fixed), places))


def _sizes(equation: Equation, program: Program, fixed: FixedValues) -> Any:
    """The sizes of axes that do not vary, but on which the elements of a result depend nevertheless."""
    params, shapes = equation.params, [program.avals[name].shape for name in (*equation.inputs, *equation.outputs)]
    if equation.name == "dot_general":
        return [shapes[0][axis] for axis in params["dimension_numbers"][0][0]]
    if equation.name == "gather":  # which indices are out of bounds
        return shapes[0]
    if equation.name == "concatenate":
        return [shape[params["dimension"]] for shape in shapes]
    if equation.name == "reshape":
        before, after, axes = shapes[0], shapes[1], fixed.varying(equation.inputs[0])
        kept = itertools.takewhile(lambda axis: axis not in axes and before[axis] == after[axis], range(len(after)))
        first = len(list(kept))  # leading axes that stay, such as a batch axis
        return before[first:], sorted(axis - first for axis in axes)
    if equation.name in KNOWN:
        return [shapes[0][axis] for axis in params.get("axes", ())]
    return shapes


def _of_axes(equation: Equation, program: Program, fixed: FixedValues) -> dict[str, Any]:
    """The parameters of an equation, with axes numbered among those that vary or are padded."""
    values = (*equation.inputs, *equation.outputs)
    rank = max(program.avals[name].ndim for name in values)
    aligned = [fixed.varying(name) for name in values if program.avals[name].ndim == rank]
    padded = {axis for axis, counts in enumerate(equation.params.get("padding_config", ())) if any(counts)}
    places = {axis: place for place, axis in enumerate(sorted(padded.union(*aligned)))}

    def numbered(key: str, value: Any) -> Any:
        if key in ONE_AXIS:
            return places.get(value)
        if key in SEVERAL_AXES and value is not None:
            return [places[axis] for axis in value if axis in places]
        return [value[axis] for axis in places] if key in FOR_EACH_AXIS and value is not None else value

    params = {key: numbered(key, value) for key, value in equation.params.items()}
    return params | {"aligned": [[places[axis] for axis in sorted(axes)] for axes in aligned]}


def _of_product(equation: Equation, fixed: FixedValues) -> dict[str, Any]:
    """The parameters of a product, with axes numbered among those that vary."""
    contracted, batch = equation.params["dimension_numbers"]
    places = [{axis: place for place, axis in enumerate(sorted(fixed.varying(name)))} for name in equation.inputs]
    pairs = [[(places[0].get(i), places[1].get(j)) for i, j in zip(*axes, strict=True)] for axes in (contracted, batch)]
    return {**equation.params, "dimension_numbers": (pairs[0], [pair for pair in pairs[1] if pair != (None, None)])}


def _varying_sizes(name: str, program: Program, fixed: FixedValues) -> list[Any]:
    """The sizes of a fixed value along the axes along which its elements may differ."""
    return [program.avals[name].shape[axis] for axis in sorted(fixed.varying(name))]
