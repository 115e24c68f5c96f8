"""Average pooling: every byte, and the largest window."""

import jax
import numpy as np
import pytest

import jaxdml as dml
from helpers.cases import BYTES
from helpers.marks import rarely_on_xla
from helpers.modes import assert_same
from jaxdml import reference

pytestmark = rarely_on_xla


@pytest.mark.parametrize("dtype", BYTES)
def test_pooling_of_every_byte(dtype):
    """Windows of one element: each value with each zero point, in a channel of its own."""
    every = np.arange(256).astype(np.uint8).view(dtype)
    x = np.broadcast_to(every, (1, 256, 1, 256))
    for scales in ((1.0, 1.0), (0.1, 0.3), (1.0, 2.0)):
        arguments = (x, np.float32(scales[0]), every, np.float32(scales[1]), np.asarray(every[7]))
        expected = reference.quantized_linear_average_pooling(*arguments, window_size=1)
        assert_same(scales, dml.quantized_linear_average_pooling(*arguments, window_size=1), expected)


def test_the_largest_window_and_one_that_is_larger():
    """Sums of windows are computed in int32, so a window whose sum may not fit is rejected."""
    x = np.full((1, 1, 2901, 2902), 255, np.uint8)
    got = dml.quantized_linear_average_pooling(x, 1.0, np.uint8(0), 1.0, np.uint8(0), window_size=x.shape[2:])
    assert got.item() == 255
    larger = jax.ShapeDtypeStruct((1, 1, 2902, 2903), np.uint8)
    with pytest.raises(dml.DescError, match="has 8424506 elements, but int32 holds the sum of at most 8421504 "):
        jax.eval_shape(
            lambda x: dml.quantized_linear_average_pooling(x, 1.0, 0, 1.0, 0, window_size=x.shape[2:]), larger
        )
