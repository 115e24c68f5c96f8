"""A function that is traced again for each shape of its inputs."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax

from jaxdml._graph.evaluate import shown
from jaxdml._graph.parameters import difference
from jaxdml.errors import DescError, ModelError, PtqError, in_other_byte_order
from jaxdml.ptq._trace.equations import Program, program_of, struct_of
from jaxdml.ptq._trace.signature import fingerprint

SPREAD = (
    "\nIf a batch is a tuple or list, each of its elements is an input of apply: leave labels and flags out, and set "
    "flags in apply, such as lambda params, x: apply(params, x, train=False)"
)
BY_KEYWORD = (
    "\napply is called with params and the inputs by position, and {0!r} is passed only by keyword: "
    "write lambda params, x: apply(params, {1})"
)
NO_PARAMS = "\napply is called with params and the inputs, and takes only {0!r}"
MODULE = (
    "\n{0} is a module that holds its parameters: write a function that takes them, such as "
    "lambda params, x: module.apply(params, x) in flax, nnx.merge(graph, params)(x) in nnx, or "
    "jax.vmap(eqx.combine(params, rest))(x) in equinox"
)
DICT = "\nA batch that is a dict is one input of apply: write lambda params, batch: apply(params, {0})"
KEYS = "\nA batch that is a dict is one input of apply, which takes {0}: write batches=[({1},) for batch in batches]"
LISTS = "\nA list of numbers is a pytree with an input for each number: write np.asarray(batch) in place of the list"
VARIABLES = (
    "\nparams must have all collections of variables that apply reads, such as {'params': ..., 'batch_stats': ...}; "
    "flax's init returns them"
)
OF_FLAX = {
    "ScopeCollectionNotFound": VARIABLES,
    "ApplyScopeInvalidVariablesTypeError": VARIABLES,  # the params of a module without submodules
    "ModifyScopeVariableError": (
        "\napply updates variables. If BatchNorm updates its statistics, quantize apply in inference mode, such as "
        "lambda variables, x: module.apply(variables, x, train=False)\nA cache must be an input, such as "
        "lambda params, cache, x: module.apply({'params': params, 'cache': cache}, x, mutable=['cache'])"
    ),
}  # advice by the name of the error
LONG = 400  # characters of inputs in an error
OF_SLICES = (
    ".\nA slice pos[:t] by a symbolic t may have fewer than t elements: write jnp.take(pos, jnp.arange(t), axis=0)"
)
EARLIER = "\nThe inputs were ({0}) before"
SAME = "\nThe model was quantized with inputs of these shapes and types: is apply the same function?"


class Traced:
    """A function, and the signature that it had when it was quantized.

    Attributes:
      apply: the function.
      params: shapes and types of its parameters, a pytree.
      signature: its equations as text; None until the first trace.
    """

    def __init__(self, apply: Callable[..., Any], params: Any, signature: Sequence[str] | None = None) -> None:
        self.apply = apply
        self.params = shapes_of(params, "params")
        self.signature = None if signature is None else tuple(signature)
        self._earlier = ""  # the inputs of the last trace, in words

    @property
    def fingerprint(self) -> str:
        """A short digest of the signature."""
        return fingerprint(self.signature or ())

    def program(self, inputs: tuple[Any, ...]) -> Program:
        """Traces the function for inputs. The equations may depend on the sizes of the inputs.

        Raises:
          PtqError: if the function cannot be traced for them.
        """
        program = self._program(self.apply, inputs)
        if self.signature is None:
            self.signature = program.signature()
        return program

    def again(self, inputs: tuple[Any, ...]) -> Program:
        """Traces the function again, which may have changed, for the inputs with which it was quantized.

        Raises:
          PtqError: if the function cannot be traced.
        """
        # A new function object is passed, because JAX caches traces by object, and apply may have changed since its
        # last trace.
        return self._program(lambda *arguments: self.apply(*arguments), inputs, SAME)

    def _program(self, apply: Callable[..., Any], inputs: tuple[Any, ...], remedy: str = "") -> Program:
        if wrong := in_other_byte_order("inputs", inputs):
            raise PtqError(wrong)
        words = ", ".join(map(shown, inputs)) or "none"
        words = words if len(words) <= LONG else f"{words[:LONG]}..."
        try:
            program = program_of(apply, self.params, inputs)
        except (DescError, ModelError, PtqError):
            raise
        except Exception as error:  # the function may raise anything
            text = f"apply cannot be traced with the inputs ({words})"
            is_cut_short = re.search(r"ncompatible shapes.*\bmin\(", str(error))
            advice = remedy or OF_FLAX.get(type(error).__name__, "")
            advice = advice or (OF_SLICES if is_cut_short else "" if self._earlier else _advice(apply, inputs))
            if not advice and self._earlier not in ("", words):
                advice = EARLIER.format(self._earlier)
            raise PtqError(f"{text}: {type(error).__name__}: {error}{advice}") from error
        self._earlier = words
        return program


def shapes_of(tree: Any, what: str) -> Any:
    """Shapes and types of a pytree of arrays, which the error calls `what`.

    Raises:
      PtqError: if a leaf is not an array or a number.
    """
    try:
        return jax.tree.map(struct_of, tree)
    except TypeError as error:  # JAX raises it for strings and objects
        remedy = "write np.asarray(x) if x is a tensor of another library"
        raise PtqError(f"{what} is not an array of numbers or a pytree of such arrays: {error}; {remedy}") from error


def other_params(own: Any, given: Any) -> str:
    """A sentence that says how the shapes and types of given params differ from those of a function's own."""
    was, now = (
        {f"params{jax.tree_util.keystr(path)}": leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (own, given)
    )
    if wrong_names := difference("the pytree", was, now):
        return wrong_names
    pairs = ((name, shown(now[name]), shown(leaf)) for name, leaf in was.items())
    texts = (f"{name} is {new}, but was {old}" for name, new, old in pairs if new != old)
    return next(texts, "their structure or types differ")


def structs_of(inputs: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    """Shapes and types of inputs, which the error calls `what`.

    Raises:
      PtqError: if a leaf is not an array or a number, or if it has the byte order of other machines.
    """
    if wrong := in_other_byte_order("inputs", inputs):
        raise PtqError(f"{what}: {wrong}")
    return cast(tuple[Any, ...], shapes_of(inputs, what))


def leaves_of(inputs: Any) -> list[jax.Array]:
    """The leaves of a function's inputs as arrays. Under `jax.disable_jit`, JAX does not convert numbers to arrays."""
    return list(map(jax.numpy.asarray, jax.tree.leaves(inputs)))


def _advice(apply: Callable[..., Any], inputs: tuple[Any, ...]) -> str:
    """How apply should take its arguments, if it does not take params and the inputs by position."""
    if any(isinstance(x, list) and all(leaf.shape == () for leaf in jax.tree.leaves(x)) for x in inputs):
        return LISTS
    try:
        signature = inspect.signature(apply)
    except (TypeError, ValueError):  # functions without a signature, such as some C functions
        return SPREAD * (len(inputs) > 1)
    is_call = getattr(apply, "__name__", "") == "__call__"  # of a module, which is the same as the module
    called = getattr(apply, "__self__", apply) if is_call else apply
    if not (inspect.isroutine(called) or isinstance(called, functools.partial) or hasattr(called, "lower")):
        return MODULE.format(type(called).__name__)
    parameters = signature.parameters.values()
    named = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty]
    places = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    is_open = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        return _advice_on_dicts(apply, inputs[0])
    if named:
        is_input = len(places) == 1 and not is_open
        return BY_KEYWORD.format(named[0], f"{named[0]}=x" if is_input else f"x, {named[0]}=...")
    if len(inputs) == 1 and len(places) == 1 and not is_open:
        return NO_PARAMS.format(places[0].name)
    return SPREAD * (len(inputs) > 1)


def _advice_on_dicts(apply: Callable[..., Any], batch: Mapping[Any, Any]) -> str:
    """Batches of the inputs whose names are keys of a dict, without its labels; or else a function of the dict."""
    parameters = list(inspect.signature(apply).parameters.values())
    module = getattr(apply, "__self__", None)
    if callable(module) and any(each.kind is each.VAR_POSITIONAL for each in parameters):  # flax's module.apply
        parameters[1:] = inspect.signature(module).parameters.values()
    named = [each for each in parameters[1:] if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    places = [each.name for each in named if each.kind is not each.KEYWORD_ONLY]
    keys = [each.name for each in named if each.name in batch]
    if keys and keys == places[: len(keys)]:
        return KEYS.format(" and ".join(map(repr, keys)), ", ".join(f"batch[{key!r}]" for key in keys))
    if keys:
        return DICT.format(", ".join(f"{key}=batch[{key!r}]" for key in keys))
    takes_words = any(each.kind in (each.KEYWORD_ONLY, each.VAR_KEYWORD) for each in parameters)
    return DICT.format("**batch" if takes_words and not places else f"batch[{next(iter(batch), 'x')!r}]")
