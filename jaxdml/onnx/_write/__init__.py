"""Writes functions that jaxdml.ptq quantized as nodes of ONNX."""
