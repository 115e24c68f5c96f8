"""Where native kernels do not run: no package, another version, another processor, no compiler, or another choice."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import jaxdml as dml
from _arithmetic.processes import run
from helpers.compare import assert_same_values
from helpers.native_calls import needs_native
from helpers.platforms import posix
from jaxdml._arithmetic import kernel_call, kernel_library

HERE = Path(__file__).parent


@pytest.mark.rare
def test_without_the_package_xla_computes():
    done = run("""
import os, sys
os.environ.pop("JAXDML_KERNELS", None)
sys.modules["jaxdml_cpu"] = None
import numpy as np, jaxdml as dml
print(dml.kernels())
print(dml.quantized_linear_matrix_multiply(
    np.ones((2, 3), np.uint8), 1.0, None, np.ones((3, 2), np.int8), 1.0, None, 1.0, None))
try:
    with dml.use_kernels("native"):
        pass
except dml.DescError as error:
    print(error)
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "xla: jaxdml-cpu is not installed",
        "[[3 3]",
        " [3 3]]",
        "use_kernels: there are no native kernels: jaxdml-cpu is not installed",
    ]


@pytest.mark.rare
@needs_native
@pytest.mark.parametrize("name", kernel_library.SETS)
def test_every_set_of_instructions(name):
    """Cases of all kinds in a process that uses this set; the tests above use the fastest set."""
    program = """
import warnings
warnings.filterwarnings("default", message="JAXDML_KERNELS")
import jaxdml as dml
from helpers.native_calls import check_wide
print(dml.kernels(), check_wide(seed=1, count=40, largest=24))
"""
    done = run(program, JAXDML_KERNELS=name)
    assert done.returncode == 0, done.stderr
    is_absent = f"{name}, but XLA's kernels run: this processor has no {name}." in done.stderr
    expected = rf"xla: this processor has no {name} \d{{6}}" if is_absent else rf"has {name} \d{{6}}"
    assert re.search(expected, done.stdout), done.stdout


@pytest.mark.rare
@needs_native
@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="Linux alone lists the processor's instructions there")
def test_make_builds_the_fastest_kernels_that_the_processor_has():
    """make omits the other sets. With AVX512-VNNI it also builds AMX, which a system may not allow processes to use."""
    flags = set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text(encoding="utf-8")))
    sets = {"avx512_vnni": "avx512_vnni|amx_int8", "avx2": "avx2"}
    sets |= {"i8mm": "neon_i8mm", "asimddp": "neon_dotprod", "asimd": "neon"}
    fastest = next(names for flag, names in sets.items() if flag in flags)
    done = run("import jaxdml; print(jaxdml.kernels())", JAXDML_KERNELS="native")
    assert re.search(rf" has ({fastest})\n$", done.stdout), done.stdout


def test_the_versions_agree():
    """Both files of the package have the version that jaxdml expects."""
    root = HERE.parents[1] / "native"
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    package = (root / "jaxdml_cpu" / "__init__.py").read_text(encoding="utf-8")
    of_project = re.search(r'^version = "(.*)"$', project, re.M)[1]
    of_package = re.search(r'^__version__ = "(.*)"$', package, re.M)[1]
    assert of_project == of_package == kernel_library.VERSION


@pytest.mark.rare
def test_the_environment_chooses():
    program = "import jaxdml; print(jaxdml.kernels())"
    assert run(program, JAXDML_KERNELS="xla").stdout.startswith("xla: chosen by use_kernels or JAXDML_KERNELS")
    wrong = run(program, JAXDML_KERNELS="cuda")
    assert wrong.returncode == 1
    assert (
        "JAXDML_KERNELS is 'cuda', expected xla, native, avx2, avx512_vnni, amx_int8, neon, neon_dotprod or neon_i8mm"
        in wrong.stderr
    )


@pytest.mark.parametrize("which", ["XLA", "avx2", None, np.array(["xla", "native"])])
def test_use_kernels_names_what_it_takes(which):
    """The error comes before the context is entered."""
    with pytest.raises(dml.DescError, match=r"^use_kernels: `which` is .*, expected 'native' or 'xla'") as caught:
        dml.use_kernels(which)
    assert (caught.value.operator, caught.value.tensor) == ("use_kernels", "which")
    assert caught.value.received is which


def fake(**members):
    return SimpleNamespace(**{"__version__": kernel_library.VERSION, "load": lambda name: None} | members)


def cannot_load(name):
    raise OSError("wrong ELF class")


@pytest.mark.parametrize(("package", "why"), [
    (fake(__version__="9.9"), r"it has version 9\.9, expected 0\.10\.0\. Install it again"),
    (fake(load=cannot_load), r"its library cannot be loaded: wrong ELF class"),
    (fake(load=lambda name: SimpleNamespace(built_with="99.0.1")), r"built with jaxlib 99\.0\.1, which is newer than"),
])  # fmt: skip
def test_a_library_that_does_not_fit_is_left_out_with_one_warning(package, why, monkeypatch):
    monkeypatch.setitem(sys.modules, "jaxdml_cpu", package)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        library, reason = kernel_library._load("")
    assert library is None
    assert reason.startswith("jaxdml-cpu is not used: ")
    assert [re.search(why, str(warning.message)) is not None for warning in caught] == [True]


@pytest.mark.parametrize(("name", "why"), [("", "neither avx2 nor avx512_vnni"), ("avx512_vnni", "no avx512_vnni")])
def test_a_processor_without_kernels_is_said_and_no_warning(name, why, monkeypatch):
    found = SimpleNamespace(built_with="0.1", kernels=None)
    monkeypatch.setitem(sys.modules, "jaxdml_cpu", fake(load=lambda name: found))
    assert kernel_library._load(name) == (None, f"this processor has {why}")


@pytest.mark.rare
def test_an_empty_choice_is_none():
    assert run("import jaxdml; print(jaxdml.kernels())", JAXDML_KERNELS="").returncode == 0


@pytest.mark.rare
def test_a_set_that_is_chosen_and_not_there_is_a_warning():
    program = "import sys; sys.modules['jaxdml_cpu'] = None; import jaxdml"
    for which in ("native", "avx2"):
        done = run(program, JAXDML_KERNELS=which)
        assert f"JAXDML_KERNELS is {which}, but XLA's kernels run: jaxdml-cpu is not installed." in done.stderr
    assert run(program, JAXDML_KERNELS="xla").returncode == 0


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="kernels are for CPUs")
def test_a_kernel_computes_the_calls_that_it_takes(monkeypatch):
    """This test runs with any library; the tests of operators need jaxdml-cpu's."""
    monkeypatch.setattr(kernel_call, "library", object)
    kernel = kernel_call.Kernel(
        lambda x, *, step, leading: x + 100 * step + leading,
        lambda x, *, step: (x.shape, x.dtype),
        lambda x, *, step: step == 1,
    )
    function = kernel_call.with_kernel(kernel)(lambda x, *, step: x + step)
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert_same_values(function(x, step=1), x + 100)
    assert_same_values(function(x, step=2), x + 2)
    assert_same_values(jax.vmap(lambda x: function(x, step=1))(x), x + 101)


def on_mesh(function):
    """Lowers function for two by two devices."""
    x = jax.ShapeDtypeStruct((4,), np.float32, sharding=NamedSharding(MESH, PartitionSpec("x")))
    jax.jit(function).trace(x).lower(lowering_platforms=("cpu",))


def in_shard_map(function, names):
    spec = PartitionSpec("x")
    on_mesh(jax.shard_map(function, mesh=MESH, in_specs=spec, out_specs=spec, axis_names=names))


MESH = AbstractMesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
LOWERED = {
    "jit": (lambda function: jax.jit(function).lower(np.ones(4, np.float32)), "device"),
    "export": (lambda function: jax.export.export(jax.jit(function))(np.ones(4, np.float32)), "file"),
    "a mesh": (on_mesh, "mesh"),
    "shard_map over a part of a mesh": (lambda function: in_shard_map(function, {"x"}), "mesh"),
    "shard_map": (lambda function: in_shard_map(function, {"x", "y"}), "device"),
}


@pytest.mark.parametrize("way", LOWERED)
def test_the_lowering_context_says_what_a_program_is_for(way):
    """JAX does not document this context, and may change it."""
    lower_with, expected = LOWERED[way]
    targets = set()

    def rule(context, x):
        try:
            targets.add(kernel_call.target_of(context))
        except (AttributeError, TypeError) as error:
            pytest.fail(f"kernel_call.target_of cannot read the lowering context of jax {jax.__version__}: {error!r}")
        return [x]

    primitive = Primitive("seen")
    primitive.def_abstract_eval(lambda x: x)
    mlir.register_lowering(primitive, rule)
    lower_with(primitive.bind)
    assert targets == {expected}, f"kernel_call.target_of misreads the lowering context of jax {jax.__version__}"


@pytest.mark.rare
@posix
@pytest.mark.parametrize("compiler", [None, "fails"])
def test_without_a_compiler_make_says_so_and_goes_on(compiler, tmp_path):
    """The Makefile with a PATH that has no compiler, or one with which pip fails.

    A library that an earlier build installed is then uninstalled.
    """
    tools = tmp_path / "tools"
    environment = tmp_path / ".venv" / "bin"
    for folder in (tools, environment, tmp_path / "native"):
        folder.mkdir(parents=True)
    for tool in ("sh", "touch", "grep", "sed", "expand", "rm"):
        (tools / tool).symlink_to(Path("/bin", tool) if Path("/bin", tool).exists() else Path("/usr/bin", tool))
    python = environment / "python"
    python.write_text(
        f"""#!/bin/sh
if [ "$2" = pip ]; then
  for last; do :; done
  echo "$3 $last" >>pip.txt
  [ "$3" = uninstall ]
  exit
fi
export PYTHONPATH="{HERE.parents[1]}"
exec "{sys.executable}" "$@"
""",
        encoding="utf-8",
    )
    python.chmod(0o755)
    for name in ("native/CMakeLists.txt", "native/pyproject.toml", "pyproject.toml"):
        (tmp_path / name).touch()
    (tmp_path / ".venv" / ".demo").touch()
    if compiler:
        (tools / "c++").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
        (tools / "c++").chmod(0o755)
    makefile = HERE.parents[1] / "Makefile"
    make = ["make", "-f", str(makefile), ".venv/.native"]
    variables = {"PATH": str(tools), "JAXDML_KERNELS": "xla", "HOME": str(tmp_path)}
    command = [
        next(str(Path(folder, "make")) for folder in os.get_exec_path() if Path(folder, "make").exists()),
        *make[1:],
    ]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *said, kernels = done.stdout.splitlines()
    assert kernels == "Kernels: xla: chosen by use_kernels or JAXDML_KERNELS"
    if compiler is None:
        assert said == ["There is no C++ compiler to build native kernels with; without them the bits are the same"]
    else:
        assert said == [
            "Building the native kernels with c++",
            "They could not be built, see .venv/.native.log; XLA's give the same bits",
        ]
        assert (tmp_path / "pip.txt").read_text(encoding="utf-8").splitlines() == [
            "install ninja",
            "wheel ./native",
            "uninstall jaxdml-cpu",
        ]
    assert not (tmp_path / ".venv" / ".native").exists()  # so that make builds the kernels once there is a compiler
