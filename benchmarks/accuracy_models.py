"""Small networks in flax, trained here on data that Python and scikit-learn ship: handwritten digits, and text.

`trained` trains a network of `RECIPES`, and folds its BatchNorms into the convolutions before them. Outliers are
channels up to 100 times as large as others, which the next layer divides by the same factors: the float function stays
the same.
"""

import math
import pydoc_data.topics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

Params = dict[str, Any]
Batch = tuple[np.ndarray, np.ndarray]  # inputs and labels
SIDE, TOKENS = 12, 64  # pixels of an image's side, characters of a sequence
LARGEST = 100  # the largest factor of an outlier channel


# Data ----------------------------------------------------------------------------------------------------------------


def digits(of: str, count: int, rng: np.random.Generator) -> Batch:
    """Noisy digits [count, 12, 12, 1], each at a random place, and their labels [count]."""
    from sklearn.datasets import load_digits  # importing it takes a second

    data = load_digits()
    pool = {"train": slice(0, 1347), "test": slice(1347, None)}[of]  # the last 450 of 1797
    picked = rng.integers(0, len(data.images[pool]), count)
    images = rng.normal(0, 0.2, (count, SIDE, SIDE)).astype(np.float32)
    corners = rng.integers(0, SIDE - 7, (count, 2))
    for image, digit, (top, left) in zip(images, data.images[pool][picked], corners, strict=True):
        image[top : top + 8, left : left + 8] += digit.astype(np.float32) / 8
    return images[..., None], data.target[pool][picked]


TEXT = "".join(c for c in "\n".join(pydoc_data.topics.topics.values()) if c.isascii())
CHARACTERS = sorted(set(TEXT))
IDS = np.searchsorted(CHARACTERS, list(TEXT)).astype(np.int32)


def text(of: str, count: int, rng: np.random.Generator) -> Batch:
    """Characters [count, 64] of Python's documentation, and the one after each; the last tenth is held out."""
    border = len(IDS) * 9 // 10
    pool = {"train": IDS[:border], "test": IDS[border:]}[of]
    places = rng.integers(0, len(pool) - TOKENS, (count, 1)) + np.arange(TOKENS + 1)
    return pool[places[:, :-1]], pool[places[:, 1:]]


# Networks ------------------------------------------------------------------------------------------------------------


class Unit(nn.Module):
    """A convolution and its BatchNorm; in the folded form, a convolution with a bias."""

    features: int
    size: int
    folded: bool
    stride: int = 1
    groups: int = 1

    @nn.compact
    def __call__(self, x: Any, train: bool) -> Any:
        x = nn.Conv(
            self.features, (self.size, self.size), self.stride, self.size // 2,
            feature_group_count=self.groups, use_bias=self.folded, name="conv",
        )(x)  # fmt: skip
        return x if self.folded else nn.BatchNorm(use_running_average=not train, momentum=0.9, name="norm")(x)


class ResNet(nn.Module):
    """Residual blocks with relu: x [N, 12, 12, 1], logits [N, 10]."""

    folded: bool

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = nn.relu(Unit(16, 3, self.folded, name="stem")(x, train))
        for block, (features, stride) in enumerate(((16, 1), (32, 2), (64, 2))):
            first = Unit(features, 3, self.folded, stride, name=f"block_{block}_first")
            second = Unit(features, 3, self.folded, name=f"block_{block}_second")
            branch = second(nn.relu(first(x, train)), train)
            if stride > 1:
                x = Unit(features, 1, self.folded, stride, name=f"block_{block}_shortcut")(x, train)
            x = nn.relu(x + branch)
        return nn.Dense(10, name="head")(jnp.mean(x, (1, 2)))


class MobileNet(nn.Module):
    """Inverted residuals with relu6: x [N, 12, 12, 1], logits [N, 10]."""

    folded: bool

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = nn.relu6(Unit(16, 3, self.folded, name="stem")(x, train))
        for block, (features, stride) in enumerate(((16, 1), (24, 2), (24, 1))):
            inner = 3 * x.shape[-1]
            expand = Unit(inner, 1, self.folded, name=f"block_{block}_expand")
            depthwise = Unit(inner, 3, self.folded, stride, inner, name=f"block_{block}_depthwise")
            project = Unit(features, 1, self.folded, name=f"block_{block}_project")
            branch = project(nn.relu6(depthwise(nn.relu6(expand(x, train)), train)), train)
            x = x + branch if x.shape == branch.shape else branch
        x = nn.relu6(Unit(64, 1, self.folded, name="last")(x, train))
        return nn.Dense(10, name="head")(jnp.mean(x, (1, 2)))


class ConvNeXt(nn.Module):
    """Depthwise convolutions, LayerNorm and MLPs with gelu: x [N, 12, 12, 1], logits [N, 10]."""

    folded: bool

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = nn.Conv(32, (2, 2), 2, name="stem")(x)
        for block in range(3):
            y = nn.Conv(32, (3, 3), feature_group_count=32, name=f"block_{block}_depthwise")(x)
            y = nn.LayerNorm(name=f"block_{block}_norm")(y.reshape(-1, 36, 32))
            y = nn.gelu(nn.Dense(96, name=f"block_{block}_up")(y))
            x = x + nn.Dense(32, name=f"block_{block}_down")(y).reshape(x.shape)
        return nn.Dense(10, name="head")(jnp.mean(nn.LayerNorm(name="norm")(x.reshape(-1, 36, 32)), 1))


def transformed(x: Any, blocks: int, heads: int, mask: Any = None) -> Any:
    """Pre-norm transformer blocks over x [N, tokens, width]; call it in a module."""
    width = x.shape[-1]
    for block in range(blocks):
        y = nn.LayerNorm(name=f"block_{block}_norm_1")(x)
        queries, keys, values = (
            part.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)
            for part in jnp.split(nn.Dense(3 * width, name=f"block_{block}_qkv")(y), 3, -1)
        )
        scores = jnp.einsum("bhqd,bhkd->bhqk", queries, keys) / math.sqrt(width // heads)
        scores = scores if mask is None else scores + mask
        read = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), values)
        x = x + nn.Dense(width, name=f"block_{block}_out")(read.transpose(0, 2, 1, 3).reshape(x.shape))
        y = nn.gelu(nn.Dense(4 * width, name=f"block_{block}_up")(nn.LayerNorm(name=f"block_{block}_norm_2")(x)))
        x = x + nn.Dense(width, name=f"block_{block}_down")(y)
    return nn.LayerNorm(name="norm")(x)


class ViT(nn.Module):
    """A transformer over patches of 3 by 3: x [N, 12, 12, 1], logits [N, 10]."""

    folded: bool

    @nn.compact
    def __call__(self, x: Any, train: bool = False) -> Any:
        x = nn.Conv(48, (3, 3), 3, name="patches")(x).reshape(-1, 16, 48)
        x = x + self.param("position", nn.initializers.normal(0.1), (1, 16, 48))
        return nn.Dense(10, name="head")(jnp.mean(transformed(x, 3, 4), 1))


class GPT(nn.Module):
    """A causal transformer over characters: ids [N, 64], logits [N, 64, characters] of the next characters."""

    folded: bool

    @nn.compact
    def __call__(self, ids: Any, train: bool = False) -> Any:
        x = self.param("embedding", nn.initializers.normal(0.5), (len(CHARACTERS), 96))
        x = x.at[ids].get(mode="promise_in_bounds", wrap_negative_indices=False)
        x = x + self.param("position", nn.initializers.normal(0.1), (1, TOKENS, 96))
        mask = np.triu(np.full((TOKENS, TOKENS), -1e9, np.float32), 1)[None, None]
        return nn.Dense(len(CHARACTERS), name="head")(transformed(x, 3, 4, mask))


# Training ------------------------------------------------------------------------------------------------------------


def fitted(network: nn.Module, batches: Iterator[Batch], steps: int, rate: float) -> Params:
    """The variables of a network after `steps` batches with Adam, with warm-up and cosine decay of the rate."""
    x, _ = next(batches)
    variables = jax.jit(network.init)(jax.random.key(0), x)
    params, rest = variables["params"], {name: each for name, each in variables.items() if name != "params"}
    adam = optax.adam(optax.warmup_cosine_decay_schedule(0, rate, steps // 10 + 1, steps + 1))

    @jax.jit
    def step(params: Any, rest: Any, state: Any, x: Any, labels: Any) -> tuple[Any, Any, Any]:
        def loss(params: Any) -> tuple[Any, Any]:
            logits, updated = network.apply({"params": params, **rest}, x, train=True, mutable=list(rest))
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), updated

        gradient, rest = jax.grad(loss, has_aux=True)(params)
        updates, state = adam.update(gradient, state)
        return optax.apply_updates(params, updates), rest, state

    state = adam.init(params)
    for _ in range(steps):
        params, rest, state = step(params, rest, state, *next(batches))
    return {"params": params, **rest}


def folded(params: Params, statistics: Params) -> Params:
    """The parameters with each BatchNorm folded into the kernel and the bias of its convolution."""
    found = dict(params)
    for name, moments in statistics.items():
        (kernel,), norm = params[name]["conv"].values(), params[name]["norm"]
        scale = norm["scale"] / jnp.sqrt(moments["norm"]["var"] + 1e-5)
        found[name] = {"conv": {"kernel": kernel * scale, "bias": norm["bias"] - moments["norm"]["mean"] * scale}}
    return found


def stretched(params: Params, pairs: list[tuple[str, str]]) -> Params:
    """Multiplies channels of each pair's first layer by 1 to 100, and divides the second layer's weights to match."""
    rng, found = np.random.default_rng(0), dict(params)
    for writer, reader in pairs:
        count = jax.tree.leaves(found[writer])[0].shape[-1]
        factors = np.exp(rng.uniform(0, math.log(LARGEST), count)).astype(np.float32)
        found[writer] = jax.tree.map(lambda leaf, f=factors: leaf * f, found[writer])
        found[reader] = jax.tree.map(
            lambda leaf, f=factors: leaf / f[:, None] if leaf.ndim > 1 else leaf, found[reader]
        )
    return found


@dataclass(frozen=True)
class Recipe:
    """How a network is trained, and the pairs of layers between which it gets outliers."""

    network: type[nn.Module]
    draw: Callable[[str, int, np.random.Generator], Batch]
    batch: int
    steps: int
    rate: float
    pairs: tuple[tuple[str, str], ...] = ()


def _pairs(*names: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"block_{block}_{writer}", f"block_{block}_{reader}") for block in range(3) for writer, reader in names
    )


RECIPES = {
    "residual CNN": Recipe(ResNet, digits, 64, 400, 3e-3, _pairs(("first", "second"))),
    "MobileNet-like CNN, relu6": Recipe(MobileNet, digits, 64, 300, 5e-3),
    "ConvNeXt-like CNN": Recipe(ConvNeXt, digits, 64, 500, 3e-3, _pairs(("norm", "up"))),
    "vision transformer": Recipe(ViT, digits, 64, 800, 2e-3, _pairs(("norm_1", "qkv"), ("norm_2", "up"))),
    "causal transformer on text": Recipe(GPT, text, 32, 600, 3e-3, _pairs(("norm_1", "qkv"), ("norm_2", "up"))),
}


@dataclass(frozen=True)
class Trained:
    """A network in inference mode, its variables {"params": ...}, batches for calibration, and held-out data."""

    network: nn.Module
    variables: Params
    calibration: list[np.ndarray]
    x: np.ndarray
    labels: np.ndarray

    def with_outliers(self, recipe: Recipe) -> "Trained":
        return replace(self, variables={"params": stretched(self.variables["params"], list(recipe.pairs))})


def trained(recipe: Recipe, held_out: int) -> Trained:
    """Trains a network, and draws 8 batches for calibration and `held_out` inputs for measuring."""
    rng = np.random.default_rng(0)

    def batches() -> Iterator[Batch]:
        while True:
            yield recipe.draw("train", recipe.batch, rng)

    variables = fitted(recipe.network(folded=False), batches(), recipe.steps, recipe.rate)
    variables = {"params": folded(variables["params"], variables.get("batch_stats", {}))}
    calibration = [recipe.draw("train", recipe.batch, rng)[0] for _ in range(8)]
    return Trained(recipe.network(folded=True), variables, calibration, *recipe.draw("test", held_out, rng))
