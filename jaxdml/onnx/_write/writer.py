"""Collects the nodes, initializers and types of an ONNX graph."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx
from onnx import helper

from jaxdml.onnx._table import MICROSOFT
from jaxdml.onnx._write.dimensions import Dimensions
from jaxdml.onnx._write.table import CannotWrite

QDQ, QOPERATOR = "qdq", "qoperator"
LARGE = 2**16  # the maximum number of elements of a constant that `number` compares
SMALL = 64  # the maximum number of elements of constants that are written once if they are equal
Grid = tuple[Any, Any]  # scale and zero point


@dataclass(frozen=True)
class Options:
    """How a model is written.

    Attributes:
      form, tables, weights: arguments of `save`.
      opset: the opset of the file.
      has_gelu: whether gelu is written as the operator Gelu.
      numerics: the model's attribute `numerics`.
    """

    form: str
    tables: str
    weights: str
    opset: int
    has_gelu: bool
    numerics: str


def data_type(dtype: Any) -> int:
    """The type in the file: floats of 16 bits are computed as float32.

    Raises:
      CannotWrite: if ONNX has no such type.
    """
    try:
        return int(helper.np_dtype_to_tensor_dtype(stored_type(dtype)))
    except (TypeError, ValueError) as error:  # JAX cannot convert the type of a random key to one of NumPy
        raise CannotWrite(f"ONNX has no type {dtype}") from error


def stored_type(dtype: Any) -> np.dtype[Any]:
    """The type of a value in the file."""
    is_short = jnp.dtype(dtype) in (jnp.float16, jnp.bfloat16)
    return np.dtype(np.float32) if is_short else jnp.dtype(dtype)


class Writer:
    """Collects the nodes, initializers and types of an ONNX graph.

    Values have names in the quantized function, and names in the file. `read` maps the former to the latter.

    Attributes:
      options: how the model is written.
      shapes: maps values of the function to shapes and types; sizes may be symbolic.
      constants: maps known values of the function to NumPy arrays, but random keys to JAX arrays.
      grids: maps integers of the function to their scale and zero point.
      numbers: for values of the function with symbolic sizes, the number that all their elements equal.
      steps: the 16-bit integers that tables read; the file has floats equal to integer - zero point in their place.
      dimensions: symbolic sizes as values of the file.
      nodes, initializers: the nodes and initializers of the file.
      types: maps values of the file to types that the package onnx does not infer.
    """

    def __init__(self, options: Options, shapes: Mapping[str, Any], constants: Mapping[str, np.ndarray]) -> None:
        self.options, self.shapes, self.constants = options, dict(shapes), dict(constants)
        self.grids: dict[str, Grid] = {}
        self.steps = set[str]()
        self.numbers: dict[str, float] = {}
        self.dimensions = Dimensions(self)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, np.ndarray] = {}
        self.types: dict[str, np.dtype[Any]] = {}
        self._values: dict[str, str] = {}
        self._small: dict[Any, str] = {}
        self._parameters: dict[str, list[str]] = {}
        self._floats: dict[Any, str] = {}
        self._taken, self._counts = set[str](), Counter[str]()
        self._layer = ""

    # Values of the function --------------------------------------------------------------------------------------

    def shape(self, name: str) -> tuple[Any, ...]:
        """The shape of a value of the function."""
        return tuple(self.shapes[name].shape)

    def rank(self, name: str) -> int:
        return len(self.shape(name))

    def dtype(self, name: str) -> np.dtype[Any]:
        """The type of a value of the function."""
        return jnp.dtype(self.shapes[name].dtype)

    def number(self, name: str) -> float | None:
        """The real number that all elements of a value are known to equal; None for other values."""
        if name in self.numbers:
            return self.numbers[name]
        value = self.constants.get(name)
        if not isinstance(value, np.ndarray) or not 0 < value.size <= LARGE or np.iscomplexobj(value):
            return None
        return float(value.flat[0]) if value.size == 1 or (value == value.flat[0]).all() else None

    def bind(self, name: str, value: str) -> None:
        """Records that a value of the function is a value of the file."""
        self._values[name] = value

    def has(self, name: str) -> bool:
        """Whether nodes of the file compute a value of the function, so that the value is not a constant."""
        return name in self._values and name not in self.constants

    def read(self, name: str) -> str:
        """The name in the file of a value of the function; constants become initializers.

        Raises:
          CannotWrite: if the value is a constant, and ONNX lacks its type.
        """
        if name not in self._values:
            data_type(self.shapes[name].dtype)
            self._values[name] = self.array(self.constants[name], name)
        return self._values[name]

    @contextmanager
    def reading(self, name: str, value: str) -> Iterator[None]:
        """Makes `read` return another value of the file for a value of the function."""
        before = self._values.get(name)
        self._values[name] = value
        try:
            yield
        finally:
            if before is None:
                del self._values[name]
            else:
                self._values[name] = before

    def parameter(self, name: str, like: str, value: np.ndarray) -> str:
        """The name in the file of a constant `name` of the function, written as `value` under a name like `like`.

        A constant that several layers share is written once, unless the layers need it in different forms.
        """
        written = self._parameters.setdefault(name, [])
        for each in written:
            if _are_equal(self.initializers[each], value):
                return each
        written.append(self._added(value, like))
        return written[-1]

    # Nodes of the file -------------------------------------------------------------------------------------------

    @contextmanager
    def layer(self, name: str) -> Iterator[None]:
        """Names nodes after a layer."""
        before, self._layer = self._layer, name
        try:
            yield
        finally:
            self._layer = before

    @property
    def name(self) -> str:
        """The name of the layer that is being written."""
        return self._layer

    def emit(self, kind: str, *inputs: str, main: bool = False, contrib: Any = None, **attributes: Any) -> str:
        """Appends a node with one result, and returns the result's name.

        Args:
          kind: the operator.
          *inputs: names of values of the file.
          main: whether the node has the name of its layer, because it does the layer's main work.
          contrib: the type of the result if the operator is one of ONNX Runtime's own; else None.
          **attributes: attributes; those that are None are left out.
        """
        return self.emit_many(kind, inputs, 1, main=main, contrib=contrib, **attributes)[0]

    def emit_many(
        self, kind: str, inputs: Sequence[str], count: int, *, main: bool = False, contrib: Any = None,
        **attributes: Any,
    ) -> tuple[str, ...]:  # fmt: skip
        """Appends a node with several results."""
        name = self.fresh(self._layer if main else f"{self._layer}/{kind}")
        outputs = tuple(self.fresh(f"{name}:{i}" if count > 1 else f"{name}:out") for i in range(count))
        given = {key: value for key, value in attributes.items() if value is not None}
        domain = "" if contrib is None else MICROSOFT
        if contrib is not None:  # the package onnx does not infer its results
            self.types |= dict.fromkeys(outputs, jnp.dtype(contrib))
        self.nodes.append(helper.make_node(kind, list(inputs), list(outputs), name, domain=domain, **given))
        return outputs

    def fresh(self, like: str) -> str:
        """A name that nothing in the file has: the given one, or one with a number."""
        name = like
        while name in self._taken:
            self._counts[like] += 1
            name = f"{like}_{self._counts[like]}"
        self._taken.add(name)
        return name

    def rename(self, old: str, new: str, since: int = 0) -> None:
        """Renames a value of the file in the nodes from number `since` on."""
        for node in self.nodes[since:]:
            for names in (node.input, node.output):
                for place, name in enumerate(names):
                    if name == old:
                        names[place] = new
        if old in self.types:
            self.types[new] = self.types.pop(old)
        for table in (self._values, self._floats):
            for key, name in table.items():
                if name == old:
                    table[key] = new
        self.dimensions.rename(old, new)

    # Constants of the file ---------------------------------------------------------------------------------------

    def array(self, value: Any, like: str = "constant") -> str:
        """The name of an initializer with these elements; equal small arrays share one initializer."""
        array = np.asarray(value)
        array = array.astype(stored_type(array.dtype), copy=False)
        if array.size > SMALL:
            return self._added(array, like)
        key = array.shape, str(array.dtype), array.tobytes()
        if key not in self._small:
            self._small[key] = self._added(array, like)
        return self._small[key]

    def alone(self, value: Any, like: str) -> str:
        """The name of an initializer that nothing else shares.

        Zero points of weights need one: onnxruntime changes them with the weights, and fails if other nodes read them.
        """
        return self._added(np.asarray(value), like)

    def float32(self, value: Any, like: str = "constant") -> str:
        return self.array(np.asarray(value, np.float32), like)

    def int64(self, values: Any, like: str = "constant") -> str:
        return self.array(np.asarray(values, np.int64), like)

    def _added(self, value: np.ndarray, like: str) -> str:
        name = self.fresh(like)
        self.initializers[name] = value
        return name

    # Integers and floats -----------------------------------------------------------------------------------------

    def to_integers(self, value: str, grid: Grid, name: str) -> str:
        """Appends QuantizeLinear of a float value of the file; its result is the integers `name` of the function."""
        return self.emit("QuantizeLinear", value, *self.parameters_of(grid, name))

    def to_floats(self, name: str, grid: Grid | None = None) -> str:
        """The floats of integers of the function; appends DequantizeLinear if the file does not have them yet.

        Args:
          name: the integers.
          grid: their scale and zero point; None: those with which the integers were quantized.
        """
        grid = self.grids[name] if grid is None else grid
        key = name, *(np.asarray(each).tobytes() for each in grid)
        if key not in self._floats:
            parameters = self.parameters_of(grid, name)
            with self.layer(_short(name)):
                if name in self.steps:
                    self._floats[key] = self.emit("Mul", self.read(name), parameters[0])
                else:
                    self._floats[key] = self.emit("DequantizeLinear", self.read(name), *parameters)
        return self._floats[key]

    def parameters_of(self, grid: Grid, name: str) -> tuple[str, str]:
        """The names in the file of the scale and zero point of integers of the function."""
        scale, zero_point = (np.asarray(each).reshape(()) for each in grid)
        return self.float32(scale, f"{_short(name)}.scale"), self.array(zero_point, f"{_short(name)}.zero_point")

    def parameters(self, grid: Grid) -> tuple[str, str]:
        """The names in the file of a scale and a zero point that belong to the layer."""
        return self.parameters_of(grid, self._layer)


def _are_equal(x: np.ndarray, y: np.ndarray) -> bool:
    return x.dtype == y.dtype and np.array_equal(x, y)


def _short(name: str) -> str:
    return name.removesuffix(":quantized")
