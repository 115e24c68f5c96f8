"""jax.export: every operator for three platforms, any batch; read back in a fresh process, the same bits."""

import functools
import itertools
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.marks import rarely_on_xla
from jaxdml.examples import digits

pytestmark = [rarely_on_xla, pytest.mark.oldest]

RNG = np.random.default_rng(0)
PLATFORMS = ("cpu", "cuda", "tpu")
X, F = RNG.integers(0, 256, (5, 32, 9, 9), np.uint8), RNG.integers(0, 256, (24, 32, 3, 3), np.uint8)
A, B = RNG.integers(0, 256, (5, 64), np.uint8), RNG.integers(-128, 128, (64, 20), np.int8)


BIAS, BLOCKS = RNG.normal(size=20).astype(np.float32), RNG.uniform(1, 9, (1, 4)).astype(np.float32)


def convolve(x, f):
    return dml.quantized_linear_convolution(x, 0.1, 3, f, 0.1, 7, None, 50.0, 5, start_padding=1)


def multiply(a, b):
    return dml.quantized_linear_matrix_multiply(a, 0.1, 3, b, 0.1, None, 20.0, 5)


CALLS = {
    "dequantize": (lambda x: dml.element_wise_dequantize_linear(x, 0.1, 3), A),
    "quantize": (lambda x: dml.element_wise_quantize_linear(x, 0.1, 3), A.astype(np.float32)),
    "add": (lambda x: dml.element_wise_quantized_linear_add(x, 0.1, 3, x, 0.2, 4, 0.3, 5), A),
    "multiply": (multiply, A, B),
    "multiply prepared": (multiply, A, dml.prepare_matrix_multiply_b(B)),
    "convolve": (convolve, X, F),
    "convolve prepared": (convolve, X, dml.prepare_convolution_filter(F)),
    "integer product": (lambda a, b: dml.matrix_multiply_integer(a, 3, b, 5), A, B),
    "integer product prepared": (
        lambda a, b: dml.matrix_multiply_integer(a, 3, b, 5), A, dml.prepare_matrix_multiply_b(B),
    ),
    "integer convolution": (lambda x, f: dml.convolution_integer(x, 3, f, 5, start_padding=1), X, F),
    "product in floats": (lambda a, b, c: dml.matrix_multiply_integer_to_float(a, 0.1, 3, b, 0.1, None, c), A, B, BIAS),
    "product of words": (
        lambda a, b: dml.matrix_multiply_integer_to_float(a, 0.1, 3, b, 0.1, None), A.astype(np.int16), B,
    ),
    "pooling": (lambda x: dml.quantized_linear_average_pooling(x, 0.1, 3, 0.2, 5, window_size=3, start_padding=1), X),
    "pooling of whole images": (lambda x: dml.quantized_linear_average_pooling(x, 0.1, 3, 0.2, 5, window_size=9), X),
    "dynamic quantization": (lambda x: tuple(dml.dynamic_quantize_linear(x)), A.astype(np.float32)),
    "quantization by blocks": (
        lambda x, s: dml.quantize(x, s, output_dtype=jnp.uint4).astype(np.uint8), A.astype(np.float32), BLOCKS,
    ),
    "dequantization by blocks": (dml.dequantize, A, BLOCKS),
    "depthwise": (
        lambda x, f: dml.quantized_linear_convolution(x, 0.1, 3, f, 0.1, 7, None, 50.0, 5, group_count=32),
        X, F.reshape(-1)[: 32 * 9].reshape(32, 1, 3, 3),
    ),
}  # fmt: skip


def with_any_batch(x):
    (batch,) = export.symbolic_shape("batch")
    return jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype)


def contractions(module):
    """The element types of every product and convolution of a module."""
    lines = [line for line in module.splitlines() if re.search(r"stablehlo\.(dot_general|convolution)", line)]
    return [re.search(r": \(tensor<(?:[\d?]+x)*(\w+)>, tensor<(?:[\d?]+x)*(\w+)>\)", line).groups() for line in lines]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CALLS)
def test_every_operator_is_exported_for_any_batch(name):
    function, x, *weights = CALLS[name]
    exported = export.export(jax.jit(function), platforms=PLATFORMS)(with_any_batch(x), *weights)
    read = export.deserialize(exported.serialize())
    for batch in (1, 5):
        jax.tree.map(assert_same_bits, read.call(x[:batch], *weights), function(x[:batch], *weights))


def test_the_depth_of_products_of_bytes_may_be_open():
    """Also with zero points, whose product is multiplied by the depth. For words, the depth must be known."""
    m, k = export.symbolic_shape("m, k")
    shapes = [jax.ShapeDtypeStruct(shape, np.uint8) for shape in ((m, k), (m, 1), (k, 20))]
    exported = export.export(jax.jit(lambda a, z, b: dml.matrix_multiply_integer(a, z, b, 5)))(*shapes)
    zero_points = np.arange(5, dtype=np.uint8)[:, None]
    b = B.view(np.uint8)
    assert_same_bits(exported.call(A, zero_points, b), dml.matrix_multiply_integer(A, zero_points, b, np.uint8(5)))
    words = [jax.ShapeDtypeStruct(shape, np.int16) for shape in ((m, k), (k, 20))]
    with pytest.raises(dml.DescError, match=r"ATensor has symbolic K k, .*; use an integer"):
        export.export(jax.jit(lambda a, b: dml.matrix_multiply_integer_to_float(a, 1.0, None, b, 1.0, None)))(*words)


@pytest.mark.parametrize("window", [(None, None), (None, 3), (4, None)])
def test_a_window_may_be_as_large_as_a_symbolic_image(window):
    def pooled(x):
        size = [extent or whole for extent, whole in zip(window, x.shape[2:], strict=True)]
        return dml.quantized_linear_average_pooling(x, 0.1, 3, 0.02, 5, window_size=size, strides=(1, 2))

    shape = jax.ShapeDtypeStruct(export.symbolic_shape("b, 32, h, w", constraints=["h >= 4", "w >= 3"]), np.uint8)
    exported = export.export(jax.jit(pooled), platforms=PLATFORMS)(shape)
    for x in (X, X[:2, :, :5]):
        assert_same_bits(exported.call(x), pooled(x))


PER_ROW = {
    "quantize": (dml.element_wise_quantize_linear, "m, 64", "m, 1"),
    "dequantize": (lambda x, scale: dml.element_wise_dequantize_linear(x.astype(np.uint8), scale), "m, 64", "m, 1"),
    "fake_quantize": (dml.fake_quantize, "m, 64", "m, 1"),
    "per column": (dml.element_wise_quantize_linear, "5, m", "m"),
    "bias": (
        lambda a, c: dml.matrix_multiply_integer_to_float(A, 0.1, 3, a.astype(np.int8), 0.1, None, c),
        "64, m",
        "m",
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PER_ROW)
def test_parameters_may_have_symbolic_sizes(name):
    function, *names = PER_ROW[name]
    arrays = [RNG.uniform(1, 9, export.symbolic_shape(each.replace("m", "12"))).astype(np.float32) for each in names]
    shapes = export.symbolic_args_specs(arrays, names)
    assert_same_bits(export.export(jax.jit(function))(*shapes).call(*arrays), function(*arrays))


IMAGES = RNG.integers(0, 256, (2, 32, 11, 12), np.uint8)
FILTERS = {"matrix": F[:, :16], "depthwise": F[0][:, None], "wide": F}


def convolved(name, stride, x):
    f, options = FILTERS[name], {"strides": stride, "group_count": 32 // FILTERS[name].shape[1]}
    return dml.quantized_linear_convolution(x, 0.1, 3, f, 0.1, 7, None, 50.0, 5, **options)


def convolved_by_jax(name, stride, x):
    f = FILTERS[name].astype(np.float32)
    return jax.lax.conv_general_dilated(
        x.astype(np.float32), f, (stride, stride), "VALID", feature_group_count=32 // f.shape[1]
    )


def pooled(x):
    return dml.quantized_linear_average_pooling(x, 0.1, 3, 0.2, 5, window_size=3, strides=2)


def several(name, stride, x):
    """Convolutions of the input, of a result that may be empty, and of means."""
    y = convolved(name, stride, x)[:, :16]
    return y, convolved(name, 2, jnp.concatenate([y, y], 1)), convolved(name, stride, pooled(x))


def with_any_height(*constraints):
    return jax.ShapeDtypeStruct(export.symbolic_shape("b, 32, h, w", constraints=constraints), np.uint8)


@pytest.mark.parametrize("constraints", [(), ("h >= 9", "w >= 9")])
def test_windows_without_padding_take_open_heights_and_widths(constraints):
    """Sizes have JAX's expressions, so that arrays of both can be added."""
    x = with_any_height(*constraints)
    for name, stride in itertools.product(FILTERS, (1, 2)):
        size = jax.eval_shape(lambda x: convolved(name, stride, x), x).shape[2]  # noqa: B023
        assert size == jax.eval_shape(lambda x: convolved_by_jax(name, stride, x), x).shape[2]  # noqa: B023
        with dml.use_kernels("xla"):
            jax.eval_shape(lambda x: several(name, stride, x), x)  # noqa: B023


@pytest.mark.rare
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("name", FILTERS)
def test_windows_without_padding_are_exported_for_any_height_and_width(name, stride):
    function = functools.partial(several, name, stride)
    exported = export.export(jax.jit(function), platforms=PLATFORMS)(with_any_height())
    for images in (IMAGES, IMAGES[:1, :, :9, :10]):
        jax.tree.map(assert_same_bits, exported.call(images), function(images))
    empty, *_ = exported.call(IMAGES[:, :, :2])
    assert empty.shape[2] == 0


def test_weights_of_symbolic_sizes_are_prepared_for_xla():
    shapes = export.symbolic_args_specs([A, B], ["m, 64", "64, n"])
    function = jax.jit(lambda a, b: dml.matrix_multiply_integer(a, 3, dml.prepare_matrix_multiply_b(b), 5))
    assert_same_bits(export.export(function)(*shapes).call(A, B), dml.matrix_multiply_integer(A, np.uint8(3), B, 5))


def test_filters_have_known_sizes():
    for sizes in ("o, 32, 3, 3", "24, 32, k, 3"):
        shape = jax.ShapeDtypeStruct(export.symbolic_shape(sizes), np.int8)
        with pytest.raises(dml.DescError, match=r"FilterTensor has symbolic Sizes \[.*; export a program for each"):
            export.export(jax.jit(functools.partial(convolve, X)))(shape)


def test_outputs_of_an_operator_are_written_to_files():
    exported = export.export(jax.jit(dml.dynamic_quantize_linear))(with_any_batch(A.astype(np.float32)))
    received = export.deserialize(exported.serialize()).call(A.astype(np.float32))
    assert type(received) is type(dml.dynamic_quantize_linear(A.astype(np.float32)))


SMALL = {"cuda": ("bf16", "bf16"), "tpu": ("i8", "i8")}  # the types of products; test_cuda.py has large ones


@pytest.mark.sampled(8)
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("name", [name for name in CALLS if re.search("multipl|product|convol|depthwise", name)])
def test_accelerators_get_products_of_one_type(name, platform):
    """No mixed types and no uint8; and no convolution for CUDA, where XLA refuses most of them."""
    function, x, *weights = CALLS[name]
    module = export.export(jax.jit(function), platforms=[platform])(x, *weights).mlir_module()
    has_none = name == "depthwise" and platform == "cuda"  # a sum of shifted products
    assert set(contractions(module)) == (set() if has_none else {SMALL[platform]})
    assert ("stablehlo.convolution" in module) == (
        platform == "tpu" and re.search("convol|depthwise", name) is not None
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_accelerators_get_a_network_of_products_of_one_type(platform):
    images, _, parameters, _ = digits.load()
    network = export.export(jax.jit(digits.int8_network), platforms=[platform])
    module = network(parameters, with_any_batch(images)).mlir_module()
    assert set(contractions(module)) == {SMALL[platform]}
    assert ("stablehlo.convolution" in module) == (platform == "tpu")


@pytest.mark.rare
@pytest.mark.parametrize("is_prepared", [False, True])
def test_the_network_runs_in_a_fresh_process(is_prepared, tmp_path):
    """Written with a symbolic batch; read without jaxdml, unless prepared weights are among its arguments."""
    images, _, parameters, _ = digits.load()
    images = np.asarray(images[:9])
    if is_prepared:
        parameters = parameters | {
            f"{layer.name}.filter": dml.prepare_convolution_filter(
                parameters[f"{layer.name}.filter"], group_count=layer.group_count
            )
            for layer in digits.NETWORK
            if layer.operator == digits.CONVOLUTION
        }
        parameters |= {"head.b": dml.prepare_matrix_multiply_b(parameters["head.b"])}
    network = jax.jit(digits.int8_network)
    exported = export.export(network, platforms=PLATFORMS)(parameters, with_any_batch(images))
    (tmp_path / "network").write_bytes(exported.serialize())
    leaves = jax.tree.leaves(parameters)
    np.savez(tmp_path / "data.npz", images, *leaves)
    program = f"""
import sys, jax, numpy as np
from jax import export
if {is_prepared}:
    import jaxdml
read = export.deserialize(open(r"{tmp_path}/network", "rb").read())
with np.load(r"{tmp_path}/data.npz") as file:
    images, *leaves = (file[name] for name in file.files)
(parameters, _), _ = jax.tree.unflatten(read.in_tree, [*leaves, images])
np.save(r"{tmp_path}/output.npy", read.call(parameters, images))
assert {is_prepared} or "jaxdml" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert_same_bits(np.load(tmp_path / "output.npy"), network(parameters, images))
