"""jax.export: every operator for three platforms, any batch; read back in a fresh process, the same bits."""

import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax import export

import jaxdml as dml
from jaxdml.examples import digits

RNG = np.random.default_rng(0)
PLATFORMS = ("cpu", "cuda", "tpu")
X, F = RNG.integers(0, 256, (5, 32, 9, 9), np.uint8), RNG.integers(0, 256, (24, 32, 3, 3), np.uint8)
A, B = RNG.integers(0, 256, (5, 64), np.uint8), RNG.integers(-128, 128, (64, 20), np.int8)


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


@pytest.mark.parametrize("name", CALLS)
def test_every_operator_is_exported_for_any_batch(name):
    function, x, *weights = CALLS[name]
    exported = export.export(jax.jit(function), platforms=PLATFORMS)(with_any_batch(x), *weights)
    read = export.deserialize(exported.serialize())
    for batch in (1, 5):
        np.testing.assert_array_equal(read.call(x[:batch], *weights), function(x[:batch], *weights))


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("dequantize", "quantize", "add")])
def test_accelerators_get_products_of_int8(name, platform):
    """No mixed types and no uint8; and no convolution for CUDA, where XLA refuses most of them."""
    function, x, *weights = CALLS[name]
    module = export.export(jax.jit(function), platforms=[platform])(x, *weights).mlir_module()
    assert set(contractions(module)) == {("i8", "i8")}
    assert ("stablehlo.convolution" in module) == (platform == "tpu" and name.startswith(("conv", "depth")))


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_accelerators_get_a_network_of_int8_products(platform):
    images, _, parameters, _ = digits.load()
    network = export.export(jax.jit(digits.int8_network), platforms=[platform])
    module = network(parameters, with_any_batch(images)).mlir_module()
    assert set(contractions(module)) == {("i8", "i8")}
    assert ("stablehlo.convolution" in module) == (platform == "tpu")


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
    np.testing.assert_array_equal(np.load(tmp_path / "output.npy"), network(parameters, images))
