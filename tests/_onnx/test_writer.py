"""The initializers of a file."""

import numpy as np

from helpers.compare import assert_same_bits
from jaxdml.onnx._write.writer import QDQ, Options, Writer

SQUARE = np.arange(4, dtype=np.int8).reshape(2, 2)


def test_layers_share_a_constant_only_if_they_need_the_same_values():
    options = Options(form=QDQ, tables="float", weights="int8", opset=17, has_gelu=False, numerics="directml")
    writer = Writer(options, {}, {"w": SQUARE})
    values = SQUARE, SQUARE.T, SQUARE.copy(), SQUARE.astype(np.uint8), SQUARE.reshape(4)
    names = [writer.parameter("w", "layer.weight", value) for value in values]
    assert names[2] == names[0]
    assert len(set(names)) == len(writer.initializers) == 4
    for name, value in zip(names, values, strict=True):
        assert_same_bits(writer.initializers[name], value)
