"""Functions for graph nodes that compute on integers: DirectML's operators, and those that only ONNX Runtime has."""
