"""DirectML's quantized operators as pure JAX functions."""

import importlib as _importlib
import typing as _typing
from importlib.util import find_spec as _find_spec

from jaxdml import descs
from jaxdml._arithmetic.kernel_library import kernels, use_kernels
from jaxdml._arithmetic.prepared import PreparedFilter, PreparedMatrix
from jaxdml._arithmetic.prepared_blocks import PreparedBlocks
from jaxdml._compiled.operator import CompiledOperator, compile_operator
from jaxdml._operators.convolution_integer import convolution_integer
from jaxdml._operators.dequantize import dequantize
from jaxdml._operators.dynamic_quantize_linear import dynamic_quantize_linear
from jaxdml._operators.element_wise_dequantize_linear import element_wise_dequantize_linear
from jaxdml._operators.element_wise_quantize_linear import element_wise_quantize_linear
from jaxdml._operators.element_wise_quantized_linear_add import element_wise_quantized_linear_add
from jaxdml._operators.fake_quantize import fake_quantize
from jaxdml._operators.matrix_multiply_blocks import matrix_multiply_blocks, prepare_matrix_multiply_blocks
from jaxdml._operators.matrix_multiply_integer import matrix_multiply_integer
from jaxdml._operators.matrix_multiply_integer_to_float import matrix_multiply_integer_to_float
from jaxdml._operators.prepare import prepare_convolution_filter, prepare_matrix_multiply_b
from jaxdml._operators.quantize import quantize
from jaxdml._operators.quantized_linear_average_pooling import quantized_linear_average_pooling
from jaxdml._operators.quantized_linear_convolution import quantized_linear_convolution
from jaxdml._operators.quantized_linear_matrix_multiply import quantized_linear_matrix_multiply
from jaxdml.descs import *  # noqa: F403
from jaxdml.errors import ArgumentTypeError, DescError, DxDispatchError, FeatureLevelError

__version__ = "0.1.0"

__all__ = [
    "ArgumentTypeError",
    "CompiledOperator",
    "DescError",
    "DxDispatchError",
    "FeatureLevelError",
    "PreparedBlocks",
    "PreparedFilter",
    "PreparedMatrix",
    "checked",
    "compile_operator",
    "convolution_integer",
    "dequantize",
    "dxdispatch",
    "dynamic_quantize_linear",
    "element_wise_dequantize_linear",
    "element_wise_quantize_linear",
    "element_wise_quantized_linear_add",
    "fake_quantize",
    "kernels",
    "matrix_multiply_blocks",
    "matrix_multiply_integer",
    "matrix_multiply_integer_to_float",
    "prepare_convolution_filter",
    "prepare_matrix_multiply_b",
    "prepare_matrix_multiply_blocks",
    "ptq",
    "quantize",
    "quantized_linear_average_pooling",
    "quantized_linear_convolution",
    "quantized_linear_matrix_multiply",
    "use_kernels",
]
__all__ += descs.__all__

_SUBMODULES = ("checked", "dxdispatch", "errors", "examples", "onnx", "ptq", "reference", "typing")

if _typing.TYPE_CHECKING:
    from jaxdml import checked as checked
    from jaxdml import dxdispatch as dxdispatch
    from jaxdml import errors as errors
    from jaxdml import examples as examples
    from jaxdml import onnx as onnx
    from jaxdml import ptq as ptq
    from jaxdml import reference as reference
    from jaxdml import typing as typing
else:  # with this `__getattr__`, type checkers would accept every name

    def __getattr__(name: str) -> _typing.Any:
        """Imports a submodule when it is first used. `jaxdml.onnx` needs the extra `onnx`."""
        if name in _SUBMODULES:
            return _importlib.import_module(f"jaxdml.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    absent = {"onnx"} if _find_spec("onnx") is None else set[str]()  # `help` imports what is listed
    return sorted({*globals(), *_SUBMODULES} - absent)


# Reprs, tracebacks and pickles name the public module `jaxdml` instead of the private one.
for _name in __all__:
    if hasattr(globals().get(_name), "__qualname__"):
        globals()[_name].__module__ = __name__
del _name
