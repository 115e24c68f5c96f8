"""DirectML's quantized operators as pure JAX functions."""

from jaxdml import checked
from jaxdml._data_types import DataType, TensorFlags
from jaxdml._fake_quantize import fake_quantize
from jaxdml._lowering.prepared import PreparedFilter, PreparedMatrix
from jaxdml._ops.element_wise_dequantize_linear import element_wise_dequantize_linear
from jaxdml._ops.element_wise_quantize_linear import element_wise_quantize_linear
from jaxdml._ops.element_wise_quantized_linear_add import element_wise_quantized_linear_add
from jaxdml._ops.quantized_linear_convolution import quantized_linear_convolution
from jaxdml._ops.quantized_linear_matrix_multiply import quantized_linear_matrix_multiply
from jaxdml._prepare import prepare_convolution_filter, prepare_matrix_multiply_b
from jaxdml._validate import minimum_feature_level, validate
from jaxdml.descs import (
    ElementWiseDequantizeLinearDesc,
    ElementWiseQuantizedLinearAddDesc,
    ElementWiseQuantizeLinearDesc,
    OperatorDesc,
    QuantizedLinearConvolutionDesc,
    QuantizedLinearMatrixMultiplyDesc,
    TensorDesc,
)
from jaxdml.errors import ArgumentTypeError, DescError, FeatureLevelError
from jaxdml.feature_levels import FeatureLevel

__version__ = "0.1.0"

__all__ = [
    "ArgumentTypeError",
    "DataType",
    "DescError",
    "ElementWiseDequantizeLinearDesc",
    "ElementWiseQuantizeLinearDesc",
    "ElementWiseQuantizedLinearAddDesc",
    "FeatureLevel",
    "FeatureLevelError",
    "OperatorDesc",
    "PreparedFilter",
    "PreparedMatrix",
    "QuantizedLinearConvolutionDesc",
    "QuantizedLinearMatrixMultiplyDesc",
    "TensorDesc",
    "TensorFlags",
    "checked",
    "element_wise_dequantize_linear",
    "element_wise_quantize_linear",
    "element_wise_quantized_linear_add",
    "fake_quantize",
    "minimum_feature_level",
    "prepare_convolution_filter",
    "prepare_matrix_multiply_b",
    "quantized_linear_convolution",
    "quantized_linear_matrix_multiply",
    "validate",
]
