"""Texts that identify the computation of a program, independent of the sizes of its inputs."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.extend

# Parameters of primitives that change with the sizes of the inputs, or that do not affect values.
IGNORED = frozenset((
    "shape", "new_sizes", "limit_indices", "slice_sizes", "sharding", "out_sharding", "dimensions_sharding",
    "accuracy", "precision",
))  # fmt: skip


def fingerprint(signature: Sequence[str]) -> str:
    """A short digest of a program's signature."""
    return digest("\n".join(signature).encode())


def digest(data: bytes) -> str:
    """The first 64 bits of the SHA-256 digest of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()[:16]


def params_text(params: Mapping[str, Any]) -> str:
    """A primitive's parameters that affect values, as text; the sizes of inputs do not change the text."""
    texts = ((key, _text(value)) for key, value in sorted(params.items()) if key not in IGNORED)
    joined = ", ".join(f"{key}={text}" for key, text in texts if text)
    return f" [{joined}]" if joined else ""


def holds_code(value: Any) -> bool:
    """Whether a primitive's parameter is or contains a function. Text does not show whether two functions are equal."""
    if isinstance(value, tuple | list):
        return any(map(holds_code, value))
    return hasattr(value, "eqns") or (callable(value) and not isinstance(value, type))


def primitives_in(value: Any) -> Iterator[str]:
    """Yields the name of each equation's primitive in a jaxpr, or in a primitive's parameter that may have jaxprs."""
    if isinstance(value, tuple | list):
        for each in value:
            yield from primitives_in(each)
    for eqn in getattr(getattr(value, "jaxpr", value), "eqns", ()):
        yield eqn.primitive.name
        yield from primitives_in(list(eqn.params.values()))


def _text(value: Any) -> str:
    if hasattr(value, "eqns"):
        return _jaxpr_text(getattr(value, "jaxpr", value))
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_text, value))})"
    if value is None or (callable(value) and not isinstance(value, type)):
        return ""
    return str(value)


def _jaxpr_text(jaxpr: Any) -> str:
    """The equations of an inner jaxpr, with variables numbered in order of appearance."""
    numbers: dict[Any, int] = {}

    def named(atom: Any) -> str:
        if isinstance(atom, jax.extend.core.Literal):
            return str(atom.val)
        return str(numbers.setdefault(atom, len(numbers)))

    lines = [" ".join(map(named, (*jaxpr.constvars, *jaxpr.invars)))]
    for eqn in jaxpr.eqns:
        inputs, outputs = (" ".join(map(named, atoms)) for atoms in (eqn.invars, eqn.outvars))
        lines.append(f"{outputs} = {eqn.primitive.name} {inputs}{params_text(eqn.params)}")
    return f"({'; '.join((*lines, ' '.join(map(named, jaxpr.outvars))))})"
