"""Graphs of operators: constant folding, fusion to quantized operators, evaluation; independent of their origin."""
