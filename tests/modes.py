"""The ways a user can reach an operator. Every one must give the same bits."""

import jax
import jax.numpy as jnp
import numpy as np


def as_jax(arguments):
    return tuple(None if argument is None else jnp.asarray(argument) for argument in arguments)


def variants(case, count=3):
    """The case's arguments and `count - 1` more like them, other values in the same shapes."""
    rng = np.random.default_rng(count)

    def other(argument):
        if argument is None or argument.dtype.kind == "f":
            return argument if argument is None else argument * np.float32(rng.choice([0.5, 1.0, 1.7]))
        return rng.permutation(argument.reshape(-1)).reshape(argument.shape)

    return [case.arguments] + [tuple(other(argument) for argument in case.arguments) for _ in range(count - 1)]


def stacked(argument_lists):
    return tuple(None if column[0] is None else np.stack(column) for column in zip(*argument_lists, strict=True))


def called(cases):
    """One by one, as in a notebook."""
    return [case.call(*case.arguments) for case in cases]


def jitted(cases):
    """All in one jit, their arguments traced."""
    return jax.jit(lambda lists: [case.call(*a) for case, a in zip(cases, lists, strict=True)])(
        [as_jax(case.arguments) for case in cases]
    )


def closed_over(cases):
    """All in one jit, every argument but the first a constant."""
    return jax.jit(lambda firsts: [c.call(first, *c.arguments[1:]) for c, first in zip(cases, firsts, strict=True)])(
        [jnp.asarray(case.arguments[0]) for case in cases]
    )


def op_by_op(cases):
    """With jit disabled: each primitive compiled by itself."""
    with jax.disable_jit():
        return called(cases)
