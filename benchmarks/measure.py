"""Measures a case: compares bits, then times all contenders in one interleaved run."""

import contextlib
import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxdml as dml
from benchmarks.case import OURS, XLA, Case
from benchmarks.timing import interleaved, median

# Kinds of fusions, and where the kernels of their contractions come from.
FUSED = {"__ynn_fusion": "YNNPACK", "__triton_gemm": "Triton", "__triton_nested_gemm_fusion": "Triton"}


class WrongBitsError(Exception):
    """jaxdml's bits differ from NumPy's."""


def path_of(hlo: str) -> str:
    """How XLA runs a compiled program: its native kernels, its contractions and its other calls of libraries."""
    native = Counter(re.findall(r'custom_call_target="jaxdml_cpu_(\w+)"', hlo))
    others = Counter(re.findall(r'custom_call_target="(?!jaxdml_cpu_)([^"]+)"', hlo))
    fusions = dict(re.findall(rf"fusion\(.*?calls=%?([\w.-]+).*?({'|'.join(FUSED)})", hlo))
    for computation in re.split(r"\n\n", hlo):
        name = computation.strip().removeprefix("ENTRY ").removeprefix("%").split(" ")[0]
        for operation in re.findall(r" (dot|convolution)\(", computation):
            others[f"{FUSED[fusions[name]]} {operation}" if name in fusions else f"{operation} in a loop"] += 1
    parts = [f"native kernels: {_counted(native)}"] if native else []
    return "; ".join(parts + [_counted(others)] * bool(others)) or "one fused loop"


def _counted(kinds: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def compiled(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Callable[[], Any], dict[str, Any]]:
    """A call of the compiled function, and facts about the compiled program."""
    start = time.perf_counter()
    program = jax.jit(function).lower(*arguments).compile()
    seconds = time.perf_counter() - start
    facts = {
        "compile_seconds": round(seconds, 3),
        "temporary_bytes": program.memory_analysis().temp_size_in_bytes,
        "path": path_of(program.as_text()),
    }
    return lambda: program(*arguments).block_until_ready(), facts


def measure(case: Case, seconds: float, rounds: int = 200) -> dict[str, Any]:
    """Compares the whole output of every contender with NumPy's, then times them all, in at most `rounds` rounds.

    A peer that does not compile or run is not timed; its error is kept. jaxdml must run, and have the right bits.
    """
    expected = case.expected()
    calls, facts = {}, {}
    for name in (*case.calls, *case.jitted):
        try:
            call, facts[name] = _made(case, name)
            got = np.asarray(call())
        except Exception as error:
            if name in OURS:
                raise
            facts[name] = {"error": next((line.strip() for line in str(error).splitlines() if line.strip()), "")}
            continue
        calls[name] = call
        same_kind = got.shape == expected.shape and got.dtype == expected.dtype
        facts[name]["differing"] = int((got != expected).sum()) if same_kind else None
        if name in OURS and facts[name]["differing"] != 0:
            raise WrongBitsError(f"{case.family}, {case.name}: {name} does not have the bits that NumPy computes")
    for name, samples in interleaved(calls, seconds, rounds).items():
        facts[name] |= {"milliseconds": median(samples), "runs": len(samples)}
    own = facts[case.first]["milliseconds"]
    ratios = {name: float(f"{own / facts[name]['milliseconds']:.4g}") for name in calls if name != case.first}
    return {
        "family": case.family,
        "case": case.name,
        "outputs": int(expected.size),
        "multiply_adds": case.multiply_adds,
        "at_most": case.at_most if case.rival else None,
        "rival": case.rival,
        "form": case.first,
        "ratios": ratios,
        "contenders": facts,
    }


def _made(case: Case, name: str) -> tuple[Callable[[], Any], dict[str, Any]]:
    if name in case.calls:
        return case.calls[name], {}
    with dml.use_kernels("xla") if name == XLA else contextlib.nullcontext():
        return compiled(*case.jitted[name])


def decibels(outputs: np.ndarray, exact: np.ndarray) -> float:
    """The ratio of the exact outputs to the error."""
    return float(10 * np.log10(np.sum(np.square(exact)) / np.sum(np.square(outputs - exact))))
