"""The primitives of JAX whose integers are the same in every call, by every compiler and on every processor."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

# This list allows, and does not forbid, because integers differ in more ways than a list could foresee: rng_uniform
# draws others in each call; rng_bit_generator, platform_index, and div and rem where they overflow, depend on the
# backend; a scatter to equal indices depends on the order of threads; reduce, reduce_window, shard_map, pallas_call and
# callbacks run any function, which may compute floats.
SAME = frozenset((
    # Moves.
    "broadcast_in_dim", "concatenate", "copy", "copy_p", "device_put", "dynamic_slice", "dynamic_update_slice",
    "expand_dims", "gather", "iota", "mesh_cast", "name", "optimization_barrier", "pad", "pcast", "pvary", "reshape",
    "reshard", "rev", "select_n", "sharding_constraint", "slice", "split", "squeeze", "stack", "stop_gradient", "tile",
    "transpose", "unstack",
    # Functions of elements, modulo 2**bits.
    "abs", "add", "add_any", "and", "clamp", "clz", "convert_element_type", "eq", "ge", "gt", "integer_pow", "le",
    "lt", "max", "min", "mul", "ne", "neg", "not", "or", "population_count", "shift_left", "shift_right_arithmetic",
    "shift_right_logical", "sign", "square", "sub", "xor",
    # Reductions, in any order, and products.
    "argmax", "argmin", "cummax", "cummin", "cumprod", "cumsum", "dot_general", "reduce_and", "reduce_max",
    "reduce_min", "reduce_or", "reduce_prod", "reduce_sum", "reduce_window_max", "reduce_window_min",
    "reduce_window_sum", "reduce_xor", "scatter-add", "scatter-max", "scatter-min", "scatter-mul", "scatter-sub",
    # Keys and bits of threefry.
    "random_bits", "random_clone", "random_fold_in", "random_seed", "random_split", "random_unwrap", "random_wrap",
    "threefry2x32",
    # Those of jaxdml.
    "jaxdml_kernel", "jaxdml_operand",
))  # fmt: skip
THREEFRY = "key<fry>"  # the type of keys whose bits are the same on every backend


def are_same(name: str, params: Mapping[str, Any], dtypes: Sequence[Any]) -> bool:
    """Whether a primitive with operands of these types, none of them floats, gives the same integers everywhere."""
    if any(jnp.issubdtype(dtype, jax.dtypes.prng_key) and str(dtype) != THREEFRY for dtype in dtypes):
        return False
    if name == "scatter":  # a function to apply to each element may be any
        return params["unique_indices"] and params["update_jaxpr"] is None
    if name == "sort":
        return params["is_stable"] or params["num_keys"] == len(dtypes)
    if name == "top_k":
        return bool(params.get("is_stable", True))
    return name in SAME
