"""Compiled operators: descs as functions, with flat buffers, persistent resources, and the bits of the functions."""

import dataclasses
import math
import re
from functools import partial

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from cases import CONVOLUTION, MATRIX_MULTIPLY, Case
from jaxdml import reference

OWNED = dml.TensorFlags.OWNED_BY_DML
RNG = np.random.default_rng(0)
X, F = RNG.integers(0, 256, (2, 4, 6, 6), np.uint8), RNG.integers(-128, 128, (6, 2, 3, 3), np.int8)
A, B = RNG.integers(0, 256, (2, 3, 5), np.uint8), RNG.integers(-128, 128, (2, 5, 4), np.int8)
V = RNG.normal(0, 50, (2, 3, 4)).astype(np.float32)
ROW, COLUMN = np.float32([[[1], [2], [3]]]) / 8, np.float32([0.1, 0.2, 0.3, 0.4])
ELEMENTWISE = [
    Case("element_wise_dequantize_linear", (A, np.float32(0.1), np.uint8(3)), {}),
    Case("element_wise_dequantize_linear", (A, np.float32([1, 2, 3, 4, 5]), None), {}),
    Case("element_wise_dequantize_linear", (A, ROW, np.uint8([1, 2, 3, 4, 5])), {}),
    Case("element_wise_quantize_linear", (V, ROW, np.int8(3)), {}),
    Case("element_wise_quantize_linear", (V.astype(np.float16), np.float16(0.5), None), {"output_dtype": np.int16}),
    Case(
        "element_wise_quantized_linear_add",
        (A, np.float32(0.1), np.uint8(3), A[::-1], np.float32(0.2), None, np.float32(0.3), np.int8(5)),
        {},
    ),
]
CHUNKS = [ELEMENTWISE, *MATRIX_MULTIPLY, *CONVOLUTION]


def described(case):
    """The desc of a call, and its arrays as the desc wants them bound: in its sizes, or flat where it has strides."""
    desc = dml.desc_of(getattr(dml, case.operator), *case.arguments, **case.options)
    names = [field.name for field in dataclasses.fields(desc) if field.name.endswith("_tensor")]
    tensors = {}
    for name, array in zip(names, case.arguments, strict=False):
        if array is not None:
            tensor = getattr(desc, name)
            tensors[name] = np.ascontiguousarray(np.reshape(array, -1 if tensor.strides else tensor.sizes))
    return desc, tensors


def owning(desc, *names):
    changes = {name: dataclasses.replace(getattr(desc, name), flags=OWNED) for name in names}
    return dataclasses.replace(desc, **changes)


@pytest.mark.parametrize("chunk", CHUNKS, ids=lambda chunk: chunk[0].operator)
def test_same_bits_as_the_functions(chunk):
    """Every case of the table, called by its desc; the last input is owned where the number of the case is even."""
    calls = [described(case) for case in chunk]
    operators, given = [], []
    for number, (desc, tensors) in enumerate(calls):
        last = [name for name in tensors if "scale" not in name and "zero_point" not in name][-1]
        desc = owning(desc, last) if number % 2 else desc
        operators.append(dml.compile_operator(desc))
        given.append(tensors)

    @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # there is more to compile than to run
    def together(given):
        outputs = []
        for op, tensors in zip(operators, given, strict=True):
            persistent = op.initialize(**{name: tensors[name] for name in op.owned})
            outputs.append(op(persistent, **{name: tensors[name] for name in op.dispatched}))
        return outputs

    for case, got in zip(chunk, together(given), strict=True):
        assert (got.shape, got.dtype) == (case.expected.shape, case.expected.dtype)
        np.testing.assert_array_equal(got, case.expected)


FULL = Case("element_wise_quantize_linear", (V, np.full(V.shape, 0.3, np.float32), np.full(V.shape, 3, np.int8)), {})

FULL_BACK = Case("element_wise_dequantize_linear", (A, np.full(A.shape, 0.3, np.float32), A[::-1]), {})


def operations(function, *arrays):
    """What a compiled program does, in order: the shape, layout and kind of every instruction."""
    text = jax.jit(function).lower(*arrays).compile().as_text()
    return re.findall(r" = (\S+) ([\w-]+)\(", text)


@pytest.mark.parametrize(
    "case", [FULL, FULL_BACK, ELEMENTWISE[-1], MATRIX_MULTIPLY[0][0], CONVOLUTION[0][0]], ids=lambda case: case.operator
)
def test_a_packed_desc_compiles_to_the_functions_program(case):
    """Also if strides say what packed is. Flat buffers add nothing but reshapes of the arguments, which are free."""
    desc, tensors = described(case)
    names, arrays = list(tensors), list(tensors.values())
    given = iter(range(len(arrays)))
    places = [None if x is None else next(given) for x in case.arguments]
    expected = operations(lambda *all: case.call(*(None if i is None else all[i] for i in places)), *arrays)
    assert len(expected) > len(arrays)
    packed = {
        name: dataclasses.replace(getattr(desc, name), strides=tuple(np.divide(x.strides, x.itemsize).astype(int)))
        for name, x in tensors.items()
    }
    for form in (desc, dataclasses.replace(desc, **packed)):
        op = dml.compile_operator(form)
        assert operations(lambda *all, op=op: op(**dict(zip(names, all, strict=True))), *arrays) == expected
        flat = [x.ravel() for x in arrays]
        kinds = [kind for _, kind in operations(lambda *all, op=op: op(**dict(zip(names, all, strict=True))), *flat)]
        free = ("bitcast", "reshape")
        assert [k for k in kinds if k not in free] == [k for _, k in expected if k not in free]


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
    np.testing.assert_array_equal(program(tensors), case.expected)
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
    np.testing.assert_array_equal(program(tensors | {"input_tensor": x.ravel()}), case.expected)
    assert "s32[64," not in program.as_text()


def test_strided_inputs_and_outputs():
    """NHWC in and out, a filter with padded rows, a batch that is one image repeated."""
    case = Case(
        "quantized_linear_convolution",
        (X[[0, 0]], np.float32(0.1), np.uint8(3), F, np.float32(0.1), None, None, np.float32(9), np.int8(5)),
        {"strides": 2, "start_padding": 1, "group_count": 2},
    )
    desc, tensors = described(case)
    n, o, h, w = case.expected.shape
    rows = np.pad(F, ((0, 0), (0, 0), (0, 0), (0, 2)))
    desc = owning(
        dataclasses.replace(
            desc,
            input_tensor=dml.TensorDesc(dml.DataType.UINT8, X.shape, (0, 1, 24, 4)),
            filter_tensor=dml.TensorDesc(dml.DataType.INT8, F.shape, (30, 15, 5, 1)),
            output_tensor=dml.TensorDesc(dml.DataType.INT8, (n, o, h, w), (h * w * o, 1, w * o, o)),
        ),
        "filter_tensor",
    )
    op = dml.compile_operator(desc)
    persistent = op.initialize(filter_tensor=rows.ravel())
    assert isinstance(persistent["filter_tensor"], dml.PreparedFilter)
    tensors = {name: tensors[name] for name in op.dispatched} | {"input_tensor": X[0].transpose(1, 2, 0).ravel()}
    expected = case.expected.transpose(0, 2, 3, 1).ravel()
    np.testing.assert_array_equal(op(persistent, **tensors), expected)
    buffer = RNG.integers(-128, 128, expected.size + 7).astype(np.int8)
    got = jax.jit(op)(persistent, output_tensor=buffer, **tensors)
    np.testing.assert_array_equal(got, np.concatenate([expected, buffer[-7:]]))


def test_gaps_of_the_output_are_kept():
    desc = dml.desc_of(dml.element_wise_dequantize_linear, A[0], np.full(A[0].shape, 0.5, np.float32))
    desc = dataclasses.replace(desc, output_tensor=dml.TensorDesc(dml.DataType.FLOAT32, A[0].shape, (7, 1)))
    op, tensors = dml.compile_operator(desc), {"input_tensor": A[0], "scale_tensor": np.full(15, 0.5, np.float32)}
    expected = np.zeros((3, 7), np.float32)
    expected[:, :5] = A[0] / 2
    np.testing.assert_array_equal(op(**tensors), expected.ravel()[:19])
    expected[:, 5:] = -1
    np.testing.assert_array_equal(op(output_tensor=np.full(21, -1, np.float32), **tensors), expected.ravel())


def test_parameters_of_a_3d_convolution_in_4d():
    x, f, scale = X[:, :, 0], F[..., 0], np.linspace(0.1, 0.2, 6).astype(np.float32)
    rest = (np.float32(0.1), np.uint8(3), f, scale, np.int8([1, 2, 3, 4, 5, 6]), None, np.float32(9), np.uint8(5))
    desc = dml.desc_of(dml.quantized_linear_convolution, x, *rest, group_count=2)
    four = {
        name: dml.TensorDesc(getattr(desc, name).data_type, (1, 6, 1, 1))
        for name in ("filter_scale_tensor", "filter_zero_point_tensor")
    }
    op = dml.compile_operator(dataclasses.replace(desc, **four))
    tensors = dict(zip(op.dispatched, (x, *(v for v in rest if v is not None)), strict=True))
    tensors = {name: np.reshape(value, getattr(op.desc, name).sizes) for name, value in tensors.items()}
    expected = reference.quantized_linear_convolution(x, *rest, group_count=2)
    np.testing.assert_array_equal(op(**tensors), expected)


def test_through_transformations():
    """vmap over the input, and the gradient by the scale."""
    desc = dml.desc_of(dml.element_wise_dequantize_linear, A[0], np.full(A[0].shape, 0.5, np.float32))
    op, scale = dml.compile_operator(desc), jnp.full(A[0].shape, 0.5, jnp.float32)
    got = jax.vmap(lambda x: op(input_tensor=x, scale_tensor=scale))(A)
    np.testing.assert_array_equal(got, A / np.float32(2))
    by_scale = jax.grad(lambda scale: op(input_tensor=A[0], scale_tensor=scale).sum())(scale)
    np.testing.assert_array_equal(by_scale, A[0].astype(np.float32))
    assert hash(op) == hash(dml.compile_operator(desc))


def multiply():
    case = Case(
        "quantized_linear_matrix_multiply",
        (A, np.float32(0.1), np.uint8(3), B, np.float32(0.1), None, np.float32(9), np.uint8(5)),
        {},
    )
    desc, tensors = described(case)
    return dml.compile_operator(owning(desc, "b_tensor")), tensors


def test_a_persistent_resource_is_a_pytree():
    op, tensors = multiply()
    assert op.owned == ("b_tensor",)
    persistent = op.initialize(b_tensor=B)
    assert isinstance(persistent["b_tensor"], dml.PreparedMatrix)
    rest = {name: tensors[name] for name in op.dispatched}
    np.testing.assert_array_equal(op(persistent, **rest), op(jax.tree.map(np.asarray, persistent), **rest))


OWNED_TEXT = "BTensor has Flags OWNED_BY_DML: the first argument of the call must be what initialize(b_tensor=...)"
WRONG = {
    "nothing bound": (lambda op, p, t: op(p), "ATensor is not bound; give a_tensor to the call"),
    "no persistent resource": (lambda op, p, t: op(**t), OWNED_TEXT),
    "another's persistent resource": (lambda op, p, t: op({"b_tensor": B}, **t), OWNED_TEXT),
    "no pytree": (lambda op, p, t: op(3, **t), OWNED_TEXT),
    "no names": (lambda op, p, t: op({1: 2, "a": 3}, **t), OWNED_TEXT),
    "no arrays": (
        lambda op, p, t: op(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), p), **t),
        OWNED_TEXT,
    ),
    "owned, at dispatch": (
        lambda op, p, t: op(p, b_tensor=B, **t),
        "BTensor has Flags OWNED_BY_DML, so it goes to initialize, not to the call",
    ),
    "not owned, at initialize": (
        lambda op, p, t: op.initialize(b_tensor=B, a_tensor=A),
        "ATensor has Flags NONE, so it goes to the call, not to initialize",
    ),
    "absent": (
        lambda op, p, t: op(p, b_zero_point_tensor=np.int8([1]), **t),
        "BZeroPointTensor is absent from the desc; leave it out of the call",
    ),
    "unknown": (
        lambda op, p, t: op(p, weights=B, **t),
        "there is no argument weights; the call takes a_tensor, a_scale_tensor",
    ),
    "the page's name": (lambda op, p, t: op(p, ATensor=A), "there is no argument ATensor; write a_tensor"),
    "an option": (lambda op, p, t: op(p, desc=B, **t), "there is no argument desc"),
    "other sizes": (
        lambda op, p, t: op(p, **t | {"a_tensor": A[0]}),
        "ATensor is bound to shape [3, 5], the desc has Sizes [2, 3, 5]; give an array of these sizes or a flat buffer",
    ),
    "too small": (
        lambda op, p, t: op(p, **t | {"a_tensor": A.ravel()[1:]}),
        "ATensor is bound to a buffer of 29 elements, the desc needs at least 30",
    ),
    "another type": (
        lambda op, p, t: op(p, **t | {"a_tensor": A.astype(np.int8)}),
        "ATensor is bound to int8, the desc says UINT8",
    ),
    "no array": (
        lambda op, p, t: op(p, **t | {"a_scale_tensor": 0.1}),
        "AScaleTensor is bound to a value of type float, expected an array or a flat buffer; write np.asarray(",
    ),
    "output too small": (
        lambda op, p, t: op(p, output_tensor=np.zeros(3, np.uint8), **t),
        "OutputTensor is bound to a buffer of 3 elements, the desc needs at least 24",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_bindings(name):
    op, tensors = multiply()
    persistent = op.initialize(b_tensor=B)
    rest = {name: tensors[name] for name in op.dispatched}
    call, message = WRONG[name]
    with pytest.raises(dml.DescError) as error:
        call(op, persistent, rest)
    assert message in str(error.value)
    assert error.value.operator == "quantized_linear_matrix_multiply"


def test_a_persistent_resource_that_nobody_owns():
    desc = dml.desc_of(dml.element_wise_dequantize_linear, A, np.full(A.shape, 0.5, np.float32))
    op = dml.compile_operator(desc)
    assert op.initialize() == {}
    with pytest.raises(dml.DescError, match="no tensor has Flags OWNED_BY_DML; leave the first argument out"):
        op({"input_tensor": A}, input_tensor=A, scale_tensor=np.full(A.shape, 0.5, np.float32))


def test_total_tensor_size_is_what_a_buffer_must_have():
    """The minimum is rounded up to 4 bytes, which arrays need not be; more than the minimum is meant."""
    for sizes, total, least in (
        ((3, 5), None, 15),
        ((3, 5), 16, 15),
        ((3, 5), 20, 20),
        ((15,), 20, 20),
        ((15,), 16, 15),
    ):
        tensor = dml.TensorDesc(dml.DataType.UINT8, sizes, total_tensor_size_in_bytes=total)
        scale = dml.TensorDesc(dml.DataType.FLOAT32, sizes, (0,) * len(sizes))
        output = dml.TensorDesc(dml.DataType.FLOAT32, sizes)
        op = dml.compile_operator(dml.ElementWiseDequantizeLinearDesc(tensor, scale, None, output))
        one = np.ones(1, np.float32)
        np.testing.assert_array_equal(
            op(input_tensor=np.arange(least, dtype=np.uint8), scale_tensor=one).ravel(), range(15)
        )
        with pytest.raises(dml.DescError, match=f"needs at least {least}"):
            op(input_tensor=np.arange(least - 1, dtype=np.uint8), scale_tensor=one)
        if least > 15:
            with pytest.raises(dml.DescError, match=r"needs at least 20|at least 20 elements"):
                op(input_tensor=np.arange(15, dtype=np.uint8).reshape(sizes), scale_tensor=one)


def test_an_output_is_as_long_as_its_desc_says():
    """So that a desc can be one operator's output and the next one's input."""
    half = dml.TensorDesc(dml.DataType.FLOAT32, (3, 5), (0, 0))
    padded = dml.TensorDesc(dml.DataType.FLOAT32, (3, 5), (8, 1), total_tensor_size_in_bytes=128)
    first = dml.compile_operator(
        dml.ElementWiseDequantizeLinearDesc(dml.TensorDesc(dml.DataType.UINT8, (3, 5)), half, None, padded)
    )
    second = dml.compile_operator(
        dml.ElementWiseQuantizeLinearDesc(padded, half, None, dml.TensorDesc(dml.DataType.UINT8, (3, 5)))
    )
    scale = np.float32([0.5])
    buffer = first(input_tensor=A[0], scale_tensor=scale)
    assert buffer.shape == (32,)
    np.testing.assert_array_equal(second(input_tensor=buffer, scale_tensor=scale), A[0])


def test_a_transpose_is_suggested_where_it_is_what_strides_say():
    for strides, hint in (
        ((72, 1, 12, 2), "at least 72 elements, such as x.transpose(0, 2, 3, 1).ravel()"),
        ((0, 0, 0, 0), "at least 1 elements"),
    ):
        tensor = dml.TensorDesc(dml.DataType.UINT8, (1, 2, 6, 6), strides)
        one = dml.TensorDesc(dml.DataType.FLOAT32, (1, 2, 6, 6), (0, 0, 0, 0))
        output = dml.TensorDesc(dml.DataType.FLOAT32, (1, 2, 6, 6))
        op = dml.compile_operator(dml.ElementWiseDequantizeLinearDesc(tensor, one, None, output))
        with pytest.raises(dml.DescError) as error:
            op(input_tensor=np.zeros((1, 2, 6, 6), np.uint8), scale_tensor=np.ones(1, np.float32))
        assert str(error.value).endswith(f"give a flat buffer of {hint}")


def test_compile_operator_checks_the_desc():
    desc = dml.desc_of(dml.element_wise_dequantize_linear, A, np.float32(0.5))
    with pytest.raises(dml.FeatureLevelError, match="ZeroPointTensor is missing"):
        dml.compile_operator(desc, dml.FeatureLevel.LEVEL_6_0)
    windows = dml.TensorDesc(dml.DataType.UINT8, (2**15, 2**16 + 1), (2**16, 1))
    outputs = dml.TensorDesc(dml.DataType.FLOAT32, windows.sizes)
    scale = dml.TensorDesc(dml.DataType.FLOAT32, windows.sizes, (0, 0))
    with pytest.raises(dml.DescError, match="not rows of rows, across 2\\*\\*31 or more elements; pack it"):
        dml.compile_operator(dml.ElementWiseDequantizeLinearDesc(windows, scale, None, outputs))


def test_desc_of_takes_operators_only():
    with pytest.raises(dml.DescError, match="desc_of: function is sorted, expected an operator such as"):
        dml.desc_of(sorted, A)
    with pytest.raises(dml.DescError, match="ScaleTensor has Sizes"):
        dml.desc_of(dml.element_wise_dequantize_linear, A, np.ones(4, np.float32))
    assert dml.desc_of(dml.checked.element_wise_dequantize_linear, A, 0.5).input_tensor.sizes == A.shape


def test_calc_buffer_tensor_size():
    assert dml.calc_buffer_tensor_size(dml.DataType.UINT8, (3, 5)) == 16
    assert dml.calc_buffer_tensor_size(dml.DataType.FLOAT32, [2, 3, 4], [4, 0, 1]) == 32
    assert dml.calc_buffer_tensor_size(dml.DataType.INT4, (3,)) == 4
    for wrong in ((3, -5), 5, None, (), (1,) * 9, "3"):
        with pytest.raises(dml.DescError, match=r"calc_buffer_tensor_size: Tensor has (no )?(Sizes|rank)"):
            dml.calc_buffer_tensor_size(dml.DataType.UINT8, wrong)
    with pytest.raises(dml.DescError, match="has Strides 5, expected"):
        dml.calc_buffer_tensor_size(dml.DataType.UINT8, (3,), 5)
    with pytest.raises(dml.DescError, match="has data type UNKNOWN"):
        dml.calc_buffer_tensor_size(dml.DataType.UNKNOWN, (3,))


def test_desc_of_a_call_with_a_symbolic_batch():
    """It compiles for any batch; only JSON has no way to write it."""
    (batch,) = jax.export.symbolic_shape("batch")

    def call(x):
        desc = dml.desc_of(dml.element_wise_dequantize_linear, x, np.float32(0.5), 3)
        with pytest.raises(dml.DescError, match=r"InputTensor has Sizes .* symbolic"):
            dml.desc_to_dict(desc)
        constants = {"scale_tensor": np.float32([0.5]), "zero_point_tensor": np.uint8([3])}
        return dml.compile_operator(desc)(input_tensor=x, **constants)

    exported = jax.export.export(jax.jit(call))(jax.ShapeDtypeStruct((batch, 5), np.uint8))
    expected = reference.element_wise_dequantize_linear(A[0], np.float32(0.5), np.uint8(3))
    np.testing.assert_array_equal(exported.call(A[0]), expected)
