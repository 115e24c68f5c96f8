"""Runs the JSON models of DirectML's DxDispatch tool, for the operators of jaxdml, on any machine.

``dxdispatch.load("model.json").run()`` and ``python -m jaxdml.dxdispatch model.json`` are the same. What the tool runs
besides, that is HLSL, ONNX models, serialized graphs and images, is refused.

Source: https://github.com/microsoft/DirectML/blob/master/DxDispatch/doc/Guide.md
"""

from jaxdml.dxdispatch._model import Model, load
from jaxdml.errors import DxDispatchError

__all__ = ["DxDispatchError", "Model", "load"]

Model.__module__ = load.__module__ = __name__  # the path that users and their pickles see is the public one
