"""Makes options of windows over spatial dimensions explicit."""

from collections.abc import Sequence
from typing import Any

from jaxdml._shapes import same_padding
from jaxdml.errors import ModelError

Sizes = Sequence[int]
Pairs = tuple[tuple[Any, Any], ...]


def for_each(name: str, sizes: int | Sizes, rank: int, least: int = 1) -> tuple[int, ...]:
    """A tuple with one number for each spatial dimension.

    Raises:
      ModelError: if there are not `rank` numbers, or if a number is below `least`.
    """
    each = (sizes,) * rank if isinstance(sizes, int) else tuple(sizes)
    if len(each) != rank or min(each, default=least) < least:
        raise ModelError(f"{name} are {each}, expected {rank} numbers of at least {least}")
    return each


def explicit_padding(
    padding: Pairs | int | str, sizes: Sequence[Any], kernel: Sizes, strides: int | Sizes, dilations: int | Sizes
) -> Pairs:
    """The padding before and after each spatial dimension.

    If a stride is longer than the window, the first window still starts at the first element. ONNX leaves this open;
    in ONNX Runtime, average and Lp pooling start at a different element than convolutions.

    Args:
      padding: pairs, returned unchanged; a number for all sides; or "SAME_UPPER" or "SAME_LOWER", which pad so that
        there are ``ceil(size / stride)`` windows; an odd element goes after (UPPER) or before (LOWER) the input.
      sizes: the spatial dimensions of the input.
      kernel, strides, dilations: options of the window.

    Raises:
      ModelError: if the number of pairs is not the number of dimensions.
    """
    rank = len(sizes)
    if isinstance(padding, int):
        return ((padding, padding),) * rank
    if not isinstance(padding, str):
        if len(padding) != rank:
            raise ModelError(f"pads are for {len(padding)} dimensions, the input has {rank}")
        return padding
    pairs = []
    options = for_each("strides", strides, rank), for_each("dilations", dilations, rank)
    for size, extent, stride, dilation in zip(sizes, kernel, *options, strict=True):
        total = same_padding(size, extent, stride, dilation)
        pairs.append((total // 2, total - total // 2) if padding == "SAME_UPPER" else (total - total // 2, total // 2))
    return tuple(pairs)


def check_convolution(x: Any, w: Any, kernel_shape: Sizes | None) -> None:
    """Validates the ranks of a convolution's input and filter, and the filter against `kernel_shape`.

    Raises:
      ModelError: if input, filter and `kernel_shape` do not match.
    """
    if x.ndim != w.ndim or x.ndim < 3:
        raise ModelError(f"input and filter have {x.ndim} and {w.ndim} dimensions, expected equal numbers, at least 3")
    if kernel_shape is not None and tuple(kernel_shape) != tuple(w.shape[2:]):
        raise ModelError(f"kernel_shape is {tuple(kernel_shape)}, the filter has {tuple(w.shape[2:])}")
