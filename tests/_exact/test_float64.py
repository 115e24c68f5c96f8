"""float64, which needs jax_enable_x64, is moved and rounded to float32; Python numbers are float64 there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from jaxdml.errors import PtqError
from jaxdml.reference import floats

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 9)).astype(np.float32)
LEAST = 2.0**-126
EDGES = np.array([
    LEAST, LEAST * (1 - 2.0**-24), np.nextafter(LEAST * (1 - 2.0**-24), 0), LEAST * (1 - 2.0**-25),
    LEAST * (1 - 2.0**-30), LEAST * (1 + 2.0**-24), LEAST * (1 - 2.0**-23), 1 + 2.0**-24, 1 + 3 * 2.0**-24, 0, 5e-324,
    3.4028235677973362e38, 3.4028235677973366e38, 1e300, np.inf,
])  # fmt: skip
WITH_NUMBERS = {
    "where": lambda x: jnp.where(x > 0, x, -1e9),
    "clip": lambda x: jnp.clip(x, -0.3, 1.1),
    "elu": jax.nn.elu,
    "selu": jax.nn.selu,
    "var": lambda x: jnp.var(x, -1),
    "std": lambda x: jnp.std(x, 0),
    "pad": lambda x: jnp.pad(x, 1, constant_values=1.7),
    "linspace": lambda x: jnp.linspace(0.1, 1.3, 9, dtype=jnp.float32).reshape(1, 9) * x,
    "where of numbers": lambda x: jnp.where(x > 0, 0.1, 0.3) * x,
    "loop": lambda x: lax.fori_loop(0, 3, lambda i, x: jnp.where(x > 0, x * 1.1, -0.1), x),
    "bfloat16": lambda x: jnp.where(x > 0, x.astype(jnp.bfloat16), 1.00390626),  # a tie once it is float32
    "tiny": lambda x: jnp.where(x > 0, x, LEAST * (1 - 2.0**-25)),
}


@pytest.mark.parametrize("name", rest_rarely(WITH_NUMBERS, 1))
def test_python_numbers_are_those_of_float32(name):
    f = dml.exact(WITH_NUMBERS[name])
    right = jax.jit(f)(X)
    with jax.enable_x64(True):
        assert_same_bits(jax.jit(f)(X), right)


@pytest.mark.rare
def test_float64_is_rounded_once_then_flushed():
    def to_float32(x):
        return jnp.reshape(x, (2, -1)).astype(jnp.float32)

    near = np.ldexp(1 + RNG.random(2**15), RNG.integers(-160, 130, 2**15))
    x = np.concatenate([RNG.integers(0, 2**64, 2**15, np.uint64).view(np.float64), near, EDGES, -EDGES])
    with np.errstate(all="ignore"):
        right = floats.flushed(x.astype(np.float32)).reshape(2, -1)
    with jax.enable_x64(True):
        for f in (dml.exact(to_float32), jax.jit(dml.exact(to_float32)), jax.jit(lambda x: dml.exact(to_float32)(x))):
            assert_same_bits(f(x), right)
        assert_same_bits(jax.jit(lambda: dml.exact(to_float32)(x))(), right)
        assert_same_bits(jax.jit(dml.exact(lambda x, t: x * -t))(X, 0.7), floats.mul(X, np.float32(-0.7)))


REFUSED = [
    ("mul", lambda x: (x * x).astype(jnp.float32)),
    ("gt", lambda x: x > 0),
    ("convert_element_type", lambda x: x.astype(jnp.float32).astype(jnp.float64)),
    ("convert_element_type", lambda x: x.astype(jnp.int32)),
]


def test_computing_in_float64_is_refused():
    with jax.enable_x64(True):
        for name, f in REFUSED:
            with pytest.raises(dml.ExactError, match=rf"{name} of float64 .*: convert it to float32 with"):
                dml.exact(f)(EDGES)


@pytest.mark.rare
def test_a_model_with_python_numbers_has_one_answer():
    w = RNG.standard_normal((9, 9)).astype(np.float32)

    def network(w, x):
        y = x @ w
        return jnp.where(jax.nn.softmax(y) > 0.1, y, -0.3)

    def quantized():
        return dml.ptq.quantize(network, w, [X], products="dynamic", floats="exact", progress=False)

    model = quantized()
    right = model.apply(model.params, X)
    with jax.enable_x64(True):
        got = quantized()
        assert got.by_xla == ()
        assert_same_bits(got.apply(got.params, X), right)
        with pytest.raises(PtqError, match=r"=-0\.3 .*\n.*jax_enable_x64 had another value"):
            model.apply(model.params, X)  # 0.3 has other digits
