"""Run by test_modes.py in a process of its own, with flags that choose instructions."""

import os

import jax

import jaxdml as dml
from _exact import battery

# XLA has no conversion to float16 for processors as old as these: "Symbols not found: __truncsfhf2".
left_out = {"half"} if "SSE4_2" in os.environ["XLA_FLAGS"] else set()
expected = {name: value for name, value in battery.EXPECTED.items() if name not in left_out}


def everything(x, y):
    results = battery.everything(x, y)
    return {name: results[name] for name in expected}


battery.assert_all_same(jax.jit(dml.exact(everything))(battery.X, battery.Y), expected)
battery.assert_all_same(
    jax.jit(dml.exact(lambda x, y: battery.then(everything(x * 1.3 + y, y))))(battery.X, battery.Y),
    battery.expected_surrounded(),
)
print("ok")
