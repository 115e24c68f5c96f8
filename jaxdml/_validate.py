"""Decides whether a desc is right at a feature level. Pure Python; the only place that knows the rules' order."""

import functools
from typing import Any, NamedTuple

import jax

from jaxdml._data_types import DataType
from jaxdml._size_rules import CHECKS
from jaxdml._tensor_rules import broken, check_tensor, is_symbolic, listed, shown
from jaxdml.descs import OperatorDesc, TensorDesc, parameter_name
from jaxdml.errors import DescError, FeatureLevelError
from jaxdml.feature_levels import CONSTRAINTS, SUPPORT, FeatureLevel, Support, support_at


def validate(desc: OperatorDesc, feature_level: FeatureLevel = FeatureLevel.LATEST) -> jax.ShapeDtypeStruct:
    """Checks a desc against the rules of its operator at a feature level.

    Args:
      desc: an operator desc, such as `QuantizedLinearConvolutionDesc`.
      feature_level: the level whose tensor-support table applies.

    Returns:
      The output's shape and dtype.

    Raises:
      DescError: naming operator, tensor and rule; FeatureLevelError where another level would allow it.
    """
    if not isinstance(desc, OperatorDesc) or desc.operator not in SUPPORT:
        text = f"validate: desc is {shown(desc)}, expected an operator desc such as ElementWiseDequantizeLinearDesc"
        raise DescError(text, tensor="desc", rule="operator_desc", expected=OperatorDesc, received=desc)
    check_feature_level(desc.operator, feature_level)
    tensors = desc.tensors()
    for name, tensor in tensors.items():
        if tensor is not None:
            check_tensor(desc.operator, name, tensor)
    for name, tensor in tensors.items():
        check_support(desc.operator, name, tensor, feature_level)
    _check_constraints(desc.operator, tensors)
    CHECKS[desc.operator](desc)
    output = tensors["OutputTensor"]
    return jax.ShapeDtypeStruct(output.sizes, output.data_type.dtype)


# What the operators call: a desc once found right need not be checked again, so that eager calls in a loop pay once.
_validate_once = functools.lru_cache(maxsize=4096)(validate)


def validate_once(desc: OperatorDesc, feature_level: FeatureLevel) -> None:
    """validate, remembered unless dimensions are symbolic, which cannot be compared across exports."""
    tensors = (tensor for tensor in desc.tensors().values() if tensor is not None)
    has_symbols = any(is_symbolic(size) for tensor in tensors for size in tensor.sizes)
    (validate if has_symbols else _validate_once)(desc, feature_level)


def minimum_feature_level(desc: OperatorDesc) -> FeatureLevel:
    """The lowest feature level that allows a desc.

    Raises:
      DescError: if no level does; it says what is wrong at LATEST.
    """
    validate(desc, FeatureLevel.LATEST)
    return next(level for level in FeatureLevel if _is_allowed(desc, level))


def _is_allowed(desc: OperatorDesc, level: FeatureLevel) -> bool:
    try:
        validate(desc, level)
    except FeatureLevelError:
        return False
    return True


def check_is_level(operator: str, feature_level: Any) -> None:
    if not isinstance(feature_level, FeatureLevel):
        text = f"is {shown(feature_level)}, expected a FeatureLevel; write FeatureLevel.LEVEL_4_0 or the like"
        raise broken(operator, "feature_level", "feature_level", text, expected=FeatureLevel, received=feature_level)


def check_feature_level(operator: str, feature_level: Any) -> None:
    """feature_level is a FeatureLevel, and the operator exists there."""
    check_is_level(operator, feature_level)
    introduced = min(SUPPORT[operator])
    if feature_level < introduced:
        raise FeatureLevelError(
            f"{operator}: not available at feature level {feature_level} (introduced in {introduced})",
            operator=operator,
            rule="feature_level",
            expected=introduced,
            received=feature_level,
            feature_level=feature_level,
            minimum_feature_level=introduced,
        )


class _Breach(NamedTuple):
    """How a tensor leaves its row of the support table."""

    rule: str
    problem: str
    allowed: str
    expected: Any
    received: Any
    fix: str


def _breach(name: str, row: Support, tensor: TensorDesc | None) -> _Breach | None:
    if tensor is None:
        fix = "give it a TensorDesc"
        return None if row.optional else _Breach("required", "is missing", "requires it", TensorDesc, None, fix)
    low, high = row.dimension_counts
    rank = len(tensor.sizes)
    if not low <= rank <= high:
        allowed = f"allows {low} to {high}" if low != high else f"allows {low}"
        fix = "reshape {parameter}"
        return _Breach("dimension_count", f"has rank {rank}", allowed, row.dimension_counts, rank, fix)
    if tensor.data_type not in row.data_types:
        problem, allowed = f"has data type {tensor.data_type.name}", f"allows {listed(row.data_types)}"
        fix = _conversion(name, tensor.data_type, row.data_types)
        return _Breach("data_type", problem, allowed, row.data_types, tensor.data_type, fix)
    return None


def _conversion(name: str, received: DataType, allowed: tuple[DataType, ...]) -> str:
    """How to come from a type to an allowed one without losing what the values mean."""
    if name == "OutputTensor":
        return f"make it {listed(allowed)}"
    if allowed[0] == DataType.FLOAT32:
        return f"write {{parameter}}.astype(jnp.{allowed[0].name.lower()})"
    if name.endswith("ZeroPointTensor"):
        return "a zero point comes after its scale and is an integer of its tensor's type; convert it with .astype"
    if received.name.startswith("FLOAT"):
        if name == "BiasTensor":
            return "it counts steps of input_scale * filter_scale: divide by them, then jnp.rint and .astype(jnp.int32)"
        return "quantize it first: element_wise_quantize_linear({parameter}, scale, zero_point, output_dtype=...)"
    return "convert it with {parameter}.astype to a type that holds its values"


def check_support(operator: str, name: str, tensor: TensorDesc | None, feature_level: FeatureLevel) -> None:
    """The tensor stands in its row of the table: present or optional, dimension count, data type."""
    breach = _breach(name, support_at(operator, feature_level)[name], tensor)
    if breach is None:
        return
    tables = SUPPORT[operator].items()
    minimum = min((level for level, rows in tables if not _breach(name, rows[name], tensor)), default=None)
    if minimum:
        hint = f" ({'optional' if breach.rule == 'required' else 'allowed'} from {minimum})"
    else:
        hint = f"; {breach.fix.format(parameter=parameter_name(name))}"
    raise broken(
        operator,
        name,
        breach.rule,
        f"{breach.problem}, feature level {feature_level} {breach.allowed}{hint}",
        error=FeatureLevelError if minimum else DescError,
        expected=breach.expected,
        received=breach.received,
        feature_level=feature_level,
        minimum_feature_level=minimum,
    )


def _check_constraints(operator: str, tensors: dict[str, Any]) -> None:
    """Every bullet of the page's tensor-constraint list; absent tensors constrain nothing."""
    for what, names in CONSTRAINTS[operator]:
        present = [name for name in names if tensors[name] is not None]
        first = present[0]
        for name in present[1:]:
            mine, theirs = _fact(what, tensors[name]), _fact(what, tensors[first])
            if mine != theirs:
                label = {"dimension_count": "rank", "sizes": "Sizes", "data_type": "data type"}[what]
                text = f"has {label} {_shown(mine)}, expected {_shown(theirs)}, that of {first}"
                if what == "dimension_count" and name == "FilterTensor" and mine == theirs + 1:
                    text += "; a batch of one image is input[None]"
                elif what == "dimension_count" and name == "BTensor":
                    text += "; tensors do not broadcast, use jax.vmap or jnp.broadcast_to"
                elif what == "data_type":
                    text += f"; write {parameter_name(name)}.astype(jnp.{theirs.name.lower()})"
                elif what == "sizes" and name in ("ScaleTensor", "ZeroPointTensor"):
                    text += "; in a desc with Strides of 0 where values are shared, "
                    text += f"in a call reshape {parameter_name(name)} so that it broadcasts"
                raise broken(operator, name, f"same_{what}", text, expected=theirs, received=mine)


def _fact(what: str, tensor: TensorDesc) -> Any:
    return len(tensor.sizes) if what == "dimension_count" else getattr(tensor, what)


def _shown(fact: Any) -> str:
    return str(list(fact)) if isinstance(fact, tuple) else getattr(fact, "name", str(fact))
