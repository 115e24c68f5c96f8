"""From a float function to a model on integers."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxdml.errors import PtqError, api_boundary
from jaxdml.ptq._calibrate import batches_of, observed
from jaxdml.ptq._checks import check_function, check_params
from jaxdml.ptq._insert import with_grids
from jaxdml.ptq._model import Model
from jaxdml.ptq._observers import Observer, observer_of
from jaxdml.ptq._ranges import integer_type, scale_and_zero_point
from jaxdml.ptq._rule import Products, Rule, check_one_of, checked_rules
from jaxdml.ptq._traced import Traced
from jaxdml.ptq._units import Unit, check_matches, unit_of

TYPES = ("uint8", "int8")
WIDE = np.dtype(np.uint16)  # of what only tables read, so that it is not rounded to 8 bits twice


@api_boundary
def quantize(
    apply: Callable[..., Any],
    params: Any,
    batches: Iterable[Any],
    *,
    activations: chex.ArrayDType = jnp.uint8,
    observer: str | Observer = "minmax",
    products: Products = "static",
    rules: Sequence[Rule] = (),
    progress: bool = True,
) -> Model:
    """A float function as a function on integers.

    Convolutions and matrix products become DirectML's quantized operators, with what is affine behind them folded into
    their weights: int8, symmetric, with a scale for each output channel. What leads from one to the next stays on
    integers where operators for that exist; all else is computed in floats. `print(model)` shows what became of each
    equation.

    Args:
      apply: a function of params and inputs that JAX traces, in inference mode: ``apply(params, *inputs)``.
      params: its parameters, a pytree of arrays.
      batches: calibration inputs, an iterable of an array or a tuple of inputs for each batch, which may be of other
        sizes. One batch is held at a time.
      activations: uint8 or int8, the type of values between layers.
      observer: how ranges are found: "minmax", "moving_average", "percentile", "mse", or an `Observer`.
      products: "static": matrix products read values in calibrated ranges; "dynamic": they read floats, which are
        quantized by the range of each row when the function is called, and give floats. Convolutions stay static.
      rules: what is done otherwise with some layers; if several match, the first that sets an option decides it.
      progress: whether a line on stderr counts batches.

    Returns:
      The model; ``model.apply(model.params, *inputs)`` returns what apply returns, in its types.

    Raises:
      PtqError: if apply is no function for inference, batches are none, hold NaN or infinity or give values that are,
        a rule matches no layer, or nothing can be quantized; the error names the layer and a remedy.
    """
    dtype = integer_type("activations", activations, TYPES)
    check_one_of("products", products, ("static", "dynamic"))
    default, rules = observer_of(observer), checked_rules(rules)
    check_params(apply, params)
    first, batches = batches_of(batches)
    traced = Traced(apply, params)
    unit = unit_of(traced.program(first), products, rules)
    check_function(unit.program, unit.made)
    check_matches(unit, rules)
    if not any(each.is_quantized for each in (unit, *unit.loops.values())):
        raise PtqError(_nothing(unit))
    unit = unit.with_constants(jax.tree.leaves(params))
    observers = unit.observers(default, rules)
    for scan, body in unit.loops.items():
        observers |= {f"{scan}/{name}": each for name, each in body.observers(default, rules).items()}
    seen = observed(traced, unit, observers, batches, progress)
    return Model(traced, with_grids(unit, {name: _grid(name, each, unit, dtype) for name, each in seen.items()}), first)


def _grid(name: str, observer: Observer, unit: Unit, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Scale and zero point of a value, or of a body's value in each layer."""
    scan, _, inner = name.partition("/")
    is_wide = inner in unit.loops[scan].plan.wide if scan in unit.loops else name in unit.plan.wide
    integers = WIDE if is_wide else dtype
    low, high = (np.asarray(end, np.float32) for end in observer.range(integers))
    scale, zero_point = scale_and_zero_point(low, high, integers)
    return np.asarray(scale), np.asarray(zero_point)


def _nothing(unit: Unit) -> str:
    text = "there is nothing to quantize: apply has no convolution or matrix product that can run on integers"
    return "\n".join((text, *(f"  {name}: {reason}" for name, reason in unit.told().items())))
