"""Graphs of operators, whatever their origin: constant folding, fusion into quantized operators, and evaluation."""
