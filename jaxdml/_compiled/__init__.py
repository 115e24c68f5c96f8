"""Runs descs on flat buffers: strides describe how tensors are read and written, and weights are bound once."""
