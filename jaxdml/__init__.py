"""DirectML's quantized operators as pure JAX functions."""

import importlib as _importlib
from typing import Any as _Any

from jaxdml import checked, dxdispatch, ptq
from jaxdml._arithmetic.kernel_library import kernels, use_kernels
from jaxdml._arithmetic.prepared import PreparedFilter, PreparedMatrix
from jaxdml._compiled.operator import CompiledOperator, compile_operator
from jaxdml._directml.data_types import DataType, TensorFlags
from jaxdml._directml.desc import OperatorDesc, TensorDesc
from jaxdml._directml.desc_json import desc_from_dict, desc_to_dict
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.feature_support import FeatureSupport, check_feature_support
from jaxdml._directml.pages.convolution_integer import ConvolutionIntegerDesc
from jaxdml._directml.pages.dequantize import DequantizeDesc
from jaxdml._directml.pages.dynamic_quantize_linear import DynamicQuantizeLinearDesc
from jaxdml._directml.pages.element_wise_dequantize_linear import ElementWiseDequantizeLinearDesc
from jaxdml._directml.pages.element_wise_quantize_linear import ElementWiseQuantizeLinearDesc
from jaxdml._directml.pages.element_wise_quantized_linear_add import ElementWiseQuantizedLinearAddDesc
from jaxdml._directml.pages.matrix_multiply_integer import MatrixMultiplyIntegerDesc
from jaxdml._directml.pages.matrix_multiply_integer_to_float import MatrixMultiplyIntegerToFloatDesc
from jaxdml._directml.pages.quantize import QuantizeDesc
from jaxdml._directml.pages.quantized_linear_average_pooling import QuantizedLinearAveragePoolingDesc
from jaxdml._directml.pages.quantized_linear_convolution import QuantizedLinearConvolutionDesc
from jaxdml._directml.pages.quantized_linear_matrix_multiply import QuantizedLinearMatrixMultiplyDesc
from jaxdml._directml.quantization import QuantizationType
from jaxdml._directml.tensor_rules import calc_buffer_tensor_size
from jaxdml._directml.validate import minimum_feature_level, validate
from jaxdml._operators.call import desc_of
from jaxdml._operators.convolution_integer import convolution_integer
from jaxdml._operators.dequantize import dequantize
from jaxdml._operators.dynamic_quantize_linear import dynamic_quantize_linear
from jaxdml._operators.element_wise_dequantize_linear import element_wise_dequantize_linear
from jaxdml._operators.element_wise_quantize_linear import element_wise_quantize_linear
from jaxdml._operators.element_wise_quantized_linear_add import element_wise_quantized_linear_add
from jaxdml._operators.fake_quantize import fake_quantize
from jaxdml._operators.matrix_multiply_integer import matrix_multiply_integer
from jaxdml._operators.matrix_multiply_integer_to_float import matrix_multiply_integer_to_float
from jaxdml._operators.prepare import prepare_convolution_filter, prepare_matrix_multiply_b
from jaxdml._operators.quantize import quantize
from jaxdml._operators.quantized_linear_average_pooling import quantized_linear_average_pooling
from jaxdml._operators.quantized_linear_convolution import quantized_linear_convolution
from jaxdml._operators.quantized_linear_matrix_multiply import quantized_linear_matrix_multiply
from jaxdml.errors import ArgumentTypeError, DescError, DxDispatchError, FeatureLevelError

__version__ = "0.1.0"

__all__ = [
    "ArgumentTypeError",
    "CompiledOperator",
    "ConvolutionIntegerDesc",
    "DataType",
    "DequantizeDesc",
    "DescError",
    "DxDispatchError",
    "DynamicQuantizeLinearDesc",
    "ElementWiseDequantizeLinearDesc",
    "ElementWiseQuantizeLinearDesc",
    "ElementWiseQuantizedLinearAddDesc",
    "FeatureLevel",
    "FeatureLevelError",
    "FeatureSupport",
    "MatrixMultiplyIntegerDesc",
    "MatrixMultiplyIntegerToFloatDesc",
    "OperatorDesc",
    "PreparedFilter",
    "PreparedMatrix",
    "QuantizationType",
    "QuantizeDesc",
    "QuantizedLinearAveragePoolingDesc",
    "QuantizedLinearConvolutionDesc",
    "QuantizedLinearMatrixMultiplyDesc",
    "TensorDesc",
    "TensorFlags",
    "calc_buffer_tensor_size",
    "check_feature_support",
    "checked",
    "compile_operator",
    "convolution_integer",
    "dequantize",
    "desc_from_dict",
    "desc_of",
    "desc_to_dict",
    "dxdispatch",
    "dynamic_quantize_linear",
    "element_wise_dequantize_linear",
    "element_wise_quantize_linear",
    "element_wise_quantized_linear_add",
    "fake_quantize",
    "kernels",
    "matrix_multiply_integer",
    "matrix_multiply_integer_to_float",
    "minimum_feature_level",
    "prepare_convolution_filter",
    "prepare_matrix_multiply_b",
    "ptq",
    "quantize",
    "quantized_linear_average_pooling",
    "quantized_linear_convolution",
    "quantized_linear_matrix_multiply",
    "use_kernels",
    "validate",
]


def __getattr__(name: str) -> _Any:
    """`jaxdml.onnx`, imported when it is first asked for: it needs the package onnx, an extra."""
    if name == "onnx":
        return _importlib.import_module("jaxdml.onnx")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# The path that users and their pickles see is the public one.
for _name in __all__:
    if hasattr(globals()[_name], "__qualname__"):
        globals()[_name].__module__ = __name__
del _name
