"""Graphs of operators, whatever their origin: constant folding, fusion to quantized operators, and evaluation."""
