"""python tests/commands/campaign.py: random calls in random modes, each output compared with NumPy's.

The calls are those of the public operators, and of kernels that `jaxdml.onnx`, `ptq` and `exact` use: attention, chains
of products, LSTM, programs on rows, max pooling, tables. A call's operator, shapes, types, scales and zero points are
random, and so is the way it runs: eagerly, in a jit, under vmap, with constants, with prepared weights, on native or on
XLA's kernels. The seed and a call's number determine a call. The first difference ends the campaign. Otherwise,
`--outputs` or `--seconds` limits it.
"""

import argparse
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import jaxdml as dml
from _operators import integer_and_block_cases as others
from commands import campaign_programs as programs
from helpers import block_cases
from helpers.cases import BYTES, Case, convolution_of, data, matrix_multiply_of, scale, types, zero_point
from helpers.modes import UNOPTIMISED, as_jax, assert_same, stacked, variants

MOST_PRODUCTS = 1 << 26  # multiplications of a call, which NumPy repeats
WEIGHTS = {  # the places of an operator's weights among its arguments
    "quantized_linear_matrix_multiply": (3,),
    "quantized_linear_convolution": (3,),
    "matrix_multiply_integer_to_float": (3,),
    "matrix_multiply_integer": (2,),
    "convolution_integer": (2,),
    "matrix_multiply_blocks": (1,),
    "perceptron": (3, 8),
    "dynamic_quantize_lstm": (1, 2),
}
PREPARED = ("int8", "uint8", "int4", "uint4")  # types of weights that can be prepared

# Cases ---------------------------------------------------------------------------------------------------------------


def size(rng: Any, most: int) -> int:
    """A size from 1 to `most`, log-uniform; often a power of two, or next to one."""
    value = int(np.exp(rng.uniform(0, np.log(most + 1))))
    if rng.random() < 0.3:
        value = (1 << value.bit_length()) + int(rng.integers(-1, 2))
    return max(1, min(value, most))


def product(rng: Any) -> Case:
    while True:
        m, k, n = size(rng, 1000), size(rng, 2000), size(rng, 1500)
        batch = tuple(int(extent) for extent in rng.integers(1, 4, rng.choice([0, 0, 1, 2])))
        if np.prod(batch, dtype=int) * m * k * n < MOST_PRODUCTS:
            return matrix_multiply_of(rng, types(rng), batch, [m, k, n])


def integer_product(rng: Any) -> Case:
    a, _, a_zero_point, b, _, b_zero_point, _, _ = product(rng).arguments
    return Case("matrix_multiply_integer", (a, a_zero_point, b, b_zero_point), {})


def product_by_blocks(rng: Any) -> Any:
    while True:
        m, k, n = size(rng, 600), size(rng, 3000), size(rng, 1500)
        if m * k * n < MOST_PRODUCTS // 4:  # of which NumPy computes up to three planes
            break
    case = block_cases.any_case(rng, m, n, k)
    a, *others = case.arguments
    leading = [(m,), (1, m), (m, 1, 1), () if m == 1 else (m,)][rng.integers(4)]
    return case._replace(arguments=(a.reshape(*leading, k), *others))


def convolution(rng: Any) -> Case:
    while True:
        spatial, kind = int(rng.choice([1, 2, 2])), rng.random()
        groups, per_group = (size(rng, 200), 1) if kind < 0.3 else (1, size(rng, 200))
        if kind > 0.85:
            groups, per_group = int(rng.integers(2, 12)), size(rng, 30)
        outputs = groups * (int(rng.integers(1, 3)) if kind < 0.3 else size(rng, 200))
        kernel = rng.choice([1, 1, 3, 3, 3, 5, 7], spatial) if rng.random() < 0.9 else rng.integers(1, 30, spatial)
        strides = rng.choice([1, 1, 1, 2, 2, 3], spatial)
        dilations = rng.choice([1, 1, 1, 1, 2, 5], spatial)
        start, end = (np.minimum(rng.integers(0, 4, spatial), kernel) for _ in range(2))
        most = 60 if spatial == 2 else 3000
        extent = np.maximum(1 + (kernel - 1) * dilations - start - end, 1) + [size(rng, most) for _ in range(spatial)]
        depth = per_group * int(np.prod(kernel))
        pixels = int(np.prod((extent + start + end) / strides + 1))
        if 3 * pixels * outputs * depth < MOST_PRODUCTS and 3 * pixels * groups * depth < MOST_PRODUCTS // 4:
            break
    channel = [(1, outputs) + (1,) * spatial, (outputs,)][rng.integers(2)]
    options = {"strides": strides, "dilations": dilations, "start_padding": start, "end_padding": end}
    shape = (outputs, per_group, *map(int, kernel))
    return convolution_of(rng, types(rng), extent, shape, channel, options | {"group_count": groups})


def integer_convolution(rng: Any) -> Case:
    case = convolution(rng)
    x, _, x_zero_point, f, _, f_zero_point, *_ = case.arguments
    options = {name: value for name, value in case.options.items() if name != "output_dtype"}
    return Case("convolution_integer", (x, x_zero_point, f, f_zero_point), options)


def shape(rng: Any) -> tuple[int, ...]:
    whole = size(rng, 300_000)
    first = size(rng, 100)
    return (first, max(1, whole // first)) if rng.random() < 0.5 else (whole,)


def add(rng: Any) -> Case:
    sizes, (a, b, output) = shape(rng), types(rng)
    arguments: list[Any] = []
    for dtype in (a, b):
        arguments += [data(rng, sizes, dtype), scale(rng, ()), zero_point(rng, dtype, ())]
    arguments += [scale(rng, (), 0.08), zero_point(rng, output, ())]
    return Case("element_wise_quantized_linear_add", tuple(arguments), {"output_dtype": output})


def quantize(rng: Any) -> Case:
    dtype, floats = BYTES[rng.integers(2)], [np.float32, np.float16][int(rng.random() < 0.2)]
    x = others.numbers(rng, shape(rng), floats)
    step = np.asarray(scale(rng, ()) * 10 ** rng.uniform(-3, 3), floats)
    return Case("element_wise_quantize_linear", (x, step, zero_point(rng, dtype, ())), {"output_dtype": dtype})


def dequantize(rng: Any) -> Case:
    dtype = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32][rng.integers(6)]
    sizes = shape(rng)
    per_row = (sizes[0],) + (1,) * (len(sizes) - 1)
    parameters = scale(rng, per_row), zero_point(rng, dtype, per_row)
    return Case("element_wise_dequantize_linear", (data(rng, sizes, dtype), *parameters), {})


def dynamic(rng: Any) -> Case:
    x = others.numbers(rng, shape(rng), np.float32)
    return Case("dynamic_quantize_linear", (x,), {"output_dtype": BYTES[rng.integers(2)]})


MAKERS: tuple[Callable[[Any], Any], ...] = (
    product, product, product, product_by_blocks, product_by_blocks, convolution, convolution, convolution,
    integer_product, integer_convolution,
    add, quantize, dequantize, dynamic,
    others.to_float, others.pooling, others.quantize, others.dequantize, *programs.MAKERS,
)  # fmt: skip

# Modes ---------------------------------------------------------------------------------------------------------------


def eager(case: Case, options: Any) -> Iterator[tuple[Case, Any]]:
    yield case, case.call(*case.arguments)


def jitted(case: Case, options: Any) -> Iterator[tuple[Case, Any]]:
    program = jax.jit(case.call, compiler_options=options)
    for arguments in variants(case, 2):
        yield case._replace(arguments=arguments), program(*as_jax(arguments))


def closed_over(case: Case, options: Any) -> Iterator[tuple[Case, Any]]:
    program = jax.jit(lambda first: case.call(first, *case.arguments[1:]), compiler_options=options)
    yield case, program(jax.device_put(case.arguments[0]))


def vmapped(case: Case, options: Any) -> Iterator[tuple[Case, Any]]:
    yield from _under_vmap(case, case.call, options)


def prepared(case: Case, options: Any) -> Iterator[tuple[Case, Any]]:
    program = jax.jit(case.call, compiler_options=options)
    for arguments in variants(case, 2):
        yield case._replace(arguments=arguments), program(*with_prepared(case, as_jax(arguments)))


def prepared_inside(case: Case, options: Any) -> Iterator[tuple[Case, Any]]:
    yield from _under_vmap(case, lambda *all: case.call(*with_prepared(case, all)), options)


def _under_vmap(case: Case, call: Any, options: Any) -> Iterator[tuple[Case, Any]]:
    lists = variants(case, 2)
    got = jax.jit(jax.vmap(call), compiler_options=options)(*as_jax(stacked(lists)))
    for place, arguments in enumerate(lists):
        one = jax.tree.map(lambda x, place=place: x[place], got)
        yield case._replace(arguments=arguments), tuple(one) if isinstance(one, tuple) else one


def with_prepared(case: Case, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with prepared weights."""
    if case.operator == "matrix_multiply_blocks":
        a, b, b_scale, b_zero_point, bias = arguments
        return a, dml.prepare_matrix_multiply_blocks(b, b_scale, b_zero_point), None, None, bias
    prepare = dml.prepare_matrix_multiply_b
    if "convolution" in case.operator:
        prepare = partial(dml.prepare_convolution_filter, group_count=case.options["group_count"])
    at = WEIGHTS[case.operator]
    return tuple(prepare(each) if place in at else each for place, each in enumerate(arguments))


def modes(case: Case) -> list[Any]:
    """The modes in which a case can run."""
    at = WEIGHTS.get(case.operator, ())
    can_prepare = bool(at) and all(case.arguments[place].dtype.name in PREPARED for place in at)
    return [eager, jitted, closed_over, vmapped] + [prepared, prepared, prepared_inside] * can_prepare


# The campaign --------------------------------------------------------------------------------------------------------


def run(seed: int, number: int, makers: Sequence[Callable[[Any], Case]]) -> tuple[str, str, int]:
    """Makes a call and compares it; returns which kernels computed it, its operator, and the number of outputs."""
    rng = np.random.default_rng([seed, number])
    case = makers[rng.integers(len(makers))](rng)
    mode = (choice := modes(case))[rng.integers(len(choice))]
    on_xla = rng.random() < 0.15
    options = UNOPTIMISED if rng.random() < 0.5 else None
    shapes = [getattr(x, "shape", None) for x in case.arguments]
    kinds = [getattr(getattr(x, "dtype", None), "name", None) for x in case.arguments]
    kernels = "xla" if on_xla else dml.kernels().split(":")[0]
    what = f"call {number} of seed {seed}: {case.operator} {mode.__name__} on {kernels}"
    what += f", {shapes} {kinds} {case.options}"
    outputs = 0
    try:
        with dml.use_kernels("xla") if on_xla else contextlib.nullcontext():
            for own, got in mode(case, options):
                assert_same(own, got, own.expected)
                outputs += sum(leaf.size for leaf in jax.tree.leaves(got))
    except BaseException:
        print(what, flush=True)
        raise
    return kernels, case.operator, outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=None)
    parser.add_argument("--outputs", type=float, default=None)
    parser.add_argument("--seed", type=int, default=None, help="of an earlier campaign; else a new one")
    parser.add_argument("--first", type=int, default=0, help="the number of the first call")
    parser.add_argument(
        "--only", choices=sorted({maker.__name__ for maker in MAKERS}), help="the cases of one function"
    )
    arguments = parser.parse_args()
    makers = [maker for maker in MAKERS if arguments.only in (None, maker.__name__)]
    seed = arguments.seed if arguments.seed is not None else int(np.random.default_rng().integers(1 << 31))
    print(f"seed {seed}, {dml.kernels()}, jax {jax.__version__}, numpy {np.__version__}", flush=True)
    seconds = arguments.seconds if arguments.seconds is not None or arguments.outputs is not None else 60
    compared: Counter[str] = Counter()
    of_operators: Counter[str] = Counter()
    number, start = arguments.first, time.monotonic()
    while (seconds is None or time.monotonic() - start < seconds) and (
        arguments.outputs is None or compared.total() < arguments.outputs
    ):
        kernels, operator, outputs = run(seed, number, makers)
        compared[kernels] += outputs
        of_operators[operator] += outputs
        number += 1
        if number % 100 == 0:
            jax.clear_caches()  # each program runs once
            print(f"{number} calls, {compared.total():,} outputs", flush=True)
    calls = f"{number - arguments.first} calls, {time.monotonic() - start:.0f} s"
    parts = ", ".join(f"{count:,} on {name}" for name, count in compared.items())
    print("\n".join(f"{count:12,} {operator}" for operator, count in of_operators.most_common()))
    print(f"seed {seed}: {calls}, {compared.total():,} outputs ({parts}), none of them differs")


if __name__ == "__main__":
    main()
