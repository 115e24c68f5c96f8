"""Bindings of a compiled operator: persistent resources, sizes of buffers, names; and the descs of calls."""

import jax
import jax.export
import numpy as np
import pytest

import jaxdml as dml
from _compiled.bound import A, B, multiply
from helpers.compare import assert_same_bits, assert_same_values
from jaxdml import reference

pytestmark = pytest.mark.oldest


def test_a_persistent_resource_is_a_pytree():
    op, tensors = multiply()
    assert op.owned == ("b_tensor",)
    persistent = op.initialize(b_tensor=B)
    assert isinstance(persistent["b_tensor"], dml.PreparedMatrix)
    rest = {name: tensors[name] for name in op.dispatched}
    assert_same_bits(op(persistent, **rest), op(jax.tree.map(np.asarray, persistent), **rest))


OWNED_TEXT = (
    "BTensor has Flags OWNED_BY_DML: the first argument of the call must be the result of initialize(b_tensor=...)"
)
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
    "prepared": (
        lambda op, p, t: op(p, **t | {"a_tensor": dml.prepare_matrix_multiply_b(A)}),
        "a value of type PreparedMatrix, expected an array or a flat buffer; write a_tensor.array; a tensor of the "
        "desc with the flag OWNED_BY_DML is prepared once",
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
    """The minimum is rounded up to 4 bytes, but arrays need not be; a larger total is required in full."""
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
        op = dml.compile_operator(
            dml.ElementWiseDequantizeLinearDesc(input_tensor=tensor, scale_tensor=scale, output_tensor=output)
        )
        one = np.ones(1, np.float32)
        assert_same_values(op(input_tensor=np.arange(least, dtype=np.uint8), scale_tensor=one).ravel(), range(15))
        with pytest.raises(dml.DescError, match=f"needs at least {least}"):
            op(input_tensor=np.arange(least - 1, dtype=np.uint8), scale_tensor=one)
        if least > 15:
            with pytest.raises(dml.DescError, match=r"needs at least 20|at least 20 elements"):
                op(input_tensor=np.arange(15, dtype=np.uint8).reshape(sizes), scale_tensor=one)


def test_an_output_is_as_long_as_its_desc_says():
    """A desc can then be one operator's output and the next operator's input."""
    half = dml.TensorDesc(dml.DataType.FLOAT32, (3, 5), (0, 0))
    padded = dml.TensorDesc(dml.DataType.FLOAT32, (3, 5), (8, 1), total_tensor_size_in_bytes=128)
    first = dml.compile_operator(
        dml.ElementWiseDequantizeLinearDesc(
            input_tensor=dml.TensorDesc(dml.DataType.UINT8, (3, 5)), scale_tensor=half, output_tensor=padded
        )
    )
    second = dml.compile_operator(
        dml.ElementWiseQuantizeLinearDesc(
            input_tensor=padded, scale_tensor=half, output_tensor=dml.TensorDesc(dml.DataType.UINT8, (3, 5))
        )
    )
    scale = np.float32([0.5])
    buffer = first(input_tensor=A[0], scale_tensor=scale)
    assert buffer.shape == (32,)
    assert_same_bits(second(input_tensor=buffer, scale_tensor=scale), A[0])


def test_a_transpose_is_suggested_where_it_is_what_strides_say():
    for strides, hint in (
        ((72, 1, 12, 2), "at least 72 elements, such as x.transpose(0, 2, 3, 1).ravel()"),
        ((0, 0, 0, 0), "at least 1 elements"),
    ):
        tensor = dml.TensorDesc(dml.DataType.UINT8, (1, 2, 6, 6), strides)
        one = dml.TensorDesc(dml.DataType.FLOAT32, (1, 2, 6, 6), (0, 0, 0, 0))
        output = dml.TensorDesc(dml.DataType.FLOAT32, (1, 2, 6, 6))
        op = dml.compile_operator(
            dml.ElementWiseDequantizeLinearDesc(input_tensor=tensor, scale_tensor=one, output_tensor=output)
        )
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
    with pytest.raises(dml.DescError, match="that interleave and span 2\\*\\*31 elements or more; pack it"):
        dml.compile_operator(
            dml.ElementWiseDequantizeLinearDesc(input_tensor=windows, scale_tensor=scale, output_tensor=outputs)
        )


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
    with pytest.raises(dml.DescError, match="has rank 9, expected 1 to 8") as caught:
        dml.calc_buffer_tensor_size(dml.DataType.UINT8, (1,) * 9)
    assert (caught.value.expected, caught.value.received) == ((1, 8), 9)
    for wrong in ((3, -5), 5, None, (), (1,) * 9, "3"):
        with pytest.raises(dml.DescError, match=r"calc_buffer_tensor_size: Tensor has (no )?(Sizes|rank)"):
            dml.calc_buffer_tensor_size(dml.DataType.UINT8, wrong)
    with pytest.raises(dml.DescError, match="has Strides 5, expected"):
        dml.calc_buffer_tensor_size(dml.DataType.UINT8, (3,), 5)
    with pytest.raises(dml.DescError, match="has data type UNKNOWN"):
        dml.calc_buffer_tensor_size(dml.DataType.UNKNOWN, (3,))


def test_desc_of_a_call_with_a_symbolic_batch():
    """The desc compiles for any batch, but JSON cannot represent it."""
    (batch,) = jax.export.symbolic_shape("batch")

    def call(x):
        desc = dml.desc_of(dml.element_wise_dequantize_linear, x, np.float32(0.5), 3)
        with pytest.raises(dml.DescError, match=r"InputTensor has Sizes .* symbolic"):
            dml.desc_to_dict(desc)
        constants = {"scale_tensor": np.float32([0.5]), "zero_point_tensor": np.uint8([3])}
        return dml.compile_operator(desc)(input_tensor=x, **constants)

    exported = jax.export.export(jax.jit(call))(jax.ShapeDtypeStruct((batch, 5), np.uint8))
    expected = reference.element_wise_dequantize_linear(A[0], np.float32(0.5), np.uint8(3))
    assert_same_bits(exported.call(A[0]), expected)
