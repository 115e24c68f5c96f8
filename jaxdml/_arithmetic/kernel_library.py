"""Which kernels compute on a CPU: those of the package jaxdml-cpu, or XLA's. The bits are the same."""

import contextlib
import importlib
import os
import warnings
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import jax

ENVIRONMENT = "JAXDML_KERNELS"
SETS = ("avx2", "avx512_vnni", "amx_int8")  # of instructions
VERSION = "0.2.0"  # of jaxdml-cpu that this version of jaxdml calls


class _Found:
    """What was found at import.

    Attributes:
      library: of jaxdml-cpu; None where it does not run.
      why: it does not run, or which it is.
      is_wanted: whether native kernels are used where nothing else is said.
    """

    def __init__(self) -> None:
        said = os.environ.get(ENVIRONMENT)
        wanted = said or "native"
        if wanted not in ("xla", "native", *SETS):
            raise ValueError(f"{ENVIRONMENT} is {wanted!r}, expected xla, native, {', '.join(SETS[:-1])} or {SETS[-1]}")
        self.library, self.why = _load(wanted if wanted in SETS else "")
        self.is_wanted = wanted != "xla"
        if said and self.is_wanted and self.library is None:
            warnings.warn(f"{ENVIRONMENT} is {wanted}, and XLA's kernels run: {self.why}.", stacklevel=2)


def _load(name: str) -> tuple[Any, str]:
    try:
        package: Any = importlib.import_module("jaxdml_cpu")
    except ModuleNotFoundError as error:
        if error.name != "jaxdml_cpu":
            raise
        return None, "jaxdml-cpu is not installed"
    if package.__version__ != VERSION:
        return None, _left_out(f"it has version {package.__version__}, expected {VERSION}")
    try:
        library = package.load(name)
    except OSError as error:
        return None, _left_out(f"its library cannot be loaded: {error}")
    here = metadata.version("jaxlib")
    if _numbers(library.built_with) > _numbers(here):
        return None, _left_out(f"it was built with jaxlib {library.built_with}, which is newer than {here}")
    if library.kernels is None:
        return None, f"this processor has no {name}" if name else "this processor has neither avx2 nor avx512_vnni"
    for handler, function in library.handlers.items():
        jax.ffi.register_ffi_target(f"jaxdml_cpu_{handler}", jax.ffi.pycapsule(function), platform="cpu")
    return library, f"jaxdml-cpu {package.__version__} has {library.kernels}"


def _left_out(why: str) -> str:
    warnings.warn(f"jaxdml-cpu is installed and left out: {why}. Install it again.", stacklevel=2)
    return f"jaxdml-cpu is left out: {why}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


_found = _Found()
_wanted = jax.make_user_context(default_value="native" if _found.is_wanted else "xla")


def library() -> Any:
    """The native library where it computes: on a CPU, where nobody chose XLA; else None."""
    is_on = _found.library is not None and _wanted.value == "native" and jax.default_backend() == "cpu"
    return _found.library if is_on else None


def kernels() -> str:
    """Which kernels compute here, and why, in one line.

    Native kernels are those of the package jaxdml-cpu, which XLA calls as custom calls. This asks JAX for its default
    backend, which JAX then starts: configure devices before.

    Returns:
      ``"native: ..."`` or ``"xla: ..."``, with the reason.

    Source: https://docs.jax.dev/en/latest/ffi.html
    """
    if _wanted.value == "xla":
        return f"xla: chosen by use_kernels or {ENVIRONMENT}"
    if _found.library is None:
        return f"xla: {_found.why}"
    if jax.default_backend() != "cpu":
        return f"xla: the default backend is {jax.default_backend()}, and native kernels are for the CPU"
    return f"native: {_found.why}"


@contextlib.contextmanager
def use_kernels(which: str) -> Iterator[None]:
    """A context in which a CPU computes by native kernels, or by XLA.

    The results are the same. The choice is part of what `jax.jit` compiles for. The environment variable JAXDML_KERNELS
    makes it for a whole process; there avx2, avx512_vnni and amx_int8 choose among native kernels, too, and a choice
    that this processor does not have is a warning.

    Args:
      which: "native" or "xla".

    Raises:
      ValueError: if which is neither, or there are no native kernels; `kernels` says why.

    Source: https://docs.jax.dev/en/latest/ffi.html
    """
    if which not in ("native", "xla"):
        sets = f"{ENVIRONMENT} chooses a set of instructions"
        raise ValueError(f"use_kernels: which is {which!r}, expected 'native' or 'xla'; {sets}")
    if which == "native" and _found.library is None:
        raise ValueError(f"use_kernels: there are no native kernels: {_found.why}")
    with _wanted(which):
        yield
