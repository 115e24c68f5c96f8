"""Whole models that are compiled: the example network in int8, models from jaxdml.ptq, models from .onnx files."""

from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from typing import Any

import jax
import jax.numpy as jnp

import jaxdml as dml
from _ptq.models import transformer_block
from accelerators.cases import Case
from benchmarks import case, network
from jaxdml.examples import digits
from jaxdml.onnx._operators.attention import attention as onnx_attention

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


def _transformer(products: str) -> Any:
    """A transformer block in which floats between products follow the exact rules."""
    apply, params, make_inputs = transformer_block(batch=2, tokens=16, width=64, heads=4)[:3]
    inputs = make_inputs(2)
    model = dml.ptq.quantize(apply, params, [inputs], products=products, floats="exact", progress=False)
    return model.apply, shapes((model.params, *inputs))


def _attention(**options: Any) -> Any:
    """Two new tokens after six; four heads of queries share two heads of keys and values."""
    query, present, past = (shapes(jnp.zeros((2, *size, 16))) for size in ((4, 2), (2, 2), (2, 6)))
    return partial(onnx_attention, **options), (query, present, present, None, past, past)


def _benchmarked(make: Callable[..., case.Case]) -> Any:
    """A network of the benchmarks, on one image of 224 x 224, with traced weights."""
    run, arguments = make(1, peers="").jitted[case.PLAIN]
    return run, shapes(arguments)


def of_models() -> Iterator[Case]:
    yield Case("digits", "int8 network, traced parameters", _example, is_quick=True)
    yield Case("digits", "int8 network, constant parameters", _example_with_constants)
    yield Case("digits", "quantized by jaxdml.ptq", _quantized)
    yield Case("digits", "digits.onnx", _onnx)
    yield Case("transformer block", "static products, exact floats", partial(_transformer, "static"))
    yield Case("transformer block", "dynamic products, exact floats", partial(_transformer, "dynamic"))
    yield Case("Attention", "causal, past keys and values", partial(_attention, is_causal=1), is_quick=True)
    yield Case("Attention", "softcap, a window", partial(_attention, softcap=20.0, left_window_size=3))
    yield Case("ResNet-18", "hand-written", partial(_benchmarked, network.network))
    yield Case("MobileNetV2", "hand-written", partial(_benchmarked, network.mobilenet))
