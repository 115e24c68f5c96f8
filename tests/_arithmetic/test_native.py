"""Native kernels: that they run where they should, what they are exact on, what happens where they cannot run."""

import os
import pickle
import re
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from cases import BYTES, Case, data, scale, zero_point
from jaxdml import reference
from jaxdml._arithmetic import kernel_library, native

HERE = Path(__file__).parent
needs_native = pytest.mark.skipif(
    not dml.kernels().startswith("native"), reason=f"there are no native kernels: {dml.kernels()}"
)
RNG = np.random.default_rng(0)
A, B = RNG.integers(0, 256, (5, 64), np.uint8), RNG.integers(-128, 128, (64, 20), np.int8)
X, F = RNG.integers(0, 256, (2, 16, 9, 9), np.uint8), RNG.integers(-128, 128, (24, 16, 3, 3), np.int8)


def multiply(a, b, module=dml):
    return module.quantized_linear_matrix_multiply(
        a, np.float32(0.1), np.uint8(3), b, np.float32(0.1), None, np.float32(20), np.uint8(5)
    )


def convolve(x, f, module=dml, **options):
    parameters = (np.float32(0.1), np.uint8(3), f, np.float32(0.1), None, None, np.float32(50), np.uint8(5))
    return module.quantized_linear_convolution(x, *parameters, **{"start_padding": 1, "end_padding": 1} | options)


def add(a, b, module=dml):
    parameters = np.float32(0.1), np.uint8(3)
    return module.element_wise_quantized_linear_add(a, *parameters, b, *parameters, *parameters)


CALLS = {"matmul": (multiply, A, B), "convolve": (convolve, X, F), "add": (add, A, A[::-1].copy())}


def native_calls(function, *arguments):
    """The native kernels that a compiled function calls."""
    hlo = jax.jit(function).lower(*arguments).compile().as_text()
    return re.findall(r'custom_call_target="jaxdml_cpu_(\w+)"', hlo)


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
            np.testing.assert_array_equal(jitted(*arguments), expected)
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
    np.testing.assert_array_equal(jax.jit(mapped)(*stacked), np.stack(expected))


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
    np.testing.assert_array_equal(mapped(X, scales, zero_points, filters, bias), expected)


@needs_native
@pytest.mark.parametrize("name", CALLS)
def test_an_export_keeps_the_form_on_xla(name):
    function, *arguments = CALLS[name]
    exported = jax.export.export(jax.jit(function))(*arguments)
    assert "jaxdml_cpu" not in exported.mlir_module()
    np.testing.assert_array_equal(exported.call(*arguments), function(*arguments, module=reference))


@needs_native
def test_scan_keeps_the_kernel():
    filters = jax.vmap(dml.prepare_convolution_filter)(np.stack([F[:16]] * 3))

    def network(x, filters):
        return jax.lax.scan(lambda x, f: (convolve(x, f), None), x, filters)[0]

    expected = X
    for _ in range(3):
        expected = convolve(expected, F[:16], reference)
    np.testing.assert_array_equal(jax.jit(network)(X, filters), expected)
    assert native_calls(network, X, filters) == ["convolve"]


# Winograd ------------------------------------------------------------------------------------------------------------


def winograd_flag(packed):
    return int(np.asarray(packed)[64:68].view(np.int32)[0])


def filter_of_sum(total, channels, sign):
    """Weights of outputs whose magnitudes add up to a number, of one sign; int8."""
    f = np.zeros((8, channels * 9), np.int64)
    whole, rest = divmod(total, 127)
    f[:, :whole] = 127
    f[:, whole] = rest
    return (sign * f).reshape(8, channels, 3, 3).astype(np.int8)


@needs_native
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("beyond", [False, True])
def test_winograd_is_exact_up_to_its_bound_and_not_used_beyond(beyond, sign):
    """128 * sum |w| < 2**25; inputs at both ends of their range and zero points make sums as large as they get."""
    channels, total = 240, 2**18 - 1 + beyond
    f = filter_of_sum(total, channels, sign)
    packed = dml.prepare_convolution_filter(f)
    assert winograd_flag(packed.packed) == (not beyond)
    rng = np.random.default_rng(total)
    for x in (np.zeros((1, channels, 17, 17), np.uint8), np.full((1, channels, 17, 17), 255, np.uint8),
              rng.choice([0, 255], (1, channels, 17, 17)).astype(np.uint8)):  # fmt: skip
        for x_zero_point in (0, 255):

            def call(f, module, x=x, x_zero_point=np.uint8(x_zero_point)):
                parameters = np.float32(1), None, None, np.float32(2.0**18), np.int8(0)
                options = {"start_padding": 1, "end_padding": 1}
                return module.quantized_linear_convolution(x, np.float32(1), x_zero_point, f, *parameters, **options)

            np.testing.assert_array_equal(call(packed, dml), call(f, reference))


@needs_native
def test_winograd_computes_where_it_is_faster():
    """What packs it is its shape: 3 x 3, at least 8 channels and 6 outputs of a group."""
    sizes = {
        shape: dml.prepare_convolution_filter(np.ones(shape, np.int8)).packed.size
        for shape in ((16, 8, 3, 3), (16, 7, 3, 3), (5, 8, 3, 3), (16, 8, 3, 2))
    }
    # A transformed filter of F(4, 3) takes 8 bytes a weight, the rows 1 or 2, mark, flag and sums 192 in all.
    of_rows = {shape: size - 192 for shape, size in sizes.items()}
    cell = 2 if "avx2" in dml.kernels() else 1
    assert of_rows[16, 8, 3, 3] == 16 * 8 * 9 * (cell + 8)
    assert of_rows[16, 7, 3, 3] <= 16 * 64 * cell
    assert of_rows[5, 8, 3, 3] <= 5 * 72 * cell + 64
    assert of_rows[16, 8, 3, 2] == 16 * 48 * cell


def wide_convolution(rng, largest=30) -> Case:
    """As layers are: Winograd's shapes more often than not, wide rows, groups, depthwise."""
    x_dtype, f_dtype, output_dtype = (BYTES[rng.integers(2)] for _ in range(3))
    kind = rng.random()
    groups = int(rng.choice([1, 1, 2, 4]))
    per_group, outputs = int(rng.integers(8, 40)), groups * int(rng.integers(6, 40))
    kernel, strides, dilations = (3, 3), (1, 1), (1, 1)
    if kind > 0.5:
        kernel = tuple(int(k) for k in rng.integers(1, 6, 2))
        strides, dilations = (tuple(int(k) for k in rng.integers(1, 4, 2)) for _ in range(2))
    if kind > 0.8:
        groups, per_group = int(rng.integers(2, 40)), 1
        outputs = groups * int(rng.integers(1, 3))
    start, end = (tuple(int(k) for k in rng.integers(0, 4, 2)) for _ in range(2))
    needed = [(k - 1) * d + 1 - s - e for k, d, s, e in zip(kernel, dilations, start, end, strict=True)]
    extent = [int(max(size, 1) + rng.integers(0, largest)) for size in needed]
    spread = 0.05 * 0.05 * 74 * 74 * np.sqrt(per_group * np.prod(kernel)) / 40
    channel = (outputs,)
    arguments = (
        data(rng, (int(rng.integers(1, 4)), groups * per_group, *extent), x_dtype),
        scale(rng, ()),
        zero_point(rng, x_dtype, ()),
        data(rng, (outputs, per_group, *kernel), f_dtype),
        scale(rng, channel),
        zero_point(rng, f_dtype, channel),
        None if rng.random() < 0.4 else rng.integers(-5000, 5000, channel).astype(np.int32),
        scale(rng, (), spread),
        zero_point(rng, output_dtype, ()),
    )
    options = {"strides": strides, "dilations": dilations, "start_padding": start, "end_padding": end}
    return Case(
        "quantized_linear_convolution", arguments, options | {"group_count": groups, "output_dtype": output_dtype}
    )


def wide_matrix_multiply(rng, largest=150) -> Case:
    a_dtype, b_dtype, output_dtype = (BYTES[rng.integers(2)] for _ in range(3))
    m, k, n = (int(size) for size in rng.integers(1, largest, 3))
    batch = (int(rng.integers(1, 4)),) if rng.random() < 0.3 else ()
    ones = (1,) * len(batch)
    spread = 0.05 * 0.05 * 74 * 74 * np.sqrt(k) / 40
    arguments = (
        data(rng, (*batch, m, k), a_dtype),
        scale(rng, (*ones, m, 1)),
        zero_point(rng, a_dtype, (*ones, m, 1)),
        data(rng, (*batch, k, n), b_dtype),
        scale(rng, (*ones, 1, n)),
        zero_point(rng, b_dtype, (*ones, 1, n)),
        scale(rng, (*ones, m, 1), spread),
        zero_point(rng, output_dtype, (*ones, m, 1)),
    )
    return Case("quantized_linear_matrix_multiply", arguments, {"output_dtype": output_dtype})


def check_wide(seed, count, largest):
    """Both operators, with raw and with prepared weights; how many outputs were compared."""
    rng, compared = np.random.default_rng(seed), 0
    for number in range(count):
        case = (wide_convolution, wide_matrix_multiply)[number % 2](rng, largest * (1 + 4 * (number % 2)))
        expected = case.expected
        weights = case.arguments[3]
        prepare = dml.prepare_matrix_multiply_b
        if number % 2 == 0:
            prepare = partial(dml.prepare_convolution_filter, group_count=case.options["group_count"])
        for third in (weights, prepare(weights)):
            got = case.call(*case.arguments[:3], third, *case.arguments[4:])
            np.testing.assert_array_equal(got, expected, err_msg=str((seed, number, case.options)))
            compared += expected.size
    return compared


@needs_native
def test_as_layers_are():
    assert check_wide(seed=3, count=60, largest=24) > 500_000


@needs_native
@pytest.mark.rare
@pytest.mark.parametrize("seed", range(4, 12))
def test_millions_of_outputs(seed):
    """Ten million in all."""
    assert check_wide(seed, count=120, largest=40) > 1_300_000


@needs_native
def test_sums_of_int32():
    """What products and convolutions of integers will be made of: no scales, wrapping modulo 2**32."""
    one = np.ones((), np.float32)
    got = native.call(
        native.KERNELS["requantized_dot"], None, A, one, np.uint8(7), B, one, None, one, None, output_dtype=jnp.int32
    )
    np.testing.assert_array_equal(got, (A.astype(np.int32) - 7) @ B.astype(np.int32))
    bias = np.full(24, 2**31 - 1, np.int32)
    options = {"strides": (1, 1), "dilations": (1, 1), "padding": ((0, 0), (0, 0)), "group_count": 1}
    got = native.call(
        native.KERNELS["requantized_conv"], None, X, one, None, F, one, np.int8(-3), bias, one, None,
        output_dtype=jnp.int32, **options,
    )  # fmt: skip
    windows = np.lib.stride_tricks.sliding_window_view(X.astype(np.int64), (3, 3), (2, 3))
    expected = np.einsum("nchwij,ocij->nohw", windows, F.astype(np.int64) + 3) + 2**31 - 1
    np.testing.assert_array_equal(got, expected.astype(np.uint32).view(np.int32))


# Prepared weights ----------------------------------------------------------------------------------------------------


@needs_native
@pytest.mark.parametrize(("prepare", "call", "data", "weights"), [
    (dml.prepare_matrix_multiply_b, multiply, A, B), (dml.prepare_convolution_filter, convolve, X, F),
])  # fmt: skip
def test_prepared_for_one_kernel_and_used_with_the_other(prepare, call, data, weights):
    expected = call(data, weights, reference)
    with dml.use_kernels("xla"):
        for_xla = prepare(weights)
        assert for_xla.packed is None
        np.testing.assert_array_equal(call(data, prepare(weights)), expected)
    for_native = prepare(weights)
    np.testing.assert_array_equal(call(data, for_xla), expected)
    with dml.use_kernels("xla"):
        np.testing.assert_array_equal(call(data, for_native), expected)


@needs_native
@pytest.mark.parametrize(("prepare", "weights"), [
    (dml.prepare_matrix_multiply_b, B), (dml.prepare_convolution_filter, F),
])  # fmt: skip
def test_what_is_pickled_is_the_array_alone(prepare, weights):
    prepared = prepare(weights)
    pickled = pickle.dumps(prepared)
    assert len(pickled) < weights.size + 2000
    with dml.use_kernels("xla"):
        assert pickle.loads(pickled).packed is None
        assert len(pickle.dumps(prepare(weights))) == len(pickled)
    np.testing.assert_array_equal(pickle.loads(pickled).packed, prepared.packed)
    np.testing.assert_array_equal(prepare(weights).packed, prepared.packed)  # the same bytes every time


@needs_native
@pytest.mark.parametrize(("prepared", "call", "data"), [
    (dml.prepare_matrix_multiply_b(B), multiply, A), (dml.prepare_convolution_filter(F), convolve, X),
])  # fmt: skip
def test_weights_that_other_kernels_packed_are_refused(prepared, call, data):
    """Packed on a GPU, say, where there is nothing to pack for."""
    foreign = jax.tree.map(lambda leaf: jnp.zeros_like(leaf) if leaf.dtype == jnp.uint8 else leaf, prepared)
    with pytest.raises(jax.errors.JaxRuntimeError, match="prepared by other kernels.*prepare again"):
        np.asarray(call(data, foreign))


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
                np.testing.assert_array_equal(got, right)


# Where they do not run -----------------------------------------------------------------------------------------------


def run(program, **variables):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE.parent)])} | variables
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program], env=environment, capture_output=True, text=True, check=False
    )


def test_without_the_package_xla_computes():
    done = run("""
import sys
sys.modules["jaxdml_cpu"] = None
import numpy as np, jaxdml as dml
print(dml.kernels())
print(dml.quantized_linear_matrix_multiply(
    np.ones((2, 3), np.uint8), 1.0, None, np.ones((3, 2), np.int8), 1.0, None, 1.0, None))
try:
    with dml.use_kernels("native"):
        pass
except ValueError as error:
    print(error)
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "xla: jaxdml-cpu is not installed",
        "[[3 3]",
        " [3 3]]",
        "use_kernels: there are no native kernels: jaxdml-cpu is not installed",
    ]


@needs_native
@pytest.mark.parametrize("name", kernel_library.SETS)
def test_every_set_of_instructions(name):
    """Cases of all kinds in a process whose kernels are of this set; the tests above run on the fastest."""
    program = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import jaxdml as dml
if dml.kernels().startswith("native"):
    import test_native
    print(dml.kernels(), test_native.check_wide(seed=1, count=40, largest=24))
else:
    print(dml.kernels())
"""
    done = run(program, JAXDML_KERNELS=name)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"has {name} \d{{6}}|this processor has no {name}", done.stdout), done.stdout


def test_the_environment_chooses():
    program = "import jaxdml; print(jaxdml.kernels())"
    assert run(program, JAXDML_KERNELS="xla").stdout.startswith("xla: chosen by use_kernels or JAXDML_KERNELS")
    wrong = run(program, JAXDML_KERNELS="cuda")
    assert wrong.returncode == 1
    assert "JAXDML_KERNELS is 'cuda', expected xla, native, avx2 or avx512_vnni" in wrong.stderr


@pytest.mark.parametrize("which", ["XLA", "avx2", None])
def test_use_kernels_names_what_it_takes(which):
    with pytest.raises(ValueError, match=r"which is .*, expected 'native' or 'xla'"), dml.use_kernels(which):
        pass


def fake(**members):
    return SimpleNamespace(**{"__version__": kernel_library.VERSION, "load": lambda name: None} | members)


def cannot_load(name):
    raise OSError("wrong ELF class")


@pytest.mark.parametrize(("package", "why"), [
    (fake(__version__="9.9"), r"it has version 9\.9, expected 0\.1\.0\. Install it again"),
    (fake(load=cannot_load), r"its library cannot be loaded: wrong ELF class"),
    (fake(load=lambda name: SimpleNamespace(built_with="99.0.1")), r"built with jaxlib 99\.0\.1, which is newer than"),
])  # fmt: skip
def test_a_library_that_does_not_fit_is_left_out_with_one_warning(package, why, monkeypatch):
    monkeypatch.setitem(sys.modules, "jaxdml_cpu", package)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        library, reason = kernel_library._load("")
    assert library is None
    assert reason.startswith("jaxdml-cpu is left out: ")
    assert [re.search(why, str(warning.message)) is not None for warning in caught] == [True]


@pytest.mark.parametrize(("name", "why"), [("", "neither avx2 nor avx512_vnni"), ("avx512_vnni", "no avx512_vnni")])
def test_a_processor_without_kernels_is_said_and_no_warning(name, why, monkeypatch):
    found = SimpleNamespace(built_with="0.1", kernels=None)
    monkeypatch.setitem(sys.modules, "jaxdml_cpu", fake(load=lambda name: found))
    assert kernel_library._load(name) == (None, f"this processor has {why}")


def test_without_a_compiler_make_says_so_and_goes_on(tmp_path):
    """The Makefile with a path on which there is no compiler."""
    tools = tmp_path / "tools"
    environment = tmp_path / ".venv" / "bin"
    for folder in (tools, environment, tmp_path / "native"):
        folder.mkdir(parents=True)
    for tool in ("sh", "touch", "grep", "sed", "expand"):
        (tools / tool).symlink_to(Path("/bin", tool) if Path("/bin", tool).exists() else Path("/usr/bin", tool))
    python = environment / "python"
    python.write_text(f'#!/bin/sh\nexport PYTHONPATH="{HERE.parents[1]}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    for name in ("native/CMakeLists.txt", "native/pyproject.toml", "pyproject.toml"):
        (tmp_path / name).touch()
    (tmp_path / ".venv" / ".demo").touch()
    makefile = HERE.parents[1] / "Makefile"
    make = ["make", "-f", str(makefile), ".venv/.native"]
    variables = {"PATH": str(tools), "JAXDML_KERNELS": "xla", "HOME": str(tmp_path)}
    command = [
        next(str(Path(folder, "make")) for folder in os.get_exec_path() if Path(folder, "make").exists()),
        *make[1:],
    ]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "There is no C++ compiler: jaxdml runs on XLA's kernels, with the same bits",
        "Kernels: xla: chosen by use_kernels or JAXDML_KERNELS",
    ]
    assert (tmp_path / ".venv" / ".native").exists()
