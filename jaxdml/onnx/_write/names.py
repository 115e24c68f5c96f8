"""The names of inputs and outputs, from the signature of a function and from its pytrees."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax


def input_names(apply: Callable[..., Any], inputs: Sequence[Any]) -> list[str]:
    """A name for each leaf of a function's inputs.

    An array is named after its parameter, an item of a dict after its key, and an item of a sequence after its
    parameter and its index.
    """
    names = list[str]()
    for place, (tree, base) in enumerate(zip(inputs, _parameters(apply, len(inputs)), strict=True)):
        names += _names(tree, base or f"input_{place}", names)
    return names


def output_names(structure: Any) -> list[str]:
    """A name for each leaf of a function's result."""
    return _names(jax.tree.unflatten(structure, range(structure.num_leaves)), "output", ())


def _parameters(apply: Callable[..., Any], count: int) -> list[str]:
    """The names of the function's parameters after `params`; "" for an input that no parameter names."""
    try:
        parameters = [*inspect.signature(apply).parameters.values()][1:]
    except (TypeError, ValueError):  # functions without a signature, such as some C functions
        parameters = []
    named = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return [*named[:count], *[""] * (count - len(named))]


def _names(tree: Any, base: str, taken: Sequence[str]) -> list[str]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    short = [_name(path, base) for path, _ in leaves]
    if len({*short, *taken}) == len(short) + len(taken):
        return short
    return [".".join([base, *map(_key, path)]) for path, _ in leaves]


def _name(path: Sequence[Any], base: str) -> str:
    keys = list(map(_key, path))
    if not keys or keys == [""]:  # an empty name in a file would mean that there is no value
        return base
    return ".".join(keys) if not keys[0].isdecimal() else "_".join([base, keys[0]]) + "".join(f".{k}" for k in keys[1:])


def _key(key: Any) -> str:
    return str(next((getattr(key, word) for word in ("key", "idx", "name") if hasattr(key, word)), key))
