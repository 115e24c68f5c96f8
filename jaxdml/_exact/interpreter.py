"""Evaluates jaxprs by the rules. Calls are inlined; bodies of loops and branches are evaluated by the rules, too."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.extend import source_info_util
from jax.extend.core.primitives import convert_element_type_p

from jaxdml._arithmetic.calls import CALLS, called_jaxpr
from jaxdml._arithmetic.exact_calls import is_exact_call
from jaxdml._arithmetic.integers import are_same
from jaxdml._arithmetic.rounding import SMALLEST_NORMAL
from jaxdml._exact.chains import with_chains
from jaxdml._exact.conversions import FLOATS, is_float
from jaxdml._exact.flat import FlatJaxpr, Operation, flattened
from jaxdml._exact.in_place import with_overwritten_operands
from jaxdml._exact.kernel_calls import JOINED
from jaxdml._exact.row_groups import with_row_groups
from jaxdml._exact.rows import ROW_PROGRAM, joined, row_program_rule
from jaxdml._exact.rules import (
    RULES,
    as_it_is,
    has_rule,
    is_sum_of_products,
    left_to_xla,
    types_without_rules,
    widened_on_cuda,
)
from jaxdml._exact.scans import scan_of, scanned
from jaxdml._exact.scatters import updates_of_an_element
from jaxdml._exact.slices import with_sunk_slices
from jaxdml._exact.steps import with_steps
from jaxdml._exact.sums import LARGEST_COUNT, count_of, span_of_windows
from jaxdml._exact.transposes import without_pairs_of_transposes

Array = jax.Array
TOP_OF_NEGATION = Operation("top_k_of_negation")
LOOPS = frozenset(("scan", "while", "cond"))
COUNTS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        ("reduce_sum", "reduce_prod", "psum"), lambda eqn: count_of(eqn.invars[0].aval.shape, eqn.params["axes"])
    ),
    **dict.fromkeys(("cumsum", "cumprod"), lambda eqn: count_of(eqn.invars[0].aval.shape, (eqn.params["axis"],))),
    **dict.fromkeys(
        ("scatter-add", "scatter-sub"),
        lambda eqn: updates_of_an_element(eqn.invars[1].aval.shape, eqn.params["dimension_numbers"]),
    ),
    "reduce_window_sum": lambda eqn: span_of_windows(eqn.params),
}  # the maximum number of addends of the equation's sums, or of factors of its products, or of elements under a window
PRODUCTS = frozenset(("dot_general", "conv_general_dilated", "ragged_dot_general"))
OF_VMAP = "for the axis of a vmap, exact(jax.vmap(f, axis_name=...)) also works"
OUTSIDE = f"outside of shard_map and vmap; the array may still be sharded along that axis; {OF_VMAP}"
REMEDIES = {
    "dot_general": 'quantize the product with jaxdml.ptq, or write exact(f, products="xla") to have XLA\'s bits',
    "conv_general_dilated": 'quantize the convolution with jaxdml.ptq, or write exact(f, products="xla")',
    "ragged_dot_general": 'write exact(f, products="xla") to have XLA\'s bits',
    "log2": "write jnp.log(x) * np.float32(1 / np.log(2))",
    "cbrt": "write jnp.sign(x) * jnp.abs(x) ** (1 / 3)",
    "scatter": "write x.at[i].set(f(x[i])), which applies f once where indices repeat, in place of x.at[i].apply(f)",
    "scatter-mul": "write x.at[i].set(x[i] * updates), which multiplies each element once",
    **dict.fromkeys(("psum", "psum_invariant", "reduce_scatter"), f"write jnp.sum over the axis {OUTSIDE}"),
    "pmax": f"write jnp.max over the axis {OUTSIDE}",
    "pmin": f"write jnp.min over the axis {OUTSIDE}",
    **dict.fromkeys(
        ("all_gather", "all_to_all", "ppermute"),
        f"call it on the arguments or results of the function that exact returned; {OF_VMAP}",
    ),
    "shard_map": "put exact inside: jax.shard_map(exact(f), ...)",
}
REMEDIES_OF_SYMBOLS = {  # for counts that are symbolic, but must be known
    **dict.fromkeys(
        ("reduce_prod", "cumprod"),
        (
            "a product of {} factors",
            "export the function with a number, not a symbol, as the size of a multiplied axis",
        ),
    ),
    "reduce_window_sum": (
        "a sum over windows of {} elements",
        "export the function with numbers, not symbols, as the sizes and dilations of windows, or write jnp.sum over "
        "an axis that a window covers",
    ),
}
GENERAL_REMEDY = "compute it outside of exact, or with functions that docs/exact_rules.md lists"
COMPLEX = "complex numbers have no rules; compute it outside of exact"
OF_TYPES = {
    "float64": "convert it to float32 with .astype(jnp.float32), or turn jax_enable_x64 off",
    "complex64": COMPLEX,
    "complex128": COMPLEX,
}  # remedies for types that rules do not take


# Equations without a rule --------------------------------------------------------------------------------------------


Kind = Literal["type", "rule", "count", "varies"]


class Problem(NamedTuple):
    """A reason why an equation has no single answer.

    Attributes:
      primitive: the name of the equation's primitive.
      kind: "type": floats of an unsupported type; "rule": the primitive has no rule; "count": the number of addends of
        a sum is too large, or the number of factors of a product is unknown; "varies": the integers of the
        primitive, or the places where it writes floats, may differ. `jaxdml.exact` leaves the last kind to its caller.
      text: the error, with the primitive, its place and a remedy.
    """

    primitive: str
    kind: Kind
    text: str


def problems(jaxpr: Any, scope: str = "", line: str = "") -> Iterator[Problem]:
    """Yields the problems of a jaxpr, including those inside its calls and loops.

    `scope` and `line` are those of the call that contains the jaxpr. `line` is for equations without one: JAX records
    no lines in its own functions.
    """
    for eqn in jaxpr.eqns:
        inside = "/".join(filter(None, (scope, str(eqn.source_info.name_stack))))
        place = source_info_util.summarize(eqn.source_info) or line
        if _has_jaxprs_to_evaluate(eqn):
            called = called_jaxpr(eqn)
            for inner in inner_jaxprs(eqn.params if called is None else {"called": called}):
                yield from problems(inner, inside, place)
        elif problem := _problem(eqn):
            kind, what, remedy = problem
            text = f"{what}{f' in {inside}' if inside else ''}{f' ({place})' if place else ''}: {remedy}"
            yield Problem(eqn.primitive.name, kind, text)


def lacks_rule(name: str, params: Mapping[str, Any], dtypes: Sequence[Any], of_results: Sequence[Any]) -> bool:
    """Whether XLA alone decides the results of a primitive with operands and results of these types.

    The equations of a primitive's jaxprs count, too.
    """
    if name in LOOPS:
        return any(each.kind != "count" for inner in inner_jaxprs(params) for each in problems(inner))
    if is_exact_call(params):
        return False
    floats = [dtype for dtype in (*dtypes, *of_results) if is_float(dtype)]
    if floats and (not has_rule(name, params) or types_without_rules(name, params, floats)):
        return True
    return _varies(name, params, dtypes, bool(floats))


def _has_jaxprs_to_evaluate(eqn: Any) -> bool:
    name = eqn.primitive.name
    return name in LOOPS or (name in CALLS and not is_exact_call(eqn.params))


def _problem(eqn: Any) -> tuple[Kind, str, str] | None:
    """The kind of an equation's problem, its description, and a remedy; None if the equation has no problem."""
    name = eqn.primitive.name
    floats = _types_of_floats(eqn)
    if is_exact_call(eqn.params):
        return None
    if floats and (problem := _problem_of_floats(eqn, floats)):
        return problem
    if not floats and computes_floats(eqn.params):
        return "rule", f"no rule for the floats inside {name}", REMEDIES.get(name, GENERAL_REMEDY)
    dtypes = [var.aval.dtype for var in eqn.invars if hasattr(var.aval, "dtype")]
    if eqn.outvars and _varies(name, eqn.params, dtypes, bool(floats)):
        return "varies", f"the results of {name} may differ", GENERAL_REMEDY
    return None


def _problem_of_floats(eqn: Any, types: Sequence[Any]) -> tuple[Kind, str, str] | None:
    name = eqn.primitive.name
    if other := types_without_rules(name, eqn.params, types):
        return "type", f"{name} of {other[0]}", OF_TYPES.get(other[0].name, "use float32, bfloat16 or float16")
    if is_sum_of_products(name, eqn.params):
        return "rule", f"no rule for the float products of {name}", REMEDIES[name]
    if not has_rule(name, eqn.params):
        return "rule", f"no rule for {name} of {types[0]}", REMEDIES.get(name, GENERAL_REMEDY)
    return _problem_of_count(COUNTS[name](eqn), name) if name in COUNTS else None


def _varies(name: str, params: Mapping[str, Any], dtypes: Sequence[Any], has_floats: bool) -> bool:
    """Whether the integers of a primitive, or the places where it writes floats, may differ."""
    return (not has_floats or name == "scatter") and not are_same(name, params, dtypes)


def _problem_of_count(count: Any, name: str) -> tuple[Literal["count"], str, str] | None:
    if name in REMEDIES_OF_SYMBOLS:
        what, remedy = REMEDIES_OF_SYMBOLS[name]
        return None if isinstance(count, int) else ("count", what.format(count), remedy)
    if isinstance(count, int) and count > LARGEST_COUNT:
        return "count", f"a sum of more than {LARGEST_COUNT:,} addends", "sum parts, then the sums of the parts"
    return None


def _is_of_floats(var: Any) -> bool:
    return hasattr(var.aval, "dtype") and is_float(var.aval.dtype)


def _types_of_floats(eqn: Any) -> list[Any]:
    return [var.aval.dtype for var in (*eqn.invars, *eqn.outvars) if _is_of_floats(var)]


def _is_of_bytes(var: Any) -> bool:
    return jax.numpy.issubdtype(var.aval.dtype, np.integer) and var.aval.dtype.itemsize == 1


def inner_jaxprs(params: Mapping[str, Any]) -> Iterator[Any]:
    """The jaxprs among an equation's parameters."""
    for value in params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if hasattr(each, "eqns"):
                yield getattr(each, "jaxpr", each)


def computes_floats(params: Mapping[str, Any]) -> bool:
    """Whether any equation of the jaxprs among an equation's parameters has floats."""
    eqns = [eqn for inner in inner_jaxprs(params) for eqn in inner.eqns]
    return any(_types_of_floats(eqn) or computes_floats(eqn.params) for eqn in eqns)


# Evaluation ----------------------------------------------------------------------------------------------------------


def evaluate(jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """The results of a jaxpr. Its float32 constants and inputs are flushed first. XLA computes what has no rule."""
    flat, constants = _prepared(jaxpr, constants)
    values = dict(zip(flat.invars, map(jax.numpy.asarray, (*constants, *inputs)), strict=True))
    _run(with_overwritten_operands(flat.eqns, flat.outvars), values)
    return [_typed(_read(atom, values), atom.aval) for atom in flat.outvars]


def _prepared(jaxpr: Any, constants: Sequence[Any], are_looped: bool = False) -> tuple[FlatJaxpr, list[Any]]:
    """A flat jaxpr whose equations are joined, and its constants."""
    flat, constants = flattened(jaxpr, constants, _called)
    flat = without_pairs_of_transposes(flat._replace(eqns=_with_order_of_nan(flat.eqns)))
    eqns = with_chains(joined(flat._replace(eqns=with_sunk_slices(flat))), flat.outvars)
    eqns = with_steps(eqns, flat.outvars, are_looped)
    if not jaxpr.effects:  # groups change the order of equations
        eqns = with_row_groups(eqns, flat.outvars)  # quantizers join programs last: chains and steps save more
    return flat._replace(eqns=eqns), constants


def _run(eqns: Sequence[Any], values: dict[Any, Any]) -> None:
    """Adds the results of equations to the values, flushed."""
    for eqn in eqns:
        with jax.named_scope(eqn.scope):
            results = _computed(eqn, [_read(atom, values) for atom in eqn.invars])
        values |= zip(eqn.outvars, results, strict=True)


def _read(atom: Any, values: Mapping[Any, Any]) -> Any:
    return _literal(atom.val, atom.aval) if isinstance(atom, jax.extend.core.Literal) else values[atom]


def _with_order_of_nan(eqns: Sequence[Any]) -> list[Any]:
    """The equations, where TOP_OF_NEGATION replaces each top_k(-y): NaN in y are then the largest elements of y.

    jnp.partition, which computes top_k(-y), treats NaN so.
    """
    negations = {eqn.result for eqn in eqns if eqn.primitive.name == "neg" and eqn.result.aval.dtype in FLOATS}
    return [
        eqn._replace(primitive=TOP_OF_NEGATION) if eqn.primitive.name == "top_k" and eqn.invars[0] in negations else eqn
        for eqn in eqns
    ]


def _called(eqn: Any) -> Any:
    """The jaxpr whose equations replace an equation that calls it; None if the equation is not replaced."""
    return None if is_exact_call(eqn.params) else called_jaxpr(eqn)


def _computed(eqn: Any, operands: list[Any]) -> Sequence[Any]:
    results = _computation(eqn)(*operands)
    return results if isinstance(results, list | tuple) else [results]


def _computation(eqn: Any) -> Callable[..., Any]:
    """The function of arrays that computes an equation other than a call."""
    name, primitive, params = eqn.primitive.name, eqn.primitive, eqn.params
    if eqn.is_exact:
        return as_it_is(primitive, params)
    if name == "scan":
        return _scan(eqn)
    if name in LOOPS:
        return as_it_is(primitive, _with_rules(params))
    if primitive is ROW_PROGRAM:
        return row_program_rule(params)
    if primitive is JOINED:
        rule: Callable[..., Any] = params["compute"]
        return rule
    types = _types_of_floats(eqn)
    if not types or is_exact_call(params):
        is_narrow = name == "dot_general" and all(_is_of_bytes(var) for var in eqn.invars)
        return widened_on_cuda(primitive, params) if is_narrow else as_it_is(primitive, params)
    return left_to_xla(primitive, params) if _problem_of_floats(eqn, types) else RULES[name](primitive, params)


def _scan(eqn: Any) -> Callable[..., Any]:
    """The function that computes a scan, with one native call for all steps where that is possible."""

    def compute(*operands: Any) -> Any:
        return as_it_is(eqn.primitive, _with_rules(eqn.params))(*operands)

    body = eqn.params["jaxpr"]
    flat, constants = _prepared(body.jaxpr, body.consts, are_looped=True)
    scan = scan_of(eqn, flat, constants, _run, _read)
    return compute if scan is None else partial(scanned, scan=scan, compute=compute)


def _with_rules(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a loop or branch; each jaxpr is replaced by one that evaluates it by the rules."""

    def replaced(value: Any) -> Any:
        if isinstance(value, tuple | list) and any(hasattr(each, "eqns") for each in value):
            return type(value)(map(replaced, value))
        if not hasattr(value, "eqns"):
            return value

        def body(*inputs: Any) -> list[Any]:
            return evaluate(value.jaxpr, value.consts, inputs)

        return jax.make_jaxpr(body)(*(var.aval for var in value.jaxpr.invars))

    return {key: replaced(value) for key, value in params.items()}


def _literal(value: Any, aval: Any) -> Any:
    """A literal as an array of its type, flushed."""
    array = np.asarray(value, aval.dtype)
    is_subnormal = array.dtype == np.float32 and bool(np.abs(array) < SMALLEST_NORMAL)
    return np.copysign(np.float32(0), array) if is_subnormal else array


def _typed(value: Any, aval: Any) -> Any:
    """A result as an array that is weakly typed if JAX's result is.

    A weakly typed array takes the type of the other operand.
    """
    array = jax.numpy.asarray(value)
    is_weak = getattr(aval, "weak_type", False)
    if getattr(jax.typeof(array), "weak_type", False) == is_weak:
        return array
    return convert_element_type_p.bind(array, new_dtype=array.dtype, weak_type=is_weak, sharding=None)
