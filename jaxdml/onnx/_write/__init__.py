"""What jaxdml.ptq made, written as nodes of ONNX."""
