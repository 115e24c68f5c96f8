"""Comparable times: medians of calls that are interleaved in one process, in random order."""

import random
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax


def interleaved(calls: dict[str, Callable[[], object]], seconds: float, rounds: int = 200) -> dict[str, list[float]]:
    """Milliseconds of each call, by name, taken in rounds until the seconds are spent; three rounds at least.

    In a round every call runs twice, in random order, and the second run counts: its caches are as warm as in a loop of
    this call alone. A call that has used up its share of the time leaves the later rounds to the others.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    spent = dict.fromkeys(calls, 0.0)
    order = list(calls)
    for _ in range(rounds):
        waiting = [name for name in order if len(samples[name]) < 3 or spent[name] < seconds / len(calls)]
        if not waiting:
            break
        random.shuffle(waiting)
        for name in waiting:
            start = time.perf_counter()
            calls[name]()
            middle = time.perf_counter()
            calls[name]()
            end = time.perf_counter()
            samples[name].append((end - middle) * 1e3)
            spent[name] += end - start
    return samples


def median(samples: Iterable[float]) -> float:
    return statistics.median(samples)


def in_turns(sides: dict[str, Callable[[int], Any]], runs: int, ahead: int = 3) -> dict[str, float]:
    """Seconds of each side until its result is ready: the median of `runs` runs, after `ahead` uncounted runs."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for run in range(-ahead, runs):
        for name, side in sides.items():
            start = time.perf_counter()
            jax.block_until_ready(side(run))
            if run >= 0:
                samples[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in samples.items()}
