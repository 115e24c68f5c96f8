"""Ranges of values, and the scales and zero points that are computed from ranges."""
