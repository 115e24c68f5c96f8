"""Models that are malicious or broken."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jaxdml.onnx
from jaxdml.errors import ModelError

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def value(name, dtype=FLOAT, shape=(4,)):
    return helper.make_tensor_value_info(name, dtype, shape)


def constant(array, name):
    return numpy_helper.from_array(np.asarray(array), name)


def model(nodes, initializers=(), inputs=(("x",),), outputs=(("y",),), opset=17, **more):
    """A model of nodes, which are a list of (operator, inputs, outputs) or protos."""
    protos = [n if isinstance(n, onnx.NodeProto) else node(*n) for n in nodes]
    declared = ([value(*each) for each in values] for values in (inputs, outputs))
    graph = helper.make_graph(protos, "graph", *declared, list(initializers))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, **{"opset_imports": opsets, "ir_version": 8, **more})


def node(operator, inputs, outputs, **attributes):
    return helper.make_node(operator, inputs, outputs, **attributes)


def run(data, **options):
    made = jaxdml.onnx.load(data, **options)
    return made.apply(made.params, *(np.ones([size or 1 for size in each.shape], each.dtype) for each in made.inputs))


def refused(broken, *words, **options):
    """The text of the error, after a check that it contains the words."""
    if isinstance(broken, onnx.ModelProto):
        broken = broken.SerializeToString()
    with pytest.raises(ModelError) as caught:
        run(broken, **options)
    text = str(caught.value)
    assert all(word in text for word in words), text
    return text


def relu(**more):
    return model([("Relu", ["x"], ["y"])], **more)


def with_tensor(tensor):
    return model([("Add", ["x", tensor.name], ["y"])], [tensor])


def chain(operator, count, first="x", last="y"):
    """Nodes in a row, each of which takes the previous node's output."""
    names = [first, *(f"v{place}" for place in range(1, count)), last]
    return [node(operator, [names[place]], [names[place + 1]]) for place in range(count)]


HUGE = 10**6


def _of_shape(operator, inputs, initializers, **attributes):
    return model([node(operator, inputs, ["y"], **attributes)], initializers, inputs=[])


def resize(sizes):
    """Resizes constants to these sizes, by linear interpolation."""
    small = constant(np.ones([min(size, 2) for size in sizes], np.float32), "small")
    return _of_shape("Resize", ["small", "", "", "sizes"], [small, constant(sizes, "sizes")], mode="linear")


def nested_ifs(depth):
    """A model that decides 2**depth - 1 times which of 2**depth nodes it takes."""

    def branch(depth):
        if depth == 0:
            return helper.make_graph([node("Relu", ["x"], ["t"])], "branch", [], [value("t")])
        return helper.make_graph([choice(depth, "t")], "branch", [], [value("t")])

    def choice(depth, output):
        inner = branch(depth - 1)
        return node("If", ["flag"], [output], then_branch=inner, else_branch=inner)

    return model([choice(depth, "y")], inputs=[("x",), ("flag", TensorProto.BOOL, ())])


def bombs():
    """Small models that ask for large tensors, by name."""
    one, row = np.ones(1, np.float32), np.ones((1, 2**20), np.float32)
    sides = constant([HUGE, HUGE, 2], "shape")
    doubled = [node("Concat", [f"v{i}", f"v{i}"], [f"v{i + 1}"], axis=0) for i in range(40)]
    return {
        "ConstantOfShape": _of_shape("ConstantOfShape", ["shape"], [sides]),
        "Expand": _of_shape("Expand", ["one", "shape"], [constant(one, "one"), sides]),
        "Tile": _of_shape("Tile", ["one", "times"], [constant(one, "one"), constant([2**42], "times")]),
        "Range": _of_shape(
            "Range", ["a", "b", "c"], [constant(np.int64(v), n) for v, n in ((0, "a"), (2**41, "b"), (1, "c"))]
        ),
        "Range of floats": _of_shape(
            "Range", ["a", "b", "c"], [constant(np.float32(v), n) for v, n in ((0, "a"), (1e30, "b"), (1e-30, "c"))]
        ),
        "Pad": _of_shape("Pad", ["one", "pads"], [constant(one, "one"), constant([2**41, 0], "pads")]),
        "Resize": _of_shape(
            "Resize", ["one", "", "", "sizes"],
            [constant(one.reshape(1, 1, 1, 1), "one"), constant([1, 1, HUGE, HUGE], "sizes")],
        ),
        "Resize whose steps are larger than its result": resize([1, 1, 900, 900]),
        "Resize whose input becomes floats": model(
            [node("Expand", ["one", "shape"], ["x"]), node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear")],
            [constant(np.ones((1, 1, 1, 1), np.uint8), "one"), constant([1, 1, 5700, 5700], "shape"),
             constant([1, 1, 1, 1], "sizes")],
            inputs=[],
        ),
        "OneHot": _of_shape(
            "OneHot", ["i", "depth", "v"],
            [constant(np.zeros(4, np.int64), "i"), constant(np.int64(2**41), "depth"), constant(np.zeros(2), "v")],
        ),
        "GatherBlockQuantized": _of_shape(
            "GatherBlockQuantized", ["row", "places", "scale"],
            [constant(np.zeros((1, 2**19), np.uint8), "row"), constant(np.zeros(2**14, np.int64), "places"),
             constant(np.ones((1, 1), np.float32), "scale")],
            domain="com.microsoft", block_size=2**20,
        ),
        "LSTM": model(
            [("Expand", ["one", "steps"], ["x"]), ("LSTM", ["x", "w", "r"], ["y"])],
            [constant(one, "one"), constant([2**18, 1, 1], "steps"),
             *(constant(np.ones((1, 512, size), np.float32), name) for name, size in (("w", 1), ("r", 128)))],
            inputs=[],
        ),
        "Concat of itself": model(
            [*doubled, node("Identity", ["v40"], ["y"])], [constant(np.ones(1024, np.float32), "v0")], inputs=[]
        ),
        "Concat of one many times": model(
            [node("Concat", ["v"] * 4000, ["y"], axis=0)], [constant(row[0], "v")], inputs=[]
        ),
        "Add": model([("Add", ["a", "b"], ["y"])], [constant(row, "a"), constant(row.T.copy(), "b")], inputs=[]),
        "Gather": model(
            [("Gather", ["a", "i"], ["y"])], [constant(row, "a"), constant(np.zeros(2**12, np.int64), "i")], inputs=[]
        ),
        "a dimension of 0": _of_shape("ReduceMax", ["a"], [constant(np.zeros((2**40, 0), np.float32), "a")], axes=[1]),
        "Reshape": model(
            [("Reshape", ["v", "wide"], ["a"]), ("Reshape", ["v", "tall"], ["b"]), ("Mul", ["a", "b"], ["y"])],
            [constant(row, "v"), constant([1, -1], "wide"), constant([-1, 1], "tall")], inputs=[],
        ),
        "many of them": model(
            [
                *(node("Expand", ["one", "shape"], [f"e{i}"]) for i in range(40)),
                *(node("Neg", [f"e{i}"], [f"n{i}"]) for i in range(40)),
                node("Sum", [f"n{i}" for i in range(40)], ["y"]),
            ],
            [constant(one, "one"), constant([2**26], "shape")], inputs=[],
        ),
        "at run time": model(
            [("Shape", ["x"], ["s"]), ("Expand", ["s", "wide"], ["w"]), ("Expand", ["s", "tall"], ["t"]),
             ("Add", ["w", "t"], ["sum"]), ("ReduceMax", ["sum"], ["y"])],
            [constant([1, 2**20], "wide"), constant([2**20, 1], "tall")], outputs=[("y", INT64, (1, 1))],
        ),
    }  # fmt: skip
