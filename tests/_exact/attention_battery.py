"""Attention of several kinds as one function, its inputs, and its results by `jaxdml.reference.attention`."""

import jax
import numpy as np

from helpers.compare import assert_same_bits
from jaxdml._exact.attention import attention
from jaxdml.reference import attention as reference

RNG = np.random.default_rng(0)
FIELDS = ("output", "scores", "capped", "masked", "weights")


def floats(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def inputs():
    """Queries, keys, values, which keys are seen, bias and sink: with outliers, subnormals, infinities and NaN."""
    query, key, value = floats(3, 4, 5, 16) * 4, floats(3, 2, 9, 16), floats(3, 2, 9, 8)
    query[0, :, :, 3] *= 40
    key[:, 0, :, 3] *= 40
    value[:, :, 2] *= 1e4
    query[1, 2, 3], key[2, 0, 1], key[2, 0, 4, 2], value[2, 1, 6, 0] = 0, 1e-39, np.nan, np.inf
    seen, bias = floats(3, 1, 5, 9) > -0.8, floats(1, 4, 5, 9)
    seen[:2, 0, 1], seen[2, :, :, 4], seen[2, :, :, 6] = False, False, False
    bias[0, 1, 2], bias[0, 2, :, 3] = np.finfo(np.float32).min, -np.inf
    return query, key, value, seen, bias, floats(4) * 3


INPUTS = inputs()
KINDS = {  # softcap, and which of seen, bias and sink are given
    "all": (1.5, True, True, True),
    "plain": (0.0, False, False, False),
    "seen": (0.0, True, False, False),
    "bias": (0.0, False, True, False),
    "sink": (0.0, False, False, True),
}


def everything(query, key, value, *more, kinds=tuple(KINDS)):
    """Each result of attention of each kind, by name."""
    results = {}
    for kind in kinds:
        softcap, *given = KINDS[kind]
        options = [each if is_given else None for each, is_given in zip(more, given, strict=True)]
        results |= {f"{kind} {name}": attention(name, 0.3, softcap, query, key, value, *options) for name in FIELDS}
    return results


def expected():
    """The results of `everything`, computed by the reference."""
    results = {}
    for kind, (softcap, *given) in KINDS.items():
        options = {name: each for name, each, is_given in zip(("seen", "bias", "sink"), INPUTS[3:], given, strict=True)
                   if is_given}  # fmt: skip
        found = reference.attention(*INPUTS[:3], scale=0.3, softcap=softcap, **options)
        results |= {f"{kind} {name}": found[name] for name in FIELDS}
    return results


EXPECTED = expected()


def assert_all_same(results, wanted=EXPECTED):
    assert results.keys() == wanted.keys()
    for name, got in jax.device_get(results).items():
        assert_same_bits(got, wanted[name], name)
