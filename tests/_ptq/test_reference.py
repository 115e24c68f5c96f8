"""Every integer operator of a quantized model computes the results of `jaxdml.reference`, in NumPy.

Each is compared on the inputs that it has inside the model.
"""

import collections
import math

import jax
import numpy as np
import pytest

import jaxdml as dml
from _ptq.awkward import AWKWARD
from _ptq.quantized import FRAMEWORKS, NETWORKS, network, quantized
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from jaxdml import reference
from jaxdml._graph.evaluate import evaluate
from jaxdml.ptq._trace.scans import bound

MOVERS = ("mover", "max_pool", "extreme", "order")


def image_options(options):
    start, end = zip(*options["padding"], strict=True)
    return {
        "strides": options["strides"],
        "dilations": options["dilations"],
        "start_padding": start,
        "end_padding": end,
        "group_count": options["group_count"],
    }


def convolution(options, *inputs):
    x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, bias = (*inputs, None)[:9]
    return reference.quantized_linear_convolution(
        x, x_scale, x_zero_point, w, w_scale, w_zero_point, bias, y_scale, y_zero_point, **image_options(options)
    )  # fmt: skip


def convolution_to_float(options, x, x_scale, x_zero_point, w, w_scale, w_zero_point, bias=None):
    sums = reference.convolution_integer(x, x_zero_point, w, w_zero_point, **image_options(options))
    channels = (-1, *(1,) * (x.ndim - 2))
    bias = np.zeros(len(w), np.int32) if bias is None else bias
    assert bias.dtype == (np.int32 if x.itemsize == 1 else np.float32)
    sums = sums + bias.reshape(channels) if x.itemsize == 1 else sums
    scale = (x_scale.reshape(()) * w_scale.reshape(-1)).astype(np.float32)
    y = reference.element_wise_dequantize_linear(sums, scale.reshape(channels))
    return y if x.itemsize == 1 else y + bias.reshape(channels)


def product(options, *inputs):
    """A product, or one with a bias, which is a convolution of an image of as many pixels as there are rows."""
    if len(inputs) == 8:
        a, a_scale, a_zero_point, b, *rest = inputs
        return reference.quantized_linear_matrix_multiply(a, a_scale, a_zero_point, for_rows(options, b), *rest)
    a, a_scale, a_zero_point, b, b_scale, b_zero_point, bias, y_scale, y_zero_point = inputs
    images = a.reshape(1, -1, a.shape[-1], 1).swapaxes(1, 2)
    filters = b.T[:, :, None, None]
    y = reference.quantized_linear_convolution(
        images, a_scale, a_zero_point, filters, b_scale, b_zero_point, bias, y_scale, y_zero_point,
    )  # fmt: skip
    return y[0, :, :, 0].T.reshape(*a.shape[:-1], b.shape[1])


def for_rows(options, b):
    """b with axes of size 1 in place of a's further axes of rows."""
    return b.reshape(*b.shape[:-2], *(1,) * (options.get("rows", 1) - 1), *b.shape[-2:])


def product_to_float(options, a, b, a_scale, b_scale, a_zero_point, b_zero_point, bias=None):
    b = for_rows(options, b)
    return reference.matrix_multiply_integer_to_float(a, a_scale, a_zero_point, b, b_scale, b_zero_point, bias)


def by_range(x, axis, dtype):
    """Floats in steps of a scale for each vector along an axis."""
    limits = np.iinfo(dtype)
    low, high = np.minimum(x.min(axis, keepdims=True), 0), np.maximum(x.max(axis, keepdims=True), 0)
    if dtype == np.int8:
        scale = np.maximum(-low, high) / np.float32(127)
        zero_point = np.zeros(scale.shape, dtype)
    else:
        scale = (high - low) / np.float32(limits.max - limits.min)
        scale = np.where(scale == 0, np.float32(1), scale)
        zero_point = np.clip(np.rint(-low / scale), limits.min, limits.max).astype(dtype)
    scale = np.where(scale == 0, np.float32(1), scale)
    return reference.element_wise_quantize_linear(x, scale, zero_point), scale, zero_point


def dynamic_product(options, a, b, b_scale=None, bias=None):
    a, a_scale, a_zero_point = by_range(a.astype(np.float32), -1, np.uint8)
    b = for_rows(options, b)
    if b_scale is None:
        b, b_scale, _ = by_range(b.astype(np.float32), -2, np.int8)
    b_scale = (b_scale * np.float32(options.get("alpha", 1.0))).astype(np.float32)
    return reference.matrix_multiply_integer_to_float(a, a_scale, a_zero_point, b, b_scale, None, bias)


def addition(options, *inputs):
    return reference.element_wise_quantized_linear_add(*inputs)


def multiplication(options, a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point):
    """sat(rne(fl(fl((a - a_zero_point) * (b - b_zero_point) * multiplier) + y_zero_point))), in float32."""
    steps = (x.astype(np.int32) - int(z.reshape(())) for x, z in ((a, a_zero_point), (b, b_zero_point)))
    exact = math.prod(steps).astype(np.float32)
    multiplier = (a_scale.reshape(()) * b_scale.reshape(())) / y_scale.reshape(())
    y = np.rint(exact * multiplier + np.float32(y_zero_point.reshape(())))
    limits = np.iinfo(a.dtype)
    return np.clip(y, limits.min, limits.max).astype(a.dtype)


def concatenation(options, y_scale, y_zero_point, *inputs):
    parts = [
        reference.element_wise_quantize_linear(
            reference.element_wise_dequantize_linear(*triple), y_scale.reshape(()), y_zero_point.reshape(())
        )
        for triple in zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True)
    ]
    return np.concatenate(parts, options["axis"])


def average(options, x, *parameters):
    """Means over axes, or over windows: of an image with as many dimensions as x."""
    if "axes" in options:
        window = [size if axis in options["axes"] else 1 for axis, size in enumerate(x.shape)]
        y = reference.quantized_linear_average_pooling(x[None, None], *parameters, window_size=window)
        return y[0, 0].squeeze(tuple(options["axes"]))
    start, end = zip(*options["padding"], strict=True)
    windows = {"strides": options["strides"], "start_padding": start, "end_padding": end}
    windows |= {"window_size": options["window"], "include_padding": options["include_padding"]}
    return reference.quantized_linear_average_pooling(x[None, None], *parameters, **windows)[0, 0]


def table(options, x, entries):
    return entries[x.astype(np.int64) - np.iinfo(x.dtype).min]


def padding(options, x, zero_point):
    for axis, (low, high, between) in enumerate(options["config"]):
        shape = list(x.shape)
        shape[axis] = low + max(0, (x.shape[axis] - 1) * (between + 1) + 1) + high
        padded = np.full(shape, zero_point.reshape(()), x.dtype)
        np.moveaxis(padded, axis, 0)[low : shape[axis] - high : between + 1] = np.moveaxis(x, axis, 0)
        x = padded
    return x


def quantize(options, x, scale, zero_point):
    return reference.element_wise_quantize_linear(x.astype(np.float32), scale.reshape(()), zero_point.reshape(()))


def dequantize(options, x, scale, zero_point):
    return reference.element_wise_dequantize_linear(x, scale.reshape(()), zero_point.reshape(()))


ORACLES = {
    "quantize": quantize,
    "dequantize": dequantize,
    "quantized_linear_convolution": convolution,
    "convolution_integer": convolution_to_float,
    "quantized_linear_matrix_multiply": product,
    "element_wise_quantized_linear_add": addition,
    "quantized_linear_average_pooling": average,
    "quantized mul": multiplication,
    "quantized concat": concatenation,
    "table": table,
    "pad": padding,
}
TO_FLOAT = "matrix_multiply_integer_to_float"


def oracle_of(node):
    if node.operator.name == TO_FLOAT:
        return dynamic_product if len(node.inputs) < 5 else product_to_float
    return ORACLES[node.operator.name]


def compared(model, inputs):
    """How many nodes of each operator were compared, and how many elements; none differs."""
    graph = model._fused

    @jax.jit
    def computed(params, *inputs):
        program = model.traced.program(inputs)
        given = dict(zip(graph.inputs, jax.tree.leaves(inputs), strict=True))
        return evaluate(bound(graph.nodes, program), {**graph.constants, **params, **given})

    values = {**model.graph.constants, **jax.device_get(computed(model.params, *inputs))}
    counts, elements = check(graph.nodes, values)
    for node in bound(graph.nodes, model.traced.program(inputs)):
        for nodes, within in layers(model, node, values) if "body" in node.options else ():
            inner, size = check(nodes, within)
            counts, elements = counts + inner, elements + size
    return counts, elements


def layers(model, scan, values):
    """The nodes of a scan's body, and the values of each layer or step in turn."""
    body, loop, name = scan.options["body"], scan.options["loop"], scan.outputs[0]
    data = dict(zip(body.inputs, (values[each] for each in scan.inputs), strict=False))
    sequences = {each: data.pop(each) for each in body.inputs[len(body.inputs) - loop.steps :]}
    carried = [*data][len(data) - loop.carried :]
    run = jax.jit(lambda given: evaluate(body.nodes, given))
    plain = {key.removeprefix(f"{name}/"): x for key, x in model.graph.constants.items() if key.startswith(f"{name}/")}
    constants = {**model._fused.constants, **model.params}  # steps share numbers, which are not parameters
    stacked = {key: constants[f"{name}/{key}"] for key in body.stacked}
    for number in reversed(range(loop.length)) if loop.reverse else range(loop.length):
        layer = number if loop.layers else 0  # steps share constants
        here = {key: x[number] for key, x in sequences.items()}
        made = run({**jax.tree.map(lambda x, at=layer: x[at], stacked), **data, **here})
        yield body.nodes, {**{key: x[layer] for key, x in plain.items()}, **jax.device_get(made)}
        data |= dict(zip(carried, (made[each] for each in body.outputs), strict=False))


def check(nodes, values):
    """Compares nodes on their values; how many of each operator there are, and how many elements."""
    counts, elements = collections.Counter(), 0
    for node in nodes:
        if not (node.operator.is_quantized or node.operator.kind in ("quantize_linear", "dequantize_linear")):
            assert node.on != "integers" or node.operator.kind in MOVERS, node.operator.name
            continue
        names = (name.split(":prepared")[0] for name in node.inputs)  # weights as they are before repacking
        arguments = [np.asarray(values[name]) if name else None for name in names]
        expected = oracle_of(node)(node.options, *arguments)
        assert_same_bits(values[node.outputs[0]], expected, node.name)
        counts[node.operator.name] += 1
        elements += expected.size
    return counts, elements


ALL = [(name, ()) for name in (*NETWORKS, *FRAMEWORKS)]
ALL += [("transformer", (("products", "dynamic"),)), ("digits", (("activations", "int8"),))]
ALL += [("transformer", (("activations", "int8"),)), ("MobileNetV3", (("activations", "int8"),))]
QUICK = [("plain", ())]


CASES = rest_rarely([*QUICK, *(case for case in ALL if case not in QUICK)], len(QUICK))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_node_of_a_network_computes_what_the_reference_says(case):
    name, options = case
    counts, elements = compared(quantized(name, 2, **dict(options)), network(name).make_inputs(2, seed=30))
    assert counts["quantize"] + counts["table"] > 0 or dict(options).get("products") == "dynamic"
    assert counts.total() >= 4
    assert elements > 50 * counts.total()


SEEN = (
    "pad", "pad before max pool", "GLU", "split, halves added", "branches concatenated", "silu", "1-D convolution",
    "average pool, padding not counted", "squeeze and excitation", "grouped convolution", "heads projected by einsum",
)  # fmt: skip


def of_awkward(names):
    total = collections.Counter()
    for case in AWKWARD:
        if case.name in names:
            inputs = case.inputs(3, seed=1)
            model = dml.ptq.quantize(case.apply, case.params, [inputs], progress=False)
            total += compared(model, inputs)[0]
    return total


@pytest.mark.rare
def test_every_node_of_awkward_functions_computes_what_the_reference_says():
    counts = of_awkward(SEEN)
    assert counts.keys() == {*ORACLES, TO_FLOAT}


@pytest.mark.rare
@pytest.mark.parametrize("part", range(8))
def test_every_node_of_all_awkward_functions_computes_what_the_reference_says(part):
    names = [case.name for case in AWKWARD][part::8]
    assert of_awkward(names).total() > 2 * len(names)
