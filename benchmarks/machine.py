"""The machine of a run, and the name of its results."""

import datetime
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

import jaxdml as dml
from benchmarks.onnx_peer import threads

PACKAGES = ("jax", "jaxlib", "numpy", "onnxruntime", "jaxdml-cpu", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")


def environment(device: Any = None) -> dict[str, Any]:
    """The machine, the device, the kernels and the versions of the installed packages."""
    about = Path("/proc/cpuinfo").read_text(encoding="utf-8") if sys.platform == "linux" else ""
    flags, names = (re.findall(rf"^{field}\s*: (.*)$", about, re.M) for field in ("flags", "model name"))
    hidden = os.environ.get("BENCHMARKS_WITHOUT", "").split()  # set by without_avx512.py
    kinds = [
        flag
        for flag in ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "amx_int8")
        if flags and flag in flags[0].split() and not flag.startswith(tuple(hidden))
    ]
    return {
        "date": datetime.date.today().isoformat(),
        "processor": names[0] if names else platform.processor(),
        "instructions": kinds,
        "hidden": hidden,
        "threads": threads(),
        "device": (device or jax.devices()[0]).device_kind,
        "kernels": dml.kernels(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))} | {"jaxdml": dml.__version__},
    }


def has_int8_products(instructions: list[str]) -> bool:
    return bool({"avx512_vnni", "avx_vnni"} & set(instructions))


def best_of(instructions: list[str]) -> str:
    """The instructions of a CPU that products of integers use."""
    kinds = "amx_int8", "avx512_vnni", "avx_vnni", "avx2"
    return next((kind for kind in kinds if kind in instructions), "other")


def name_of(device: Any, instructions: list[str]) -> str:
    """The name of the results of a whole run: the instructions of a CPU, or the kind of another device."""
    if device.platform == "cpu":
        return f"cpu_{best_of(instructions)}"
    return f"{device.platform}_{re.sub('[^a-z0-9]+', '_', device.device_kind.lower()).strip('_')}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
