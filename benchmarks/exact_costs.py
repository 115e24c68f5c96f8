"""Times of exact floats and XLA's: `python -m benchmarks.exact_costs` writes benchmarks/results/exact_costs_*.md.

Each function is timed in three forms, interleaved: with XLA's floats, exact with native kernels, exact on XLA alone.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxdml as dml
from benchmarks.machine import environment, name_of
from benchmarks.timing import interleaved, median

BLOCK_OF_FLOATS = "floats of a block"
RESULTS = Path(__file__).parent / "results"
HEAD = """# What exact floats cost

Milliseconds, medians of interleaved runs, and the ratio to XLA's floats. `python -m benchmarks.exact_costs` writes this
file. {processor}, {threads} threads, jax {jax}; {kernels}.

| function | shape | XLA's floats | exact, native | ratio | exact, on XLA alone | ratio |
| --- | --- | --- | --- | --- | --- | --- |
"""


def layer_norm(x, gain, bias):
    centered = x - x.mean(-1, keepdims=True)
    return centered * jax.lax.rsqrt(jnp.mean(centered**2, -1, keepdims=True) + 1e-5) * gain + bias


def rms_norm(x, gain, bias):
    return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-5) * gain


def softmax(x):
    return jax.nn.softmax(x * 0.125, -1)


def floats_of_a_block(x, scores, hidden, gain, bias):
    """The float functions between the products of a transformer block of width 768: norms, a sum, softmax and gelu."""
    attended = layer_norm(x, gain, bias) + x
    return layer_norm(attended, gain, bias), softmax(scores), jax.nn.gelu(hidden, approximate=False), attended


def cases(batches=(1, 4, 8)):
    """Names, functions, and shapes of their arguments."""
    width = (1, 768), (1, 768)
    for batch in batches:
        rows = (batch * 384, 768)
        yield "softmax", softmax, ((batch * 12, 384, 384),)
        yield "layer norm", layer_norm, (rows, *width)
        yield "RMS norm", rms_norm, (rows, *width)
        yield "gelu by erf", functools.partial(jax.nn.gelu, approximate=False), ((batch * 384, 3072),)
        scores, hidden = (batch * 12, 384, 384), (batch * 384, 3072)
        yield BLOCK_OF_FLOATS, floats_of_a_block, (rows, scores, hidden, *width)
    for name, function in {"gelu by tanh": jax.nn.gelu, "silu": jax.nn.silu, "tanh": jnp.tanh, "exp": jnp.exp}.items():
        yield name, function, ((384, 3072),)
    yield "sums of rows", lambda x: x.sum(-1), ((384, 3072),)
    yield "x * x + x", lambda x: x * x + x, ((384, 3072),)


def compiled(function, arguments, kernels):
    with dml.use_kernels(kernels):
        return jax.jit(function).lower(*arguments).compile()


def row(name, function, shapes, seconds=1.5):
    """A row of the table."""
    rng = np.random.default_rng(0)
    arguments = [jnp.asarray((rng.standard_normal(shape) * 2).astype(np.float32)) for shape in shapes]
    forms = {
        "XLA": compiled(function, arguments, "xla"),
        "native": compiled(dml.exact(function), arguments, "native"),
        "alone": compiled(dml.exact(function), arguments, "xla"),
    }
    calls = {
        form: functools.partial(lambda run: jax.block_until_ready(run(*arguments)), run) for form, run in forms.items()
    }
    times = {form: median(samples) for form, samples in interleaved(calls, seconds).items()}
    ratios = {form: times[form] / times["XLA"] for form in times}
    shape = " x ".join(map(str, shapes[0]))
    return (
        f"| {name} | {shape} | {times['XLA']:.3f} | {times['native']:.3f} | {ratios['native']:.2f} "
        f"| {times['alone']:.3f} | {ratios['alone']:.2f} |"
    )


def main():
    about = environment()
    rows = []
    for case in cases():
        rows.append(row(*case))
        print(rows[-1], flush=True)
    head = HEAD.format(
        processor=about["processor"], threads=about["threads"], jax=about["packages"]["jax"], kernels=about["kernels"]
    )
    place = RESULTS / f"exact_costs_{name_of(jax.devices()[0], about['instructions']).removeprefix('cpu_')}.md"
    place.write_text(head + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
