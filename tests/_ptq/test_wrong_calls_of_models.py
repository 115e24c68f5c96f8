"""Models that are called wrongly, after `quantize`: other parameters, other inputs, another function."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import jaxdml as dml
from _ptq.quantized import is_right
from _ptq.test_wrong_calls import PARAMS, X, mlp, quantize
from helpers.compare import assert_same_bits
from jaxdml.errors import ArgumentTypeError
from jaxdml.ptq import PtqError

CALLED = r"a model is a function of its params, too: write model\.apply\(model\.params, \*inputs\)"


def other_params():
    model = quantize()
    name = next(iter(model.params))
    cast = jax.tree.map(lambda x: x.astype(jnp.bfloat16), model.params)
    return {
        "the float parameters": (
            PARAMS,
            "params are those of the float function, expected model.params, which quantize",
        ),
        "some of them": (dict(list(PARAMS.items())[1:]), f"params lacks {sorted(model.params)[:2]}"[:-1]),
        "no dict": (list(model.params.values()), "params is of type list, expected model.params, or a dict like it"),
        "one is missing": ({k: v for k, v in model.params.items() if k != name}, f"params lacks ['{name}']"),
        "one too many": (model.params | {"w": X}, "params was given ['w'], which the model does not have"),
        "cast": (cast, ", with data bfloat16["),
        "cast, and the remedy": (cast, "; do not cast prepared weights"),
        "another shape": (model.params | {name: X}, f"params['{name}'] is float32[8, 6], expected"),
    }


def test_other_params_than_the_models():
    model = quantize()
    for params, words in other_params().values():
        with pytest.raises(PtqError, match=re.escape(words)):
            model.apply(params, X)


def test_a_model_that_is_called_itself():
    model = quantize()
    for call in (model, jax.jit(model)):
        with pytest.raises(TypeError, match=CALLED) as caught:
            call(X)
        assert isinstance(caught.value, ArgumentTypeError)
    assert is_right(model, mlp, PARAMS, X)


def test_a_model_in_place_of_its_function(tmp_path):
    """The function that the error asks for works."""
    model, path = quantize(), tmp_path / "model.npz"
    dml.ptq.save(path, model)
    words = "^apply is a quantized model: pass the float function that the model was quantized from$"
    with pytest.raises(PtqError, match=words):
        dml.ptq.quantize(model, model.params, [X], progress=False)
    with pytest.raises(PtqError, match=words):
        dml.ptq.load(path, model)
    assert is_right(dml.ptq.load(path, mlp), mlp, PARAMS, X)


def test_params_that_were_changed_in_place():
    model = quantize()
    model.params[next(iter(model.params))] = X
    with pytest.raises(PtqError, match=r"is float32\[8, 6\], expected"):
        model.apply(model.params, X)


def test_an_input_of_another_type_has_a_remedy():
    w = np.ones((X.shape[1], 4), np.float32)
    model = dml.ptq.quantize(lambda w, x: x.astype(np.float32) @ w, w, [X], progress=False)
    with pytest.raises(PtqError, match=r"input 0 is int32 .*, or convert it by \.astype\(jnp\.float32\)"):
        model.apply(model.params, X.astype(np.int32))
    assert model.apply(model.params, X.astype(np.int32).astype(np.float32)).dtype == np.float32


def test_sqnr_without_params():
    with pytest.raises(PtqError, match=r"sqnr has no inputs: write model\.sqnr\(params, images\)"):
        quantize().sqnr(X)


@pytest.mark.rare
def test_sqnr_with_other_params():
    with pytest.raises(PtqError, match="params are not those of the float function: sqnr compares the model with"):
        quantize().sqnr(quantize().params, X)


def test_arrays_in_the_byte_order_of_other_machines():
    """A jitted function that was called before would read their bytes in the wrong order."""
    model, swapped = quantize(), X.astype(">f4")
    params = jax.tree.map(lambda x: np.asarray(x).astype(">f4"), PARAMS)
    expected = np.asarray(model.apply(model.params, X))
    where = r"inputs\[0\] has type >f4, in the byte order of other machines; write inputs\[0\]\.astype\(jnp\.float32\)"
    for call in (
        lambda: model.apply(model.params, swapped),
        lambda: model.sqnr(PARAMS, swapped),
        lambda: quantize(batches=[swapped]),
        lambda: quantize(batches=[X, swapped]),
    ):
        with pytest.raises(PtqError, match=where):
            call()
    assert_same_bits(model.apply(model.params, swapped.astype(jnp.float32)), expected)
    for call in (lambda: quantize(params=params), lambda: model.sqnr(params, X)):
        with pytest.raises(PtqError, match=r"params\['\w+'\]\['\w+'\] has type >f4"):
            call()
    name = next(name for name in model.params if name.endswith(":scale"))
    with pytest.raises(PtqError, match=r"is >f4\[\d+\], expected float32\[\d+\]"):
        model.apply(model.params | {name: np.asarray(model.params[name]).astype(">f4")}, X)


@pytest.mark.rare
def test_another_structure_at_run_time():
    """A function that depends on shapes or on global state, and its remedies."""
    settings = {"tanh": False}

    def apply(params, x):
        y = mlp(params, x)
        y = jnp.tanh(y) if settings["tanh"] or x.shape[0] > 4 else y
        return y + mlp(params, x * 0.5) if x.shape[0] > 6 else y

    model = quantize(apply, batches=np.split(X, 4))
    assert is_right(model, apply, PARAMS, X[:5])  # floats between and after the layers may change with sizes
    match = (
        "apply cannot run on these .*: it has the new layer 'first:2' .*Quantize another model with batches of these"
    )
    with pytest.raises(PtqError, match=match):
        model.apply(model.params, X)
    of_eight = quantize(apply, batches=[X])
    assert of_eight.fingerprint != model.fingerprint
    assert is_right(of_eight, apply, PARAMS, X)
    assert is_right(model, apply, PARAMS, X[:2])
    with pytest.raises(PtqError, match="it lacks the layer 'first:2'"):
        of_eight.apply(of_eight.params, X[:2])
    settings["tanh"] = True
    match = r"apply is not the function that was quantized \(fingerprints \w{16} and \w{16}\); "
    match += r"they first differ behind layer 'last':\n  calibrated .*\n  now .*tanh"
    with pytest.raises(PtqError, match=match + "(.|\n)*Pass the function that was quantized, or quantize this one"):
        model.apply(model.params, X[:3])
    assert is_right(quantize(apply, batches=[X[:3]]), apply, PARAMS, X[:3])


@pytest.mark.rare
def test_another_literal_is_another_structure():
    factor = [2.0]

    def apply(params, x):
        return mlp(params, x * factor[0])

    model = quantize(apply)
    factor[0] = 3.0
    with pytest.raises(PtqError, match=r"apply is not the function that was quantized .*before layer 'first'"):
        model.apply(model.params, X[:3])


@pytest.mark.parametrize("numbers", [lambda: jnp.arange(4), lambda: jnp.asarray(np.linspace(0, 1, 4))])
def test_another_width_of_numbers(numbers):
    def apply(params, x):
        return mlp(params, x) * numbers().astype(x.dtype)[None]

    model = quantize(apply)
    with (
        jax.enable_x64(True),
        pytest.raises(PtqError, match=r"(?s)(?P<kind>int|float)32.*(?P=kind)64.*jax_enable_x64 had another value"),
    ):
        model.apply(model.params, X)
    assert is_right(model, apply, PARAMS, X)


def test_loops_that_carry_other_numbers():
    """From jnp.zeros, which are float64 under x64: the loop then converts its addends."""

    def apply(params, x):
        rows, start = np.ones((3, 4), np.float32), jnp.zeros(4)
        total, _ = jax.lax.scan(lambda total, row: (total + row.astype(total.dtype), None), start, rows)
        return mlp(params, x) * total.astype(x.dtype)[None]

    model = quantize(apply)
    with jax.enable_x64(True), pytest.raises(PtqError, match="jax_enable_x64 had another value"):
        model.apply(model.params, X)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("inputs", [(X.astype(np.int32),), (X.astype(np.float16),), (X, X), (X[0],)])
def test_other_inputs_are_an_error(inputs):
    """Inputs of another type, number or rank."""
    model = quantize()
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        pytest.raises(PtqError, match=r"takes 2 positional|input 0 is .*, but was float32 of 2 dimensions"),
    ):
        model.apply(model.params, *inputs)


class Tensor:
    """Like torch's, whose types NumPy does not know."""

    shape, dtype = X.shape, "torch.float32"

    def __array__(self, dtype=None, copy=None):
        return np.asarray(X, dtype)


def test_a_tensor_of_another_library():
    model, remedy = quantize(), r"; write np.asarray\(x\) if x is a tensor of another library$"
    with pytest.raises(PtqError, match=r"^batch 0 is not an array .* 'torch.float32' not understood" + remedy):
        quantize(batches=[Tensor()])
    with pytest.raises(PtqError, match=r"^input 0 is not an array .* 'torch.float32' not understood" + remedy):
        model.apply(model.params, Tensor())
    given = np.asarray(Tensor())
    assert is_right(quantize(batches=[given]), mlp, PARAMS, given)


def test_bias_that_does_not_fit_int32_is_an_error_for_those_who_quantize_by_hand():
    with pytest.raises(PtqError, match=r"does not fit int32.*Quantize the filter with filter_scale = max") as caught:
        dml.ptq.quantize_bias(np.float32([1.0]), np.float32(1e-3), np.float32([1e-12]))
    least = float(str(caught.value).split()[-1])
    dml.ptq.quantize_bias(np.float32([1.0]), np.float32(1e-3), np.float32([least]))


def test_inputs_that_do_not_fit_are_compared_with_earlier_ones():
    """The function was traced before, so advice about the form of batches would mislead."""
    model = quantize()
    with pytest.raises(PtqError, match=r"but 3 were given\nThe inputs were \(float32\[8, 6\]\) before(\n|$)"):
        model.apply(model.params, X, X)


@pytest.mark.rare
def test_texts_that_look_like_numbers():
    names = ["1.2.a"]

    def apply(params, x):
        return checkpoint_name(mlp(params, x), names[0])

    model = quantize(apply)
    names[0] = "1.2.b"
    with pytest.raises(PtqError, match=r"(?s)calibrated .*1\.2\.a.*now .*1\.2\.b.*or quantize this one"):
        model.apply(model.params, X[:3])
