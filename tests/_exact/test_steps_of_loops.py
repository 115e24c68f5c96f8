"""Steps of an RNN, each with a quantized product and a program on its rows: one native call, also for a whole loop."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from helpers.native_calls import native_calls, needs_native
from jaxdml._arithmetic import kernel_call
from jaxdml.reference import floats, operators

pytestmark = needs_native
RNG = np.random.default_rng(11)
SCALE, ZERO = np.float32(0.009), np.uint8(117)
UNITS = 12


def array(*shape):
    return (RNG.standard_normal(shape) * 2).astype(np.float32)


def weights_of(columns, depth=UNITS):
    """Prepared weights, their scales and a bias."""
    w = RNG.integers(-128, 128, (depth, columns), np.int8)
    return dml.prepare_matrix_multiply_b(w), RNG.uniform(0.001, 0.003, columns).astype(np.float32), array(columns)


def product(h, weights, module=dml):
    w, scales, bias = weights
    q = module.element_wise_quantize_linear(h, SCALE, ZERO)
    return module.matrix_multiply_integer_to_float(q, SCALE, ZERO, w, scales, np.int8(3), bias=bias)


def lstm(weights, state, x):
    c, h = state
    i, f, g, o = jnp.split(product(h, weights) + x, 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (c, h), h


def gru(weights, h, x):
    (r, z, n), (r_x, z_x, n_x) = jnp.split(product(h, weights), 3, -1), jnp.split(x, 3, -1)
    r, z = jax.nn.sigmoid(r + r_x), jax.nn.sigmoid(z + z_x)
    h = (1 - z) * jnp.tanh(n_x + r * n) + z * h
    return h, (h, z)


def looped(step, **options):
    return dml.exact(lambda weights, state, xs: lax.scan(lambda s, x: step(weights, s, x), state, xs, **options))


def same_bits(f, *arguments, calls):
    assert native_calls(f, *arguments) == calls
    got = jax.jit(f)(*arguments)
    with dml.use_kernels("xla"):
        wanted = jax.jit(lambda *given: f(*given))(*arguments)
    jax.tree.map(assert_same_bits, got, wanted)
    return got


LSTM = lstm, weights_of(4 * UNITS)
GRU = gru, weights_of(3 * UNITS)


def inputs(step, rows, steps):
    gates = 4 if step is lstm else 3
    state = (array(rows, UNITS), array(rows, UNITS)) if step is lstm else array(rows, UNITS)
    return state, array(steps, rows, gates * UNITS)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("step", "weights"), [LSTM, GRU], ids=["LSTM", "GRU"])
@pytest.mark.parametrize("rows", [1, 9])
def test_a_loop_of_steps_is_one_native_call(step, weights, rows, reverse):
    f = looped(step, reverse=reverse)
    arguments = weights, *inputs(step, rows, 5)
    same_bits(f, *arguments, calls=["steps"])
    assert " while(" not in jax.jit(f).lower(*arguments).compile().as_text()
    same_bits(f, weights, *inputs(step, rows, 1), calls=["steps"])


def test_a_loop_has_the_bits_of_the_reference():
    step, (prepared, *rest) = LSTM
    weights = np.asarray(prepared.array), *rest
    (c, h), xs = inputs(step, 4, 6)
    wanted, state = [], (c, h)
    for x in xs:
        gates = np.split(floats.add(product(h, weights, operators), x), 4, -1)
        i, f, o = (floats.logistic(gates[place]) for place in (0, 1, 3))
        c = floats.add(f * c, i * floats.tanh(gates[2]))
        h = o * floats.tanh(c)
        wanted.append(h)
    f = looped(step)
    got, eager = jax.jit(f)(LSTM[1], state, xs), f(LSTM[1], state, xs)
    for (last_c, last_h), hs in (got, eager):
        assert_same_bits(np.asarray(hs), np.stack(wanted))
        assert_same_bits(np.asarray(last_c), c)
        assert_same_bits(np.asarray(last_h), h)


def test_a_step_outside_of_a_loop_is_one_native_call():
    step, weights = LSTM
    state, xs = inputs(step, 9, 1)
    f = dml.exact(step)
    same_bits(f, weights, state, xs[0], calls=["steps"])
    hlo = jax.jit(f).lower(weights, state, xs[0]).compile().as_text()
    assert len(re.findall(r" slice\(", hlo)) == 0


def test_a_step_keeps_the_quantizer_behind_a_program():
    f = dml.exact(lambda weights, h: jnp.tanh(product(jnp.exp(h), weights)))
    same_bits(f, weights_of(16), array(64, UNITS), calls=["rows", "steps"])


def test_large_products_are_calls_of_their_own():
    f = dml.exact(lambda weights, h: jnp.tanh(product(h, weights)))
    weights = weights_of(16)
    same_bits(f, weights, array(2048, UNITS), calls=["steps"])
    same_bits(f, weights, array(2049, UNITS), calls=["quantized", "matmul", "rows"])


@pytest.mark.rare
def test_a_loop_under_vmap_and_exported():
    step, weights = LSTM
    f = looped(step)
    many = [inputs(step, 3, 4) for _ in range(2)]
    stacked = jax.tree.map(lambda *each: np.stack(each), *many)
    got = jax.jit(jax.vmap(f, (None, 0, 0)))(weights, *stacked)
    for place, (state, xs) in enumerate(many):
        wanted = f(weights, state, xs)
        jax.tree.map(lambda all, one, i=place: assert_same_bits(all[i], one), got, wanted)
    plain = (np.asarray(weights[0].array), *weights[1:])
    exported = export.export(jax.jit(f))(plain, *many[0])
    jax.tree.map(assert_same_bits, exported.call(plain, *many[0]), f(weights, *many[0]))


def by_rows(weights, h, x):
    """Each row of h is quantized by its own range."""
    w, scales, bias = weights
    q, scale, zero = dml.dynamic_quantize_linear(h)
    y = jnp.tanh(dml.matrix_multiply_integer_to_float(q, scale, zero, w, scales, np.int8(3), bias=bias) + x)
    return y, y


def counted(weights, state, x):
    """A state that no step computes from a product."""
    count, h = state
    h = jnp.tanh(product(h, weights) + x)
    return (count + 1, h), h


def delayed(weights, state, x):
    """A state that is another state of the step before."""
    before, h = state
    y = jnp.tanh(product(h, weights) + x) * before
    return (h, y), y


def narrow(weights, state, x):
    """A state with one column: a block of columns would overwrite it before the next block reads it."""
    h, most = state
    h = jnp.tanh(product(h, weights) + x) - most
    return (h, jnp.max(h, -1, keepdims=True)), h


def twice(weights, h, x):
    for _ in range(2):
        h = jnp.tanh(product(h, weights) + x)
    return h, h


def of_inputs(weights, state, x):
    """A product of an element of a sequence, not of a state."""
    return state, jnp.tanh(product(x, weights))


def reshaped(weights, h, x):
    """The product reads the quantized state in another shape."""
    w, scales, bias = weights
    q = dml.element_wise_quantize_linear(h, SCALE, ZERO).reshape(18, UNITS // 2)
    y = dml.matrix_multiply_integer_to_float(q, SCALE, ZERO, w, scales, np.int8(3), bias=bias).reshape(9, UNITS)
    h = jnp.tanh(y + x)
    return h, h


def with_scales_of_rows(weights, h, x):
    """The quantizer has one scale, and the product one for each row."""
    w, scales, bias = weights
    q = dml.element_wise_quantize_linear(h, SCALE, ZERO)
    h = jnp.tanh(dml.matrix_multiply_integer_to_float(q, ROWS, ZERO, w, scales, np.int8(3), bias=bias) + x)
    return h, h


def behind_a_barrier(weights, h, x):
    """The barrier has two results, of which the first is a constant."""
    half, _ = lax.optimization_barrier((np.float32(0.5), x))
    h = jnp.tanh(product(h, weights) * half)
    return h, h


def behind_another_barrier(weights, h, x):
    _, h = lax.optimization_barrier((np.float32(0.5), h))
    h = jnp.tanh(product(h, weights) + x)
    return h, h


def with_an_effect(weights, h, x):
    jax.debug.callback(lambda: EFFECTS.append(1))
    h = jnp.tanh(product(h, weights) + x)
    return h, h


SQUARE, EFFECTS = weights_of(UNITS), []
ROWS = RNG.uniform(0.01, 0.02, (9, 1)).astype(np.float32)
OTHERS = {
    "another state": (counted, (np.int32(0), array(9, UNITS))),
    "a state of the step before": (delayed, (array(9, UNITS), array(9, UNITS))),
    "a narrow state": (narrow, (array(9, UNITS), array(9, 1))),
    "two products": (twice, array(9, UNITS)),
    "one range for all rows": (by_rows, array(9, UNITS)),
    "no product of a state": (of_inputs, array(9, UNITS)),
    "scales of rows": (with_scales_of_rows, array(9, UNITS)),
    "a barrier with a constant": (behind_a_barrier, array(9, UNITS)),
    "a state behind a barrier with a constant": (behind_another_barrier, array(9, UNITS)),
    "an effect": (with_an_effect, array(9, UNITS)),
}


@pytest.mark.parametrize("name", rest_rarely(OTHERS, 2))
def test_other_loops_stay_loops(name):
    step, state = OTHERS[name]
    f = looped(step)
    arguments = SQUARE, state, array(5, 9, UNITS)
    assert " while(" in jax.jit(f).lower(*arguments).compile().as_text()
    got = jax.jit(f)(*arguments)
    with dml.use_kernels("xla"):
        jax.tree.map(assert_same_bits, got, jax.jit(lambda *given: f(*given))(*arguments))


def test_each_step_has_its_effects():
    EFFECTS.clear()
    jax.block_until_ready(jax.jit(looped(with_an_effect))(SQUARE, array(9, UNITS), array(5, 9, UNITS)))
    jax.effects_barrier()
    assert len(EFFECTS) == 5


def test_a_product_that_reads_the_state_in_another_shape():
    weights = weights_of(UNITS // 2, UNITS // 2)
    f, arguments = looped(reshaped), (weights, array(9, UNITS), array(5, 9, UNITS))
    got = jax.jit(f)(*arguments)
    with dml.use_kernels("xla"):
        jax.tree.map(assert_same_bits, got, jax.jit(lambda *given: f(*given))(*arguments))


def test_eager_loops_are_not_cached():
    f, arguments = looped(lstm), (LSTM[1], *inputs(lstm, 2, 3))
    f(*arguments)
    before = kernel_call._jitted_once.cache_info().currsize
    for _ in range(3):
        f(*arguments)
    assert kernel_call._jitted_once.cache_info().currsize == before


def test_a_loop_without_sequences_stays_a_loop():
    step = lambda weights, h: (jnp.tanh(product(h, weights)), None)  # noqa: E731
    f = dml.exact(lambda weights, h: lax.scan(lambda h, _: step(weights, h), h, None, 3)[0])
    same_bits(f, SQUARE, array(9, UNITS), calls=["steps"])
    assert " while(" in jax.jit(f).lower(SQUARE, array(9, UNITS)).compile().as_text()


def test_arguments_of_steps():
    """An array that all steps share, a narrow one for each step, and a state that is only an operand of the program."""

    def step(weights, shared, state, x):
        h, mean = state
        h = jnp.tanh(product(h, weights) * shared + x) + mean
        return (h, mean * 0.5 + h), (h, jnp.max(h, -1))

    def f(weights, shared, state, xs):
        return lax.scan(lambda s, x: step(weights, shared, s, x), state, xs)

    state = array(9, UNITS), array(9, UNITS)
    same_bits(dml.exact(f), SQUARE, array(1, UNITS), state, array(5, 9, 1), calls=["steps"])


def test_weights_that_were_changed_raise_an_error():
    step, ((prepared, *_), *rest) = lstm, (LSTM[1][:1], *LSTM[1][1:])
    changed = jax.tree.map(lambda x: x * 2, prepared)
    with pytest.raises(Exception, match="not as these kernels packed it"):
        jax.block_until_ready(jax.jit(looped(step))((changed, *rest), *inputs(step, 2, 3)))
