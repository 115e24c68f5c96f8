"""A newcomer's code in the first hour: an MLP and a residual CNN in floats, and the same in int8 by hand.

Parameters are flat dicts of plain arrays. A new process imports this file, which needs only jax, numpy and jaxdml.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxdml as dml
from jaxdml import ptq

CLASSES = 5


# An MLP: rings around the origin, told apart by their radius ---------------------------------------------------------


def rings(random, count):
    labels = random.integers(0, CLASSES, count)
    angle = random.uniform(0, 2 * np.pi, count)
    radius = labels + 1 + random.normal(0, 0.1, count)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).astype(np.float32), labels


def float_mlp(params, x):
    """The hidden layer's outputs, and the logits."""
    hidden = jax.nn.relu(x @ params["w1"] + params["b1"][None])
    return hidden, hidden @ params["w2"] + params["b2"][None]


def trained_mlp(random, x, labels, steps=300, rate=0.02):
    params = {
        "w1": random.normal(0, 1, (2, 64)).astype(np.float32),
        "b1": random.normal(0, 2, 64).astype(np.float32),
        "w2": random.normal(0, 0.1, (64, CLASSES)).astype(np.float32),
        "b2": np.zeros(CLASSES, np.float32),
    }

    def loss(params):
        _, logits = float_mlp(params, x)
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels])

    def step(state, _):  # Adam's, without its correction of the first steps
        params, mean, square = state
        gradient = jax.grad(loss)(params)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
        square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, square, gradient)
        params = jax.tree.map(lambda p, m, s: p - rate * m / (jnp.sqrt(s) + 1e-6), params, mean, square)
        return (params, mean, square), None

    zeros = jax.tree.map(jnp.zeros_like, params)
    start = jax.tree.map(jnp.asarray, params), zeros, zeros
    (params, _, _), _ = jax.jit(lambda start: lax.scan(step, start, length=steps))(start)
    return jax.tree.map(np.asarray, params)


def quantized_mlp(params, x):
    """A scale for each column of the weights; x is the calibration set."""
    hidden = np.asarray(float_mlp(params, x)[0])
    x_scale, x_zero_point = ptq.scale_and_zero_point(x.min(), x.max(), np.uint8)
    hidden_scale, hidden_zero_point = ptq.scale_and_zero_point(hidden.min(), hidden.max(), np.uint8)
    w1, w1_scale = ptq.quantize_weights(params["w1"], axis=1)
    w2, w2_scale = ptq.quantize_weights(params["w2"], axis=1)
    return {
        "x_scale": x_scale,
        "x_zero_point": x_zero_point,
        "w1": w1,
        "b1": ptq.quantize_bias(params["b1"], x_scale, w1_scale),
        "step": hidden_scale / (x_scale * w1_scale),  # one step of hidden, counted in steps of the sums
        "hidden_scale": hidden_scale,
        "hidden_zero_point": hidden_zero_point,
        "w2": w2,
        "w2_scale": w2_scale,
        "b2": params["b2"],
    }


def mlp(params, x):  # floats [N, 2]
    x = dml.element_wise_quantize_linear(x, params["x_scale"], params["x_zero_point"])
    sums = dml.matrix_multiply_integer(x, params["x_zero_point"], params["w1"], None) + params["b1"][None]
    hidden_scale, hidden_zero_point = params["hidden_scale"], params["hidden_zero_point"]
    hidden = dml.element_wise_quantize_linear(sums, params["step"], hidden_zero_point)  # ReLU: the clamp at 0
    return dml.matrix_multiply_integer_to_float(
        hidden, hidden_scale, hidden_zero_point, params["w2"], params["w2_scale"], None, params["b2"]
    )


def prepared_mlp(arrays):
    return arrays | {name: dml.prepare_matrix_multiply_b(arrays[name]) for name in ("w1", "w2")}


# A residual CNN on NHWC data: convolution, ReLU6, max pooling, a residual block of stride 2, mean, dense -------------

CONVOLUTIONS = {  # kernel, channels in, channels out, stride, the value that it reads, what its weights are divided by
    "stem": (3, 3, 16, 1, "image", 4),
    "first": (3, 16, 24, 2, "stem", 16),  # max pooling keeps the grid of stem
    "second": (3, 24, 24, 1, "first", 16),
    "shortcut": (1, 16, 24, 2, "stem", 8),
}


def images(random, count):
    """Smooth images [count, 15, 14, 3]. Where a size is even, SAME with stride 2 pads only one side."""
    coarse = random.integers(-24, 25, (count, 5, 7, 3)).repeat(3, 1).repeat(2, 2)
    return ((coarse + random.integers(-8, 9, coarse.shape)) / 16).astype(np.float32)


def cnn_params(random):
    """Small fractions, so that the sums are exact in floats, and the ranges the same on every machine."""

    def fractions(shape, denominator):
        return (random.integers(-4, 5, shape) / denominator).astype(np.float32)

    params = {}
    for name, (kernel, inputs, outputs, _, _, denominator) in CONVOLUTIONS.items():
        params[f"{name}.filter"] = fractions((kernel, kernel, inputs, outputs), denominator)  # HWIO
        params[f"{name}.bias"] = fractions((outputs,), 16)
    return params | {"head.w": fractions((24, 10), 4), "head.bias": fractions((10,), 16)}


def float_cnn_values(params, x):  # [N, H, W, C]
    """All values that a quantized network holds as integers, and the logits."""

    def convolve(x, name):
        stride = CONVOLUTIONS[name][3]
        dimensions = ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(x, params[f"{name}.filter"], (stride,) * 2, "SAME", dimension_numbers=dimensions)
        return y + params[f"{name}.bias"][None, None, None]

    values = {"image": x, "stem": jax.nn.relu6(convolve(x, "stem"))}
    pooled = lax.reduce_window(values["stem"], -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    values["first"] = jax.nn.relu(convolve(pooled, "first"))
    values["second"] = convolve(values["first"], "second")
    values["shortcut"] = convolve(pooled, "shortcut")
    values["sum"] = jax.nn.relu(values["second"] + values["shortcut"])
    values["mean"] = values["sum"].mean((1, 2))
    return values, values["mean"] @ params["head.w"] + params["head.bias"][None]


def float_cnn(params, x):
    return float_cnn_values(params, x)[1]


@jax.jit
def observed(observers, params, x):
    values, _ = float_cnn_values(params, x)
    return {name: observer.update(values[name]) for name, observer in observers.items()}


def quantized_cnn(params, batches):
    """Filters OIHW with a scale for each output channel, and a scale and a zero point for each value."""
    observers = dict.fromkeys(("image", "stem", "first", "second", "shortcut", "sum", "mean"), ptq.MinMax())
    for batch in batches:
        observers = observed(observers, params, batch)
    arrays = {}
    for name, observer in observers.items():
        low, high = (0.0, 6.0) if name == "stem" else map(np.asarray, observer.range(np.uint8))  # ReLU6's is known
        arrays[f"{name}.scale"], arrays[f"{name}.zero_point"] = ptq.scale_and_zero_point(low, high, np.uint8)
    for name, (*_, reads, _) in CONVOLUTIONS.items():
        filter, scale = ptq.quantize_weights(params[f"{name}.filter"], axis=3)
        arrays |= {f"{name}.filter": filter.transpose(3, 2, 0, 1), f"{name}.filter_scale": scale}
        arrays[f"{name}.bias"] = ptq.quantize_bias(params[f"{name}.bias"], arrays[f"{reads}.scale"], scale)
    w, w_scale = ptq.quantize_weights(params["head.w"], axis=1)
    return arrays | {"head.w": w, "head.w_scale": w_scale, "head.bias": params["head.bias"]}


def cnn(params, x):  # floats [N, H, W, C]
    def grid(name):
        return params[f"{name}.scale"], params[f"{name}.zero_point"]

    def convolve(x, name):  # [N, C, H, W]
        kernel, _, _, stride, reads, _ = CONVOLUTIONS[name]
        start, end = zip(*lax.padtype_to_pads(x.shape[2:], (kernel,) * 2, (stride,) * 2, "SAME"), strict=True)
        return dml.quantized_linear_convolution(
            x, *grid(reads),
            params[f"{name}.filter"], params[f"{name}.filter_scale"], None,
            params[f"{name}.bias"],
            *grid(name),
            strides=stride, start_padding=start, end_padding=end,
        )  # fmt: skip

    x = dml.element_wise_quantize_linear(x, *grid("image")).transpose(0, 3, 1, 2)
    stem = convolve(x, "stem")  # ReLU6: the clamps of uint8
    pooled = lax.reduce_window(stem, np.uint8(0), lax.max, (1, 1, 3, 3), (1, 1, 2, 2), "SAME")
    second, shortcut = convolve(convolve(pooled, "first"), "second"), convolve(pooled, "shortcut")
    total = dml.element_wise_quantized_linear_add(second, *grid("second"), shortcut, *grid("shortcut"), *grid("sum"))
    mean = dml.quantized_linear_average_pooling(total, *grid("sum"), *grid("mean"), window_size=total.shape[2:])
    head = params["head.w"], params["head.w_scale"], None, params["head.bias"]
    return dml.matrix_multiply_integer_to_float(mean[:, :, 0, 0], *grid("mean"), *head)


def prepared_cnn(arrays):
    filters = {f"{name}.filter": dml.prepare_convolution_filter(arrays[f"{name}.filter"]) for name in CONVOLUTIONS}
    return arrays | filters | {"head.w": dml.prepare_matrix_multiply_b(arrays["head.w"])}
