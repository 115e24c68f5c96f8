"""Files that are broken, or made to do harm: each ends in an error that says why."""

import dataclasses
import os
import pickle
import tracemalloc
from pathlib import Path

import jax
import numpy as np
import onnx
import pytest
from onnx import TensorProto

from _onnx.mutated_models import models
from helpers.compare import assert_same_values
from helpers.hostile_models import (
    FLOAT,
    bombs,
    chain,
    constant,
    model,
    nested_ifs,
    node,
    refused,
    relu,
    resize,
    with_tensor,
)
from helpers.platforms import posix, symlink
from jaxdml.errors import ModelError
from jaxdml.onnx import Limits, _limits, load

SMALL = Limits(file_bytes=2**26, tensor_bytes=2**25)
ONES = np.ones(4, np.float32)


# Files ---------------------------------------------------------------------------------------------------------------


def external(location, **more):
    tensor = TensorProto(name="w", data_type=FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, each in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=str(each))
    return with_tensor(tensor)


@pytest.fixture
def folder(tmp_path):
    """A folder with the data of a tensor in w.bin, and beside the folder, in secret.bin."""
    inside = tmp_path / "inside"
    inside.mkdir()
    for path in (inside / "w.bin", tmp_path / "secret.bin"):
        path.write_bytes(np.arange(4, dtype=np.float32).tobytes())
    return inside


def saved(folder, proto):
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("more", [{}, {"offset": 0, "length": 16}])
def test_external_data(folder, more, monkeypatch):
    path = saved(folder, external("w.bin", **more))
    monkeypatch.chdir(folder.parent)
    for each in (path, str(path), "inside/model.onnx"):
        made = load(each)
        assert_same_values(made.apply(made.params, ONES)["y"], [1, 2, 3, 4])
    monkeypatch.chdir(folder)
    assert load("model.onnx").params.keys() == {"w"}


def test_external_data_of_4_bits(folder):
    (folder / "w.bin").write_bytes(bytes([0x21, 0x43]))
    tensor = TensorProto(name="w", data_type=TensorProto.INT4, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    proto = model([("DequantizeLinear", ["w", "s"], ["y"])], [tensor, constant(np.float32(1), "s")], [], opset=21)
    made = load(saved(folder, proto))
    assert_same_values(made.apply(made.params)["y"], [1, 2, 3, 4])


@pytest.mark.parametrize(
    "location", ["../secret.bin", "sub/../../secret.bin", "{absolute}", "link.bin", "hard.bin", "", "."]
)
def test_external_data_beyond_the_folder(folder, location):
    if location == "link.bin":
        symlink(folder / "link.bin", folder.parent / "secret.bin")
    os.link(folder.parent / "secret.bin", folder / "hard.bin")
    path = saved(folder, external(location.format(absolute=folder.parent / "secret.bin")))
    refused(path, "tensor 'w'")


def test_external_data_on_a_drive(folder):
    """On Windows, `D:w.bin` is in the working folder of a drive; elsewhere it is a file name, and rejected, too."""
    if os.name == "posix":
        (folder / "D:w.bin").write_bytes(bytes(16))
    refused(saved(folder, external("D:w.bin")), "tensor 'w' lies in 'D:w.bin', outside of the model's folder")


@pytest.mark.parametrize(
    "more",
    [
        *({"length": length} for length in (15, 17, 2**40, -1, "a")),
        *({"offset": offset} for offset in (8, -4, 2**62, "a")),
    ],
)
def test_external_data_of_wrong_places(folder, more):
    refused(saved(folder, external("w.bin", **more)), "tensor 'w'")


def test_external_data_missing(folder):
    refused(saved(folder, external("other.bin")), "tensor 'w'", "other.bin")


@posix
def test_external_data_that_never_end(folder):
    os.mkfifo(folder / "fifo.bin")
    refused(saved(folder, external("fifo.bin")), "tensor 'w'", "not a regular file")


def test_external_data_need_a_path():
    refused(external("w.bin"), "tensor 'w' lies in another file; load the model from its path")
    proto = external("w.bin")
    for name in "abc":
        proto.graph.initializer.add().CopyFrom(proto.graph.initializer[0])
        proto.graph.initializer[-1].name = name
    refused(proto, "a problem", "tensor 'w' and 3 more lie in other files; load the model from its path")


def test_no_models(tmp_path):
    for name, data in {"empty": b"", "text": b"import os\n" * 100, "zeros": bytes(1000)}.items():
        (tmp_path / name).write_bytes(data)
        refused(tmp_path / name, "not an ONNX file")
    np.savez(tmp_path / "arrays.npz", x=ONES)
    refused(tmp_path / "arrays.npz", "not an ONNX file")
    refused(tmp_path, "not a regular file")
    refused(os.devnull, "not a regular file")
    refused(tmp_path / "missing.onnx", "missing.onnx")
    refused("nul\0byte", "cannot contain a NUL character")
    refused(onnx.ModelProto(), "not an ONNX file")


def test_no_pickle_is_read(tmp_path):
    ran = tmp_path / "ran"
    (tmp_path / "evil.onnx").write_bytes(pickle.dumps(_Evil(str(ran))))
    refused(tmp_path / "evil.onnx", "not an ONNX file")
    tensor = TensorProto(name="w", data_type=TensorProto.STRING, dims=[1], string_data=[pickle.dumps(_Evil(str(ran)))])
    refused(with_tensor(tensor), "string")
    assert not ran.exists()
    pickle.loads(pickle.dumps(_Evil(str(ran))))
    assert ran.exists()


class _Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def test_truncated_files():
    data = models()["qdq"]
    for size in range(0, len(data), 97):
        refused(data[:size])


def test_deep_nesting():
    kind = onnx.TypeProto()
    for _ in range(90):
        outer = onnx.TypeProto()
        outer.sequence_type.elem_type.CopyFrom(kind)
        kind = outer
    proto = relu()
    proto.graph.input[0].type.CopyFrom(kind)
    refused(proto)
    data = b""
    for _ in range(3000):  # a graph in an attribute of a node of a graph, and so on
        for tag in (0x32, 0x2A, 0x0A):
            data = bytes([tag]) + _varint(len(data)) + data
    refused(bytes([0x3A]) + _varint(len(data)) + data, "not an ONNX file")


def _varint(number):
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


# Limits --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", bombs())
def test_bombs(name):
    text = refused(bombs()[name], "limit", limits=SMALL)
    assert "bytes" in text


@pytest.mark.parametrize("sizes", [(1, 1, 860, 860), (740_000,), (2, 91, 91, 46)])
def test_steps_of_a_folded_resize_fit_the_limit_of_its_result(sizes):
    """NumPy's arrays are counted by tracemalloc; the test of bombs shows that slightly larger results are refused."""
    data = resize(sizes).SerializeToString()
    load(data, limits=SMALL)  # imports what it needs
    tracemalloc.start()
    try:
        assert load(data, limits=SMALL).operators == ()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < SMALL.tensor_bytes


def test_limits():
    many = model(chain("Relu", 20))
    refused(many, "20 nodes", "limit of 19", "Limits(nodes=...)", limits=Limits(nodes=19))
    assert load(many, limits=Limits(nodes=20))
    refused(many, "limit of 0", "Limits(seconds=...)", limits=Limits(seconds=0))
    size = len(many.SerializeToString())
    refused(many.SerializeToString(), f"{size} bytes", "Limits(file_bytes=...)", limits=Limits(file_bytes=size - 1))
    assert load(many.SerializeToString(), limits=Limits(file_bytes=size))
    refused(with_tensor(constant(ONES, "w")), "'w'", "16 bytes", "tensor_bytes", limits=Limits(tensor_bytes=15))
    assert dataclasses.astuple(Limits()) == (2**31, 2**30, 100_000, 10.0)


class Clock:
    """A wall clock that advances at each reading, and the thread's CPU clock."""

    def __init__(self, step=0.0):
        self.wall, self.thread, self.step = 1000.0, 3.0, step

    def monotonic(self):
        self.wall += self.step
        return self.wall

    def thread_time(self):
        return self.thread


def test_what_other_programs_compute_is_not_counted(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(_limits, "time", clock)
    budget = _limits.Budget(Limits(seconds=10))
    clock.wall += 4
    budget.count_computing()
    clock.wall, clock.thread = clock.wall + 50, clock.thread + 5
    budget.check_time()
    clock.thread += 2
    with pytest.raises(ModelError, match="limit of 10"):  # 4 seconds to read, and 7 to compute
        budget.check_time()
    clock.thread -= 2
    clock.wall += 47
    with pytest.raises(ModelError, match="limit of 10"):  # other threads may compute for long, but not forever
        budget.check_time()
    budget = _limits.Budget(Limits(seconds=10))
    clock.wall += 11
    with pytest.raises(ModelError, match="limit of 10"):
        budget.check_time()


def test_time_is_up_inside_a_branch(monkeypatch):
    """The limit of the time ends the load at once, and is not one of many problems."""
    ifs = nested_ifs(6)
    assert len(load(ifs).nodes) == 2**7 - 1
    monkeypatch.setattr(_limits, "time", Clock(step=1))
    text = refused(ifs, "takes too long: more than the limit of 60", limits=Limits(seconds=60))
    assert len(text.splitlines()) == 1


def test_a_busy_machine_loads_what_an_idle_one_loads(monkeypatch):
    proto = model([node("Add", ["c", "c"], ["v0"]), *chain("Neg", 30, "v0", "w"), ("Mul", ["x", "w"], ["y"])],
                  [constant(ONES, "c")])  # fmt: skip
    limits = Limits(seconds=80)  # of which reading takes 70, by the clock
    monkeypatch.setattr(_limits, "time", Clock(step=1))
    assert load(proto, limits=limits).operators == ("Mul",)
    monkeypatch.setattr(_limits.Budget, "count_computing", lambda budget: None)
    with pytest.raises(ModelError, match="too long"):
        load(proto, limits=limits)


LARGER = {
    "Expand": (["x", "c"], np.array([2**29])),
    "Tile": (["x", "c"], np.array([2**29])),
    "Pad": (["x", "c"], np.array([2**29, 0])),
    "OneHot": (["i", "c", "x2"], np.array(2**28)),
}


@pytest.mark.parametrize("operator", LARGER)
def test_a_limit_is_lifted(operator):
    """A result of more than 1 GiB is traced, and needs no memory."""
    inputs, array = LARGER[operator]
    given = [("x", FLOAT, (1,)), ("x2", FLOAT, (2,)), ("i", TensorProto.INT32, (4,))]
    given = [each for each in given if each[0] in inputs]
    proto = model([(operator, inputs, ["y"])], [constant(array, "c")], inputs=given, outputs=[("y", FLOAT, None)])
    shapes = [jax.ShapeDtypeStruct(shape, "int32" if name == "i" else "float32") for name, _, shape in given]
    made = load(proto)
    with pytest.raises(ModelError, match=rf"{operator}.*limit of {2**30}; .*set Limits\(tensor_bytes=\.\.\.\)"):
        jax.eval_shape(made.apply, made.params, *shapes)
    made = load(proto, limits=Limits(tensor_bytes=2**40))
    assert jax.eval_shape(made.apply, made.params, *shapes)["y"].size >= 2**29


@pytest.mark.parametrize(("operator", "numbers"), [("Range", (0, 1000, 1)), ("ConstantOfShape", ([1000],))])
def test_a_limit_is_lowered(operator, numbers):
    """The limit applies before any array is made."""
    constants = [constant(np.array(number), f"c{place}") for place, number in enumerate(numbers)]
    proto = model(
        [(operator, [each.name for each in constants], ["y"])], constants, inputs=[], outputs=[("y", FLOAT, None)]
    )  # fmt: skip
    text = refused(proto, "limit of 3999", limits=Limits(tensor_bytes=3999))
    assert "its result of shape (1000,)" in text
    load(proto, limits=Limits(tensor_bytes=8000))


@pytest.mark.rare
@pytest.mark.parametrize("operators", ["Relu", "Identity", "QuantizeLinear DequantizeLinear"])
def test_many_nodes_take_no_quadratic_time(operators):
    names = operators.split()
    parameters = ["s", "z"] if len(names) == 2 else []
    nodes = [node(names[i % len(names)], [f"v{i}", *parameters], [f"v{i + 1}"]) for i in range(50_000)]
    proto = model(
        nodes, [constant(np.float32(1), "s"), constant(np.uint8(0), "z")], [("v0",)], [("v50000",)]
    )  # fmt: skip
    assert load(proto, limits=Limits(seconds=40)).inputs[0].name == "v0"
