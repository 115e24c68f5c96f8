"""Quantized operators that DirectML omits or defines differently, with the formulas of ONNX Runtime's x64 kernels."""
