"""The float graph with quantize and dequantize nodes, and its fusion to quantized operators."""
