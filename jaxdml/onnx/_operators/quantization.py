"""Quantized operators: ONNX's own, and those that ONNX Runtime's quantizer writes in the domain com.microsoft."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdml._quantized import directml, kinds
from jaxdml._quantized.kinds import DIRECTML, FILTER, MATRIX, ONNXRUNTIME, prepared_filter, prepared_matrix
from jaxdml._quantized.onnxruntime import nbits
from jaxdml._quantized.onnxruntime.add import qlinear_add
from jaxdml._quantized.onnxruntime.gemm import qgemm
from jaxdml._quantized.onnxruntime.lookup import qlinear_concat, qlinear_leaky_relu, qlinear_sigmoid, qlinear_where
from jaxdml._quantized.onnxruntime.mul import qlinear_mul
from jaxdml._quantized.onnxruntime.pooling import qlinear_average_pool, qlinear_global_average_pool
from jaxdml._quantized.onnxruntime.softmax import qlinear_softmax
from jaxdml.errors import ModelError
from jaxdml.onnx._operators.convolution import Sizes, conv_options
from jaxdml.onnx._operators.pooling import average_pool_options
from jaxdml.onnx._table import BOOL, BYTE, MICROSOFT, NIBBLE, SCALE, operator
from jaxdml.onnx._tensors import dtype_of

Array = Any
REAL = frozenset({"float32", "float16"})
INT32 = frozenset({"int32"})
QUANTIZED_TYPES = frozenset({"uint8", "int8", "uint16", "int16"}) | NIBBLE


# Quantize and dequantize ---------------------------------------------------------------------------------------------


def _quantize_options(
    *, axis: int = 1, block_size: int = 0, output_dtype: int = 0, precision: int = 0, saturate: int = 1
) -> dict[str, Any]:
    """`saturate` concerns float8 only; a `precision` other than float32 would change the formula."""
    if precision not in (0, 1):
        raise ModelError("attribute 'precision' is not float32, the only supported precision of the division")
    return _dequantize_options(axis=axis, block_size=block_size, output_dtype=output_dtype)


def quantize_linear(
    x: Array, scale: Array, zero_point: Array | None = None, *, axis: int, block_size: int, dtype: Any,
    quantized: Callable[..., Array] = directml.to_integers,
) -> Array:  # fmt: skip
    """x / scale + zero point, rounded and saturated. The type is the zero point's, else `dtype`, else uint8."""
    if zero_point is not None:
        dtype = zero_point.dtype
    if x.dtype == np.float16 and scale.dtype == np.float32:
        x = x.astype(np.float32)  # the division has the type of the scale
    if x.dtype != scale.dtype and x.dtype != np.int32:
        raise ModelError(f"x is {x.dtype} and the scale {scale.dtype}, expected the same type")
    return quantized(x, scale, zero_point, axis=axis, block_size=block_size, dtype=dtype or jnp.dtype("uint8"))


def _dequantize_options(*, axis: int = 1, block_size: int = 0, output_dtype: int = 0) -> dict[str, Any]:
    dtype = dtype_of(output_dtype, "attribute 'output_dtype'") if output_dtype else None
    return {"axis": axis, "block_size": block_size, "dtype": dtype}


def dequantize_linear(
    x: Array, scale: Array, zero_point: Array | None = None, *, axis: int, block_size: int, dtype: Any,
    dequantized: Callable[..., Array] = directml.to_floats,
) -> Array:  # fmt: skip
    """(x - zero point) * scale."""
    values = dequantized(x, scale, zero_point, axis=axis, block_size=block_size)
    return values if dtype is None else values.astype(dtype)


_quantize_known = functools.partial(quantize_linear, quantized=directml.known_integers)
_dequantize_known = functools.partial(dequantize_linear, dequantized=directml.known_floats)

for _domain in ("", MICROSOFT):
    operator("QuantizeLinear", domain=_domain, types=(REAL | INT32, REAL, QUANTIZED_TYPES), options=_quantize_options,
             kind="quantize_linear", is_exact=True, is_pointwise=True,
             in_numpy=_quantize_known)(quantize_linear)  # fmt: skip
    operator("DequantizeLinear", domain=_domain, types=(QUANTIZED_TYPES | INT32, REAL), options=_dequantize_options,
             kind="dequantize_linear", is_pointwise=True, in_numpy=_dequantize_known)(dequantize_linear)  # fmt: skip


@operator("DynamicQuantizeLinear", since=11, types=(SCALE,), kind="quantize_by_range")
def quantize_by_range(x: Array) -> tuple[Array, Array, Array]:
    """x as uint8, and the scale and zero point that the range of x determines."""
    return directml.to_integers_by_range(x)


# Convolutions and matrix products ------------------------------------------------------------------------------------


@functools.wraps(conv_options)  # the signature names the attributes that the operator has
def _conv_options(**attributes: Any) -> dict[str, Any]:
    options = conv_options(**attributes)
    sizes = (options[name] for name in ("kernel_shape", "strides", "dilations", "padding"))
    rank = max((len(each) for each in sizes if isinstance(each, tuple)), default=0)
    if rank > 2:
        raise ModelError(f"its images have {rank} dimensions; supported: 1 and 2")
    return options


def _contrib_conv_options(
    *, auto_pad: str = "NOTSET", channels_last: int = 0, dilations: Sizes | None = None, group: int = 1,
    kernel_shape: Sizes | None = None, pads: Sizes | None = None, strides: Sizes | None = None,
) -> dict[str, Any]:  # fmt: skip
    options = _conv_options(
        auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads, strides=strides
    )
    return options | {"channels_last": channels_last}


@functools.wraps(directml.convolution)  # the signature names the inputs that the operator has
def contrib_convolution(x: Array, *others: Array, channels_last: int, **options: Any) -> Array:
    """Convolution of quantized [N, C, *space], or [N, *space, C], with a quantized result."""
    if not channels_last:
        return directml.convolution(x, *others, **options)
    return jnp.moveaxis(directml.convolution(jnp.moveaxis(x, -1, 1), *others, **options), 1, -1)


def dynamic_product(
    a: Array, b: Array, b_scale: Array, b_zero_point: Array | None = None, bias: Array | None = None
) -> Array:  # fmt: skip
    """The product of float `a`, quantized to uint8 by its range, and quantized `b`, plus the bias."""
    quantized, a_scale, a_zero_point = directml.to_integers_by_range(a)
    return directml.float_product(quantized, b, a_scale, b_scale, a_zero_point, b_zero_point, bias)


def _gemm_options(*, alpha: float = 1.0, transA: int = 0, transB: int = 0) -> dict[str, Any]:  # noqa: N803
    return {"alpha": alpha, "trans_a": transA, "trans_b": transB}


_quantized = functools.partial(operator, is_quantized=True)
_contrib = functools.partial(_quantized, domain=MICROSOFT)
ONE = (BYTE, SCALE, BYTE, SCALE, BYTE)
TWO = (BYTE, SCALE, BYTE, BYTE, SCALE, BYTE, SCALE, BYTE)

_quantized("QLinearConv", types=TWO, options=_conv_options, uniform=(5,), prepare=FILTER)(directml.convolution)
_contrib("QLinearConv", types=TWO, options=_contrib_conv_options, uniform=(5,), prepare=FILTER)(contrib_convolution)
_quantized("QLinearMatMul", types=TWO, uniform=(5,), prepare=MATRIX)(directml.product)
_quantized("ConvInteger", types=(BYTE,) * 4, options=_conv_options, kind="integer_convolution", uniform=(3,),
           prepare={(1,): prepared_filter})(directml.integer_convolution)  # fmt: skip
_quantized("MatMulInteger", types=(BYTE,) * 4, kind="integer_product", uniform=(3,),
           prepare={(1,): prepared_matrix})(directml.integer_product)  # fmt: skip
_contrib("MatMulIntegerToFloat", types=(BYTE, BYTE, SCALE, SCALE, BYTE, BYTE, SCALE), kind="float_product",
         uniform=(5,), prepare={(1,): prepared_matrix})(directml.float_product)  # fmt: skip
_contrib("DynamicQuantizeMatMul", types=(SCALE, BYTE, SCALE, BYTE, SCALE), kind="dynamic_product", uniform=(3,),
         prepare={(1,): prepared_matrix})(dynamic_product)  # fmt: skip
_contrib("QGemm", types=(BYTE, SCALE, BYTE, BYTE, SCALE, BYTE, INT32, SCALE, BYTE), options=_gemm_options,
         kind="quantized_gemm", uniform=(5,), prepare=MATRIX)(qgemm)  # fmt: skip


def _nbits_options(
    *, K: int, N: int, bits: int = 4, block_size: int, accuracy_level: int = 0, weight_prepacked: int = 0,  # noqa: N803
) -> dict[str, Any]:  # fmt: skip
    for name, value, supported in (
        ("bits", bits, nbits.BITS), ("accuracy_level", accuracy_level, nbits.PRECISIONS),
        ("weight_prepacked", weight_prepacked, (0,)),
    ):  # fmt: skip
        if value not in supported:
            raise ModelError(f"attribute {name!r} is {value}; supported: {', '.join(map(str, supported))}")
    if block_size < 16 or block_size & (block_size - 1):
        raise ModelError(f"attribute 'block_size' is {block_size}, expected a power of two of at least 16")
    if min(K, N) < 1:
        raise ModelError(f"attributes K and N are {K} and {N}, expected at least 1")
    return {"K": K, "N": N, "bits": bits, "block_size": block_size, "accuracy_level": accuracy_level}


UINT8 = frozenset({"uint8"})
operator("MatMulNBits", domain=MICROSOFT, types=(REAL, UINT8, REAL, REAL | UINT8, INT32, REAL), options=_nbits_options,
         kind="packed_dot", has_rule=False)(nbits.matmul_nbits)  # fmt: skip


# Elementwise operators, pooling, softmax -----------------------------------------------------------------------------

_contrib("QLinearAdd", types=TWO, numerics=DIRECTML, is_pointwise=True)(directml.add)
_contrib("QLinearAdd", types=TWO, numerics=ONNXRUNTIME, is_pointwise=True)(qlinear_add)
_contrib("QLinearMul", types=TWO, is_pointwise=True)(qlinear_mul)
_contrib("QLinearConcat", types=(SCALE, BYTE, BYTE, SCALE, BYTE))(qlinear_concat)
_contrib("QLinearSigmoid", types=ONE, is_pointwise=True)(qlinear_sigmoid)
_contrib("QLinearLeakyRelu", types=ONE, is_pointwise=True)(qlinear_leaky_relu)
_contrib("QLinearWhere", types=(BOOL, BYTE, SCALE, BYTE, BYTE, SCALE, BYTE, SCALE, BYTE))(qlinear_where)


def _pool_options(
    *, auto_pad: str = "NOTSET", ceil_mode: int = 0, channels_last: int = 0, count_include_pad: int = 0,
    kernel_shape: tuple[int, ...], pads: tuple[int, ...] | None = None, strides: tuple[int, ...] | None = None,
) -> dict[str, Any]:  # fmt: skip
    options = average_pool_options(
        auto_pad=auto_pad, ceil_mode=ceil_mode, count_include_pad=count_include_pad, kernel_shape=kernel_shape,
        pads=pads, strides=strides,
    )  # fmt: skip
    return options | {"channels_last": channels_last}


_contrib("QLinearGlobalAveragePool", types=ONE, numerics=DIRECTML)(kinds.directml_global_average_pool)
_contrib("QLinearGlobalAveragePool", types=ONE, numerics=ONNXRUNTIME)(qlinear_global_average_pool)
for _numerics, _function in ((DIRECTML, kinds.directml_average_pool), (ONNXRUNTIME, qlinear_average_pool)):
    _contrib("QLinearAveragePool", types=ONE, numerics=_numerics, options=_pool_options)(_function)


def _softmax_options(*, axis: int = -1, opset: int) -> dict[str, Any]:
    """`opset` is the opset of the float Softmax; before opset 13, Softmax ran over `axis` and all later axes."""
    return {"axis": axis, "of_rest": opset < 13}


_contrib("QLinearSoftmax", types=ONE, known=(1,), options=_softmax_options)(qlinear_softmax)
