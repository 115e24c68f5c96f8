"""Float networks quantized by `jaxdml.ptq`, each once for all tests, and measures of their errors."""

import functools
import math

import jax
import numpy as np

import jaxdml as dml
from _ptq import frameworks as ptq_frameworks
from _ptq import models as ptq_models
from _ptq.models import Model
from helpers.modes import UNOPTIMISED

NETWORKS = {
    "digits": ptq_models.digits_cnn,
    "ResNet-18": functools.partial(ptq_models.resnet18, 64, 16),
    "ResNet-18, channels last": functools.partial(ptq_models.resnet18, 64, 16, "NHWC"),
    "transformer": functools.partial(ptq_models.transformer_block, 2, 16, 64, 4),
    "attention in one call": functools.partial(ptq_models.transformer_block, 2, 64, 64, 4),
    "scanned MLP": functools.partial(ptq_models.scanned_mlp, 3, 32),
    "scanned transformer": functools.partial(ptq_models.scanned_transformer, 2, 8, 32, 2),
    "MobileNetV3": functools.partial(ptq_models.mobilenet_v3_block, 8, 8, 16),
    "UNet": functools.partial(ptq_models.unet, 16, 4),
    "causal": functools.partial(ptq_models.causal_conv1d, 16, 8),
    "tied embeddings": functools.partial(ptq_models.tied_embedding_lm, 8, 32, 32, 2),
    "decoder with a cache": ptq_models.decoder,
    "mixer": ptq_models.mixer,
    "LSTM": ptq_models.lstm,
    "ViT": ptq_models.vit,
}
FRAMEWORKS = ("plain", "linen", "nnx", "equinox")
# Networks whose floats are computed by the rules of exact in every mode, on every processor.
ONE_ANSWER = (
    "transformer", "scanned transformer", "MobileNetV3", "tied embeddings", "UNet", "decoder with a cache", "mixer",
    "LSTM", "ViT", "attention in one call",
)  # fmt: skip
INTEGERS = ("digits", "ResNet-18", *FRAMEWORKS)  # networks in which all operators run on integers


@functools.cache
def network(name):
    """A network's apply, params and make_inputs."""
    if name in FRAMEWORKS:
        return Model(*ptq_frameworks.model(name), ptq_frameworks.make_inputs)
    return Model(*NETWORKS[name]()[:3])


def batches_for(make_inputs, batch=8, count=2):
    return [make_inputs(batch, seed=100 + number) for number in range(count)]


@functools.cache
def quantized(name, batch=8, kernels=None, **options):
    """A network's quantized model, calibrated on two batches."""
    apply, params, make_inputs = network(name)
    with dml.use_kernels(kernels or ("native" if dml.kernels().startswith("native") else "xla")):
        return dml.ptq.quantize(apply, params, batches_for(make_inputs, batch), progress=False, **options)


def in_floats(apply, params, *inputs):
    """The result of the float function; without optimisation, XLA compiles it in half the time."""
    return jax.jit(apply, compiler_options=UNOPTIMISED)(params, *inputs)


def decibels(ours, exact):
    """The signal-to-quantization-noise ratio of all leaves together, in dB."""
    pairs = list(zip(jax.tree.leaves(ours), jax.tree.leaves(exact), strict=True))
    pairs = [(np.asarray(one, np.float64), np.asarray(other, np.float64)) for one, other in pairs]
    assert all(one.shape == other.shape for one, other in pairs)
    signal = sum(np.sum(np.square(other)) for _, other in pairs)
    noise = sum(np.sum(np.square(one - other)) for one, other in pairs)
    return 10 * math.log10(signal / noise) if noise else math.inf


def is_right(model, apply, params, x, least=25):
    """Whether a model's results match those of apply to more than `least` dB."""
    received, exact = model.apply(model.params, x), in_floats(apply, params, x)
    assert jax.tree.structure(received) == jax.tree.structure(exact)
    return decibels(received, exact) > least
