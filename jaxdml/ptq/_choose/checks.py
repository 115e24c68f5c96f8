"""Validates the arguments `apply` and `params` of `quantize`."""

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml.errors import PtqError, in_other_byte_order
from jaxdml.ptq._build.builder import WEIGHT_MOVERS, Builder
from jaxdml.ptq._trace.equations import Equation


def check_outside(reads: str, *arrays: Any) -> None:
    """Rejects calls inside of transformations.

    Args:
      reads: the start of the error's sentence: which values the caller computes with.
      *arrays: pytrees of these values.

    Raises:
      PtqError: if JAX traces the call, or if an array is traced.
    """
    if any(isinstance(leaf, jax.core.Tracer) for leaf in (jnp.zeros(()), *jax.tree.leaves(arrays))):
        raise PtqError(f"{reads}: call it outside of jax.jit and other transformations")


def check_params(params: Any) -> None:
    """Validates `params`.

    Raises:
      PtqError: if a leaf of params is not an array, is traced, is a random key, or has the byte order of
        other machines.
    """
    check_outside("quantize computes with the values of params and batches", params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
            where = f"params{jax.tree_util.keystr(path)}"
            text = f"{where} is of type {type(leaf).__name__}, expected an array"
            if hasattr(leaf, "value"):
                raise PtqError(f"{text}: give the arrays, such as [variable.value for variable in variables]")
            raise PtqError(f"{text}: move other values into apply (equinox: eqx.partition(model, eqx.is_array))")
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            where = f"params{jax.tree_util.keystr(path)}"
            text = "pass keys as inputs of apply, or create them in apply (nnx: write"
            split = "graph, params, rest = nnx.split(module, nnx.Not(nnx.RngState), ...), and pass rest as an input)"
            raise PtqError(f"{where} is a random key: {text} {split}")
    if wrong := in_other_byte_order("params", params):
        raise PtqError(wrong)


def check_function(builder: Builder, bodies: Iterable[Builder] = ()) -> None:
    """Rejects functions in training mode, and functions that return state.

    Args:
      builder: the builder of the function.
      bodies: the builders of the bodies of its scans.

    Raises:
      PtqError: if the function is in training mode or returns state.
    """
    for each in (builder, *bodies):
        for equation in _random_masks(each):
            raise PtqError(
                f"{equation.scope or equation.name} drops elements at random with a key that is not an input, as "
                "Dropout in training mode does: each call would drop the same elements. Quantize apply in inference "
                "mode (flax: deterministic=True; equinox: eqx.nn.inference_mode; keras: training=False), or make the "
                "key an input of apply"
            )
    for equation in _batch_statistics(builder):
        raise PtqError(
            f"{equation.scope or equation.name} takes the mean over the first axis of an array of shape "
            f"{list(builder.shape(equation.inputs[0]))} and subtracts it, as BatchNorm in training mode does. Quantize "
            "apply in inference mode (flax: use_running_average=True; equinox: eqx.nn.inference_mode); if the first "
            "axis is not a batch axis, add one by jax.vmap"
        )
    for place, name in zip(builder.program.output_names(), builder.program.outputs, strict=True):
        if not builder.is_data(name):
            raise PtqError(
                f"{place} ({name}) does not depend on the inputs: apply returns state or parameters; write a "
                "function that returns only the results, such as lambda params, x: apply(params, x)[0]"
            )


def _random_masks(builder: Builder) -> Iterator[Equation]:
    """Yields equations that apply a fixed random mask to data: fixed booleans that are computed from random bits."""
    drawn, masks = set[str](), set[str]()
    for equation in builder.program.equations:
        if not masks.isdisjoint(equation.inputs) and any(map(builder.is_data, equation.inputs)):
            yield equation
        if equation.is_random or not drawn.isdisjoint(equation.inputs):
            drawn.update(equation.outputs)
        is_mask = any(name in drawn and builder.program.avals[name].dtype == bool for name in equation.outputs)
        is_moved_mask = equation.name in WEIGHT_MOVERS and not masks.isdisjoint(equation.inputs)
        if (is_mask or is_moved_mask) and not any(map(builder.is_data, equation.inputs)):
            masks.update(equation.outputs)


def _batch_statistics(builder: Builder) -> Iterator[Equation]:
    """Yields, for each mean that looks like a batch statistic, the equation of its sum.

    Such a mean is taken over the first axis, but not over all axes, and is subtracted from its own input. The size of
    the first axis is a multiple of the first size of an input, as it is if the axis has the batch's elements.
    """
    sizes = [shape[0] for shape in map(builder.shape, builder.program.inputs) if shape and shape[0]]
    means = {}  # maps a sum or mean to the summed value and the equation of the sum
    for equation in builder.program.equations:
        data = [name for name in equation.inputs if builder.is_data(name)]
        if equation.name == "reduce_sum" and data:
            shape = builder.shape(data[0])
            if 0 in equation.params["axes"] and len(equation.params["axes"]) < len(shape) and (
                jnp.issubdtype(equation.dtypes[0], jnp.floating) and any(shape[0] % size == 0 for size in sizes)
            ):  # fmt: skip
                means[equation.outputs[0]] = data[0], equation
        elif equation.name in ("div", "mul", "broadcast_in_dim", "reshape", "expand_dims") and data:
            if data[0] in means and len(data) == 1:
                means[equation.outputs[0]] = means[data[0]]
        elif equation.name == "sub" and len(data) == 2 and data[1] in means and means[data[1]][0] == data[0]:
            yield means[data[1]][1]
