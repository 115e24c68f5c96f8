"""Modules in place of functions, and dicts in place of inputs, with the remedies that the errors name."""

import jax
import numpy as np
import pytest
from flax import linen

import jaxdml as dml
from _ptq.quantized import decibels
from _ptq.test_wrong_calls import PARAMS, X, by_keyword, mlp, quantize
from jaxdml.ptq import PtqError


class Module(linen.Module):
    @linen.compact
    def __call__(self, x, scale=1.0):
        return linen.Dense(4)(linen.relu(linen.Dense(12)(x)) * scale)


module = Module()
VARIABLES = module.init(jax.random.key(0), X)
BATCHES = [{"label": np.zeros(8, np.int32), "x": X, "scale": np.float32(2)}]


def remedy_for(apply, params, batches):
    with pytest.raises(PtqError) as caught:
        dml.ptq.quantize(apply, params, batches, progress=False)
    return str(caught.value).splitlines()[-1].partition(": write ")[2]


@pytest.mark.parametrize("called", [lambda bound: bound, lambda bound: bound.__call__], ids=["itself", "its method"])
def test_a_bound_module(called):
    remedy = remedy_for(called(module.bind(VARIABLES)), VARIABLES, [X])
    apply = eval(remedy.partition("such as ")[2].partition(" in flax")[0], {"module": module})
    model = dml.ptq.quantize(apply, VARIABLES, [X], progress=False)
    assert decibels(model.apply(model.params, X), apply(VARIABLES, X)) > 25


def with_flag(params, x, train=False):
    return mlp(params, x)


def with_scale_by_keyword(params, x, *, scale):
    return mlp(params, x * scale)


def with_image(params, x, image=None, scale=1.0):
    return mlp(params, x if image is None else image) * scale


DICTS = {  # apply, params, the remedy, and the number of inputs that it leaves
    "a function": (with_flag, PARAMS, "batches=[(batch['x'],) for batch in batches]", 1),
    "a flax module's apply": (
        module.apply, VARIABLES, "batches=[(batch['x'], batch['scale'],) for batch in batches]", 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DICTS)
def test_batches_that_are_dicts_of_inputs_and_labels(name):
    apply, params, expected, count = DICTS[name]
    assert remedy_for(apply, params, BATCHES) == expected
    batches = eval(expected.removeprefix("batches="), {"batches": BATCHES})
    model = dml.ptq.quantize(apply, params, batches, progress=False)
    assert len(batches[0]) == count
    assert decibels(model.apply(model.params, *batches[0]), apply(params, *batches[0])) > 25


BY_KEYWORD = {
    with_scale_by_keyword: "x=batch['x'], scale=batch['scale']",
    with_image: "x=batch['x'], scale=batch['scale']",
    by_keyword: "image=batch['image']",
}


@pytest.mark.parametrize("apply", BY_KEYWORD)
def test_inputs_in_dicts_that_are_not_the_first_places_are_passed_by_keyword(apply):
    batches = [{"image": X, "label": BATCHES[0]["label"]}] if apply is by_keyword else BATCHES
    remedy = remedy_for(apply, PARAMS, batches)
    assert remedy == f"lambda params, batch: apply(params, {BY_KEYWORD[apply]})"
    of_dict = eval(remedy, {"apply": apply})
    model = quantize(of_dict, batches=batches)
    assert decibels(model.apply(model.params, batches[0]), of_dict(PARAMS, batches[0])) > 25
