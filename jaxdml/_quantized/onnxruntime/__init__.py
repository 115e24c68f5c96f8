"""Quantized operators that DirectML lacks or defines differently, by the formulas of ONNX Runtime's x64 kernels."""
