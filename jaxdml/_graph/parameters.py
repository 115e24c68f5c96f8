"""Compares given parameters with a model's own, and describes the difference in words."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax

from jaxdml._arithmetic.prepared import Prepared, PreparedFilter
from jaxdml._arithmetic.prepared_blocks import PreparedBlocks
from jaxdml.errors import ArgumentTypeError

MOST_LISTED = 5


def wrong_params(own: Mapping[str, Any], given: Any) -> str:
    """A sentence that says how given parameters differ from a model's own; empty if they fit."""
    if not isinstance(given, Mapping):
        return f"params is of type {type(given).__name__}, expected model.params, or a dict like it"
    wrong_names = difference("params", own, given)
    if wrong_names:
        return f"{wrong_names}; expected model.params, or a dict like it"
    for name, value in own.items():
        if _shapes(given[name]) != _shapes(value):
            texts = [_shown(given[name]), _shown(value)]
            if texts[0] == texts[1]:
                texts = [_held(given[name]), _held(value)]
            return f"params[{name!r}] is {texts[0]}, expected {texts[1]}{_remedy(given[name], value)}"
    return ""


def called_without_params() -> ArgumentTypeError:
    """The error for a call of a model itself."""
    text = "a model is a function of its params, too: write model.apply(model.params, *inputs)"
    return ArgumentTypeError(text, operator="apply", rule="argument")


def difference(subject: str, expected: Iterable[str], given: Mapping[str, Any]) -> str:
    """A sentence about missing and unknown names; empty if the given names are the expected ones."""
    expected = list(expected)
    missing, unknown = [name for name in expected if name not in given], set(given) - set(expected)
    parts = [f"lacks {listed(missing)}"] if missing else []
    parts += [f"was given {listed(unknown)}, which the model does not have"] if unknown else []
    return f"{subject} {' and '.join(parts)}" if parts else ""


def listed(names: Iterable[Any]) -> str:
    """The sorted names, shortened if there are many."""
    names = sorted(names, key=str)
    rest = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return f"{names[:MOST_LISTED]}{rest}"


def _shapes(tree: Any) -> tuple[Any, list[Any]]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(getattr(leaf, "shape", None), getattr(leaf, "dtype", None)) for leaf in leaves]


def _remedy(given: Any, own: Any) -> str:
    """Says how to prepare the weights if an array, or a cast of prepared weights, was given in their place."""
    if not isinstance(own, Prepared) or not hasattr(given, "dtype"):
        return ""
    if isinstance(given, Prepared):
        is_cast = getattr(given.data, "dtype", own.data.dtype) != own.data.dtype
        return "; do not cast prepared weights" if is_cast else ""
    if isinstance(own, PreparedFilter):
        return f"; write jaxdml.prepare_convolution_filter(array, group_count={own.group_count})"
    if isinstance(own, PreparedBlocks):
        return "; write jaxdml.prepare_matrix_multiply_blocks(array, scale, zero_point)"
    return "; write jaxdml.prepare_matrix_multiply_b(array)"


def _shown(tree: Any) -> str:
    if isinstance(tree, Prepared):
        return repr(tree)
    structure, arrays = jax.tree.structure(tree), _arrays(tree)
    return arrays if jax.tree_util.treedef_is_leaf(structure) else f"{type(tree).__name__} of {arrays}"


def _held(tree: Any) -> str:
    """Prepared weights as text, with the array that they hold, which may have another type after a cast."""
    return f"{tree!r} in the layout {tree.layout}, with data {_arrays(tree)}"


def _arrays(tree: Any) -> str:
    _, leaves = _shapes(tree)
    return " and ".join("no array" if shape is None else f"{dtype}{list(shape)}" for shape, dtype in leaves)
