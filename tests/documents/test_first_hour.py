"""A newcomer's first hour, from floats to int8, files and programs: the same bits in every way to run them."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax import export

import jaxdml as dml
from documents import first_hour as networks
from helpers.compare import assert_same_bits, assert_same_values
from jaxdml import ptq

pytestmark = pytest.mark.rare
TESTS = Path(__file__).parents[1]

READ_ARRAYS = """
import jax
import numpy as np
from documents.first_hour import cnn, float_cnn, mlp, prepared_cnn, prepared_mlp
from jaxdml import ptq

for name, network, prepare in ("mlp", mlp, prepared_mlp), ("cnn", cnn, prepared_cnn):
    with np.load(f"{name}.npz") as file:
        params = prepare(dict(file))
    np.save(f"{name}_again.npy", jax.jit(network)(params, np.load(f"{name}_x.npy")))
model = ptq.load("ptq.npz", float_cnn)
np.save("ptq_again.npy", jax.jit(model.apply)(model.params, np.load("ptq_x.npy")))
"""
READ_PROGRAMS = """
import sys
from pathlib import Path
import numpy as np
from jax import export

for name in "mlp", "cnn", "ptq":
    program, x = export.deserialize(Path(f"{name}.bin").read_bytes()), np.load(f"{name}_x.npy")
    for count in 3, len(x):
        np.save(f"{name}_{count}.npy", program.call(x[:count]))
assert "jaxdml" not in sys.modules
"""


def assert_the_same_in_every_way(network, arrays, prepare, x, expected):
    params = prepare(arrays)
    for weights in arrays, params:
        assert_same_bits(network(weights, x), expected)
        assert_same_bits(jax.jit(network)(weights, x), expected)
    assert_same_bits(jax.jit(network)(params, x[:1]), expected[:1])
    each = jax.vmap(lambda params, one: network(params, one[None])[0], (None, 0))
    assert_same_bits(jax.jit(each)(params, x), expected)
    assert_same_bits(each(params, x[:4]), expected[:4])
    with dml.use_kernels("xla"):
        assert_same_bits(jax.jit(network)(prepare(arrays), x), expected)


def decibels(logits, expected):
    """The ratio of the signal to the quantization error."""
    logits, expected = np.asarray(logits, np.float64), np.asarray(expected, np.float64)
    return 10 * np.log10(np.sum(expected**2) / np.sum((logits - expected) ** 2))


def agreement(a, b):
    return np.mean(np.argmax(a, -1) == np.argmax(b, -1))


@functools.cache
def mlp_case():
    """Float parameters, integers, inputs used for neither training nor calibration, their labels, and the logits."""
    random = np.random.default_rng(0)
    (x, labels), (others, their_labels) = networks.rings(random, 512), networks.rings(random, 512)
    params = networks.trained_mlp(random, x, labels)
    arrays = networks.quantized_mlp(params, x)
    logits = jax.jit(networks.mlp)(networks.prepared_mlp(arrays), others)
    return params, arrays, others, their_labels, np.asarray(logits)


@functools.cache
def cnn_case():
    """Float parameters, integers, inputs outside the calibration data, the logits, the model of ptq, those data."""
    random = np.random.default_rng(1)
    params = networks.cnn_params(random)
    batches, x = [networks.images(random, 32) for _ in range(4)], networks.images(random, 64)
    arrays = networks.quantized_cnn(params, batches)
    model = ptq.quantize(networks.float_cnn, params, batches, progress=False)
    logits = jax.jit(networks.cnn)(networks.prepared_cnn(arrays), x)
    return params, arrays, x, np.asarray(logits), model, np.concatenate(batches)


def test_an_mlp_by_hand():
    params, arrays, x, labels, logits = mlp_case()
    assert_the_same_in_every_way(networks.mlp, arrays, networks.prepared_mlp, x, logits)
    _, expected = map(np.asarray, networks.float_mlp(params, x))
    assert np.mean(np.argmax(expected, 1) == labels) > 0.95
    assert agreement(logits, expected) > 0.98
    assert decibels(logits, expected) > 35


def test_a_residual_cnn_by_hand():
    params, arrays, x, logits, *_ = cnn_case()
    assert_the_same_in_every_way(networks.cnn, arrays, networks.prepared_cnn, x, logits)
    expected = networks.float_cnn(params, x)
    assert agreement(logits, expected) > 0.9
    assert decibels(logits, expected) > 33


def test_a_residual_cnn_by_ptq():
    """The calibration values are exact in floats, so ptq finds the same ranges, and the same bits, on every machine."""
    params, _, x, logits, model, batches = cnn_case()
    values, _ = jax.jit(networks.float_cnn_values)(params, batches)
    with jax.enable_x64(True):
        params, batches = jax.tree.map(lambda leaf: leaf.astype(np.float64), (params, batches))
        exact, _ = jax.jit(networks.float_cnn_values)(params, batches)
    jax.tree.map(assert_same_values, values, exact)
    assert values["stem"].max() == 6  # ptq observes the range that is known by hand
    assert_same_bits(jax.jit(model.apply)(model.params, x), logits)
    assert "9 of 10 operators run on integers" in str(model)


def in_a_new_process(code, folder):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    command = [sys.executable, "-W", "error", "-c", code]
    run = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr


def save_inputs(folder):
    """Saves the networks' inputs; returns the logits by the name of the network."""
    _, _, mlp_x, _, of_mlp = mlp_case()
    _, _, cnn_x, of_cnn, *_ = cnn_case()
    for name, x in ("mlp", mlp_x), ("cnn", cnn_x), ("ptq", cnn_x):
        np.save(folder / f"{name}_x.npy", x)
    return {"mlp": of_mlp, "cnn": of_cnn, "ptq": of_cnn}


def test_a_new_process_reads_arrays_and_the_model(tmp_path):
    expected = save_inputs(tmp_path)
    np.savez(tmp_path / "mlp.npz", **mlp_case()[1])
    np.savez(tmp_path / "cnn.npz", **cnn_case()[1])
    ptq.save(tmp_path / "ptq.npz", cnn_case()[4])
    in_a_new_process(READ_ARRAYS, tmp_path)
    for name, logits in expected.items():
        assert_same_bits(np.load(tmp_path / f"{name}_again.npy"), logits)


def test_a_new_process_runs_programs_for_any_batch_without_jaxdml(tmp_path):
    """Programs hold plain or prepared weights, and no call of native kernels, for which they would need jaxdml."""
    expected = save_inputs(tmp_path)
    model = cnn_case()[4]
    functions = {
        "mlp": functools.partial(networks.mlp, mlp_case()[1]),
        "cnn": functools.partial(networks.cnn, cnn_case()[1]),
        "ptq": functools.partial(model.apply, model.params),
    }
    for name, function in functions.items():
        x = np.load(tmp_path / f"{name}_x.npy")
        shape = jax.ShapeDtypeStruct((*export.symbolic_shape("n"), *x.shape[1:]), x.dtype)
        program = export.export(jax.jit(function), platforms=["cpu"])(shape)
        (tmp_path / f"{name}.bin").write_bytes(program.serialize())
    in_a_new_process(READ_PROGRAMS, tmp_path)
    for name, logits in expected.items():
        for count in 3, len(logits):
            assert_same_bits(np.load(tmp_path / f"{name}_{count}.npy"), logits[:count])
