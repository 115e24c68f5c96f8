"""Quantized operators of the domain com.microsoft, which ONNX Runtime's quantizer writes."""

from typing import Any

from jaxdml._graph import directml, numerics
from jaxdml._graph.numerics import DIRECTML, ONNXRUNTIME
from jaxdml._graph.onnxruntime.add import qlinear_add
from jaxdml._graph.onnxruntime.lookup import qlinear_concat, qlinear_leaky_relu, qlinear_sigmoid, qlinear_where
from jaxdml._graph.onnxruntime.mul import qlinear_mul
from jaxdml._graph.onnxruntime.nbits import matmul_nbits
from jaxdml._graph.onnxruntime.pooling import qlinear_global_average_pool
from jaxdml._graph.onnxruntime.softmax import qlinear_softmax
from jaxdml.onnx._operators.pooling import average_pool_options
from jaxdml.onnx._table import BOOL, BYTE, MICROSOFT, SCALE, operator

Array = Any
ONE = (BYTE, SCALE, BYTE, SCALE, BYTE)
TWO = (BYTE, SCALE, BYTE, BYTE, SCALE, BYTE, SCALE, BYTE)


operator("QLinearAdd", domain=MICROSOFT, types=TWO, numerics=DIRECTML)(directml.add)
operator("QLinearConcat", domain=MICROSOFT, types=(SCALE, BYTE, BYTE, SCALE, BYTE))(qlinear_concat)


@operator("QLinearAdd", domain=MICROSOFT, types=TWO, numerics=ONNXRUNTIME)
def add(
    a: Array, a_scale: Array, a_zero_point: Array | None, b: Array, b_scale: Array, b_zero_point: Array | None,
    c_scale: Array, c_zero_point: Array | None = None,
) -> Array:  # fmt: skip
    """Sum of quantized a and b, quantized."""
    return qlinear_add(a, a_scale, a_zero_point, b, b_scale, b_zero_point, c_scale, c_zero_point)


@operator("QLinearMul", domain=MICROSOFT, types=TWO)
def mul(
    a: Array, a_scale: Array, a_zero_point: Array | None, b: Array, b_scale: Array, b_zero_point: Array | None,
    c_scale: Array, c_zero_point: Array | None = None,
) -> Array:  # fmt: skip
    """Product of quantized a and b, element by element, quantized."""
    return qlinear_mul(a, a_scale, a_zero_point, b, b_scale, b_zero_point, c_scale, c_zero_point)


def _pool_options(
    *, auto_pad: str = "NOTSET", ceil_mode: int = 0, channels_last: int = 0, count_include_pad: int = 0,
    kernel_shape: tuple[int, ...], pads: tuple[int, ...] | None = None, strides: tuple[int, ...] | None = None,
) -> dict[str, Any]:  # fmt: skip
    options = average_pool_options(
        auto_pad=auto_pad, ceil_mode=ceil_mode, count_include_pad=count_include_pad, kernel_shape=kernel_shape,
        pads=pads, strides=strides,
    )  # fmt: skip
    return options | {"channels_last": channels_last}


for _numerics, _function in ((DIRECTML, numerics.directml_average_pool), (ONNXRUNTIME, numerics.average_pool)):
    operator("QLinearAveragePool", domain=MICROSOFT, types=ONE, numerics=_numerics, options=_pool_options)(_function)

operator("QLinearGlobalAveragePool", domain=MICROSOFT, types=ONE, numerics=DIRECTML)(
    numerics.directml_global_average_pool
)


@operator("QLinearGlobalAveragePool", domain=MICROSOFT, types=ONE, numerics=ONNXRUNTIME)
def global_average_pool(
    x: Array, x_scale: Array, x_zero_point: Array | None, y_scale: Array, y_zero_point: Array | None = None, *,
    channels_last: int = 0,
) -> Array:  # fmt: skip
    """Means over the whole space of quantized x, quantized."""
    last = bool(channels_last)
    return qlinear_global_average_pool(x, x_scale, x_zero_point, y_scale, y_zero_point, channels_last=last)


@operator("QLinearSigmoid", domain=MICROSOFT, types=ONE)
def sigmoid(
    x: Array, x_scale: Array, x_zero_point: Array | None, y_scale: Array, y_zero_point: Array | None = None
) -> Array:  # fmt: skip
    """Sigmoid of quantized x, quantized."""
    return qlinear_sigmoid(x, x_scale, x_zero_point, y_scale, y_zero_point)


@operator("QLinearLeakyRelu", domain=MICROSOFT, types=ONE)
def leaky_relu(
    x: Array, x_scale: Array, x_zero_point: Array | None, y_scale: Array, y_zero_point: Array | None = None, *,
    alpha: float = 0.01,
) -> Array:  # fmt: skip
    """Quantized x, times alpha where it is negative, quantized."""
    return qlinear_leaky_relu(x, x_scale, x_zero_point, y_scale, y_zero_point, alpha=alpha)


operator("QLinearSoftmax", domain=MICROSOFT, types=ONE, known=(1,))(qlinear_softmax)
operator("QLinearWhere", domain=MICROSOFT, types=(BOOL, BYTE, SCALE, BYTE, BYTE, SCALE, BYTE, SCALE, BYTE))(
    qlinear_where
)


def _gemm_options(*, alpha: float = 1.0, transA: int = 0, transB: int = 0) -> dict[str, Any]:  # noqa: N803
    return {"alpha": alpha, "trans_a": transA, "trans_b": transB}


operator("QGemm", domain=MICROSOFT, types=(BYTE, SCALE, BYTE, BYTE, SCALE, BYTE, frozenset({"int32"}), SCALE, BYTE),
         options=_gemm_options, uniform=(5,), prepare=numerics.MATRIX)(numerics.gemm)  # fmt: skip
operator("MatMulNBits", domain=MICROSOFT, types=(SCALE, frozenset({"uint8"}), SCALE))(matmul_nbits)
