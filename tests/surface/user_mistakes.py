"""Errors that a type checker finds: each line of `mistakes` is wrong."""

import numpy as np

import jaxdml as dml


def mistakes(x: np.ndarray) -> None:
    """No line may pass."""
    dml.quantise(x)
    dml.quantize("x", 0.5)
    dml.quantize(x)
    dml.quantize(x, 0.5, 3, np.int8)
    dml.quantize(x, 0.5, output_dtypes=np.int8)
    dml.quantize(x, 0.5, zero_point=0.5)
    dml.quantize(x, 0.5, feature_level=3)
    dml.quantize(x, 0.5).sum_of()
    dml.ptq.save(x)
