"""From a float function to a model on integers."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._graph.evaluate import described
from jaxdml._graph.graph import Graph, Node, without_dead
from jaxdml.errors import PtqError
from jaxdml.ptq._calibrate import batches_of, observed
from jaxdml.ptq._canonical import Canonical
from jaxdml.ptq._checks import check_function, check_params
from jaxdml.ptq._conversions import canonical
from jaxdml.ptq._insert import Quantizer
from jaxdml.ptq._model import Model
from jaxdml.ptq._observers import Observer, observer_of
from jaxdml.ptq._plan import CONTRACTIONS, Plan, is_float, plan_of
from jaxdml.ptq._ranges import scale_and_zero_point
from jaxdml.ptq._traced import Traced

Products = Literal["static", "dynamic"]
TYPES = ("uint8", "int8")
WIDE = np.dtype(np.uint16)  # of what only tables read, so that it is not rounded to 8 bits twice


@dataclass(frozen=True)
class Rule:
    """What is done otherwise with some layers.

    Attributes:
      pattern: a regular expression that is searched for in the names of layers, which `print(model)` shows.
      keep: "float": the layer's convolution or product stays in floats.
      products: as for `quantize`, for these layers.
      observer: as for `quantize`, for what these layers read.
    """

    pattern: str
    keep: Literal["float"] | None = None
    products: Products | None = None
    observer: str | Observer | None = None

    def __post_init__(self) -> None:
        """Refuses what no rule can say.

        Raises:
          PtqError: if so.
        """
        try:
            re.compile(self.pattern)
        except (re.error, TypeError) as error:
            raise PtqError(f"Rule({self.pattern!r}): the pattern is no regular expression: {error}") from error
        _check_one_of("Rule.keep", self.keep, ("float", None))
        _check_one_of("Rule.products", self.products, ("static", "dynamic", None))
        if (self.keep, self.products, self.observer) == (None, None, None):
            raise PtqError(f"Rule({self.pattern!r}) changes nothing: say keep, products or observer")


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
      apply: a function of params and inputs that JAX traces, in inference mode: apply(params, *inputs).
      params: its parameters, a pytree of arrays.
      batches: calibration inputs, an iterable of an array or a tuple of inputs for each batch, which may be of other
        sizes. One batch is held at a time.
      activations: uint8 or int8, the type of values between layers.
      observer: how ranges are found: "minmax", "moving_average", "percentile", "mse", or an `Observer`.
      products: "static": matrix products read values in calibrated ranges; "dynamic": products with constant matrices
        read floats, which are quantized to int8 by the range of each row when the function is called, and give floats.
      rules: what is done otherwise with some layers; of several that match, the first that says it decides.
      progress: whether a line on stderr counts batches.

    Returns:
      The model: `model.apply(model.params, *inputs)` returns what apply returns, in its types.

    Raises:
      PtqError: if apply is no function for inference, batches are none, hold NaN or infinity or give values that are,
        a rule matches no layer, or nothing can be quantized; the error names the layer and a remedy.
    """
    dtype = _checked_dtype(activations)
    _check_one_of("products", products, ("static", "dynamic"))
    default = observer_of(observer)
    rules = _checked_rules(rules)
    check_params(apply, params)
    first, rest = batches_of(batches)
    traced = Traced(apply, params)
    program = traced.program(first)
    made = canonical(program)
    check_function(program, made)
    modes, reasons = _modes(made, products, rules)
    graph = made.graph()
    plan = plan_of(graph, modes, {name: is_float(program.avals[name].dtype) for name in program.inputs})
    if not any(mode != "float" for mode in modes.values()):
        raise PtqError(_nothing(graph, reasons))
    constants = made.weights(jax.tree.leaves(params))
    leaves = dict(zip(program.params, jax.tree.leaves(params), strict=True))
    graph = without_dead(_with_constants(graph, {**constants, **leaves}))
    owners = list(dict.fromkeys(plan.grids.values()))
    observers = _observers(graph, plan, owners, default, rules)
    names = {name: _described(name, graph) for name in owners}
    ranges = observed(traced, graph, observers, rest, names, dtype, progress)
    grids = {name: _grid(*ends, WIDE if name in plan.wide else dtype) for name, ends in ranges.items()}
    return Model(traced, Quantizer(program, graph, plan, modes, reasons, grids).graph(), first)


def _described(value: str, graph: Graph) -> str:
    """What errors call a value."""
    maker = graph.producers().get(value)
    return f"what {described(maker)} computes" if maker else value.replace("_", " ")


def _grid(low: Any, high: Any, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    scale, zero_point = scale_and_zero_point(np.float32(low), np.float32(high), dtype)
    return np.asarray(scale), np.asarray(zero_point)


def _with_constants(graph: Graph, constants: Mapping[str, Any]) -> Graph:
    return graph.replace(constants={**graph.constants, **{name: np.asarray(x) for name, x in constants.items()}})


# Layers and rules ----------------------------------------------------------------------------------------------------


def _contractions(made: Canonical) -> dict[str, Node]:
    """The contractions by their result; those that stay as they are among them."""
    graph = made.graph()
    return {
        node.outputs[0]: node for node in graph.nodes
        if node.operator.kind in CONTRACTIONS or node.operator.name in ("conv_general_dilated", "dot_general")
    }  # fmt: skip


def _modes(made: Canonical, products: str, rules: Sequence[Rule]) -> tuple[dict[str, str], dict[str, str]]:
    """How each contraction runs, and why some stay in floats, by their result."""
    layers = _contractions(made)
    modes, reasons = dict[str, str](), dict[str, str]()
    for output, node in layers.items():
        if node.operator.kind not in CONTRACTIONS:
            reasons[output] = node.remark
            continue
        matching = [rule for rule in rules if re.search(rule.pattern, node.name)]
        kept = next((rule for rule in matching if rule.keep), None)
        asked = next((rule.products for rule in matching if rule.products), products)
        modes[output] = "static"
        if kept is not None:
            modes[output], reasons[output] = "float", f"kept in floats by Rule({kept.pattern!r})"
        elif asked == "dynamic" and node.operator.kind == "dot":
            modes[output] = "dynamic"
    for rule in rules:
        if not any(re.search(rule.pattern, node.name) for node in layers.values()):
            names = ", ".join(dict.fromkeys(repr(node.name) for node in layers.values())) or "none"
            raise PtqError(f"Rule({rule.pattern!r}) matches no layer; the layers are {names}")
    return modes, reasons


def _observers(
    graph: Graph, plan: Plan, owners: Sequence[str], default: Observer, rules: Sequence[Rule]
) -> dict[str, Observer]:
    """The observer of each value that has a grid."""
    chosen = dict.fromkeys(owners, default)
    for rule in reversed(rules):
        if rule.observer is not None:
            layers = [node for node in plan.integers if node.operator.kind in CONTRACTIONS]
            for node in layers:
                if re.search(rule.pattern, node.name):
                    chosen |= {plan.grids[name]: observer_of(rule.observer)
                               for name in node.inputs if name in plan.grids}  # fmt: skip
    return chosen


def _nothing(graph: Graph, reasons: Mapping[str, str]) -> str:
    text = "there is nothing to quantize: apply has no convolution or matrix product that can run on integers"
    lines = [f"  {node.name or node.outputs[0]}: {reasons[node.outputs[0]]}"
             for node in graph.nodes if reasons.get(node.outputs[0])]  # fmt: skip
    return "\n".join((text, *lines))


# Arguments -----------------------------------------------------------------------------------------------------------


def _checked_dtype(activations: Any) -> np.dtype:
    try:
        dtype = np.dtype(activations)
    except TypeError:
        dtype = None
    if dtype is None or dtype.name not in TYPES:
        raise PtqError(f"activations is {dtype or repr(activations)}, expected uint8 or int8")
    return dtype


def _check_one_of(name: str, value: Any, allowed: Sequence[Any]) -> None:
    if value not in allowed:
        raise PtqError(f"{name} is {value!r}, expected {' or '.join(repr(each) for each in allowed if each)}")


def _checked_rules(rules: Any) -> tuple[Rule, ...]:
    if isinstance(rules, Rule):
        raise PtqError("rules is a Rule, expected a sequence of rules: write (rule,)")
    rules = tuple(rules)
    for rule in rules:
        if not isinstance(rule, Rule):
            raise PtqError(f"rules has {rule!r}, expected Rule: write jaxdml.ptq.Rule(pattern, keep='float')")
    return rules
