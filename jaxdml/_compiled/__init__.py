"""A desc run over flat buffers: tensors are read and written as their strides say, and weights are bound once."""
