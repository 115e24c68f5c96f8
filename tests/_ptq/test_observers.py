"""Observers against NumPy on the raw data, under every transform, and their errors for wrong data."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.on_devices import run_on, run_on_eight
from jaxdml.errors import PtqError
from jaxdml.ptq._grids.channels import Channels
from jaxdml.ptq._grids.measured import Measured, updated
from jaxdml.ptq._grids.observers import LeastSquares, MinMax, MovingAverage, Observer, Percentile, observer_of

HERE = Path(__file__).parent
RNG = np.random.default_rng(14)
OBSERVERS = {
    "minmax": MinMax(),
    "moving_average": MovingAverage(momentum=0.75),
    "percentile": Percentile(percentile=99.0, bins=256),
    "mse": LeastSquares(bins=256),
}
of_each = pytest.mark.parametrize("observer", OBSERVERS.values(), ids=OBSERVERS)
UPDATES = ("minmax", "moving_average", "mse")  # percentiles share the update of least squares
of_each_update = pytest.mark.parametrize("observer", [OBSERVERS[name] for name in UPDATES], ids=UPDATES)
BATCHES = (RNG.normal(0, 1, (6, 40, 5)) * np.exp2(RNG.integers(-12, 12, (6, 1, 1)))).astype(np.float32)
BATCHES[2] = np.maximum(BATCHES[2], 0)
STACKED = np.stack([BATCHES, 3 * BATCHES[::-1]])
update = jax.jit(lambda observer, x: observer.update(x))  # one program for each observer and shape

measure = jax.jit(Measured.of, static_argnums=1)


def after(observer, batches):
    for x in batches:
        observer = update(observer, x)
    return observer


def same(received, expected):
    """The same state; averages may be computed with a fused multiply-add."""
    assert jax.tree.structure(received) == jax.tree.structure(expected)
    compare = assert_same_bits
    if isinstance(expected, MovingAverage):
        compare = partial(np.testing.assert_allclose, rtol=1e-6, strict=True)
    for one, other in zip(jax.tree.leaves(received), jax.tree.leaves(expected), strict=True):
        compare(one, other)


def test_min_max_is_that_of_numpy():
    observer = after(MinMax(), BATCHES)
    assert observer.range(np.uint8) == (BATCHES.min(), BATCHES.max())
    assert observer.count == BATCHES.size
    assert observer.is_finite


@pytest.mark.parametrize("observer", [MinMax(), Channels.of(5, -1)], ids=["minmax", "channels"])
@pytest.mark.parametrize("last", [1, np.nan, np.inf, -np.inf])
def test_numpy_updates_an_observer_as_xla_does(observer, last):
    axis, wrong = getattr(observer, "axis", None), BATCHES[0].copy()
    wrong[7, 3] *= last
    batches = [*BATCHES, BATCHES[0][:0], wrong]
    received, expected = observer, after(observer, batches)
    for x in batches:
        received = updated(received, jax.device_get(measure(x, axis)))
    assert received.is_finite == expected.is_finite == np.isfinite(last)
    assert received.count == expected.count
    if received.is_finite:  # otherwise, the numbers have no meaning
        same(received, jax.device_get(expected))


def test_ends_of_scaled_channels_are_those_of_the_products():
    x, factors = np.concatenate(BATCHES), np.exp(RNG.uniform(-3, 3, 5)).astype(np.float32)
    received = jax.device_get(measure(x, 1)).multiplied(factors)
    assert (received.low, received.high) == ((x * factors).min(), (x * factors).max())


def test_squares_of_channels_are_those_of_numpy():
    x = RNG.normal(size=(4, 3, 300, 300)).astype(np.float32)
    received, expected = measure(x, 1), np.square(x, dtype=np.float64).sum((0, 2, 3))
    np.testing.assert_allclose(np.asarray(received.squares) + received.rest, expected, rtol=1e-7)


def test_moving_average_is_as_defined():
    low, high = BATCHES[0].min().astype(np.float64), BATCHES[0].max().astype(np.float64)
    for x in BATCHES[1:]:
        low, high = 0.75 * low + 0.25 * x.min(), 0.75 * high + 0.25 * x.max()
    np.testing.assert_allclose(after(OBSERVERS["moving_average"], BATCHES).range(np.uint8), (low, high), rtol=1e-6)
    assert after(MovingAverage(), BATCHES[:1]).range(np.uint8) == (BATCHES[0].min(), BATCHES[0].max())


@pytest.mark.rare
@of_each_update
def test_under_scan_and_vmap_as_one_batch_after_the_other(observer):
    expected = after(observer, BATCHES)
    step = lambda observer, x: (observer.update(x), None)  # noqa: E731
    same(jax.jit(lambda observer, xs: jax.lax.scan(step, observer, xs)[0])(observer, BATCHES), expected)
    stack = jax.tree.map(lambda *leaves: np.stack(leaves), observer, observer)
    for x in np.moveaxis(STACKED, 1, 0):
        stack = jax.jit(jax.vmap(lambda observer, x: observer.update(x)))(stack, x)
    one_by_one = [expected, after(observer, STACKED[1])]
    same(stack, jax.tree.map(lambda *leaves: np.stack(leaves), *one_by_one))
    low, high = stack.range(np.uint8)
    np.testing.assert_allclose(low, [one.range(np.uint8)[0] for one in one_by_one], rtol=1e-6)
    np.testing.assert_allclose(high, [one.range(np.uint8)[1] for one in one_by_one], rtol=1e-6)
    assert low.dtype == high.dtype == np.float32


@pytest.mark.sampled(1)
@of_each_update
def test_eager_as_under_jit_and_with_64_bit_types(observer):
    same(observer.update(BATCHES[0]), update(observer, BATCHES[0]))
    with jax.enable_x64(True):
        same(update(observer, BATCHES[0].astype(np.float64)), update(observer, BATCHES[0]))


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.int8, np.uint16, np.int32])
def test_other_types_are_converted(dtype):
    x = np.abs(BATCHES[1]).astype(dtype)
    same(update(MinMax(), x), update(MinMax(), x.astype(np.float32)))


@pytest.mark.sampled(1)
@of_each_update
def test_merged_observers_have_seen_what_each_has(observer):
    halves = jax.tree.map(lambda *leaves: np.stack(leaves), after(observer, BATCHES[:3]), after(observer, BATCHES[3:]))
    merged = jax.vmap(lambda observer: observer.merged("devices"), axis_name="devices")(halves)
    first, second = (jax.tree.map(lambda leaf, i=i: leaf[i], merged) for i in (0, 1))
    same(first, second)
    if isinstance(observer, MovingAverage):
        assert first.range(np.uint8) == (halves.low.min(), halves.high.max())
        assert first.count == BATCHES.size
    else:
        same(first, after(observer, BATCHES))


@pytest.mark.rare
def test_over_eight_devices():
    """In a process of its own: what all devices saw, with one that saw a NaN, and one that saw nothing."""
    assert run_on_eight(HERE / "observers_on_eight_devices.py").count("ok ") == 4 * 4


@pytest.mark.rare
@pytest.mark.parametrize(
    "option",
    ["observer=minmax", "observer=percentile", "observer=mse", "observer=auto", "products=dynamic", "rounding=gptq"],
)
def test_memory_of_calibration(option):
    """At most 2.5 times the activations of one batch, however many batches there are."""
    pytest.importorskip("resource")  # Windows has none
    assert float(run_on(1, HERE / "memory_of_calibration.py", option)) < 2.5


@of_each_update
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_remembered(observer, value):
    wrong = BATCHES[0].copy()
    wrong[7, 3] = value
    assert after(observer, BATCHES[:2]).is_finite
    seen = after(observer, [BATCHES[0], wrong, BATCHES[1]])
    assert not seen.is_finite
    halves = jax.tree.map(lambda *leaves: np.stack(leaves), seen, after(observer, BATCHES))
    merged = jax.vmap(lambda observer: observer.merged("devices"), axis_name="devices")(halves)
    assert not merged.is_finite.any()
    seen.range(np.uint8)  # is meaningless, but raises no error


@pytest.mark.sampled(2)
@of_each
def test_no_data(observer):
    for seen in (observer, observer.update(np.zeros((0, 3), np.float32))):
        assert seen.count == 0
        assert seen.is_finite
        assert tuple(seen.range(np.uint8)) == (np.inf, -np.inf)
    same(after(observer, [BATCHES[0], np.zeros((0, 3), np.float32)]), after(observer, BATCHES[:1]))


def test_names():
    for name, observer in OBSERVERS.items():
        assert type(observer_of(name)) is type(observer)
    assert observer_of(OBSERVERS["mse"]) is OBSERVERS["mse"]
    assert observer_of("percentile").percentile == 99.99
    for wrong in ("max", 3, None, ["mse"]):
        with pytest.raises(
            PtqError, match="expected one of 'minmax', 'moving_average', 'percentile', 'mse', 'auto', or"
        ):
            observer_of(wrong)
    with pytest.raises(PtqError, match=r"observer is the class MinMax, expected an observer: write MinMax\(\)"):
        observer_of(MinMax)


def test_wrong_options():
    for wrong in (-0.1, 1, np.nan, "0.9"):
        with pytest.raises(PtqError, match=r"MovingAverage: momentum is .*, expected a number, at least 0 and below 1"):
            MovingAverage(momentum=wrong)
    for wrong in (50, 101, np.nan, "a"):
        with pytest.raises(PtqError, match=r"Percentile: percentile is .*, expected a number above 50 and at most 100"):
            Percentile(percentile=wrong)
    for wrong in (1, 2**16 + 1, 64.0, None):
        with pytest.raises(PtqError, match=r"LeastSquares: bins is .*, expected an integer from 2 to 65536"):
            LeastSquares(bins=wrong)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, kw_only=True)
class Deviations(Observer):
    """A user's own: some standard deviations around 0."""

    wide: float = jax.tree.static(default=3.0)
    squares: jax.Array = np.float32(0)  # noqa: RUF009

    def with_values(self, x):
        return replace(self, squares=self.squares + jnp.sum(x * x))

    def with_devices(self, axis_name):
        return replace(self, squares=jax.lax.psum(self.squares, axis_name))

    def range(self, dtype):
        end = self.wide * jnp.sqrt(self.squares / self.count)
        return -end, end


def test_an_observer_of_ones_own():
    observer = after(observer_of(Deviations(wide=2.0)), BATCHES)
    expected = 2 * np.sqrt((BATCHES.astype(np.float64) ** 2).mean())
    np.testing.assert_allclose(observer.range("int8"), (-expected, expected), rtol=1e-6)
    merged = jax.vmap(lambda x: Deviations(wide=2.0).update(x).merged("devices"), axis_name="devices")(BATCHES)
    np.testing.assert_allclose(merged.squares, np.full(len(BATCHES), observer.squares), rtol=1e-6)
    assert merged.count.tolist() == [BATCHES.size] * len(BATCHES)
    with pytest.raises(TypeError, match="abstract"):
        Observer()


def test_wrong_observers_of_users():
    class Undecorated(MinMax):
        pass

    def quantize(observer):
        return dml.ptq.quantize(lambda w, x: x @ w, np.eye(3, dtype=np.float32), [np.eye(3)], observer=observer)

    with pytest.raises(PtqError, match=r"class Undecorated, which is not a pytree: .* write @jax.tree_util.register_d"):
        quantize(Undecorated())
    for wrong in (None, (0.0, 1.0, 2.0), ("a", "b"), (np.zeros(3), np.ones(3))):

        @jax.tree_util.register_dataclass
        @dataclass(frozen=True)
        class Returning(MinMax):
            def range(self, dtype, wrong=wrong):
                return wrong

        with pytest.raises(PtqError, match=r"Returning.range returned .*, expected the lower and the upper end.*\(\)"):
            quantize(Returning())
