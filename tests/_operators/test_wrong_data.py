"""Wrong calls: data that are not arrays, or of a type that the operator does not support."""

import numbers

import jax.numpy as jnp
import numpy as np

from _operators.calls import DATA, GOOD, OF_FLOATS, at_fault, batches, conversion, page_name, problems, upper
from helpers.descs import ADD, CONVOLUTION, DEQUANTIZE
from helpers.spec_tables import table_at
from jaxdml import ArgumentTypeError, DescError

WEIGHTS = {
    "filter": "quantize it first: filter, filter_scale = jaxdml.ptq.quantize_weights(filter, axis=0)",
    "b": "quantize it first: b, b_scale = jaxdml.ptq.quantize_weights(b, axis=-1)",
}  # but b of a sum is not a weight


def any_type(operator, tensor):
    """All types that the operator supports here, as text; evaluated by Python, it gives the first."""
    written = " or ".join(f"jnp.{name.lower()}" for name in table_at(operator, "6_4")[tensor].data_types)
    assert eval(written) is not None
    return written


def types_of_numpy():
    """Types that DirectML has no name for."""
    for operator, names in DATA.items():
        for name in names:
            tensor, shape = page_name(name), GOOD[operator][name].shape
            error = DescError, tensor, "data_type"
            for dtype in (bool, np.complex64, "U1", object, ">i4"):
                said = f"{tensor} has type {np.dtype(dtype)}, which DirectML does not have; "
                real = ".real" if dtype == np.complex64 else ""
                said += "give numbers" if dtype == "U1" else f"write {name}{real}.astype({any_type(operator, tensor)})"
                yield f"{name} of {np.dtype(dtype)}", operator, {name: np.zeros(shape, dtype)}, error, said
            for dtype in (jnp.bfloat16, jnp.float8_e4m3fn):
                said = f"{tensor} has type {np.dtype(dtype)}, which DirectML does not have; "
                said += (
                    f"write {name}.astype(jnp.float32)"
                    if operator in OF_FLOATS
                    else WEIGHTS[name]
                    if operator != ADD and name in WEIGHTS
                    else f"quantize it first: element_wise_quantize_linear({name}.astype(jnp.float32), scale, "
                )
                yield f"{name} of {np.dtype(dtype)}", operator, {name: np.zeros(shape, dtype)}, error, said


WIDE = {jnp.int4: ".astype(jnp.int8)", jnp.uint4: ".astype(jnp.uint8)"}


def types_of_directml():
    """Types that DirectML has, but not here."""
    for operator, names in DATA.items():
        other = np.uint16 if operator in OF_FLOATS else np.float32
        for name in names:
            tensor, shape = page_name(name), GOOD[operator][name].shape
            for dtype in (np.float64, np.int64, np.uint64, jnp.int4, jnp.uint4, np.int16, np.int32, other):
                if upper(dtype) in table_at(operator, "6_4")[tensor].data_types:
                    continue
                said = f"{tensor} has data type {upper(dtype)}, feature level 6_4 allows "
                fix = f"; convert it with {name}.astype to a type that holds its values"
                if operator in OF_FLOATS and dtype == np.float64:
                    fix = f"; write {name}.astype(jnp.float32)"
                elif operator in OF_FLOATS and dtype not in (np.int64, np.uint64):
                    fix = f"; dequantize it first: element_wise_dequantize_linear({name}{WIDE.get(dtype, '')}, scale, "
                elif dtype in WIDE:
                    dequantizes = operator == DEQUANTIZE
                    fix = "; jaxdml.dequantize takes 4-bit types" if dequantizes else f"; write {name}{WIDE[dtype]}"
                elif np.issubdtype(dtype, np.floating):
                    fix = f"; quantize it first: element_wise_quantize_linear({name}, scale, zero_point, "
                    if operator != ADD and name in WEIGHTS:
                        fix = f"; {WEIGHTS[name]}"
                changes = {name: np.zeros(shape, dtype)}
                yield f"{name} of {upper(dtype)}", operator, changes, (DescError, tensor, "data_type"), said, fix
    error, fix = (DescError, "ATensor", "data_type"), "INT8 or UINT8; convert it with a.astype"
    yield "int16", ADD, {"a": np.zeros((2, 3), np.int16)}, error, "ATensor has data type INT16", fix
    changes = {"a": np.zeros((2, 3), np.float32), "a_zero_point": 3}
    yield "float with an int zero point", ADD, changes, error, "data type FLOAT32"
    bias = np.zeros(6, np.float32)
    error, said = (
        (DescError, "BiasTensor", "data_type"),
        "BiasTensor has data type FLOAT32, feature level 6_4 allows INT32; a bias is in units of "
        "input_scale * filter_scale: write jaxdml.ptq.quantize_bias(bias, input_scale, filter_scale)",
    )
    yield "bias of float32", CONVOLUTION, {"bias": bias}, error, said
    said = "allows INT32; if all values of bias fit INT32, write bias.astype(jnp.int32)"
    yield "bias of int4", CONVOLUTION, {"bias": bias.astype(jnp.int4)}, error, "BiasTensor has data type INT4", said


def no_arrays():
    """Objects that are not arrays; lists are not converted."""
    for operator, names in DATA.items():
        for name in names:
            tensor = page_name(name)
            for wrong in ([[0, 1]], (0, 1), "data", 3, 0.5, 1j, np.uint8(3), {}, jnp.uint8, object()):
                kind = (wrong if isinstance(wrong, type) else type(wrong)).__name__
                error = ArgumentTypeError, tensor, "array"
                call = f"jnp.asarray({name}, dtype), where dtype is {any_type(operator, tensor)}"
                fix = conversion(name, wrong, call)
                if isinstance(wrong, numbers.Number) and name != names[0]:  # as if tensors were in another order
                    fix = f"; pass the tensors by name: the order is {names[0]}, "
                case = f"{name} a {type(wrong).__module__} {kind}"
                yield case, operator, {name: wrong}, error, f"{tensor} is ", kind, fix
            error, said = (ArgumentTypeError, tensor, "required"), f"{tensor} is None, but required; give {name}"
            yield f"{name} None", operator, {name: None}, error, said
    error, said = (
        (ArgumentTypeError, "BiasTensor", "array"),
        "BiasTensor is a list, expected an array; write jnp.asarray(bias, dtype=jnp.int32)",
    )
    yield "bias a list", CONVOLUTION, {"bias": [0] * 6}, error, said


@batches(types_of_numpy)
def test_types_that_directml_does_not_have(cases):
    assert problems(cases) == ""
    assert at_fault(cases) > len(cases) / 3


@batches(types_of_directml)
def test_types_that_directml_does_not_take_here(cases):
    assert problems(cases) == ""
    assert at_fault(cases) > len(cases) / 3


@batches(no_arrays)
def test_what_is_no_array(cases):
    assert problems(cases) == ""
