"""Scatters and gathers: the sum, the largest and the smallest of the updates of each element, in any order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from helpers.compare import assert_same_bits
from jaxdml.errors import ExactError
from jaxdml.reference import floats

RNG = np.random.default_rng(0)
ROWS, POINTS = 12, 4000
PLACES = (RNG.random(POINTS) ** 4 * 2 * ROWS).astype(int)  # 1,849 for the first element; some are outside
UPDATES = (RNG.standard_normal((3, POINTS)) * np.exp(5 * RNG.standard_normal((3, POINTS)))).astype(np.float32)
X = RNG.standard_normal((3, ROWS)).astype(np.float32)
INDICES = PLACES[:, None].astype(np.int32)
OF_COLUMNS = lax.ScatterDimensionNumbers((0,), (1,), (1,))


def added(x, updates):
    return x.at[:, PLACES].add(updates, mode="drop")


def test_an_element_plus_the_sum_of_its_updates():
    expected = floats.scatter_add(X, PLACES, UPDATES)
    assert_same_bits(jax.jit(dml.exact(added))(X, UPDATES), expected)
    subtracted = dml.exact(lambda x, u: lax.scatter_sub(x, INDICES, u, OF_COLUMNS, mode="drop"))
    assert_same_bits(jax.jit(subtracted)(X, -UPDATES), expected)


@pytest.mark.rare
def test_the_precision_depends_on_the_updates_of_an_element_alone():
    """Three addends have 44 bits below the largest magnitude, and 4,000 have 36."""
    places, updates = np.zeros(POINTS, np.int32), np.zeros(POINTS, np.float32)
    places[:3], updates[:3] = 1, (1, -1, 2.0**-42)
    got = jax.jit(dml.exact(lambda x, u: x.at[places].add(u)))(np.zeros(2, np.float32), updates)
    assert_same_bits(got, np.float32([0, 2.0**-42]))
    assert_same_bits(dml.exact(lambda x: x.at[places].add(1.0))(np.zeros(2, np.float32)), np.float32([POINTS - 3, 3]))


@pytest.mark.rare
def test_special_updates():
    x = np.float32([[1, 1, 1, 1, -0.0, 2e-38, np.inf, 1]])
    places = np.int32([0, 0, 1, 2, 2, 3, 5, 6])
    updates = np.float32([[np.inf, 1, -np.inf, np.inf, -np.inf, np.nan, -1.9e-38, -np.inf]])
    got = dml.exact(lambda x, u: x.at[:, places].add(u))(x, updates)
    assert_same_bits(got, np.float32([[np.inf, -np.inf, np.nan, np.nan, -0.0, 0, np.nan, 1]]))


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_largest_and_the_smallest(name, dtype):
    x, updates = np.float32([0, -0.0, -1, 3, 1, -2]), np.float32([-0.0, 0, -1e-45, 1, np.nan, 5])
    got = jax.jit(dml.exact(lambda x, u: getattr(x.at[np.array([0, 1, 1, 3, 4, 9])], name)(u)))(
        jnp.asarray(x, dtype), jnp.asarray(updates, dtype)
    )
    right = {"max": [0, 0, -1, 3, np.nan, -2], "min": [-0.0, -0.0, -1, 1, np.nan, -2]}
    assert_same_bits(got, jnp.asarray(np.float32(right[name]), dtype))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_batches_have_the_bits_of_each(axes):
    def f(places, updates):
        return jnp.zeros((ROWS,), jnp.float32).at[places].add(updates, mode="drop")

    places, updates = np.stack([PLACES, PLACES[::-1]]), UPDATES[:2]
    operands = [each if axis == 0 else each[0] for each, axis in zip((places, updates), axes, strict=True)]
    got = jax.jit(jax.vmap(dml.exact(f), axes))(*operands)
    inside = jax.jit(dml.exact(jax.vmap(f, axes)))(*operands)
    for row in range(2):
        one = [each[row] if axis == 0 else each for each, axis in zip(operands, axes, strict=True)]
        expected = floats.scatter_add(np.zeros((1, ROWS), np.float32), one[0], one[1][None])[0]
        assert_same_bits(got[row], expected)
        assert_same_bits(inside[row], expected)


def test_windows_and_no_updates():
    x = RNG.standard_normal((5, 7)).astype(np.float32)
    starts, updates = np.int32([[1], [1], [3]]), RNG.standard_normal((3, 2, 7)).astype(np.float32)
    numbers = lax.ScatterDimensionNumbers((1, 2), (), (0,))
    got = jax.jit(dml.exact(lambda x, u: lax.scatter_add(x, starts, u, numbers)))(x, updates)
    places = np.int32([1, 2, 1, 2, 3, 4])
    assert_same_bits(got, floats.scatter_add(x.T, places, updates.reshape(6, 7).T).T)
    assert_same_bits(dml.exact(lambda x: x.at[np.zeros((0,), int)].add(1.0))(x), x)
    nothing = np.zeros((0, 3), np.float32)
    assert_same_bits(dml.exact(lambda x: x.at[np.array([0, 0])].add(1.0))(nothing), nothing)


def test_the_gradient_of_an_embedding():
    tokens = np.int32([1, 3, 1, 1])
    weights = RNG.standard_normal((4, 3)).astype(np.float32)
    gradient = jax.jit(dml.exact(jax.grad(lambda table: jnp.sum(table[tokens] * weights))))(np.zeros_like(weights))
    assert_same_bits(gradient, floats.scatter_add(np.zeros((3, 4), np.float32), tokens, weights.T).T)


def test_too_many_updates_are_an_error():
    places = jax.ShapeDtypeStruct((2**26 + 1,), jnp.int32)
    with pytest.raises(ExactError, match=r"a sum of more than 67,108,864 addends .*: sum parts"):
        jax.eval_shape(dml.exact(lambda x, i: x.at[i].add(1.0)), jax.ShapeDtypeStruct((4,), jnp.float32), places)


def test_the_updates_of_other_elements_of_a_batch_are_not_counted():
    x, places = jax.ShapeDtypeStruct((3, 4), jnp.float32), jax.ShapeDtypeStruct((3, 2**25), jnp.int32)
    jax.eval_shape(dml.exact(jax.vmap(lambda x, i: x.at[i].add(1.0))), x, places)


def test_multiplied_updates_are_refused_with_a_remedy_that_works():
    def f(x):
        return x.at[1].multiply(2.0)

    with pytest.raises(ExactError, match=r"no rule for scatter-mul .* write x.at\[i\].set\(x\[i\] \* updates\)"):
        dml.exact(f)(X[0])
    assert_same_bits(dml.exact(lambda x: x.at[1].set(x[1] * 2.0))(X[0]), f(jnp.asarray(X[0])))


def test_a_gather_of_constants():
    """XLA:CPU folds the bits of the elements wrongly if it knows the indices."""
    places = np.random.default_rng(1).integers(0, 9, 40)
    f = dml.exact(lambda x: jnp.tanh(jnp.take(UPDATES[:, :9], places, axis=1)) * x)
    assert_same_bits(jax.jit(f)(np.float32(1)), floats.tanh(UPDATES[:, places]))
