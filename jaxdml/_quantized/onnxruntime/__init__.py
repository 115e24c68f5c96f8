"""Quantized operators that DirectML lacks or defines differently, with the formulas of ONNX Runtime's x64 kernels."""
