"""Models whose floats have one answer: where this is stated, tables, files, and how XLA's floats differ."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from _ptq.quantized import ONE_ANSWER as NAMES
from _ptq.quantized import quantized
from helpers.compare import assert_same_bits
from jaxdml.ptq import PtqError, load, quantize, save
from jaxdml.reference import float_sums, floats

TESTS = Path(__file__).parents[1]
VECTORS = TESTS / "vectors"
# The logits of the earlier file, computed by the version that wrote it.
LOGITS = [
    [-1086125974, -1060289325, -1063105602, -1102449167], [-1062891233, 1098197165, -1061706127, 1090812529]
]  # fmt: skip
X = np.linspace(-2, 2, 64, dtype=np.float32).reshape(8, 8)
W = np.random.default_rng(0).standard_normal((8, 8), np.float32)


def test_the_bits_are_those_of_the_rules():
    """The product is exact by itself; what follows it is computed by the reference."""
    model = quantize(
        lambda w, x: jax.nn.softmax(jnp.exp(x @ w)), W, [X], products="dynamic", floats="exact", progress=False
    )
    logits = quantize(lambda w, x: x @ w, W, [X], products="dynamic", progress=False)
    x = floats.exp(np.asarray(logits.apply(logits.params, X)))
    e = floats.exp(floats.sub(x, x.max(-1, keepdims=True)))
    assert_same_bits(model.apply(model.params, X), floats.div(e, float_sums.reduce_sum(e)[:, None]))


def test_a_table_does_not_depend_on_xla():
    """The fraction of tanh(x) * 2**20 has the last bits of tanh."""

    def steep(x):
        x = jnp.tanh(x) * np.float32(2.0**20)
        return x - jnp.floor(x)

    model = quantize(lambda w, x: steep(x @ w) @ w, W, [X], floats="xla", progress=False)
    (name,) = (name for name in model.graph.constants if name.endswith(":table"))
    constants = model.graph.constants
    every = np.arange(constants[name].size)
    (root,) = (node.inputs[0].removesuffix(":quantized") for node in model.graph.nodes if name in node.inputs)
    x = np.float32(every - int(constants[f"{root}:zero_point"])) * constants[f"{root}:scale"]
    y = floats.mul(floats.tanh(x), np.float32(2.0**20))
    y = floats.sub(y, np.floor(y))
    base = name.removesuffix(":table")
    expected = dml.reference.element_wise_quantize_linear(
        y, constants[f"{base}:scale"], constants[f"{base}:zero_point"]
    )
    assert_same_bits(constants[name], expected)


# What the printed model says -----------------------------------------------------------------------------------------


def last_line(apply, **options):
    model = quantize(apply, W, [X], progress=False, **options)
    assert str(model).splitlines()[-1] in model._repr_html_().replace("&quot;", '"')
    return str(model).splitlines()[-1]


def test_a_model_says_whether_it_has_one_answer():
    one = "one answer: the outputs have the same bits on every processor"
    assert last_line(lambda w, x: x @ w, floats="xla") == one
    assert last_line(lambda w, x: jnp.exp(x @ w), floats="exact") == one
    assert last_line(lambda w, x: jnp.exp(x @ w), floats="xla") == (
        'no single answer is promised: XLA computes the floats of exp_1; write floats="exact"'
    )
    assert last_line(lambda w, x: jax.lax.cbrt(jnp.exp(x @ w)), floats="xla") == (
        'no single answer is promised: XLA computes the floats of exp_1, cbrt_1; floats="exact" has no rule for cbrt_1'
    )


@pytest.mark.parametrize(("dtype", "to", "is_exact"), [
    ("uint8", "float32", True), ("int16", "float32", True), ("int8", "bfloat16", True), ("uint8", "float16", True),
    ("int32", "float32", False), ("uint16", "bfloat16", False), ("uint16", "float16", False),
    ("bool", "float32", False),
])  # fmt: skip
def test_a_cast_of_integers_that_floats_hold_has_one_answer(dtype, to, is_exact):
    images = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, (4, 8)).astype(dtype)
    model = quantize(lambda w, x: x.astype(to) @ w.astype(to), W, [images], floats="xla", progress=False)
    names = () if is_exact else ("convert_element_type_1",)
    assert model.by_xla == names
    info = jnp.finfo(to)
    ends = (0, 1) if dtype == "bool" else (jnp.iinfo(dtype).min, jnp.iinfo(dtype).max)
    every = np.arange(max(ends[0], -(2**16)), min(ends[1], 2**16) + 1)
    assert not is_exact or np.array_equal(every.astype(info.dtype).astype(np.int64), every)


@pytest.mark.parametrize(("apply", "names"), [
    (lambda w, x: jax.lax.lgamma(x @ w), "lgamma_1"),
    (lambda w, x: jax.lax.bessel_i0e(x @ w) + jax.lax.lgamma(x @ w) * jax.lax.cbrt(x @ w) - jax.lax.digamma(x @ w),
     "bessel_i0e_1, lgamma_1, cbrt_1 and 1 more"),
    (lambda w, x: jax.lax.cond(x[0, 0] > 0, jax.lax.cbrt, jnp.exp, x @ w), "cond_1"),
])  # fmt: skip
def test_what_has_no_rule_is_named_and_stays_with_xla(apply, names):
    text = f"no single answer is promised: XLA computes the floats of {names}, for which there is no rule"
    assert last_line(apply, floats="exact") == text


@pytest.mark.parametrize("function", [jax.lax.cbrt, jnp.log2])
def test_a_table_of_a_function_without_a_rule_has_one_answer(function):
    model = quantize(lambda w, x: function(jax.nn.relu(x @ w) + 1) @ w, W, [X], progress=False)
    assert model.by_xla == ()


def test_a_product_kept_in_floats_is_named():
    rules = [dml.ptq.Rule("dot_general_2", keep="float")]
    model = quantize(lambda w, x: jnp.exp(x @ w) @ x.T, W, [X], rules=rules, floats="exact", progress=False)
    assert str(model).splitlines()[-1] == (
        "no single answer is promised: XLA computes the floats of dot_general_2, for which there is no rule"
    )
    assert np.isfinite(model.apply(model.params, X)).all()


def test_wrong_floats(monkeypatch):
    with pytest.raises(PtqError, match=r"floats is 'fast', expected 'exact' or 'xla'"):
        quantize(lambda w, x: x @ w, W, [X], floats="fast")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    with pytest.raises(PtqError, match=r"XLA_FLAGS has --xla_cpu_enable_fast_math=true.*or write floats='xla'"):
        quantize(lambda w, x: x @ w, W, [X], floats="exact")


BATCH = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 8"), np.float32)


@pytest.mark.rare
def test_an_exported_sum_of_unknown_length_has_the_same_bits():
    model = quantize(lambda w, x: jax.nn.softmax(x @ w, 0), W, [X], progress=False)
    exported = jax.export.export(jax.jit(lambda x: model.apply(model.params, x)))(BATCH)
    for x in (X, X[:1], np.tile(X, (40, 1))):
        assert_same_bits(exported.call(x), model.apply(model.params, x))


def test_a_product_of_unknown_length_is_refused_with_a_remedy():
    apply = lambda w, x: jnp.prod(x @ w, 0)  # noqa: E731
    model = quantize(apply, W, [X], progress=False)
    with pytest.raises(dml.ExactError, match=r"a product of b factors.*, or choose floats='xla'"):
        jax.export.export(jax.jit(lambda x: model.apply(model.params, x)))(BATCH)
    model = quantize(apply, W, [X], floats="xla", progress=False)
    jax.export.export(jax.jit(lambda x: model.apply(model.params, x)))(BATCH)


# Files ---------------------------------------------------------------------------------------------------------------


def gelu_and_softmax(params, x):
    x = jax.nn.gelu(x @ params["up"]) @ params["down"]
    return {"logits": x, "shares": jax.nn.softmax(x)}


def test_a_file_of_the_earlier_format_has_its_old_bits():
    model = load(VECTORS / "ptq_2.npz", gelu_and_softmax)
    assert model.floats == "xla"
    y = model.apply(model.params, np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 8))
    assert_same_bits(np.asarray(y["logits"]), np.array(LOGITS, np.int32).view(np.float32))
    with np.load(VECTORS / "ptq_2.npz") as arrays:
        text = json.loads(bytes(arrays["model.json"]))
        number = next(i for i, (name, _) in enumerate(text["constants"]) if name.endswith(":table"))
        table = np.repeat(arrays[str(number)], arrays[f"{number}:runs"])
    assert text["format"] == "jaxdml.ptq 2"
    assert_same_bits(model.graph.constants[text["constants"][number][0]], table)


def rewritten(path, change):
    with np.load(path) as arrays:
        stored = dict(arrays)
    text = json.loads(bytes(stored["model.json"]))
    change(text)
    np.savez(path, **stored | {"model.json": np.frombuffer(json.dumps(text).encode(), np.uint8)})


def test_a_file_says_what_computes_floats(tmp_path):
    path, apply = tmp_path / "model.npz", lambda w, x: jnp.exp(x @ w)
    for kind in ("exact", "xla"):
        model = quantize(apply, W, [X], floats=kind, progress=False)
        save(path, model)
        read = load(path, apply)
        assert (read.floats, str(read)) == (kind, str(model))
        assert_same_bits(read.apply(read.params, X), model.apply(model.params, X))


@pytest.mark.parametrize(("stored", "error"), [
    (["exact", 2, []], "was saved with version 2 of the rules for exact floats, this version of jaxdml has 1"),
    (["other", 1, []], "is not a file that jaxdml.ptq.save wrote, or it is damaged"),
    (["exact"], "is not a file that jaxdml.ptq.save wrote, or it is damaged"),
])  # fmt: skip
def test_files_of_other_rules(stored, error, tmp_path):
    path, apply = tmp_path / "model.npz", lambda w, x: jnp.exp(x @ w)
    save(path, quantize(apply, W, [X], floats="exact", progress=False))
    rewritten(path, lambda text: text.update(floats=stored))
    with pytest.raises(PtqError, match=error):
        load(path, apply)


def test_files_of_exact_floats_are_refused_where_fast_math_is_on(tmp_path, monkeypatch):
    path, apply = tmp_path / "model.npz", lambda w, x: jnp.exp(x @ w)
    save(path, quantize(apply, W, [X], floats="exact", progress=False))
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math")
    with pytest.raises(PtqError, match="XLA_FLAGS has --xla_cpu_enable_fast_math"):
        load(path, apply)


# Other processes -----------------------------------------------------------------------------------------------------

PROCESSES = {
    "SSE4.2": ("one", {"XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2"}),
    "AVX2": ("one", {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2"}),
    "kernels of AVX2": ("one", {"JAXDML_KERNELS": "avx2"}),
    "without optimization": ("one", {"XLA_FLAGS": "--xla_backend_optimization_level=0"}),
    "with little optimization": ("one", {"XLA_FLAGS": "--xla_backend_optimization_level=1"}),
    "eight devices": ("sharded", {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}),
}


@pytest.mark.rare
@pytest.mark.parametrize("products", ["static", "dynamic"])
def test_models_have_one_answer_on_other_processors_and_devices(products, tmp_path):
    for name in NAMES:
        save(tmp_path / f"{name}.npz", quantized(name, products=products, floats="exact"))
    path = os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")])
    printed = {}
    for word, (devices, options) in {"this one": ("one", {}), **PROCESSES}.items():
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path, "XLA_FLAGS": ""} | options
        command = [sys.executable, TESTS / "_ptq" / "exact_models.py", tmp_path, devices, *NAMES]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
        assert run.returncode == 0, run.stderr
        printed[word] = run.stdout
    assert {word for word, text in printed.items() if text != printed["this one"]} == set()


def test_products_of_integers_that_are_floats_have_no_rule():
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(6, 5)).astype(np.float32), rng.normal(size=(16, 8)).astype(np.float32)
    bytes_ = rng.integers(-9, 9, (8, 6)).astype(np.int8)

    def f(w, x):
        return jax.lax.dot(jnp.round(x * 9).astype(jnp.int8), bytes_, preferred_element_type=jnp.float32) @ w

    model = dml.ptq.quantize(f, w, [x], floats="exact", progress=False)
    assert model.by_xla == ("dot_general_1",)


def test_a_norm_behind_a_convolution_has_its_channels_last():
    """Then the norm sums rows, which is fast, and floats are transposed once."""

    def apply(p, x):
        layout = "NHWC", "HWIO", "NHWC"
        y = jax.lax.conv_general_dilated(x, p["filters"], (1, 1), "SAME", dimension_numbers=layout)
        y = y - y.mean(-1, keepdims=True)
        return (y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-6)) @ p["weights"]

    params = {"filters": np.ones((3, 3, 8, 8), np.float32), "weights": W}
    graph = quantize(apply, params, [X.reshape(2, 2, 2, 8)], progress=False).graph
    assert [node.options["axes"] for node in graph.nodes if node.operator.name == "mean"] == [(3,), (3,)]
    transposed = [node.inputs[0] for node in graph.nodes if node.operator.name == "transpose"]
    assert len([name for name in transposed if not name.endswith("quantized")]) == 1, transposed
