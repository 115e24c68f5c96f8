"""The ways in which a user can call an operator. All must give the same bits."""

import contextlib
import inspect

import jax
import numpy as np

from helpers.bodies import body
from helpers.compare import assert_same_bits
from jaxdml._operators.call import OPERATORS

# For programs whose speed does not matter: XLA compiles them in half the time.
UNOPTIMISED = {"xla_backend_optimization_level": 0}


def as_jax(arguments):
    """The arguments on the device; `jnp.asarray` would compile a program for each shape."""
    return jax.device_put(tuple(arguments))


def variants(case, count=3):
    """The case's arguments, and `count - 1` others like them: different values of the same shapes."""
    rng = np.random.default_rng(count)

    def other(argument):
        if argument is None or argument.dtype.kind == "f":
            with np.errstate(over="ignore"):
                return argument if argument is None else argument * argument.dtype.type(rng.choice([0.5, 1.0, 1.7]))
        return rng.permutation(argument.reshape(-1)).reshape(argument.shape)

    return [case.arguments] + [tuple(other(argument) for argument in case.arguments) for _ in range(count - 1)]


def stacked(argument_lists):
    return tuple(None if column[0] is None else np.stack(column) for column in zip(*argument_lists, strict=True))


def called(cases):
    """One by one, as in a notebook."""
    return [case.call(*case.arguments) for case in cases]


@contextlib.contextmanager
def unoptimised_calls():
    """In this context, eager calls run programs that XLA has not optimised."""
    computed = {name: operator.compute for name, operator in OPERATORS.items()}
    try:
        for name, operator in OPERATORS.items():
            statics = {"static_argnames": operator.parameters.statics, "compiler_options": UNOPTIMISED}
            operator.compute = jax.jit(inspect.unwrap(computed[name]), **statics)
        yield
    finally:
        for name, operator in OPERATORS.items():
            operator.compute = computed[name]


def jitted(cases, compiler_options=None):
    """All in one jit, their arguments traced."""

    def every(lists):
        return [case.call(*arguments) for case, arguments in zip(cases, lists, strict=True)]

    return jax.jit(every, compiler_options=compiler_options)([as_jax(case.arguments) for case in cases])


def vmapped(cases, batches, compiler_options=None):
    """All in one jit, each vmapped over every argument."""

    def every(batches):
        return [jax.vmap(case.call)(*batch) for case, batch in zip(cases, batches, strict=True)]

    return jax.jit(every, compiler_options=compiler_options)(batches)


def closed_over(cases):
    """All in one jit, every argument but the first a constant."""
    return jax.jit(lambda firsts: [c.call(first, *c.arguments[1:]) for c, first in zip(cases, firsts, strict=True)])(
        [jax.device_put(case.arguments[0]) for case in cases]
    )


def op_by_op(cases):
    """The operators' bodies with jit disabled: each primitive compiled by itself."""
    with jax.disable_jit():
        return [body(case) for case in cases]


def assert_same(case, got, expected):
    """Every output has the same bits, except that any NaN equals any other."""
    pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
    for one, right in pairs:
        assert_same_bits(one, right, case)


def check(cases, mode):
    """The cases as a mode computes them, against the oracle."""
    for case, got in zip(cases, mode(cases), strict=True):
        assert_same(case, got, case.expected)
