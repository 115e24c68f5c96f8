"""Compares a model with onnxruntime, node by node."""
