"""Quantizes a float function."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._graph.floats import DEFAULT, Floats, wrong_floats
from jaxdml._quantized.kinds import DIRECTML, QUANTIZED
from jaxdml.errors import PtqError, api_boundary
from jaxdml.ptq._calibrate import Calibration, batches_of, check_seen, named, with_first
from jaxdml.ptq._choose.candidates import best_of, candidates_of, check_batches
from jaxdml.ptq._choose.checks import check_function, check_params
from jaxdml.ptq._choose.edges import edges_of
from jaxdml.ptq._choose.equalize import equalized, observers_of, with_ones, without_ones
from jaxdml.ptq._choose.modes import blocks_of, check_matches, modes_of
from jaxdml.ptq._choose.moments import moments_of
from jaxdml.ptq._choose.rule import ProductsOrMixed, Rule, Sums, check_one_of, rules_of
from jaxdml.ptq._choose.unit import Unit, unit_of
from jaxdml.ptq._grids.observers import Observer, observer_of
from jaxdml.ptq._grids.ranges import integer_type, scale_and_zero_point
from jaxdml.ptq._integers.insert import quantized_graph
from jaxdml.ptq._integers.tables import Parameters, narrowed
from jaxdml.ptq._model import Model, check_apply
from jaxdml.ptq._trace.traced import Traced
from jaxdml.ptq._trace.values import WIDE, Value
from jaxdml.typing import DType

Rounding = Literal["nearest", "gptq"]
TYPES = ("uint8", "int8")
WORD = np.dtype(np.uint16)


@api_boundary
def quantize(
    apply: Callable[..., Any],
    params: Any,
    batches: Iterable[Any],
    *,
    activations: DType = jnp.uint8,
    observer: str | Observer = "minmax",
    products: ProductsOrMixed = "mixed",
    weights: DType = jnp.int8,
    block_size: int | None = None,
    equalize: bool = True,
    rounding: Rounding = "nearest",
    sums: Sums = "integer",
    rules: Sequence[Rule] = (),
    floats: Floats = DEFAULT,
    numerics: str = DIRECTML,
    progress: bool = True,
) -> Model:
    """Converts a trained float function into one that computes on integers.

    Convolutions and matrix products become DirectML's quantized operators, and affine equations after them are folded
    into their weights. By default, weights become symmetric int8 with a scale for each output channel. Values between
    quantized operators stay integers; everything else is computed in floats. `print(model)` shows the result.

    Args:
      apply: the function ``apply(params, *inputs)``, in inference mode; JAX traces it.
      params: its parameters, a pytree of arrays.
      batches: an iterable of calibration batches; a batch is an array or a tuple of inputs. The sizes of batches may
        differ. Only one batch is in memory at a time.
      activations: uint8 or int8, the type of values between layers.
      observer: how ranges are calibrated: "minmax", "moving_average", "percentile", "mse", an `Observer`, or "auto".
        "auto" tries "minmax", "percentile" and "mse" for all values whose observer is "auto", and takes the one with
        which the outputs have the least error on the batches. It reads the batches twice, so `batches` must not be an
        iterator, such as a generator.
      products: "static": the values that matrix products read are quantized with calibrated ranges. "dynamic": at each
        call, each row that a product reads is quantized with its own range, and the product returns floats. "mixed",
        the default: in attention, the product of probabilities and values and the product that reads its result are
        dynamic, and all other products are static. Convolutions stay static.
      weights: int8 or int4, the type of weights. int4 needs a block_size.
      block_size: None: weights have a scale for each output channel. 16, 32, 64, 128 or 256: matrices have a scale for
        each block of that many weights along the contraction dimension. Products with such matrices take floats,
        whatever `products` is, unless a rule says otherwise. Filters of convolutions are int8.
      equalize: whether to divide channels with large values by factors, and to multiply the weights applied to these
        channels by the same factors. This applies to channels of floats that are quantized for convolutions or
        products. It also applies to channels of values that pass from one convolution or product to the next only
        through relu and operators that move or average elements. The float function does not change, and rounding to
        integers loses less accuracy. The first batch determines the magnitudes of values.
      rounding: "nearest": each weight becomes the nearest integer. "gptq": calibration also gathers the second moments
        of the rows that the weights multiply. The weights are then rounded one after the other, so that the errors of
        the weights in a sum compensate for each other (GPTQ), and the bias corrects the mean error of the sums. Scales
        stay the same. GPTQ needs ten rows or patches, in all batches together, for each term of a sum. For each layer,
        its memory grows with the square of the number of terms. Weights whose sums have more than 8192 terms are
        rounded to nearest, and `print(model)` says so.
      sums: "integer": the sum of two values, such as that of a residual connection, adds integers if a convolution or
        product reads the sum. "float": these sums and their terms stay in floats, and convolutions and products round
        their inputs. Outputs are closer to those of apply. A function that computes a term, such as a gelu, runs in
        floats instead of becoming a look-up table. Convolutional networks run a little slower with float sums.
      rules: overrides of options for some layers. If several matching rules set an option, the first one applies. Some
        options belong together, as `Rule` says: the first matching rule that sets one of them decides all of them.
      floats: "exact", the default: floats between quantized operators have the same bits everywhere, by the rules of
        `jaxdml.exact`. Products that stay in floats have no rule: XLA computes them, and `print(model)` names them.
        "xla": XLA computes floats, with bits that depend on processor and program.
      numerics: "directml": quantized sums and means follow DirectML's formulas. "onnxruntime": they follow ONNX
        Runtime's CPU kernels on x64, whose results differ by one step where a value lies near a tie. All other
        operators are the same.
      progress: whether to print the number of calibrated batches on stderr.

    Returns:
      The model; ``model.apply(model.params, *inputs)`` approximates apply's results, in the same structure and types.

    Raises:
      PtqError: if nothing can be quantized, or if an argument is wrong, such as apply in training mode, batches with
        NaN or infinity, or a rule that matches no layer or only layers that it cannot change. The error names the layer
        and a remedy.
    """
    dtype = integer_type("activations", activations, TYPES, "; for 16 bits: Rule('', activations=jnp.uint16)")
    blocks_of(weights, block_size)
    check_one_of("products", products, ("mixed", "static", "dynamic"))
    if not isinstance(equalize, bool):
        raise PtqError(f"equalize is {equalize!r}, expected True or False")
    check_one_of("rounding", rounding, ("nearest", "gptq"))
    check_one_of("sums", sums, ("integer", "float"))
    check_one_of("numerics", numerics, tuple(QUANTIZED))
    if wrong := wrong_floats(floats):
        raise PtqError(wrong)
    default, rules = observer_of(observer), rules_of(rules)

    def requantized(params: Any, batch: Sequence[Any], further: Sequence[Rule]) -> Model:
        return quantize(
            apply, params, [tuple(batch)], activations=dtype, observer=default, products=products, weights=weights,
            block_size=block_size, equalize=equalize, rounding=rounding, sums=sums, rules=(*further, *rules),
            floats=floats, numerics=numerics, progress=False,
        )  # fmt: skip

    check_apply(apply, "a function: apply(params, *inputs)")
    check_params(params)
    first, stream = batches_of(batches)
    traced = Traced(apply, params)
    with named(0):
        program = traced.program(first)
    unit = unit_of(program, lambda graph, _: modes_of(graph, products, rules, weights, block_size, sums))
    check_function(unit.builder, [body.builder for body in unit.bodies.values()])
    check_matches(unit.layers(), unit.with_weights(), unit.can_read_wide(), rules)
    if not unit.bodies and all(mode == "float" for mode in unit.modes.values()):
        raise PtqError(_nothing(unit))
    unit = unit.with_constants(jax.tree.leaves(params))
    edges = {scan: edges_of(each) if equalize else [] for scan, each in unit.each()}
    unit, factors, observers = with_ones(unit, edges), dict[str, np.ndarray](), unit.observers(default, rules)
    check_batches(observers, batches)
    of_rows = moments_of(unit) if rounding == "gptq" else None
    calibration = Calibration(traced, unit, observers | (of_rows or {}) | observers_of(unit, edges))
    if any(edges.values()):
        first_batch, stream = with_first(stream)
        unit, factors = equalized(unit, edges, calibration.observed(unit, first_batch, progress=False))
        del first_batch  # one batch is in memory at a time
    found = calibration.observed(unit, stream, progress)
    observers = {value: found[value] for value in observers}
    moments = None if of_rows is None else {value: found[value] for value in of_rows}
    check_seen(unit, observers)
    unit = without_ones(unit, edges)
    modes = {scan: each.modes for scan, each in unit.each()}
    models = dict[str, Model]()
    for name, candidate in candidates_of(observers).items():
        graph = quantized_graph(unit, narrowed(unit, _parameters(unit, candidate, dtype)), moments)
        models[name] = Model(traced, graph, first, modes, floats, numerics, factors, requantized=requantized)
    if len(models) > 1:
        _, stream = batches_of(batches)
        quantized = {name: partial(model.apply, model.params) for name, model in models.items()}
        return models[best_of(quantized, partial(jax.jit(apply), params), stream, progress)]
    (model,) = models.values()
    return model


def _parameters(unit: Unit, observers: Mapping[Value, Observer], dtype: np.dtype) -> dict[Value, Parameters]:
    """Maps each value, and its 16-bit form if contractions read one, to its scale and zero point."""
    found = {
        value: _scale_and_zero_point(each, WORD if unit.is_wide(value) else dtype) for value, each in observers.items()
    }
    for value, each in observers.items():
        if unit.is_read_wide(value):
            found[replace(value, role=WIDE)] = _scale_and_zero_point(each, WORD)
    return found


def _scale_and_zero_point(observer: Observer, dtype: np.dtype) -> Parameters:
    ends = observer.range(dtype)
    try:
        low, high = (np.asarray(end, np.float32) for end in ends)
    except (TypeError, ValueError) as error:
        raise PtqError(_wrong_range(observer, ends)) from error
    if not low.shape == high.shape == np.shape(observer.count):
        raise PtqError(_wrong_range(observer, ends))
    scale, zero_point = scale_and_zero_point(low, high, dtype)
    return np.asarray(scale), np.asarray(zero_point)


def _wrong_range(observer: Observer, ends: Any) -> str:
    text = f"{type(observer).__name__}.range returned {ends!r:.60}"
    return f"{text}, expected the lower and the upper end, float32 of shape {np.shape(observer.count)}"


def _nothing(unit: Unit) -> str:
    text = "there is nothing to quantize: apply has no convolution or matrix product that can run on integers"
    return "\n".join((text, *(f"  {name}: {reason}" for name, reason in unit.reasons_by_layer().items())))
