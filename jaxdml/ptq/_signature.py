"""What equations compute, in words that do not change with the sizes of inputs."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.extend

# What changes with the sizes of inputs, and what says nothing of values.
UNTOLD = frozenset(
    [
        "shape",
        "new_sizes",
        "limit_indices",
        "slice_sizes",
        "sharding",
        "out_sharding",
        "dimensions_sharding",
        "accuracy",
        "precision",
    ]
)


def fingerprint(signature: Sequence[str]) -> str:
    """A short digest of a program's signature."""
    return digest("\n".join(signature).encode())


def digest(data: bytes) -> str:
    """The first 64 bits of a cryptographic digest, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()[:16]


def told(params: Mapping[str, Any]) -> str:
    """A primitive's parameters as far as they tell what is computed, whatever the sizes of inputs."""
    found = ((key, _text(value)) for key, value in sorted(params.items()) if key not in UNTOLD)
    told = ", ".join(f"{key}={text}" for key, text in found if text)
    return f" [{told}]" if told else ""


def holds_code(value: Any) -> bool:
    """Whether a primitive's parameter is a function, or holds one; of such equations no two are taken for equal."""
    if isinstance(value, tuple | list):
        return any(map(holds_code, value))
    return hasattr(value, "eqns") or (callable(value) and not isinstance(value, type))


def _text(value: Any) -> str:
    if hasattr(value, "eqns"):
        return _jaxpr(getattr(value, "jaxpr", value))
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_text, value))})"
    if value is None or (callable(value) and not isinstance(value, type)):
        return ""
    return str(value)


def _jaxpr(jaxpr: Any) -> str:
    """An inner jaxpr: its equations, with numbers in place of names."""
    numbers: dict[Any, int] = {}

    def named(atom: Any) -> str:
        if isinstance(atom, jax.extend.core.Literal):
            return str(atom.val)
        return str(numbers.setdefault(atom, len(numbers)))

    lines = [" ".join(map(named, (*jaxpr.constvars, *jaxpr.invars)))]
    for eqn in jaxpr.eqns:
        inputs, outputs = (" ".join(map(named, atoms)) for atoms in (eqn.invars, eqn.outvars))
        lines.append(f"{outputs} = {eqn.primitive.name} {inputs}{told(eqn.params)}")
    return f"({'; '.join((*lines, ' '.join(map(named, jaxpr.outvars))))})"
