"""Small networks in files, and digests of their results: the bits of every version of jax and every instruction set.

Run by test_recorded.py in processes of their own, it prints the digests. `PYTHONPATH=.:tests python
tests/_ptq/recorded.py record` quantizes the networks again, and records new files and digests, which is right if the
rules of exact floats, or the files, are meant to change.
"""

import functools
import hashlib
import json
import sys
from pathlib import Path

import jax
import numpy as np

import jaxdml as dml
from _ptq import models

FOLDER = Path(__file__).parents[1] / "vectors" / "one_answer"
DIGESTS = FOLDER / "digests.json"
NETWORKS = {  # each with the kind of its products
    "bert": (functools.partial(models.transformer_block, 2, 8, 16, 2), "static"),
    "vit": (functools.partial(models.vit, 8), "dynamic"),
    "gpt": (functools.partial(models.decoder, 6, 16, 2, 12), "static"),
    "squeeze_and_excite": (functools.partial(models.mobilenet_v3_block, 6, 4, 8), "static"),
    "mixer": (functools.partial(models.mixer, 6, 16), "dynamic"),
    "lstm": (functools.partial(models.lstm, 6, 16), "dynamic"),
}


def from_integers(x):
    """An input of the shape and type of x; its floats are integers / 32, which every NumPy draws alike."""
    integers = np.random.default_rng(0).integers(-64, 65, x.shape)
    return np.float32(integers) / np.float32(32) if x.dtype == np.float32 else integers.astype(x.dtype) % 6


def digests(name):
    """One for each result of the network in a file."""
    apply, params, make_inputs = NETWORKS[name][0]()
    structs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
    model = dml.ptq.load(FOLDER / f"{name}.npz", apply, structs)
    assert not model.by_xla
    results = jax.tree.leaves(jax.jit(model.apply)(model.params, *map(from_integers, make_inputs(3))))
    assert all(np.ptp(y) > 0 and np.isfinite(y).all() for y in results)
    return [hashlib.sha256(np.asarray(y, "<f4").tobytes()).hexdigest() for y in results]


def record():
    FOLDER.mkdir(exist_ok=True)
    for name, (network, products) in NETWORKS.items():
        apply, params, make_inputs = network()
        batches = [make_inputs(8, seed) for seed in range(2)]
        model = dml.ptq.quantize(apply, params, batches, products=products, progress=False)
        dml.ptq.save(FOLDER / f"{name}.npz", model)
    DIGESTS.write_text(json.dumps({name: digests(name) for name in NETWORKS}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["record"]:
        record()
    print(json.dumps({name: digests(name) for name in NETWORKS}))
