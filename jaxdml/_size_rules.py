"""How the sizes of an operator's tensors depend on each other: the 'expected dimensions' of the pages."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from jaxdml._data_types import DataType
from jaxdml._shapes import Shape, output_extent, without_leading_ones
from jaxdml._tensor_rules import MAXIMUM_ELEMENTS, broken, check_uints, is_symbolic, is_uint, listed, shown
from jaxdml.descs import OperatorDesc, QuantizedLinearConvolutionDesc, TensorDesc, page_name, parameter_name
from jaxdml.feature_levels import OPTIONS


def _check_form(desc: OperatorDesc, name: str, forms: Sequence[Shape], exact_forms: Sequence[Shape] = ()) -> None:
    """The tensor, if present, has one of the forms, aligned to the right as in NumPy broadcasting, or an exact form."""
    tensor = desc.tensors()[name]
    if tensor is None or tensor.sizes in exact_forms:
        return
    if without_leading_ones(tensor.sizes) in [without_leading_ones(form) for form in forms]:
        return
    expected = tuple(dict.fromkeys((*forms, *exact_forms)))
    options = listed(list(form) for form in expected)
    text = f"has Sizes {list(tensor.sizes)}, expected {options}; reshape {parameter_name(name)}"
    raise broken(desc.operator, name, "sizes", text, expected=expected, received=tensor.sizes)


def _check_sizes(desc: OperatorDesc, name: str, expected: Shape, why: str) -> None:
    sizes = desc.tensors()[name].sizes
    if sizes != expected:
        text = f"has Sizes {list(sizes)}, expected {list(expected)}: {why}"
        raise broken(desc.operator, name, "sizes", text, expected=expected, received=sizes)


def _check_quantize(desc: OperatorDesc) -> None:
    tensors = desc.tensors()
    data, scale = tensors["InputTensor"].data_type, tensors["ScaleTensor"].data_type
    expected = DataType.FLOAT32 if data == DataType.INT32 else data
    if scale != expected:
        text = f"has data type {scale.name}, expected {expected.name} for an InputTensor of {data.name}"
        text += f"; write scale.astype(jnp.{expected.name.lower()})"
        raise broken(desc.operator, "ScaleTensor", "data_type", text, expected=expected, received=scale)


def _check_add(desc: OperatorDesc) -> None:
    one = (1,) * len(desc.tensors()["ATensor"].sizes)
    for name in desc.tensors():
        if "Scale" in name or "ZeroPoint" in name:
            _check_form(desc, name, [one])


def _check_matrix_multiply(desc: OperatorDesc) -> None:
    tensors = desc.tensors()
    *batch, m, k = tensors["ATensor"].sizes
    n = tensors["BTensor"].sizes[-1]
    _check_sizes(desc, "BTensor", (*batch, k, n), f"ATensor has Sizes {[*batch, m, k]}")
    ones = (1,) * len(batch)
    for name, form in {"A": (*ones, m, 1), "B": (*ones, 1, n), "Output": (*ones, m, 1)}.items():
        for parameter in ("ScaleTensor", "ZeroPointTensor"):
            _check_form(desc, name + parameter, [(*ones, 1, 1), form])
    _check_sizes(desc, "OutputTensor", (*batch, m, n), "that is A's rows by B's columns")


def _check_convolution_options(desc: QuantizedLinearConvolutionDesc, spatial: int) -> None:
    operator = desc.operator
    if not is_uint(desc.dimension_count) or desc.dimension_count != spatial:
        text = f"is {shown(desc.dimension_count)}, expected {spatial} for an InputTensor of rank {spatial + 2}"
        raise broken(
            operator, "DimensionCount", "dimension_count", text, expected=spatial, received=desc.dimension_count
        )
    least = OPTIONS[operator]
    for field in ("strides", "dilations", "start_padding", "end_padding"):
        name = page_name(field)
        check_uints(operator, name, "values", getattr(desc, field), length=spatial, least=least[name])
    groups: Any = desc.group_count
    if not is_uint(groups) or groups < least["GroupCount"]:
        text = f"is {shown(groups)}, expected an integer of at least 1"
        raise broken(operator, "GroupCount", "group_count", text, expected="at least 1", received=groups)


def _check_convolution(desc: OperatorDesc) -> None:
    assert isinstance(desc, QuantizedLinearConvolutionDesc)
    tensors: dict[str, TensorDesc] = desc.tensors()
    operator = desc.operator
    batch, in_channels, *extent = tensors["InputTensor"].sizes
    out_channels, filter_channels, *kernel = tensors["FilterTensor"].sizes
    _check_convolution_options(desc, len(extent))
    groups: Any = desc.group_count
    if in_channels % groups:
        text = f"is {shown(groups)}, which does not divide InputTensor's {in_channels} channels"
        raise broken(operator, "GroupCount", "channels", text, expected=f"divisor of {in_channels}", received=groups)
    if filter_channels * groups != in_channels:
        expected = in_channels // groups
        text = (
            f"has {filter_channels} input channels, expected {expected}: InputTensor's {in_channels} divided by "
            f"GroupCount {groups}; channels are dimension 1 of both, so transpose what is NHWC or HWIO, or in a desc "
            f"say it by Strides"
        )
        raise broken(operator, "FilterTensor", "channels", text, expected=expected, received=filter_channels)
    if out_channels % groups:
        text = f"has {out_channels} output channels, expected a multiple of GroupCount {groups}"
        raise broken(
            operator, "FilterTensor", "channels", text, expected=f"multiple of {groups}", received=out_channels
        )

    output = []
    options: Any = (desc.strides, desc.dilations, desc.start_padding, desc.end_padding)
    for size, window, stride, dilation, start, end in zip(extent, kernel, *options, strict=True):
        padded, dilated = size + start + end, 1 + (window - 1) * dilation
        if dilated > padded:
            fix = "pad it or shrink the kernel"
            text = f"spans {dilated} elements with dilation {dilation}, the padded input has {padded}; {fix}"
            raise broken(operator, "FilterTensor", "kernel", text, expected=f"at most {padded}", received=dilated)
        output.append(output_extent(size, window, stride, dilation, start, end))

    if padded_elements(desc) > MAXIMUM_ELEMENTS:
        text = f"makes an input of {padded_elements(desc)} elements, the limit is {MAXIMUM_ELEMENTS}; pad less"
        raise broken(operator, "StartPadding", "elements", text, expected=MAXIMUM_ELEMENTS, received=desc.start_padding)

    ones = (1,) * len(extent)
    # Beside {1, C, 1, 1} the page's tables allow rank 1 from 5.2, which has room for nothing but {C};
    # and a 3-D convolution may write its parameters as the 4-D one does. At other ranks these sizes say something
    # else: {1, 1, 1, C} would be one for each column of the input.
    per_channel = [(out_channels,), (1, out_channels, 1, 1)]
    for name in ("InputScaleTensor", "InputZeroPointTensor", "OutputScaleTensor", "OutputZeroPointTensor"):
        _check_form(desc, name, [(1, 1, *ones)])
    for name in ("FilterScaleTensor", "FilterZeroPointTensor"):
        _check_form(desc, name, [(1, 1, *ones), (1, out_channels, *ones)], exact_forms=per_channel)
    _check_form(desc, "BiasTensor", [(1, out_channels, *ones)])
    _check_sizes(desc, "OutputTensor", (batch, out_channels, *output), "the size that input, filter and options give")


def padded_elements(desc: QuantizedLinearConvolutionDesc) -> int:
    """Elements of the input with its padding; those of symbolic dimensions are not counted."""
    batch, channels, *extent = desc.tensors()["InputTensor"].sizes
    paddings: Any = (desc.start_padding, desc.end_padding)
    padded = (size + start + end for size, start, end in zip(extent, *paddings, strict=True))
    return math.prod(size for size in (batch, channels, *padded) if not is_symbolic(size))


def _check_nothing(desc: OperatorDesc) -> None:
    """Dequantize's sizes are all said by the constraints."""


CHECKS: dict[str, Callable[[OperatorDesc], None]] = {
    "element_wise_dequantize_linear": _check_nothing,
    "element_wise_quantize_linear": _check_quantize,
    "element_wise_quantized_linear_add": _check_add,
    "quantized_linear_matrix_multiply": _check_matrix_multiply,
    "quantized_linear_convolution": _check_convolution,
}
