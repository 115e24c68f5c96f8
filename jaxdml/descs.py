"""Descs are DirectML's structs that describe operators and tensors: their classes, validation and conversion.

The package `jaxdml` exports the same names.
"""

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

__all__ = [
    "ConvolutionIntegerDesc",
    "DataType",
    "DequantizeDesc",
    "DynamicQuantizeLinearDesc",
    "ElementWiseDequantizeLinearDesc",
    "ElementWiseQuantizeLinearDesc",
    "ElementWiseQuantizedLinearAddDesc",
    "FeatureLevel",
    "FeatureSupport",
    "MatrixMultiplyIntegerDesc",
    "MatrixMultiplyIntegerToFloatDesc",
    "OperatorDesc",
    "QuantizationType",
    "QuantizeDesc",
    "QuantizedLinearAveragePoolingDesc",
    "QuantizedLinearConvolutionDesc",
    "QuantizedLinearMatrixMultiplyDesc",
    "TensorDesc",
    "TensorFlags",
    "calc_buffer_tensor_size",
    "check_feature_support",
    "desc_from_dict",
    "desc_of",
    "desc_to_dict",
    "minimum_feature_level",
    "validate",
]
