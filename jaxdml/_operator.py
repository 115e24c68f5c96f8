"""What the operators have in common: a call is described, checked, then computed. `desc_of` stops before the last."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from jaxdml._validate import validate_once
from jaxdml.descs import OperatorDesc
from jaxdml.errors import DescError
from jaxdml.feature_levels import FeatureLevel


class Call(NamedTuple):
    """A call of an operator: the desc it stands for, the level that must allow it, and how to compute it."""

    desc: OperatorDesc
    feature_level: FeatureLevel
    compute: Callable[[], jax.Array]


def operator[**P](describe: Callable[P, Call]) -> Callable[P, jax.Array]:
    """The operator whose calls `describe` describes."""

    @functools.wraps(describe)
    def call(*arguments: P.args, **options: P.kwargs) -> jax.Array:
        desc, feature_level, compute = describe(*arguments, **options)
        validate_once(desc, feature_level)
        return compute()

    signature = inspect.signature(describe).replace(return_annotation=jax.Array)
    vars(call).update(describe=describe, __signature__=signature)
    return call


def desc_of(function: Callable[..., jax.Array], /, *arrays: Any, **statics: Any) -> OperatorDesc:
    """The desc that a call stands for; `compile_operator` goes the other way.

    Args:
      function: an operator of jaxdml, such as `element_wise_dequantize_linear`.
      *arrays: the arrays of the call, in its order.
      **statics: its options, feature_level among them.

    Returns:
      The operator desc, checked. What broadcasts in the call does so by strides of 0 in the desc.

    Raises:
      DescError: if function is none of the operators, or would raise it itself.
    """
    describe = getattr(function, "describe", None)
    if describe is None:
        name = getattr(function, "__name__", repr(function))
        text = f"desc_of: function is {name}, expected an operator such as jaxdml.element_wise_dequantize_linear"
        raise DescError(text, tensor="function", rule="operator", received=function)
    desc, feature_level, _ = describe(*arrays, **statics)
    validate_once(desc, feature_level)
    return desc
