"""What cannot be quantized: no function, parameters that are none, training mode, state that is returned."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from jaxdml.errors import PtqError
from jaxdml.ptq._canonical import Canonical
from jaxdml.ptq._equations import Equation, Program


def check_params(apply: Callable[..., Any], params: Any) -> None:
    """Refuses what is no function, and parameters that are no arrays.

    Raises:
      PtqError: if so.
    """
    if not callable(apply):
        raise PtqError(f"apply is of type {type(apply).__name__}, expected a function: apply(params, *inputs)")
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            where = f"params{jax.tree_util.keystr(path)}"
            text = f"{where} is of type {type(leaf).__name__}, expected an array"
            raise PtqError(f"{text}: keep what is no array in apply (equinox: eqx.partition(model, eqx.is_array))")
        if isinstance(leaf, jax.core.Tracer):
            raise PtqError("quantize needs the values of params: call it outside of jax.jit and other transformations")
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            where = f"params{jax.tree_util.keystr(path)}"
            raise PtqError(f"{where} is a random key: make the function's keys inputs, or inside of apply")


def check_function(program: Program, made: Canonical) -> None:
    """Refuses functions in training mode, and those that return state.

    Raises:
      PtqError: if so.
    """
    for equation in _batch_statistics(program, made):
        raise PtqError(
            f"{equation.scope or equation.name} takes the mean over the first axis of an array of shape "
            f"{list(made.shape(equation.inputs[0]))} and subtracts it, as BatchNorm in training mode does. Quantize "
            "apply in inference mode (flax: use_running_average=True; equinox: eqx.nn.inference_mode); if the first "
            "axis is no batch, add one by jax.vmap"
        )
    for number, name in enumerate(program.outputs):
        if not made.is_data(name):
            raise PtqError(
                f"output {number} ({name}) does not depend on the inputs: apply returns state or parameters; write a "
                "function that returns the results alone, such as lambda params, x: apply(params, x)[0]"
            )


def _batch_statistics(program: Program, made: Canonical) -> Iterator[Equation]:
    """Sums over the first axis, but not over all, whose mean is subtracted from what they are sums of."""
    centered = {}  # by each mean: what it is of
    for equation in program.equations:
        data = [name for name in equation.inputs if made.is_data(name)]
        if equation.name == "reduce_sum" and data:
            rank = len(made.shape(data[0]))
            if 0 in equation.params["axes"] and len(equation.params["axes"]) < rank and (
                jnp.issubdtype(equation.dtypes[0], jnp.floating)
            ):  # fmt: skip
                centered[equation.outputs[0]] = data[0], equation
        elif equation.name in ("div", "mul", "broadcast_in_dim", "reshape", "expand_dims") and data:
            if data[0] in centered and len(data) == 1:
                centered[equation.outputs[0]] = centered[data[0]]
        elif equation.name == "sub" and len(data) == 2 and data[1] in centered and centered[data[1]][0] == data[0]:
            yield centered[data[1]][1]
