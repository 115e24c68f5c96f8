"""Models that cannot be written: the error says where and what to do, and leaves no half-written file."""

import os
import re
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import lax

import jaxdml as dml
from _onnx.saved import inputs_of, quantized, run, saved
from helpers.compare import assert_same_bits
from jaxdml.errors import ArgumentTypeError, DescError, ModelError, ModelFileNotFoundError, PtqError
from jaxdml.onnx import _save as save_module

W = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((6, 8)).astype(np.float32)


def made(apply, params=W, x=X, **options):
    return dml.ptq.quantize(apply, params, [x], progress=False, **options)


@pytest.fixture(scope="module")
def model():
    return made(lambda w, x: x @ w)


# Arguments -----------------------------------------------------------------------------------------------------------

WRONG = {
    "form is 'QDQ', expected 'qdq' or 'qoperator'": {"form": "QDQ"},
    "tables is 'lookup', expected 'float' or 'gather'": {"tables": "lookup"},
    "weights is 'int4', expected 'int8' or 'uint8'": {"weights": "int4"},
    "weights is array(['int8', 'uint8']": {"weights": np.array(["int8", "uint8"])},
    "opset is 22, expected a number from 17 to 21": {"opset": 22},
    "opset is True, expected a number from 17 to 21": {"opset": True},
    "shapes is 'batch 7', which does not fit the inputs (float32[6, 8]): ": {"shapes": "batch 7"},
    "shapes is ('n, 8', 'n, 8'), which does not fit the inputs (float32[6, 8]): ": {"shapes": ("n, 8", "n, 8")},
    "(float32[6, 8]): 1 is not a string; write 'batch', None, a string such as 'batch, ...', or a tuple of such": {
        "shapes": 1
    },
    "(float32[6, 8]): it has another structure; write 'batch', None, a string": {"shapes": ["n, 8"]},
    "'my-batch, 8' has 'my-batch', which is neither a number nor a name": {"shapes": "my-batch, 8"},
    "'2*n, 8' has '2*n', which is neither a number nor a name": {"shapes": "2*n, 8"},
    "'n, 3, 8' has 3 sizes, the input has 2": {"shapes": "n, 3, 8"},
    "'n' has 1 sizes, the input has 2": {"shapes": "n"},
    "'..., 99' has ', 99' after '...', which stands for all sizes that follow": {"shapes": "..., 99"},
    "'6, ... ?' has '?' after '...', which stands for all sizes that follow": {"shapes": "6, ... ?"},
    "'-1, 8' has a negative size; give an unknown size a name": {"shapes": "-1, 8"},
    "'max, ...' has 'max', which JAX reserves; choose another name": {"shapes": "max, ..."},
    "'_, 8' has '_', which JAX reserves; choose another name": {"shapes": "_, 8"},
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_arguments(text, model, tmp_path):
    with pytest.raises(DescError, match=re.escape(text)):
        dml.onnx.save(model, tmp_path / "model.onnx", **WRONG[text])
    assert not list(tmp_path.iterdir())


def test_opsets_of_numpy_are_numbers(model, tmp_path):
    assert saved(model, tmp_path / "model.onnx", opset=np.int64(18)).opset_import[0].version == 18


def test_wrong_types(model, tmp_path):
    text = (
        r"model is of type function, expected a jaxdml.ptq.Model: write save\(model, path\) with what jaxdml.ptq.quan"
    )
    with pytest.raises(ArgumentTypeError, match=text):
        dml.onnx.save(lambda x: x, tmp_path / "model.onnx")
    saved(model, tmp_path / "model.onnx")
    with pytest.raises(ArgumentTypeError, match=r"^model is of type jaxdml\.onnx\.Model, expected a jaxdml.ptq.M"):
        dml.onnx.save(dml.onnx.load(tmp_path / "model.onnx"), tmp_path / "other.onnx")
    with pytest.raises(ArgumentTypeError, match="path is of type int, expected a path"):
        dml.onnx.save(model, 3)


# Functions -----------------------------------------------------------------------------------------------------------


def lacks_an_operator(w, x):
    with jax.named_scope("head"):
        return {"a": lax.erf_inv(jnp.tanh(x @ w)), "b": lax.lgamma(x @ w)}


def test_primitives_without_an_operator_are_listed_with_their_layers(tmp_path):
    model = made(lacks_an_operator)
    with pytest.raises(ModelError) as caught:
        dml.onnx.save(model, tmp_path / "model.onnx")
    assert str(caught.value).splitlines() == [
        "the model cannot be written:",
        *(f"- layer 'head' ({name}): the primitive {name} has no counterpart in ONNX; cut the function there, and save "
          "the parts as models of their own" for name in ("erf_inv", "lgamma")),
    ]  # fmt: skip
    assert len(caught.value.problems) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.rare
def test_a_table_of_such_a_primitive_is_written_as_a_look_up(tmp_path):
    model = made(lambda w, x: lax.erf_inv(jnp.tanh(x @ w)) @ w)
    with pytest.raises(ModelError, match=r"the primitive erf_inv has no counterpart in ONNX; write tables='gather'"):
        dml.onnx.save(model, tmp_path / "model.onnx")
    saved(model, tmp_path / "model.onnx", tables="gather", weights="uint8")
    (received,) = run(tmp_path / "model.onnx", X).values()
    assert_same_bits(received, np.asarray(model.apply(model.params, X)))


def test_grids_in_floats(tmp_path):
    scales = np.linspace(0.01, 0.02, 8, dtype=np.float32)[None]
    model = made(lambda w, x: dml.fake_quantize(x, scales, np.uint8(128)) @ w)
    with pytest.raises(ModelError, match=r"this fake_quantize stays in floats: it has several scales .*; cut the f"):
        dml.onnx.save(model, tmp_path / "model.onnx")
    saved(made(lambda w, x: dml.fake_quantize(x, scales[0, 0], np.uint8(128)) @ w), tmp_path / "model.onnx")


def windows(reduce, start):
    return lambda w, x: lax.reduce_window((x @ w).astype(jnp.int32), start, reduce, (1, 3), (1, 2), "VALID")


@pytest.mark.parametrize(("reduce", "start"), [(lax.add, 0), (lax.max, np.iinfo(np.int32).min)])
def test_windows_of_integers(reduce, start, tmp_path):
    with pytest.raises(ModelError, match=r"it pools int32; first convert the array with \.astype\(jnp\.float32\)"):
        dml.onnx.save(made(windows(reduce, start)), tmp_path / "model.onnx")


def large_mean(w, x):
    return jnp.mean(x @ w, 1) @ w


@pytest.mark.rare
def test_means_of_very_many_elements_have_another_form(tmp_path):
    x = np.random.default_rng(3).standard_normal((1, 70000, 8)).astype(np.float32)
    model = made(large_mean, x=x)
    text = r"means are over 70000 elements, .* up to 65793; write form='qdq', or quantize with numerics='onnxruntime'"
    with pytest.raises(ModelError, match=text):
        dml.onnx.save(model, tmp_path / "model.onnx", "qoperator", shapes=None)
    saved(model, tmp_path / "model.onnx", "qdq", shapes=None)
    saved(made(large_mean, x=x, numerics="onnxruntime"), tmp_path / "model.onnx", "qoperator", shapes=None)


def batch_as_number(w, x):
    return (x @ w).reshape(int(x.shape[0]) // 2, 16)


def test_a_function_that_needs_numbers_says_to_give_sizes(tmp_path):
    model = made(batch_as_number)
    text = r"(?s)shapes='batch' makes input sizes symbolic: \(float32\[batch, 8\]\). Write shapes=None .*, because\n"
    with pytest.raises(PtqError, match=f"{text}apply cannot be traced"):
        dml.onnx.save(model, tmp_path / "model.onnx")
    saved(model, tmp_path / "model.onnx", shapes=None)


def strided(w, x):
    y = lax.conv_general_dilated(x.reshape(1, 1, *x.shape), w.reshape(1, 1, *w.shape), (2, 2), "SAME")
    return y, lax.reduce_window(x, -jnp.inf, lax.max, (3, 1), (2, 1), "SAME")


def test_sizes_that_a_layer_needs_as_numbers(tmp_path):
    model = made(strided, W[:3, :3], x=X)
    with pytest.raises(ModelError, match=r"float32\[h, w\]\). Write shapes=None .* or numbers ") as caught:
        dml.onnx.save(model, tmp_path / "model.onnx", shapes="h, w")
    reason = "its padding depends on the sizes of the inputs, as that of 'SAME' with strides does"
    reason += "; write a number for the size of each axis that it pads, or give explicit padding, such as ((1, 1),)"
    layers = "layer 'weight' (conv_general_dilated)", "layer 'reduce_window_max_1' (reduce_window_max)"
    assert caught.value.problems == tuple(f"{layer}: {reason}" for layer in layers)
    dml.onnx.save(model, tmp_path / "model.onnx", shapes="9, 11")


@pytest.mark.parametrize("less", [0, 4])  # x.shape[0] is known to be positive, x.shape[0] - 4 is not
def test_padding_that_the_batch_decides(less, tmp_path):
    def padded(w, x):
        return lax.pad(x @ w, np.float32(0), ((0, 0, 0), (0, x.shape[0] - less, 0)))

    model = made(padded)
    with pytest.raises(ModelError, match=r"(?s)Write shapes=None .*it pads by numbers that depend on the sizes"):
        dml.onnx.save(model, tmp_path / "model.onnx")
    saved(model, tmp_path / "model.onnx", shapes=None)


def test_wrong_numbers_beside_names_are_not_blamed_on_the_names(model, tmp_path):
    with pytest.raises(PtqError, match=r"apply cannot be traced with the inputs \(float32\[6, 9\]\)") as caught:
        dml.onnx.save(model, tmp_path / "model.onnx", shapes="batch, 9")
    assert "shapes" not in str(caught.value)


def test_int8_activations_beside_uint8_weights(tmp_path):
    model = made(lambda w, x: x @ w, activations=jnp.int8)
    with pytest.raises(ModelError, match=r"values between layers are int8.*: write weights='int8', or"):
        dml.onnx.save(model, tmp_path / "model.onnx", weights="uint8")
    saved(model, tmp_path / "model.onnx", weights="int8")
    saved(made(lambda w, x: x @ w), tmp_path / "model.onnx", weights="uint8")


def test_a_model_that_was_changed(tmp_path):
    model = made(lambda w, x: x @ w)
    model.params = {name: jax.tree.map(jnp.zeros_like, value) for name, value in model.params.items()}
    with pytest.raises(
        ModelError, match=r"model.params are not those with which the model was made.* quantize the func"
    ):
        dml.onnx.save(model, tmp_path / "model.onnx")
    factors = [2.0]
    model = made(lambda w, x: (x @ w) * factors[0])
    factors[0] = 3.0
    with pytest.raises(PtqError, match="apply is not the function that was quantized"):
        dml.onnx.save(model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_params_of_the_same_values_are_those_of_the_model(tmp_path):
    model = made(lambda w, x: x @ w)
    model.params = jax.tree.map(lambda value: jnp.array(value, copy=True), model.params)
    saved(model, tmp_path / "model.onnx")
    model.params = {}
    with pytest.raises(ModelError, match="params are not those with which the model was made"):
        dml.onnx.save(model, tmp_path / "model.onnx")


def test_the_numerics_of_a_model_stay(model):
    with pytest.raises(AttributeError, match="numerics"):
        model.numerics = "onnxruntime"


class Rows(NamedTuple):
    rows: jax.Array


def of_rows(w, x):
    return x.rows @ w


@pytest.mark.rare
def test_models_of_files(tmp_path):
    for apply, x in ((lambda w, x: x @ w, X), (of_rows, Rows(X))):
        model = made(apply, x=x)
        dml.ptq.save(tmp_path / "model.npz", model)
        loaded = dml.ptq.load(tmp_path / "model.npz", apply)
        dml.onnx.save(model, tmp_path / "model.onnx")
        if x is X:
            dml.onnx.save(loaded, tmp_path / "again.onnx")
            assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "model.onnx").read_bytes()
        else:  # its file does not store the type
            with pytest.raises(PtqError, match="sizes of this model's inputs are not known: quantize the function"):
                dml.onnx.save(loaded, tmp_path / "again.onnx")


# Files ---------------------------------------------------------------------------------------------------------------


def test_no_folder(model, tmp_path):
    path = tmp_path / "none" / "model.onnx"
    with pytest.raises(ModelFileNotFoundError, match=r"there is no folder .*none to write model.onnx to") as caught:
        dml.onnx.save(model, path)
    assert caught.value.filename == str(path.parent)


def test_a_folder_in_place_of_the_file(model, tmp_path):
    with pytest.raises(IsADirectoryError, match="path is a folder, expected the path of a file") as caught:
        dml.onnx.save(model, tmp_path)
    assert caught.value.filename == str(tmp_path)
    assert not list(tmp_path.iterdir())
    assert not list(tmp_path.parent.glob(f"{tmp_path.name}.*"))
    with pytest.raises(IsADirectoryError, match="path ends with a separator, so it names a folder; expected the path"):
        dml.onnx.save(model, f"{tmp_path}/model.onnx/")
    assert not list(tmp_path.iterdir())


def test_no_permission(model, tmp_path):
    if os.geteuid() == 0:  # root may write everywhere except there
        tmp_path = Path("/sys")
    else:
        tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match=r"path cannot be written to: [\w ]+: '[^']*model.onnx'$") as caught:
        dml.onnx.save(model, tmp_path / "model.onnx")
    assert caught.value.filename == str(tmp_path / "model.onnx")


def test_a_file_that_must_not_be_written(model, tmp_path, monkeypatch):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    path.chmod(0o444)
    if os.geteuid() == 0:  # root may write it
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="path is a file without write permission") as caught:
        dml.onnx.save(model, path)
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("largest", [save_module.LARGEST, 1000])
def test_links_are_followed_and_permissions_stay(largest, model, tmp_path, monkeypatch):
    monkeypatch.setattr(save_module, "LARGEST", largest)
    monkeypatch.setattr(save_module, "INLINE", 16)
    folder, link = tmp_path / "folder", tmp_path / "link.onnx"
    folder.mkdir()
    link.symlink_to(folder / "model.onnx")
    for mode in (None, 0o640):
        if mode is not None:
            (folder / "model.onnx").chmod(mode)
        dml.onnx.save(model, link)
        assert link.is_symlink()
        assert list(tmp_path.iterdir()) in ([folder, link], [link, folder])
        onnx.checker.check_model(str(folder / "model.onnx"))
    assert {each.stat().st_mode & 0o777 for each in folder.iterdir()} == {0o640}


def test_a_loop_of_links_stays(model, tmp_path):
    path = tmp_path / "model.onnx"
    path.symlink_to(path)
    with pytest.raises(ModelError, match="path cannot be written to: Too many levels of symbolic links: "):
        dml.onnx.save(model, path)
    assert path.is_symlink()


def test_names_as_long_as_names_may_be(model, tmp_path):
    saved(model, tmp_path / f"{'m' * 250}.onnx")


@pytest.mark.parametrize("largest", [save_module.LARGEST, 1000])
def test_an_old_file_stays_until_the_new_one_is_complete(largest, model, tmp_path, monkeypatch):
    monkeypatch.setattr(save_module, "LARGEST", largest)
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")

    def interrupted(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dml.onnx.save(model, path)
    assert [each.name for each in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_bytes() == b"old"


def test_an_old_model_keeps_its_second_file_until_the_new_model_is_complete(model, tmp_path, monkeypatch):
    path, other = tmp_path / "model.onnx", tmp_path / "model.onnx.data"
    other.write_bytes(b"of another tool")
    with monkeypatch.context() as changed:
        changed.setattr(save_module, "LARGEST", 100)
        changed.setattr(save_module, "INLINE", 16)
        saved(model, path, shapes=None)
        before, (old,) = run(path, X), tmp_path.glob("model.onnx.*.data")
        twice = made(lambda w, x: x @ w, 2 * W[::-1])

        def interrupted(source, target, replace=os.replace):
            if Path(target) == path:
                raise KeyboardInterrupt
            replace(source, target)

        with changed.context() as second:
            second.setattr(os, "replace", interrupted)
            with pytest.raises(KeyboardInterrupt):
                dml.onnx.save(twice, path, shapes=None)
        jax.tree.map(assert_same_bits, run(path, X), before)
        saved(twice, path, shapes=None)
        assert not old.exists()
        assert len(list(tmp_path.iterdir())) == 3
    saved(twice, path)
    assert set(tmp_path.iterdir()) == {path, other}


@pytest.mark.rare
def test_large_weights_lie_in_a_second_file(tmp_path, monkeypatch):
    model, x, path = quantized("CNN", numerics="onnxruntime"), inputs_of("CNN"), tmp_path / "model.onnx"
    saved(model, path, weights="uint8")
    inside = path.read_bytes()
    monkeypatch.setattr(save_module, "LARGEST", 4000)
    monkeypatch.setattr(save_module, "INLINE", 500)
    proto = saved(model, path, weights="uint8")
    assert sorted(each.suffix for each in tmp_path.iterdir()) == [".data", ".onnx"]
    assert path.stat().st_size < len(inside) - 2000
    outside = onnx.load(path, load_external_data=False).graph.initializer
    assert [t.name for t in outside if t.data_location == onnx.TensorProto.EXTERNAL] == ["last.weight"]
    assert onnx.numpy_helper.to_array(next(t for t in proto.graph.initializer if t.name == "last.weight")).any()
    expected = np.asarray(model.apply(model.params, x))
    assert_same_bits(next(iter(run(path, x).values())), expected)
    loaded = dml.onnx.load(path, numerics="onnxruntime")
    assert_same_bits(loaded.apply(loaded.params, x)["output"], expected)


@pytest.mark.rare
def test_weights_of_4_bits_in_a_second_file(tmp_path, monkeypatch):
    model = quantized("MLP", weights=jnp.int4, block_size=16)
    inside = saved(model, tmp_path / "inside.onnx").graph.initializer
    monkeypatch.setattr(save_module, "LARGEST", 4000)
    monkeypatch.setattr(save_module, "INLINE", 100)
    outside = saved(model, tmp_path / "outside.onnx").graph.initializer
    assert len(list(tmp_path.glob("outside.onnx.*.data"))) == 1
    for mine, other in zip(inside, outside, strict=True):
        assert_same_bits(*map(onnx.numpy_helper.to_array, (mine, other)))
