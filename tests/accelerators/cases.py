"""The compiled cases: every operator in each of its forms."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxdml as dml
from jaxdml._arithmetic.square_root import square_root

U8, S8, FLOAT, HALF, SCALE = jnp.uint8, jnp.int8, jnp.float32, jnp.float16, np.float32(0.02)
FINE, COARSE, ZERO, SIGNED_ZERO = np.float32(0.01), np.float32(0.5), np.uint8(121), np.int8(3)
M, K, N = 64, 128, 96


class Case(NamedTuple):
    """`make` returns a function and the shapes of its arguments."""

    operator: str
    form: str
    make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
    is_quick: bool = False  # one of the few that continuous integration compiles


def of(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def case(operator: str, form: str, *arguments: Any, is_quick: bool = False, **options: Any) -> Case:
    """A call of an operator. Shapes among the arguments are traced; all others are constants."""

    def is_traced(argument: Any) -> bool:
        return any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(argument))

    def call(*traced: Any) -> Any:
        rest = iter(traced)
        given = [next(rest) if is_traced(argument) else argument for argument in arguments]
        return getattr(dml, operator)(*given, **options)

    return Case(operator, form, lambda: (call, tuple(a for a in arguments if is_traced(a))), is_quick)


def elementwise() -> Iterator[Case]:
    x, column, row = of(FLOAT, M, N), (M, 1), (N,)
    quantize = partial(case, "element_wise_quantize_linear")
    yield quantize("constant scale", x, SCALE, ZERO, is_quick=True)
    yield quantize("traced scale and zero point", x, of(FLOAT), of(S8))
    yield quantize("one scale per row", x, of(FLOAT, *column), of(U8, *column))
    yield quantize("one scale per column, int8", x, of(FLOAT, *row), None, output_dtype=S8)
    yield quantize("float16", of(HALF, M, N), of(HALF), of(U8))
    yield quantize("int32", of(jnp.int32, M, N), SCALE, ZERO)
    yield quantize("to uint16", x, SCALE, np.uint16(9), feature_level=dml.FeatureLevel.JAXDML)
    dequantize = partial(case, "element_wise_dequantize_linear")
    yield dequantize("constant scale", of(U8, M, N), SCALE, ZERO, is_quick=True)
    yield dequantize("traced scale and zero point", of(S8, M, N), of(FLOAT), of(S8))
    yield dequantize("one scale per row", of(U8, M, N), of(FLOAT, *column), of(U8, *column))
    yield dequantize("one scale per column, no zero point", of(S8, M, N), of(FLOAT, *row), None)
    yield dequantize("to float16", of(U8, M, N), of(HALF), of(U8))
    for dtype in (jnp.uint16, jnp.int16, jnp.uint32, jnp.int32):
        yield dequantize(f"of {jnp.dtype(dtype)}", of(dtype, M, N), of(FLOAT), of(dtype))
    add = partial(case, "element_wise_quantized_linear_add")
    a, b = of(U8, M, N), of(S8, M, N)
    yield add("constant scales", a, SCALE, ZERO, a, FINE, ZERO, COARSE, ZERO, is_quick=True)
    yield add("traced scales", a, of(FLOAT), of(U8), a, of(FLOAT), of(U8), of(FLOAT), of(U8))
    yield add("uint8 and int8 to int8", a, SCALE, ZERO, b, FINE, None, COARSE, SIGNED_ZERO)
    dynamic = partial(case, "dynamic_quantize_linear")
    yield dynamic("float32", x, is_quick=True)
    yield dynamic("float16 to int8", of(HALF, M, N), output_dtype=S8)
    fake = partial(case, "fake_quantize")
    yield fake("constant scale", x, SCALE, ZERO)
    yield fake("traced scale, one per row", x, of(FLOAT, *column), of(S8, *column))
    yield Case("square root", "float32", lambda: (square_root, (x,)), is_quick=True)


def blocks() -> Iterator[Case]:
    for dtype in (jnp.int4, jnp.uint4, S8, U8):
        name, quick = str(jnp.dtype(dtype)), dtype == jnp.uint4
        scale, zero_point = of(FLOAT, M, 4), of(dtype, M, 4)
        yield case("quantize", f"{name} in blocks", of(FLOAT, M, K), scale, zero_point, is_quick=quick)
        yield case("dequantize", f"{name} in blocks", of(dtype, M, K), scale, zero_point, is_quick=quick)
    x, half = of(FLOAT, M, K), of(HALF, M, 4)
    yield case("quantize", "constant scale, no zero point", x, SCALE, None)
    yield case("quantize", "float16, one scale per row", of(HALF, M, K), of(HALF, M, 1), None)
    yield case("dequantize", "constant scale, no zero point", of(U8, M, K), SCALE, None)
    yield case("dequantize", "int4 in blocks, to float16", of(jnp.int4, M, K), half, None)


def products_by_blocks() -> Iterator[Case]:
    multiply, a = partial(case, "matrix_multiply_blocks"), of(FLOAT, M, K)
    b, scale = of(jnp.uint4, N, K), of(FLOAT, N, K // 32)
    yield multiply("uint4, int22", a, b, scale, of(jnp.uint4, N, K // 32), is_quick=True)
    yield multiply("int4, int8", a, of(jnp.int4, N, K), scale, precision="int8")
    yield multiply("one row, 70 blocks", of(FLOAT, 1, 2240), of(jnp.uint4, N, 2240), of(FLOAT, N, 70))
    yield multiply(
        "uint8, int15, bfloat16", of(jnp.bfloat16, M, K), of(U8, N, K), of(HALF, N, K // 32), precision="int15"
    )


def by_prepared(a: Any, b: Any) -> Any:
    return dml.matrix_multiply_integer(a, None, dml.prepare_matrix_multiply_b(b), None)


def products() -> Iterator[Case]:
    a, b = of(U8, M, K), of(S8, K, N)
    product = partial(case, "quantized_linear_matrix_multiply")
    yield product("constant scales", a, SCALE, ZERO, b, FINE, None, COARSE, ZERO, is_quick=True)
    traced = of(FLOAT), of(U8), of(FLOAT)
    yield product("traced scales", a, of(FLOAT), of(U8), b, of(FLOAT), of(S8), of(FLOAT), of(U8), is_quick=True)
    rows, columns = (of(FLOAT, M, 1), of(U8, M, 1)), (of(FLOAT, N), of(S8, N))
    yield product("one scale per row and per column", a, *rows, b, *columns, of(FLOAT, M, 1), of(U8, M, 1))
    few = of(S8, 3, K), of(S8, K, N)
    yield Case("matrix_multiply_integer", "three rows by prepared weights", lambda: (by_prepared, few), is_quick=True)
    yield product("uint8 by uint8", a, SCALE, ZERO, of(U8, K, N), FINE, ZERO, COARSE, ZERO)
    yield product("int8 by int8, no zero points", of(S8, M, K), SCALE, None, b, FINE, None, COARSE, None)
    yield product("batches", of(U8, 4, M, K), SCALE, ZERO, of(S8, 4, K, N), FINE, None, COARSE, ZERO)
    yield product("one row", of(U8, 1, K), SCALE, ZERO, b, FINE, SIGNED_ZERO, COARSE, ZERO)
    prepared = jax.eval_shape(dml.prepare_matrix_multiply_b, b)
    yield product("prepared b", a, *traced[:2], prepared, of(FLOAT, N), None, *traced[2:], of(U8))
    integer = partial(case, "matrix_multiply_integer")
    yield integer("zero points", a, ZERO, b, SIGNED_ZERO, is_quick=True)
    yield integer("traced zero points", a, of(U8), b, of(S8))
    yield integer("one zero point per row and per column", a, of(U8, M, 1), b, of(S8, N))
    yield integer("no zero points", of(S8, M, K), None, b, None)
    yield integer("140,000 products", of(U8, 8, 140_000), ZERO, of(S8, 140_000, 16), SIGNED_ZERO, is_quick=True)
    yield integer("140,000 products, wide", of(S8, 256, 140_000), None, of(S8, 140_000, 1024), None)
    floats = partial(case, "matrix_multiply_integer_to_float")
    yield floats("constant scales, bias", a, SCALE, ZERO, b, FINE, None, of(FLOAT, N), is_quick=True)
    yield floats("traced scales", a, *traced[:2], b, of(FLOAT), of(S8))
    yield floats("one scale per row and per column", a, *rows, b, *columns, of(FLOAT, N))
    yield floats("float16", a, of(HALF), of(U8), b, of(HALF), None, of(HALF, N))
    for dtype in (jnp.int16, jnp.uint16, jnp.int32):
        word = of(dtype, M, K)
        yield floats(f"{jnp.dtype(dtype)} by int8", word, of(FLOAT), of(dtype), b, of(FLOAT), None)
    words = of(jnp.uint16, M, K), of(jnp.uint16, K, N)
    yield floats("uint16 by uint16", words[0], of(FLOAT), of(jnp.uint16), words[1], of(FLOAT), of(jnp.uint16))


def convolutions() -> Iterator[Case]:
    x, f, same = of(U8, 2, 32, 14, 14), of(S8, 48, 32, 3, 3), {"start_padding": 1, "end_padding": 1}
    conv, integer = partial(case, "quantized_linear_convolution"), partial(case, "convolution_integer")
    bias, to, steps = of(jnp.int32, 48), (COARSE, ZERO), (of(FLOAT), of(U8))
    yield conv("constant scales, bias", x, SCALE, ZERO, f, FINE, None, bias, *to, is_quick=True, **same)
    yield conv("traced scales", x, *steps, f, of(FLOAT), of(S8), bias, *steps, **same)
    yield conv("one scale per channel", x, *steps, f, of(FLOAT, 48), of(S8, 48), bias, *steps, **same)
    yield conv("stride 2, dilation 2", x, SCALE, ZERO, f, FINE, None, None, *to, strides=2, dilations=2, **same)
    yield conv("1 x 1", x, SCALE, ZERO, of(S8, 48, 32, 1, 1), FINE, SIGNED_ZERO, None, *to)
    wide, narrow = of(U8, 1, 96, 56, 56), of(S8, 24, 96, 1, 1)
    yield conv("1 x 1, 56 x 56", wide, SCALE, ZERO, narrow, FINE, None, None, *to, is_quick=True)
    yield conv("uint8 filter", x, SCALE, ZERO, of(U8, 48, 32, 3, 3), FINE, ZERO, None, *to)
    signed = of(S8, 2, 32, 14, 14)
    yield conv("int8, no zero points", signed, SCALE, None, f, FINE, None, None, COARSE, None, **same)
    yield conv("4 groups", x, SCALE, ZERO, of(S8, 48, 8, 3, 3), FINE, None, bias, *to, group_count=4, **same)
    depthwise = of(S8, 32, 1, 3, 3)
    yield conv("depthwise", x, SCALE, ZERO, depthwise, FINE, None, None, *to, group_count=32, is_quick=True, **same)
    line = of(U8, 2, 32, 40)
    yield conv("1-D", line, SCALE, ZERO, of(S8, 48, 32, 5), FINE, None, bias, *to)
    yield integer("1-D", line, ZERO, of(S8, 48, 32, 5), SIGNED_ZERO)
    prepared = jax.eval_shape(dml.prepare_convolution_filter, f)
    yield conv("prepared filter", x, *steps, prepared, of(FLOAT, 48), None, bias, *steps, **same)
    yield integer("zero points", x, ZERO, f, SIGNED_ZERO, is_quick=True, **same)
    yield integer("traced zero points", x, of(U8), f, of(S8, 48), **same)
    yield integer("4 groups", x, ZERO, of(S8, 48, 8, 3, 3), None, group_count=4, **same)
    yield integer("144,000 products", of(S8, 1, 16_000, 4, 4), None, of(S8, 8, 16_000, 3, 3), None, is_quick=True)


def poolings() -> Iterator[Case]:
    pool, x, steps = partial(case, "quantized_linear_average_pooling"), of(U8, 2, 32, 14, 14), (of(FLOAT), of(U8))
    padded = {"window_size": 3, "start_padding": 1, "end_padding": 1}
    yield pool("3 x 3", x, SCALE, ZERO, FINE, ZERO, window_size=3, is_quick=True)
    yield pool("padding left out", x, SCALE, ZERO, FINE, ZERO, **padded)
    yield pool("padding counted, stride 2", x, SCALE, ZERO, FINE, ZERO, strides=2, include_padding=True, **padded)
    yield pool("whole images", x, SCALE, ZERO, FINE, ZERO, window_size=14)
    yield pool("traced scales", x, *steps, *steps, window_size=2, strides=2)
    channels = of(FLOAT, 32), of(S8, 32)
    yield pool("one scale per channel", of(S8, 2, 32, 14, 14), *channels, *channels, window_size=3)


FUNCTIONS = (
    "exp", "exp2", "expm1", "logistic", "tanh", "log", "log1p", "erf", "erfc", "erf_inv", "sin", "cos", "tan", "asin",
    "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "sqrt", "rsqrt",
)  # fmt: skip


def exact_floats() -> Iterator[Case]:
    """The rules of floats, one by one, and layers that use them."""
    x, half = of(FLOAT, M, N), of(HALF, M, N)
    for name in FUNCTIONS:
        yield Case("exact", name, partial(exactly, getattr(jax.lax, name), x), is_quick=name in ("tanh", "erfc", "sin"))
    for name in ["add", "sub", "mul", "div", "rem", "max", "min", "pow", "atan2", "nextafter"]:
        yield Case("exact", name, partial(exactly, getattr(jax.lax, name), x, x))
    yield Case("exact", "cumsum", partial(exactly, jnp.cumsum, x))
    yield Case("exact", "prod", partial(exactly, partial(jnp.prod, axis=1), x))
    yield Case("exact", "cumprod", partial(exactly, partial(jnp.cumprod, axis=1), x))
    rows = np.arange(M, dtype=np.int32) // 2
    others: dict[str, Callable[..., Any]] = {
        "integer_pow": lambda x: x**5,
        "polynomial": lambda x: jnp.polyval(np.float32([3, 2, 1]), x),
        "clamp": partial(jnp.clip, min=-1.0, max=1.0),
        "cummax": jax.lax.cummax,
        "argmin": partial(jnp.argmin, axis=1),
        "reduce_window_sum": lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, (3, 3), (1, 1), "SAME"),
        "reduce_window_max": lambda x: jax.lax.reduce_window(x, -np.inf, jax.lax.max, (3, 3), (1, 1), "SAME"),
        "scatter-add": lambda x: x.at[rows].add(x),
        "scatter-max": lambda x: x.at[rows].max(x),
        "sort": partial(jax.lax.sort, dimension=1),
        "top_k": lambda x: jax.lax.top_k(x, 5),
        "reduce_precision to 5 and 10 bits": lambda x: jax.lax.reduce_precision(x, 5, 10),
        "reduce_precision to 8 and 7 bits": lambda x: jax.lax.reduce_precision(x, 8, 7),
    }
    for name, function in others.items():
        yield Case("exact", name, partial(exactly, function, x))
    yield Case("exact", "float16", partial(exactly, jax.nn.silu, half))
    yield Case("exact", "softmax", partial(exactly, jax.nn.softmax, x), is_quick=True)
    yield Case("exact", "standardize", partial(exactly, jax.nn.standardize, x), is_quick=True)


def exactly(function: Callable[..., Any], *arguments: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return dml.exact(function), arguments


def of_operators() -> list[Case]:
    return [
        *exact_floats(),
        *elementwise(),
        *blocks(),
        *products_by_blocks(),
        *products(),
        *convolutions(),
        *poolings(),
    ]
