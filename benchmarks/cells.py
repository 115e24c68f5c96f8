"""python -m benchmarks.cells: small RNNs of flax and equinox, quantized by jaxdml.ptq, compared with float32.

It prints a Markdown table of float32's time over jaxdml's: above 1, jaxdml is faster. Each ratio is the median of
several runs, each of which compares the medians of interleaved calls. Weights and inputs are random, and inputs have as
many features as the cell has units.
"""

import argparse
import itertools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from benchmarks.measure import compiled
from benchmarks.timing import interleaved, median
from jaxdml import ptq

Network = tuple[Callable[..., Any], Any]  # a function of params and x [N, steps, units], and params


def of_flax(cell: str, units: int) -> Network:
    network = nn.RNN(getattr(nn, f"{cell}Cell")(units))
    return network.apply, network.init(jax.random.key(0), inputs(1, 1, units))


def of_equinox(cell: str, units: int) -> Network:
    params, rest = eqx.partition(getattr(eqx.nn, f"{cell}Cell")(units, units, key=jax.random.key(0)), eqx.is_array)

    def apply(params: Any, x: Any) -> Any:
        run, start = eqx.combine(params, rest), jnp.zeros(units)

        def step(state: Any, x: Any) -> tuple[Any, Any]:
            state = run(x, state)
            return state, jax.tree.leaves(state)[0]

        return jax.vmap(lambda x: jax.lax.scan(step, (start, start) if cell == "LSTM" else start, x)[1])(x)

    return apply, params


LIBRARIES = {"flax": of_flax, "equinox": of_equinox}


def inputs(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).standard_normal(shape, np.float32))


def ratio(network: Network, model: ptq.Model, x: jax.Array, runs: int, seconds: float) -> float:
    """float32's time over jaxdml's, the median of several runs."""
    apply, params = network
    calls = {
        "float32": compiled(apply, (params, x))[0],
        "jaxdml": compiled(model.apply, (model.params, x))[0],
    }
    found = (interleaved(calls, seconds, rounds=20_000) for _ in range(runs))
    return median(median(times["float32"]) / median(times["jaxdml"]) for times in found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cells", description=__doc__)
    parser.add_argument("--units", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--steps", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--seconds", type=float, default=0.3, help="of each run")
    parser.add_argument("--runs", type=int, default=5, help="for each ratio")
    parser.add_argument("--floats", choices=["exact", "xla"], default="exact", help="of the quantized networks")
    options = parser.parse_args()
    sizes = list(itertools.product(options.batches, options.steps))
    titles = ("cell", *(f"batch {batch}, {steps} steps" for batch, steps in sizes))
    print(f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|", sep="\n")
    for library, cell, units in itertools.product(LIBRARIES, ("LSTM", "GRU"), options.units):
        network = LIBRARIES[library](cell, units)
        model = ptq.quantize(*network, [inputs(4, 20, units)], floats=options.floats, progress=False)
        ratios = (ratio(network, model, inputs(*size, units), options.runs, options.seconds) for size in sizes)
        cells = (f"{library}, {cell} of {units}", *(f"{each:.2g}" for each in ratios))
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
