"""Compiles descs into functions, in DirectML's steps: create, compile, initialize and dispatch."""

import dataclasses
import math
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdml._arithmetic.prepared import Prepared
from jaxdml._compiled import buffers
from jaxdml._compiled.bindings import (
    absent,
    check_bound,
    check_flags,
    check_names,
    check_strides,
    elements,
    inputs,
    is_shaped,
    outputs,
    slots_by_field,
)
from jaxdml._directml.data_types import TensorFlags
from jaxdml._directml.desc import OperatorDesc, Slot, fields_of, one_or_named, page_name, parameter_name, slots
from jaxdml._directml.desc_table import desc_table
from jaxdml._directml.feature_levels import FeatureLevel
from jaxdml._directml.fields import Tensor
from jaxdml._directml.messages import broken
from jaxdml._directml.strides import reach
from jaxdml._directml.validate import page_of, validate
from jaxdml._operators.call import OPERATORS
from jaxdml.errors import api_boundary


@api_boundary
def compile_operator(desc: OperatorDesc, feature_level: FeatureLevel = FeatureLevel.LATEST) -> "CompiledOperator":
    """Validates a desc and returns its operator as a function.

    Args:
      desc: an operator desc; the strides of its tensors describe how flat buffers are read and written.
      feature_level: the level whose rules apply.

    Returns:
      CompiledOperator, which takes the tensors by name.

    Raises:
      DescError: if the desc breaks a rule; the error names operator, tensor and rule.
      FeatureLevelError: if another level allows the desc.

    Source: https://learn.microsoft.com/windows/win32/api/directml/nf-directml-idmldevice-compileoperator
    """
    page_of(desc, "compile_operator")
    validate(desc, feature_level)
    check_flags(desc)
    check_strides(desc)
    return CompiledOperator(desc, feature_level)


@dataclasses.dataclass(frozen=True)
class CompiledOperator:
    """An operator desc as a pure function, which `compile_operator` returns. It supports jit, vmap and grad.

    A tensor with strides is a flat buffer: an array of rank 1 with all elements that the strides reach. A tensor
    without strides is an array of the desc's sizes or a flat buffer. `initialize` is called once, with the tensors
    flagged OWNED_BY_DML. Its result is the first argument of each call, which takes the other tensors by name::

        op = compile_operator(desc)
        persistent = op.initialize(filter_tensor=weights)
        output = op(persistent, input_tensor=x, input_scale_tensor=x_scale, ...)

    Attributes:
      desc: the operator desc.
      feature_level: the level at which it was validated.
      owned: the names of the tensors that `initialize` takes.
      dispatched: the names of the tensors that a call takes.
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

    @api_boundary
    def initialize(self, **tensors: Any) -> dict[str, Any]:
        """Binds the tensors flagged OWNED_BY_DML and packs weights for the operator.

        Args:
          **tensors: arrays or flat buffers, by the names in `owned`.

        Returns:
          The persistent resource, a dict with an array, `PreparedFilter` or `PreparedMatrix` for each name.

        Raises:
          DescError: if a tensor is missing or does not match the desc.

        Source: https://learn.microsoft.com/windows/win32/api/directml/nf-directml-idmldevice-createoperatorinitializer
        """
        check_names(self.desc, "initialize", self.owned, tensors)
        for name in self.owned:
            check_bound(self.desc, name, tensors[name])
        return _initialize(self.desc, {name: tensors[name] for name in self.owned})

    @api_boundary
    def __call__(self, persistent: dict[str, Any] | None = None, /, **tensors: Any) -> Any:
        """Computes the output.

        Args:
          persistent: the result of `initialize`, if tensors are OWNED_BY_DML.
          **tensors: arrays or flat buffers, by the names in `dispatched`; a field of several tensors takes a tuple. The
            name of an output, such as output_tensor, optionally takes a flat buffer to write into. Places between and
            after the elements keep their values.

        Returns:
          For an output with a buffer, the written buffer. Otherwise, an array of the output's sizes if its desc has no
          strides, else a flat buffer with zeros in the gaps. The flat buffer's length is the reach of the strides, or
          TotalTensorSizeInBytes if that is larger. Several outputs are returned as a named tuple.

        Raises:
          DescError: if a tensor is missing or not in the desc, or if an array is too small or has the wrong type.

        Source: https://learn.microsoft.com/windows/win32/api/directml/nf-directml-idmlcommandrecorder-recorddispatch
        """
        own = outputs(self.desc)
        targets = {name: tensors.pop(name, None) for name in own}
        check_names(self.desc, "the call", self.dispatched, tensors)
        for name in self.dispatched:
            check_bound(self.desc, name, tensors[name])
        for name, target in targets.items():
            if target is not None:
                check_bound(self.desc, name, target)
        persistent = {} if persistent is None else persistent
        self._check_persistent(persistent)
        given = {name: tensors[name] for name in self.dispatched}
        return _dispatch(self, persistent, given, targets)

    def _check_persistent(self, persistent: dict[str, Any]) -> None:
        is_dict = isinstance(persistent, dict) and all(isinstance(name, str) for name in persistent)
        has_arrays = is_dict and all(isinstance(x, jax.Array | np.ndarray) for x in jax.tree.leaves(persistent))
        if has_arrays and _structure(persistent) == _structure_of_persistent(self.desc):
            return
        if not self.owned:
            name, text = "persistent", "is given, but no tensor has Flags OWNED_BY_DML; leave the first argument out"
        else:
            name, arguments = page_name(self.owned[0]), ", ".join(f"{name}=..." for name in self.owned)
            text = "has Flags OWNED_BY_DML: the first argument of the call must be the "
            text += f"result of initialize({arguments}) for this desc"
        raise broken(self.desc.operator, name, "persistent", text, expected=self.owned, received=type(persistent))


def _structure(persistent: Any) -> Any:
    """Structure, shapes and types. Prepared weights are compared by repr: their layout depends on the kernels."""
    described = jax.tree.map(
        lambda x: repr(x) if isinstance(x, Prepared) else x, persistent, is_leaf=lambda x: isinstance(x, Prepared)
    )
    leaves, tree = jax.tree.flatten(described)
    return tree, [(leaf.shape, leaf.dtype) if hasattr(leaf, "shape") else leaf for leaf in leaves]


@lru_cache(maxsize=4096)
def _structure_of_persistent(desc: OperatorDesc) -> Any:
    by_field = slots_by_field(desc)

    def buffer(slot: Slot) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((reach(slot.tensor.sizes, slot.tensor.strides),), slot.tensor.data_type.dtype)

    flat = {
        name: _one_or_many(desc, name, map(buffer, by_field[name])) for name in inputs(desc, TensorFlags.OWNED_BY_DML)
    }
    return _structure(jax.eval_shape(partial(_initialize, desc), flat))


def _one_or_many(desc: OperatorDesc, name: str, values: Any) -> Any:
    """The value of a field: the single tensor, or a tuple for a field of several tensors."""
    spec: Any = fields_of(type(desc))[name]
    values = tuple(values)
    return values if spec.is_many else values[0]


@partial(jax.jit, static_argnums=0)
def _initialize(desc: OperatorDesc, bound: dict[str, Any]) -> dict[str, Any]:
    owned = OPERATORS[desc.operator].owned
    persistent: dict[str, Any] = {}
    for name, value in bound.items():
        persistent[name] = viewed = _viewed(desc, name, value)
        if parameter_name(name) in owned:
            persistent[name] = owned[parameter_name(name)](viewed, desc)
    return persistent


@partial(jax.jit, static_argnums=0)
def _dispatch(op: CompiledOperator, persistent: dict[str, Any], bound: dict[str, Any], targets: dict[str, Any]) -> Any:
    desc, operator = op.desc, OPERATORS[op.desc.operator]
    tensors: dict[str, Any] = dict.fromkeys(absent(desc)) | persistent
    tensors |= {name: _viewed(desc, name, value) for name, value in bound.items()}
    options = {name: getattr(desc, name) for name, _ in operator.parameters.options}
    own = [slot for slot in slots(desc) if slot.role.is_output]
    if "output_dtype" in operator.parameters.names:
        options["output_dtype"] = own[0].tensor.data_type.dtype

    def call(tensors: dict[str, Any]) -> Any:
        return operator.function(**_arguments(desc, tensors), **options, feature_level=op.feature_level)

    results = _over_the_batch(desc, call, tensors)
    results = [results] if len(own) == 1 else list(results)
    return one_or_named(
        operator.page.desc,
        (_written(slot, result, targets[slot.field]) for slot, result in zip(own, results, strict=True)),
    )


def _arguments(desc: OperatorDesc, tensors: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the function; each tensor of a tuple may have its own parameter."""
    arguments: dict[str, Any] = {}
    for field, value in tensors.items():
        spec: Any = fields_of(type(desc))[field]
        if spec.parameters:
            arguments |= dict(zip(spec.parameters, value, strict=False))
        else:
            arguments[parameter_name(field)] = value
    return arguments


def _written(slot: Slot, result: jax.Array, target: jax.Array | None) -> jax.Array:
    output = slot.tensor
    result = jnp.broadcast_to(result, output.sizes)  # the batch has size 1 if strides of 0 repeat all inputs
    if target is not None:
        is_flat = target.ndim == 1 and target.dtype == output.data_type.buffer_dtype
        written = buffers.write(result, output, buffers.unpacked(target.reshape(-1), output))
        return buffers.packed(written, output) if is_flat else written.reshape(target.shape)
    if output.strides is None:
        return result
    return buffers.packed(buffers.write(result, output, None, elements(output)), output)


def _over_the_batch(desc: OperatorDesc, call: Any, tensors: dict[str, Any]) -> Any:
    """Calls the operator. A tensor whose batch strides are 0 has one entry, which all calls under vmap share.

    If the batch strides of all tensors are 0, only one entry is computed.
    """
    fields: dict[str, Any] = fields_of(type(desc))
    batches = {}
    for name, value in tensors.items():
        if value is not None and fields[name].batch:
            sizes = getattr(desc, name).sizes[: fields[name].batch]
            batches[name] = (sizes, value.shape[: len(sizes)])
    spread = [name for name, (sizes, own) in batches.items() if sizes == own]
    if not spread or len(spread) == len(batches):
        return call(tensors)
    sizes, _ = batches[spread[0]]
    if any(isinstance(tensors[name], Prepared) for name in spread):  # vmap cannot split prepared weights by batch entry
        whole = {
            name: jnp.broadcast_to(tensors[name], (*sizes, *tensors[name].shape[len(sizes) :]))
            for name in batches
            if name not in spread
        }
        return call(tensors | whole)
    ones = (1,) * len(sizes)
    entries = {
        name: tensors[name].reshape(math.prod(sizes), *ones, *tensors[name].shape[len(ones) :]) for name in spread
    }
    result = jax.vmap(lambda entries: call(tensors | entries))(entries)
    return jax.tree.map(lambda x: x.reshape(*sizes, *x.shape[1 + len(ones) :]), result)


def _viewed(desc: OperatorDesc, name: str, value: Any) -> Any:
    """Reads the tensors of a field from its arrays or buffers."""
    values = value if isinstance(value, list | tuple) else (value,)
    views = (_view(desc, slot, one) for slot, one in zip(slots_by_field(desc)[name], values, strict=True))
    return _one_or_many(desc, name, views)


def _view(desc: OperatorDesc, slot: Slot, buffer: jax.Array) -> jax.Array:
    tensor, spec = slot.tensor, fields_of(type(desc))[slot.field]
    assert isinstance(spec, Tensor)
    x = buffer if is_shaped(tensor, buffer) else buffers.read(buffers.unpacked(buffer, tensor), tensor)
    if not slot.role.parameter:
        batch = len(tensor.sizes[: spec.batch]) if spec.batch and {*x.shape[: spec.batch]} <= {1} else 0
        return jnp.broadcast_to(x, (*x.shape[:batch], *tensor.sizes[batch:]))
    # In a desc, a scale or zero point may have a higher rank than the tensor it belongs to; the functions take rank 1.
    rank = len(getattr(desc, slot.role.of).sizes)
    return x.reshape(-1) if x.ndim > rank else x
