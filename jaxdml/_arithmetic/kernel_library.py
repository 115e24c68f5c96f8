"""The choice between the native kernels of the package jaxdml-cpu and XLA's kernels. All give the same bits."""

import contextlib
import importlib
import os
import warnings
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import jax

from jaxdml.errors import DescError, api_boundary

ENVIRONMENT = "JAXDML_KERNELS"
SETS = ("avx2", "avx512_vnni", "amx_int8", "neon", "neon_dotprod", "neon_i8mm")  # instruction sets
VERSION = "0.10.0"  # the version of jaxdml-cpu that this package needs


def _find() -> tuple[Any, str, bool]:
    """The library or None, its description or why it is missing, and whether native kernels are the default."""
    value = os.environ.get(ENVIRONMENT)
    wanted = value or "native"
    if wanted not in ("xla", "native", *SETS):
        raise ValueError(f"{ENVIRONMENT} is {wanted!r}, expected xla, native, {', '.join(SETS[:-1])} or {SETS[-1]}")
    library, reason = _load(wanted if wanted in SETS else "")
    if value and wanted != "xla" and library is None:
        warnings.warn(f"{ENVIRONMENT} is {wanted}, but XLA's kernels run: {reason}.", stacklevel=2)
    return library, reason, wanted != "xla"


def _load(name: str) -> tuple[Any, str]:
    """The library for an instruction set ("" means the fastest) and a description, or None and the reason."""
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
    warnings.warn(f"jaxdml-cpu is installed but not used: {why}. Install it again.", stacklevel=2)
    return f"jaxdml-cpu is not used: {why}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


_library, _reason, _is_default = _find()
_chosen = jax.make_user_context(default_value="native" if _is_default else "xla")


def library() -> Any:
    """The native library; None if it is missing, XLA is chosen, or the default backend is not the CPU."""
    is_on = _library is not None and _chosen.value == "native" and jax.default_backend() == "cpu"
    return _library if is_on else None


def kernels() -> str:
    """The kernels in use, native or XLA's, and why.

    Native kernels are custom calls to the package jaxdml-cpu. The function initializes JAX's default backend: configure
    devices before you call it.

    Returns:
      ``"native: ..."`` or ``"xla: ..."``, with the reason.

    Source: https://docs.jax.dev/en/latest/ffi.html
    """
    if _chosen.value == "xla":
        return f"xla: chosen by use_kernels or {ENVIRONMENT}"
    if _library is None:
        return f"xla: {_reason}"
    if jax.default_backend() != "cpu":
        return f"xla: the default backend is {jax.default_backend()}, and native kernels are for the CPU"
    return f"native: {_reason}"


@api_boundary
def use_kernels(which: str) -> contextlib.AbstractContextManager[None]:
    """A context in which operators run on the native kernels of the CPU, or on XLA's kernels.

    The results are the same. `jax.jit` compiles a function once for each choice. The environment variable
    JAXDML_KERNELS chooses for a whole process; its values avx2, avx512_vnni and amx_int8 (on ARM: neon, neon_dotprod
    and neon_i8mm) also choose the instruction set of native kernels. If the processor lacks that set, XLA's kernels
    run, with a warning.

    Args:
      which: "native" or "xla".

    Raises:
      DescError: if `which` has another value, or native kernels are not available; the error says why.

    Source: https://docs.jax.dev/en/latest/ffi.html
    """
    if not isinstance(which, str) or which not in ("native", "xla"):
        sets = f"to choose an instruction set, set the environment variable {ENVIRONMENT}"
        raise _misused(f"`which` is {which!r}, expected 'native' or 'xla'; {sets}", which)
    if which == "native" and _library is None:
        raise _misused(f"there are no native kernels: {_reason}", which)
    return _using(which)


def _misused(text: str, which: Any) -> DescError:
    return DescError(f"use_kernels: {text}", operator="use_kernels", tensor="which", rule="argument", received=which)


@contextlib.contextmanager
def _using(which: str) -> Iterator[None]:
    with _chosen(which):
        yield
