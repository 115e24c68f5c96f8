"""Every rule, called in every way: the bits are those of `jaxdml.reference.floats`."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxdml as dml
from _exact import battery
from _exact.battery import X, Y, assert_all_same, everything
from helpers.compare import assert_same_bits
from helpers.marks import CAN_HIDE, rarely_on_xla, rest_rarely
from helpers.native_calls import needs_native
from helpers.on_devices import run_on_eight

HERE = Path(__file__).parent
f = dml.exact(everything)


def eager():
    with jax.disable_jit():
        return f(X, Y)


def batches_of_one():
    jitted = jax.jit(f)
    parts = [jitted(X[i : i + 1], Y[i : i + 1]) for i in range(len(X))]
    return jax.tree.map(lambda *each: np.concatenate(each), *parts)


def with_x64():
    with jax.enable_x64(True):
        return jax.jit(f)(X, Y)


def exported():
    saved = jax.export.export(jax.jit(f))(X, Y).serialize()
    return jax.jit(jax.export.deserialize(saved).call)(X, Y)


def plus_one_outside():
    """XLA adds to the results, and must not fuse the addition with the operation before it."""
    return jax.jit(lambda x, y: {name: z + z.dtype.type(1) for name, z in f(x, y).items()})(X, Y)


MODES = {
    "jit": lambda: jax.jit(f)(X, Y),
    "constants": lambda: jax.jit(lambda: f(X, Y))(),
    "one constant": lambda: jax.jit(lambda x: f(x, Y))(X),
    "one by one": lambda: f(X, Y),
    "eager": eager,
    "vmap": lambda: jax.jit(jax.vmap(f))(X, Y),
    "vmap inside": lambda: jax.jit(dml.exact(jax.vmap(everything)))(X, Y),
    "batches of one": batches_of_one,
    "x64": with_x64,
    "exported": exported,
}


@pytest.mark.sampled(1)
@pytest.mark.oldest
@rarely_on_xla
@pytest.mark.parametrize("mode", rest_rarely(MODES, 2))
def test_bits_of_the_reference(mode):
    assert_all_same(MODES[mode]())


@pytest.mark.rare
@pytest.mark.oldest
def test_operations_before_and_after():
    assert_all_same(jax.jit(dml.exact(battery.surrounded))(X, Y), battery.expected_surrounded())


@pytest.mark.rare
def test_random_numbers():
    """jax.random.normal evaluates the inverse of erf."""
    draw, keys = dml.exact(lambda key: jax.random.normal(key, (64,))), jax.random.split(jax.random.key(0), 3)
    expected = np.stack([draw(key) for key in keys])
    with jax.disable_jit():
        assert_same_bits(np.stack([draw(key) for key in keys]), expected)
    assert_same_bits(jax.jit(jax.vmap(draw))(keys), expected)
    np.testing.assert_allclose(expected, [jax.random.normal(key, (64,)) for key in keys], rtol=1e-5)


@pytest.mark.rare
def test_an_operation_outside():
    got = plus_one_outside()
    with np.errstate(all="ignore"):
        # XLA flushes when it adds; none of the sums is subnormal, because 1 is added.
        wanted = {name: (z + z.dtype.type(1)).astype(z.dtype) for name, z in battery.EXPECTED.items()}
    assert_all_same(got, wanted)


HIDDEN = "AVX-512 hidden"  # from every cpuid, also that of XLA
PROCESSORS = {
    HIDDEN: {"XLA_FLAGS": ""},
    "SSE4.2": {"XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2", "JAXDML_KERNELS": "xla"},
    "AVX2": {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2", "JAXDML_KERNELS": "xla"},
    "native AVX2": {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2", "JAXDML_KERNELS": "avx2"},
    "no optimization": {"XLA_FLAGS": "--xla_backend_optimization_level=0", "JAXDML_KERNELS": "xla"},
    "little optimization": {"XLA_FLAGS": "--xla_backend_optimization_level=1", "JAXDML_KERNELS": "xla"},
}


@pytest.mark.rare
@pytest.mark.parametrize(
    "processor",
    [
        *([HIDDEN] if CAN_HIDE else []),
        "SSE4.2",
        "AVX2",
        "no optimization",
        "little optimization",
        pytest.param("native AVX2", marks=needs_native),
    ],
)
def test_other_processors(processor):
    path = os.pathsep.join([str(HERE.parents[1]), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path} | PROCESSORS[processor]
    through = ["-m", "benchmarks.without_avx512"] if processor == HIDDEN else []
    command = [sys.executable, *through, HERE / "on_this_processor.py"]
    run = subprocess.run(
        command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False, timeout=600
    )
    assert run.stdout.endswith("ok\n"), run.stderr


@pytest.mark.rare
@pytest.mark.oldest
@pytest.mark.parametrize("what", rest_rarely(("sums", "everything"), 1))
def test_eight_devices_with_the_summed_axis_sharded(what):
    assert run_on_eight(HERE / "on_eight_devices.py", what).count("ok ") == 6
