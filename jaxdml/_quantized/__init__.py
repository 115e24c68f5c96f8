"""What a graph's nodes compute on integers: DirectML's operators, and those that ONNX Runtime alone has."""
