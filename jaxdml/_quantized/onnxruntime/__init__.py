"""Quantized operators that DirectML lacks or has otherwise, by the formulas of ONNX Runtime's CPU kernels for x64."""
