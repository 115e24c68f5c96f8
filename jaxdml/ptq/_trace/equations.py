"""A JAX function as a list of equations. In jaxdml.ptq, only this folder reads jaxprs.

Calls are inlined and equal equations are merged. The results of equations are named after their primitives and
numbered, so traces with the same equations have the same names.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend
import numpy as np
from jax import lax

from jaxdml._arithmetic.calls import called_jaxpr
from jaxdml._graph.graph import Node
from jaxdml._operators.fake_quantize import NAME_IN_JAXPRS
from jaxdml.errors import PtqError
from jaxdml.ptq._trace.rewrites import rewritten
from jaxdml.ptq._trace.signature import digest, holds_code, params_text, primitives_in

# Movers and casts whose results have sizes that depend only on the sizes of their inputs.
MOVERS_OF_WEIGHTS = ("convert_element_type", "expand_dims", "squeeze", "transpose")
CONTRACTION_PRIMITIVES = ("conv_general_dilated", "dot_general")
PRODUCT_PRIMITIVES = (*CONTRACTION_PRIMITIVES, "ragged_dot_general")  # the last one always stays in floats


@dataclass(frozen=True, eq=False)
class Equation:
    """One equation of a jaxpr.

    Attributes:
      primitive: the JAX primitive.
      inputs: names of the input values.
      outputs: names of the output values.
      params: the primitive's parameters.
      dtypes: the types of the inputs.
      dtypes_of_results: the types of the outputs.
      scope: the equation's `jax.named_scope`s, outermost first, joined by slashes.
      called: the name of the jitted function if the equation is a call that is not inlined, else "".
    """

    primitive: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    params: Mapping[str, Any]
    dtypes: tuple[Any, ...]
    dtypes_of_results: tuple[Any, ...]
    scope: str = ""
    called: str = ""

    @property
    def name(self) -> str:
        """The name of the primitive, or of the function that the equation calls."""
        return self.called or str(self.primitive.name)

    @property
    def moves_axes(self) -> bool:
        """Whether a call transposes, as it does under `vmap` along an axis other than the first."""
        return "transpose" in primitives_in(self.params["jaxpr"])

    @property
    def fills(self) -> bool:
        """Whether the equation is a gather that fills in a value, such as NaN, for indices out of bounds."""
        mode = self.params.get("mode")
        return mode is not None and mode not in (
            lax.GatherScatterMode.CLIP, lax.GatherScatterMode.PROMISE_IN_BOUNDS
        )  # fmt: skip

    @property
    def is_random(self) -> bool:
        """Whether the equation makes random bits or keys."""
        return str(self.primitive.name).startswith(("random_", "threefry", "rng_"))

    @property
    def params_text(self) -> str:
        """The parameters that affect values, as text; "" for a call, whose name identifies the computation."""
        return "" if self.called else params_text(self.params)


@dataclass(frozen=True, eq=False)
class Program:
    """A function as a list of equations.

    Attributes:
      equations: the equations, in order of execution.
      params: maps the name of each leaf of the parameters to its path in the pytree, the outermost key first. In the
        body of a scan, these are the inputs that do not depend on data.
      inputs: names of the leaves of the inputs, in order.
      outputs: names of the leaves of the outputs, in order.
      structure: the pytree structure of the outputs.
      constants: maps names to literals and captured arrays.
      avals: maps the name of each value to its shape and type.
      without_param: names of the `params` of a body that are not computed from parameters, such as a mask.
    """

    equations: tuple[Equation, ...]
    params: Mapping[str, tuple[str, ...]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    structure: Any
    constants: Mapping[str, Any]
    avals: Mapping[str, Any]
    without_param: frozenset[str] = frozenset()

    def output_names(self) -> tuple[str, ...]:
        """The leaves of the outputs in words: ``output`` for an array, ``output['logits']`` for an item of a dict."""
        leaves = jax.tree_util.tree_leaves_with_path(jax.tree.unflatten(self.structure, self.outputs))
        return tuple(f"output{jax.tree_util.keystr(path)}" for path, _ in leaves)

    def signature(self) -> tuple[str, ...]:
        """The program as lines of text: inputs, parameters, captured arrays and equations, but no sizes of inputs.

        Sizes of values that are computed only from parameters are included, because such a value may be a weight.
        """
        lines = [f"{name}: {self.avals[name].dtype}[{self.avals[name].ndim}]" for name in self.inputs]
        lines += [f"{name}: {self.avals[name].str_short()}" for name in self.params]
        # apply may compute a captured array in NumPy from the sizes of inputs, which then change the signature.
        captured = ((name, value) for name, value in self.constants.items() if np.ndim(value))
        lines += [
            f"{name}: {self.avals[name].str_short()} {digest(np.asarray(value).tobytes())}" for name, value in captured
        ]
        of_params = set(self.params)
        for equation in self.equations:
            names, sizes = ", ".join(map(self._text, equation.inputs)), ""
            if of_params.intersection(equation.inputs) and of_params.union(self.constants).issuperset(equation.inputs):
                of_params.update(equation.outputs)
                sizes = ": " + ", ".join(self.avals[name].str_short() for name in equation.outputs)
            lines.append(f"{', '.join(equation.outputs)}{sizes} = {equation.name} {names}{equation.params_text}")
        return (*lines, f"return {', '.join(map(self._text, self.outputs))}")

    def shapes(self) -> dict[str, str]:
        """The shapes and types of all values; they may differ between functions with equal signatures."""
        return {name: aval.str_short() for name, aval in self.avals.items()}

    def _text(self, name: str) -> str:
        """The name of a value; if the value is a literal, "=" and the constant follow."""
        constant = self.constants.get(name)
        is_literal = constant is not None and np.ndim(constant) == 0
        return f"{name}={np.asarray(constant)}" if is_literal else name


def program_of(apply: Callable[..., Any], params: Any, inputs: tuple[Any, ...]) -> Program:
    """The equations of apply(params, *inputs).

    Args:
      apply: the function; JAX traces it.
      params, inputs: pytrees of arrays or of `jax.ShapeDtypeStruct`.
    """
    structs = jax.tree.map(struct_of, (params, *inputs))
    with jax.disable_jit(False):  # under disable_jit, JAX traces different equations
        jaxpr, outputs = jax.make_jaxpr(apply, return_shape=True)(*structs)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    writer = _Writer()
    names = [writer.param(tuple(map(_key, path))) for path in paths]
    names += [f"input_{number}" for number in range(len(jaxpr.jaxpr.invars) - len(names))]
    for name, var in zip(names, jaxpr.jaxpr.invars, strict=True):
        writer.avals[name] = var.aval
    results = writer.write(jaxpr.jaxpr, names, jaxpr.consts, "")
    return Program(
        equations=tuple(writer.equations),
        params=writer.params,
        inputs=tuple(names[len(paths) :]),
        outputs=tuple(results),
        structure=jax.tree.structure(outputs),
        constants=writer.constants,
        avals=writer.avals,
    )


def program_of_jaxpr(jaxpr: Any, params: Mapping[int, tuple[str, ...] | str], scope: str) -> Program:
    """The equations of the body of a scan.

    Args:
      jaxpr: a closed jaxpr.
      params: maps the position of each input that does not depend on data to the path of the parameter from which it is
        computed, or to a word if it is not computed from parameters.
      scope: the `jax.named_scope`s around the jaxpr.
    """
    writer = _Writer()
    paths = {place: (path,) if isinstance(path, str) else path for place, path in params.items()}
    count = len(jaxpr.jaxpr.invars)
    names = [writer.param(paths[place]) if place in paths else f"input_{place}" for place in range(count)]
    writer.avals |= {name: var.aval for name, var in zip(names, jaxpr.jaxpr.invars, strict=True)}
    outputs = writer.write(jaxpr.jaxpr, names, jaxpr.consts, scope)
    inputs = tuple(name for name in names if name not in writer.params)
    without_param = frozenset(names[place] for place, path in params.items() if isinstance(path, str))
    return Program(
        tuple(writer.equations), writer.params, inputs, tuple(outputs), jax.tree.structure(outputs), writer.constants,
        writer.avals, without_param,
    )  # fmt: skip


def bind(node: Node, program: Program) -> Node:
    """The node, with its option `equation`, an index, replaced by the program's equation at this index."""
    if "equation" not in node.options:
        return node
    return node.replace(options={**node.options, "equation": program.equations[node.options["equation"]]})


def run(*arguments: Any, equation: Equation) -> Any:
    """Evaluates an equation on inputs cast to the types with which the function was traced."""
    arrays = equally_varying([_cast(x, dtype) for x, dtype in zip(arguments, equation.dtypes, strict=True)])
    results = equation.primitive.bind(*arrays, **equation.primitive.get_bind_params(dict(equation.params)))
    return tuple(results) if equation.primitive.multiple_results else results


def equally_varying(arrays: Sequence[Any]) -> list[Any]:
    """Casts the arrays to vary over the same mesh axes, because equations were traced outside of `jax.shard_map`."""
    axes = frozenset[Any]().union(*(_varying(x) for x in arrays))
    return [lax.pcast(x, tuple(axes - _varying(x)), to="varying") if axes - _varying(x) else x for x in arrays]


def struct_of(x: Any) -> Any:
    """Shape and type of an array or a Python number; the type of a number is weak.

    Raises:
      TypeError: if x is anything else.
    """
    if isinstance(x, jax.ShapeDtypeStruct):
        return x
    if isinstance(x, str | type | np.dtype):  # result_type would return the type that x names
        raise TypeError(f"{x!r:.60} is not an array")
    is_weak = type(x) in (bool, int, float, complex) or bool(getattr(x, "weak_type", False))
    return jax.ShapeDtypeStruct(np.shape(x), jax.dtypes.result_type(x), weak_type=is_weak)


def _key(key: Any) -> str:
    """A key of a pytree's path as text."""
    for word in ("key", "idx", "name"):
        if hasattr(key, word):
            return str(getattr(key, word))
    return str(key)


def _varying(x: Any) -> frozenset[Any]:
    return frozenset(jax.typeof(x).manual_axis_type.varying)


def _cast(x: Any, dtype: Any) -> Any:
    """Casts x to dtype if x and dtype are both floats; integers, such as quantized values, stay as they are."""
    both = jax.numpy.issubdtype(x.dtype, jax.numpy.floating), jax.numpy.issubdtype(dtype, jax.numpy.floating)
    return x if x.dtype == dtype or not all(both) else lax.convert_element_type(x, dtype)


@dataclass
class _Writer:
    """Inlines a jaxpr into a list of equations."""

    equations: list[Equation] = field(default_factory=list)
    params: dict[str, tuple[str, ...]] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    avals: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    iotas: dict[str, np.ndarray] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)  # results of movers of parameters
    seen: dict[Any, Any] = field(default_factory=dict)

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
        if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            raise PtqError("apply captures a random key: make the key an input of apply, or turn dropout off")
        key = (like, str(np.asarray(value)), np.asarray(value).dtype) if np.ndim(value) == 0 else id(value)
        if key not in self.seen:
            name = self.seen[key] = self.fresh(like)
            self.constants[name], self.avals[name] = value, jax.typeof(value)
        return str(self.seen[key])

    def literal(self, atom: Any) -> str:
        return self.constant(np.asarray(atom.val, atom.aval.dtype), "literal")  # the value may be a Python bool

    def known(self, name: str) -> np.ndarray | None:
        """The value of a literal, a captured array or an iota of one dimension; None for other values."""
        return self.iotas[name] if name in self.iotas else self.constants.get(name)

    def is_weight(self, name: str) -> bool:
        """Whether a value is a parameter, possibly cast, or with its axes moved."""
        return name in self.params or name in self.moved

    def write(self, jaxpr: Any, names: Sequence[str], constants: Sequence[Any], scope: str) -> list[str]:
        """Appends the equations of a jaxpr with inputs called `names`, and returns the names of its outputs."""
        of: dict[Any, str] = dict(zip(jaxpr.invars, names, strict=True))
        for var, value in zip(jaxpr.constvars, constants, strict=True):
            of[var] = self.constant(value, "captured")

        def name(atom: Any) -> str:
            return self.literal(atom) if isinstance(atom, jax.extend.core.Literal) else of[atom]

        every = (*(eqn.invars for eqn in jaxpr.eqns), jaxpr.outvars)
        read = {atom for atoms in every for atom in atoms if not isinstance(atom, jax.extend.core.Literal)}
        for eqn in jaxpr.eqns:
            inside = "/".join(filter(None, (scope, _scope(eqn))))
            inputs = tuple(map(name, eqn.invars))
            inner = called_jaxpr(eqn)
            if inner is not None and not _called(eqn):
                closed = hasattr(inner, "consts")
                results = self.write(inner.jaxpr if closed else inner, inputs, inner.consts if closed else (), inside)
            elif other := rewritten(
                eqn,
                list(map(self.known, inputs)),
                list(map(self.is_weight, inputs)),
                [var in read for var in eqn.outvars],
            ):
                results = self.write(other.jaxpr, inputs, other.consts, inside)
            elif eqn.outvars:  # an equation without results, such as jax.debug.print, is left out
                results = list(self._equation(eqn, inputs, inside))
            else:
                results = []
            of |= dict(zip(eqn.outvars, results, strict=True))
        return [name(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: Any, inputs: tuple[str, ...], scope: str) -> Sequence[str]:
        called = _called(eqn)
        word = called or eqn.primitive.name
        # The parameters of a call, as text, show which axes `vmap` mapped.
        key = word, inputs, params_text(eqn.params), *(var.aval.str_short() for var in eqn.outvars)
        is_plain = called or (not eqn.effects and not any(map(holds_code, eqn.params.values())))
        if key in self.seen and is_plain:
            return tuple(self.seen[key])
        outputs = tuple(self.fresh(word) for _ in eqn.outvars)
        self.avals |= {name: var.aval for name, var in zip(outputs, eqn.outvars, strict=True)}
        dtypes = tuple(self.avals[name].dtype for name in inputs)
        of_results = tuple(var.aval.dtype for var in eqn.outvars)
        equation = Equation(eqn.primitive, inputs, outputs, eqn.params, dtypes, of_results, scope, called)
        self.equations.append(equation)
        self.seen[key] = outputs
        self.moved.update(outputs if word in MOVERS_OF_WEIGHTS and self.is_weight(inputs[0]) else ())
        if word == "iota" and np.ndim(eqn.outvars[0].aval) == 1 and isinstance(eqn.outvars[0].aval.shape[0], int):
            self.iotas[outputs[0]] = np.arange(eqn.outvars[0].aval.shape[0], dtype=eqn.outvars[0].aval.dtype)
        return outputs


def _called(eqn: Any) -> str:
    """The name of a jitted function if its call is kept as one equation; else ""."""
    name = str(eqn.params.get("name", ""))
    return name if called_jaxpr(eqn) is not None and name.startswith(NAME_IN_JAXPRS) else ""


def _scope(eqn: Any) -> str:
    """An equation's name scopes, without the names of the transformations around them."""
    return re.sub(r"(?:vmap|jvp|transpose)\(([^()]*)\)", r"\1", str(eqn.source_info.name_stack)).strip("/")
