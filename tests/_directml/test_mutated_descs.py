"""Thousands of mutated descs: each gives a result, or an error that says where, and nothing else."""

import dataclasses
import json
import math
import re

import jax
import numpy as np
import pytest

import jaxdml as dml
from helpers.cases import CONVOLUTION, MATRIX_MULTIPLY
from helpers.marks import rest_rarely
from helpers.mutated import VALUES, mutated


def valid_descs():
    for case in [MATRIX_MULTIPLY[0][0], MATRIX_MULTIPLY[0][3], *CONVOLUTION[0][:3]]:
        yield dml.desc_of(getattr(dml, case.operator), *case.arguments, **case.options)
    x = np.zeros((2, 3), np.uint8)
    yield dml.desc_of(dml.element_wise_dequantize_linear, x, np.ones(3, np.float32), 3)
    yield dml.desc_of(dml.element_wise_quantize_linear, x.astype(np.float32), 0.1, 3)
    yield dml.desc_of(dml.element_wise_quantized_linear_add, x, 0.1, 3, x, 0.1, None, 0.3, 4)
    image, filter = np.zeros((1, 2, 4, 3), np.uint8), np.zeros((4, 1, 2, 2), np.int8)
    yield dml.desc_of(dml.matrix_multiply_integer, x, 3, x.T, None)
    yield dml.desc_of(dml.convolution_integer, image, 3, filter, None, group_count=2, end_padding=1)
    yield dml.desc_of(dml.dynamic_quantize_linear, x.astype(np.float32))
    bias = np.zeros(2, np.float32)
    yield dml.desc_of(dml.matrix_multiply_integer_to_float, x.astype(np.int16), 0.1, None, x.T, 0.2, 3, bias)
    yield dml.desc_of(dml.quantized_linear_average_pooling, image, 0.1, 3, 0.2, None, window_size=2, start_padding=1)
    yield dml.desc_of(dml.quantize, x.astype(np.float16), np.ones((2, 1), np.float16), 3, output_dtype="uint4")
    yield dml.desc_of(dml.dequantize, x.astype("int4"), 0.1)


def shape_of_result(desc):
    """Traces the compiled operator on flat buffers, without allocating them."""
    op = dml.compile_operator(desc)

    def buffer(name):
        value = getattr(desc, name)
        return tuple(map(flat, value)) if isinstance(value, tuple) else flat(value)

    def flat(tensor):
        size = max(math.prod(tensor.sizes), (tensor.total_tensor_size_in_bytes or 0) * 8 // tensor.data_type.bits)
        if tensor.strides is not None:
            size = max(size, 1 + sum((n - 1) * s for n, s in zip(tensor.sizes, tensor.strides, strict=True)))
        if tensor.data_type.bits == 4:  # two to a byte
            return jax.ShapeDtypeStruct((-(-size // 2),), np.uint8)
        return jax.ShapeDtypeStruct((size,), tensor.data_type.dtype)

    def call(owned, rest):
        return op(op.initialize(**owned), **rest)

    owned, rest = ({name: buffer(name) for name in names} for names in (op.owned, op.dispatched))
    if any(leaf.size >= 2**31 for leaf in jax.tree.leaves((owned, rest))):
        return None  # without 64-bit types, JAX has no array of this size
    return jax.eval_shape(call, owned, rest)


@pytest.mark.rare
@pytest.mark.parametrize("seed", rest_rarely(range(3), 1))
def test_mutated_descs(seed):
    rng = np.random.default_rng(seed)
    valid = [dml.desc_to_dict(desc) for desc in valid_descs()]
    results, errors = 0, []
    for _ in range(1500):
        written = mutated(rng, valid[rng.integers(len(valid))])
        try:
            desc = dml.desc_from_dict(written)
            shape_of_result(desc)
        except dml.DescError as error:
            errors.append(error)
        else:
            results += 1
            assert dml.desc_from_dict(json.loads(json.dumps(dml.desc_to_dict(desc)))) == desc
    assert results > 100
    assert all(error.tensor is not None for error in errors)
    assert len({re.sub(r"[\d.e+-]+", "0", str(error)) for error in errors}) > 150


@pytest.mark.rare
def test_mutated_fields():
    """Descs that were not read from JSON: every field is replaced by every value."""
    errors = []
    for desc in valid_descs():
        for field in dataclasses.fields(desc):
            tensor = getattr(desc, field.name)
            changed = [dataclasses.replace(desc, **{field.name: value}) for value in (*VALUES, tensor)]
            if isinstance(tensor, dml.TensorDesc):
                changed += [
                    dataclasses.replace(desc, **{field.name: dataclasses.replace(tensor, **{inner.name: value})})
                    for inner in dataclasses.fields(tensor)
                    for value in VALUES[::7]
                ]
            for wrong in changed:
                assert str(wrong)
                try:
                    dml.compile_operator(wrong)
                except dml.DescError as error:
                    errors.append(error)
    assert len(errors) > 3000
    assert all(error.tensor is not None for error in errors)
