"""How the floats of a model are computed: by the rules of `jaxdml.exact`, or by XLA."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import jax
import numpy as np

from jaxdml._exact.fast_math import fast_math_flag
from jaxdml._exact.function import interpreted
from jaxdml._exact.interpreter import lacks_rule, problems
from jaxdml._graph.graph import CONVERSIONS, EXACT_CAST, MOVERS, ROUNDING, Node
from jaxdml.errors import ExactError

Floats = Literal["exact", "xla"]
EXACT, XLA = "exact", "xla"
FLOATS = (EXACT, XLA)
DEFAULT: Floats = "exact"
VERSION = 1  # of the rules; increment it when the bits of a rule change
MOST_NAMED = 3
ONE_ANSWER, NO_SINGLE_ANSWER = "one answer", "no single answer"


def wrong_floats(floats: Any) -> str | None:
    """The error for a wrong choice, or None."""
    if floats not in FLOATS:
        return f"floats is {floats!r}, expected {EXACT!r} or {XLA!r}"
    if floats == EXACT and (flag := fast_math_flag()):
        return f"XLA_FLAGS has {flag}, which lets XLA change any float: remove the flag, or write floats={XLA!r}"
    return None


def with_floats[**P, R](function: Callable[P, R], floats: str) -> Callable[P, R]:
    """The function, evaluated by the rules if floats is "exact". Operations without a rule are left to XLA."""
    return interpreted(function, _check_counts) if floats == EXACT else function


def _check_counts(jaxpr: Any) -> None:
    """Rejects sums and products of an unknown number of elements, and sums of too many.

    Raises:
      ExactError: if there is such a sum or product.
    """
    texts = tuple(dict.fromkeys(each.text for each in problems(jaxpr) if each.kind == "count"))
    if texts:
        raise ExactError("\n".join(f"exact: {text}, or choose floats={XLA!r}" for text in texts), texts)


def by_xla(nodes: Iterable[Node], floats: str) -> tuple[str, ...]:
    """The names of the nodes whose floats XLA computes."""
    return tuple(dict.fromkeys(_by_xla(nodes, floats)))


def _by_xla(nodes: Iterable[Node], floats: str) -> Iterator[str]:
    for node in nodes:
        if "body" in node.options:
            yield from _by_xla(node.options["body"].nodes, floats)
        elif _computes_floats(node) and (floats == XLA or not _has_rule(node)):
            yield node.name or node.outputs[0]


def _computes_floats(node: Node) -> bool:
    is_choice = node.operator.only_selects or node.operator.kind in (*CONVERSIONS, *MOVERS, EXACT_CAST, ROUNDING)
    return node.on == "floats" and not is_choice


def _has_rule(node: Node) -> bool:
    equation = node.options.get("equation")
    return node.operator.has_rule and not (equation and _lacks_rule(equation)) and not _computes_float64(node)


def _lacks_rule(equation: Any) -> bool:
    return lacks_rule(equation.primitive.name, equation.params, equation.dtypes, equation.dtypes_of_results)


def _computes_float64(node: Node) -> bool:
    """Whether a node computes on float64, for which there are no rules."""
    has_float64 = jax.dtypes.canonicalize_dtype(np.float64) == np.float64
    return has_float64 and node.reads_float64 and not node.operator.only_selects and _computes_floats(node)


def on_float64(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The names of the nodes that compute on float64."""
    return tuple(dict.fromkeys(node.name or node.outputs[0] for node in nodes if _computes_float64(node)))


def sentence(
    names: Sequence[str], without_rule: Sequence[str] | None, floats: str, float64: Sequence[str] = ()
) -> str:  # fmt: skip
    """Says whether a model's outputs have the same bits everywhere.

    Args:
      names: the nodes whose floats XLA computes.
      without_rule: the nodes whose floats XLA computes even if `floats` is "exact"; None if they are not known.
      floats: the model's `floats`.
      float64: the nodes that compute on float64.
    """
    if not names:
        return f"{ONE_ANSWER}: the outputs have the same bits on every processor"
    if floats == EXACT:
        reason = ", for which there is no rule"
    elif without_rule is None:
        reason = ""
    elif without_rule:
        reason = f'; floats="{EXACT}" has no rule for {_listed(without_rule)}'
    else:
        reason = f'; write floats="{EXACT}"'
    remedy = f"; turn jax_enable_x64 off, so that float32 replaces float64 in {_listed(float64)}" if float64 else ""
    return f"{NO_SINGLE_ANSWER} is promised: XLA computes the floats of {_listed(names)}{reason}{remedy}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"
