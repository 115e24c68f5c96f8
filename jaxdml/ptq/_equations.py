"""A JAX function as a list of equations: the one file that reads jaxprs.

Functions called inside are written out, equal equations become one, and each value gets a name that depends on the
structure alone: the same function traced with another batch size has the same names.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend
import numpy as np
from jax import lax

from jaxdml.ptq._signature import digest, holds_code, told

# Functions that are called, or whose derivatives are their own: what they compute is an inner jaxpr.
CALLS = frozenset(
    [
        "jit",
        "pjit",
        "closed_call",
        "core_call",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
        "checkpoint",
        "remat2",
    ]
)
INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")


@dataclass(frozen=True, eq=False)
class Equation:
    """One equation of a jaxpr.

    Attributes:
      primitive: what is computed.
      inputs: names of values.
      outputs: names of values; "" for one that is dropped.
      params: those of the primitive.
      dtypes: the types of the inputs.
      scope: the names of scopes that the equation lies in, outermost first.
    """

    primitive: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    params: Mapping[str, Any]
    dtypes: tuple[Any, ...]
    scope: str = ""

    @property
    def name(self) -> str:
        """The primitive's name."""
        return str(self.primitive.name)


@dataclass(frozen=True, eq=False)
class Program:
    """A function as equations.

    Attributes:
      equations: in order.
      params: by the name of each leaf of the parameters: its path, keys from the outermost in.
      inputs: names of the leaves of the inputs, in order.
      outputs: names of the leaves of the outputs, in order.
      structure: that of the outputs.
      constants: literals and captured arrays by name.
      avals: shape and type of each value.
    """

    equations: tuple[Equation, ...]
    params: Mapping[str, tuple[str, ...]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    structure: Any
    constants: Mapping[str, Any]
    avals: Mapping[str, Any]

    def signature(self) -> tuple[str, ...]:
        """What the program is, a line for each input, parameter and equation, without the sizes of inputs."""
        lines = [f"{name}: {self.avals[name].dtype}[{self.avals[name].ndim}]" for name in self.inputs]
        lines += [f"{name}: {self.avals[name].str_short()}" for name in self.params]
        # An array that apply captures, or makes of the sizes of inputs by NumPy, is the same in each trace.
        captured = ((name, value) for name, value in self.constants.items() if np.ndim(value))
        lines += [
            f"{name}: {self.avals[name].str_short()} {digest(np.asarray(value).tobytes())}" for name, value in captured
        ]
        for equation in self.equations:
            names = (self._told(name) for name in equation.inputs)
            lines.append(f"{', '.join(equation.outputs)} = {equation.name} {', '.join(names)}{told(equation.params)}")
        return (*lines, f"return {', '.join(map(self._told, self.outputs))}")

    def shapes(self) -> str:
        """A digest of the shapes and types of all values, which tells functions of one signature apart."""
        return digest(" ".join(aval.str_short() for aval in self.avals.values()).encode())

    def _told(self, name: str) -> str:
        """A value's name; of a literal its value."""
        constant = self.constants.get(name)
        is_literal = constant is not None and np.ndim(constant) == 0
        return f"{name}={np.asarray(constant)}" if is_literal else name


def program_of(apply: Callable[..., Any], params: Any, inputs: tuple[Any, ...]) -> Program:
    """The equations of apply(params, *inputs).

    Args:
      apply: a function that JAX traces.
      params, inputs: pytrees of arrays, or of what has a shape and a type.
    """
    structs = jax.tree.map(struct_of, (params, *inputs))
    jaxpr, outputs = jax.make_jaxpr(apply, return_shape=True)(*structs)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    made = _Writer()
    names = [made.param(tuple(map(_key, path))) for path in paths]
    names += [f"input_{number}" for number in range(len(jaxpr.jaxpr.invars) - len(names))]
    for name, var in zip(names, jaxpr.jaxpr.invars, strict=True):
        made.avals[name] = var.aval
    results = made.write(jaxpr.jaxpr, names, jaxpr.consts, "")
    return Program(
        equations=tuple(made.equations),
        params=made.params,
        inputs=tuple(names[len(paths) :]),
        outputs=tuple(results),
        structure=jax.tree.structure(outputs),
        constants=made.constants,
        avals=made.avals,
    )


def program_of_jaxpr(jaxpr: Any, known: Mapping[int, tuple[str, ...]], scope: str) -> Program:
    """The equations of a jaxpr.

    Args:
      jaxpr: closed.
      known: by the places of inputs that are parameters, their paths; the others are inputs.
      scope: the names of scopes that it lies in.
    """
    made = _Writer()
    names = [
        made.param(known[place]) if place in known else f"input_{place}" for place in range(len(jaxpr.jaxpr.invars))
    ]
    made.avals |= {name: var.aval for name, var in zip(names, jaxpr.jaxpr.invars, strict=True)}
    outputs = made.write(jaxpr.jaxpr, names, jaxpr.consts, scope)
    inputs = tuple(name for name in names if name not in made.params)
    return Program(
        tuple(made.equations), made.params, inputs, tuple(outputs), jax.tree.structure(outputs), made.constants,
        made.avals,
    )  # fmt: skip


def run(*arguments: Any, equation: Equation) -> Any:
    """What an equation computes, of inputs cast to the types that the function was traced with."""
    arrays = alike([_cast(x, dtype) for x, dtype in zip(arguments, equation.dtypes, strict=True)])
    results = equation.primitive.bind(*arrays, **equation.primitive.get_bind_params(dict(equation.params)))
    return tuple(results) if equation.primitive.multiple_results else results


def alike(arrays: Sequence[Any]) -> list[Any]:
    """The arrays, varying over the same axes of a mesh: equations were traced outside of jax.shard_map."""
    axes = frozenset[Any]().union(*(_varying(x) for x in arrays))
    return [lax.pcast(x, tuple(axes - _varying(x)), to="varying") if axes - _varying(x) else x for x in arrays]


def struct_of(x: Any) -> Any:
    """Shape and type of an array; a Python number has a weak type."""
    if isinstance(x, jax.ShapeDtypeStruct):
        return x
    is_weak = type(x) in (bool, int, float, complex) or bool(getattr(x, "weak_type", False))
    return jax.ShapeDtypeStruct(np.shape(x), jax.dtypes.result_type(x), weak_type=is_weak)


def _key(key: Any) -> str:
    """A key of a pytree's path: of a dict, a sequence or an attribute."""
    for word in ("key", "idx", "name"):
        if hasattr(key, word):
            return str(getattr(key, word))
    return str(key)


def _varying(x: Any) -> frozenset[Any]:
    return frozenset(getattr(jax.typeof(x), "vma", ()))


def _cast(x: Any, dtype: Any) -> Any:
    """Floats as floats of another type; integers in place of floats stay, because they stand for them."""
    both = jax.numpy.issubdtype(x.dtype, jax.numpy.floating), jax.numpy.issubdtype(dtype, jax.numpy.floating)
    return x if x.dtype == dtype or not all(both) else lax.convert_element_type(x, dtype)


@dataclass
class _Writer:
    """Writes the equations of a jaxpr and of those inside it."""

    equations: list[Equation] = field(default_factory=list)
    params: dict[str, tuple[str, ...]] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    avals: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    known: dict[Any, Any] = field(default_factory=dict)

    def param(self, path: tuple[str, ...]) -> str:
        name = "/".join(("params", *path))
        while name in self.params:
            name += "'"
        self.params[name] = path
        return name

    def fresh(self, like: str) -> str:
        number = self.counts[like] = self.counts.get(like, 0) + 1
        return f"{like}_{number}"

    def constant(self, value: Any, like: str) -> str:
        key = (like, str(np.asarray(value)), np.asarray(value).dtype) if np.ndim(value) == 0 else id(value)
        if key not in self.known:
            name = self.known[key] = self.fresh(like)
            self.constants[name], self.avals[name] = value, jax.typeof(value)
        return str(self.known[key])

    def write(self, jaxpr: Any, names: Sequence[str], constants: Sequence[Any], scope: str) -> list[str]:
        """Appends the equations of a jaxpr whose inputs have these names; gives the names of its outputs."""
        of: dict[Any, str] = dict(zip(jaxpr.invars, names, strict=True))
        for var, value in zip(jaxpr.constvars, constants, strict=True):
            of[var] = self.constant(value, "captured")

        def name(atom: Any) -> str:
            return self.constant(atom.val, "literal") if isinstance(atom, jax.extend.core.Literal) else of[atom]

        for eqn in jaxpr.eqns:
            inside = "/".join(filter(None, (scope, _scope(eqn))))
            inputs = tuple(map(name, eqn.invars))
            if eqn.primitive.name in CALLS:
                inner = next(eqn.params[word] for word in INNER if word in eqn.params)
                closed = hasattr(inner, "consts")
                results = self.write(inner.jaxpr if closed else inner, inputs, inner.consts if closed else (), inside)
            elif eqn.outvars:  # what gives nothing, such as jax.debug.print, is left out
                results = list(self._equation(eqn, inputs, inside))
            else:
                results = []
            of |= dict(zip(eqn.outvars, results, strict=True))
        return [name(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: Any, inputs: tuple[str, ...], scope: str) -> Sequence[str]:
        word = eqn.primitive.name
        key = word, inputs, told(eqn.params), *(var.aval.str_short() for var in eqn.outvars)
        is_plain = not eqn.effects and not any(map(holds_code, eqn.params.values()))
        if key in self.known and is_plain:
            return tuple(self.known[key])
        outputs = tuple(self.fresh(word) for _ in eqn.outvars)
        self.avals |= {name: var.aval for name, var in zip(outputs, eqn.outvars, strict=True)}
        dtypes = tuple(self.avals[name].dtype for name in inputs)
        self.equations.append(Equation(eqn.primitive, inputs, outputs, eqn.params, dtypes, scope))
        self.known[key] = outputs
        return outputs


def _scope(eqn: Any) -> str:
    """The names of the scopes that an equation lies in, without the transformations that wrote it."""
    return re.sub(r"(?:vmap|jvp|transpose)\(([^()]*)\)", r"\1", str(eqn.source_info.name_stack)).strip("/")
