"""Compiled operators compile to the functions' programs, in which strides of 0 repeat nothing."""

import dataclasses
import math
import re

import jax
import numpy as np
import pytest

import jaxdml as dml
from _compiled.bound import ELEMENTWISE, MORE, OWNED, RNG, A, V, described, of_each
from helpers.cases import CONVOLUTION, MATRIX_MULTIPLY, Case
from helpers.compare import assert_same_bits
from helpers.marks import on_both_kernels

pytestmark = on_both_kernels

FULL = Case("element_wise_quantize_linear", (V, np.full(V.shape, 0.3, np.float32), np.full(V.shape, 3, np.int8)), {})


def in_order(sizes):
    """The strides of a packed tensor."""
    return tuple(math.prod(sizes[axis + 1 :]) for axis in range(len(sizes)))


FULL_BACK = Case("element_wise_dequantize_linear", (A, np.full(A.shape, 0.3, np.float32), A[::-1]), {})


def operations(function, *arrays):
    """The instructions of a compiled program, in order: the shape, layout and kind of each."""
    text = jax.jit(function).lower(*arrays).compile().as_text()
    return re.findall(r" = (\S+) ([\w-]+)\(", text)


PACKED = [FULL, FULL_BACK, ELEMENTWISE[-1], MATRIX_MULTIPLY[0][0], CONVOLUTION[0][0], *MORE[::2]]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", PACKED, ids=lambda case: case.operator)
def test_a_packed_desc_compiles_to_the_functions_program(case):
    """Also if the desc has the strides of a packed tensor. Flat buffers only add free reshapes of the arguments."""
    desc, tensors = described(case)
    arrays = [array for value in tensors.values() for array in (value if isinstance(value, tuple) else (value,))]

    def named(arrays):
        arrays = iter(arrays)
        return {name: of_each(value, lambda _: next(arrays)) for name, value in tensors.items()}

    given = iter(range(len(arrays)))
    places = [None if x is None else next(given) for x in case.arguments]
    expected = operations(lambda *all: case.call(*(None if i is None else all[i] for i in places)), *arrays)
    assert len(expected) > len(arrays)
    packed = {
        name: of_each(getattr(desc, name), lambda tensor: dataclasses.replace(tensor, strides=in_order(tensor.sizes)))
        for name in tensors
    }
    for form in (desc, dataclasses.replace(desc, **packed)):
        op = dml.compile_operator(form)
        assert operations(lambda *all, op=op: op(**named(all)), *arrays) == expected
        flat = [x.ravel() for x in arrays]
        kinds = [kind for _, kind in operations(lambda *all, op=op: op(**named(all)), *flat)]
        free = ("bitcast", "reshape")
        # XLA may reorder independent instructions.
        assert sorted(k for k in kinds if k not in free) == sorted(k for _, k in expected if k not in free)


def test_a_zero_stride_allocates_nothing():
    """64M elements with one scale and one zero point: the input, the output, and nothing else of that size."""
    sizes = (64, 1024, 1024)
    repeated = {"sizes": sizes, "strides": (0, 0, 0)}
    op = dml.compile_operator(
        dml.ElementWiseDequantizeLinearDesc(
            input_tensor=dml.TensorDesc(dml.DataType.UINT8, sizes),
            scale_tensor=dml.TensorDesc(dml.DataType.FLOAT32, **repeated),
            zero_point_tensor=dml.TensorDesc(dml.DataType.UINT8, **repeated),
            output_tensor=dml.TensorDesc(dml.DataType.FLOAT32, sizes),
        )
    )
    shapes = {
        "input_tensor": jax.ShapeDtypeStruct(sizes, np.uint8),
        "scale_tensor": jax.ShapeDtypeStruct((1,), np.float32),
        "zero_point_tensor": jax.ShapeDtypeStruct((1,), np.uint8),
    }
    program = jax.jit(lambda tensors: op(**tensors)).lower(shapes).compile()
    assert program.memory_analysis().temp_size_in_bytes < 1000
    assert re.findall(r"f32\[64,1024,1024\]\S* (?:broadcast|constant)\(", program.as_text().split("ENTRY")[1]) == []


@pytest.mark.parametrize("is_owned", [False, True])
def test_one_b_for_a_batch_of_a_is_not_repeated(is_owned):
    """As onnxruntime's DirectML provider binds weights: b has the batch of a, with strides of 0."""
    a, b = RNG.integers(0, 256, (4, 6, 32, 48), np.uint8), RNG.integers(-128, 128, (48, 40), np.int8)
    repeated, b_scale = np.broadcast_to(b, (4, 6, 48, 40)), np.linspace(0.1, 0.2, 40, dtype=np.float32)
    arguments = (a, np.float32(0.1), np.uint8(3), repeated, b_scale, None, np.float32(9), np.uint8(5))
    case = Case("quantized_linear_matrix_multiply", arguments, {})
    desc, tensors = described(case)
    flags = OWNED if is_owned else dml.TensorFlags.NONE
    b_tensor = dml.TensorDesc(dml.DataType.INT8, (4, 6, 48, 40), (0, 0, 40, 1), flags)
    op = dml.compile_operator(dataclasses.replace(desc, b_tensor=b_tensor))
    tensors["b_tensor"] = b.ravel()

    def call(tensors):
        persistent = op.initialize(**{name: tensors[name] for name in op.owned})
        return op(persistent, **{name: tensors[name] for name in op.dispatched})

    program = jax.jit(call).lower(tensors).compile()
    assert_same_bits(program(tensors), case.expected)
    shapes = re.findall(r"[su]8\[([\d,]+)\]", program.as_text())
    elements = {math.prod(map(int, shape.split(","))) for shape in shapes}
    assert b.size in elements
    assert repeated.size not in elements


def test_one_image_for_a_batch_is_convolved_once():
    x, f = RNG.integers(0, 256, (1, 32, 12, 12), np.uint8), RNG.integers(-128, 128, (24, 32, 3, 3), np.int8)
    rest = (np.float32(0.1), np.uint8(3), f, np.float32(0.1), None, None, np.float32(99), np.uint8(5))
    case = Case("quantized_linear_convolution", (np.broadcast_to(x, (64, 32, 12, 12)), *rest), {})
    desc, tensors = described(case)
    repeated = dml.TensorDesc(dml.DataType.UINT8, (64, 32, 12, 12), (0, 144, 12, 1))
    op = dml.compile_operator(dataclasses.replace(desc, input_tensor=repeated))
    program = jax.jit(lambda tensors: op(**tensors)).lower(tensors | {"input_tensor": x.ravel()}).compile()
    assert_same_bits(program(tensors | {"input_tensor": x.ravel()}), case.expected)
    assert "s32[64," not in program.as_text()
