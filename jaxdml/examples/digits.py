"""A small residual CNN that classifies handwritten digits, in float and in int8.

`NETWORK` lists the layers. `float_activations` computes the layers in float. `int8_calls` computes them on quantized
values, with the operators of jaxdml or of another module such as `jaxdml.reference`.

Parameters are flat dicts: ``parameters["stem.filter_scale"]`` is the argument `filter_scale` of the layer `stem`. The
int8 network needs no ReLU: a uint8 output with zero point 0 cannot represent negative numbers.

The images are part of the UCI digits (Alpaydin and Kaynak, 1998; CC BY 4.0), as distributed with scikit-learn.
"""

import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxdml

QUANTIZE = "element_wise_quantize_linear"
CONVOLUTION = "quantized_linear_convolution"
ADD = "element_wise_quantized_linear_add"
MATRIX_MULTIPLY = "quantized_linear_matrix_multiply"
DEQUANTIZE = "element_wise_dequantize_linear"

_PARAMETERS = {  # the arguments of each operator after its inputs
    QUANTIZE: ("scale", "zero_point"),
    CONVOLUTION: ("filter", "filter_scale", "filter_zero_point", "bias", "output_scale", "output_zero_point"),
    ADD: ("output_scale", "output_zero_point"),
    MATRIX_MULTIPLY: ("b", "b_scale", "b_zero_point", "output_scale", "output_zero_point"),
    DEQUANTIZE: (),
}


@dataclass(frozen=True)
class Layer:
    """One call of an operator.

    Attributes:
      name: the name of the layer.
      operator: the name of the operator.
      inputs: the layers whose outputs this layer reads; "images" is the network's input.
      weights: the shape of its `filter` or `b`.
      relu: whether the float network applies ReLU to its output.
      stride, padding, group_count: options of a convolution, equal in both dimensions; padding is (start, end).
    """

    name: str
    operator: str
    inputs: tuple[str, ...]
    weights: tuple[int, ...] = ()
    relu: bool = False
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    group_count: int = 1

    @property
    def options(self) -> dict[str, int]:
        """The operator's static keyword arguments."""
        if self.operator != CONVOLUTION:
            return {}
        start, end = self.padding
        return {"strides": self.stride, "start_padding": start, "end_padding": end, "group_count": self.group_count}


NETWORK = (
    Layer("image", QUANTIZE, ("images",)),
    Layer("stem", CONVOLUTION, ("image",), (16, 1, 3, 3), relu=True, padding=(1, 1)),
    # An inverted residual block: expand, depthwise convolution, project.
    Layer("expand", CONVOLUTION, ("stem",), (24, 16, 1, 1), relu=True),
    Layer("depthwise", CONVOLUTION, ("expand",), (24, 1, 3, 3), relu=True, padding=(1, 1), group_count=24),
    Layer("project", CONVOLUTION, ("depthwise",), (16, 24, 1, 1)),
    Layer("residual_1", ADD, ("stem", "project")),
    # From 8x8 to 4x4, then a residual block with groups. The padded input has a nonzero zero point.
    Layer("down", CONVOLUTION, ("residual_1",), (24, 16, 3, 3), relu=True, stride=2, padding=(0, 1)),
    Layer("grouped", CONVOLUTION, ("down",), (24, 6, 3, 3), relu=True, padding=(1, 1), group_count=4),
    Layer("mix", CONVOLUTION, ("grouped",), (24, 24, 1, 1)),
    Layer("residual_2", ADD, ("down", "mix"), relu=True),
    Layer("head", MATRIX_MULTIPLY, ("residual_2",), (24 * 4 * 4, 10)),
    Layer("logits", DEQUANTIZE, ("head",)),
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Call:
    """The arguments and the output of one layer; a pytree, so that `jax.jit` can return it."""

    layer: Layer = field(metadata={"static": True})
    arguments: tuple[Any, ...]
    output: Any


class Digits(NamedTuple):
    """Held-out images and the parameters of both networks.

    Attributes:
      images: float32 [N, 1, 8, 8], from 0 (paper) to 1 (ink) in steps of 1/16.
      labels: int32 [N], 0 to 9.
      parameters: the parameters of `int8_network`.
      float_parameters: the float32 parameters of `float_network`.
    """

    images: jax.Array
    labels: jax.Array
    parameters: dict[str, jax.Array]
    float_parameters: dict[str, jax.Array]


def float_activations(parameters: Mapping[str, jax.Array], images: jax.Array) -> dict[str, jax.Array]:
    """The outputs of all layers, keyed by name, in the float type of the parameters and images."""
    values = {"images": images}
    for layer in NETWORK:
        x, *others = (values[name] for name in layer.inputs)
        if layer.operator == CONVOLUTION:
            filter, bias = parameters[f"{layer.name}.filter"], parameters[f"{layer.name}.bias"]
            strides, padding = (layer.stride,) * 2, (layer.padding,) * 2
            x = lax.conv_general_dilated(x, filter, strides, padding, feature_group_count=layer.group_count)
            x = x + bias.reshape(1, -1, 1, 1)
        elif layer.operator == ADD:
            x = x + others[0]
        elif layer.operator == MATRIX_MULTIPLY:
            x = x.reshape(x.shape[0], -1) @ parameters[f"{layer.name}.b"]
        # QUANTIZE and DEQUANTIZE are the identity in float.
        values[layer.name] = jnp.maximum(x, 0) if layer.relu else x
    return values


def float_network(parameters: Mapping[str, jax.Array], images: jax.Array) -> jax.Array:
    """Logits [N, 10] of images [N, 1, 8, 8], in float."""
    return float_activations(parameters, images)[NETWORK[-1].name]


def int8_calls(parameters: Mapping[str, Any], images: Any, operators: Any = jaxdml) -> list[Call]:
    """Runs the int8 network and returns every operator call.

    Args:
      parameters: maps ``"layer.argument"`` to an array; a missing argument is None.
      images: float32 [N, 1, 8, 8], 0 to 1.
      operators: a module with the operators; `jaxdml.reference` takes NumPy arrays.
    """
    tensors: dict[str, tuple[Any, ...]] = {"images": (images,)}  # then (output, scale, zero point) of each layer
    calls = []
    for layer in NETWORK:
        inputs = [part for name in layer.inputs for part in tensors[name]]
        if layer.operator == MATRIX_MULTIPLY:
            inputs[0] = inputs[0].reshape(inputs[0].shape[0], -1)
        own = [parameters.get(f"{layer.name}.{argument}") for argument in _PARAMETERS[layer.operator]]
        output = getattr(operators, layer.operator)(*inputs, *own, **layer.options)
        calls.append(Call(layer, (*inputs, *own), output))
        tensors[layer.name] = (output, *own[-2:])
    return calls


def int8_network(parameters: Mapping[str, Any], images: Any, operators: Any = jaxdml) -> Any:
    """Logits [N, 10] of images [N, 1, 8, 8], computed in int8; arguments as in `int8_calls`."""
    return int8_calls(parameters, images, operators)[-1].output


@jaxdml.errors.api_boundary
def load(path: str | Path | None = None) -> Digits:
    """Reads a file that `save` wrote; without a path, reads the 360 images and the parameters in the package.

    Raises:
      ArgumentTypeError: if path is neither a path nor None.
      OSError: if the file cannot be opened.
      ValueError: if `save` did not write the file; the text names a missing array, or an array of the wrong shape or
        type.
    """
    path = None if path is None else jaxdml.errors.path_of("path", path)
    own = _arrays(importlib.resources.files(__package__) / "digits.npz")
    loaded = own if path is None else _arrays(path)
    for name, array in own.items():
        if name not in loaded:
            raise ValueError(f"it has no array {name}; notebooks/02_digits_network writes such a file")
        counted = 1 if name in ("images", "labels") else 0  # any number of images is valid
        if loaded[name].shape[counted:] != array.shape[counted:] or loaded[name].dtype != array.dtype:
            found = f"{loaded[name].dtype}{list(loaded[name].shape)}"
            raise ValueError(f"its array {name} is {found}, expected {array.dtype}{list(array.shape)}")

    def parameters(prefix: str) -> dict[str, jax.Array]:
        return {
            name.removeprefix(prefix): jnp.asarray(value, jnp.float32 if value.dtype == np.float16 else value.dtype)
            for name, value in loaded.items()
            if name.startswith(prefix)
        }

    images = jnp.asarray(loaded["images"] / np.float32(16))
    return Digits(images, jnp.asarray(loaded["labels"], jnp.int32), parameters("int8/"), parameters("float/"))


def _arrays(file: Any) -> dict[str, np.ndarray]:
    with file.open("rb") as stream:
        is_archive = stream.read(4) == b"PK\x03\x04"
        stream.seek(0)
        if not is_archive:
            raise ValueError("it is not a .npz file")
        try:
            with np.load(stream, allow_pickle=False) as loaded:
                return {name: loaded[name] for name in loaded.files}
        except RuntimeError as error:  # zipfile raises it for encryption, and NotImplementedError for other features
            raise ValueError(str(error)) from error


@jaxdml.errors.api_boundary
def save(path: str | Path, digits: Digits) -> None:
    """Writes a compressed .npz file, with float parameters in float16. Equal digits give equal bytes.

    Raises:
      ArgumentTypeError: if path is not a path, or digits is not a `Digits`.
    """
    if not isinstance(digits, Digits):
        raise jaxdml.ArgumentTypeError(f"digits is of type {type(digits).__name__}, expected Digits, as `load` returns")
    path = jaxdml.errors.path_of("path", path)
    arrays = {
        "images": np.rint(np.asarray(digits.images) * 16).astype(np.uint8),
        "labels": np.asarray(digits.labels, np.uint8),
        **{f"int8/{name}": np.asarray(value) for name, value in digits.parameters.items()},
        **{f"float/{name}": np.asarray(value, np.float16) for name, value in digits.float_parameters.items()},
    }
    np.savez_compressed(path, allow_pickle=False, **arrays)
