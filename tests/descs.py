"""Descs that are right, and ways to change them; what validate says of wrong ones."""

import contextlib
import re

import jaxdml as dml
from jaxdml import DataType
from spec_pages import INTRODUCED
from spec_tables import OPERATORS, linked, table_at

DEQUANTIZE, QUANTIZE, ADD, MATRIX_MULTIPLY, CONVOLUTION = OPERATORS

DESCS = {
    DEQUANTIZE: dml.ElementWiseDequantizeLinearDesc,
    QUANTIZE: dml.ElementWiseQuantizeLinearDesc,
    ADD: dml.ElementWiseQuantizedLinearAddDesc,
    MATRIX_MULTIPLY: dml.QuantizedLinearMatrixMultiplyDesc,
    CONVOLUTION: dml.QuantizedLinearConvolutionDesc,
}

MATRICES = {"ATensor": (2, 3, 4, 5), "BTensor": (2, 3, 5, 6), "OutputTensor": (2, 3, 4, 6)}
IMAGES = {
    "InputTensor": (2, 4, 7, 6),
    "FilterTensor": (6, 4, 3, 2),
    "BiasTensor": (1, 6, 1, 1),
    "OutputTensor": (2, 6, 5, 5),
}
ELEMENTS = (2, 3, 1, 2, 1, 3, 1, 2, 1)
LINEAR_TENSORS = ("InputTensor", "ScaleTensor", "ZeroPointTensor", "OutputTensor")


def level(words):
    """The FeatureLevel of "4_0", or of "jaxdml"."""
    return dml.FeatureLevel[words.upper() if words == "jaxdml" else f"LEVEL_{words}"]


def field_of(tensor):
    """The field of "AScaleTensor": "a_scale_tensor"."""
    return re.sub("(?<!^)(?=[A-Z])", "_", tensor).lower()


def tensor_of(data_type, *sizes, **fields):
    return dml.TensorDesc(DataType[data_type], sizes, **fields)


def sizes_of(operator, tensor, rank):
    """Sizes that fit those of the operator's other tensors, at ranks that the operator has and at others."""
    if operator in (DEQUANTIZE, QUANTIZE) or (operator == ADD and tensor in ("ATensor", "BTensor", "OutputTensor")):
        return ELEMENTS[:rank]
    if operator == MATRIX_MULTIPLY and tensor in MATRICES:
        return ((1,) * rank + MATRICES[tensor])[4:] if rank > 4 else MATRICES[tensor][4 - rank :]
    if operator == CONVOLUTION and tensor in IMAGES:
        return (IMAGES[tensor] + (1,) * rank)[:rank]
    return (1,) * rank


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
    """{tensor: (data type, rank)} of a right desc of rank 4, with the first level's types but for the changes."""
    tensors = {tensor: (row.data_types[0], 4) for tensor, row in table_at(operator, INTRODUCED[operator]).items()}
    return changed(operator, tensors, name, **changes)


def desc_of(operator, tensors, **fields):
    """The desc of {tensor: (data type, rank) or None}; fields go over it."""
    if operator == CONVOLUTION:
        spatial = max((tensors["InputTensor"] or (None, 0))[1] - 2, 0)
        each = {"strides": 1, "dilations": 1, "start_padding": 0, "end_padding": 0}
        options = {name: (value,) * spatial for name, value in each.items()}
        fields = {"dimension_count": spatial, "group_count": 1, **options, **fields}
    descs = {
        field_of(name): tensor and tensor_of(tensor[0], *sizes_of(operator, name, tensor[1]))
        for name, tensor in tensors.items()
    }
    return DESCS[operator](**{**descs, **fields})


def right(operator, rank=4, **fields):
    """A right desc, its data of a rank; fields go over it."""
    data = "ATensor" if operator in (ADD, MATRIX_MULTIPLY) else "InputTensor"
    return desc_of(operator, example(operator, data, rank=rank), **fields)


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
    except BaseException as error:  # a failure of pytest is no Exception
        error.add_note(f"case: {', '.join(map(str, words))}")
        raise


def assert_refused(desc, tensor, rule):
    """validate refuses desc for breaking this rule, at no level's fault, and says so."""
    error = refusal(desc)
    assert (type(error), error.operator, error.tensor, error.rule) == (dml.DescError, desc.operator, tensor, rule)
    assert str(error).startswith(f"{desc.operator}: {tensor} ")
    assert error.minimum_feature_level is None
    return error


def linear(data_type, *sizes, **fields):
    """A dequantize desc, the fields at its input."""
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
