"""Joined equations: softmax, norms and the like run as one native program, with the bits of the rules."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from _exact import battery
from helpers.compare import assert_same_bits
from helpers.native_calls import A, B, native_calls, needs_native
from jaxdml._arithmetic.exact_calls import in_one_call
from jaxdml._arithmetic.native_rows import CODES, RowResult
from jaxdml._exact.row_code import RowArray, RowCode, RowOperand
from jaxdml.reference import floats

RNG = np.random.default_rng(1)
EPSILON = np.float32(1e-5)


def array(*shape):
    return (RNG.standard_normal(shape) * 3).astype(np.float32)


X, GAIN, BIAS = array(4, 6, 50), array(1, 1, 50), array(1, 1, 50)
MASK = RNG.random((4, 1, 50)) > 0.3


def norm_by_variance(x):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + EPSILON) * GAIN + BIAS


def norm_by_squares(x):
    mean = x.mean(-1, keepdims=True)
    scale = lax.rsqrt((x**2).mean(-1, keepdims=True) - mean**2 + EPSILON) * GAIN
    return (x - mean) * scale + BIAS


def norm_without_kept_dimensions(x):
    centered = x - jnp.mean(x, 2)[..., None]
    return centered * lax.rsqrt(jnp.sum(centered * centered, -1) / 50 + EPSILON)[:, :, None]


SPELLINGS = {
    "softmax": lambda x: jax.nn.softmax(x, -1),
    "softmax of masked scores": lambda x: jax.nn.softmax(jnp.where(MASK, x * 0.125, -1e9), -1),
    "softmax of some": lambda x: jax.nn.softmax(x, -1, where=MASK),
    "softmax of added masks": lambda x: jax.nn.softmax(x / 8 + (1 - MASK.astype(np.float32)) * -10000.0, -1),
    "softmax by hand": lambda x: (
        jnp.exp(x - x.max(-1)[..., None]) / jnp.exp(x - x.max(-1)[..., None]).sum(-1)[..., None]
    ),
    "log softmax": lambda x: jax.nn.log_softmax(x, -1),
    "layer norm": norm_by_variance,
    "layer norm by squares": norm_by_squares,
    "layer norm without kept dimensions": norm_without_kept_dimensions,
    "rms norm": lambda x: x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + EPSILON) * GAIN,
    "standardize": lambda x: jax.nn.standardize(x),
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu by tanh": jax.nn.gelu,
    "silu": jax.nn.silu,
    "a checkpointed call": jax.checkpoint(lambda x: jax.nn.silu(x) * 2),
    "means": lambda x: x.mean(-1),
    "extremes": lambda x: x.max(-1) - jnp.min(x, 2),
}


@pytest.mark.sampled(2)
@needs_native
@pytest.mark.parametrize("name", SPELLINGS)
def test_one_program_with_the_bits_of_the_rules(name):
    f = dml.exact(SPELLINGS[name])
    assert native_calls(f, X) == ["rows"]
    with dml.use_kernels("xla"):
        assert native_calls(f, X) == []
        wanted = jax.jit(f)(X)
    assert_same_bits(jax.jit(f)(X), wanted)


BY_XLA = {
    "erf_inv",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "atan2",
    "nextafter",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "pow",
}
ONE, TWO = ([name for name in names if name not in BY_XLA] for names in (battery.ONE, battery.TWO))


@needs_native
@pytest.mark.parametrize("size", [257, 300, 4099])
def test_functions_have_the_bits_of_the_reference(size):
    x, y = RNG.integers(0, 2**32, (2, size), np.uint32).view(np.float32)
    x[: battery.SPECIAL.size], y[5 : 5 + battery.SPECIAL.size] = battery.SPECIAL, battery.SPECIAL
    y[100:140], x[140:170] = x[100:140], np.float32(2.0**-120) * (1 + RNG.random(30))
    y[140:170] = np.float32(2.0**-6) * (2 - RNG.random(30) * 2**-20)  # products near the smallest normal number

    def f(x, y):
        one = {name: getattr(lax, name)(x) for name in ONE}
        return one | {name: getattr(lax, name)(x, y) for name in TWO}

    assert native_calls(dml.exact(f), x, y) == ["rows"] * len([*ONE, *TWO])
    got = jax.jit(dml.exact(f))(x, y)
    x, y = floats.flushed(x), floats.flushed(y)
    for name in ONE:
        assert_same_bits(got[name], getattr(floats, name)(x), name)
    for name in TWO:
        assert_same_bits(got[name], getattr(floats, battery.NAMES.get(name, name))(x, y), name)


def everything_else(x, y):
    """Functions that do not round, and functions with truth values."""
    whole = {name: getattr(lax, name)(x) for name in ("abs", "neg", "sign", "floor", "ceil", "square")}
    compared = {name: jnp.where(getattr(lax, name)(x, y), x, 1) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
    truths = (jnp.isfinite(x) & (x > y)) | ~(y < 2)
    more = {"round": jnp.round(x), "cube": x**3, "clamp": lax.clamp(-2.0, x, y), "truths": truths.astype(np.float32)}
    return whole | compared | more | {"flushed": jnp.where(x < 0, x, y)}


@pytest.mark.rare
@needs_native
@pytest.mark.parametrize("size", [257, 4099])
def test_whole_numbers_and_truth_values_have_the_bits_of_the_rules(size):
    x, y = RNG.integers(0, 2**32, (2, size), np.uint32).view(np.float32)
    x[: battery.SPECIAL.size], y[5 : 5 + battery.SPECIAL.size] = battery.SPECIAL, battery.SPECIAL
    y[60:100], x[100:200] = x[60:100], array(100)
    f = dml.exact(everything_else)
    assert native_calls(f, x, y) == ["rows"] * len(everything_else(X, X))
    with dml.use_kernels("xla"):
        wanted = jax.jit(f)(x, y)
    battery.assert_all_same(jax.jit(f)(x, y), wanted)


@pytest.mark.sampled(3)
@needs_native
@pytest.mark.parametrize(("rows", "columns"), [(200, 2), (20, 15), (17, 16), (129, 17), (3, 383), (1, 5000)])
def test_rows_of_any_length(rows, columns):
    x, gain = array(rows, columns), array(1, columns)
    for i in range(0, rows, 7):
        x[i, i % columns] = battery.SPECIAL[i % battery.SPECIAL.size]
    x[rows // 2], x[-1, : columns // 2] = -np.inf, -np.inf
    got = jax.jit(dml.exact(lambda x: (jax.nn.softmax(x, -1), battery.layer_norm(x, gain), jnp.min(x, -1), x.sum(-1))))(
        x
    )
    flushed = floats.flushed(x)
    largest, smallest = (battery.reduced(pick, flushed[None])[0] for pick in (floats.maximum, floats.minimum))
    e = floats.exp(floats.sub(flushed, largest[:, None]))
    assert_same_bits(got[0], floats.div(e, floats.reduce_sum(e)[:, None]), "softmax")
    assert_same_bits(got[1], battery.norm(flushed, gain), "layer norm")
    assert_same_bits(got[2], smallest, "smallest")
    assert_same_bits(got[3], floats.reduce_sum(flushed), "sum")


def attend(x, mask, bias, scale):
    return jax.nn.softmax(jnp.where(mask, x * scale + bias[None, None, None], -jnp.inf), -1)


@pytest.mark.rare
@needs_native
@pytest.mark.parametrize("mapped", [(0, None, None, None), (1, 0, None, 0), (2, 1, 0, None), (None, None, 0, 0)])
def test_operands_of_other_shapes_and_vmap(mapped):
    """A mask for all heads, a bias for each key, a number; each mapped or not."""
    operands = [array(3, 4, 20, 30), RNG.random((3, 1, 20, 30)) > 0.2, array(30), array()]
    stacked = [x if axis is None else np.stack([x] * 5, axis) for x, axis in zip(operands, mapped, strict=True)]
    stacked = [x + np.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.ndim)]).astype(x.dtype)
               if axis is not None and x.dtype == np.float32 else x
               for x, axis in zip(stacked, mapped, strict=True)]  # fmt: skip
    f = jax.vmap(dml.exact(attend), mapped)
    assert native_calls(f, *stacked) == ["rows"]
    with dml.use_kernels("xla"):
        wanted = jax.jit(f)(*stacked)
    assert_same_bits(jax.jit(f)(*stacked), wanted)


@needs_native
def test_a_scan_runs_its_programs_natively():
    def f(x):
        def step(carry, row):
            carry = jax.nn.softmax(carry + row, -1)
            return carry, carry.max()

        return lax.scan(step, x, jnp.stack([x] * 3))

    exact = dml.exact(f)
    assert "rows" in native_calls(exact, X)
    with dml.use_kernels("xla"):
        wanted = jax.jit(exact)(X)
    jax.tree.map(assert_same_bits, jax.jit(exact)(X), wanted)


@needs_native
def test_exports_and_meshes_get_the_common_form():
    f = dml.exact(SPELLINGS["softmax"])
    assert "jaxdml_cpu" not in jax.export.export(jax.jit(f))(X).mlir_module()
    assert native_calls(f, X) == ["rows"]


def columns_and_rows(x):
    """The sums of rows are added to columns, then to rows."""
    sums = x.sum(-1)
    return x + sums[None, :], x + sums[:, None]


UNUSUAL = {
    "sums added to columns": (columns_and_rows, array(30, 30)),
    "sums of columns": (lambda x: x - x.sum(0)[None], array(30, 30)),
    "sums of all": (lambda x: x / x.sum(), array(30, 30)),
    "a value used twice": (lambda x: (jnp.exp(x) / 2, jnp.exp(x).sum(0)), array(30, 30)),
    "a result used again": (lambda x: (lambda y: (y, jax.nn.softmax(y, -1)))(jax.nn.silu(x)), array(30, 30)),
    "rows of one": (lambda x: jax.nn.softmax(x, -1) + x.sum(-1, keepdims=True), array(900, 1)),
    "rows that are too long": (lambda x: x - x.sum(-1, keepdims=True), array(2, 2**16 + 1)),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, -1), array(30, 30)),
    "sums in all columns": (lambda x: jnp.broadcast_to(x.sum(-1, keepdims=True), x.shape), array(30, 30)),
    "sums of what is the same in all columns": (lambda x: (jnp.zeros_like(x) + x[:, :1]).sum(-1), array(30, 30)),
    "sums of a constant": (lambda x: jnp.full(x.shape, x[0, 0]).sum(-1), array(30, 30)),
    "numbers alone": (lambda x: jnp.full((300,), x[0]) * x[1], array(300)),
    "one row": (lambda x: x - x.max(), array(3000)),
    "sums of sums": (lambda x: x.sum(-1).sum(-1) * 2, array(20, 30, 40)),
    "an input as result": (lambda x: (x, x + 1), np.float32(1e-40) * array(300)),
    "a constant": (lambda x: x * jnp.asarray(np.float32(1e-40) * np.ones(300, np.float32)) + 1, array(300)),
    "an equation twice": (lambda x: jnp.exp(x) * jnp.exp(x) + jnp.exp(x), array(300)),
    "integers between": (lambda x: jnp.round(x * 3).astype(np.int32).astype(np.float32) * 0.5 + x, array(300)),
    "half precision between": (lambda x: (x.astype(jnp.bfloat16) * 2).astype(np.float32) + x, array(300)),
    "sums in another order": (
        lambda x: x * 2 + lax.reshape(x.sum(-1), (20, 20), dimensions=(1, 0))[..., None],
        array(20, 20, 40),
    ),
    "transposed": (lambda x: jnp.exp(x).T + x, array(30, 30)),
}


def many(x):
    parts = [x * np.float32(i + 1) for i in range(70)]
    total = parts[-1]
    for part in parts[::-1]:
        total = total * part
        total = total + part
    return total


UNUSUAL["many values at a time"] = many, array(300)


@pytest.mark.sampled(1)
@needs_native
@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_programs_have_the_bits_of_the_rules(name):
    function, x = UNUSUAL[name]
    f = dml.exact(function)
    with dml.use_kernels("xla"):
        wanted = jax.jit(f)(x)
    jax.tree.map(assert_same_bits, jax.jit(f)(x), wanted)


def scores(a):
    return dml.matrix_multiply_integer_to_float(a, np.float32(0.01), np.uint8(3), B, np.float32(0.1), None)


def apart(a):
    return in_one_call(lambda a: scores(a).reshape(2, 10, 20), (a,))


# A function of int8 rows, and whether a program may write its result over an operand.
OVERWRITING = {
    "a product": (lambda a: jax.nn.softmax(scores(a), -1), True),
    "the second operand": (lambda a: jax.nn.softmax(a[:, :20].astype(np.float32) + scores(a), -1), True),
    "a result": (lambda a: (lambda y: (y, jax.nn.softmax(y, -1)))(scores(a)), False),
    "read again": (lambda a: (lambda y: (jax.nn.softmax(y, -1), jnp.sort(y)))(scores(a)), False),
    "read in two ways": (lambda a: (lambda y: jax.nn.softmax(y + y[:1], -1))(scores(a)), False),
    "a reshape": (lambda a: jax.nn.softmax(scores(a).reshape(2, 10, 20), -1), True),
    "a reshape in a call": (lambda a: jax.nn.softmax(apart(a), -1), True),
    "a reshape of a result": (lambda a: (lambda y: (y, jax.nn.softmax(y.reshape(2, 10, 20), -1)))(scores(a)), False),
    "an order of axes that XLA drops": (
        lambda a: (lambda y: (y, jax.nn.softmax(lax.transpose(y[:, None], (1, 0, 2)), -1)))(scores(a)),
        False,
    ),
    "a slice that XLA drops": (
        lambda a: (lambda y: (y, jax.nn.softmax(lax.slice(y, (0, 0), (20, 20)), -1)))(scores(a)),
        False,
    ),
    "a barrier": (lambda a: jax.nn.softmax(lax.optimization_barrier(scores(a)), -1), True),
    "a barrier before a result": (
        lambda a: (lambda y: (y, jax.nn.softmax(lax.optimization_barrier(y), -1)))(scores(a)),
        False,
    ),
    "a narrow operand first": (
        lambda a: jax.nn.softmax(lax.slice(a, (0, 0), (20, 1)).astype(np.float32) * scores(a), -1),
        True,
    ),
    "one long row": (lambda a: jax.nn.silu(scores(a)), True),
    "sums": (lambda a: jnp.abs(scores(a)).sum(-1), False),
}


@needs_native
@pytest.mark.parametrize("name", OVERWRITING)
def test_programs_overwrite_operands_that_nothing_else_reads(name):
    function, is_overwriting = OVERWRITING[name]
    f, a = dml.exact(function), np.tile(A, (4, 1))
    hlo = jax.jit(f).lower(a).compile().as_text()
    assert hlo.count("output_to_operand_aliasing") == is_overwriting
    assert not re.search(r"f32\S* copy\(", hlo)
    with dml.use_kernels("xla"):
        wanted = jax.jit(f)(a)
    jax.tree.map(assert_same_bits, jax.jit(f)(a), wanted)
    many = np.stack([a, a[::-1]])
    mapped = jax.jit(jax.vmap(f))(many)
    jax.tree.map(lambda got, one: assert_same_bits(got[0], one), mapped, wanted)
    jax.tree.map(lambda got, one: assert_same_bits(got[1], one), mapped, jax.jit(f)(a[::-1]))


@needs_native
def test_only_operands_of_the_shape_of_a_mapped_result_are_overwritten():
    f = dml.exact(lambda a, x: jax.nn.softmax(scores(a) + x, -1))
    a, x = np.tile(A, (4, 1)), array(3, 20, 20)
    mapped = jax.jit(jax.vmap(f, (None, 0)))(a, x)
    for got, one in zip(mapped, x, strict=True):
        assert_same_bits(got, jax.jit(f)(a, one))


@needs_native
def test_the_scores_of_dynamic_attention_are_overwritten():
    """Matrices with scales of their own keep both batch dimensions, so that no reshape follows their product."""

    def attend(_, q, k):
        return jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k), -1)

    q, k = array(2, 3, 20, 8), array(2, 3, 20, 8)
    model = dml.ptq.quantize(attend, {}, [(q, k)], products="dynamic", floats="exact", progress=False)
    hlo = jax.jit(model.apply).lower(model.params, q, k).compile().as_text()
    assert hlo.count("output_to_operand_aliasing") == 1
    assert not re.search(r"f32\[2,3,20,20\]\S* copy\(", hlo)


@needs_native
def test_inputs_are_not_overwritten():
    for function in (lambda x: jax.nn.softmax(x, -1), lambda x: jax.nn.softmax(x.reshape(24, 50), -1)):
        assert "output_to_operand_aliasing" not in jax.jit(dml.exact(function)).lower(X).compile().as_text()


@needs_native
def test_few_elements_stay_with_xla():
    assert native_calls(dml.exact(jnp.exp), array(255)) == []
    assert native_calls(dml.exact(jnp.exp), array(256)) == ["rows"]


def test_slots_are_used_again_and_equal_instructions_kept_once():
    code = RowCode((8, 50), [RowOperand(RowArray("x", (8, 50))), RowOperand(RowArray("gain", (1, 50)))])
    value = 0
    for _ in range(100):
        value = code.add("exp", (value,))
    assert code.add("exp", (0,)) == 2
    value = code.add("mul", (value, 1))
    code.results = [RowResult(value, (8, 50), (8, 50))]
    numbers = np.reshape(code.program().numbers, (-1, 5))
    assert len(numbers) == 101
    assert set(numbers[:, 1]) == {0, 2}, "the slot of the gain, which all rows share, is not written"
    assert numbers[-1].tolist() == [CODES.index("mul"), 2, 0, 1, 0]


# The shapes of an array and of its factor, and the shape in which the kernel writes the product.
LONGER_ROWS = [
    ((2, 8, 5, 6), (1, 8, 1, 1), (2, 8, 30)),
    ((2, 8, 5, 6), (2, 8, 1, 1), (2, 8, 30)),
    ((4, 8, 10), (4, 8, 10), (320,)),
    ((4, 8, 10), (), (320,)),
    ((4, 8, 10), (1, 8, 1), (4, 8, 10)),
    ((4, 8, 10), (1, 1, 10), (4, 8, 10)),
    ((30, 1, 1), (1, 10, 1), (30, 10)),
]


@needs_native
@pytest.mark.parametrize("shapes", LONGER_ROWS, ids=str)
def test_axes_that_are_broadcast_together_make_one_row(shapes):
    of_x, of_factor, view = shapes
    x, factor = array(*of_x), array(*of_factor)
    f = jax.jit(dml.exact(lambda x, factor: jnp.exp(x) * factor))
    text = f.lower(x, factor).compile().as_text()
    assert re.findall(r"f32\[([\d,]*)\]\S* custom-call\(.*jaxdml_cpu_rows", text) == [",".join(map(str, view))]
    assert_same_bits(f(x, factor), floats.mul(floats.exp(x), factor))


@needs_native
def test_rows_that_are_reduced_keep_their_length():
    text = jax.jit(dml.exact(lambda x: x - x.sum(-1, keepdims=True))).lower(array(8, 5, 8)).compile().as_text()
    assert re.findall(r"f32\[([\d,]*)\]\S* custom-call\(.*jaxdml_cpu_rows", text) == ["8,5,8"]
