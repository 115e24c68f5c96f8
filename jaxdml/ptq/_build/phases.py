"""Transposed convolutions as convolutions of the image itself, without zeros between its pixels.

In a convolution with stride 1 of an image whose pixels lie `gap` apart, only every gap-th element of the kernel meets a
pixel. The phase of an output, its position modulo gap, determines which elements meet pixels. So the outputs of one
phase are a convolution of the image by every gap-th element of the kernel. One convolution with the filters of all
phases as output channels computes all phases, which are then interleaved.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from jaxdml._arithmetic.panels import namespace_of
from jaxdml.ptq._trace.rewrites import has_phases

Array = Any


class _Axis(NamedTuple):
    """The phases along one axis.

    Attributes:
      firsts: for each phase, the first element of the kernel that meets a pixel.
      places: for each phase, the position of this element in the kernel that all phases share.
      gap: the distance between pixels, which is the number of phases.
      size: the size of the shared kernel.
      padding: the padding of the image.
      surplus: how many more outputs the interleaved phases have than the transposed convolution.
    """

    firsts: tuple[int, ...]
    places: tuple[int, ...]
    gap: int
    size: int
    padding: tuple[int, int]
    surplus: int

    @classmethod
    def of(cls, gap: int, size: int, low: int, high: int) -> Self:
        """The phases of a kernel of `size` elements; `low` and `high` are the padding of the dilated image."""
        firsts = tuple((low - phase) % gap for phase in range(gap))
        pixels = [(phase + first - low) // gap for phase, first in enumerate(firsts)]
        start = min(0, *pixels)
        places = tuple(pixel - start for pixel in pixels)
        # The number of outputs of a phase exceeds the number of the image's pixels by `more`.
        added = low + high - size + 2 - gap
        more = -(-added // gap)
        ends = (place + len(range(first, size, gap)) for place, first in zip(places, firsts, strict=True))
        length = max(1, 1 - start - more, *ends)
        return cls(firsts, places, gap, length, (-start, start + length - 1 + more), gap * more - added)

    def split(self, w: Array, axis: int) -> Array:
        """The filters of the phases, stacked along a new first axis; `axis`, an axis of w, counts from the end."""
        filters, xp = [], namespace_of(w)
        for first, place in zip(self.firsts, self.places, strict=True):
            taken = w[(..., slice(first, None, self.gap), *(slice(None),) * (-1 - axis))]
            pads = [(0, 0)] * w.ndim
            pads[axis] = (place, self.size - place - taken.shape[axis])
            filters.append(xp.pad(taken, pads))
        return xp.stack(filters)


@dataclass(frozen=True)
class Phases:
    """The phases of a transposed convolution.

    Attributes:
      axes: the phases along each spatial axis.
    """

    axes: tuple[_Axis, ...]

    @classmethod
    def of(cls, params: Mapping[str, Any], kernel: Sequence[int]) -> Self | None:
        """The phases of a conv_general_dilated with the given sizes of the kernel; None if phases cannot compute it."""
        if not has_phases(params):
            return None
        sizes = zip(params["lhs_dilation"], kernel, params["padding"], strict=True)
        return cls(tuple(_Axis.of(gap, size, *pair) for gap, size, pair in sizes))

    @property
    def count(self) -> int:
        """The number of phases."""
        return math.prod(axis.gap for axis in self.axes)

    @property
    def padding(self) -> tuple[tuple[int, int], ...]:
        """The padding of the image."""
        return tuple(axis.padding for axis in self.axes)

    @property
    def options(self) -> dict[str, Any]:
        """The options of `interleaved`."""
        return {"gaps": tuple(axis.gap for axis in self.axes), "surplus": tuple(axis.surplus for axis in self.axes)}

    def filters(self, w: Array) -> Array:
        """A filter [O, I, *kernel] as the filters of all phases, [phases * O, I, *kernel]."""
        for i in reversed(range(len(self.axes))):
            w = self.axes[i].split(w, i - len(self.axes))
        return w.reshape(-1, *w.shape[len(self.axes) + 1 :])


def interleaving(count: int) -> tuple[int, ...]:
    """The permutation of axes [N, *gaps, O, *spatial] to [N, O, size, gap, size, gap, ...] for `count` spatial axes."""
    return (0, 1 + count, *(axis for i in range(count) for axis in (2 + count + i, 1 + i)))


def interleaved(y: Array, *, gaps: Sequence[int], surplus: Sequence[int]) -> Array:
    """Interleaves phases [N, phases * O, *spatial] into an image [N, O, ...], and cuts off `surplus` at the ends."""
    batch, channels, *space = y.shape
    y = y.reshape(batch, *gaps, channels // math.prod(gaps), *space)
    y = y.transpose(interleaving(len(gaps)))
    y = y.reshape(*y.shape[:2], *(size * gap for size, gap in zip(space, gaps, strict=True)))
    return y[(..., *(slice(size * gap - cut) for size, gap, cut in zip(space, gaps, surplus, strict=True)))]
