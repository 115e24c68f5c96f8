"""`jaxdml.exact`: what it accepts, what it refuses, and what it does under JAX's transformations."""

import inspect
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from jaxdml._exact.fast_math import fast_math_flag
from jaxdml._exact.interpreter import inner_jaxprs
from jaxdml._exact.rules import wide_product
from jaxdml.reference import floats

X = np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32)


def silu(x):
    return floats.mul(x, floats.logistic(x))


def test_signature_and_pytrees():
    def f(tree, *, scale=2.0):
        """Its text."""
        return {"y": jax.nn.silu(tree["x"]) * scale, "n": tree["n"] + 1}

    g = dml.exact(f)
    assert (g.__name__, g.__doc__) == ("f", "Its text.")
    assert inspect.signature(g) == inspect.signature(f)
    got = g({"x": X, "n": 3}, scale=0.7)
    assert_same_bits(got["y"], floats.mul(silu(X), np.float32(0.7)))
    assert got["n"] == 4


def test_both_operands_broadcast():
    column, row = X[:, :1], X[:1]
    assert_same_bits(dml.exact(jnp.multiply)(column, row), floats.mul(column, row))


def doubled(x):
    return floats.mul(floats.exp(x), np.float32(0.3))


def with_jvp(f, x):
    g = jax.custom_jvp(f)
    g.defjvp(lambda primals, tangents: (f(*primals), tangents[0]))
    return g(x)


def with_vjp(f, x):
    g = jax.custom_vjp(f)
    g.defvjp(lambda x: (f(x), None), lambda _, cotangent: (cotangent,))
    return g(x)


LOOPS = {
    "scan": lambda f, x: lax.scan(lambda c, v: (f(c), None), x, None, length=3)[0],
    "fori_loop": lambda f, x: lax.fori_loop(0, 3, lambda i, c: f(c), x),
    "while": lambda f, x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, f(c[1])), (0, x))[1],
    "cond": lambda f, x: lax.cond(x[0, 0] < 9, lambda x: f(f(f(x))), f, x),
    "switch": lambda f, x: lax.switch(2, [f, f, lambda x: f(f(f(x)))], x),
    "jit": lambda f, x: jax.jit(f)(jax.jit(f)(f(x))),
    "checkpoint": lambda f, x: jax.checkpoint(lambda x: f(f(f(x))))(x),
    "map": lambda f, x: lax.map(lambda row: f(f(f(row))), x),
    "custom_jvp": lambda f, x: with_jvp(lambda x: f(f(f(x))), x),
    "custom_vjp": lambda f, x: with_vjp(lambda x: f(f(f(x))), x),
    "platforms": lambda f, x: lax.platform_dependent(x, cpu=lambda x: f(f(f(x))), default=f),
    "vmap": lambda f, x: jax.vmap(lambda row: f(f(f(row))))(x),
    "inside": lambda f, x: dml.exact(lambda x: f(f(x)))(f(x)),
}


@pytest.mark.oldest
@pytest.mark.parametrize("name", rest_rarely(LOOPS, 5))
def test_calls_and_loops_inside(name):
    x = -np.abs(X)
    got = jax.jit(dml.exact(lambda x: LOOPS[name](lambda x: jnp.exp(x) * np.float32(0.3), x)))(x)
    assert_same_bits(got, doubled(doubled(doubled(x))))


def test_a_loop_below_vmap():
    x = -np.abs(X)
    f = dml.exact(lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.exp(c) * np.float32(0.3), x))
    assert_same_bits(jax.vmap(f)(x), doubled(doubled(doubled(x))))


def test_half_precision_rounds_once_after_each_function():
    for dtype in (jnp.float16, jnp.bfloat16):
        x = jnp.asarray(X, dtype)
        got = jax.jit(dml.exact(lambda x: jnp.exp(x) * x))(x)
        e = np.asarray(floats.exp(np.asarray(x, np.float32))).astype(dtype)
        assert_same_bits(got, floats.mul(e.astype(np.float32), np.asarray(x, np.float32)).astype(dtype))


def test_conversions():
    every = np.arange(2**16).astype(np.uint16)
    for dtype in (np.float16, jnp.bfloat16):
        half = every.view(dtype)
        with np.errstate(all="ignore"):  # NumPy on ARM warns of signaling NaN
            wide = half.astype(np.float32)
        assert_same_bits(jax.jit(dml.exact(lambda x: x.astype(jnp.float32)))(half), floats.flushed(wide))
    bits = np.random.default_rng(0).integers(0, 2**32, 2**16, np.uint32)
    x = floats.flushed(bits.view(np.float32))
    x[:4] = 65519.996, 65520, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8  # ties
    with np.errstate(all="ignore"):
        for dtype in (np.float16, jnp.bfloat16):
            got = jax.jit(dml.exact(lambda x, dtype=dtype: x.astype(dtype).astype(jnp.float32)))(x)
            assert_same_bits(got, floats.flushed(x.astype(dtype).astype(np.float32)))
    x = np.concatenate([x, np.float32([2**31, -(2**31), 2**31 - 128, 127.9, -128.9, 128, 255.9, -0.9, np.nan, np.inf])])
    for dtype in (np.int32, np.int8, np.uint8, np.int16, np.uint32):
        got = jax.jit(dml.exact(lambda x, dtype=dtype: x.astype(dtype)))(x)
        assert_same_bits(got, floats.to_integers(x, dtype), dtype)
    with jax.enable_x64(True):
        for dtype in (np.int64, np.uint64):
            got = dml.exact(lambda x, dtype=dtype: x.astype(dtype))(x)
            assert_same_bits(got, floats.to_integers(x, dtype), dtype)
    assert_same_bits(dml.exact(lambda x: x.astype(bool))(np.float32([0, -0.0, 1e-45, 2])), np.array([0, 0, 0, 1], bool))


def test_subnormals_are_zeros_wherever_they_come_from():
    tiny = np.float32(1e-45)
    bits = np.int32(1)

    def f(x, constant, bits):
        made = lax.bitcast_convert_type(bits, jnp.float32)
        return (
            x * np.float32(2.0**100),
            constant + tiny,
            made > 0,
            jnp.where(True, tiny, x),
            lax.reduce_precision(x, 8, 23),
        )

    with jax.disable_jit():
        results = [dml.exact(f)(tiny, tiny, bits)]
    results += [jax.jit(dml.exact(f))(tiny, tiny, bits), jax.jit(lambda: dml.exact(f)(tiny, tiny, bits))()]
    for got in results:
        assert [float(x) for x in got] == [0] * 5


PARTS_OF_A_TABLE = {
    "gather": lambda table, i: table[i],
    "dynamic_slice": lambda table, i: lax.dynamic_slice(table, (i, 0), (1, 64))[0],
    "slice": lambda table, i: table[7] + 0 * lax.convert_element_type(i, jnp.float32),
}


@pytest.mark.parametrize("part", PARTS_OF_A_TABLE)
def test_a_part_of_an_array_is_flushed_alone(part):
    """A loop that reads a row of a table in each step, as language models read embeddings, does not copy the table."""
    table = np.tile(np.float32([1e-39, -1e-39, 1, -2]), (1000, 16))
    row = dml.exact(PARTS_OF_A_TABLE[part])

    def rows(table):
        return lax.fori_loop(0, 3, lambda i, found: found.at[i].set(row(table, i)), jnp.zeros((3, 64)))

    program = jax.jit(rows).lower(table).compile()
    expected = np.tile(np.float32([0, -0.0, 1, -2]), (3, 16))
    assert_same_bits(program(table), expected + np.float32(0) if part == "slice" else expected)
    assert program.memory_analysis().temp_size_in_bytes < table.nbytes // 2


def test_zeros_of_sums_are_positive():
    """XLA drops the addition of a constant zero, which IEEE 754 does not allow for -0."""
    got = jax.jit(dml.exact(lambda x: (x + np.float32(0), x - np.float32(0), x + x)))(np.float32(-0.0))
    assert [np.signbit(x) for x in map(np.asarray, got)] == [False] * 3


def test_products_at_the_edge_of_subnormal():
    """A product that would be normal only after rounding to fewer than 24 bits is a zero; with 24 bits, it is normal.

    ARM processors flush both unless guarded: `make test-arm-python` runs this test there.
    """
    x, y = np.float32(1 - 2.0**-24), np.float32(2.0**-126)
    above, below = np.nextafter(y, np.float32(1)), np.float32(1 - 2.0**-23)  # their product is y * (1 - 2**-46)
    for f in (jax.jit(dml.exact(lax.mul)), lambda x, y: jax.jit(lambda: dml.exact(lax.mul)(x, y))()):
        assert_same_bits(f(x, y), np.float32(0))
        assert_same_bits(f(np.float32(1), y), y)
        assert_same_bits(f(np.float32(-(1 + 2.0**-23)), y), -above)
        assert_same_bits(f(above, below), y)
        assert_same_bits(f(below, -above), -y)


def test_operands_that_stretch_each_other():
    """Dimensions of size 1 are stretched by the primitive, in both operands."""
    column, row = X[:, :1], X[:1]
    assert_same_bits(dml.exact(lax.mul)(column, row), floats.mul(*np.broadcast_arrays(column, row)))


def test_jaxdmls_own_operators_are_exact_already():
    def f(x):
        q = dml.element_wise_quantize_linear(x, 0.1, np.uint8(120))
        return dml.element_wise_dequantize_linear(q, 0.1, np.uint8(120)), dml.fake_quantize(x, 0.1, 3)

    for got, right in zip(jax.jit(dml.exact(f))(X), f(X), strict=True):
        assert_same_bits(got, right)
    calls = {str(eqn.params.get("name")) for eqn in equations_of(jax.make_jaxpr(dml.exact(f))(X).jaxpr)}
    assert {f"jaxdml_{name}" for name in ("element_wise_quantize_linear", "element_wise_dequantize_linear")} <= calls


def equations_of(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in inner_jaxprs(eqn.params):
            yield from equations_of(inner)


# What is refused -----------------------------------------------------------------------------------------------------


def refused(f, *arguments, **options):
    with pytest.raises(dml.ExactError) as caught:
        dml.exact(f, **options)(*arguments)
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems
    return str(caught.value)


def test_a_primitive_without_a_rule_is_named_with_its_place_and_a_remedy():
    def f(x):
        with jax.named_scope("head"):
            return lax.cond(x[0, 0] > 0, lambda x: lax.lgamma(x), lambda x: x + lax.cbrt(x), x)

    text = refused(f, X)
    first, second = sorted(text.splitlines())
    assert first.startswith("exact: no rule for cbrt of float32 in head")
    assert "test_function.py:" in first
    assert first.endswith("write jnp.sign(x) * jnp.abs(x) ** (1 / 3)")
    assert "no rule for lgamma of float32" in second


def test_the_line_of_a_call_stands_for_those_of_its_equations():
    """JAX has no lines for the equations of its own jitted functions, and jaxdml's lines help nobody."""
    cholesky, square = jnp.linalg.cholesky, X[:, :4]
    jax.make_jaxpr(cholesky)(square)  # traced earlier, elsewhere
    for text in (refused(lambda x: cholesky(x), square), refused(cholesky, square), refused(lax.cbrt, X)):
        assert "jaxdml/" not in text
        assert "()" not in text
    text = refused(lambda x: cholesky(x), square)
    assert re.search(r"no rule for cholesky of float32 \(\S*test_function\.py:\d+.*\): compute it outside", text)


def test_complex_numbers_have_no_rules():
    for line in refused(lambda x: jnp.exp(jnp.abs(jnp.fft.rfft(x))), X).splitlines():
        assert re.search(r"(fft|abs) of complex64 .*: complex numbers have no rules; compute it outside of exact", line)
    outside = jnp.abs(jnp.fft.rfft(X))
    assert_same_bits(dml.exact(jnp.exp)(outside), floats.exp(outside))


def test_float_products_are_refused_or_left_to_xla():
    def f(x, w):
        return x @ w

    assert "no rule for the float products of dot_general" in refused(f, X, X.T)
    left = dml.exact(f, products="xla")(X, X.T)
    assert np.abs(left - X @ X.T).max() < 1e-5
    small = np.full((1, 1), 1e-20, np.float32)
    for g in (
        jax.jit(dml.exact(f, products="xla")),
        lambda x, w: jax.jit(lambda: dml.exact(f, products="xla")(x, w))(),
    ):
        assert_same_bits(g(small, small), np.zeros((1, 1), np.float32))


@pytest.mark.parametrize(("narrow", "kind", "wanted"), [
    (jnp.int8, jnp.int32, "i32"), (jnp.int8, None, "i32"), (jnp.uint8, jnp.int32, "i32"), (jnp.int4, jnp.int32, "i32"),
    (jnp.int8, jnp.int64, "i64"), (jnp.int16, jnp.int32, "i16"), (jnp.bool, None, "i1"),
])  # fmt: skip
def test_products_of_bytes_are_wide_on_cuda(narrow, kind, wanted, monkeypatch):
    """XLA's kernels for int8 may return twice the sums there."""

    def multiply(x):
        return lax.dot_general(x, x, (((1,), (1,)), ((), ())), preferred_element_type=kind)

    def products(platform, function):
        program = jax.jit(function).trace(x).lower(lowering_platforms=(platform,)).as_text()
        return re.findall(r"dot_general.*: \(tensor<2x3x(\w+)>", program)

    with jax.enable_x64(kind == jnp.int64):
        x = jnp.full((2, 3), 7, narrow)
        assert products("cuda", dml.exact(multiply)) == [wanted]
        for platform in ("cpu", "tpu"):
            assert products(platform, dml.exact(multiply)) == products(platform, multiply)


@pytest.mark.parametrize(("kind", "value"), [(jnp.int32, 140_000 << 14), (jnp.int64, 140_000 << 14), (None, 0)])
def test_wide_products_have_the_type_and_the_sums_that_are_asked_for(kind, value):
    """Computed here as on CUDA: int64 does not wrap, and int8 does."""
    with jax.enable_x64(kind == jnp.int64):
        x = jnp.full((1, 140_000), -128, jnp.int8)
        dimensions = (((1,), (1,)), ((), ()))
        traced = jax.make_jaxpr(lambda x: lax.dot_general(x, x, dimensions, preferred_element_type=kind))(x)
        (eqn,) = traced.eqns
        got = jax.jit(wide_product(eqn.primitive, eqn.params))(x, x)
        assert got.dtype == eqn.outvars[0].aval.dtype
        assert int(got[0, 0]) == np.array(value).astype(got.dtype)


def test_float64_is_refused():
    with jax.enable_x64(True):
        text = refused(lambda x: x.astype(jnp.float64) + 1, X)
    assert "convert_element_type of float64" in text
    assert "convert it to float32" in text


def test_float8_is_refused():
    assert "use float32, bfloat16 or float16" in refused(lambda x: x.astype(jnp.float8_e5m2), X)


def test_arrays_in_the_byte_order_of_other_machines():
    """jax.numpy, called before with arrays of this shape, reads their bytes in the wrong order."""
    f = dml.exact(lambda tree, x: tree["w"] * x)
    expected = f({"w": X}, X)
    with pytest.raises(dml.ExactError, match=r"exact: args\[0\]\['w'\] has type >f4.*; write (.*)") as caught:
        f({"w": X.astype(">f4")}, X)
    code = str(caught.value).partition("; write ")[2]
    right = eval(code, {"args": [{"w": X.astype(">f4")}], "jnp": jnp})
    assert_same_bits(f({"w": right}, X), expected)
    with pytest.raises(dml.ExactError, match=r"exact: kwargs\['x'\] has type >f4"):
        f({"w": X}, x=X.astype(">f4"))


def test_nothing_runs_before_the_error():
    ran = []

    def f(x):
        jax.debug.callback(lambda: ran.append(1))
        return lax.cbrt(x)

    refused(f, X)
    assert not ran


def test_wrong_arguments():
    with pytest.raises(dml.ExactError, match=r"^exact: f is of type ndarray, expected a function: write exact\(f\)"):
        dml.exact(np.sin(X))
    with pytest.raises(dml.ExactError, match='products is \'exact\', expected "refuse" or "xla"'):
        dml.exact(silu, products="exact")


@pytest.mark.parametrize(("flags", "found"), [
    ("--xla_cpu_enable_fast_math", "--xla_cpu_enable_fast_math"),
    ("--xla_x=1 --xla_cpu_enable_fast_math=TRUE", "--xla_cpu_enable_fast_math=TRUE"),
    ("--xla_cpu_enable_fast_math=true --xla_cpu_enable_fast_math=false", None),
    ("--xla_cpu_enable_fast_min_max=true", None), ("", None),
    ("--xla_cpu_enable_fast_math=true --xla_allow_fast_math=false", "--xla_cpu_enable_fast_math=true"),
])  # fmt: skip
def test_fast_math_is_seen(flags, found, tmp_path, monkeypatch):
    assert fast_math_flag({"XLA_FLAGS": flags}) == found
    (tmp_path / "flags").write_text(flags)
    assert fast_math_flag({"XLA_FLAGS": str(tmp_path / "flags")}) == found
    if found:
        monkeypatch.setenv("XLA_FLAGS", flags)
        with pytest.raises(dml.ExactError, match=r"XLA_FLAGS has --xla_cpu_enable_fast_math.*remove the flag"):
            dml.exact(silu)


def test_printing_and_callbacks_stay(capsys):
    seen = []

    def f(x):
        jax.debug.print("first {}", x[0])
        jax.debug.callback(seen.append, x[1])
        return jnp.sin(x)

    assert_same_bits(jax.jit(dml.exact(f))(X), dml.exact(jnp.sin)(X))
    jax.effects_barrier()
    assert capsys.readouterr().out == f"first {X[0]}\n"
    assert_same_bits(np.asarray(seen), X[1:2])


def test_no_name_escapes_the_rules():
    @jax.jit
    def jaxdml_loss(x):
        return lax.cbrt(x)

    refused(jaxdml_loss, X)


def test_constants_are_arrays():
    assert isinstance(dml.exact(lambda x: 1.0)(X), jax.Array)


@pytest.mark.rare
def test_options_need_no_static_arguments():
    assert_same_bits(dml.exact(jax.nn.softmax)(X, axis=0), dml.exact(lambda x: jax.nn.softmax(x, 0))(X))
    assert_same_bits(dml.exact(jnp.sum)(X, 1, keepdims=True), dml.exact(lambda x: jnp.sum(x, 1, keepdims=True))(X))
    assert_same_bits(jax.grad(dml.exact(lambda x, y: x * y))(2.0, 3.0), np.float32(3))
    assert_same_bits(dml.exact(jnp.sum)(X, axis=1, dtype=jnp.float32), dml.exact(jnp.sum)(X, 1))
    assert_same_bits(dml.exact(lambda x, to: x.astype(to))(X, np.float16), X.astype(np.float16))
    lazy = type("Lazy", (), {"dtype": X.dtype, "__jax_array__": lambda self: jnp.asarray(X)})()
    assert_same_bits(dml.exact(lambda x: -jnp.asarray(x))(lazy), -X)
