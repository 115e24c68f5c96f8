"""Random calls of attention, and their results by the reference."""

import numpy as np

from jaxdml._arithmetic.native_attention import RESULTS
from jaxdml.reference import attention as reference

F = np.float32
STRANGE = np.array([np.nan, np.inf, -np.inf, 1e-39, 3e38, -0.0, 1e-30], F)


class Random:
    """Random calls: sizes, masks, caches with free space, windows, special values, float16 values."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def extent(self, most):
        return int(self.rng.integers(1, most)) if self.rng.random() < 0.8 else 1

    def floats(self, *shape, strange=0.0):
        x = (self.rng.normal(size=shape) * 2.0 ** self.rng.choice([0, 0, 0, 1, 3, -6, 10])).astype(F)
        flat = x.reshape(-1)
        if self.rng.random() < 0.2:
            x[..., self.rng.integers(shape[-1])] *= 100
        for each in STRANGE:
            if self.rng.random() < strange:
                flat[self.rng.integers(x.size, size=2)] = each
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(F) if self.rng.random() < 0.2 else x

    def seen(self, batch, heads, rows, keys):
        i, j, kind = np.arange(rows)[:, None], np.arange(keys)[None], self.rng.integers(5)
        is_past = j <= i + max(keys - rows, 0)
        if kind == 0:
            return is_past
        if kind == 1:  # a window
            return is_past & (j > i + max(keys - rows, 0) - self.extent(20))
        if kind == 2:  # a cache with free space
            return j < self.rng.integers(0, keys + 1, (batch, 1, 1, 1))
        if kind == 3:
            return self.rng.random((batch, 1, rows, keys)) < self.rng.choice([0.1, 0.6, 0.95])
        return self.rng.random((1, heads, 1, 1)) < 0.7

    def call(self):
        batch, groups, rows, size, wide = (self.extent(most) for most in (4, 4, 31, 71, 71))
        heads, keys = groups * self.extent(5), self.extent(self.rng.choice([40, 90, 700]))
        strange = self.rng.choice([0, 0, 0.1, 0.4])
        shapes = (batch, heads, rows, size), (batch, groups, keys, size), (batch, groups, keys, wide)
        arrays = [self.floats(*shape, strange=strange) for shape in shapes]
        seen = self.seen(batch, heads, rows, keys) if self.rng.random() < 0.8 else None
        of_bias = (batch, 1, rows, keys), (heads, 1, 1), (1, 1, 1, keys)
        bias = self.floats(*of_bias[self.rng.integers(3)], strange=strange / 4) if self.rng.random() < 0.4 else None
        sink = self.floats(heads, strange=strange / 4) if self.rng.random() < 0.3 else None
        which = RESULTS[0] if self.rng.random() < 0.6 else RESULTS[self.rng.integers(5)]
        softcap = float(self.rng.choice([0, 0, 1.5, 30]))
        return (which, float(F(self.rng.choice([0.3, size**-0.5, 1, 2e-3, 50]))), softcap), (*arrays, seen, bias, sink)


def expected(which, scale, softcap, query, key, value, *more):
    options = dict(zip(("seen", "bias", "sink"), more, strict=False))
    return reference.attention(query, key, value, scale=scale, softcap=softcap, **options)[which]
