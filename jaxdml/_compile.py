"""Descs as functions: create, compile, initialize and dispatch, as in DirectML."""

import dataclasses
import functools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml import _views
from jaxdml._bindings import OUTPUT, absent, check_buffer, check_names, elements, inputs, is_shaped
from jaxdml._data_types import TensorFlags
from jaxdml._desc_table import desc_table
from jaxdml._ops.element_wise_dequantize_linear import element_wise_dequantize_linear
from jaxdml._ops.element_wise_quantize_linear import element_wise_quantize_linear
from jaxdml._ops.element_wise_quantized_linear_add import element_wise_quantized_linear_add
from jaxdml._ops.quantized_linear_convolution import quantized_linear_convolution
from jaxdml._ops.quantized_linear_matrix_multiply import quantized_linear_matrix_multiply
from jaxdml._prepare import prepare_convolution_filter, prepare_matrix_multiply_b
from jaxdml._strides import reach
from jaxdml._tensor_rules import broken
from jaxdml._validate import validate
from jaxdml.descs import OperatorDesc, QuantizedLinearConvolutionDesc, QuantizedLinearMatrixMultiplyDesc, page_name
from jaxdml.feature_levels import FeatureLevel

FUNCTIONS: dict[str, Any] = {
    function.__name__: function
    for function in (
        element_wise_dequantize_linear,
        element_wise_quantize_linear,
        element_wise_quantized_linear_add,
        quantized_linear_convolution,
        quantized_linear_matrix_multiply,
    )
}


def compile_operator(desc: OperatorDesc, feature_level: FeatureLevel = FeatureLevel.LATEST) -> "CompiledOperator":
    """Checks a desc and returns the function that it stands for.

    Args:
      desc: an operator desc; the strides of its tensors say how flat buffers are read and written.
      feature_level: the level whose rules are checked.

    Returns:
      CompiledOperator, to be called with the tensors by name.

    Raises:
      DescError: naming operator, tensor and rule; FeatureLevelError where another level would allow it.

    Source: DirectML, IDMLDevice::CreateOperator and IDMLDevice::CompileOperator.
    """
    validate(desc, feature_level)
    for name, tensor in desc.tensors().items():
        if tensor is None or tensor.strides is None or _views.is_reshape(tensor):
            continue
        if reach(tensor.sizes, tensor.strides) >= 2**31:
            text = f"has Strides {list(tensor.strides)}, not rows of rows, across 2**31 or more elements; pack it"
            raise broken(desc.operator, name, "strides", text, expected="nested strides", received=tensor.strides)
    return CompiledOperator(desc, feature_level)


@dataclasses.dataclass(frozen=True)
class CompiledOperator:
    """An operator desc as a pure function, made by `compile_operator`. It goes through jit, vmap and grad.

    A tensor without strides is an array of the desc's sizes, one with strides a flat buffer: an array of rank 1 with
    all elements that the strides reach. Flat buffers do for both. Tensors flagged OWNED_BY_DML go to `initialize`,
    once; what that returns is the first argument of the call, the other tensors follow by name:

        op = compile_operator(desc)
        persistent = op.initialize(filter_tensor=weights)
        output = op(persistent, input_tensor=x, input_scale_tensor=x_scale, ...)

    Attributes:
      desc: the operator desc.
      feature_level: the level at which it was checked.
      owned: the names of the tensors that `initialize` takes.
      dispatched: the names of those that the call takes.
    """

    desc: OperatorDesc
    feature_level: FeatureLevel

    @property
    def owned(self) -> tuple[str, ...]:
        return inputs(self.desc, TensorFlags.OWNED_BY_DML)

    @property
    def dispatched(self) -> tuple[str, ...]:
        return inputs(self.desc, TensorFlags.NONE)

    def __str__(self) -> str:
        return str(desc_table(self.desc, self.feature_level))

    def _repr_html_(self) -> str:
        return desc_table(self.desc, self.feature_level).html()

    def initialize(self, **tensors: Any) -> dict[str, Any]:
        """Takes the tensors that the desc flags OWNED_BY_DML, and repacks weights for the operator.

        Args:
          **tensors: arrays or flat buffers, by the names in `owned`.

        Returns:
          The persistent resource: by name an array, or a `PreparedFilter` or `PreparedMatrix`. It is a pytree.

        Raises:
          DescError: if a tensor is missing or not what the desc says.

        Source: DirectML, IDMLDevice::CreateOperatorInitializer.
        """
        check_names(self.desc, "initialize", self.owned, tensors)
        for name in self.owned:
            check_buffer(self.desc, name, tensors[name])
        return _initialize(self.desc, {name: tensors[name] for name in self.owned})

    def __call__(
        self, persistent: dict[str, Any] | None = None, /, *, output_tensor: Any = None, **tensors: Any
    ) -> jax.Array:
        """Computes the output.

        Args:
          persistent: what `initialize` returned, if tensors are OWNED_BY_DML.
          output_tensor: None, or a flat buffer to write the output into: what lies in gaps between its elements, and
            behind them, is kept.
          **tensors: arrays or flat buffers, by the names in `dispatched`.

        Returns:
          With output_tensor, that buffer, written. Without, an array of the output's sizes if its desc has no strides,
          or else a flat buffer that reaches as far as the strides, or as TotalTensorSizeInBytes if that is more than
          the minimum, with zeros in the gaps.

        Raises:
          DescError: if a tensor is missing, not in the desc, too small or of another type.

        Source: DirectML, IDMLCommandRecorder::RecordDispatch.
        """
        check_names(self.desc, "the call", self.dispatched, tensors)
        for name in self.dispatched:
            check_buffer(self.desc, name, tensors[name])
        if output_tensor is not None:
            check_buffer(self.desc, OUTPUT, output_tensor)
        persistent = {} if persistent is None else persistent
        self._check_persistent(persistent)
        given = {name: tensors[name] for name in self.dispatched}
        return _dispatch(self, persistent, given, output_tensor)

    def _check_persistent(self, persistent: dict[str, Any]) -> None:
        is_dict = isinstance(persistent, dict) and all(isinstance(name, str) for name in persistent)
        if is_dict and _structure(persistent) == _structure_of_persistent(self.desc):
            return
        if not self.owned:
            name, text = "persistent", "is given, but no tensor has Flags OWNED_BY_DML; leave the first argument out"
        else:
            name, arguments = page_name(self.owned[0]), ", ".join(f"{name}=..." for name in self.owned)
            text = "has Flags OWNED_BY_DML: the first argument of the call must be what "
            text += f"initialize({arguments}) returns for this desc"
        raise broken(self.desc.operator, name, "persistent", text, expected=self.owned, received=type(persistent))


def _structure(persistent: Any) -> Any:
    leaves, tree = jax.tree.flatten(persistent)
    return tree, [(leaf.shape, leaf.dtype) if isinstance(leaf, jax.Array | np.ndarray) else leaf for leaf in leaves]


@functools.lru_cache(maxsize=4096)
def _structure_of_persistent(desc: OperatorDesc) -> Any:
    tensors = {name: getattr(desc, name) for name in inputs(desc, TensorFlags.OWNED_BY_DML)}
    buffers = {
        name: jax.ShapeDtypeStruct((reach(tensor.sizes, tensor.strides),), tensor.data_type.dtype)
        for name, tensor in tensors.items()
    }
    leaves, tree = jax.tree.flatten(jax.eval_shape(partial(_initialize, desc), buffers))
    return tree, [(leaf.shape, leaf.dtype) for leaf in leaves]


@partial(jax.jit, static_argnums=0)
def _initialize(desc: OperatorDesc, buffers: dict[str, jax.Array]) -> dict[str, Any]:
    persistent: dict[str, Any] = {}
    for name, buffer in buffers.items():
        persistent[name] = tensor = _view(desc, name, buffer)
        if isinstance(desc, QuantizedLinearConvolutionDesc) and name == "filter_tensor":
            group_count: Any = desc.group_count
            persistent[name] = prepare_convolution_filter(tensor, group_count=group_count)
        elif isinstance(desc, QuantizedLinearMatrixMultiplyDesc) and name == "b_tensor":
            persistent[name] = prepare_matrix_multiply_b(tensor)
    return persistent


@partial(jax.jit, static_argnums=0)
def _dispatch(
    op: CompiledOperator, persistent: dict[str, Any], buffers: dict[str, jax.Array], output_buffer: jax.Array | None
) -> jax.Array:
    desc = op.desc
    tensors: dict[str, Any] = dict.fromkeys(absent(desc)) | persistent
    tensors |= {name: _view(desc, name, buffer) for name, buffer in buffers.items()}
    arguments: dict[str, Any] = {name.removesuffix("_tensor"): value for name, value in tensors.items()}
    if isinstance(desc, QuantizedLinearConvolutionDesc):
        names = ("strides", "dilations", "start_padding", "end_padding", "group_count")
        arguments |= {name: getattr(desc, name) for name in names}
    output = desc.tensors()["OutputTensor"]
    if desc.operator != "element_wise_dequantize_linear":  # whose output has the type of its scale
        arguments["output_dtype"] = output.data_type.dtype
    function = partial(FUNCTIONS[desc.operator], feature_level=op.feature_level)
    if isinstance(desc, QuantizedLinearMatrixMultiplyDesc):
        function = partial(_with_one_b, function)
    result = jnp.broadcast_to(function(**arguments), output.sizes)  # of one image, if strides of 0 repeat it
    if output_buffer is not None:
        return _views.write(result, output, output_buffer.reshape(-1)).reshape(output_buffer.shape)
    return result if output.strides is None else _views.write(result, output, None, elements(output))


def _with_one_b(function: Any, *, a: jax.Array, b: Any, **rest: Any) -> jax.Array:
    """The product, where strides of 0 may repeat one b for all of a: under vmap it is one product, and b no larger."""
    batch, ones = a.shape[:-2], b.shape[:-2]
    if batch == ones:
        return function(a=a, b=b, **rest)
    product = jax.vmap(lambda a: function(a=a, b=b, **rest))(a.reshape(-1, *ones, *a.shape[-2:]))
    return product.reshape(*batch, *product.shape[-2:])


def _view(desc: OperatorDesc, name: str, buffer: jax.Array) -> jax.Array:
    """The tensor in a buffer, as the operator's function takes it."""
    tensor = getattr(desc, name)
    x = buffer if is_shaped(tensor, buffer) else _views.read(buffer, tensor)
    if "scale" not in name and "zero_point" not in name:
        own = 0  # dimensions that the computation repeats where it needs to
        if isinstance(desc, QuantizedLinearMatrixMultiplyDesc) and name == "b_tensor" and {*x.shape[:-2]} <= {1}:
            own = x.ndim - 2
        elif isinstance(desc, QuantizedLinearConvolutionDesc) and name == "input_tensor":
            own = 1
        return jnp.broadcast_to(x, (*x.shape[:own], *tensor.sizes[own:]))
    # The functions repeat scales and zero points themselves. They take those of a 3-D convolution in 3-D.
    rank = len(desc.tensors()["OutputTensor"].sizes)
    return x.reshape(-1) if x.ndim > rank else x
