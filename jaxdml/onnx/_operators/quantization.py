"""Between floats and integers, and products in integers: what DirectML has."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdml._quantized import directml
from jaxdml._quantized.kinds import FILTER, MATRIX, prepared_filter, prepared_matrix
from jaxdml.errors import ModelError
from jaxdml.onnx._operators.convolution import conv_options
from jaxdml.onnx._table import BYTE, MICROSOFT, NIBBLE, SCALE, operator
from jaxdml.onnx._types import dtype_of

Array = Any
REAL = frozenset({"float32", "float16"})
QUANTIZABLE = REAL | {"int32"}
QUANTIZED_TYPES = frozenset({"uint8", "int8", "uint16", "int16"}) | NIBBLE


def _quantize_options(
    *, axis: int = 1, block_size: int = 0, output_dtype: int = 0, precision: int = 0, saturate: int = 1
) -> dict[str, Any]:
    """`saturate` is about float8; a `precision` other than float32 would change the formula."""
    if precision not in (0, 1):
        raise ModelError("attribute 'precision' asks for other than float32, in which jaxdml divides")
    dtype = dtype_of(output_dtype, "attribute 'output_dtype'") if output_dtype else None
    return {"axis": axis, "block_size": block_size, "dtype": dtype}


def quantize_linear(
    x: Array, scale: Array, zero_point: Array | None = None, *, axis: int, block_size: int, dtype: Any
) -> Array:  # fmt: skip
    """Floats in steps of a scale."""
    if zero_point is not None:
        dtype = zero_point.dtype
    if x.dtype != scale.dtype and x.dtype != np.int32:
        raise ModelError(f"x is {x.dtype} and the scale {scale.dtype}, expected one type")
    return directml.to_integers(
        x, scale, zero_point, axis=axis, block_size=block_size, dtype=dtype or jnp.dtype("uint8")
    )


def _dequantize_options(*, axis: int = 1, block_size: int = 0, output_dtype: int = 0) -> dict[str, Any]:
    dtype = dtype_of(output_dtype, "attribute 'output_dtype'") if output_dtype else None
    return {"axis": axis, "block_size": block_size, "dtype": dtype}


def dequantize_linear(
    x: Array, scale: Array, zero_point: Array | None = None, *, axis: int, block_size: int, dtype: Any
) -> Array:  # fmt: skip
    """Steps of a scale as floats."""
    values = directml.to_floats(x, scale, zero_point, axis=axis, block_size=block_size)
    return values if dtype is None else values.astype(dtype)


@operator("DynamicQuantizeLinear", types=(SCALE,), kind="quantize_by_range")
def quantize_by_range(x: Array) -> tuple[Array, Array, Array]:
    """Floats in uint8 steps of a scale that their own range gives."""
    return directml.to_integers_by_range(x)


@functools.wraps(conv_options)
def _flat_conv_options(**attributes: Any) -> dict[str, Any]:
    """The options of a quantized convolution, whose images have at most two dimensions, as far as attributes say."""
    options = conv_options(**attributes)
    sizes = (options[name] for name in ("kernel_shape", "strides", "dilations", "padding"))
    rank = max((len(each) for each in sizes if isinstance(each, tuple)), default=0)
    if rank > 2:
        raise ModelError(f"its images have {rank} dimensions, supported are 1 and 2")
    return options


for _domain in ("", MICROSOFT):
    operator("QuantizeLinear", domain=_domain, types=(QUANTIZABLE, REAL, QUANTIZED_TYPES), options=_quantize_options,
             kind="quantize_linear", is_exact=True)(quantize_linear)  # fmt: skip
    operator("DequantizeLinear", domain=_domain, types=(QUANTIZED_TYPES | {"int32"}, REAL),
             options=_dequantize_options, kind="dequantize_linear")(dequantize_linear)  # fmt: skip
operator("QLinearConv", types=(BYTE, SCALE, BYTE, BYTE, SCALE, BYTE, SCALE, BYTE), options=_flat_conv_options,
         is_quantized=True, uniform=(5,), prepare=FILTER)(directml.convolution)  # fmt: skip
operator("QLinearMatMul", types=(BYTE, SCALE, BYTE, BYTE, SCALE, BYTE, SCALE, BYTE),
         is_quantized=True, uniform=(5,), prepare=MATRIX)(directml.product)  # fmt: skip
operator("ConvInteger", types=(BYTE, BYTE, BYTE, BYTE), options=_flat_conv_options,
         is_quantized=True, uniform=(3,), prepare={1: prepared_filter})(directml.integer_convolution)  # fmt: skip
operator("MatMulInteger", types=(BYTE, BYTE, BYTE, BYTE),
         is_quantized=True, uniform=(3,), prepare={1: prepared_matrix})(directml.integer_product)  # fmt: skip
operator("MatMulIntegerToFloat", domain=MICROSOFT, types=(BYTE, BYTE, SCALE, SCALE, BYTE, BYTE, SCALE),
         kind="float_product", is_quantized=True, uniform=(5,),
         prepare={1: prepared_matrix})(directml.float_product)  # fmt: skip
