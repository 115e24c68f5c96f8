"""Run by test_sharding.py in a process of its own, with eight CPU devices: bits and collectives of sharded calls."""

import re
import sys
from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxdml as dml
from helpers.compare import assert_same_bits
from jaxdml import reference

RNG = np.random.default_rng(0)
A, B = RNG.integers(0, 256, (16, 64), np.uint8), RNG.integers(-128, 128, (64, 32), np.int8)
X, F = RNG.integers(0, 256, (8, 16, 9, 9), np.uint8), RNG.integers(-128, 128, (32, 16, 3, 3), np.int8)
GROUPED = RNG.integers(-128, 128, (32, 4, 3, 3), np.int8)
WIDE_X, WIDE = RNG.integers(0, 256, (4, 64, 9, 9), np.uint8), RNG.integers(0, 256, (64, 32, 3, 3), np.uint8)
DEPTHWISE = RNG.integers(-128, 128, (16, 1, 3, 3), np.int8)
HAS_NATIVE = dml.kernels().startswith("native")
B_SCALE = np.linspace(0.1, 0.2, 32, dtype=np.float32)


def multiply(a, b, module=dml, b_scale=B_SCALE):
    return module.quantized_linear_matrix_multiply(a, 0.1, np.uint8(3), b, b_scale, None, 20.0, np.uint8(5))


def convolve(x, f, module=dml, strides=1):
    options = {"start_padding": 1, "strides": strides, "group_count": x.shape[1] // f.shape[1]}
    zero_point = None if f.dtype == np.int8 else np.uint8(7)
    return module.quantized_linear_convolution(
        x, 0.1, np.uint8(3), f, 0.1, zero_point, None, 20.0, np.uint8(5), **options
    )


# Operator, arguments, how the arguments are sharded, and the collectives that the program needs.
CASES = {
    "multiply, batch or M": (multiply, (A, B), (P("x"), P()), set()),
    "multiply, N": (multiply, (A, B), (P(), P(None, "y")), set()),
    "multiply, M and N": (multiply, (A, B), (P("x"), P(None, "y")), set()),
    "multiply, K": (multiply, (A, B), (P(None, "x"), P("x")), {"all-reduce"}),
    "convolve, batch": (convolve, (X, F), (P("x"), P()), set()),
    "convolve, output channels": (convolve, (X, F), (P(), P("y")), set()),
    "convolve, batch and output channels": (convolve, (X, F), (P("x"), P("y")), set()),
    "convolve, 4 groups, batch and output channels": (convolve, (X, GROUPED), (P("x"), P("y")), set()),
    "convolve, 2 wide groups, batch and output channels": (convolve, (WIDE_X, WIDE), (P("y"), P("x")), set()),
    "convolve, depthwise, batch": (convolve, (X, DEPTHWISE), (P("x"), P()), set()),
}

# These cases run in every test run, also with explicit axes; `make test-all` runs all cases.
FEW = ("multiply, M and N", "multiply, K", "convolve, 4 groups, batch and output channels")

# Which arguments are vmapped, and how they are sharded: each device computes its part of the batch.
VMAPS = {
    "inputs": ((0, None), (P("y"), P())),
    "filters": ((None, 0), (P(), P("y"))),
    "filters, output channels": ((None, 0), (P(), P(None, "y"))),
    "filters, batch": ((None, 0), (P("x"), P())),
}


COLLECTIVE = r" (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("


def collectives(hlo):
    found = re.findall(COLLECTIVE, hlo)
    assert found.count("all-reduce") <= 1
    assert all("s32" in line for line in hlo.splitlines() if " all-reduce(" in line)
    return set(found)


def native_calls(hlo):
    """How many native kernels a program calls."""
    return hlo.count('custom_call_target="jaxdml_cpu_')


def prepared(x, weights):
    if weights.ndim == 2:
        return dml.prepare_matrix_multiply_b(weights)
    return dml.prepare_convolution_filter(weights, group_count=x.shape[1] // weights.shape[1])


def of_prepared(x, weights, spec):
    """The sharding of weights that are prepared for XLA's kernels, if the array has this sharding."""
    if weights.ndim == 2:
        k, n = (*spec, None, None)[:2]
        return dml.PreparedMatrix(P(n, k), np.dtype(np.int8), "NK")
    (channels,) = (*spec, None)[:1]
    with dml.use_kernels("xla"):
        for_xla = prepared(x, weights)
    data = P(None, None, None, None, channels) if for_xla.layout == "HWIO" else P(None, channels)
    data = P(channels) if for_xla.group_count > 1 else data
    return dml.PreparedFilter(data, for_xla.dtype, for_xla.layout)


def check(name, got, expected):
    assert_same_bits(got, expected, name)
    print("ok", name)


def on_mesh(kind, cases):
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind,) * 2)
    with jax.set_mesh(mesh):
        for name in cases:
            operator, arguments, specs, expected_collectives = CASES[name]
            expected = operator(*arguments, module=reference)
            sharded = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arguments, specs, strict=True)]
            program = jax.jit(operator).lower(*sharded).compile()
            check(f"{kind.name}: {name}", program(*sharded), expected)
            assert collectives(program.as_text()) == expected_collectives, (name, collectives(program.as_text()))
            assert not native_calls(program.as_text())  # XLA cannot partition them
            weights = prepared(*sharded)  # their sharding stays the same
            program = jax.jit(operator).lower(sharded[0], weights).compile()
            check(f"{kind.name}: {name}, prepared", program(sharded[0], weights), expected)
            assert collectives(program.as_text()) == expected_collectives, (name, collectives(program.as_text()))


def vmapped():
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    stacks = np.stack([X, 255 - X, X // 2, X // 3]), np.stack([F, ~F, F // 2, F // 3])
    for name, (in_axes, specs) in VMAPS.items():
        arguments = [stacks[i] if axis == 0 else (X, F)[i] for i, axis in enumerate(in_axes)]
        expected = np.stack(
            [
                convolve(*(x[i] if axis == 0 else x for x, axis in zip(arguments, in_axes, strict=True)), reference)
                for i in range(4)
            ]
        )
        sharded = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arguments, specs, strict=True)]
        program = jax.jit(jax.vmap(convolve, in_axes)).lower(*sharded).compile()
        check(f"vmap over {name}", program(*sharded), expected)
        assert not collectives(program.as_text()), (name, collectives(program.as_text()))


def spread_in_space():
    """A row, or a column, of the image on each device: XLA must not partition the convolution in this way."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    x = X[:2, :, :8, :8]
    for spec in (P(None, None, "x"), P(None, None, None, "x")):
        for strides in (1, 2):
            program = jax.jit(partial(convolve, strides=strides))
            got = program(jax.device_put(x, NamedSharding(mesh, spec)), jax.device_put(F, NamedSharding(mesh, P())))
            check(f"in space: {spec}, stride {strides}", got, convolve(x, F, reference, strides))


def elementwise(kind):
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind,) * 2)
    with jax.set_mesh(mesh):
        a = jax.device_put(A, NamedSharding(mesh, P("x", "y")))
        values = RNG.normal(0, 100, A.shape).astype(np.float32)
        v = jax.device_put(values, NamedSharding(mesh, P("x", "y")))
        for name, call, expected in [
            ("dequantize", lambda: dml.element_wise_dequantize_linear(a, 0.1, 3),
             reference.element_wise_dequantize_linear(A, 0.1, 3)),
            ("quantize", lambda: dml.element_wise_quantize_linear(v, 0.7, 3),
             reference.element_wise_quantize_linear(values, 0.7, 3)),
            ("add", lambda: dml.element_wise_quantized_linear_add(a, 0.1, 3, a, 0.2, 4, 0.5, 5),
             reference.element_wise_quantized_linear_add(A, 0.1, 3, A, 0.2, 4, 0.5, 5)),
        ]:  # fmt: skip
            got = call()
            check(f"{kind.name}: {name}", got, expected)
            assert got.sharding.spec == P("x", "y")


def in_shard_map():
    """Each device computes its part, from arrays and from prepared weights, also under vmap."""
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    for name, out_spec in {
        "multiply, M and N": P("x", "y"),
        "convolve, batch and output channels": P("x", "y"),
        "convolve, depthwise, batch": P("x"),
    }.items():
        operator, arguments, specs, _ = CASES[name]
        operator = partial(multiply, b_scale=0.1) if operator == multiply else operator  # each device has a part of N
        expected = operator(*arguments, module=reference)
        with dml.use_kernels("xla"):
            for_xla = prepared(*arguments)
        for kind, w, w_spec in [
            ("", arguments[1], specs[1]),
            (", prepared for XLA", for_xla, of_prepared(*arguments, specs[1])),
            *([(", prepared", prepared(*arguments), P())] if specs[1] == P() else []),
        ]:
            function = jax.jit(jax.shard_map(operator, mesh=mesh, in_specs=(specs[0], w_spec), out_specs=out_spec))
            program = function.lower(arguments[0], w).compile()
            check(
                f"shard_map: {name}{kind}",
                program(*jax.device_put((arguments[0], w), program.input_shardings[0])),
                expected,
            )
            assert not collectives(program.as_text())
            assert native_calls(program.as_text()) == (HAS_NATIVE and w is not for_xla)
    filters = np.stack([F, ~F, F // 2, F // 3])
    each = jax.shard_map(jax.vmap(convolve, (None, 0)), mesh=mesh, in_specs=(P("x"), P("y")), out_specs=P("y", "x"))
    check("shard_map: vmap", jax.jit(each)(X, filters), np.stack([convolve(X, f, reference) for f in filters]))


def parts_of_prepared_weights():
    """Weights that `shard_map` splits after they were prepared. Kernels pad the parts to the size of the whole."""
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    narrow, pointwise = B[:, :16], F[:16, :4, :1, :1]
    for name, operator, x, weights, out_spec in [
        ("N", partial(multiply, b_scale=0.1), A, narrow, P(None, "x")),
        ("output channels", convolve_as_it_is, X[:, :4], pointwise, P(None, "x")),
    ]:
        with dml.use_kernels("xla"):
            for_xla = prepared(x, weights)
        w_spec = of_prepared(x, weights, P(None, "x") if weights.ndim == 2 else P("x"))
        function = jax.shard_map(operator, mesh=mesh, in_specs=(P(), w_spec), out_specs=out_spec)
        check(f"part of prepared: {name}", jax.jit(function)(x, for_xla), operator(x, weights, reference))
        if HAS_NATIVE:
            packed = jax.shard_map(operator, mesh=mesh, in_specs=(P(), P("x")), out_specs=out_spec)
            with pytest.raises(dml.DescError, match="shard the array first, then prepare each part"):
                jax.jit(packed)(x, prepared(x, weights))
    stack = np.stack([B, ~B])
    function = jax.shard_map(multiply, mesh=mesh, in_specs=(P("x"), P("x")), out_specs=P("x"))
    pair = np.stack([A, A // 2])
    got = jax.jit(function)(pair, dml.prepare_matrix_multiply_b(stack))
    check("part of prepared: batch", got, multiply(pair, stack, reference, B_SCALE.reshape(1, 1, -1)))


def convolve_as_it_is(x, f, module=dml):
    return module.quantized_linear_convolution(x, 0.1, np.uint8(3), f, 0.1, None, None, 20.0, np.uint8(5))


def prepared_in_a_program_of_several_devices():
    """Weights that are packed inside the program can be used on each device."""
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    mapped = jax.shard_map(multiply, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
    got = jax.jit(lambda a, b: mapped(a, dml.prepare_matrix_multiply_b(b)))(A, B)
    check("prepared in jit", got, multiply(A, B, reference))
    with jax.set_mesh(mesh):
        got = jax.jit(mapped)(A, dml.prepare_matrix_multiply_b(B))
    check("prepared under a mesh", got, multiply(A, B, reference))


def on_arrays_of_explicit_axes():
    """No mesh is set: the arrays' shardings have it."""
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    a, b = jax.device_put(A, NamedSharding(mesh, P("x"))), jax.device_put(B, NamedSharding(mesh, P()))
    got = jax.jit(multiply)(a, b)
    check("explicit axes of arrays", got, multiply(A, B, reference))
    assert got.sharding.spec[0] == "x"


def long_sums_on_explicit_axes():
    """Accelerators split such sums. JAX traces their form on a CPU, too, and cannot slice a sharded axis."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
    for depth in (2**11, 2**18):
        a, b = np.full((2, depth), -128, np.int8), np.full((depth, 3), -128, np.int8)
        on_mesh = (jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in ((a, P(None, "x")), (b, P("x"))))
        got = jax.jit(lambda a, b: dml.matrix_multiply_integer(a, None, b, None))(*on_mesh)
        check(f"{depth} terms on explicit axes", got, (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32))


if __name__ == "__main__":
    assert jax.device_count() == 8, sys.argv
    if sys.argv[1:] == ["few"]:
        on_mesh(AxisType.Auto, FEW)
        elementwise(AxisType.Auto)
        long_sums_on_explicit_axes()
        sys.exit()
    if sys.argv[1:] == ["explicit"]:
        on_mesh(AxisType.Explicit, CASES)
        sys.exit()
    for kind, cases in ((AxisType.Auto, CASES), (AxisType.Explicit, FEW)):
        on_mesh(kind, cases)
        elementwise(kind)
    vmapped()
    spread_in_space()
    in_shard_map()
    parts_of_prepared_weights()
    prepared_in_a_program_of_several_devices()
    on_arrays_of_explicit_axes()
    long_sums_on_explicit_axes()
