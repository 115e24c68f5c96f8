"""python tests/commands/on_device.py: compares what JAX's first device computes with NumPy and with a CPU.

`make test-accelerators` inspects programs for devices that the machine need not have; this command runs on a device. It
measures how far the device's own quotients, square roots and int8 products are off. It compares the bits of corrected
quotients and roots, of every rule of exact floats, of products, of sums that wrap, of random public calls
(tests/commands/campaign.py), and of quantized networks and language models. With JAX_PLATFORMS=cuda,cpu the first
device is a GPU. The first difference ends the run.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

import jaxdml as dml
import jaxdml.onnx
from _exact import attention_battery, battery
from _onnx.greedy import decoded
from _ptq.quantized import NETWORKS, network, quantized
from benchmarks.decoder_files import Sizes, decoder
from commands import campaign
from helpers.compare import assert_same_bits
from helpers.every_float import every
from jaxdml._arithmetic import int8
from jaxdml._arithmetic.division import divided
from jaxdml._arithmetic.square_root import square_root
from jaxdml.reference import floats

CHUNK = 2**24
MANTISSA = 2**23
SMALLEST = np.float32(2.0**-126)
DEPTHS = (*range(1, 10), 12, 15, 16, 17, 20, 24, 28, 31, 32, 33, 36, 40, 48, 63, 64, 65, 72, 96, 100, 127, 128, 130,
          160, 192, 200, 256, 300, 512, 1000)  # fmt: skip
SIZES = ((0, 2, 3), (0, 8, 8), (0, 64, 128), (0, 33, 65), (9, 8, 3), (12, 5, 9), (4, 64, 64))  # batch, M, N
MOST_ULPS = 3  # the largest error that is corrected; see docs/numerics_accelerators.md


def chunks(options: argparse.Namespace) -> int:
    return max(1, round(options.count / CHUNK))


def ulps(got: Any, right: np.ndarray) -> int:
    """The largest distance between positive float32 numbers, in ulp."""
    distance = np.asarray(got).view(np.int32).astype(np.int64) - right.view(np.int32)
    most = int(abs(distance).max())
    assert most <= MOST_ULPS, f"the device errs by {most} ulp; jaxdml corrects {MOST_ULPS}"
    return most


# Parts: each compares, and returns a description of what it compared -------------------------------------------------


def sums(options: argparse.Namespace) -> str:
    """Sums of so many products that int32 wraps around."""
    depth = 2 * int8.MOST_TERMS + 5
    a, b = np.full((64, depth), -128, np.int8), np.full((depth, 128), -128, np.int8)
    a[1, ::3], b[::7, 2] = 127, 5
    right = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)  # float64 holds these sums
    assert abs(right).max() > 2**31
    product = jax.jit(lambda a, b: dml.matrix_multiply_integer(a, None, b, None))(a, b)
    assert_same_bits(product, right.astype(np.int32), "long sums")
    x = np.full((1, 30_000, 3, 3), -128, np.int8)
    window = jax.jit(lambda x, f: dml.convolution_integer(x, None, f, None))(x, x)
    assert_same_bits(window.ravel(), np.array([x.size << 14]).astype(np.int32), "a large window")
    return f"{right.size + 1:,} of {depth:,} and {x.size:,} products"


def products(options: argparse.Namespace) -> str:
    """int8 products: XLA's own may be wrong, jaxdml's may not."""
    rng, wrong, count = np.random.default_rng(1), 0, 0
    own = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.int32))
    exact = jax.jit(lambda a, b: dml.matrix_multiply_integer(a, None, b, None))
    for depth in DEPTHS:
        for batch, rows, columns in SIZES:
            outer = (batch,) if batch else ()
            a, b = (rng.integers(-128, 128, (*outer, *sizes), np.int8) for sizes in ((rows, depth), (depth, columns)))
            right = np.matmul(a, b, dtype=np.int32)
            assert_same_bits(exact(a, b), right, "products")
            wrong, count = wrong + bool((np.asarray(own(a, b)) != right).any()), count + 1
    return f"of XLA's own {wrong} are wrong; {count} of jaxdml's"


def rules(options: argparse.Namespace) -> str:
    """Every rule, norms, softmax and attention, against `jaxdml.reference`."""
    exact = dml.exact(battery.everything)
    battery.assert_all_same(jax.jit(exact)(battery.X, battery.Y))
    battery.assert_all_same(exact(battery.X, battery.Y))
    surrounded = jax.jit(dml.exact(battery.surrounded))(battery.X, battery.Y)
    battery.assert_all_same(surrounded, battery.expected_surrounded())
    attention = jax.jit(attention_battery.everything)(*attention_battery.INPUTS)
    battery.assert_all_same(attention, attention_battery.expected())
    counts = len(battery.EXPECTED), len(surrounded), len(attention)
    return "{} results in two modes, {} between other operations, {} of attention".format(*counts)


def quotients(options: argparse.Namespace) -> str:
    """The device's own quotients of mantissas, as the correction divides them; then corrected ones of all numbers."""
    rng, own, corrected, most = np.random.default_rng(3), jax.jit(lax.div), jax.jit(divided), 0
    for _ in range(chunks(options)):
        x, y = (rng.integers(MANTISSA, 2 * MANTISSA, CHUNK).astype(np.float32) for _ in range(2))
        most = max(most, ulps(own(x, y), x / y))
        x, y = (floats.flushed(rng.integers(0, 2**32, CHUNK, np.uint32).view(np.float32)) for _ in range(2))
        with np.errstate(all="ignore"):
            right = x / y
            is_tiny = abs(x.astype(np.float64) / y) < SMALLEST * (1 - 2.0**-25)  # what rounds to 2**-126 is normal
        assert_same_bits(corrected(x, y), np.where(is_tiny, np.copysign(np.float32(0), right), right), "quotients")
    return f"the device's own err by at most {most} ulp, {chunks(options) * CHUNK:,} corrected"


def roots(options: argparse.Namespace) -> str:
    """The device's own roots of each mantissa with an even and an odd exponent; then corrected ones of all numbers."""
    own, corrected, most, compared = jax.jit(lax.sqrt), jax.jit(square_root), 0, 0
    for factor in (2, 4):
        x = np.arange(MANTISSA, 2 * MANTISSA).astype(np.float32) * np.float32(factor)
        most = max(most, ulps(own(x), np.sqrt(x)))
    for x in map(floats.flushed, every(options.step, CHUNK)):
        with np.errstate(all="ignore"):
            assert_same_bits(corrected(x), np.sqrt(x), "square roots")
        compared += x.size
    return f"the device's own err by at most {most} ulp, {compared:,} corrected"


def pairs(options: argparse.Namespace) -> str:
    """Exact floats of two arguments, random numbers, against the same rules on a CPU."""
    rng, cpu, compared = np.random.default_rng(4), jax.devices("cpu")[0], 0
    for name in ("pow", "atan2", "rem"):
        function = jax.jit(dml.exact(getattr(lax, name)))
        for _ in range(chunks(options)):
            x = np.exp(rng.standard_normal(CHUNK) * 5).astype(np.float32)
            y = (rng.standard_normal(CHUNK) * 8).astype(np.float32)
            assert_same_bits(function(x, y), function(*(jax.device_put(z, cpu) for z in (x, y))), name)
            compared += x.size
    return f"{compared:,} of 3 functions"


def functions(options: argparse.Namespace) -> str:
    """Exact floats of one argument, against the same rules on a CPU."""
    cpu, compared = jax.devices("cpu")[0], 0
    for name in battery.ONE:
        function = jax.jit(dml.exact(getattr(lax, name)))
        for x in map(floats.flushed, every(options.step, CHUNK)):
            on_cpu = function(jax.device_put(x, cpu))
            assert on_cpu.devices() == {cpu}
            assert_same_bits(function(x), on_cpu, name)
            compared += x.size
    return f"{compared:,} of {len(battery.ONE)} functions"


def calls(options: argparse.Namespace) -> str:
    """Random public calls in random modes, against `jaxdml.reference`."""
    start, number, compared = time.monotonic(), 0, 0
    while time.monotonic() - start < options.seconds:
        compared += campaign.run(options.seed, number, campaign.MAKERS)[-1]
        number += 1
        if number % 100 == 0:
            jax.clear_caches()  # each program runs once
    return f"{compared:,} outputs of {number} calls of seed {options.seed}"


def networks(options: argparse.Namespace) -> str:
    """Quantized networks, static and dynamic, whose floats are exact, against a CPU."""
    device, cpu, compared = jax.devices()[0], jax.devices("cpu")[0], 0
    for name in NETWORKS:
        for products in ("static", "dynamic"):
            with jax.default_device(cpu):
                model = quantized(name, kernels="xla", products=products, floats="exact")
                inputs = network(name).make_inputs(3, seed=7)
                right = jax.tree.map(np.asarray, jax.jit(model.apply)(model.params, *inputs))
            params, *inputs = jax.device_put((model.params, *inputs), device)
            leaves = jax.tree.leaves(jax.jit(model.apply)(params, *inputs))
            assert all(leaf.devices() == {device} for leaf in leaves)
            for got, expected in zip(leaves, jax.tree.leaves(right), strict=True):
                assert_same_bits(got, expected, f"{name}, {products}")
                compared += expected.size
    return f"{compared:,} outputs of {2 * len(NETWORKS)} networks"


def decoders(options: argparse.Namespace) -> str:
    """Language models with 4-bit weights: greedy tokens after a prompt and their logits, against a CPU."""
    cpu, compared = jax.devices("cpu")[0], 0
    prompt = np.random.default_rng(0).integers(0, 100, (3, 5))
    for level in (0, 4):
        sizes = Sizes(accuracy_level=level, window=12, softcap=20.0)
        model = jaxdml.onnx.load(decoder(sizes), floats="exact")
        tokens, logits = decoded(model, sizes, prompt)
        with jax.default_device(cpu):
            right_tokens, right_logits = decoded(jaxdml.onnx.load(decoder(sizes), floats="exact"), sizes, prompt)
        assert_same_bits(logits, right_logits, f"logits at accuracy level {level}")
        assert (tokens == right_tokens).all()
        compared += logits.size
    return f"{compared:,} logits of {right_tokens.size} tokens at each of 2 accuracy levels"


PARTS: dict[str, Callable[[argparse.Namespace], str]] = {
    "sums": sums, "products": products, "rules": rules, "quotients": quotients, "roots": roots, "pairs": pairs,
    "functions": functions, "networks": networks, "decoders": decoders, "calls": calls,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; all by default")
    parser.add_argument("--count", type=float, default=1e8, help="random quotients, and pairs for each function")
    parser.add_argument("--step", type=int, default=17, help="every so many-th float32 for roots and functions")
    parser.add_argument("--seconds", type=float, default=60, help="spent on random calls")
    parser.add_argument("--seed", type=int, default=0, help="of random calls")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}")
    device = jax.devices()[0]
    if device.platform == "cpu":
        parser.error("JAX's first device is a CPU, which needs no comparison with itself: set JAX_PLATFORMS=cuda,cpu")
    print(f"{device.device_kind}, platform {device.platform}, jax {jax.__version__}", flush=True)
    for name in options.parts or PARTS:
        start = time.monotonic()
        print(f"{name}: ", end="", flush=True)
        print(f"{PARTS[name](options)}; none differs ({time.monotonic() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
