"""Run by test_sharding.py in a process of its own, with eight CPU devices: bits and collectives of sharded calls."""

import re
import sys

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxdml as dml
from jaxdml import reference

RNG = np.random.default_rng(0)
A, B = RNG.integers(0, 256, (16, 64), np.uint8), RNG.integers(-128, 128, (64, 32), np.int8)
X, F = RNG.integers(0, 256, (8, 16, 9, 9), np.uint8), RNG.integers(-128, 128, (32, 16, 3, 3), np.int8)
GROUPED = RNG.integers(-128, 128, (32, 4, 3, 3), np.int8)
DEPTHWISE = RNG.integers(-128, 128, (16, 1, 3, 3), np.int8)
B_SCALE = np.linspace(0.1, 0.2, 32, dtype=np.float32)


def multiply(a, b, module=dml):
    return module.quantized_linear_matrix_multiply(a, 0.1, np.uint8(3), b, B_SCALE, None, 20.0, np.uint8(5))


def convolve(x, f, module=dml):
    groups = x.shape[1] // f.shape[1]
    return module.quantized_linear_convolution(
        x, 0.1, np.uint8(3), f, 0.1, None, None, 20.0, np.uint8(5), start_padding=1, group_count=groups
    )


# Operator, arguments, how they are sharded, the collectives that this takes.
CASES = {
    "multiply, batch or M": (multiply, (A, B), (P("x"), P()), set()),
    "multiply, N": (multiply, (A, B), (P(), P(None, "y")), set()),
    "multiply, M and N": (multiply, (A, B), (P("x"), P(None, "y")), set()),
    "multiply, K": (multiply, (A, B), (P(None, "x"), P("x")), {"all-reduce"}),
    "convolve, batch": (convolve, (X, F), (P("x"), P()), set()),
    "convolve, output channels": (convolve, (X, F), (P(), P("y")), set()),
    "convolve, batch and output channels": (convolve, (X, F), (P("x"), P("y")), set()),
    "convolve, 4 groups, batch and output channels": (convolve, (X, GROUPED), (P("x"), P("y")), set()),
    "convolve, depthwise, batch": (convolve, (X, DEPTHWISE), (P("x"), P()), set()),
}

# Which arguments are vmapped, and how they are sharded: each device does its part of the batch.
VMAPS = {
    "inputs": ((0, None), (P("y"), P())),
    "filters": ((None, 0), (P(), P("y"))),
    "filters, output channels": ((None, 0), (P(), P(None, "y"))),
    "filters, batch": ((None, 0), (P("x"), P())),
}


def collectives(hlo):
    return set(re.findall(r" (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(", hlo))


def prepared(weights):
    if weights.ndim == 2:
        return dml.prepare_matrix_multiply_b(weights)
    return dml.prepare_convolution_filter(weights, group_count=X.shape[1] // weights.shape[1])


def of_prepared(weights, spec):
    """How prepared weights are sharded where the array has this sharding."""
    if weights.ndim == 2:
        k, n = (*spec, None, None)[:2]
        return dml.PreparedMatrix(P(n, k), P(None, n), np.dtype(np.int8), "NK")
    (channels,) = (*spec, None)[:1]
    packed = prepared(weights)
    values = P(None, None, None, None, channels) if packed.layout == "HWIO" else P(None, channels)
    values = P(channels) if packed.group_count > 1 else values
    return dml.PreparedFilter(values, P(channels), packed.dtype, packed.layout)


def check(name, got, expected):
    np.testing.assert_array_equal(got, expected, err_msg=name)
    print("ok", name)


def on_mesh(kind):
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(kind,) * 2)
    with jax.set_mesh(mesh):
        for name, (operator, arguments, specs, expected_collectives) in CASES.items():
            expected = operator(*arguments, module=reference)
            sharded = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arguments, specs, strict=True)]
            program = jax.jit(operator).lower(*sharded).compile()
            check(f"{kind.name}: {name}", program(*sharded), expected)
            assert collectives(program.as_text()) == expected_collectives, (name, collectives(program.as_text()))
            weights = jax.tree.map(
                lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec)),
                prepared(arguments[1]),
                of_prepared(arguments[1], specs[1]),
            )
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
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
    def over_batch(x, f):
        return convolve(x, f)

    check("shard_map: batch", over_batch(X, F), convolve(X, F, module=reference))
    check("shard_map: batch, prepared", over_batch(X, prepared(F)), convolve(X, F, module=reference))


if __name__ == "__main__":
    assert jax.device_count() == 8, sys.argv
    for kind in (AxisType.Auto, AxisType.Explicit):
        on_mesh(kind)
        elementwise(kind)
    vmapped()
    in_shard_map()
