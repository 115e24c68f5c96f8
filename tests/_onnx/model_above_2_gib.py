"""Run by test_large_files.py in a process of its own: a model whose table alone exceeds the size limit of protobuf."""

import resource
import signal
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx

import jaxdml as dml
from _onnx.saved import run
from helpers.compare import assert_same_bits
from jaxdml.errors import ModelError

ROWS, SIZE = 2**19 + 2, 1024  # 2 GiB and 8 KiB of float32
SMALL = 2**30  # bytes


def apply(params, ids):
    return params["table"][ids] @ params["w"]


@jax.jit
def table():
    """Rows that differ, of numbers from -1 to 1."""
    row, column = (jax.lax.broadcasted_iota(jnp.int32, (ROWS, SIZE), axis) for axis in (0, 1))
    return ((row * 31 + column * 7919) % 1021 - 510).astype(jnp.float32) / 512


def save_without_room(model, path):
    """Saves under a limit on file sizes: this leaves no file, and an old file as it is."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    path.write_bytes(b"old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL, before[1]))
    try:
        dml.onnx.save(model, path)
    except OSError as error:
        print("refused:", error.strerror)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == b"old"


def main(folder):
    random, path = np.random.default_rng(0), folder / "model.onnx"
    w = random.standard_normal((SIZE, 8)).astype(np.float32)
    ids = np.asarray([0, 1, ROWS // 2, ROWS - 2, ROWS - 1], np.int32)
    model = dml.ptq.quantize(apply, {"table": table(), "w": w}, [ids], progress=False)
    save_without_room(model, path)
    dml.onnx.save(model, path, weights="uint8")
    sizes = {each.name: each.stat().st_size for each in folder.iterdir()}
    assert [name.split(".")[-1] for name in sorted(sizes, key=sizes.__getitem__)] == ["onnx", "data"]
    assert min(sizes.values()) < 2**16 < 2**31 < max(sizes.values())
    onnx.checker.check_model(str(path), full_check=True)
    (received,) = run(path, ids).values()
    expected = np.asarray(model.apply(model.params, ids))
    assert len({*expected[:, 0]}) == len(ids)
    assert_same_bits(received, expected)
    print("onnxruntime: the same bits")
    try:
        dml.onnx.load(path)
    except ModelError as error:
        print("load:", error)
    print("peak:", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
