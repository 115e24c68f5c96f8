"""The product of floats and a matrix quantized by blocks: an operator of jaxdml that DirectML does not have."""

import math
import numbers
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._arithmetic import block_panels, blocks
from jaxdml._arithmetic.one_operation import as_one_operation
from jaxdml._arithmetic.prepared import Prepared
from jaxdml._arithmetic.prepared_blocks import PreparedBlocks, size_of
from jaxdml._directml.desc import page_name
from jaxdml._directml.messages import broken, listed, raising_as, shown
from jaxdml._operators.arguments import described
from jaxdml.errors import ArgumentTypeError, DescError, api_boundary
from jaxdml.typing import Array, Scale, ZeroPoint

NAME = "matrix_multiply_blocks"
PLANES = {"int8": 1, "int15": 2, "int22": 3}  # the number of int8 planes into which each integer of `a` is split
FLOATS, WEIGHTS, SCALES = ("float32", "float16", "bfloat16"), ("uint4", "int4", "uint8", "int8"), ("float32", "float16")


@api_boundary
def matrix_multiply_blocks(
    a: Array,
    b: Array | PreparedBlocks,
    b_scale: Scale | None = None,
    b_zero_point: ZeroPoint | None = None,
    *,
    bias: Array | None = None,
    precision: Literal["int8", "int15", "int22"] = "int22",
) -> jax.Array:
    """Product of floats and a matrix of 4-bit or 8-bit integers quantized by blocks, as in language models.

    [..., K] x [N, K] = [..., N]: ``a @ dequantize(b, b_scale, b_zero_point).T + bias``, computed without dequantizing
    `b`. Each block of a row of `a` is rounded to integers with its own scale, so that all products are exact, and the
    result has the same bits in every batch and on every processor. `precision` determines how finely `a` is rounded:

    - int8: -127 to 127. With blocks of 32 Gaussian values, the noise from rounding `a` is 45 dB below the result.
      MatMulNBits of ONNX Runtime rounds in the same way at accuracy level 4.
    - int15: -16,319 to 16,319, 87 dB.
    - int22: -2,088,895 to 2,088,895, 128 dB, as good as a float32 product or better.

    This extension belongs to `FeatureLevel.JAXDML`; DirectML does not have it. The derivatives are those of the product
    of floats.

    Args:
      a: float32, float16 or bfloat16 array [..., K] of rank 1 or more.
      b: uint4, int4, uint8 or int8 array [N, K], or the result of `prepare_matrix_multiply_blocks`.
      b_scale: float32 or float16 array [N, blocks]; None if `b` is prepared, because prepared weights contain their
        scales. A block has 16, 32, 64, 128 or 256 elements along K, and the last block may have fewer. The block size
        follows from the shapes: it is the smallest of these sizes for which ceil(K / size) is `blocks`. There are no
        blocks of 48: with K = 96 and scales [N, 2], the first block has 64 elements, and the last has 32. For two
        blocks of 48, repeat each scale and zero point three times, which makes six blocks of 16.
      b_zero_point: None, or array of b's type and b_scale's shape. None means 0 for a signed `b`, and the middle of
        its range for an unsigned one (8 or 128).
      bias: None, or float array [N] of a type that `a` may have.
      precision: "int8", "int15" or "int22".

    Returns:
      Array [..., N] of a's type.

    Raises:
      DescError: if types or shapes do not match.

    Source: ONNX Runtime, com.microsoft.MatMulNBits,
    https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md, for the shapes and default zero points.
    """
    count = _planes(precision)
    _check_type("a", a, FLOATS, _float_advice)
    if a.ndim < 1:
        raise _error("a", "dimension_count", "has no dimension, expected [..., K]; write a[None]")
    if isinstance(b, Prepared):
        _check_prepared(b, b_scale, b_zero_point)
    else:
        _check_matrix(b, b_scale, b_zero_point, depth=a.shape[-1])
    columns, depth = b.shape
    if a.shape[-1] != depth:
        fix = "b must be [N, K], not [K, N]; write b.T" if columns == a.shape[-1] else "cut or pad `a`"
        text = f"has {a.shape[-1]} elements to a row, but b has shape {list(b.shape)}, and K is {depth}; {fix}"
        raise _error("a", "sizes", text, expected=depth, received=a.shape[-1])
    if bias is not None:
        _check_type("bias", bias, FLOATS, _float_advice, (columns,))
        if bias.shape != (columns,):
            text = f"has shape {list(bias.shape)}, expected [{columns}], one number for each row of b"
            raise _error("bias", "sizes", text, expected=(columns,), received=bias.shape)
    return _compute(count, a, b, b_scale, b_zero_point, bias)


@api_boundary
def prepare_matrix_multiply_blocks(b: Array, b_scale: Scale, b_zero_point: ZeroPoint | None = None) -> PreparedBlocks:
    """Repacks `b`, its scales and zero points once, for all later calls of `matrix_multiply_blocks`.

    The results have the same bits as with the arrays. The prepared matrix is a pytree with one leaf and works with jit,
    vmap and scan; pass it to a jitted function as an argument. It takes about as much memory as the arrays, with two
    4-bit weights per byte and N padded to a multiple of 64.

    To save the result, save its `array`, `scale` and `zero_point`, and prepare them again after loading; pickle does so
    automatically. To shard the result, shard the arrays first. This does not work on explicit mesh axes: there, each
    device holds the whole result. For `jax.export`, prepare under `use_kernels("xla")`.

    Args:
      b: uint4, int4, uint8 or int8 array [N, K].
      b_scale: float32 or float16 array [N, blocks], as for `matrix_multiply_blocks`. The block size is a power of two
        from 16 to 256 and follows from the shapes: with K = 96 and scales [N, 2], blocks have 64 and 32 elements.
      b_zero_point: None, or array of b's type and b_scale's shape.

    Returns:
      PreparedBlocks with b's shape and type. Pass it as `b`, without scales and zero points.

    Raises:
      DescError: if types or shapes do not match.

    Source: DirectML, DML_TENSOR_FLAG_OWNED_BY_DML,
    https://learn.microsoft.com/windows/win32/api/directml/ne-directml-dml_tensor_flags
    """
    with raising_as(prepare_matrix_multiply_blocks.__name__):
        if isinstance(b, Prepared):
            text = f"is a {type(b).__name__}, expected an array; b is already prepared"
            raise _error("b", "array", text, error=ArgumentTypeError, received=type(b).__name__)
        _check_matrix(b, b_scale, b_zero_point)
    given = [x for x in (b, b_scale, b_zero_point) if x is not None]
    is_on_one = all(not isinstance(x, jax.Array) or _is_on_one_device(x) for x in given)
    if all(isinstance(x, np.ndarray) for x in given):
        return jax.device_put(PreparedBlocks.of(b, b_scale, b_zero_point))
    return _prepare(b, b_scale, b_zero_point, is_on_one)


def _is_on_one_device(x: jax.Array) -> bool:
    return isinstance(x, jax.core.Tracer) or len(x.sharding.device_set) == 1


# Checks --------------------------------------------------------------------------------------------------------------


def _error(name: str, rule: str, text: str, **facts: Any) -> DescError:
    return broken(NAME, page_name(f"{name}_tensor"), rule, text, **facts)


def _planes(precision: Any) -> int:
    if isinstance(precision, str) and precision in PLANES:
        return PLANES[precision]
    text = f"is {shown(precision)}, expected {listed(map(repr, PLANES))}"
    raise broken(NAME, "precision", "precision", text, expected=tuple(PLANES), received=precision)


def _check_type(name: str, x: Any, types: tuple[str, ...], advice: Any, shape: Any = "") -> None:
    """Checks that x is an array of one of the types.

    advice(name, x) is the remedy for an array of another type. For a number, the remedy is `jnp.full` with `shape`.
    """
    if x is None:
        raise _error(name, "required", f"is None, but required; give {name}", error=ArgumentTypeError)
    if not isinstance(x, jax.Array) and type(x) is not np.ndarray:
        text = f"is {described(x)}, expected an array"
        array = f"full({shape}, {name}" if shape and isinstance(x, numbers.Real) else f"asarray({name}"
        text += f" of {listed(types)}" if types == WEIGHTS else f"; write jnp.{array}, jnp.{types[0]})"
        raise _error(name, "array", text, error=ArgumentTypeError, received=described(x))
    if str(x.dtype) not in types:  # x.dtype.name is the same in both byte orders
        text = f"has type {x.dtype}, expected {listed(types)}; {advice(name, x)}"
        raise _error(name, "data_type", text, expected=types, received=x.dtype)


def _float_advice(name: str, x: Any) -> str:
    return f"write {name}.astype(jnp.float32)"


def _weight_advice(name: str, x: Any) -> str:
    if jnp.issubdtype(x.dtype, jnp.floating):
        call = f"{name}, {name}_scale = jaxdml.ptq.quantize_weights({name}, axis=0, block_size=32)"
        return f"quantize it first: {call}; axis=1 if {name} is [K, N]"
    return f"write {name}.astype(jnp.int8), if int8 holds its values"


def _check_matrix(b: Any, scale: Any, zero_point: Any, depth: Any = None) -> None:
    """Checks an array b with its scales and zero points; `depth` is the K of `a`, if it is known."""
    _check_type("b", b, WEIGHTS, _weight_advice)
    is_bytes = b.dtype.name == "uint8"
    is_half = depth is not None and b.ndim == 2 and b.shape[1] != depth and b.shape[1] * 2 - depth in (0, 1)
    is_packed = is_bytes and (b.ndim == 3 or is_half)
    if is_packed:
        own = "K" if depth is None else depth
        text = f"has type uint8 and shape {list(b.shape)}: two weights to a byte, as in MatMulNBits; unpack them: "
        text += f"jax.lax.bitcast_convert_type(b, jnp.uint4).reshape(len(b), -1)[:, :{own}]"
        raise _error("b", "packed", text, received=b.shape)
    if b.ndim != 2 or 0 in b.shape:
        text = f"has shape {list(b.shape)}, expected [N, K] with N, K > 0; use jax.vmap for a stack of matrices"
        raise _error("b", "sizes", text, received=b.shape)
    if depth is not None and b.shape[1] != depth:
        return  # the caller raises an error with both shapes
    rows, own_depth = b.shape
    right = _shape_of_scales(b.shape, getattr(zero_point, "shape", ()))
    _check_type("b_scale", scale, SCALES, _float_advice, right)
    if scale.ndim != 2 or scale.shape[0] != rows or not size_of(own_depth, scale.shape[1]):
        raise _error("b_scale", "blocks", _wrong_blocks(b.shape, scale.shape, right), received=scale.shape)
    if zero_point is None:
        return
    halves = [scale.shape[0], -(-scale.shape[1] // 2)]
    if b.dtype.name == "uint4" and getattr(zero_point, "dtype", None) == np.uint8 and list(zero_point.shape) == halves:
        text = f"has type uint8 and shape {halves}: two zero points to a byte, as in MatMulNBits; unpack them: "
        text += "jax.lax.bitcast_convert_type(b_zero_point, jnp.uint4).reshape(b_scale.shape[0], -1)"
        raise _error("b_zero_point", "packed", f"{text}[:, :b_scale.shape[1]]", received=zero_point.shape)
    advice = f"write b_zero_point.astype(b.dtype), if {b.dtype} holds its values"
    _check_type("b_zero_point", zero_point, (b.dtype.name,), lambda name, x: advice, "b_scale.shape")
    if zero_point.shape != scale.shape:
        text = f"has shape {list(zero_point.shape)}, expected b_scale's, {list(scale.shape)}"
        text += _zero_point_advice(zero_point.shape, scale.shape)
        raise _error("b_zero_point", "sizes", text, expected=scale.shape, received=zero_point.shape)


def _zero_point_advice(shape: tuple[int, ...], scale: tuple[int, ...]) -> str:
    if math.prod(shape) == math.prod(scale):
        return f"; write b_zero_point.{'T' if shape == scale[::-1] else 'reshape(b_scale.shape)'}"
    if shape == scale[:1]:
        return "; write jnp.broadcast_to(b_zero_point[:, None], b_scale.shape)"
    return "; write jnp.broadcast_to(b_zero_point, b_scale.shape)" if shape in ((), (1,), (scale[0], 1)) else ""


def _shape_of_scales(matrix: tuple[int, ...], zero_point: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that scales should have if theirs does not fit `b`.

    It is the zero points' shape if that fits `b`, else the shape with the fewest blocks.
    """
    rows, depth = matrix
    fits = len(zero_point) == 2 and zero_point[0] == rows and size_of(depth, zero_point[1])
    return zero_point if fits else (rows, -(-depth // block_panels.SIZES[-1]))


def _wrong_blocks(matrix: tuple[int, ...], scale: tuple[int, ...], right: tuple[int, ...]) -> str:
    """Says why scales do not fit a matrix, and which shapes fit; the remedy may repeat scales to the shape `right`."""
    rows, depth = matrix
    counts, elements = {-(-depth // size): size for size in reversed(block_panels.SIZES)}, math.prod(scale)
    fitting = listed(f"[{rows}, {count}] for blocks of {size}" for count, size in counts.items())
    text = f"has shape {list(scale)}, but b has shape {[rows, depth]}: expected {fitting}"
    if len(scale) == 2 and scale[1] == rows and size_of(depth, scale[0]):
        return f"{text}; write b_scale.T"
    is_by_row = scale[:1] in ((rows,), (elements,)) and elements % rows == 0 and scale != (depth,)
    if len(scale) != 2 and is_by_row and size_of(depth, elements // rows):
        return f"{text}; write b_scale.reshape(len(b), -1)"
    if [size for size in scale if size != 1] in ([], [rows]):  # one scale, or one for all blocks of each row
        return f"{text}; write jnp.broadcast_to(b_scale.reshape(-1, 1), {right})"
    if len(scale) == 2 and scale[0] == 1 and size_of(depth, scale[1]):
        return f"{text}; write jnp.broadcast_to(b_scale, ({rows}, {scale[1]}))"
    if scale and scale[-1] and not depth % scale[-1] and scale[0] == rows:
        return f"{text}; its blocks would have {depth // scale[-1]} elements: quantize with a size that is listed"
    return f"{text}; the last block may be shorter, but needs a scale, too"


def _check_prepared(b: Prepared, scale: Any, zero_point: Any) -> None:
    kind = type(b).__name__
    if not isinstance(b, PreparedBlocks):
        text = f"is a {kind}, expected an array or a PreparedBlocks; write prepare_matrix_multiply_blocks(b, b_scale)"
        raise _error("b", "array", text, error=ArgumentTypeError, expected=PreparedBlocks, received=kind)
    if not b.is_intact:
        text = f"is a {kind} whose data changed type or shape; prepare it again, or use jax.vmap for a stack"
        raise _error("b", "prepared", text, expected=PreparedBlocks, received=kind)
    for name, given in (("b_scale", scale), ("b_zero_point", zero_point)):
        if given is not None:
            text = f"is {described(given)}, but b is prepared, and has its own; leave {name} out"
            raise _error(name, "prepared", text, error=ArgumentTypeError, received=described(given))


_compute = as_one_operation(jax.jit(jax.named_scope(NAME)(blocks.multiplied), static_argnums=0))
_prepare = partial(jax.jit, static_argnums=3)(PreparedBlocks.of)
