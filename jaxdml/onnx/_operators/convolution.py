"""Float convolutions and transposed convolutions; quantized convolutions use `conv_options`, too."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxdml._quantized.windows import Pairs, check_convolution, explicit_padding, for_each
from jaxdml.errors import ModelError
from jaxdml.onnx._operators._arrays import EXACT, Array, accumulator_type
from jaxdml.onnx._operators.activations import fused_activation
from jaxdml.onnx._table import FLOAT, MICROSOFT, operator

Sizes = tuple[int, ...]
SAME = ("SAME_UPPER", "SAME_LOWER")


def padding_option(auto_pad: str, pads: Sizes | None) -> Pairs | int | str:
    """The padding: a pair for each dimension, 0 for no padding, or an `auto_pad` that depends on the input's size.

    Raises:
      ModelError: if `auto_pad` is unknown, or the number of pads is odd.
    """
    if auto_pad in SAME:
        return auto_pad
    if auto_pad not in ("NOTSET", "VALID"):
        raise ModelError(f"auto_pad is {auto_pad!r}, expected NOTSET, VALID, {' or '.join(SAME)}")
    if auto_pad == "VALID" or not pads:
        return 0
    if len(pads) % 2:
        raise ModelError(f"pads has {len(pads)} elements, expected two for each dimension")
    rank = len(pads) // 2
    return tuple(zip(pads[:rank], pads[rank:], strict=True))


def conv_options(
    *,
    auto_pad: str = "NOTSET",
    dilations: Sizes | None = None,
    group: int = 1,
    kernel_shape: Sizes | None = None,
    pads: Sizes | None = None,
    strides: Sizes | None = None,
) -> dict[str, Any]:
    """The options of a convolution; an int applies to all dimensions. `kernel_shape` is only validated."""
    return {
        "strides": strides or 1,
        "dilations": dilations or 1,
        "padding": padding_option(auto_pad, pads),
        "group_count": group,
        "kernel_shape": kernel_shape,
    }


@operator("Conv", types=(FLOAT, FLOAT, FLOAT), kind="conv", has_rule=False, options=conv_options)
def conv(
    x: Array, w: Array, bias: Array | None = None, *,
    strides: int | Sizes = 1, dilations: int | Sizes = 1, padding: Pairs | int | str = 0, group_count: int = 1,
    kernel_shape: Sizes | None = None,
) -> Array:  # fmt: skip
    """A convolution of [N, C, *space] with a filter [outputs, C / groups, *kernel]."""
    check_convolution(x, w, kernel_shape)
    sizes, kernel = x.shape[2:], w.shape[2:]
    total = lax.conv_general_dilated(
        x,
        w,
        for_each("strides", strides, len(kernel)),
        explicit_padding(padding, sizes, kernel, strides, dilations),
        rhs_dilation=for_each("dilations", dilations, len(kernel)),
        feature_group_count=group_count,
        precision=EXACT,
        preferred_element_type=accumulator_type(x),
    )
    return _with_bias(total, bias, x.dtype)


def _with_bias(total: Array, bias: Array | None, dtype: Any) -> Array:
    if bias is not None:
        if bias.shape != total.shape[1:2]:
            raise ModelError(f"the bias has shape {bias.shape}, and the result has {total.shape[1]} channels")
        total = total + jnp.asarray(bias).astype(total.dtype).reshape(1, -1, *(1,) * (total.ndim - 2))
    return total.astype(dtype)


def fused_conv_options(
    *, activation: str | None = None, activation_params: tuple[float, ...] | None = None, auto_pad: str = "NOTSET",
    dilations: Sizes | None = None, group: int = 1, kernel_shape: Sizes | None = None, pads: Sizes | None = None,
    strides: Sizes | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The options of a convolution, and the activation; a node without an activation uses the identity."""
    options = conv_options(
        auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads, strides=strides
    )
    activate = (lambda x: x) if activation is None else fused_activation(activation, activation_params or ())
    return options | {"activate": activate}


@operator("FusedConv", domain=MICROSOFT, types=(FLOAT,) * 4, has_rule=False, options=fused_conv_options)
def fused_conv(
    x: Array, w: Array, bias: Array | None = None, addend: Array | None = None, *,
    activate: Callable[[Array], Array], **options: Any,
) -> Array:  # fmt: skip
    """`conv`, plus an array of the result's shape, then an activation."""
    y = conv(x, w, bias, **options)
    if addend is not None and addend.shape != y.shape:
        raise ModelError(f"Z has shape {addend.shape}, expected {y.shape}, that of the convolution's result")
    return activate(y if addend is None else y + addend)


@operator("ConvTranspose", types=(FLOAT, FLOAT, FLOAT), has_rule=False)
def conv_transpose(
    x: Array, w: Array, bias: Array | None = None, *,
    auto_pad: str = "NOTSET", dilations: Sizes | None = None, group: int = 1, kernel_shape: Sizes | None = None,
    output_padding: Sizes | None = None, output_shape: Sizes | None = None, pads: Sizes | None = None,
    strides: Sizes | None = None,
) -> Array:  # fmt: skip
    """A transposed convolution of [N, C, *space] with a filter [C, outputs / groups, *kernel]."""
    check_convolution(x, w, kernel_shape)
    sizes, kernel, rank = x.shape[2:], w.shape[2:], x.ndim - 2
    steps, spaces = for_each("strides", strides or 1, rank), for_each("dilations", dilations or 1, rank)
    extra = for_each("output_padding", output_padding or 0, rank, least=0)
    if output_shape is None and auto_pad in SAME:
        output_shape = tuple(size * step for size, step in zip(sizes, steps, strict=True))
    padding = padding_option("NOTSET" if auto_pad in SAME else auto_pad, pads)
    cut = explicit_padding(padding, sizes, kernel, steps, spaces)
    reach = [(k - 1) * space for k, space in zip(kernel, spaces, strict=True)]
    if output_shape is not None:
        target = for_each("output_shape", output_shape[-rank:], rank)
        full = [(n - 1) * s + r + 1 + e for n, s, r, e in zip(sizes, steps, reach, extra, strict=True)]
        cut = _cropping(target, full, larger_start=auto_pad != "SAME_UPPER")
    total = lax.conv_general_dilated(
        x,
        _transposed(w, group),
        (1,) * rank,
        [(r - start, r - end + e) for r, (start, end), e in zip(reach, cut, extra, strict=True)],
        lhs_dilation=steps,
        rhs_dilation=spaces,
        feature_group_count=group,
        precision=EXACT,
        preferred_element_type=accumulator_type(x),
    )
    return _with_bias(total, bias, x.dtype)


def _cropping(target: Sequence[Any], full: Sequence[Any], larger_start: bool) -> Pairs:
    """How many elements to crop at the start and at the end of each dimension to reach the target size."""
    total = [size - smaller for size, smaller in zip(full, target, strict=True)]
    halves = [(each // 2, each - each // 2) for each in total]
    return tuple((large, small) if larger_start else (small, large) for small, large in halves)


def _transposed(w: Array, groups: int) -> Array:
    """The filter [inputs, outputs / groups, ...] as [outputs, inputs / groups, ...], for the equivalent convolution."""
    inputs, outputs, *kernel = w.shape
    if inputs % groups:
        raise ModelError(f"{inputs} input channels are not a multiple of {groups} groups")
    w = jnp.asarray(w).reshape(groups, inputs // groups, outputs, *kernel)
    w = jnp.swapaxes(w, 1, 2).reshape(groups * outputs, inputs // groups, *kernel)
    return jnp.flip(w, tuple(range(2, w.ndim)))
