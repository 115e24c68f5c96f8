"""Kernels that move or look up bytes, and products by onnxruntime's formula: their bits, and where they run."""

import jax
import numpy as np
import pytest
from jax import export

import jaxdml as dml
from _arithmetic import native_bytes as cases
from _arithmetic.processes import run
from helpers.compare import assert_same_bits
from helpers.marks import rarely_on_xla
from helpers.native_calls import native_calls, needs_native
from helpers.platforms import on_x86
from jaxdml._arithmetic.pooling import greatest_of_windows
from jaxdml._quantized.onnxruntime.lookup import looked_up
from jaxdml._quantized.onnxruntime.mul import qlinear_mul

CHECKS = {"max pool": cases.check_max_pool, "tables": cases.check_tables, "products": cases.check_products}
RNG = np.random.default_rng(1)
X, TABLE = cases.random_bytes(RNG, (2, 3, 9, 9), np.uint8), cases.random_bytes(RNG, 256, np.int8)
WORDS = RNG.integers(0, 2**16, 2**16, np.uint16)
WINDOWS = {"window": (3, 3), "strides": (2, 2), "dilations": (1, 1), "padding": ((1, 1), (1, 1))}
SCALE, ZERO = np.float32(0.01), np.uint8(3)


def pooled(x):
    return greatest_of_windows(x, **WINDOWS)


def by_table(x):
    return looked_up(x, TABLE)


def multiplied(x):
    return qlinear_mul(x, SCALE, ZERO, X, SCALE, ZERO, SCALE, ZERO)


def by_table_of_words(x):
    return looked_up(x.astype(np.int16) * 200, WORDS)


def pooled_along_rows(x):
    """Options for all dimensions of x, of which only the last one is pooled."""
    ones, none = (1,) * (x.ndim - 1), ((0, 0),) * (x.ndim - 1)
    options = {"window": (*ones, 3), "strides": (*ones, 2), "dilations": (*ones, 2), "padding": (*none, (1, 2))}
    return greatest_of_windows(x, **options)


CALLS = {
    "max_pool": (pooled, ["max_pool"]),
    "max_pool, rows": (pooled_along_rows, ["max_pool"]),
    "max_pool, three outer dimensions": (lambda x: pooled(x[None]), ["max_pool"]),
    "looked_up": (by_table, ["looked_up"]),
    "looked_up, words": (by_table_of_words, ["looked_up"]),
    "products": (multiplied, ["products"]),
}


@rarely_on_xla
@pytest.mark.parametrize("name", CHECKS)
def test_bits(name):
    CHECKS[name](np.random.default_rng(0), 3)


@needs_native
@pytest.mark.rare
@pytest.mark.parametrize("name", CHECKS)
def test_many_bits(name):
    CHECKS[name](np.random.default_rng(1), 150)


@on_x86
@needs_native
@pytest.mark.rare
def test_bits_on_avx2():
    done = run("from _arithmetic import native_bytes; native_bytes.check()", JAXDML_KERNELS="avx2")
    assert done.returncode == 0, done.stderr


@needs_native
@pytest.mark.parametrize("name", CALLS)
def test_kernels_of_a_call(name):
    """A call runs one native kernel, under vmap too; with XLA's kernels and in an exported file it runs none."""
    call, kernels = CALLS[name]
    stack = np.stack([X, ~X, X // 2])
    assert native_calls(call, X) == native_calls(jax.vmap(call), stack) == kernels
    assert_same_bits(jax.vmap(call)(stack), np.stack([call(x) for x in stack]))
    with dml.use_kernels("xla"):
        assert native_calls(call, X) == []
        assert_same_bits(call(X), jax.jit(call)(X))
    file = export.export(jax.jit(call))(jax.ShapeDtypeStruct(X.shape, X.dtype))
    assert "jaxdml_cpu" not in file.mlir_module()


@needs_native
@pytest.mark.parametrize("mapped", [(0, None), (None, 0), (0, 0)])
def test_vmap_of_tables(mapped):
    stack, tables = np.stack([X, ~X]), np.stack([TABLE, TABLE[::-1]])
    x, table = (many if axis == 0 else many[0] for many, axis in zip((stack, tables), mapped, strict=True))
    got = jax.vmap(looked_up, mapped)(x, table)
    pairs = [(stack[i * (mapped[0] == 0)], tables[i * (mapped[1] == 0)]) for i in range(2)]
    assert_same_bits(got, np.stack([table[x] for x, table in pairs]))


NO_KERNEL = {
    "floats": (pooled, X.astype(np.float32)),
    "three dimensions of images": (
        lambda x: greatest_of_windows(
            x, window=(2,) * 3, strides=(1,) * 3, dilations=(1,) * 3, padding=((0, 0),) * 3
        ),
        X[None],
    ),
    "channels last": (
        lambda x: greatest_of_windows(x, **{name: (*each, each[0]) for name, each in WINDOWS.items()} | {
            "window": (3, 3, 1), "strides": (2, 2, 1), "padding": ((1, 1), (1, 1), (0, 0))
        }),
        X,
    ),
    "negative padding": (lambda x: greatest_of_windows(x, **WINDOWS | {"padding": ((1, 1), (0, -1))}), X),
    "no windows": (
        lambda x: greatest_of_windows(x, **WINDOWS | {"window": (1, 1), "strides": (1, 1), "padding": ((0, 0),) * 2}), X
    ),
    "no dimensions": (lambda x: greatest_of_windows(x[0, 0, 0, 0], window=(), strides=(), dilations=(), padding=()), X),
    "no output": (lambda x: greatest_of_windows(x, **WINDOWS | {"window": (20, 3)}), X),
    "tables of floats": (lambda x: looked_up(x, TABLE.astype(np.float32)), X),
    "products along rows": (lambda x: qlinear_mul(x, SCALE, ZERO, X[:, :1], SCALE, ZERO, SCALE, ZERO), X),
    "an outer product of a column and a row": (
        lambda x: qlinear_mul(x[0, 0, :, :1], SCALE, ZERO, X[0, 0, 0], SCALE, ZERO, SCALE, ZERO), X
    ),
    "an outer product": (
        lambda x: qlinear_mul(x[:, :, :1], SCALE, ZERO, X[:, :, :, :1], SCALE, ZERO, SCALE, ZERO), X
    ),
}  # fmt: skip


@needs_native
@pytest.mark.parametrize("name", NO_KERNEL)
def test_calls_that_run_on_xla(name):
    call, x = NO_KERNEL[name]
    assert native_calls(call, x) == []


@needs_native
def test_either_operand_of_a_product_may_be_the_smaller():
    def call(x):
        return qlinear_mul(X[:, :, :1, :1], SCALE, ZERO, x, SCALE, ZERO, SCALE, ZERO)

    assert native_calls(call, X) == ["products"]


FAR = 2**31 - 1


@needs_native
@pytest.mark.parametrize(
    "options",
    [
        {"strides": (FAR, FAR)},
        {"window": (2, 2), "dilations": (FAR, FAR), "padding": ((FAR, 0), (3, FAR))},
        {"window": (1, 3), "dilations": (1, 2**20), "padding": ((0, 0), (2**20, 2**20))},
        {"padding": ((2**18, 0), (0, 2**18)), "strides": (2**17, 2**17)},
        {"window": (2**20, 1), "padding": ((2**20, 2**20), (0, 0)), "strides": (2**20, 1)},
    ],
)
def test_far_windows(options):
    """Memory and time depend on the elements that windows contain, not on the distance between them."""
    options = WINDOWS | {"padding": ((0, 0), (0, 0))} | options
    got = greatest_of_windows(X, **options)
    for i, j in np.ndindex(got.shape[2:]):
        seen = []
        for axis, at in enumerate((i, j)):
            origin = at * options["strides"][axis] - options["padding"][axis][0]
            dilation, extent = options["dilations"][axis], options["window"][axis]
            seen.append(
                [k for k in range(9) if (k - origin) % dilation == 0 and 0 <= (k - origin) // dilation < extent]
            )
        assert_same_bits(got[:, :, i, j], np.max(X[:, :, seen[0]][..., seen[1]], (2, 3), initial=0))


@needs_native
@pytest.mark.parametrize("scale", [np.nan, np.inf, 1e30, 2.0**27, 0.0, 1e-45])
def test_products_beyond_int32(scale):
    """NaN and numbers of 2**31 and above become the least number, as x64 processors convert them."""

    def call(x):
        return qlinear_mul(x, np.float32(scale), ZERO, X, np.float32(1), ZERO, np.float32(1), ZERO)

    with dml.use_kernels("xla"):
        expected = np.asarray(call(X))
    assert_same_bits(call(X), expected)
