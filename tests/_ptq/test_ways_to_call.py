"""Quantized models under JAX's transforms, from files, and in each framework: the same bits."""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxdml as dml
from _ptq.quantized import FRAMEWORKS, INTEGERS, batches_for, decibels, network, quantized
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from helpers.native_calls import needs_native
from helpers.on_devices import run_on_eight
from helpers.second_call import check_second_call_compiles_nothing
from jaxdml.ptq import MinMax

pytestmark = pytest.mark.oldest

HERE = Path(__file__).parent
of_each = pytest.mark.parametrize("name", rest_rarely(("plain", *(name for name in INTEGERS if name != "plain")), 1))


@functools.cache
def inputs(name):
    return network(name).make_inputs(8, seed=7)


@functools.cache
def expected(name):
    """The result of jit for the whole batch."""
    model = quantized(name)
    return np.asarray(jax.jit(model.apply)(model.params, *inputs(name)))


def check(received, name):
    assert_same_bits(received, expected(name))


@pytest.mark.parametrize("name", rest_rarely(("plain", *(name for name in INTEGERS if name != "plain")), 1))
def test_all_operators_run_on_integers(name):
    """Except for the first, which quantizes the input."""
    model = quantized(name)
    first, *rest = model._fused.nodes
    assert (first.operator.name, first.on) == ("quantize", "floats")
    assert {node.on for node in rest} == {"integers"}
    assert f" convolutions and products, {len(rest)} of {len(rest) + 1} operators run on integers\n" in str(model)


@of_each
def test_eager(name):
    model = quantized(name)
    assert np.unique(expected(name)).size > 10
    check(model.apply(model.params, *inputs(name)), name)


@of_each
def test_vmap_over_inputs(name):
    model = quantized(name)

    def of_one(image):
        return model.apply(model.params, image[None])[0]

    check(jax.jit(jax.vmap(of_one))(*inputs(name)), name)
    check(jax.vmap(of_one)(*inputs(name)), name)


@pytest.mark.rare
@pytest.mark.parametrize("name", ["plain", "digits"])
def test_without_jit_operator_by_operator(name):
    model = quantized(name)
    with jax.disable_jit():
        check(model.apply(model.params, *inputs(name)), name)


@pytest.mark.rare
@of_each
def test_64_bit_types_change_nothing(name):
    """The model is made with them and without, and called with them and without."""
    apply, params, make_inputs = network(name)
    with jax.enable_x64(True):
        wide = dml.ptq.quantize(apply, params, batches_for(make_inputs), progress=False)
        for model in (wide, quantized(name)):
            check(jax.jit(model.apply)(model.params, *inputs(name)), name)
    check(jax.jit(wide.apply)(wide.params, *inputs(name)), name)


@needs_native
@pytest.mark.rare
@pytest.mark.parametrize("name", INTEGERS)
def test_kernels_give_the_same_bits(name):
    """Params that are prepared for native kernels and for XLA's, on each of the two."""
    for prepared_for in ("native", "xla"):
        model = quantized(name, kernels=prepared_for)
        for kernels in ("native", "xla"):
            with dml.use_kernels(kernels):
                check(jax.jit(lambda *given, model=model: model.apply(*given))(model.params, *inputs(name)), name)
            jax.clear_caches()


@of_each
def test_export_of_any_batch_for_three_platforms(name):
    """Kernels are XLA's while the weights are prepared and the program is written."""
    model, (x,) = quantized(name, kernels="xla"), inputs(name)
    with dml.use_kernels("xla"):
        (batch,) = export.symbolic_shape("batch")
        shape = jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype)
        exported = export.export(jax.jit(model.apply), platforms=("cpu", "cuda", "tpu"))(model.params, shape)
    read = export.deserialize(exported.serialize())
    check(read.call(model.params, x), name)
    assert_same_bits(read.call(model.params, x[:3]), expected(name)[:3])
    assert exported.out_avals[0].shape == (batch, 10 if name != "ResNet-18" else 1000)


@of_each
def test_saved_and_loaded(name, tmp_path):
    apply, params, _ = network(name)
    dml.ptq.save(tmp_path / "model.npz", quantized(name))
    model = dml.ptq.load(tmp_path / "model.npz", apply, params)
    check(model.apply(model.params, *inputs(name)), name)
    assert str(model) == str(quantized(name))
    assert model.fingerprint == quantized(name).fingerprint


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OnAGrid(MinMax):
    """Rounds ends of ranges to 1/256: frameworks order float sums differently, so their last bits may differ."""

    def range(self, dtype):
        low, high = super().range(dtype)
        return np.round(low * 256) / 256, np.round(high * 256) / 256


@pytest.mark.rare
def test_frameworks_give_the_same_bits():
    results = {}
    for name in FRAMEWORKS:
        assert_same_bits(inputs(name), inputs("plain"))
        model = quantized(name, observer=OnAGrid())
        results[name] = np.asarray(jax.jit(model.apply)(model.params, *inputs(name)))
    assert np.unique(results["plain"]).size > 10
    for name in FRAMEWORKS:
        assert_same_bits(results[name], results["plain"])


def test_the_bits_are_those_of_a_good_approximation():
    apply, params, _ = network("plain")
    assert decibels(expected("plain"), apply(params, *inputs("plain"))) > 25


def test_second_call_neither_traces_nor_compiles(caplog):
    model, x = quantized("plain"), np.asarray(*inputs("plain"))
    check_second_call_compiles_nothing(model, x, caplog)


@pytest.mark.rare
def test_floats_beside_numbers_in_shard_map():
    """Numbers and arrays of the function do not vary over the mesh, but the values beside them do."""
    weights = np.random.default_rng(0).standard_normal((3, 8, 8)).astype(np.float32)
    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)

    def apply(params, x):
        x, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), h), x, params)
        return jnp.where(jnp.arange(8) < 5, x @ params[0] * 0.5, 0.25)

    model = dml.ptq.quantize(apply, weights, [x], floats="exact", progress=False)
    mesh = jax.make_mesh((1,), ("batch",), axis_types=(AxisType.Auto,))
    mapped = jax.shard_map(model.apply, mesh=mesh, in_specs=(P(), P("batch")), out_specs=P("batch"))
    assert_same_bits(jax.jit(mapped)(model.params, x), model.apply(model.params, x))


ROW = np.random.default_rng(0).standard_normal(6).astype(np.float32)
DERIVATIVES = {  # a function, the kind of products, and where the derivatives of its results are not 0
    "integers": (lambda w, x: x @ w, "static", np.zeros((6, 6), bool)),
    "a residual connection": (lambda w, x: x @ w + x, "static", np.eye(6, dtype=bool)),
    "scales of rows": (lambda w, x: x @ w, "dynamic", np.tile(np.isin(ROW, (ROW.min(), ROW.max())), (6, 1))),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_only_floats_have_derivatives(name):
    apply, products, is_any = DERIVATIVES[name]
    w = np.random.default_rng(1).standard_normal((6, 6)).astype(np.float32)
    model = dml.ptq.quantize(apply, w, [ROW[None]], products=products, progress=False)
    derivatives = jax.jit(jax.jacobian(lambda row: model.apply(model.params, row[None])[0]))(ROW)
    assert_same_bits(np.asarray(derivatives) != 0, is_any)
    if products == "static":
        assert_same_bits(derivatives, is_any.astype(np.float32))


@pytest.mark.rare
def test_eight_devices(tmp_path):
    """In a process of its own: a batch that is sharded, and parts of it in shard_map."""
    for name in INTEGERS:
        dml.ptq.save(tmp_path / f"{name}.npz", quantized(name))
        np.savez(tmp_path / f"{name}.data.npz", x=inputs(name)[0], y=expected(name))
    assert run_on_eight(HERE / "ptq_on_eight_devices.py", tmp_path, *INTEGERS).count("ok") == 5 * len(INTEGERS)
