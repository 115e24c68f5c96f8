"""Networks that others wrote, with random weights: keras, keras_hub, transformers, haiku and equinox on JAX.

Each entry of `MODELS` builds a network: a function apply(params, *inputs), its params, and a function that draws
inputs, given the batch size and a random generator. Packages are imported where they are used.
"""

import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

os.environ["KERAS_BACKEND"] = "jax"

Network = tuple[Callable[..., Any], Any, Callable[[int, np.random.Generator], tuple[Any, ...]]]
SIZE, LENGTH, VOCABULARY = 96, 32, 1000


def images(count: int, rng: np.random.Generator) -> tuple[Any, ...]:
    """Images [N, 96, 96, 3] with similar neighboring pixels, from about 0 to 255."""
    coarse = rng.uniform(0, 255, (count, 12, 12, 3))
    return ((coarse.repeat(8, 1).repeat(8, 2) + rng.normal(0, 8, (count, SIZE, SIZE, 3))).astype(np.float32),)


def normalized_images(count: int, rng: np.random.Generator) -> tuple[Any, ...]:
    """Images [N, 96, 96, 3], from about -1 to 1."""
    (x,) = images(count, rng)
    return (x / np.float32(127.5) - 1,)


def tokens(count: int, rng: np.random.Generator) -> tuple[Any, ...]:
    """Token ids and mask, int32 [N, 32]."""
    ids = rng.integers(1, VOCABULARY, (count, LENGTH), np.int32)
    lengths = rng.integers(LENGTH // 2, LENGTH + 1, (count, 1))
    mask = (np.arange(LENGTH) < lengths).astype(np.int32)
    return ids * mask, mask


def of_keras(name: str, draw: Any = images, **options: Any) -> Callable[[], Network]:
    """A network of keras.applications. Its normalizations have the statistics of a batch, as in a trained network."""

    def build() -> Network:
        import keras

        keras.utils.set_random_seed(0)
        model = getattr(keras.applications, name)(weights=None, input_shape=(SIZE, SIZE, 3), **options)
        (x,) = draw(8, np.random.default_rng(9))
        for layer in model.layers:
            if isinstance(layer, keras.layers.BatchNormalization):
                layer.momentum = 0.0
        model(x, training=True)
        params = [v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables]

        def apply(params: Any, x: Any) -> Any:
            return model.stateless_call(*params, x, training=False)[0]

        return apply, params, draw

    return build


def of_keras_hub(name: str, **options: Any) -> Callable[[], Network]:
    """A transformer of keras_hub; inputs: token ids and padding mask."""

    def build() -> Network:
        import keras
        import keras_hub

        keras.utils.set_random_seed(0)
        model = getattr(keras_hub.models, name)(
            vocabulary_size=VOCABULARY, num_layers=4, num_heads=4, hidden_dim=128, intermediate_dim=512, dropout=0.0,
            max_sequence_length=64, **options,
        )  # fmt: skip
        params = [v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables]

        def apply(params: Any, ids: Any, mask: Any) -> Any:
            inputs = {"token_ids": ids, "padding_mask": mask}
            if "segment_ids" in model.input:
                inputs["segment_ids"] = jax.numpy.zeros_like(ids)
            result = model.stateless_call(*params, inputs, training=False)[0]
            return result["sequence_output"] if isinstance(result, dict) else result

        return apply, params, tokens

    return build


def of_transformers(name: str, config: str, draw: Any = tokens, **options: Any) -> Callable[[], Network]:
    """A small Flax model of transformers; inputs: token ids and mask, or images."""

    def build() -> Network:
        import transformers

        model = getattr(transformers, name)(getattr(transformers, config)(**options), seed=0)

        def apply(params: Any, *inputs: Any) -> Any:
            if draw is tokens:
                return model(inputs[0], attention_mask=inputs[1], params=params)[0]
            return model(inputs[0].transpose(0, 3, 1, 2), params=params)[0]

        return apply, model.params, draw

    return build


SMALL = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}


def haiku_resnet() -> Network:
    """ResNet-18 of haiku."""
    import haiku as hk

    def forward(x: Any, train: bool) -> Any:
        last = {"w_init": hk.initializers.VarianceScaling()}  # zeros by default
        return hk.nets.ResNet18(10, logits_config=last)(x, train, test_local_stats=False)

    network = hk.transform_with_state(forward)
    (x,) = normalized_images(8, np.random.default_rng(9))
    params, state = network.init(jax.random.key(0), x, True)
    _, state = network.apply(params, state, None, x, True)
    return lambda both, x: network.apply(*both, None, x, False)[0], (params, state), normalized_images


def equinox_transformer() -> Network:
    """Two layers of equinox's attention and MLP, under vmap over the batch; inputs [N, 32, 64]."""
    import equinox as eqx

    keys = iter(jax.random.split(jax.random.key(0), 8))
    blocks = [
        (eqx.nn.LayerNorm(64), eqx.nn.MultiheadAttention(4, 64, key=next(keys)), eqx.nn.LayerNorm(64),
         eqx.nn.MLP(64, 64, 256, 1, jax.nn.gelu, key=next(keys))) for _ in range(2)
    ]  # fmt: skip
    params, static = eqx.partition(blocks, eqx.is_array)

    def one(params: Any, x: Any) -> Any:
        for norm, attention, other, mlp in eqx.combine(params, static):
            h = jax.vmap(norm)(x)
            x = x + attention(h, h, h)
            x = x + jax.vmap(mlp)(jax.vmap(other)(x))
        return x

    def draw(count: int, rng: np.random.Generator) -> tuple[Any, ...]:
        return (rng.normal(size=(count, LENGTH, 64)).astype(np.float32),)

    return jax.vmap(one, (None, 0)), params, draw


MODELS: dict[str, Callable[[], Network]] = {
    "keras ResNet50": of_keras("ResNet50"),
    "keras ResNet50V2": of_keras("ResNet50V2", normalized_images),
    "keras MobileNetV2": of_keras("MobileNetV2", normalized_images),
    "keras MobileNetV3Small": of_keras("MobileNetV3Small"),
    "keras EfficientNetB0": of_keras("EfficientNetB0"),
    "keras DenseNet121": of_keras("DenseNet121", normalized_images),
    "keras ConvNeXtTiny": of_keras("ConvNeXtTiny"),
    "keras_hub BERT": of_keras_hub("BertBackbone"),
    "keras_hub GPT-2": of_keras_hub("GPT2Backbone"),
    "transformers BERT": of_transformers("FlaxBertModel", "BertConfig", vocab_size=VOCABULARY, **SMALL),
    "transformers RoBERTa": of_transformers("FlaxRobertaModel", "RobertaConfig", vocab_size=VOCABULARY, **SMALL),
    "transformers GPT-2": of_transformers(
        "FlaxGPT2LMHeadModel", "GPT2Config", vocab_size=VOCABULARY, n_embd=128, n_layer=4, n_head=4, n_positions=64
    ),
    "transformers ViT": of_transformers(
        "FlaxViTModel", "ViTConfig", normalized_images, image_size=SIZE, patch_size=16, **SMALL
    ),
    "haiku ResNet18": haiku_resnet,
    "equinox transformer": equinox_transformer,
}
