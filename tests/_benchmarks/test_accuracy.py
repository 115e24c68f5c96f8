"""The benchmark of accuracy: its numbers, and that every tool runs. The networks are hardly trained."""

import dataclasses
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import accuracy, accuracy_models

pytestmark = [
    pytest.mark.rare,
    pytest.mark.skipif(jax.default_backend() != "cpu", reason="benchmarks compare with ONNX Runtime on a CPU"),
    pytest.mark.filterwarnings("ignore:'VariableState' was removed:DeprecationWarning"),  # qwix reads flax's old name
]


@pytest.fixture(autouse=True)
def as_people_write_it():
    """JAX's default promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def tiny(name):
    return dataclasses.replace(accuracy_models.RECIPES[name], batch=4, steps=2)


def test_an_error_of_a_hundredth_is_40_decibels():
    exact, labels = np.eye(4), np.array([0, 1, 2, 0])
    model = accuracy_models.Trained(None, {}, [], exact, labels)
    scored = accuracy.scored(model, exact, lambda: lambda x: 1.01 * x)
    assert scored == {"dB": pytest.approx(40), "accuracy": 75}
    assert accuracy.scored(model, exact, lambda: 1 / 0) == {"error": "ZeroDivisionError: division by zero"}


def test_outliers_leave_the_function():
    recipe = tiny("causal transformer on text")
    model = accuracy_models.trained(recipe, 4)
    outliers = model.with_outliers(recipe)
    expected, received = (np.asarray(each.network.apply(each.variables, model.x)) for each in (model, outliers))
    assert accuracy.decibels(received, expected) > 100
    kernels = [each.variables["params"][recipe.pairs[0][1]] for each in (model, outliers)]
    kernels = [max(jax.tree.leaves(each), key=np.size) for each in kernels]
    assert np.max(kernels[0] / kernels[1]) > 20


def test_folded_statistics_leave_the_function():
    recipe, rng = tiny("MobileNet-like CNN, relu6"), np.random.default_rng(0)
    x, _ = recipe.draw("train", 4, rng)
    variables = accuracy_models.fitted(recipe.network(folded=False), iter([recipe.draw("train", 4, rng)] * 9), 8, 1e-2)
    expected = recipe.network(folded=False).apply(variables, x)
    params = {"params": accuracy_models.folded(variables["params"], variables["batch_stats"])}
    received = recipe.network(folded=True).apply(params, x)
    assert accuracy.decibels(np.asarray(received, float), np.asarray(expected, float)) > 100


def test_every_tool_runs():
    name = "vision transformer"
    found = accuracy.networks({name: tiny(name)}, 8)
    assert list(found) == [name, f"{name}, outliers"]
    for each in found.values():
        assert each["float file, dB"] > 100
        scores = [row for kind in ("static", "dynamic") for row in each[kind].values()]
        ran = [row for row in scores if "error" not in row]
        assert min(row["dB"] for row in ran) > 0
        assert {row.get("error") for row in scores} <= {None, "ValueError: Only one operand can be asymmetric."}
        assert len(ran) >= len(scores) - 2
    for text in (accuracy.page(found, "about", "note"), accuracy.page_of_accuracy(found)):
        assert f" | {name}, outliers |" in text
    json.dumps(found)


def test_the_page_says_where_jaxdml_is_behind():
    rows = {"static": {"jaxdml": {"dB": 30.0, "accuracy": 90.0}, "qwix": {"dB": 30.2, "accuracy": 90.0}}}
    rows |= {
        "dynamic": {"jaxdml": {"dB": 30.0, "accuracy": 90.0}, "qwix": {"dB": 31.0, "accuracy": 90.0}},
        "float": 91.0,
    }
    assert accuracy.behind({"net": rows}, "jaxdml") == ["- net, dynamic: qwix by 1.0 dB."]
    assert accuracy.behind({"net": rows}, "qwix") == ["- None."]
    lines = accuracy.table({"net": rows, "other": rows}, "static", "accuracy")
    assert lines == [
        "| tool | net | other |", "| --- | --- | --- |", "| float | 91.0 | 91.0 |", "| jaxdml | 90.0 | 90.0 |",
        "| qwix | 90.0 | 90.0 |",
    ]  # fmt: skip
