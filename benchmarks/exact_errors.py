"""The largest errors of the functions of `jaxdml.exact`, over every float32: `python -m benchmarks.exact_errors`.

Names select functions; `--step 17` takes every 17th float32. Results of other functions stay in the file.
"""

import argparse
import re
from pathlib import Path

import jax
import numpy as np
from jax import lax
from scipy import special

import jaxdml as dml

RESULTS = Path(__file__).parent / "results" / "exact_errors.md"
RIGHT = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "logistic": special.expit,
    "tanh": np.tanh,
    "log": np.log,
    "log1p": np.log1p,
    "erf": special.erf,
    "erfc": special.erfc,
    "erf_inv": special.erfinv,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}
HEAD = """# Errors of exact floats

The largest error of each function, in ulp of the right value's binade, over float32 numbers where the right value is a
normal number, as NumPy and SciPy compute it in float64. `python -m benchmarks.exact_errors` writes this file; a step
of 1 means every float32, a step of 17 every 17th.

| function | step | largest error | where |
| --- | --- | --- | --- |
"""
CHUNK = 2**22


def largest_error(name, step):
    """The largest error, and the argument that has it."""
    function, worst, where = jax.jit(dml.exact(getattr(lax, name))), 0.0, np.float32(0)
    for start in range(0, 2**32, CHUNK * step):
        bits = np.arange(start, min(start + CHUNK * step, 2**32), step, dtype=np.uint64)
        x = np.pad(bits.astype(np.uint32), (0, CHUNK - bits.size)).view(np.float32)
        x = np.where(np.abs(x) < np.finfo(np.float32).smallest_normal, np.float32(0), x)
        running = function(x)
        with np.errstate(all="ignore"):
            right = RIGHT[name](x.astype(np.float64))
            size = np.abs(right)
            error = np.abs(np.asarray(running) - right) / np.ldexp(1.0, np.frexp(size)[1] - 24)
            error[~((size >= 2.0**-126) & (size <= np.finfo(np.float32).max))] = 0
        place = error.argmax()
        if error[place] > worst:
            worst, where = error[place], x[place]
    return worst, where


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(RIGHT)}; all by default")
    parser.add_argument("--step", type=int, default=1)
    options = parser.parse_args()
    for name in options.names or RIGHT:
        worst, where = largest_error(name, options.step)
        text = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
        rows = {row.split("`")[1]: row for row in re.findall(r"^\| `.*$", text, re.M)}
        rows[name] = f"| `{name}` | {options.step} | {worst:.4f} | {float(where)!r} |"
        RESULTS.write_text(HEAD + "".join(f"{rows[each]}\n" for each in RIGHT if each in rows), encoding="utf-8")
        print(rows[name], flush=True)


if __name__ == "__main__":
    main()
