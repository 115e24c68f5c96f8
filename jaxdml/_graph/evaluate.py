"""Evaluates graphs: NumPy computes values that depend only on constants and shapes, and JAX computes the rest."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxdml._arithmetic.exact_calls import in_one_call
from jaxdml._graph.graph import CHOICE, Graph, Node
from jaxdml.errors import ModelError

LARGE = 2**24  # number of elements
SMALL = 2**16  # elements of a result that an operator's `in_numpy` computes; shapes depend on tiny tensors
ResultCheck = Callable[[Node, Any], None]  # raises if a node's result is not allowed
Computation = Callable[[Node, Sequence[Any]], Any]  # computes a node on its inputs


def evaluate(
    nodes: Iterable[Node], values: Mapping[str, Any], wanted: Iterable[str] | None = None, *,
    check_result: ResultCheck = lambda node, value: None,
) -> dict[str, Any]:  # fmt: skip
    """Evaluates nodes, and returns a dict of the given and the computed values.

    Args:
      nodes: the nodes, in topological order.
      values: maps names to inputs and constants. NumPy arrays are constants while JAX traces.
      wanted: names of values; only nodes on which these values depend are evaluated. For a choice with a known
        condition, only the nodes of one branch are evaluated. None means that all nodes are evaluated.
      check_result: raises if a node's result is not allowed.

    Raises:
      ModelError: if a node fails on its inputs; the error names the node.
    """
    nodes, found = tuple(nodes), dict(values)
    needed = _needed_as_constants(nodes)
    demanded = ((node, None) for node in nodes) if wanted is None else _on_demand(nodes, found, wanted)
    for node, choice in demanded:
        try:
            computed = results(node, found, check_result, gives_sizes=not needed.isdisjoint(node.outputs))
        except ModelError as error:
            if choice is None:
                raise
            raise ModelError(f"{error}; {_why_both(choice)}") from error
        for name, value in zip(node.outputs, computed, strict=False):
            if name:
                check_result(node, value)
                found[name] = value
    return found


def _on_demand(
    nodes: Iterable[Node], values: Mapping[str, Any], wanted: Iterable[str]
) -> Iterator[tuple[Node, Node | None]]:  # fmt: skip
    """Yields the nodes on which wanted values depend, each when its inputs are in `values`.

    Each node comes with the innermost choice that needs it and whose condition is unknown, or with None. The caller
    puts the outputs of each node into `values` before it takes the next one.
    """
    makers = {name: node for node in nodes for name in node.outputs if name}
    stack, choices = [makers[name] for name in wanted if name in makers][::-1], list[Node]()
    while stack:
        node = _decided(stack[-1], values)
        missing = [name for name in node.inputs if name and name not in values]
        if missing:
            if node.operator.kind == CHOICE and node.inputs[0] in missing:
                missing = missing[:1]  # the condition determines which other inputs are wanted
            elif node.operator.kind == CHOICE and node is stack[-1]:
                choices.append(node)
            stack += [makers[name] for name in reversed(missing)]
            continue
        last = stack.pop()
        if choices and choices[-1] is last:
            choices.pop()
        if any(name and name not in values for name in node.outputs):
            yield node, choices[-1] if choices else None


def _why_both(choice: Node) -> str:
    text = (
        f"both branches of {described(choice)} are computed, because its condition {choice.inputs[0]!r} depends on data"
    )
    return f"{text}: if the input that decides it is an initializer, only one is computed"


def _decided(node: Node, values: Mapping[str, Any]) -> Node:
    """The node. If it is a choice with a known condition, the inputs of the taken branch replace those of the other."""
    condition = values.get(node.inputs[0]) if node.operator.kind == CHOICE else None
    if not isinstance(condition, np.ndarray) or condition.size != 1:
        return node
    half = len(node.inputs) // 2
    taken = node.inputs[1 : half + 1] if condition.item() else node.inputs[half + 1 :]
    return node.replace(inputs=(node.inputs[0], *taken, *taken))


def evaluated_alone(
    nodes: Iterable[Node], values: Mapping[str, Any], given: Mapping[str, Any], wanted: Iterable[str], *,
    check_result: ResultCheck = lambda node, value: None,
) -> dict[str, Any]:  # fmt: skip
    """The result of each node in isolation: nodes read given values in place of those that earlier nodes computed.

    A given value replaces a computed value only if both have the same shape and type. Computed values that are known
    while JAX traces, such as shapes, are kept.

    Args:
      nodes: the nodes, in topological order.
      values: maps names to inputs and constants.
      given: maps names to values.
      wanted: names of values; only nodes on which these values depend are evaluated.
      check_result: raises if a node's result is not allowed.

    Raises:
      ModelError: if a node fails on its inputs; the error names the node.
    """
    nodes, read, found = tuple(nodes), dict(values), dict[str, Any]()
    needed = _needed_as_constants(nodes)
    for node, _ in _on_demand(nodes, read, wanted):
        computed = results(node, read, check_result, gives_sizes=not needed.isdisjoint(node.outputs))
        for name, value in zip(node.outputs, computed, strict=False):
            if name:
                check_result(node, value)
                other = given.get(name)
                is_alike = other is not None and (other.shape, other.dtype) == (value.shape, value.dtype)
                found[name], read[name] = value, other if is_alike and isinstance(value, jax.Array) else value
    return found


def results(
    node: Node, values: Mapping[str, Any], check_result: ResultCheck, *, gives_sizes: bool = False
) -> tuple[Any, ...]:  # fmt: skip
    """The outputs of a node. If it `gives_sizes`, NumPy computes known values, and XLA compiles nothing for them."""
    arguments = [values[name] if name else None for name in node.inputs]
    for place in node.operator.known:
        if place < len(arguments) and not (arguments[place] is None or isinstance(arguments[place], np.ndarray)):
            raise ModelError(_unknown(node, place))
    if _may_be_large(arguments):
        for name, shape in zip(node.outputs, _tried(node, arguments, _shapes), strict=False):
            if name:
                check_result(node, shape)
    computed = _tried(node, arguments, _in_numpy if gives_sizes else _computed)
    if any(isinstance(value, jax.Array) for value in computed):
        for place, (name, argument) in enumerate(zip(node.inputs, arguments, strict=True)):
            if place not in node.operator.known and isinstance(argument, np.ndarray):
                check_fits_32_bits(name, argument)
    for name, value in zip(node.outputs, computed, strict=False):
        if name and value is None:
            raise ModelError(f"{described(node)}: jaxdml does not compute its output {name!r}")
    if any(node.outputs[len(computed) :]):
        raise ModelError(f"{described(node)} has {len(node.outputs)} outputs, but its operator returns {len(computed)}")
    return computed


def check_fits_32_bits(name: str, value: np.ndarray) -> None:
    """Checks that no 64-bit integer changes if JAX, with its 64-bit types disabled, narrows it to 32 bits.

    Raises:
      ModelError: if an integer does not fit 32 bits, and JAX's 64-bit types are disabled.
    """
    dtype = jax.dtypes.canonicalize_dtype(value.dtype) if value.dtype.kind in "iu" else value.dtype
    if dtype != value.dtype and value.size:
        limits = np.iinfo(dtype)
        if value.min() < limits.min or value.max() > limits.max:
            raise ModelError(f"tensor {name!r} has integers of more than 32 bits; set jax_enable_x64")


def unknown_shapes(graph: Graph) -> list[str]:
    """A sentence for each node input that depends on data although JAX needs its value to trace the graph."""
    data, found = set(graph.inputs), []
    for node in graph.nodes:
        found += [_unknown(node, place) for place in node.operator.known if data.intersection(node.inputs[place:][:1])]
        if not node.operator.gives_shape and data.intersection(node.inputs):
            data.update(node.outputs)
    return found


def _unknown(node: Node, place: int) -> str:
    text = "depends on data, and JAX needs its value to know shapes; if it is constant, make it an initializer"
    return f"{described(node)}: input {node.inputs[place]!r} {text}"


def _tried(node: Node, arguments: Sequence[Any], compute: Computation) -> tuple[Any, ...]:
    """The result of `compute` for a node, as a tuple; errors name the node."""
    try:
        with np.errstate(all="ignore"):
            computed = compute(node, arguments)
    except ModelError as error:
        raise ModelError(f"{described(node)}: {error}") from error
    except Exception as error:  # a malformed file can make NumPy or JAX raise anything; the error must name the node
        shapes = ", ".join(shown(argument) for argument in arguments)
        raise ModelError(f"{described(node)} with inputs ({shapes}): {error}") from error
    return computed if isinstance(computed, tuple) else (computed,)


def _computed(node: Node, arguments: Sequence[Any]) -> Any:
    function = partial(node.operator.function, **node.options)
    return in_one_call(function, tuple(arguments)) if node.operator.is_quantized else function(*arguments)


def _in_numpy(node: Node, arguments: Sequence[Any]) -> Any:
    """Computes a node by its operator's `in_numpy`, if it has one, its inputs are known, and its result is small."""
    compute = node.operator.in_numpy
    if compute is None or not all(argument is None or isinstance(argument, np.ndarray) for argument in arguments):
        return _computed(node, arguments)
    shape = _shapes(node, arguments).shape  # raises the errors of the operator's function, which checks its inputs
    return np.asarray(compute(*arguments, **node.options)) if math.prod(shape) <= SMALL else _computed(node, arguments)


def _may_be_large(arguments: Sequence[Any]) -> bool:
    """Whether NumPy may compute a large array from smaller ones, by broadcasting, joining or indexing."""
    shapes = [argument.shape for argument in arguments if isinstance(argument, np.ndarray)]
    count = 1
    for size in (size for shape in shapes for size in shape):
        count *= max(size, 1)
        if count > LARGE:
            return not any(isinstance(argument, jax.Array) for argument in arguments)
    return False


def _shapes(node: Node, arguments: Sequence[Any]) -> Any:
    """Shapes and types of a node's outputs, which JAX infers without computing."""
    places = [
        place
        for place, argument in enumerate(arguments)
        if place not in node.operator.known and isinstance(argument, np.ndarray) and argument.dtype != object
    ]

    def computed(*given: Any) -> Any:
        traced = dict(zip(places, given, strict=True))
        return _computed(node, [traced.get(place, argument) for place, argument in enumerate(arguments)])

    with jax.enable_x64(True):
        return jax.eval_shape(computed, *(arguments[place] for place in places))


def folded(graph: Graph, *, check_result: ResultCheck = lambda node, value: None) -> Graph:
    """Folds constants: evaluates nodes whose results have the same bits in NumPy and JAX, or determine shapes."""
    constants, kept, needed = dict(graph.constants), [], _needed_as_constants(graph.nodes)
    for node in graph.nodes:
        is_known = all(name in constants for name in node.inputs if name)
        if not (is_known and (node.operator.is_exact or not needed.isdisjoint(node.outputs))):
            kept.append(node)
            continue
        computed = results(node, constants, check_result, gives_sizes=True)
        for name, value in zip(node.outputs, map(np.asarray, computed), strict=False):
            check_result(node, value)
            if name:
                constants[name] = value
    return graph.replace(nodes=tuple(kept), constants=constants)


def _needed_as_constants(nodes: Sequence[Node]) -> set[str]:
    """The values that operators need as constants, such as a shape, and the values from which they are computed."""
    needed = set[str]()
    for node in reversed(nodes):
        if not (needed.isdisjoint(node.outputs) or node.operator.gives_shape):
            needed.update(node.inputs)
        needed.update(node.inputs[place] for place in node.operator.known if place < len(node.inputs))
        needed.discard("")  # an absent input, or an unused output
    return needed


def described(node: Node) -> str:
    """A node's name and operators, for errors."""
    return f"node {node.name!r} ({' + '.join(node.source) or node.operator.name})"


def shown(value: Any) -> str:
    """A value's type and shape, or its class and the types and shapes of its leaves."""
    if value is None:
        return "none"
    if not hasattr(value, "dtype"):
        leaves = [shown(leaf) for leaf in jax.tree.leaves(value) if leaf is not value]
        return f"{type(value).__name__}({', '.join(leaves)})"
    return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
