"""Chooses the observer for "auto": quantizes with each candidate, and measures the models on the batches."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jaxdml.errors import PtqError
from jaxdml.ptq._grids.observers import CHOICES, Auto, Observer
from jaxdml.ptq._trace.values import Value

Observers = Mapping[Value, Observer]
PARTS = 16  # of an output, in which errors are summed


def check_batches(observers: Observers, batches: Iterable[Any]) -> None:
    """Rejects batches that can be read only once, if an observer is "auto".

    Raises:
      PtqError: if batches is an iterator.
    """
    if any(isinstance(each, Auto) for each in observers.values()) and iter(batches) is batches:
        text = f"batches is a {type(batches).__name__}, which can be read only once"
        raise PtqError(f"observer='auto' reads the batches twice, but {text}: write list(batches)")


def candidates_of(observers: Observers) -> dict[str, Observers]:
    """Maps each choice to the observers with every `Auto` set to it; a single entry if there is no `Auto`."""
    if not any(isinstance(each, Auto) for each in observers.values()):
        return {"": observers}
    return {
        choice: {value: replace(x, choice=choice) if isinstance(x, Auto) else x for value, x in observers.items()}
        for choice in CHOICES
    }


def best_of(
    models: Mapping[str, Callable[..., Any]], floats: Callable[..., Any], batches: Iterable[tuple[Any, ...]],
    progress: bool,
) -> str:  # fmt: skip
    """The name of the model whose outputs have the least error on the batches; the first one in a tie.

    The error is noise over signal, summed over the output's leaves; both are sums of squares over all batches.

    Args:
      models: quantized functions of the inputs, keyed by name.
      floats: the float function of the inputs.
      batches: tuples of inputs.
      progress: whether to print the ratios on stderr.
    """
    powers = dict.fromkeys(models, np.zeros(()))
    for inputs in batches:
        exact = jax.tree.leaves(floats(*inputs))
        for name, model in models.items():
            received = jax.tree.leaves(model(*inputs))
            powers[name] = powers[name] + [_powers(a, b) for a, b in zip(received, exact, strict=True)]
    errors = {name: float(np.sum(_ratios(*each.T))) for name, each in powers.items()}
    best = min(errors, key=lambda name: errors[name])
    if progress:
        with np.errstate(divide="ignore"):
            shown = ", ".join(f"{name} {-10 * np.log10(error):.1f} dB" for name, error in errors.items())
        print(f"observer: {best}, from the outputs' signal to noise: {shown}", file=sys.stderr)
    return best


def _powers(received: Any, exact: Any) -> np.ndarray:
    """Sums of squares of the noise and of the signal. Equal elements, which may be infinite, add no noise."""
    dtype = np.complex128 if np.iscomplexobj(exact) else np.float64
    powers = np.zeros(2)
    # One part after the other, because arrays of the wider type take several times the memory of the outputs.
    for parts in zip(*(np.array_split(np.ravel(x), PARTS) for x in (received, exact)), strict=True):
        noisy, right = (x.astype(dtype) for x in parts)
        noise = np.subtract(noisy, right, out=np.zeros_like(right), where=noisy != right)
        signal = right[np.isfinite(right)]
        powers += [np.sum(np.square(np.abs(each))) for each in (noise, signal)]
    return powers


def _ratios(noise: np.ndarray, signal: np.ndarray) -> np.ndarray:
    """Noise over signal; 0 where there is no noise, infinity where there is noise but no signal."""
    return np.where(noise == 0, 0, np.divide(noise, signal, out=np.full_like(noise, np.inf), where=signal != 0))
