"""Files of quantized models: the same bits, no pickle, nothing lost, and errors that say what is wrong with a file."""

import json
import os
import re
import struct
import zipfile

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdml as dml
from _ptq.awkward import AWKWARD
from _ptq.quantized import NETWORKS, network, quantized
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from jaxdml._graph.floats import VERSION
from jaxdml.errors import PtqFileNotFoundError
from jaxdml.ptq import PtqError, load, save

QUICK = ("bfloat16 params and inputs", "pad", "outputs: a dict", "scan over layers")
NAMES = (*QUICK, *(case.name for case in AWKWARD if case.name not in QUICK))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.npz"


def same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for ours, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert ours.dtype == theirs.dtype
        assert_same_bits(np.asarray(ours), np.asarray(theirs))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", rest_rarely(NAMES, len(QUICK)))
def test_models_of_awkward_functions_are_read_as_they_were(name, path):
    case = next(case for case in AWKWARD if case.name == name)
    inputs = case.inputs(3, seed=1)
    model = dml.ptq.quantize(case.apply, case.params, [inputs], progress=False)
    save(path, model)
    read = load(path, case.apply)
    same(read.apply(read.params, *inputs), model.apply(model.params, *inputs))
    same(read.params, model.params)
    assert (str(read), read.fingerprint) == (str(model), model.fingerprint)


@pytest.mark.rare
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("products", ["static", "dynamic"])
def test_networks_are_read_as_they_were(name, products, path):
    apply, _, make_inputs = network(name)
    model, inputs = quantized(name, products=products), make_inputs(2)
    save(path, model)
    read = load(path, apply)
    same(read.apply(read.params, *inputs), model.apply(model.params, *inputs))
    assert str(read.sqnr(network(name).params, *inputs)) == str(model.sqnr(network(name).params, *inputs))


def test_a_model_that_was_read_is_written_with_the_same_content(path, tmp_path):
    apply, params, _ = network("plain")
    save(path, quantized("plain"))
    save(tmp_path / "again.npz", load(path, apply, params))
    with np.load(path, allow_pickle=False) as one, np.load(tmp_path / "again.npz", allow_pickle=False) as other:
        assert one.files == other.files
        for name in one.files:
            assert_same_bits(one[name], other[name])


def test_a_file_is_arrays_and_json(path):
    save(path, quantized("plain"))
    with zipfile.ZipFile(path) as file:
        headers = [file.read(name)[:128] for name in file.namelist()]
    assert not [header for header in headers if b"'O'" in header or b"pickle" in header]
    with np.load(path, allow_pickle=False) as arrays:
        assert json.loads(bytes(arrays["model.json"]))["format"] == "jaxdml.ptq 7"
        assert sum(array.size for array in arrays.values() if array.dtype == np.int8) > 500


# Parameters ----------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["nnx", "equinox"])
def test_params_of_other_containers_must_be_given(name, path):
    apply, params, make_inputs = network(name)
    save(path, quantized(name))
    with pytest.raises(PtqError, match=r"has nodes other than .*: write load\(path, apply, par"):
        load(path, apply)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
    expected = quantized(name).apply(quantized(name).params, *make_inputs(2))
    for given in (params, shapes):
        model = load(path, apply, given)
        same(model.apply(model.params, *make_inputs(2)), expected)


def multiplied(params, x, key=None):
    (w,) = params.values()
    return x @ w + (0 if key is None else jax.random.normal(key, (1, 4)))


def test_a_dict_with_numbers_as_keys_must_be_given(path):
    params, x = {0: np.eye(4, dtype=np.float32)}, np.ones((2, 4), np.float32)
    model = dml.ptq.quantize(multiplied, params, [x], progress=False)
    save(path, model)
    with pytest.raises(PtqError, match=r"nodes other than lists, tuples, and dicts with strings as keys: write load"):
        load(path, multiplied)
    same(load(path, multiplied, params).params, model.params)


def own_generator():
    """A random generator that always returns 0."""
    return jax.extend.random.define_prng_impl(
        key_shape=(2,), seed=lambda seed: jnp.zeros(2, jnp.uint32), split=lambda key, sizes: jnp.zeros((*sizes, 2)),
        random_bits=lambda key, width, sizes: jnp.zeros(sizes, jnp.uint32), fold_in=lambda key, data: key, tag="own",
    )  # fmt: skip


@pytest.mark.rare
@pytest.mark.parametrize("generator", ["threefry2x32", "rbg", "unsafe_rbg", "own"])
def test_random_keys_as_inputs(generator, path):
    params, x = {"w": np.eye(4, dtype=np.float32)}, np.ones((2, 4), np.float32)
    key = jax.random.key(1, impl=own_generator() if generator == "own" else generator)
    model = dml.ptq.quantize(multiplied, params, [(x, key)], progress=False)
    save(path, model)
    read = load(path, multiplied)
    same(read.apply(read.params, x, key), model.apply(model.params, x, key))
    assert (read.calibrated is None) == (generator == "own")  # load cannot know its keys


def test_another_function_or_other_params(path):
    apply, params, _ = network("plain")
    save(path, quantized("plain"))
    with pytest.raises(PtqError, match=r"apply is not the function that was quantized"):
        load(path, lambda params, x: jnp.tanh(apply(params, x)))
    wider = params | {"head": {"w": jnp.ones((8, 11)), "b": jnp.ones(11)}}
    text = r"params are not those of .*: params\['head'\]\['b'\] is float32\[11\], but was float32\[10\]"
    with pytest.raises(PtqError, match=text):
        load(path, apply, wider)


def test_no_function(path):
    save(path, quantized("plain"))
    with pytest.raises(PtqError, match="apply is of type int, expected the function that was quantized"):
        load(path, 3)


# Wrong files ---------------------------------------------------------------------------------------------------------


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def contents(path):
    save(path, quantized("plain"))
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def changed(arrays, **members):
    text = json.loads(bytes(arrays["model.json"])) | members
    return arrays | {"model.json": np.frombuffer(json.dumps(text).encode(), np.uint8)}


def without(arrays, name):
    return {key: value for key, value in arrays.items() if key != name}


WRONG = {
    "no arrays": lambda arrays: {"x": np.zeros(3)},
    "no JSON": lambda arrays: arrays | {"model.json": np.frombuffer(b"{", np.uint8)},
    "JSON of a list": lambda arrays: arrays | {"model.json": np.frombuffer(b"[]", np.uint8)},
    "no UTF-8": lambda arrays: arrays | {"model.json": np.frombuffer(b"\xff\xfe", np.uint8)},
    "an array is missing": lambda arrays: without(arrays, "1"),
    "no nodes": lambda arrays: changed(arrays, nodes=3),
    "an unknown operator": lambda arrays: changed(arrays, nodes=[["os.system", None, ["a"], ["b"], {}, "", [], ""]]),
    "nodes that are too short": lambda arrays: changed(arrays, nodes=[["add"]]),
    "an unknown type": lambda arrays: changed(arrays, constants=[["a", "complex999"]]),
    "a type of another size": lambda arrays: changed(
        arrays, constants=[[name, "int64"] for name, _ in json.loads(bytes(arrays["model.json"]))["constants"]]
    ),
    "parameters of another kind": lambda arrays: changed(arrays, params={"set": []}),
    "no modes": lambda arrays: changed(arrays, modes=None),
    "modes of no scan": lambda arrays: changed(arrays, modes={"y": "static"}),
    "unknown numerics": lambda arrays: changed(arrays, numerics="ort"),
    "no shapes": lambda arrays: changed(arrays, shapes=None),
    "shapes that are a list": lambda arrays: changed(arrays, shapes=["float32[4]"]),
    "names that are no list": lambda arrays: changed(arrays, floats=["exact", VERSION, "lgamma_1"]),
    "names that are no strings": lambda arrays: changed(arrays, floats=["exact", VERSION, [1]]),
    "an unknown mode": lambda arrays: changed(arrays, modes={"": {"y": "quick"}}),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files(name, path):
    np.savez(path, **WRONG[name](contents(path)))
    with pytest.raises(PtqError, match=re.escape(f"{path} is not a file that jaxdml.ptq.save wrote, or it is damaged")):
        load(path, network("plain").apply)


def left_to_xla(w, x):
    return jax.lax.lgamma(x @ w)


def test_a_file_cannot_promise_one_answer(path):
    w = np.eye(4, dtype=np.float32)
    model = dml.ptq.quantize(left_to_xla, w, [w], floats="exact", progress=False)
    save(path, model)
    with np.load(path, allow_pickle=False) as arrays:
        np.savez(path, **changed(dict(arrays), floats=["exact", VERSION, []]))
    assert load(path, left_to_xla).by_xla == model.by_xla == ("lgamma_1",)


def test_a_file_of_another_version(path):
    np.savez(path, **changed(contents(path), format="jaxdml.ptq 1"))
    text = r"has the format 'jaxdml.ptq 1', this version reads 'jaxdml.ptq 2' to 'jaxdml.ptq 7'"
    with pytest.raises(PtqError, match=text):
        load(path, network("plain").apply)


@pytest.mark.parametrize("name", ["model.json", "0"])
def test_pickles_are_not_read(name, path, tmp_path):
    arrays = contents(path) | {name: np.array([Evil(tmp_path / "made")], object)}
    np.savez(path, **arrays)
    with pytest.raises(PtqError, match=r"is not a file that jaxdml.ptq.save wrote, or it is damaged"):
        load(path, network("plain").apply)
    assert not (tmp_path / "made").exists()
    np.load(path, allow_pickle=True)[name]  # unpickling creates it
    assert (tmp_path / "made").exists()


def test_truncated_and_damaged_files(path):
    contents(path)
    whole, random = path.read_bytes(), np.random.default_rng(1)
    for size in [0, 1, 100, *random.integers(len(whole), size=20), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(PtqError, match=r"is not a file that jaxdml.ptq.save wrote"):
            load(path, network("plain").apply)
    apply, _, make_inputs = network("plain")
    expected, found = quantized("plain"), 0
    for place in random.integers(len(whole), size=60):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        try:
            model = load(path, apply)
        except PtqError:
            found += 1
        else:  # a byte that is not data, such as that of a date
            same(model.params, expected.params)
    assert found > 30
    path.write_bytes(b"no archive")
    with pytest.raises(PtqError, match=r"is not a file that jaxdml.ptq.save wrote"):
        load(path, apply)
    assert make_inputs


CENTRAL, LOCAL = b"PK\1\2", b"PK\3\4"  # the signatures of the central and the local header of each part
HEADERS = {  # for each header, the offset of a two-byte field, and its new value
    "a later version of the format": ((CENTRAL, 6, 200),),
    "unknown compression": ((CENTRAL, 10, 99), (LOCAL, 8, 99)),
    "encryption": ((CENTRAL, 8, 1), (LOCAL, 6, 1)),
    "patched data": ((CENTRAL, 8, 0x20), (LOCAL, 6, 0x20)),
}


@pytest.mark.parametrize("name", HEADERS)
def test_archives_that_zipfile_does_not_read(name, path):
    contents(path)
    data = bytearray(path.read_bytes())
    for header, offset, value in HEADERS[name]:
        for found in re.finditer(re.escape(header), bytes(data)):
            struct.pack_into("<H", data, found.start() + offset, value)
    path.write_bytes(data)
    with pytest.raises(PtqError, match=r"is not a file that jaxdml.ptq.save wrote, or it is damaged"):
        load(path, network("plain").apply)


def test_no_file_is_told(path):
    for missing in (path, path.parent):  # a folder is not a file
        with pytest.raises(PtqError, match=rf"^{re.escape(str(missing))} cannot be read: ") as told:
            load(missing, network("plain").apply)
        assert isinstance(told.value, OSError)
    with pytest.raises(PtqFileNotFoundError, match="there is no folder"):
        save(path / "deeper.npz", quantized("plain"))
    with pytest.raises(PtqError, match=r"save was given dict, expected a model: write save\(path, model\)"):
        save(path, quantized("plain").params)
    assert not path.exists()


def test_nothing_is_lost_where_writing_fails(path, monkeypatch):
    """The old file stays as it was, and nothing is left beside it."""
    save(path, quantized("plain"))
    before = path.read_bytes()

    def fails(file, *args, **arrays):
        file.write(b"half of it")
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez", fails)
    with pytest.raises(OSError, match="no space left"):
        save(path, quantized("plain"))
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_path_may_be_text_and_has_its_own_name(tmp_path):
    path = tmp_path / "model of no ending"
    save(str(path), quantized("plain"))
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert load(str(path), network("plain").apply).fingerprint == quantized("plain").fingerprint


def test_a_file_may_be_read_by_others(path):
    """It has the permissions of a file that `open` creates."""
    save(path, quantized("plain"))
    (path.parent / "other").write_bytes(b"")
    assert path.stat().st_mode == (path.parent / "other").stat().st_mode


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (lambda params, x: params["gone"] @ x, "KeyError: 'gone'"),
        (lambda params: params["w"], "TypeError: "),
        (lambda params, x: x.T @ params["w"], "TypeError: dot_general requires contracting dimensions"),
    ],
)
def test_a_function_that_cannot_be_traced_is_told(path, other, text):
    params, x = {"w": np.ones((3, 4), np.float32)}, np.ones((2, 3), np.float32)
    save(path, dml.ptq.quantize(lambda params, x: x @ params["w"], params, [x], progress=False))
    with pytest.raises(PtqError) as told:
        load(path, other)
    assert str(told.value).startswith(f"apply cannot be traced with the inputs (float32[2, 3]): {text}")
    assert str(told.value).endswith("inputs of these shapes and types: is apply the same function?")


def test_as_many_channels_as_a_table_has_entries(path):
    """A table of 16 bits is run-length encoded; scales and a bias of that length are not."""
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(2, 2**16)).astype(np.float32), "b": rng.normal(size=2**16).astype(np.float32)}
    x = rng.normal(size=(8, 2)).astype(np.float32)

    def f(params, x):
        return x @ params["w"] + params["b"][None]

    model = dml.ptq.quantize(f, params, [x], progress=False)
    save(path, model)
    loaded = load(path, f, params)
    assert_same_bits(loaded.apply(loaded.params, x), model.apply(model.params, x))


def test_a_function_without_parameters(path):
    x = np.eye(3, dtype=np.float32)

    def f(params, x):
        return x @ x

    model = dml.ptq.quantize(f, None, [x], progress=False)
    save(path, model)
    loaded = load(path, f)
    assert_same_bits(loaded.apply(loaded.params, x), model.apply(model.params, x))
    with pytest.raises(PtqError, match="params are not those of"):
        load(path, f, {})


def test_a_folder_in_place_of_a_path(tmp_path):
    x = np.eye(3, dtype=np.float32)
    model = dml.ptq.quantize(lambda w, x: x @ w, x, [x], progress=False)
    with pytest.raises(IsADirectoryError, match="path is a folder, expected the path of a file"):
        save(tmp_path, model)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="only POSIX has pipes among files")
def test_a_pipe_in_place_of_a_path(tmp_path):
    """A device such as /dev/null would be replaced by a file, too."""
    path, x = tmp_path / "model.npz", np.eye(3, dtype=np.float32)
    os.mkfifo(path)
    model = dml.ptq.quantize(lambda w, x: x @ w, x, [x], progress=False)
    for write in (lambda: save(path, model), lambda: dml.onnx.save(model, path)):
        with pytest.raises(OSError, match="it is a device, a pipe or a socket, expected the path of a file") as caught:
            write()
        assert (caught.value.filename, path.is_fifo(), len(list(tmp_path.iterdir()))) == (str(path), True, 1)
