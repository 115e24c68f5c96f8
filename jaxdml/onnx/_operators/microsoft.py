"""Quantized operators of the domain com.microsoft, which ONNX Runtime's quantizer writes."""

from functools import partial
from typing import Any

from jaxdml._quantized import directml, kinds
from jaxdml._quantized.kinds import DIRECTML, ONNXRUNTIME
from jaxdml._quantized.onnxruntime.add import qlinear_add
from jaxdml._quantized.onnxruntime.gemm import qgemm
from jaxdml._quantized.onnxruntime.lookup import qlinear_concat, qlinear_leaky_relu, qlinear_sigmoid, qlinear_where
from jaxdml._quantized.onnxruntime.mul import qlinear_mul
from jaxdml._quantized.onnxruntime.nbits import matmul_nbits
from jaxdml._quantized.onnxruntime.pooling import qlinear_average_pool, qlinear_global_average_pool
from jaxdml._quantized.onnxruntime.softmax import qlinear_softmax
from jaxdml.onnx._operators.pooling import average_pool_options
from jaxdml.onnx._table import BOOL, BYTE, MICROSOFT, SCALE, operator

ONE = (BYTE, SCALE, BYTE, SCALE, BYTE)
TWO = (BYTE, SCALE, BYTE, BYTE, SCALE, BYTE, SCALE, BYTE)
quantized = partial(operator, domain=MICROSOFT, is_quantized=True)


quantized("QLinearAdd", types=TWO, numerics=DIRECTML)(directml.add)
quantized("QLinearAdd", types=TWO, numerics=ONNXRUNTIME)(qlinear_add)
quantized("QLinearMul", types=TWO)(qlinear_mul)
quantized("QLinearConcat", types=(SCALE, BYTE, BYTE, SCALE, BYTE))(qlinear_concat)
quantized("QLinearSigmoid", types=ONE)(qlinear_sigmoid)
quantized("QLinearLeakyRelu", types=ONE)(qlinear_leaky_relu)
quantized("QLinearWhere", types=(BOOL, BYTE, SCALE, BYTE, BYTE, SCALE, BYTE, SCALE, BYTE))(qlinear_where)


def _pool_options(
    *, auto_pad: str = "NOTSET", ceil_mode: int = 0, channels_last: int = 0, count_include_pad: int = 0,
    kernel_shape: tuple[int, ...], pads: tuple[int, ...] | None = None, strides: tuple[int, ...] | None = None,
) -> dict[str, Any]:  # fmt: skip
    options = average_pool_options(
        auto_pad=auto_pad, ceil_mode=ceil_mode, count_include_pad=count_include_pad, kernel_shape=kernel_shape,
        pads=pads, strides=strides,
    )  # fmt: skip
    return options | {"channels_last": channels_last}


quantized("QLinearGlobalAveragePool", types=ONE, numerics=DIRECTML)(kinds.directml_global_average_pool)
quantized("QLinearGlobalAveragePool", types=ONE, numerics=ONNXRUNTIME)(qlinear_global_average_pool)
for _numerics, _function in ((DIRECTML, kinds.directml_average_pool), (ONNXRUNTIME, qlinear_average_pool)):
    quantized("QLinearAveragePool", types=ONE, numerics=_numerics, options=_pool_options)(_function)


def _softmax_options(*, axis: int = -1, opset: int) -> dict[str, Any]:
    """`opset` is that of the Softmax that was quantized: before 13 it is of all axes from one on."""
    return {"axis": axis, "of_rest": opset < 13}


quantized("QLinearSoftmax", types=ONE, known=(1,), options=_softmax_options)(qlinear_softmax)


def _gemm_options(*, alpha: float = 1.0, transA: int = 0, transB: int = 0) -> dict[str, Any]:  # noqa: N803
    return {"alpha": alpha, "trans_a": transA, "trans_b": transB}


quantized("QGemm", types=(BYTE, SCALE, BYTE, BYTE, SCALE, BYTE, frozenset({"int32"}), SCALE, BYTE),
          options=_gemm_options, kind="quantized_gemm", uniform=(5,),
          prepare=kinds.MATRIX)(qgemm)  # fmt: skip
operator("MatMulNBits", domain=MICROSOFT, types=(SCALE, frozenset({"uint8"}), SCALE))(matmul_nbits)
