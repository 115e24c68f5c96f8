"""python -m benchmarks.recurrent: LSTM and DynamicQuantizeLSTM in jaxdml.onnx and in onnxruntime.

One node with random weights and one item, with the sizes of models that detect voices and of taggers. Each time is the
median of interleaved runs. The ratio is jaxdml's time over onnxruntime's.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import jaxdml.onnx
from benchmarks.onnx_peer import session_of
from benchmarks.timing import interleaved, median

OPERATORS = {"LSTM": "", "DynamicQuantizeLSTM": "com.microsoft"}
SIZES = ((1, 64, 1), (3, 128, 1), (100, 64, 1), (50, 48, 2), (50, 128, 2), (200, 128, 2), (200, 256, 2))
HEAD = ("operator", "steps", "units", "directions", "jaxdml, ms", "onnxruntime, ms", "ratio")


def node(operator: str, units: int, directions: int) -> tuple[list[str], dict[str, np.ndarray]]:
    """The names of a node's inputs, and its constants; x has as many features as the node has units."""
    rng = np.random.default_rng(0)
    limit = units**-0.5
    bias = rng.uniform(-limit, limit, (directions, 8 * units)).astype(np.float32)
    if operator == "LSTM":
        shape = (directions, 4 * units, units)
        weights = {name: rng.uniform(-limit, limit, shape).astype(np.float32) for name in ("w", "r")}
        return ["x", "w", "r", "bias"], {**weights, "bias": bias}
    shape = (directions, units, 4 * units)
    weights = {name: rng.integers(0, 255, shape, np.uint8) for name in ("w", "r")}
    scales = {f"{name}_scale": np.full(directions, limit / 128, np.float32) for name in ("w", "r")}
    zero_points = {f"{name}_zero": np.full(directions, 128, np.uint8) for name in ("w", "r")}
    names = ["x", "w", "r", "bias", "", "", "", "", "w_scale", "w_zero", "r_scale", "r_zero"]
    return names, {**weights, **scales, **zero_points, "bias": bias}


def file_of(operator: str, steps: int, units: int, directions: int) -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    names, constants = node(operator, units, directions)
    direction = "bidirectional" if directions == 2 else "forward"
    attributes: dict[str, Any] = {"domain": OPERATORS[operator], "hidden_size": units, "direction": direction}
    graph = helper.make_graph(
        [helper.make_node(operator, names, ["y"], **attributes)],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (steps, 1, units))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("com.microsoft", 1)]
    file: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return file


def of_jaxdml(file: bytes, x: np.ndarray) -> Callable[[], Any]:
    model, given = jaxdml.onnx.load(file, numerics="onnxruntime"), jax.numpy.asarray(x)
    program = jax.jit(model.apply).lower(model.params, given).compile()
    return lambda: jax.block_until_ready(program(model.params, given))


def row(operator: str, steps: int, units: int, directions: int, seconds: float) -> str:
    file = file_of(operator, steps, units, directions)
    x = np.random.default_rng(1).standard_normal((steps, 1, units)).astype(np.float32)
    times = interleaved({"jaxdml": of_jaxdml(file, x), "onnxruntime": session_of(file, {"x": x})}, seconds, rounds=5000)
    own, other = median(times["jaxdml"]), median(times["onnxruntime"])
    cells = (operator, steps, units, directions, f"{own:.3f}", f"{other:.3f}", f"{own / other:.2f}")
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operator", choices=OPERATORS, action="append", help="default: both")
    parser.add_argument("--seconds", type=float, default=2, help="of timing, for each row")
    options = parser.parse_args()
    print(f"| {' | '.join(HEAD)} |", "|" + " --- |" * len(HEAD), sep="\n")
    for operator in options.operator or OPERATORS:
        for sizes in SIZES:
            print(row(operator, *sizes, options.seconds), flush=True)


if __name__ == "__main__":
    main()
