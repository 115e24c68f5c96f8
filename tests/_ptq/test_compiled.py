"""The compiled programs of quantized models: contractions of integers, and bytes between operators."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen
from jax import lax

import jaxdml as dml
from _ptq.layers import Weights, conv
from _ptq.models import resnet18
from _ptq.quantized import batches_for, network, quantized
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from helpers.native_calls import needs_native
from jaxdml._graph.evaluate import evaluate
from jaxdml.ptq._trace.scans import bound

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="other backends have other programs")
KERNELS = rest_rarely(("native", "xla") if dml.kernels().startswith("native") else ("xla",), 1)
RARE = pytest.mark.rare
NAMES = ["plain", *(pytest.param(name, marks=RARE) for name in ("digits", "ResNet-18", "ResNet-18 of 224 pixels"))]


@functools.cache
def made(name, kernels):
    """The model, its inputs, and its compiled program, on these kernels."""
    with dml.use_kernels(kernels):
        if name.endswith("224 pixels"):
            apply, params, make_inputs = resnet18()
            model = dml.ptq.quantize(apply, params, batches_for(make_inputs, 2, 1), progress=False)
        else:
            model, make_inputs = quantized(name, kernels=kernels), network(name).make_inputs
        inputs = make_inputs(2)  # XLA:CPU multiplies a single small row in floats
        # Not model.apply itself: jax.jit caches by function, and does not notice that kernels have changed.
        compiled = jax.jit(lambda *given: model.apply(*given)).lower(model.params, *inputs).compile()
        return model, inputs, compiled.as_text()


def values_of(model, inputs):
    """Shape and type of every value of a model, by name."""

    def computed(params, *inputs):
        program = model.traced.program(inputs)
        graph = model._fused
        given = dict(zip(graph.inputs, jax.tree.leaves(inputs), strict=True))
        return evaluate(bound(graph.nodes, program), {**graph.constants, **params, **given})

    return jax.eval_shape(computed, model.params, *inputs)


def float_contractions(hlo):
    """Products and convolutions with a float operand, and library calls that compute them."""
    types = dict(re.findall(r"%?([\w.-]+) = (\w+)\[", hlo)) | dict(re.findall(r"([\w.-]+): (\w+)\[", hlo))
    contractions = re.findall(r" (?:dot|convolution)\(%?([\w.-]+), %?([\w.-]+)\)", hlo)
    calls = re.findall(r"custom_call_target=\"(?!jaxdml)[^\"]*(?:[Mm]at[Mm]ul|[Cc]onv|[Dd]ot|gemm)[^\"]*\"", hlo)
    return calls + [pair for pair in contractions if {types[name] for name in pair} & {"f16", "bf16", "f32", "f64"}]


def float_arrays(hlo, least):
    """Float arrays of at least `least` elements that the entry computation makes, outside of any fusion."""
    entry = hlo[hlo.index("\nENTRY") :]
    made = re.findall(r"^\s+(ROOT )?%?([\w.-]+) = f(?:16|32|64)\[([\d,]*)\]\S* (?!parameter\()", entry, re.MULTILINE)
    sizes = [(root, name, math.prod(int(size) for size in shape.split(",") if size)) for root, name, shape in made]
    return [name for root, name, size in sizes if size >= least and not root]


def least_activation(model, inputs):
    """The number of elements of the smallest image between two operators."""
    values = values_of(model, inputs)
    images = [values[name] for node in model._fused.nodes for name in node.outputs]
    return min(math.prod(x.shape) for x in images if len(x.shape) == 4 and x.shape[2] > 1)


@pytest.mark.rare
def test_the_float_function_has_float_contractions():
    """The tests below look for these."""
    for name, count in (("ResNet-18", 21), ("digits", 5)):
        apply, params, make_inputs = network(name)
        hlo = jax.jit(apply).lower(params, *make_inputs(1)).compile().as_text()
        assert len(float_contractions(hlo)) >= count
        assert len(float_arrays(hlo, 512)) >= count - 1


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", NAMES)
def test_no_contraction_is_of_floats(name, kernels):
    _, _, hlo = made(name, kernels)
    assert not float_contractions(hlo)
    if kernels == "native":
        assert hlo.count('custom_call_target="jaxdml_cpu_') > 2


@pytest.mark.parametrize("kernels", KERNELS)
# For means of windows, which the digits network has, XLA stores the quotient between two fusions.
@pytest.mark.parametrize("name", [name for name in NAMES if "digits" not in str(name)])
def test_no_float_array_of_activation_size_lies_outside_of_a_fusion(name, kernels):
    model, inputs, hlo = made(name, kernels)
    assert not float_arrays(hlo, least_activation(model, inputs))


@pytest.mark.parametrize("name", NAMES)
def test_values_between_fused_nodes_have_8_bits(name):
    model, inputs, _ = made(name, KERNELS[0])
    values, nodes = values_of(model, inputs), model._fused.nodes
    assert [node.on for node in nodes].count("integers") == len(nodes) - 1
    results = [values[name] for node in nodes for name in node.outputs]
    assert {x.dtype for x in results[:-1]} == {jnp.dtype(jnp.uint8)}
    assert results[-1].dtype == np.float32


def pooled_by_linen(params, x):
    x = jax.nn.relu(conv(params, x, layout="NHWC"))
    return linen.max_pool(x, (3, 3), (2, 2), [(1, 1), (1, 1)])


def pooled_along(axes, padding="SAME", **options):
    """Max pooling of [N, C, H, W] along axes, as keras writes it."""

    def pooled(params, x):
        window = [3 if axis in axes else 1 for axis in range(4)]
        strides = [2 if axis in axes else 1 for axis in range(4)]
        return lax.reduce_window(conv(params, x), -jnp.inf, lax.max, window, strides, padding, **options)

    return pooled


POOLS = {
    "linen": (pooled_by_linen, (3, 3, 3, 8), (9, 8, 3), ["max_pool"]),
    "keras, channels first": (pooled_along((2, 3)), (8, 3, 3, 3), (3, 9, 8), ["max_pool"]),
    "one dimension": (pooled_along((3,)), (8, 3, 3, 3), (3, 9, 8), ["max_pool"]),
    "dilated": (
        pooled_along((2, 3), "VALID", window_dilation=(1, 1, 2, 1)), (8, 3, 3, 3), (3, 9, 8), ["max_pool"],
    ),
    "negative padding": (
        pooled_along((2, 3), ((0, 0), (0, 0), (1, -1), (-2, 1))), (8, 3, 3, 3), (3, 9, 8), [],
    ),
    "channels": (pooled_along((1,)), (8, 3, 3, 3), (3, 9, 8), []),
}  # fmt: skip


@needs_native
@pytest.mark.parametrize("name", rest_rarely(POOLS, 1))
def test_kernel_of_max_pooling(name):
    """Max pooling of integers along the last one or two dimensions is native; its bits are those of XLA's kernels."""
    apply, filters, image, kernels = POOLS[name]
    weights = Weights()
    params, x = {"w": weights.normal(*filters)}, weights.normal(3, 2, *image, deviation=1.0)

    def two_contractions(params, x):
        y = apply(params, x)
        return y.reshape(len(y), -1) @ params["head"]

    size = math.prod(jax.eval_shape(apply, params, x[0]).shape[1:])
    params["head"] = weights.normal(size, 4)
    model = dml.ptq.quantize(two_contractions, params, [(each,) for each in x], progress=False)
    assert [node.on for node in model._fused.nodes if node.operator.kind == "max_pool"] == ["integers"]

    def compiled(x, over=lambda run: run):
        return jax.jit(over(lambda x: model.apply(model.params, x))).lower(x).compile()

    single, mapped = compiled(x[0]), compiled(x, over=jax.vmap)
    for program in (single, mapped):
        assert re.findall(r'custom_call_target="jaxdml_cpu_(max_pool)"', program.as_text()) == kernels
    with dml.use_kernels("xla"):
        on_xla = compiled(x[0])
    assert_same_bits(single(x[0]), on_xla(x[0]))
    assert_same_bits(mapped(x), np.stack([on_xla(each) for each in x]))
