"""Chooses scales of channels with which rounding to integers loses less accuracy.

All channels of a value share one step, so a channel of large values makes all others coarse. Scales divide the
channels, and multiply the weights applied to them: weights become coarser where values become finer.

The scale of a channel is (size of its values / size of its weights)**ALPHA, relative to the median over channels. The
size of weights is the root of the sum of their squares; each square is weighted by how much its output matters to the
next contractions. So two networks that compute the same function, with different factors between contractions, get the
same integers. The size of values is the root of their mean square, which one batch estimates well, or their largest
magnitude if that leaves much less noise.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdml.ptq._choose.edges import ChannelReader, Edge
from jaxdml.ptq._grids.channels import Channels

ALPHA = 0.5
ENOUGH = 64  # the fewest values of a channel from which to estimate its largest magnitude
LEAST = 2.0**-6  # the least size of a channel, relative to the median over channels; smaller sizes become this size
# Scales are used only if less than this share of the estimated noise remains. In small networks, the luck of rounding
# weights is worth 1 to 2 dB, more than smaller gains.
GAIN = 0.5
STEPS_OF_WEIGHTS = 127


def scales_of(
    edges: Sequence[Edge], constants: Mapping[str, Any], seen: Mapping[str, Channels]
) -> list[np.ndarray | None]:
    """The scales of each edge's channels; None if scales other than 1 gain little.

    Args:
      edges: edges in the order of execution.
      constants: maps names to weights.
      seen: maps the values that readers read to the observers of the values' channels.
    """
    found = list[np.ndarray | None]()
    importance = dict[str, np.ndarray]()  # of the outputs of contractions, keyed by the names of weights
    for edge in reversed(edges):
        noises = [
            _Noise(reader, constants[reader.weight], seen[reader.value], importance.get(reader.weight))
            for reader in edge.readers
        ]  # fmt: skip
        of_channels = np.zeros(edge.count)
        for noise in noises:
            np.add.at(of_channels, noise.reader.channels, noise.of_inputs)
        if edge.maker is not None:
            importance[edge.maker.weight_name] = of_channels
        found.append(_chosen(edge, noises, np.sqrt(of_channels)))
    return found[::-1]


def _chosen(edge: Edge, noises: "Sequence[_Noise]", weights: np.ndarray) -> np.ndarray | None:
    counts = (noise.count * len(noise.reader.channels) / edge.count for noise in noises)
    if min(counts) < ENOUGH or not all(np.isfinite(noise.sizes[0]).all() for noise in noises):
        return None
    chosen, least = None, sum(noise.of(np.ones(edge.count)) for noise in noises)
    for sizes in zip(*(noise.sizes for noise in noises), strict=True):
        values = np.zeros(edge.count)
        for noise, size in zip(noises, sizes, strict=True):
            np.maximum.at(values, noise.reader.channels, size)
        is_alive = (values > 0) & (weights > 0)
        if is_alive.any():
            values = np.maximum(values, LEAST * np.median(values[is_alive]))
            scales = np.divide(values, weights, out=np.ones(edge.count), where=is_alive) ** ALPHA
            scales = np.where(is_alive, scales / np.median(scales[is_alive]), 1).astype(np.float32)
            left = sum(noise.of(scales) for noise in noises)
            if left < GAIN * least:
                chosen, least = scales, left
    return chosen


class _Noise:
    """The noise that rounding adds to a contraction's result.

    Attributes:
      reader: the contraction.
      count: how many values of each input channel calibration has seen.
      sizes: the root of the mean square, and the largest magnitude, of each input channel.
      of_inputs: the importance of each input channel: its squared weights, weighted by the importance of the outputs.
    """

    def __init__(self, reader: ChannelReader, weight: Any, seen: Channels, importance: np.ndarray | None) -> None:
        of_groups = _of_groups(np.asarray(weight, np.float32), reader)
        groups, inputs, outputs, self._kernel = of_groups.shape
        self.reader, self.count = reader, float(seen.count) / (groups * inputs)
        self._largest = np.maximum(of_groups.max(3), -of_groups.min(3))
        importance = np.ones(groups * outputs) if importance is None else importance
        copies = groups * outputs // importance.size  # the matrices of a stack share the importance of a column
        self._importance = np.tile(importance, copies).reshape(groups, outputs)
        squares = np.einsum("giok,giok->gio", of_groups, of_groups)
        self.of_inputs = np.matmul(squares, self._importance[:, :, None].astype(np.float32)).reshape(-1).astype(float)
        self._low, self._high, sums = (np.asarray(x, np.float64) for x in (seen.low, seen.high, seen.squares))
        self._means = sums.reshape(groups, inputs) / max(self.count, 1)
        self.sizes = np.sqrt(self._means).reshape(-1), np.maximum(self._high, -self._low)

    def of(self, scales: np.ndarray) -> float:
        """The noise as a share of the result, if channels are divided by scales and weights multiplied by them."""
        own = scales[self.reader.channels].astype(np.float64)
        step = ((self._high / own).max() - (self._low / own).min()) / (2**self.reader.bits - 1)
        of_values = step**2 * (own**2 * self.of_inputs).sum()
        own = own.reshape(self._means.shape)
        steps = (own[:, :, None].astype(np.float32) * self._largest).max(1) / STEPS_OF_WEIGHTS
        of_weights = steps**2 * self._kernel * (self._means / own**2).sum(1, keepdims=True)
        signal = (self._means.reshape(-1) * self.of_inputs).sum()
        return float((of_values + (self._importance * of_weights).sum()) / signal) if signal > 0 else 0.0


def _of_groups(weight: np.ndarray, reader: ChannelReader) -> np.ndarray:
    """Weights as [groups, inputs of a group, outputs of a group, elements of the kernel]."""
    if reader.groups is None:
        rows = np.moveaxis(weight, -2, 0)
        return rows.reshape(1, len(rows), -1, 1)
    outputs, inputs = weight.shape[:2]
    return weight.reshape(reader.groups, outputs // reader.groups, inputs, -1).transpose(0, 2, 1, 3)
