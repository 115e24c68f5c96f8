"""Whole models that are compiled: the example network in int8, one from jaxdml.ptq, one from an .onnx file."""

from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from typing import Any

import jax

import jaxdml as dml
from accelerators.cases import Case
from benchmarks import case, network
from jaxdml.examples import digits

BATCH = 8


def shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def _images() -> Any:
    return digits.load().images[:BATCH]


def _example() -> Any:
    return digits.int8_network, shapes((digits.load().parameters, _images()))


def _example_with_constants() -> Any:
    parameters = digits.load().parameters
    return lambda images: digits.int8_network(parameters, images), shapes((_images(),))


def _quantized() -> Any:
    images, _, _, parameters = digits.load()
    model = dml.ptq.quantize(digits.float_network, parameters, [images[:64]], progress=False)
    return model.apply, shapes((model.params, _images()))


def _onnx() -> Any:
    model = dml.onnx.load(files("jaxdml.examples") / "digits.onnx")
    return model.apply, shapes((model.params, _images()))


def _benchmarked(make: Callable[..., case.Case]) -> Any:
    """A network of the benchmarks, on one image of 224 x 224, with traced weights."""
    run, arguments = make(1, peers="").jitted[case.PLAIN]
    return run, shapes(arguments)


def of_models() -> Iterator[Case]:
    yield Case("digits", "int8 network, traced parameters", _example, is_quick=True)
    yield Case("digits", "int8 network, constant parameters", _example_with_constants)
    yield Case("digits", "quantized by jaxdml.ptq", _quantized)
    yield Case("digits", "digits.onnx", _onnx)
    yield Case("ResNet-18", "hand-written", partial(_benchmarked, network.network))
    yield Case("MobileNetV2", "hand-written", partial(_benchmarked, network.mobilenet))
