"""Valid descs, ways to change them, and checks of how validate refuses invalid ones."""

import contextlib
import dataclasses
import re

import jaxdml as dml
from helpers.spec_pages import INTRODUCED
from helpers.spec_tables import ON_THE_PAGES, linked, table_at, types_of
from jaxdml import DataType

DEQUANTIZE, QUANTIZE, ADD, MATRIX_MULTIPLY, CONVOLUTION, *_ = ON_THE_PAGES
(
    MATRIX_MULTIPLY_INTEGER, CONVOLUTION_INTEGER, DYNAMIC_QUANTIZE, MATRIX_MULTIPLY_TO_FLOAT, POOLING, QUANTIZE_BLOCKS,
    DEQUANTIZE_BLOCKS,
) = ON_THE_PAGES[5:]  # fmt: skip

DESCS = {
    DEQUANTIZE: dml.ElementWiseDequantizeLinearDesc,
    QUANTIZE: dml.ElementWiseQuantizeLinearDesc,
    ADD: dml.ElementWiseQuantizedLinearAddDesc,
    MATRIX_MULTIPLY: dml.QuantizedLinearMatrixMultiplyDesc,
    CONVOLUTION: dml.QuantizedLinearConvolutionDesc,
    MATRIX_MULTIPLY_INTEGER: dml.MatrixMultiplyIntegerDesc,
    CONVOLUTION_INTEGER: dml.ConvolutionIntegerDesc,
    DYNAMIC_QUANTIZE: dml.DynamicQuantizeLinearDesc,
    MATRIX_MULTIPLY_TO_FLOAT: dml.MatrixMultiplyIntegerToFloatDesc,
    POOLING: dml.QuantizedLinearAveragePoolingDesc,
    QUANTIZE_BLOCKS: dml.QuantizeDesc,
    DEQUANTIZE_BLOCKS: dml.DequantizeDesc,
}
OPERATORS = tuple(DESCS)
PRODUCTS = (MATRIX_MULTIPLY, MATRIX_MULTIPLY_INTEGER, MATRIX_MULTIPLY_TO_FLOAT)
CONVOLUTIONS = (CONVOLUTION, CONVOLUTION_INTEGER)
BLOCKED = (QUANTIZE_BLOCKS, DEQUANTIZE_BLOCKS)

MATRICES = {
    "ATensor": (2, 3, 4, 5),
    "BTensor": (2, 3, 5, 6),
    "BiasTensor": (2, 3, 4, 6),
    "OutputTensor": (2, 3, 4, 6),
}
IMAGES = {
    "InputTensor": (2, 4, 7, 6),
    "FilterTensor": (6, 4, 3, 2),
    "BiasTensor": (1, 6, 1, 1),
    "OutputTensor": (2, 6, 5, 5),
}
POOLED = {"InputTensor": (2, 4, 7, 6, 3), "OutputTensor": (2, 4, 5, 5, 2)}
WINDOW = (3, 2, 2)
ELEMENTS = (2, 3, 1, 2, 1, 3, 1, 2, 1)
BLOCKS = (1, 3, 1, 1, 1, 3, 1, 2, 1)
DATA = ("InputTensor", "ATensor", "BTensor", "OutputTensor")  # of elementwise operators


def level(words):
    """The FeatureLevel of "4_0", or of "jaxdml"."""
    return dml.FeatureLevel[words.upper() if words == "jaxdml" else f"LEVEL_{words}"]


def field_of(tensor):
    """The field of a tensor: "a_scale_tensor" for "AScaleTensor"; "QuantizationTensors[1]" has that of its array."""
    return re.sub("(?<!^)(?=[A-Z])", "_", tensor.partition("[")[0]).lower()


def tensor_of(data_type, *sizes, **fields):
    return dml.TensorDesc(DataType[data_type], sizes, **fields)


def sizes_of(operator, tensor, rank):
    """Sizes that fit those of the operator's other tensors, at ranks that the operator allows and at others."""
    if operator in (DEQUANTIZE, QUANTIZE) or (operator in (ADD, DYNAMIC_QUANTIZE, *BLOCKED) and tensor in DATA):
        return ELEMENTS[:rank]
    if operator in BLOCKED:
        return BLOCKS[:rank]
    if operator in PRODUCTS and tensor in MATRICES:
        return ((1,) * rank + MATRICES[tensor])[4:] if rank > 4 else MATRICES[tensor][4 - rank :]
    images = IMAGES if operator in CONVOLUTIONS else POOLED if operator == POOLING else {}
    return (images.get(tensor, ()) + (1,) * rank)[:rank]


def changed(operator, tensors, name, *, data_type=None, rank=None):
    """{tensor: (data type, rank)} with another data type or rank at `name` and at those that must have the same."""
    kin = {
        "data_type": linked(operator, "DataType", name) if data_type else (),
        "rank": linked(operator, "DimensionCount", name) if rank is not None else (),
    }
    tensors = {
        other: (data_type if other in kin["data_type"] else old_type, rank if other in kin["rank"] else old_rank)
        for other, (old_type, old_rank) in tensors.items()
    }
    if operator == QUANTIZE and data_type and name in ("InputTensor", "ScaleTensor"):
        scale = "FLOAT32" if data_type == "INT32" and name == "InputTensor" else data_type
        tensors |= {
            "InputTensor": (data_type, tensors["InputTensor"][1]),
            "ScaleTensor": (scale, tensors["ScaleTensor"][1]),
        }
    return tensors


def example(operator, name=None, **changes):
    """{tensor: (data type, rank)} of a valid desc of rank 4, with the first level's types except for the changes."""
    first = INTRODUCED[operator]
    tensors = {tensor: (types_of(operator, first, tensor)[0], 4) for tensor in table_at(operator, first)}
    return changed(operator, tensors, name, **changes)


def options_of(operator, tensors):
    """The fields that are not tensors, for the desc of {tensor: (data type, rank) or None}."""
    if operator in BLOCKED:
        return {"quantization_type": dml.QuantizationType.SCALE_ZERO_POINT, "quantization_tensor_count": 2}
    if operator not in (*CONVOLUTIONS, POOLING):
        return {}
    spatial = max((tensors["InputTensor"] or (None, 0))[1] - 2, 0)
    each = {"strides": 1, "dilations": 1, "start_padding": 0, "end_padding": 0}
    others = {"group_count": 1}
    if operator == POOLING:
        others = {"window_size": (WINDOW + (1,) * spatial)[:spatial], "include_padding": False}
    return {"dimension_count": spatial, **{name: (value,) * spatial for name, value in each.items()}, **others}


def desc_of(operator, tensors, **fields):
    """The desc of {tensor: (data type, rank) or None}; `fields` override its own."""
    made = options_of(operator, tensors)
    for name, tensor in tensors.items():
        desc = tensor and tensor_of(tensor[0], *sizes_of(operator, name, tensor[1]))
        made[field_of(name)] = (*made.get(field_of(name), ()), desc) if "[" in name else desc
    return DESCS[operator](**{**made, **fields})


def put(desc, name, value):
    """The desc with `value` in place of a tensor, which may be one of several in a field."""
    field, places = field_of(name), re.findall(r"\[(\d+)\]", name)
    if places:
        values = list(getattr(desc, field))
        values[int(places[0])] = value
        value = tuple(values)
    return dataclasses.replace(desc, **{field: value})


def without(desc, *names):
    """The desc without the named optional tensors."""
    for name in names:
        if "[" in name:  # the last of several
            kind, own = dml.QuantizationType.SCALE, desc.quantization_tensors[:-1]
            changes = {"quantization_type": kind, "quantization_tensor_count": 1, "quantization_tensors": own}
            desc = dataclasses.replace(desc, **changes)
        else:
            desc = put(desc, name, None)
    return desc


def may_be_absent(operator, name):
    """Whether a tensor is optional. Of several in a field, the first is a scale, the second an optional zero point."""
    return table_at(operator, "6_4")[name].optional or name.endswith("[1]")


def right(operator, rank=4, **fields):
    """A valid desc whose data has this rank; `fields` override its own."""
    data = "ATensor" if operator in (ADD, *PRODUCTS) else "InputTensor"
    return desc_of(operator, example(operator, data, rank=rank), **fields)


def validated(desc, *feature_level):
    """The outputs that validate returns, as a tuple; most operators have one."""
    outputs = dml.validate(desc, *feature_level)
    return tuple(outputs) if isinstance(outputs, tuple) else (outputs,)


def refusal(desc, *feature_level):
    """The DescError with which validate refuses desc."""
    try:
        dml.validate(desc, *feature_level)
    except dml.DescError as error:
        return error
    raise AssertionError(f"validate accepts {desc!r} at {feature_level or 'LATEST'}")


@contextlib.contextmanager
def case(*words):
    """One case of a loop: a failure inside is reported together with these words."""
    try:
        yield
    except BaseException as error:  # pytest's failures are not Exceptions
        error.add_note(f"case: {', '.join(map(str, words))}")
        raise


def assert_refused(desc, tensor, rule):
    """Asserts that validate refuses desc for breaking this rule, which no feature level would allow."""
    error = refusal(desc)
    assert (type(error), error.operator, error.tensor, error.rule) == (dml.DescError, desc.operator, tensor, rule)
    assert str(error).startswith(f"{desc.operator}: {tensor} ")
    assert error.minimum_feature_level is None
    return error


def linear(data_type, *sizes, **fields):
    """A dequantize desc whose input tensor has these fields."""
    float32 = tensor_of("FLOAT32", *sizes)
    return dml.ElementWiseDequantizeLinearDesc(
        input_tensor=tensor_of(data_type, *sizes, **fields), scale_tensor=float32, output_tensor=float32
    )


def f32(*sizes):
    return tensor_of("FLOAT32", *sizes)


def i8(*sizes):
    return tensor_of("INT8", *sizes)


def i32(*sizes):
    return tensor_of("INT32", *sizes)
