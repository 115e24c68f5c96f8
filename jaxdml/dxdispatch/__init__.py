"""Runs JSON models of DirectML's DxDispatch tool on any machine, if they use only operators of jaxdml.

``dxdispatch.load("model.json").run()`` does the same as ``python -m jaxdml.dxdispatch model.json``. Models that
contain HLSL, ONNX models, serialized graphs or images are rejected.

Source: https://github.com/microsoft/DirectML/blob/master/DxDispatch/doc/Guide.md
"""

from jaxdml.dxdispatch._model import Model, load
from jaxdml.errors import DxDispatchError

__all__ = ["DxDispatchError", "Model", "load"]

Model.__module__ = load.__module__ = __name__  # users and pickles see the public path
