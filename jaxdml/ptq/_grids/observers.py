"""Observers calibrate a value's range over batches. They are pytrees, so they work with jit, scan, vmap and meshes."""

import abc
from dataclasses import dataclass, field, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdml._shapes import is_integer
from jaxdml.errors import PtqError, api_boundary, api_class
from jaxdml.ptq._grids import extremes, histograms
from jaxdml.ptq._grids.measured import Measured
from jaxdml.ptq._grids.ranges import ACTIVATIONS, integer_type
from jaxdml.typing import Array, DType

NUMBERS = (int, float, np.integer, np.floating)
NO_VALUES, NO_LEAST, NO_GREATEST, FINITE = np.float32(0), np.float32(np.inf), np.float32(-np.inf), np.bool_(True)
NO_COUNTS, SMALLEST_RANGE = np.zeros(0, np.float32), np.int32(histograms.LEAST_EXPONENT)


@dataclass(frozen=True, eq=False, kw_only=True)
class Statistics(abc.ABC):
    """Statistics of a value that calibration gathers over batches.

    Attributes:
      count: the number of values seen, float32: exact up to 2**24, rounded beyond.
      is_finite: False once NaN or infinity has been seen.
    """

    count: Any = NO_VALUES
    is_finite: Any = FINITE

    @abc.abstractmethod
    def with_values(self, x: Array) -> Self:
        """The statistics after another batch x, a float32 array that is not empty. `update` adds x.size to `count`."""

    @abc.abstractmethod
    def with_devices(self, axis_name: str) -> Self:
        """The statistics of all values that the devices along a mesh axis have seen."""

    def update(self, x: Array) -> Self:
        """The statistics after another batch.

        Args:
          x: float or integer array of any shape.
        """
        x = jnp.asarray(x).astype(jnp.float32)
        if x.size == 0:
            return self
        x = extremes.without_nan(x)
        low, high = extremes.of(x)  # XLA computes these once for is_finite and for observers that also compute them
        is_finite = self.is_finite & jnp.isfinite(low) & jnp.isfinite(high)
        return replace(self.with_values(x), count=self.count + np.float32(x.size), is_finite=is_finite)

    def over_steps(self) -> "Statistics":
        """The statistics to use in a scan over steps, where `update` is called for each step of each batch."""
        return self

    def merged(self, axis_name: str) -> Self:
        """The statistics of all values that the devices have seen, replicated on each device.

        Args:
          axis_name: a mesh axis inside of `jax.shard_map`, or an axis of `jax.vmap`.
        """
        is_wrong = lax.psum((~self.is_finite).astype(jnp.int32), axis_name) > 0
        count = lax.psum(self.count, axis_name)
        return replace(self.with_devices(axis_name), count=count, is_finite=~is_wrong)


@dataclass(frozen=True, eq=False, kw_only=True)
class Observer(Statistics):
    """The base class of observers.

    A subclass is a frozen dataclass registered by `jax.tree_util.register_dataclass`. Its arrays are fields that
    have defaults and keep their types; its options are fields marked by `jax.tree.static`. It implements `with_values`,
    `with_devices` and `range`. The base class handles count, is_finite, empty batches and conversion to float32.

    Attributes:
      count: the number of values seen, float32: exact up to 2**24, rounded beyond.
      is_finite: False once the observer has seen NaN or infinity; the range is then meaningless.
    """

    @abc.abstractmethod
    def range(self, dtype: DType) -> tuple[Array, Array]:
        """The range that an integer type should cover.

        Args:
          dtype: int8, uint8, int16 or uint16.

        Returns:
          The lower and the upper end: float32 scalars, or arrays for stacked observers. The range need not include 0;
          `scale_and_zero_point` widens it. An observer that has seen no values returns infinity and minus infinity.
        """


@dataclass(frozen=True, eq=False, kw_only=True)
class _Extremes(Observer):
    low: Any = NO_LEAST
    high: Any = NO_GREATEST

    def with_values(self, x: Array) -> Self:
        low, high = extremes.of(x)
        return replace(self, low=jnp.minimum(self.low, low), high=jnp.maximum(self.high, high))

    def with_devices(self, axis_name: str) -> Self:
        return replace(self, low=lax.pmin(self.low, axis_name), high=lax.pmax(self.high, axis_name))

    def range(self, dtype: DType) -> tuple[Array, Array]:
        return self.low, self.high


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, kw_only=True)
class MinMax(_Extremes):
    """The range from the least to the greatest value.

    Attributes:
      low, high: the least and the greatest value, float32.
    """

    def with_measured(self, batch: Measured) -> Self:
        """The observer after a batch, in NumPy, except for count and is_finite."""
        return replace(self, low=np.minimum(self.low, batch.low), high=np.maximum(self.high, batch.high))


@jax.tree_util.register_dataclass
@api_class
@dataclass(frozen=True, eq=False, kw_only=True)
class MovingAverage(_Extremes):
    """Exponential moving averages of each batch's least and greatest value. They start with the first batch's values.

    After `merged`, the range contains the averages of all devices.

    Attributes:
      momentum: the weight of earlier batches, at least 0 and below 1.
      low, high: the averages, float32.
    """

    momentum: float = jax.tree.static(default=0.9)

    def __post_init__(self) -> None:
        if not isinstance(self.momentum, NUMBERS) or not 0 <= self.momentum < 1:
            raise PtqError(f"MovingAverage: momentum is {self.momentum!r}, expected a number, at least 0 and below 1")

    def with_values(self, x: Array) -> Self:
        low, high = extremes.of(x)
        return replace(self, low=self._after(self.low, low), high=self._after(self.high, high))

    def over_steps(self) -> Observer:
        """`MinMax`: an average over steps would forget the first steps, or retain an initial state of zeros."""
        return MinMax()

    def _after(self, seen: Any, new: Any) -> Any:
        average = np.float32(self.momentum) * seen + np.float32(1 - self.momentum) * new
        return jnp.where(self.count == 0, new, average)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Histogram(_Extremes):
    bins: int = jax.tree.static(default=2048)
    exponent: Any = SMALLEST_RANGE
    counts: Any = field(default_factory=lambda: NO_COUNTS)

    def __post_init__(self) -> None:
        if not is_integer(self.bins) or not 2 <= self.bins <= 2**16:
            text = f"{type(self).__name__}: bins is {self.bins!r}"
            raise PtqError(f"{text}, expected an integer from 2 to 65536, for each side of 0")
        if self.counts is NO_COUNTS:
            object.__setattr__(self, "counts", np.zeros(2 * self.bins + 1, np.float32))

    def with_values(self, x: Array) -> Self:
        seen = super().with_values(x)
        exponent = jnp.maximum(self.exponent, histograms.exponent_for(x))
        counts = self._counts_at(exponent) + histograms.counted(x, exponent, self.bins)
        return replace(seen, exponent=exponent, counts=counts)

    def with_devices(self, axis_name: str) -> Self:
        seen, exponent = super().with_devices(axis_name), lax.pmax(self.exponent, axis_name)
        return replace(seen, exponent=exponent, counts=lax.psum(self._counts_at(exponent), axis_name))

    @api_boundary
    def range(self, dtype: DType) -> tuple[Array, Array]:
        def one(counts: Any, exponent: Any, *ends: Any) -> Any:
            if not np.isfinite(ends).all():
                return ends
            edges = histograms.edges_of(self.bins, exponent)
            return tuple(np.clip(self._range(counts.astype(np.float64), edges, np.asarray(ends), dtype), *ends))

        state = (np.asarray(x) for x in (self.counts, self.exponent, self.low, self.high))
        low, high = np.vectorize(one, signature="(n),(),(),()->(),()")(*state)
        return np.asarray(low, np.float32), np.asarray(high, np.float32)

    @abc.abstractmethod
    def _range(self, counts: np.ndarray, edges: np.ndarray, ends: np.ndarray, dtype: Any) -> Any:
        """The range, computed from the bins' counts and edges, and from the least and the greatest value."""

    def _counts_at(self, exponent: Any) -> Any:
        return histograms.widened(self.counts, exponent - self.exponent)


@jax.tree_util.register_dataclass
@api_class
@dataclass(frozen=True, eq=False, kw_only=True)
class Percentile(_Histogram):
    """The range between two percentiles, from a histogram. `range` computes in NumPy and does not run under jit.

    Attributes:
      percentile: the upper percentile, interpolated like `numpy.percentile`; the lower percentile is 100 - percentile.
      bins: the number of bins on each side of 0.
      low, high: the least and the greatest value, float32.
      exponent: int32; the bins cover [-2**exponent, 2**exponent].
      counts: the number of values in each bin, float32 [2 * bins + 1]: exact up to 2**24, rounded beyond.
    """

    percentile: float = jax.tree.static(default=99.99)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.percentile, NUMBERS) or not 50 < self.percentile <= 100:
            raise PtqError(f"Percentile: percentile is {self.percentile!r}, expected a number above 50 and at most 100")

    def _range(self, counts: np.ndarray, edges: np.ndarray, ends: np.ndarray, dtype: Any) -> Any:
        fraction = self.percentile / 100
        return [histograms.quantile(part, counts, edges, ends) for part in (1 - fraction, fraction)]


@jax.tree_util.register_dataclass
@api_class
@dataclass(frozen=True, eq=False, kw_only=True)
class LeastSquares(_Histogram):
    """The range with the least mean squared quantization error, from a histogram. `range` does not run under jit.

    For each candidate range, the error is that of rounding and clamping all values with the range's
    `scale_and_zero_point`. The search varies the lower end between the least value and 0, and the upper end between 0
    and the greatest value.

    Attributes:
      bins: the number of bins on each side of 0.
      low, high: the least and the greatest value, float32.
      exponent: int32; the bins cover [-2**exponent, 2**exponent].
      counts: the number of values in each bin, float32 [2 * bins + 1]: exact up to 2**24, rounded beyond.
    """

    def _range(self, counts: np.ndarray, edges: np.ndarray, ends: np.ndarray, dtype: Any) -> Any:
        integers = integer_type("LeastSquares.range: dtype", dtype, ACTIVATIONS)
        return histograms.least_squares(counts, edges, ends, integers)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, kw_only=True)
class Auto(_Histogram):
    """Counts values once for several observers.

    Attributes:
      choice: the name of the observer whose range is this observer's range, one of `CHOICES`.
    """

    choice: str = jax.tree.static(default="minmax")

    def _range(self, counts: np.ndarray, edges: np.ndarray, ends: np.ndarray, dtype: Any) -> Any:
        return ends if self.choice == "minmax" else HISTOGRAMS[self.choice]._range(counts, edges, ends, dtype)


def observer_of(observer: str | Observer) -> Observer:
    """The observer for an argument `observer`, which is a name or an Observer.

    Args:
      observer: "minmax", "moving_average", "percentile", "mse" (least squares), "auto", or an Observer.

    Raises:
      PtqError: if the argument is anything else, such as a class.
    """
    if isinstance(observer, Observer):
        if jax.tree_util.all_leaves([observer]):
            text = f"observer is of the class {type(observer).__name__}, which is not a pytree: above the class, write"
            raise PtqError(f"{text} @jax.tree_util.register_dataclass, then @dataclass(frozen=True)")
        return observer
    if isinstance(observer, type) and issubclass(observer, Observer):
        raise PtqError(f"observer is the class {observer.__name__}, expected an observer: write {observer.__name__}()")
    if not isinstance(observer, str) or observer not in NAMED:
        names = ", ".join(map(repr, NAMED))
        raise PtqError(f"observer is {observer!r}, expected one of {names}, or an Observer such as MinMax()")
    return NAMED[observer]()


NAMED = {
    "minmax": MinMax, "moving_average": MovingAverage, "percentile": Percentile, "mse": LeastSquares, "auto": Auto,
}  # fmt: skip
HISTOGRAMS: dict[str, _Histogram] = {"percentile": Percentile(), "mse": LeastSquares()}
CHOICES = ("minmax", *HISTOGRAMS)
