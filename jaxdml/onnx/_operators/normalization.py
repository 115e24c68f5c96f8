"""Normalization and Dropout, for inference."""

import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._quantized.axes import axis_of
from jaxdml.errors import ModelError
from jaxdml.onnx._operators._arrays import Array, broadcast, divided, is_known, namespace, product, wide
from jaxdml.onnx._table import BOOL, FLOAT, MICROSOFT, operator

EPSILON = 9.999999747378752e-06


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    total = jnp.sum(x, axes, keepdims=True)
    return divided(total, jnp.full_like(total, math.prod(x.shape[axis] for axis in axes)))


def _centered(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """x - mean, the mean, and the variance.

    ONNX Runtime computes the mean in float64. Here, the mean of x - mean is added to correct rounding errors.
    """
    mean = _mean(x, axes)
    mean = mean + _mean(x - mean, axes)
    centered = x - mean
    return centered, mean, _mean(product(centered, centered), axes)


def _affine(x: Array, scale: Array, shift: Array | None) -> Array:
    scaled = product(x, wide(jnp.asarray(scale)))
    return scaled if shift is None else jnp.add(*broadcast(scaled, wide(jnp.asarray(shift))))


def _normalized_axes(x: Array, axis: int) -> tuple[int, ...]:
    return tuple(range(axis_of(axis, x.ndim), x.ndim))


@operator("LayerNormalization", since=17, types=(FLOAT, FLOAT, FLOAT))
def layer_normalization(
    x: Array, scale: Array, bias: Array | None = None, *,
    axis: int = -1, epsilon: float = EPSILON, stash_type: int = 1,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """(x - mean) / deviation * scale + bias; the mean; and 1 / deviation."""
    centered, mean, variance = _centered(wide(jnp.asarray(x)), _normalized_axes(x, axis))
    inverse = divided(1.0, jnp.sqrt(variance + epsilon))
    stashed = jnp.float32 if stash_type == 1 else x.dtype
    y = _affine(product(centered, inverse), scale, bias).astype(x.dtype)
    return y, mean.astype(stashed), inverse.astype(stashed)


def _root_mean_square(x: Array, scale: Array, axis: int, epsilon: float) -> tuple[Array, Array]:
    values = wide(jnp.asarray(x))
    deviation = jnp.sqrt(_mean(product(values, values), _normalized_axes(x, axis)) + epsilon)
    return _affine(divided(values, deviation), scale, None).astype(x.dtype), divided(1.0, deviation)


@operator("RMSNormalization", since=23, types=(FLOAT, FLOAT))
def rms_normalization(
    x: Array, scale: Array, *, axis: int = -1, epsilon: float = EPSILON, stash_type: int = 1
) -> Array:
    """x / root mean square * scale."""
    return _root_mean_square(x, scale, axis, epsilon)[0]


@operator("SimplifiedLayerNormalization", types=(FLOAT, FLOAT))
@operator("SimplifiedLayerNormalization", domain=MICROSOFT, types=(FLOAT, FLOAT))
def simplified_layer_normalization(
    x: Array, scale: Array, *, axis: int = -1, epsilon: float = EPSILON, stash_type: int = 1
) -> tuple[Array, Array]:
    """x / root mean square * scale; and 1 / root mean square."""
    return _root_mean_square(x, scale, axis, epsilon)


@operator("SkipLayerNormalization", domain=MICROSOFT, types=(FLOAT,) * 5)
def skip_layer_normalization(
    x: Array, skip: Array, gamma: Array, beta: Array | None = None, bias: Array | None = None, *,
    epsilon: float = 1e-12,
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """Layer normalization of x + skip + bias; the mean; 1 / deviation; and the sum x + skip + bias."""
    total = _sum_with_skip(x, skip, bias)
    return *layer_normalization(total, gamma, beta, epsilon=epsilon), total


@operator("SkipSimplifiedLayerNormalization", domain=MICROSOFT, types=(FLOAT,) * 4)
def skip_simplified_layer_normalization(
    x: Array, skip: Array, gamma: Array, bias: Array | None = None, *, epsilon: float = 1e-12
) -> tuple[Array, None, Array, Array]:
    """RMS normalization of x + skip + bias; None; 1 / root mean square; and the sum x + skip + bias."""
    total = _sum_with_skip(x, skip, bias)
    y, inverse = _root_mean_square(total, gamma, -1, epsilon)
    return y, None, inverse, total


def _sum_with_skip(x: Array, skip: Array, bias: Array | None) -> Array:
    total = jnp.add(*broadcast(x, skip))
    return total if bias is None else jnp.add(*broadcast(total, bias))


def _per_channel(values: Array, rank: int) -> Array:
    """[C] as [C, 1, ...], to broadcast over [N, C, *space]."""
    return wide(jnp.asarray(values)).reshape(-1, *(1,) * (rank - 2))


@operator("BatchNormalization", types=(FLOAT,) * 5)
def batch_normalization(
    x: Array, scale: Array, bias: Array, mean: Array, variance: Array, *,
    epsilon: float = EPSILON, momentum: float = 0.9, training_mode: int = 0, output_count: int = 1,
) -> Array:  # fmt: skip
    """(x - mean) / deviation * scale + bias; each channel has its own mean, deviation, scale and bias."""
    if training_mode or output_count > 1:
        raise ModelError("training is not supported")
    values = (_per_channel(array, x.ndim) for array in (scale, bias, mean, variance))
    scale, bias, mean, variance = values
    factor = product(divided(1.0, jnp.sqrt(variance + epsilon)), scale)
    return _affine(wide(jnp.asarray(x)), factor, bias - product(mean, factor)).astype(x.dtype)


@operator("InstanceNormalization", types=(FLOAT,) * 3)
def instance_normalization(x: Array, scale: Array, bias: Array, *, epsilon: float = EPSILON) -> Array:
    """(x - mean) / deviation * scale + bias; each channel of each image has its own mean and deviation."""
    _, mean, variance = _centered(wide(jnp.asarray(x)), tuple(range(2, x.ndim)))
    factor = product(divided(1.0, jnp.sqrt(variance + epsilon)), _per_channel(scale, x.ndim))
    shift = jnp.subtract(*broadcast(_per_channel(bias, x.ndim), product(mean, factor)))
    return _affine(wide(jnp.asarray(x)), factor, shift).astype(x.dtype)


def _group_normalized(x: Array, groups: int, epsilon: float) -> Array:
    values = wide(jnp.asarray(x)).reshape(x.shape[0], groups, -1, *x.shape[2:])
    centered, _, variance = _centered(values, tuple(range(2, values.ndim)))
    return divided(centered, jnp.sqrt(variance + epsilon))


@operator("GroupNormalization", since=18, until=20, types=(FLOAT,) * 3)
def group_normalization_per_group(
    x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = EPSILON
) -> Array:
    """`group_normalization` before opset 21: a scale and a bias for each group."""
    normal = _group_normalized(x, num_groups, epsilon)
    factor, shift = (_per_channel(values, normal.ndim) for values in (scale, bias))
    return _affine(normal, factor, shift).astype(x.dtype).reshape(x.shape)


@operator("GroupNormalization", since=21, types=(FLOAT,) * 3)
def group_normalization(
    x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = EPSILON, stash_type: int = 1
) -> Array:
    """(x - mean) / deviation * scale + bias; each group of channels has its own mean and deviation."""
    normal = _group_normalized(x, num_groups, epsilon).reshape(x.shape)
    factor, shift = (_per_channel(values, x.ndim) for values in (scale, bias))
    return _affine(normal, factor, shift).astype(x.dtype)


@operator("LpNormalization", types=(FLOAT,))
def power_normalization(x: Array, *, axis: int = -1, p: int = 2) -> Array:
    """x / norm along an axis; 0 where the norm is 0."""
    if p not in (1, 2):
        raise ModelError(f"p is {p}, expected 1 or 2")
    values, axis = wide(jnp.asarray(x)), axis_of(axis, x.ndim)
    total = jnp.sum(jnp.abs(values) if p == 1 else product(values, values), axis, keepdims=True)
    norm = total if p == 1 else jnp.sqrt(total)
    return jnp.where(norm == 0, 0, divided(values, norm)).astype(x.dtype)


@operator("MeanVarianceNormalization", types=(FLOAT,))
def mean_variance_normalization(x: Array, *, axes: tuple[int, ...] = (0, 2, 3)) -> Array:
    """(x - mean) / deviation along axes."""
    axes = tuple(axis_of(axis, x.ndim) for axis in axes)
    centered, _, variance = _centered(wide(jnp.asarray(x)), axes)
    return divided(centered, jnp.sqrt(variance) + 1e-9).astype(x.dtype)


@operator("LRN", types=(FLOAT,))
def local_response_normalization(
    x: Array, *, size: int, alpha: float = 9.999999747378752e-05, beta: float = 0.75, bias: float = 1.0
) -> Array:
    """x / (bias + alpha / size * sum of squares of `size` neighboring channels) ** beta."""
    values = wide(jnp.asarray(x))
    start, ones = (size - 1) // 2, (1,) * x.ndim
    pads = [(0, 0), (start, size - 1 - start)] + [(0, 0)] * (x.ndim - 2)
    squares, zero = product(values, values), np.zeros((), values.dtype)
    total = lax.reduce_window(squares, zero, lax.add, (1, size, *ones[2:]), ones, pads)
    return divided(values, (product(total, alpha / size) + bias) ** beta).astype(x.dtype)


@operator("Dropout", until=11, types=(FLOAT,), is_exact=True)
def dropout_of_ratio(x: Array, *, ratio: float = 0.5) -> tuple[Array, Array]:
    """x, and a mask that keeps all elements."""
    return x, namespace(x).ones(x.shape, bool)


@operator("Dropout", since=12, types=(FLOAT, FLOAT, BOOL), is_exact=True, known=(2,))
def dropout(
    x: Array, ratio: Array | None = None, training_mode: Array | None = None, *, seed: int | None = None
) -> tuple[Array, Array]:
    """x, and a mask that keeps all elements; training raises an error."""
    drops = ratio is None or not is_known(ratio) or ratio.any()
    if drops and training_mode is not None and training_mode.any():
        raise ModelError("training_mode is true, and training is not supported")
    return dropout_of_ratio(x)
