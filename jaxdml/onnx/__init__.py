"""Quantized ONNX models as JAX functions.

Source: https://onnx.ai/onnx/operators
"""

try:
    import onnx as _onnx  # noqa: F401
except ImportError as error:
    raise ImportError("jaxdml.onnx needs the package onnx: pip install 'jaxdml[onnx]'") from error

from jaxdml.errors import ModelError
from jaxdml.onnx._compare.compare import compare
from jaxdml.onnx._compare.differences import Difference
from jaxdml.onnx._compare.report import Comparison, NodeDifference
from jaxdml.onnx._limits import Limits
from jaxdml.onnx._load import check, load
from jaxdml.onnx._model import Model
from jaxdml.onnx._save import save
from jaxdml.onnx._table import supported_ops
from jaxdml.onnx._tensors import Tensor

__all__ = [
    "Comparison",
    "Difference",
    "Limits",
    "Model",
    "ModelError",
    "NodeDifference",
    "Tensor",
    "check",
    "compare",
    "load",
    "save",
    "supported_ops",
]

# Users and pickles see the public path of these names, not the paths of private modules.
for _name in __all__:
    if _name != "ModelError":  # ModelError is defined in jaxdml.errors, like all errors
        globals()[_name].__module__ = __name__
del _name
