"""Ranges of values, and the scales and zero points that they give."""
