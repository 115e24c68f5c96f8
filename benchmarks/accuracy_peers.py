"""Other quantizers of a trained network: each returns a function from inputs to logits."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import qwix
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from benchmarks.accuracy_models import Trained
from jaxdml import ptq
from jaxdml.onnx import save

Call = Callable[[np.ndarray], np.ndarray]
CONTRACTIONS = ["Conv", "MatMul", "Gemm"]


# qwix ----------------------------------------------------------------------------------------------------------------


def of_qwix(trained: Trained, static: bool, method: str) -> Call:
    """int8 weights and activations; `method` is "absmax" (symmetric) or "minmax"."""
    options: dict[str, Any] = {"weight_qtype": "int8", "act_qtype": "int8", "act_calibration_method": method}
    options |= {"act_static_scale": static}
    network, x = trained.network, jnp.asarray(trained.calibration[0])
    statistics: dict[str, Any] = {}
    if static:
        observed = qwix.quantize_model(network, qwix.QtProvider([qwix.QtRule(**options)]))
        for batch in trained.calibration:
            _, statistics = observed.apply({**trained.variables, **statistics}, batch, mutable=["quant_stats"])
    quantized = qwix.quantize_model(network, qwix.PtqProvider([qwix.QuantizationRule(**options)]))
    shapes = jax.eval_shape(quantized.init, jax.random.key(0), x)["params"]
    params = qwix.quantize_params(trained.variables["params"], shapes, statistics.get("quant_stats", {}))
    call = jax.jit(quantized.apply)
    return lambda x: np.asarray(call({"params": params}, x))


# onnxruntime ---------------------------------------------------------------------------------------------------------


def float_file(trained: Trained, path: Path) -> None:
    """Writes the float network as ONNX, simplified as onnxruntime's quantizer requires.

    `jaxdml.onnx.save` saves a model in which only an added product is quantized; this product is then cut off.
    """
    one = np.eye(2, dtype=np.float32)
    batches = [(batch, np.resize(one, (len(batch), 2))) for batch in trained.calibration[:1]]

    def apply(params: Any, x: Any, other: Any) -> Any:
        return {
            "logits": trained.network.apply({"params": params["network"]}, x),
            "other": other @ params["other"]["w"],
        }

    params = {"network": trained.variables["params"], "other": {"w": one}}
    model = ptq.quantize(
        apply, params, batches, rules=[ptq.Rule("^(?!other$)", keep="float")], equalize=False, progress=False
    )
    with tempfile.TemporaryDirectory() as folder:
        both, alone = Path(folder) / "both.onnx", Path(folder) / "alone.onnx"
        save(model, both)
        onnx.utils.extract_model(both, alone, ["x"], ["logits"])
        quant_pre_process(alone, path, skip_symbolic_shape=True)  # shape inference needs another package


def session(path: Path, optimized: bool = False) -> Call:
    """A call of a file that has one input and one output.

    Sums never saturate, even on processors without int8 dot products: without optimization, a QDQ file computes in
    floats between roundings; with optimization, the session's option turns int8 weights into uint8.
    """
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    made = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = made.get_inputs()[0].name
    return lambda x: made.run(None, {name: x})[0]


class Batches(CalibrationDataReader):
    """Calibration batches, one after the other."""

    def __init__(self, batches: list[np.ndarray]) -> None:
        self.rest = iter([{"x": batch} for batch in batches])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.rest, None)


def of_onnxruntime(trained: Trained, file: Path, calibrator: str, operators: list[str] | None) -> Call:
    """uint8 activations, per-channel int8 weights, QDQ unless `calibrator` is "dynamic"; None means all operators."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quantized.onnx"
        options: dict[str, Any] = {
            "per_channel": True,
            "weight_type": QuantType.QInt8,
            "op_types_to_quantize": operators,
        }
        if calibrator == "dynamic":
            quantize_dynamic(file, path, **options)
        else:
            method = CalibrationMethod[calibrator]
            quantize_static(file, path, Batches(trained.calibration), calibrate_method=method, **options)
        return session(path, optimized=calibrator == "dynamic")
