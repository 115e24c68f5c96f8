"""The functions of a graph's nodes on integers: DirectML's operators, and operators that only ONNX Runtime has."""
