"""Arguments that are almost an array, almost a number, or almost an integer."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from _operators.calls import DATA, GOOD, caught, ending, page_name
from helpers.compare import assert_same_bits

X = np.arange(6, dtype=np.uint8).reshape(1, 1, 2, 3)
dequantize = dml.element_wise_dequantize_linear
quantize = dml.element_wise_quantize_linear


def test_a_masked_array_is_refused_for_its_mask_would_be_lost():
    for operator, names in DATA.items():
        for name in names:
            error = caught(operator, {**GOOD[operator], name: np.ma.array(GOOD[operator][name])})
            assert type(error) is dml.ArgumentTypeError
            assert f"{page_name(name)} is a MaskedArray, expected an array" in str(error)


def test_an_array_that_is_mapped_from_a_file_is_an_array(tmp_path):
    X.tofile(tmp_path / "x.bin")
    mapped = np.memmap(tmp_path / "x.bin", np.uint8, "r", shape=X.shape)
    assert_same_bits(dequantize(mapped, 0.1), dequantize(X, 0.1))


def test_a_random_key_is_no_scale():
    for operator, name in ending("scale"):
        error = caught(operator, {**GOOD[operator], name: jax.random.key(0)})
        assert f"{page_name(name, operator)} has type key<fry>, which DirectML does not have" in str(error)


def test_an_imaginary_part_is_not_dropped_while_tracing():
    with pytest.raises(dml.DescError, match="ScaleTensor has type complex64, which DirectML does not have"):
        jax.jit(dequantize)(X, 0.5 + 1j)


@pytest.mark.parametrize("scale", [1e-50, -1e-50, 10**-60])
def test_a_number_that_would_become_zero_is_refused(scale):
    with pytest.raises(dml.DescError, match=r"ScaleTensor is .*, which FLOAT32 cannot hold"):
        dequantize(X, scale)
    assert not dequantize(X, 0.0).any()


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_the_level_refuses_but_never_changes_the_output_type(dtype):
    x = X.astype(np.float32)
    assert quantize(x, 0.1, dtype(3), feature_level=dml.FeatureLevel.JAXDML).dtype == dtype
    for zero_point in (dtype(3), np.asarray(3, dtype)):
        with pytest.raises(dml.FeatureLevelError):
            quantize(x, 0.1, zero_point, feature_level=dml.FeatureLevel.LEVEL_1_0)
    if dtype == np.int16:
        with pytest.raises(dml.FeatureLevelError, match=r"allowed from FeatureLevel\.JAXDML, an extension that"):
            quantize(x, 0.1, dtype(3))


def test_numpy_integers_are_integers_in_descs():
    one = dml.TensorDesc(dml.DataType.FLOAT32, (1, 1, 1), None, total_tensor_size_in_bytes=np.int64(4))
    input_tensor = dml.TensorDesc(dml.DataType.UINT8, np.array([1, 2, 5]), guaranteed_base_offset_alignment=np.int8(4))
    desc = dml.QuantizedLinearConvolutionDesc(
        input_tensor=input_tensor,
        input_scale_tensor=one, filter_tensor=dml.TensorDesc(dml.DataType.INT8, [3, 2, 2]), filter_scale_tensor=one,
        output_scale_tensor=one, output_tensor=dml.TensorDesc(dml.DataType.UINT8, (1, 3, 4)),
        dimension_count=np.uint32(1), strides=np.ones(1, np.uint32), dilations=[np.int64(1)], start_padding=(0,),
        end_padding=(0,), group_count=np.uint32(1),
    )  # fmt: skip
    assert dml.validate(desc).shape == (1, 3, 4)


def test_absurd_padding_is_the_paddings_fault():
    filter = np.zeros((1, 1, 1, 1), np.int8)
    with pytest.raises(dml.DescError) as error:
        dml.quantized_linear_convolution(X, 1.0, None, filter, 1.0, None, None, 1.0, None, start_padding=10**12)
    assert error.value.tensor == "StartPadding"


def test_errors_keep_no_tracer():
    errors = []

    def call(strides):
        try:
            dml.quantized_linear_convolution(X, 1.0, None, X.view(np.int8), 1.0, None, None, 1.0, None, strides=strides)
        except dml.DescError as error:
            errors.append(error)
        return strides

    jax.jit(call)(jnp.int32(1))
    (error,) = errors
    assert pickle.loads(pickle.dumps(error)).received == "a traced array"
