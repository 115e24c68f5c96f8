"""Graphs of operators: folded, fused to quantized operators, evaluated, whatever format or function they came from."""
