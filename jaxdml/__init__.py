"""DirectML's quantized operators as pure JAX functions."""

from jaxdml import checked, dxdispatch
from jaxdml._compile import CompiledOperator, compile_operator
from jaxdml._data_types import DataType, TensorFlags
from jaxdml._desc_json import desc_from_dict, desc_to_dict
from jaxdml._fake_quantize import fake_quantize
from jaxdml._feature_support import FeatureSupport, check_feature_support
from jaxdml._lowering.prepared import PreparedFilter, PreparedMatrix
from jaxdml._operator import desc_of
from jaxdml._ops.element_wise_dequantize_linear import element_wise_dequantize_linear
from jaxdml._ops.element_wise_quantize_linear import element_wise_quantize_linear
from jaxdml._ops.element_wise_quantized_linear_add import element_wise_quantized_linear_add
from jaxdml._ops.quantized_linear_convolution import quantized_linear_convolution
from jaxdml._ops.quantized_linear_matrix_multiply import quantized_linear_matrix_multiply
from jaxdml._prepare import prepare_convolution_filter, prepare_matrix_multiply_b
from jaxdml._tensor_rules import calc_buffer_tensor_size
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
from jaxdml.errors import ArgumentTypeError, DescError, DxDispatchError, FeatureLevelError
from jaxdml.feature_levels import FeatureLevel

__version__ = "0.1.0"

__all__ = [
    "ArgumentTypeError",
    "CompiledOperator",
    "DataType",
    "DescError",
    "DxDispatchError",
    "ElementWiseDequantizeLinearDesc",
    "ElementWiseQuantizeLinearDesc",
    "ElementWiseQuantizedLinearAddDesc",
    "FeatureLevel",
    "FeatureLevelError",
    "FeatureSupport",
    "OperatorDesc",
    "PreparedFilter",
    "PreparedMatrix",
    "QuantizedLinearConvolutionDesc",
    "QuantizedLinearMatrixMultiplyDesc",
    "TensorDesc",
    "TensorFlags",
    "calc_buffer_tensor_size",
    "check_feature_support",
    "checked",
    "compile_operator",
    "desc_from_dict",
    "desc_of",
    "desc_to_dict",
    "dxdispatch",
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
