"""Texts that identify the computation of a program, independent of the sizes of its inputs."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.extend
import numpy as np

# Parameters of primitives that change with the sizes of the inputs, or that do not affect values.
IGNORED = frozenset((
    "shape", "new_sizes", "limit_indices", "slice_sizes", "sharding", "out_sharding", "dimensions_sharding",
    "accuracy", "precision",
))  # fmt: skip


def fingerprint(signature: Sequence[str]) -> str:
    """A short digest of a program's signature."""
    return digest("\n".join(signature).encode())


def bits(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Type, shape and bytes of an array, which may be a random key."""
    is_key = jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)
    array = np.asarray(jax.random.key_data(value) if is_key else value)
    return str(array.dtype), array.shape, array.tobytes()


def digest(data: bytes) -> str:
    """The first 64 bits of the SHA-256 digest of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()[:16]


def params_text(params: Mapping[str, Any], in_full: bool = False) -> str:
    """A primitive's parameters that affect values, as text; the sizes of inputs do not change the text.

    In full, functions among the parameters change it too, and so do the shapes and constants in inner jaxprs.
    """
    # Beside a jaxpr, a function is a rule for derivatives, or was traced to the jaxpr.
    is_traced = any(hasattr(value, "eqns") for value in params.values())
    texts = (
        (key, "" if is_traced and _is_function(value) else _text(value, in_full))
        for key, value in sorted(params.items()) if key not in IGNORED
    )  # fmt: skip
    joined = ", ".join(f"{key}={text}" for key, text in texts if text)
    return f" [{joined}]" if joined else ""


def holds_code(value: Any) -> bool:
    """Whether a primitive's parameter is or contains a function. Text does not show whether two functions are equal."""
    if isinstance(value, tuple | list):
        return any(map(holds_code, value))
    return hasattr(value, "eqns") or _is_function(value)


def primitives_in(value: Any) -> Iterator[str]:
    """Yields the name of each equation's primitive in a jaxpr, or in a primitive's parameter that may have jaxprs."""
    if isinstance(value, tuple | list):
        for each in value:
            yield from primitives_in(each)
    for eqn in getattr(getattr(value, "jaxpr", value), "eqns", ()):
        yield eqn.primitive.name
        yield from primitives_in(list(eqn.params.values()))


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type) and not hasattr(value, "eqns")


def _text(value: Any, in_full: bool) -> str:
    if hasattr(value, "eqns"):
        constants = getattr(value, "consts", ()) if in_full else ()
        inner = _jaxpr_text(getattr(value, "jaxpr", value), in_full)
        return " ".join((inner, *(digest(repr(bits(constant)).encode()) for constant in constants)))
    if isinstance(value, tuple | list):
        return f"({', '.join(_text(each, in_full) for each in value)})"
    if _is_function(value):  # equal functions have equal hashes; what others compute cannot be compared
        return str(hash(value)) if in_full else ""
    return "" if value is None else str(value)


def _jaxpr_text(jaxpr: Any, in_full: bool) -> str:
    """The equations of an inner jaxpr, with variables numbered in order of appearance."""
    numbers: dict[Any, int] = {}

    def named(atom: Any) -> str:
        is_literal = isinstance(atom, jax.extend.core.Literal)
        name = str(atom.val if is_literal else numbers.setdefault(atom, len(numbers)))
        return f"{name}:{atom.aval.str_short()}" if in_full else name

    lines = [" ".join(map(named, (*jaxpr.constvars, *jaxpr.invars)))]
    for eqn in jaxpr.eqns:
        inputs, outputs = (" ".join(map(named, atoms)) for atoms in (eqn.invars, eqn.outvars))
        lines.append(f"{outputs} = {eqn.primitive.name} {inputs}{params_text(eqn.params, in_full)}")
    return f"({'; '.join((*lines, ' '.join(map(named, jaxpr.outvars))))})"
