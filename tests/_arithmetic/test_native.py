"""Native kernels run where they should, and prepared weights stay usable or are rejected."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.native_calls import CALLS, RNG, A, B, F, X, convolve, multiply, native_calls, needs_native
from jaxdml import reference


@needs_native
@pytest.mark.parametrize("name", CALLS)
def test_the_switch_is_part_of_what_jit_compiles_for(name):
    """One jitted function, used with both kernels in turn."""
    function, *arguments = CALLS[name]
    traced = []

    @jax.jit
    def jitted(*arguments):
        traced.append(dml.kernels())
        return function(*arguments)

    expected = function(*arguments, module=reference)
    for which in ("native", "xla", "native", "xla"):
        with dml.use_kernels(which):
            assert_same_bits(jitted(*arguments), expected)
            assert dml.kernels().startswith(which)
    assert [line.split(":")[0] for line in traced] == ["native", "xla"]


@needs_native
@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_one_kernel(name):
    function, *arguments = CALLS[name]
    assert native_calls(function, *arguments) == [name]
    with dml.use_kernels("xla"):
        assert native_calls(lambda *arguments: function(*arguments), *arguments) == []


@needs_native
@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (1, 0)])
@pytest.mark.parametrize("name", CALLS)
def test_vmap_is_folded_into_one_call(name, axes):
    function, *arguments = CALLS[name]
    stacked = [
        np.stack([x, x // 2, x // 3], axis) if axis is not None else x for x, axis in zip(arguments, axes, strict=True)
    ]
    mapped = jax.vmap(lambda *arguments: function(*arguments), axes)
    assert native_calls(mapped, *stacked) == [name]
    one_by_one = [
        [x if axis is None else np.take(x, i, axis) for x, axis in zip(stacked, axes, strict=True)] for i in range(3)
    ]
    expected = [function(*one, module=reference) for one in one_by_one]
    assert_same_bits(jax.jit(mapped)(*stacked), np.stack(expected))


@needs_native
def test_vmap_within_vmap_over_parameters_too():
    scales = np.linspace(0.05, 0.2, 6, dtype=np.float32).reshape(2, 3)
    zero_points = RNG.integers(0, 256, (2, 3), np.uint8)
    filters = np.stack([F, F // 2, F // 3])

    def convolve(x, x_scale, x_zero_point, f, bias, module=dml):
        parameters = f, np.float32(0.1), None, bias, np.float32(50), np.uint8(5)
        return module.quantized_linear_convolution(x, x_scale, x_zero_point, *parameters)

    bias = RNG.integers(-5000, 5000, (2, 24)).astype(np.int32)
    mapped = jax.vmap(jax.vmap(convolve, (None, 0, 0, 0, None)), (None, 0, 0, None, 0))
    assert native_calls(mapped, X, scales, zero_points, filters, bias) == ["convolve"]
    expected = [
        [convolve(X, scales[i, j], zero_points[i, j], filters[j], bias[i], reference) for j in range(3)]
        for i in range(2)
    ]
    assert_same_bits(mapped(X, scales, zero_points, filters, bias), expected)


@needs_native
@pytest.mark.parametrize("name", CALLS)
def test_an_export_keeps_the_form_on_xla(name):
    function, *arguments = CALLS[name]
    exported = jax.export.export(jax.jit(function))(*arguments)
    assert "jaxdml_cpu" not in exported.mlir_module()
    assert_same_bits(exported.call(*arguments), function(*arguments, module=reference))


@needs_native
def test_an_export_of_weights_prepared_for_xla_takes_those_of_a_machine_without_kernels():
    with dml.use_kernels("xla"):
        prepared, elsewhere = dml.prepare_matrix_multiply_b(B), dml.prepare_matrix_multiply_b(~B)
    exported = jax.export.deserialize(jax.export.export(jax.jit(multiply))(A, prepared).serialize())
    assert len(jax.tree.leaves(prepared)) == 1
    assert_same_bits(exported.call(A, elsewhere), multiply(A, ~B, reference))


@needs_native
def test_scan_keeps_the_kernel():
    filters = jax.vmap(dml.prepare_convolution_filter)(np.stack([F[:16]] * 3))

    def network(x, filters):
        return jax.lax.scan(lambda x, f: (convolve(x, f), None), x, filters)[0]

    expected = X
    for _ in range(3):
        expected = convolve(expected, F[:16], reference)
    assert_same_bits(jax.jit(network)(X, filters), expected)
    assert native_calls(network, X, filters) == ["convolve"]


# Prepared weights ----------------------------------------------------------------------------------------------------


@needs_native
@pytest.mark.parametrize(("prepare", "call", "data", "weights"), [
    (dml.prepare_matrix_multiply_b, multiply, A, B), (dml.prepare_convolution_filter, convolve, X, F),
])  # fmt: skip
def test_prepared_for_one_kernel_and_used_with_the_other(prepare, call, data, weights):
    expected = call(data, weights, reference)
    with dml.use_kernels("xla"):
        for_xla = prepare(weights)
        assert not for_xla.is_packed
        assert_same_bits(call(data, prepare(weights)), expected)
    for_native = prepare(weights)
    assert_same_bits(call(data, for_xla), expected)
    with dml.use_kernels("xla"):
        assert_same_bits(call(data, for_native), expected)


@needs_native
@pytest.mark.parametrize(("prepare", "weights"), [
    (dml.prepare_matrix_multiply_b, B), (dml.prepare_convolution_filter, F),
])  # fmt: skip
def test_no_packed_array_is_pickled(prepare, weights):
    prepared = prepare(weights)
    pickled = pickle.dumps(prepared)
    assert len(pickled) < weights.size + 2000
    with dml.use_kernels("xla"):
        assert not pickle.loads(pickled).is_packed
        assert len(pickle.dumps(prepare(weights))) == len(pickled)
    assert_same_bits(pickle.loads(pickled).data, prepared.data)
    assert_same_bits(prepare(weights).data, prepared.data)  # the same bytes every time


@needs_native
@pytest.mark.parametrize(("prepared", "call", "data"), [
    (dml.prepare_matrix_multiply_b(B), multiply, A), (dml.prepare_convolution_filter(F), convolve, X),
])  # fmt: skip
def test_weights_that_other_kernels_packed_are_refused(prepared, call, data):
    """For example weights that were packed on a GPU, where the program writes no seal."""
    foreign = jax.tree.map(lambda leaf: leaf.at[:64].set(0), prepared)
    # Which of the two JAX raises depends on whether the call fails before or while JAX waits for its result.
    message = r"the prepared (b|filter) is not as these kernels packed it: .*, prepare the attribute `array` again"
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=message):
        np.asarray(call(data, foreign))
    again = (dml.prepare_matrix_multiply_b if call is multiply else dml.prepare_convolution_filter)(foreign.array)
    assert_same_bits(call(data, again), call(data, prepared))


# Threads -------------------------------------------------------------------------------------------------------------


@needs_native
def test_several_python_threads_at_once():
    prepared = dml.prepare_convolution_filter(F)
    compiled = jax.jit(convolve)
    images = [RNG.integers(0, 256, (4, 16, 40, 40), np.uint8) for _ in range(8)]
    expected = [convolve(x, F, reference) for x in images]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for got, right in zip(pool.map(lambda x: np.asarray(compiled(x, prepared)), images), expected, strict=True):
                assert_same_bits(got, right)
