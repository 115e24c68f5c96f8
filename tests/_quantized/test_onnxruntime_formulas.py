"""The formulas of onnxruntime's kernels for x64, against these kernels: no output differs."""

import functools

import jax
import numpy as np
import pytest
from jax import export

import jaxdml as dml
from helpers.compare import assert_same_bits
from helpers.formula_cases import FORMS, TYPES_OF_A
from helpers.marks import rest_rarely
from helpers.one_node import fed, on_x64_alone
from jaxdml._quantized.onnxruntime.softmax import qlinear_softmax

pytestmark = on_x64_alone


def of_types(name):
    return TYPES_OF_A.get(name, (np.uint8, np.int8))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FORMS)
def test_few_outputs(name):
    assert FORMS[name][0].differing(np.random.default_rng(0), of_types(name)[-1], least=2000)[0] == 0


@pytest.mark.rare
@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name in FORMS for dtype in of_types(name)])
def test_a_million_outputs(name, dtype):
    rng, forms = np.random.default_rng(1), FORMS[name]
    counts = [form.differing(rng, dtype, least=1_100_000 // len(forms)) for form in forms]
    assert [differing for differing, _ in counts] == [0] * len(forms)
    assert sum(total for _, total in counts) >= 1_000_000


# In every mode -------------------------------------------------------------------------------------------------------
SMALL = {name: forms[-1 if name == "softmax" else 1 if len(forms) > 1 else 0] for name, forms in FORMS.items()}


@functools.cache
def expected(dtype=np.uint8):
    """By name of the operator: three lists of arguments, and onnxruntime's outputs for each."""
    rng, found = np.random.default_rng(2), {}
    for name, form in SMALL.items():
        if dtype in of_types(name):
            lists = [form.draw(rng, dtype) for _ in range(3)]
            if name == "softmax":
                lists = [(x, lists[0][1], *rest) for x, _, *rest in lists]
            node = fed(form.operator, lists[0], form.output or np.dtype(dtype).name, **form.attributes)
            found[name] = lists, [node(*arguments) for arguments in lists]
    return found


def called(name, arguments):
    """One of the small calls, as a caller writes it: softmax makes its table from x_scale when the call is traced."""
    form = SMALL[name]
    if name != "softmax":
        return form.function(*arguments)
    return qlinear_softmax(*arguments, axis=form.attributes["axis"], of_rest=form.attributes["opset"] < 13)


def check(results, dtype=np.uint8, place=0):
    for name, result in results.items():
        assert_same_bits(np.asarray(result), expected(dtype)[name][1][place], name)


def all_at_once(dtype, is_traced):
    """Every call in one program, and, for each list, the arguments that are traced in it."""
    lists = {name: dict(enumerate(of_name[0])) for name, (of_name, _) in expected(dtype).items()}
    traced = [
        {name: {i: x for i, x in enumerate(of_name[place]) if x is not None and is_traced(name, i, x)}
         for name, (of_name, _) in expected(dtype).items()}
        for place in range(3)
    ]  # fmt: skip

    def every(given):
        return {name: called(name, tuple((lists[name] | given[name]).values())) for name in lists}

    return every, traced


def every_array(name, i, x):
    return (name, i) != ("softmax", 1)


def tensors(name, i, x):
    return x.ndim > 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", rest_rarely(sorted(SMALL, key=lambda name: name not in ("add", "where")), 2))
def test_eager(name):
    lists, results = expected()[name]
    assert_same_bits(np.asarray(called(name, lists[0])), results[0])


@pytest.mark.rare
@pytest.mark.parametrize(
    ("dtype", "x64"),
    [
        (np.uint8, "x32"),
        (np.int8, "x64"),
        pytest.param(np.uint8, "x64", marks=pytest.mark.rare),
        pytest.param(np.int8, "x32", marks=pytest.mark.rare),
    ],
    indirect=["x64"],
)
def test_jit(dtype, x64):
    every, traced = all_at_once(dtype, every_array)
    compiled = jax.jit(every)
    for place in range(3):
        check(compiled(traced[place]), dtype, place)


@pytest.mark.rare
@pytest.mark.parametrize("dtype", rest_rarely([np.uint8, np.int8], 1))
def test_known_scales_and_zero_points(dtype):
    every, traced = all_at_once(dtype, tensors)
    check(jax.jit(every)(traced[0]), dtype)


@pytest.mark.rare
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_vmap(dtype):
    every, traced = all_at_once(dtype, every_array)
    results = jax.jit(jax.vmap(every))(jax.tree.map(lambda *xs: np.stack(xs), *traced))
    for place in range(3):
        check({name: result[place] for name, result in results.items()}, dtype, place)


@pytest.mark.rare
def test_export_with_symbolic_batches():
    """A batch is the first dimension of the tensors that have the greatest rank."""
    every, (traced, *_) = all_at_once(np.uint8, tensors)
    batches = dict(zip(traced, export.symbolic_shape(", ".join(traced)), strict=True))

    def spec(name, i, x):
        is_batched = x.ndim == max(x.ndim for x in traced[name].values()) and ("gemm" not in name or i == 0)
        return jax.ShapeDtypeStruct((batches[name], *x.shape[1:]) if is_batched else x.shape, x.dtype)

    specs = {name: {i: spec(name, i, x) for i, x in of_name.items()} for name, of_name in traced.items()}
    check(export.export(jax.jit(every))(specs).call(traced))


@pytest.mark.rare
@pytest.mark.parametrize("kernels", ["native", "xla"] if dml.kernels().startswith("native") else ["xla"], indirect=True)
@pytest.mark.parametrize("name", ["gemm_uint8", "gemm_int8"])
def test_prepared_weights(name, kernels):
    """Prepared weights are [K, N], whatever trans_b says."""
    for form in (FORMS[name][7], FORMS[name][-1]):
        a, a_scale, a_zero_point, b, *rest = form.draw(np.random.default_rng(3), np.uint8)
        node = fed("QGemm", (a, a_scale, a_zero_point, b, *rest), form.output or "uint8", **form.attributes)
        prepared = dml.prepare_matrix_multiply_b(b.T if form.attributes["transB"] else b)
        got = form.function(a, a_scale, a_zero_point, prepared, *rest)
        assert_same_bits(np.asarray(got), node(a, a_scale, a_zero_point, b, *rest))
