"""python -m benchmarks.without_avx512 -m benchmarks: runs a Python command with the processor's AVX-512 hidden.

A processor with AVX-512 has AVX2, too. Libraries query the processor's features with the instruction cpuid. Here the
libraries are copied to build/, each cpuid in them becomes a trap, and a handler of the traps hides AVX-512, AVX-VNNI
and AMX: onnxruntime, XLA and jaxdml then run their code for AVX2. Needs Linux, cc and binutils.
"""

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "build" / "without_avx512"
HANDLER = Path(__file__).with_suffix(".c")
PACKAGES = ("jaxlib", "onnxruntime")
CPUID, TRAP = b"\x0f\xa2", b"\xcc\x90"  # int3, and a nop in place of the second byte


def replace_cpuid(library: Path) -> int:
    """Turns each cpuid of a shared library into a trap; returns how many there were."""
    headers = subprocess.run(["readelf", "-lW", library], capture_output=True, text=True, check=True).stdout
    loaded = re.findall(r"LOAD +(0x\w+) +(0x\w+) +0x\w+ +(0x\w+)", headers)
    sections = [tuple(int(number, 16) for number in numbers) for numbers in loaded]  # offset, address, size
    code = bytearray(library.read_bytes())
    count = 0
    with subprocess.Popen(["objdump", "-d", "--no-show-raw-insn", library], stdout=subprocess.PIPE, text=True) as run:
        for line in run.stdout or ():
            if not (found := re.match(r"\s*([0-9a-f]+):\s+cpuid\b", line)):
                continue
            address = int(found[1], 16)
            at = next(offset + address - start for offset, start, size in sections if start <= address < start + size)
            if code[at : at + 2] != CPUID:
                raise ValueError(f"{library}: there is no cpuid at {address:#x}")
            code[at : at + 2] = TRAP
            count += 1
    if run.returncode:
        raise subprocess.CalledProcessError(run.returncode, "objdump")
    library.write_bytes(code)
    return count


def build_handler(to: Path) -> Path:
    """Builds the library that answers the traps; it must be loaded before the libraries with traps."""
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", HANDLER, "-o", to], check=True)
    return to


def prepare() -> Path:
    """The folder with the handler and a copy of each package; makes what is missing or older than its source.

    Other processes that prepare the folder wait, because tests that run at the same time share it.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _copy_packages()
        handler = FOLDER / "handler.so"
        if not handler.exists() or handler.stat().st_mtime < HANDLER.stat().st_mtime:
            build_handler(handler)
    return FOLDER


def _copy_packages() -> None:
    for name in PACKAGES:
        copy, mark = FOLDER / name, FOLDER / f"{name}-{metadata.version(name)}"
        if mark.exists():
            continue
        print(f"copying {name} to {copy}")
        for old in FOLDER.glob(f"{name}-*"):
            old.unlink()
        shutil.rmtree(copy, ignore_errors=True)
        (original,) = importlib.util.find_spec(name).submodule_search_locations
        shutil.copytree(original, copy)
        count = sum(replace_cpuid(library) for library in copy.rglob("*.so*") if not library.is_symlink())
        print(f"{name}: {count} times cpuid")
        mark.touch()


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: python -m benchmarks.without_avx512 -m benchmarks [options]")
    folder = prepare()
    path = os.pathsep.join([str(folder), os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])])
    seen = {"LD_PRELOAD": str(folder / "handler.so"), "PYTHONPATH": path}
    environment = os.environ | seen | {"JAXDML_KERNELS": "avx2", "BENCHMARKS_WITHOUT": "avx512 avx_vnni amx"}
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
