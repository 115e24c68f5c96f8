"""Post-training quantization: float JAX functions become int8 functions with exact integer arithmetic."""

from jaxdml.errors import PtqError
from jaxdml.ptq._choose.rule import Rule
from jaxdml.ptq._files import load, save
from jaxdml.ptq._grids.observers import LeastSquares, MinMax, MovingAverage, Observer, Percentile
from jaxdml.ptq._grids.ranges import quantize_bias, quantize_weights, scale_and_zero_point
from jaxdml.ptq._model import Model
from jaxdml.ptq._quantize import quantize
from jaxdml.ptq._sqnr import Advice, LayerError, Sqnr

__all__ = [
    "Advice",
    "LayerError",
    "LeastSquares",
    "MinMax",
    "Model",
    "MovingAverage",
    "Observer",
    "Percentile",
    "PtqError",
    "Rule",
    "Sqnr",
    "load",
    "quantize",
    "quantize_bias",
    "quantize_weights",
    "save",
    "scale_and_zero_point",
]

# Users and pickles see the public path of these names, not the paths of private modules.
for _name in __all__:
    if _name != "PtqError":  # PtqError is defined in jaxdml.errors, like all errors
        globals()[_name].__module__ = __name__
del _name
