"""python tests/commands/installs.py: builds jaxdml and jaxdml-cpu, and installs each extra into an empty environment.

It needs only the standard library. It builds an sdist of each package, and a wheel from each sdist. For each supported
Python that the machine has, it makes an environment for each extra, so that a missing dependency of an extra is
detected, and removes the environment again. The extra `notebooks` runs a copy of every notebook. `--python` and
`--extra` select some of them, because all take many minutes.
"""

import argparse
import ast
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.12", "3.13", "3.14")
NONE, SDIST, CUDA = "none", "sdist", "cuda"  # no extra; no extra, from the sdist; resolved and not installed
FOLDERS = {  # the folders with the code that an extra is for
    "notebooks": ["notebooks"],
    "test": ["tests"],
    "test-all": ["tests"],
    "bench": ["benchmarks"],
    "docs": ["docs", "notebooks", "tests"],
    "dev": ["benchmarks", "docs", "notebooks", "tests"],
}
PROGRAMS = {  # packages of an extra that no code imports
    "notebooks": ["jupyterlab"], "test-all": ["ipykernel", "mypy", "nbclient", "pyright"],
    "dev": ["jupyterlab", "mypy", "pre_commit"],
}  # fmt: skip
# The same condition as in the marker of the extra `cpu`.
HAS_NATIVE = (sys.platform, platform.machine()) in {("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")}
IN_WHEEL = {"jaxdml/py.typed", "jaxdml/examples/digits.npz", "jaxdml/examples/digits.onnx"}
IN_WHEEL |= {"jaxdml/examples/digits_onnx.npz", "jaxdml/examples/dxdispatch/convolution.json"}
IN_SDIST = {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "tests/conftest.py", "native/CMakeLists.txt"}
SUFFIXES = {".py", ".typed", ".npz", ".npy", ".bin", ".onnx", ".json"}

WITHOUT_EXTRAS = """
import jax, jaxdml
assert jaxdml.kernels() == "xla: jaxdml-cpu is not installed", jaxdml.kernels()
assert jaxdml.element_wise_quantize_linear(jax.numpy.ones(3), 0.5, 1).tolist() == [3, 3, 3]
try:
    jaxdml.onnx.load
except ImportError as error:
    assert "pip install 'jaxdml[onnx]'" in str(error)
else:
    raise AssertionError("the package onnx is there without the extra")
"""
WITH_KERNELS = f"""
import jaxdml
assert jaxdml.kernels().startswith({"native: " if HAS_NATIVE else "xla: "!r}), jaxdml.kernels()
"""
WITH_ONNX = """
from importlib.resources import files
import jaxdml
assert jaxdml.onnx.load(files("jaxdml.examples") / "digits.onnx").params
"""
WITH_PLOT = """
import matplotlib
matplotlib.use("agg")
import jaxdml
from jaxdml.examples import digits
images, parameters = digits.load().images, digits.load().float_parameters
model = jaxdml.ptq.quantize(digits.float_network, parameters, [images[:8]], progress=False)
assert model.sqnr(parameters, images[:8]).plot().get_xlabel()
"""
CODE = {"cpu": WITH_KERNELS, "onnx": WITH_ONNX, "plot": WITH_PLOT, "test": WITH_ONNX}
HAS_MODULES = """
import importlib.util, sys
missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
assert not missing, f"the extra lacks {', '.join(missing)}"
"""


class InstallError(Exception):
    """An installation has a fault, which the text describes."""


def check(condition, text):
    """Raises InstallError if a condition does not hold."""
    if not condition:
        raise InstallError(text)


def run(*command, cwd=None):
    """The output of a command, or InstallError if it fails. Nothing of this repository is on its path."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "JAXDML_KERNELS", "JAXDML_TESTS_SKIP_NOTHING")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONUTF8": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment["JAXDML_DIGITS_OUT"] = "digits.npz"  # in the folder of the notebook that writes a network
    command = [str(part) for part in command]
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, encoding="utf-8", check=False)
    told = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
    check(done.returncode == 0, f"{' '.join(command)[:200]}\n{told}")
    return done.stdout


def find_python(wanted, folder):
    """The path of a Python of this version, or at this path, that runs in a folder outside the repository."""
    candidates = [[wanted], [f"python{wanted}"], [sys.executable], ["py", f"-{wanted}"]]
    roots = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates += [
        [str(path)] for path in sorted(roots.glob("*/bin/python")) if path.parts[-3].startswith(f"{wanted}.")
    ]
    code = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2], sys.executable)"
    for command in candidates:
        if shutil.which(command[0]):
            done = subprocess.run([*command, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
            version, _, path = done.stdout.strip().partition(" ")
            if done.returncode == 0 and (version == wanted or command == [wanted]):
                return path
    return None


def make_environment(python, folder):
    """The Python of a new, empty environment."""
    run(python, "-m", "venv", "--clear", folder)
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


# What is built -------------------------------------------------------------------------------------------------------


def build(python, folder, scratch):
    """Builds sdists, and wheels from them."""
    tools = make_environment(python, scratch / "tools")
    run(tools, "-m", "pip", "install", "--quiet", "build")
    for package in [ROOT, ROOT / "native"] if HAS_NATIVE else [ROOT]:
        run(tools, "-m", "build", package, "--outdir", folder)


def the_file(folder, pattern):
    """The only file that matches a pattern."""
    found = sorted(folder.glob(pattern))
    check(len(found) == 1, f"{folder} has {[path.name for path in found]}, expected one {pattern}")
    return found[0].resolve()


def check_wheel(path, package, promised):
    """Checks that a wheel has the promised files, its license, and nothing but the package."""
    names = set(zipfile.ZipFile(path).namelist())
    check(promised <= names, f"{path.name} lacks {sorted(promised - names)}")
    check(any(name.endswith(".dist-info/licenses/LICENSE") for name in names), f"{path.name} lacks its license")
    code = {name for name in names if ".dist-info/" not in name}
    wrong = {name for name in code if not name.startswith(f"{package}/") or Path(name).suffix not in SUFFIXES | {".so"}}
    check(not wrong, f"{path.name} has {sorted(wrong)}")


def check_contents(folder):
    """Checks the contents of wheels and sdists; returns jaxdml's version."""
    wheel, sdist = the_file(folder, "jaxdml-*.whl"), the_file(folder, "jaxdml-*.tar.gz")
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "jaxdml").rglob("*.py")}
    check_wheel(wheel, "jaxdml", IN_WHEEL | sources)
    check("-py3-none-any" in wheel.name, f"{wheel.name} is not for every Python and platform")
    with tarfile.open(sdist) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    check(names >= IN_SDIST | IN_WHEEL | sources, f"{sdist.name} lacks {(IN_SDIST | IN_WHEEL | sources) - names}")
    wrong = {name for name in names if re.search(r"__pycache__|\.pyc$|^native/build/|^build/|^dist/|\.venv", name)}
    check(not wrong, f"{sdist.name} has {sorted(wrong)}")
    for native in folder.glob("jaxdml_cpu-*.whl"):
        check_wheel(native, "jaxdml_cpu", {"jaxdml_cpu/__init__.py", "jaxdml_cpu/libjaxdml_cpu.so"})
        check("-py3-none-" in native.name, f"{native.name} is not for every Python")
    with zipfile.ZipFile(wheel) as opened:
        (metadata,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        text = opened.read(metadata).decode()
    extras = set(re.findall(r"^Provides-Extra: (.*)$", text, re.M))
    check(extras == set(extras_here()) - {NONE, SDIST}, f"the extras {sorted(extras)} are not those that are checked")
    return re.search(r"^Version: (.*)$", text, re.M)[1]


def check_tag(tag, version):
    """Checks that the tag names the built version, and that the changelog has a dated section of that version."""
    check(tag == f"v{version}", f"the tag is {tag}, and the version {version}")
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    check(re.search(heading, changes, re.M), f"CHANGELOG.md has no heading '## [{version}] - ' with a date")


# What is installed ---------------------------------------------------------------------------------------------------


def extras_here():
    """The extras that this file checks, and the two installations without one."""
    return [NONE, SDIST, "onnx", "cpu", "plot", *FOLDERS, CUDA]


def code_of(path):
    """The Python code of a file, or of a notebook's cells without the commands of IPython."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return text
    cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return "\n".join(line for line in "\n".join(cells).splitlines() if not line.lstrip().startswith(("%", "!")))


def imported(folders):
    """The modules of other packages that the code in some folders imports, and the extensions that Sphinx loads."""
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".ipynb")]
    others = "zoo_models.py", "torch_peer.py"  # these import packages that no extra has
    paths = [path for path in paths if path.name not in others]
    found = set()
    for path in paths:
        for node in ast.walk(ast.parse(code_of(path))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module)
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "extensions":
                found |= set(ast.literal_eval(node.value))
    own = {"jaxdml", "jaxdml_cpu", "tests", "benchmarks"} | {
        path.stem for path in ROOT.glob("[bdt]*/**/*") if path.is_dir() or path.suffix == ".py"
    }
    return sorted({name.partition(".")[0] for name in found} - own - set(sys.stdlib_module_names))


def install(python, extra, folder, home):
    """Installs jaxdml with an extra; jaxdml and jaxdml-cpu come from the folder, and from nowhere else."""
    source = the_file(folder, "jaxdml-*.tar.gz" if extra == SDIST else "jaxdml-*.whl").as_uri()
    own = f"jaxdml_cpu-*_{platform.machine()}.whl"
    kernels = f"jaxdml-cpu @ {the_file(folder, own).as_uri()}\n" if HAS_NATIVE else ""
    constraints = home / "constraints.txt"
    constraints.write_text(kernels, encoding="utf-8")
    wanted = f"jaxdml @ {source}" if extra in (NONE, SDIST) else f"jaxdml[{extra}] @ {source}"
    options = ["--dry-run"] if extra == CUDA else []
    run(python, "-m", "pip", "install", "--quiet", *options, "--constraint", constraints, wanted, cwd=home)


def check_extra(python, extra, folder, home):
    """Checks that the features of an extra work outside the repository."""
    install(python, extra, folder, home)
    if extra == CUDA:
        return
    run(python, "-m", "pip", "check")
    if extra in (NONE, SDIST):
        run(python, "-I", "-c", WITHOUT_EXTRAS, cwd=home)
    if extra in FOLDERS:
        run(python, "-I", "-c", HAS_MODULES, *imported(FOLDERS[extra]), *PROGRAMS.get(extra, []), cwd=home)
    else:
        shown = run(python, "-I", "-m", "jaxdml", cwd=home)
        check("OK: every output has the bits that NumPy computes." in shown, shown)
    if extra in CODE:
        run(python, "-I", "-c", CODE[extra], cwd=home)
    if extra == "notebooks":
        copied = shutil.copytree(ROOT / "notebooks", home / "notebooks", ignore=shutil.ignore_patterns(".*"))
        options = ["--execute", "--to", "notebook", "--inplace", *sorted(copied.glob("*.ipynb"))]
        run(python, "-m", "nbconvert", *options, cwd=home)
    if extra == "test":
        with tarfile.open(the_file(folder, "jaxdml-*.tar.gz")) as opened:
            opened.extractall(home, filter="data")
        run(python, "-m", "pytest", "--collect-only", "--quiet", "--numprocesses=0", cwd=the_file(home, "jaxdml-*"))


def main():
    """Returns 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", help="a version or a path; may be given again; default: all")
    parser.add_argument(
        "--extra", action="append", choices=extras_here(), help=f"default: all but {CUDA}, which is large"
    )
    parser.add_argument("--built", type=Path, help="a folder with wheels and sdists to take; default: build them")
    parser.add_argument("--tag", help="the tag of a release, which must name the version")
    options = parser.parse_args()
    failures = []
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch).resolve()
        pythons = {wanted: find_python(wanted, scratch) for wanted in options.python or VERSIONS}
        missing = [wanted for wanted, path in pythons.items() if path is None]
        if missing:
            print(f"This machine has no Python {', '.join(missing)}")
        found = {wanted: path for wanted, path in pythons.items() if path}
        folder = options.built or scratch / "dist"
        try:
            check(found, "there is no Python to install for")
            if not options.built:
                build(next(iter(found.values())), folder, scratch)
            version = check_contents(folder)
            print(f"Contents are right: {', '.join(sorted(path.name for path in folder.iterdir()))}", flush=True)
            if options.tag:
                check_tag(options.tag, version)
        except InstallError as failure:
            print(f"FAILED: {failure}")
            return 1
        for wanted, path in found.items():
            for extra in options.extra or extras_here()[:-1]:
                start, home = time.monotonic(), scratch / "environment"
                try:
                    check_extra(make_environment(path, home), extra, folder, home)
                    result = "right"
                except InstallError as failure:
                    failures.append(f"Python {wanted}, {extra}")
                    result = f"FAILED: {failure}"
                print(f"Python {wanted}, {extra}: {result}, {time.monotonic() - start:.0f} s", flush=True)
    print(f"Failed: {'; '.join(failures)}" if failures else "All installations are right")
    return bool(failures) or (bool(missing) and bool(options.python))


if __name__ == "__main__":
    sys.exit(main())
