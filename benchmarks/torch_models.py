"""Networks of torch, with random weights: from torchvision, from transformers, and three that are in neither.

Each entry of `MODELS` builds a module and a tuple of inputs, one example of each.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torchvision
import transformers
from torch import nn
from torch.nn import functional

SIZE, LENGTH, VOCABULARY = 64, 16, 200
ENCODER: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
}  # fmt: skip
TEXT = ENCODER | {"vocab_size": VOCABULARY}
PATCHES = ENCODER | {"image_size": SIZE, "patch_size": 16}
VISION = (
    "resnet18", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "shufflenet_v2_x0_5", "squeezenet1_1",
    "regnet_y_400mf", "mnasnet0_5", "googlenet", "densenet121", "convnext_tiny", "swin_t",
)  # fmt: skip

Network = tuple[nn.Module, tuple[torch.Tensor, ...]]


def images() -> torch.Tensor:
    return torch.randn(1, 3, SIZE, SIZE)


def ids() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (1, LENGTH))


class Output(nn.Module):
    """One output of a network that returns several by name."""

    def __init__(self, module: nn.Module, inputs: tuple[str, ...], output: str) -> None:
        super().__init__()
        self.module, self.inputs, self.output = module, inputs, output

    def forward(self, *values: torch.Tensor) -> Any:
        return self.module(**dict(zip(self.inputs, values, strict=True)))[self.output]


class Tagger(nn.Module):
    """Two LSTM layers, forward and backward, over token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.layers = nn.LSTM(32, 48, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(96, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(x))[0])


class Detector(nn.Module):
    """A small YOLO: SiLU, pyramid pooling, upsampling, boxes from distributions, and the indices of the best scores."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Sequential(self.block(3, 16, 3, 2), self.block(16, 32, 3, 2))
        self.high = nn.Sequential(self.block(32, 64, 3, 2), self.block(64, 32, 1))
        self.pooled, self.joined = self.block(128, 64, 1), self.block(96, 32, 3)
        self.boxes, self.scores = nn.Conv2d(32, 16, 1), nn.Conv2d(32, 5, 1)
        side = torch.arange(SIZE // 4, dtype=torch.float32)
        self.register_buffer("grid", torch.stack(torch.meshgrid(side, side, indexing="ij")))
        self.register_buffer("bins", torch.arange(4.0).view(1, 4, 1, 1, 1))

    @staticmethod
    def block(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Module:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.SiLU())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        low = self.low(x)
        pools = [self.high(low)]
        for _ in range(3):
            pools.append(functional.max_pool2d(pools[-1], 5, 1, 2))
        up = functional.interpolate(self.pooled(torch.cat(pools, 1)), scale_factor=2.0, mode="nearest")
        y = self.joined(torch.cat([up, low], 1))
        near, far = (self.boxes(y).unflatten(1, (4, 4)).softmax(1) * self.bins).sum(1).chunk(2, 1)
        scores = self.scores(y).sigmoid().flatten(2)
        boxes = torch.cat([self.grid - near, self.grid + far], 1).flatten(2)
        return torch.cat([boxes, scores], 1), scores.amax(1).topk(10)[1]


class Segmenter(nn.Module):
    """A small U-Net: instance and group norms, leaky ReLU, linear upsampling, a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.bottom, self.up = self.block(3, 16), self.block(16, 32), self.block(48, 16)
        self.larger, self.head = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(8, 4, 1)

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Module:
        first = nn.Conv2d(inputs, outputs, 3, padding=1), nn.InstanceNorm2d(outputs, affine=True), nn.LeakyReLU(0.1)
        return nn.Sequential(*first, nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down = self.down(x)
        bottom = self.bottom(functional.max_pool2d(down, 2))
        up = functional.interpolate(bottom, scale_factor=2.0, mode="bilinear")
        return self.head(self.larger(self.up(torch.cat([down, up], 1))))


def of_torchvision(name: str) -> Network:
    return torchvision.models.get_model(name, weights=None), (images(),)


def masked_text() -> dict[str, torch.Tensor]:
    return {"input_ids": ids(), "attention_mask": torch.ones(1, LENGTH, dtype=torch.long)}


def text() -> dict[str, torch.Tensor]:
    return {"input_ids": ids()}


def pixels() -> dict[str, torch.Tensor]:
    return {"pixel_values": images()}


def sound() -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(1, 1600)}


def transformer(
    model: str, options: dict[str, Any], draw: Callable[[], dict[str, torch.Tensor]], output: str = "last_hidden_state"
) -> Callable[[], Network]:
    """Builds a transformers network from the options of its configuration; `draw` makes its inputs by name."""

    def build() -> Network:
        kind, inputs = getattr(transformers, model), draw()
        return Output(kind(kind.config_class(**options)), tuple(inputs), output), tuple(inputs.values())

    return build


T5 = {"vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
DISTILBERT = {"vocab_size": VOCABULARY, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "use_cache": False}
LLAMA = TEXT | {"num_key_value_heads": 2, "use_cache": False}
WAV2VEC2 = ENCODER | {
    "conv_dim": (32,) * 3, "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3), "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
SEGFORMER = {
    "hidden_sizes": [16, 32, 40, 64], "depths": [1] * 4, "num_attention_heads": [1, 2, 4, 8],
    "decoder_hidden_size": 32, "num_labels": 5,
}  # fmt: skip

MODELS: dict[str, Callable[[], Network]] = {
    **{f"torchvision {name}": functools.partial(of_torchvision, name) for name in VISION},
    "transformers BERT": transformer("BertModel", TEXT, masked_text),
    "transformers DistilBERT": transformer("DistilBertModel", DISTILBERT, masked_text),
    "transformers GPT-2": transformer("GPT2LMHeadModel", GPT2, text, output="logits"),
    "transformers Llama": transformer("LlamaForCausalLM", LLAMA, text, output="logits"),
    "transformers T5 encoder": transformer("T5EncoderModel", T5, text),
    "transformers ViT": transformer("ViTModel", PATCHES, pixels),
    "transformers CLIP vision": transformer("CLIPVisionModel", PATCHES, pixels),
    "transformers SegFormer": transformer("SegformerForSemanticSegmentation", SEGFORMER, pixels, output="logits"),
    "transformers wav2vec2": transformer("Wav2Vec2Model", WAV2VEC2, sound),
    "LSTM tagger": lambda: (Tagger(), (ids(),)),
    "detector": lambda: (Detector(), (images(),)),
    "U-Net": lambda: (Segmenter(), (images(),)),
}
