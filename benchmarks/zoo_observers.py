"""python -m benchmarks.zoo_observers: the observer "auto" and the three that it chooses from, on the zoo's networks.

It needs the environment of benchmarks.zoo, and uses the same batches. It has more held-out inputs: on eight inputs, the
best of the observers depends on which eight they are.
"""

import argparse
import gc
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.machine import environment
from benchmarks.zoo import decibels
from benchmarks.zoo_models import MODELS
from jaxdml import ptq

RESULTS = Path(__file__).parent / "results"
OBSERVERS = "minmax", "percentile", "mse", "auto"
LEVEL = 0.2  # differences of up to this many dB do not count
ABOUT = f"""\
Ratios in dB of the outputs to their error on 48 inputs that calibration did not see, by the observer of
`jaxdml.ptq.quantize`. Calibration sees 16 inputs. "auto" makes a model with each of the other three, and returns the
one with the least error on the calibration batches. "level" is whether "auto" is within {LEVEL} dB of the best of
the three on the other inputs."""


def measured(name: str) -> dict[str, float]:
    """The ratio of one network's outputs to their error in dB, with each observer."""
    apply, params, draw = MODELS[name]()
    rng = np.random.default_rng(0)
    batches, others = [draw(4, rng) for _ in range(4)], [draw(8, rng) for _ in range(6)]
    expected = [jax.jit(apply)(params, *other) for other in others]

    def ratio(observer: str) -> float:
        model = ptq.quantize(apply, params, batches, observer=observer, progress=False)
        return decibels([model.apply(model.params, *other) for other in others], expected)

    return {observer: ratio(observer) for observer in OBSERVERS}


def is_level(found: dict[str, float]) -> bool:
    """Whether "auto" is at most LEVEL dB below the best of the others."""
    return found["auto"] >= max(found[observer] for observer in OBSERVERS[:-1]) - LEVEL


def page(found: dict[str, dict[str, float]], about: str) -> str:
    rows = [["network", *OBSERVERS, "level"], ["---"] * (2 + len(OBSERVERS))]
    for name, each in found.items():
        rows.append([name, *(f"{each[observer]:.1f}" for observer in OBSERVERS), "yes" if is_level(each) else "no"])
    table = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(["# Observers on networks that others wrote", "", about, "", ABOUT, "", *table]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, action="append", help="default: all")
    parser.add_argument("--publish", action="store_true", help="write the table and JSON to benchmarks/results")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for name in options.model or MODELS:
        found[name] = measured(name)
        print(name, json.dumps(found[name]), flush=True)
        jax.clear_caches()
        gc.collect()
    where: dict[str, Any] = environment()
    packages = ", ".join(f"{package} {version}" for package, version in where["packages"].items())
    text = page(found, f"{where['processor']}, {where['threads']} threads; {packages}.")
    print(text)
    if options.publish:
        (RESULTS / "zoo_observers.json").write_text(
            json.dumps({"environment": where, "networks": found}, indent=1) + "\n"
        )
        (RESULTS / "zoo_observers.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
