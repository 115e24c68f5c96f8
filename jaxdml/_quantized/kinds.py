"""Maps node kinds to quantized operators, in a table for DirectML and one for ONNX Runtime, and prepares weights."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from jaxdml._graph.graph import Operator
from jaxdml._graph.grids import BYTES
from jaxdml._operators.prepare import waiting_filter, waiting_matrix
from jaxdml._quantized import blocks, directml
from jaxdml._quantized.onnxruntime import nbits
from jaxdml._quantized.onnxruntime.add import qlinear_add
from jaxdml._quantized.onnxruntime.gemm import qgemm
from jaxdml._quantized.onnxruntime.lookup import qlinear_concat, qlinear_leaky_relu, qlinear_sigmoid
from jaxdml._quantized.onnxruntime.mul import qlinear_mul
from jaxdml._quantized.onnxruntime.pooling import qlinear_average_pool, qlinear_global_average_pool
from jaxdml._quantized.onnxruntime.softmax import qlinear_softmax

Array = Any
DIRECTML, ONNXRUNTIME = "directml", "onnxruntime"


def prepared_filter(w: np.ndarray, options: Mapping[str, Any]) -> Any:
    """The prepared filter, or the filter itself if its type or shape cannot be prepared."""
    groups = options.get("group_count", 1)
    if w.dtype not in BYTES or w.ndim not in (3, 4) or w.size == 0 or groups < 1 or w.shape[0] % groups:
        return w
    return waiting_filter(w, groups)


def prepared_matrix(b: np.ndarray, options: Mapping[str, Any]) -> Any:
    """The prepared matrix, or the matrix itself if its type or shape cannot be prepared."""
    if b.dtype not in BYTES or b.ndim != 2 or b.size == 0:
        return b
    return waiting_matrix(b.T if options.get("trans_b") else b)


def prepared_matrices(b: np.ndarray, options: Mapping[str, Any]) -> Any:
    """The prepared matrices of an array of rank 3, or the array itself if its type or shape cannot be prepared."""
    return waiting_matrix(b) if b.dtype in BYTES and b.ndim == 3 and b.size else b


Prepare = Mapping[tuple[int, ...], Callable[..., Any]]
FILTER: Prepare = {(3,): prepared_filter}
MATRIX: Prepare = {(3,): prepared_matrix}


def directml_average_pool(
    x: Array, x_scale: Array, x_zero_point: Array | None, y_scale: Array, y_zero_point: Array | None = None, *,
    window: Sequence[int], ceil_mode: int = 0, channels_last: int = 0, **options: Any,
) -> Array:  # fmt: skip
    """DirectML's average pooling; ONNX Runtime's for `ceil_mode`, channels last, and ranks other than 4 and 5."""
    parameters = x_scale, x_zero_point, y_scale, y_zero_point
    options["window"] = window
    if ceil_mode or channels_last or x.ndim not in (4, 5):
        return qlinear_average_pool(
            x, *parameters, **options | {"ceil_mode": ceil_mode, "channels_last": channels_last}
        )
    return directml.average_pool(x, *parameters, **options)


def directml_global_average_pool(
    x: Array, x_scale: Array, x_zero_point: Array | None, y_scale: Array, y_zero_point: Array | None = None, *,
    channels_last: int = 0,
) -> Array:  # fmt: skip
    """DirectML's average pooling of images with 2 or 3 dimensions and channels second, else ONNX Runtime's."""
    if channels_last or x.ndim not in (4, 5):
        parameters = x_scale, x_zero_point, y_scale, y_zero_point
        return qlinear_global_average_pool(x, *parameters, channels_last=channels_last)
    return directml.global_average_pool(x, x_scale, x_zero_point, y_scale, y_zero_point)


_quantized = partial(Operator, is_quantized=True)
_pointwise = partial(_quantized, is_pointwise=True)
_COMMON = {
    "concat": _quantized("QLinearConcat", qlinear_concat),
    "conv": _quantized("QLinearConv", directml.convolution, uniform=(5,), prepare=FILTER),
    "conv_to_float": _quantized(
        "ConvInteger", directml.float_convolution, kind="float_product", uniform=(5,), prepare=FILTER
    ),
    "dot": _quantized("QLinearMatMul", directml.product, uniform=(5,), prepare=MATRIX),
    "dot_to_float": _quantized(
        "MatMulIntegerToFloat",
        directml.float_product,
        kind="float_product",
        uniform=(5,),
        prepare={(1,): prepared_matrix},
    ),
    "dot_of_blocks": _quantized(
        "MatMulNBits", blocks.product, kind="product_of_blocks", prepare={(1, 2, 3): blocks.prepared_matrix}
    ),
    "gemm": _quantized("QGemm", qgemm, kind="quantized_gemm", uniform=(5,), prepare=MATRIX),
    "leaky_relu": _pointwise("QLinearLeakyRelu", qlinear_leaky_relu),
    "mul": _pointwise("QLinearMul", qlinear_mul),
    "packed_dot": _quantized(
        "MatMulNBits", nbits.product_of_blocks, kind="product_of_blocks", prepare={(1, 2, 3, 4): nbits.prepared_matrix}
    ),
    "sigmoid": _pointwise("QLinearSigmoid", qlinear_sigmoid),
    "softmax": _quantized("QLinearSoftmax", qlinear_softmax, known=(1,)),
    "softmax_of_rest": _quantized("QLinearSoftmax", partial(qlinear_softmax, of_rest=True), known=(1,)),
}
QUANTIZED: Mapping[str, Mapping[str, Operator]] = {
    DIRECTML: _COMMON
    | {
        "add": _pointwise("QLinearAdd", directml.add),
        "average_pool": _quantized("QLinearAveragePool", directml_average_pool),
        "global_average_pool": _quantized("QLinearGlobalAveragePool", directml_global_average_pool),
    },
    ONNXRUNTIME: _COMMON
    | {
        "add": _pointwise("QLinearAdd", qlinear_add),
        "average_pool": _quantized("QLinearAveragePool", qlinear_average_pool),
        "global_average_pool": _quantized("QLinearGlobalAveragePool", qlinear_global_average_pool),
    },
}
