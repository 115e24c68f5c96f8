"""Graphs and tensors that contradict themselves: each ends in an error that says why."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import AttributeProto, TensorProto, helper, inliner

import jaxdml.onnx
from helpers.compare import assert_same_bits
from helpers.hostile_models import FLOAT, chain, constant, model, node, refused, relu, value, with_tensor
from jaxdml.errors import ModelError
from jaxdml.onnx import load

ONES = np.ones(4, np.float32)


# Graphs --------------------------------------------------------------------------------------------------------------


def test_all_problems_come_at_once():
    tensor = TensorProto(name="w", data_type=TensorProto.STRING, dims=[1], string_data=[b"a"])
    broken = model(
        [
            ("Foo", ["x"], ["a"]),
            node("Bar", ["a"], ["b"], domain="other"),
            ("Relu", ["nothing"], ["c"]),
            ("Relu", ["a", "b"], ["a"]),
        ],
        [tensor],
    )
    with pytest.raises(ModelError) as caught:
        load(broken)
    problems = caught.value.problems
    assert len(problems) == 7
    assert all(text in str(caught.value) for text in problems)
    assert jaxdml.onnx.check(broken) == list(problems)
    told = (
        "'w' has the type string",
        "Foo, opset 17",
        "imports no opset of the domain 'other'",
        "reads 'nothing'",
        "defines 'a'",
        "2 inputs",
        "'y'",
    )
    assert all(any(word in text for text in problems) for word in told), problems
    assert jaxdml.onnx.check(relu()) == []


@pytest.mark.rare
def test_very_many_problems_are_cut():
    broken = model(chain("Foo", 5000))
    text = refused(broken, "5000 problems", "4900 more, which jaxdml.onnx.check")
    assert len(text.splitlines()) == 102
    assert len(jaxdml.onnx.check(broken)) == 5000


def test_a_name_that_is_no_text():
    """The package onnx reads such a name as bytes."""
    data = model([node("Foo", ["x"], ["y"], name="a name")]).SerializeToString().replace(b"a name", b"\xff name")
    refused(data, "Foo", "is not supported")


@pytest.mark.rare
def test_order_and_names():
    cycle = model([("Neg", ["b"], ["y"]), ("Add", ["x", "b"], ["a"]), ("Relu", ["a"], ["b"])])
    refused(cycle, "a problem:", "nodes 'add_1', 'relu_2' form a cycle")
    refused(model([("Add", ["x", "y"], ["y"])]), "a problem:", "node 'add_0' reads its own result", "cycle")
    large = chain("Relu", 5000)
    large[0].op_type, large[0].input[:] = "Add", ["x", "y"]
    refused(model(large), "a problem:", "'relu_4994', 'relu_4993' and 4992 more form a cycle")
    refused(model([("Relu", ["x"], ["y"]), ("Neg", ["x"], ["y"])]), "neg_1", "defines 'y'", "already")
    refused(model([("Relu", ["x"], ["x"])], outputs=[("x",)]), "defines 'x'", "already")
    refused(model([("Split", ["x"], ["y", "y"])]), "defines 'y'", "already")
    refused(model([("Relu", [""], ["y"])]), "input 0 is missing")
    refused(model([("Relu", [], ["y"])]), "0 inputs, expected 1")
    refused(model([("Relu", ["x"], [])]), "no outputs")
    refused(model([("Relu", ["x"], ["y", "z"])]), "2 outputs, expected at most 1")
    refused(model([("Relu", ["x"], ["z"])]), "no node defines output 'y'")
    refused(relu(outputs=[]), "no outputs")
    refused(relu(outputs=[("y",), ("y",)]), "output 'y' is declared 2 times")
    refused(relu(inputs=[("x",), ("x",)]), "input 'x' is declared 2 times")
    refused(relu(initializers=[constant(ONES, "w"), constant(ONES, "w")]), "tensor 'w' is given twice")


def test_nodes_are_sorted():
    """In any order of the nodes the model is the same; a sorted file keeps its order."""
    nodes = [node("Neg", ["x"], ["b"]), node("Relu", ["x"], ["a"]), node("Add", ["a", "b"], ["c"])]
    nodes += [node("Abs", ["x"], ["d"]), node("Mul", ["c", "d"], ["y"])]
    made = load(model(nodes))
    assert made.operators == ("Neg", "Relu", "Add", "Abs", "Mul")
    x = np.array([-2, -1, 0.5, 3], np.float32)
    for order in ([4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        other = load(model([nodes[place] for place in order]))
        assert_same_bits(other.apply(other.params, x)["y"], made.apply(made.params, x)["y"])
    assert load(model(chain("Relu", 3)[::-1])).operators == ("Relu",) * 3
    # Types are also inferred for nodes that are not sorted.
    refused(model([("Not", ["a"], ["y"]), ("Relu", ["x"], ["a"])]), "input 0 is float32; supported: bool")


def test_opsets_and_domains():
    for opset, remedy in ((9, "converts older"), (29, "newer than opset 28"), (-1, "converts"), (2**62, "newer")):
        broken = model(chain("Relu", 50), opset=opset)
        refused(broken, f"opset {opset} of ai.onnx", "opsets: 10 to 28", remedy)
        assert len(jaxdml.onnx.check(broken)) == 1
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 2)]
    of_microsoft = node("Gelu", ["x"], ["y"], domain="com.microsoft")
    refused(model([of_microsoft], opset_imports=opsets), "opset 2 of com.microsoft; supported opsets: 1")
    refused(relu(opset_imports=[]), "imports no opset of the domain 'ai.onnx'")
    refused(model([node("Relu", ["x"], ["y"], domain="com.microsoft")]), "com.microsoft.Relu", "supported_ops()")
    refused(model([node("Relu", ["x"], ["y"], domain="acme")]), "imports no opset of the domain 'acme'")
    assert load(relu(opset_imports=[helper.make_opsetid("ai.onnx", 17), helper.make_opsetid("unused", 3)]))
    refused(model([("Squeeze", ["x"], ["y"])], opset_imports=[helper.make_opsetid("com.microsoft", 2)]), "ai.onnx")


def test_attributes():
    def broken(*words, **attributes):
        refused(model([node("Concat", ["x", "x"], ["y"], **attributes)]), "concat_0", *words)

    broken("'axis' is missing")
    broken("'axis' is FLOAT, expected INT", axis=0.5)
    broken("'axis' is INTS, expected INT", axis=[0])
    broken("'axis' is STRING, expected INT", axis="0")
    broken("'axis' is GRAPH, expected INT", axis=relu().graph)
    broken("'axes' is not supported", axes=0)
    broken("axis 7 is not in [-1, 0]", axis=7)
    doubled = model([node("Concat", ["x", "x"], ["y"], axis=0)])
    doubled.graph.node[0].attribute.add(name="axis", i=0, type=AttributeProto.INT)
    refused(doubled, "'axis' is given twice")
    both = model([node("Concat", ["x", "x"], ["y"], axis=0)])
    both.graph.node[0].attribute[0].f = 1.0
    refused(both, "'axis' is INT, but holds ['f']")
    both.graph.node[0].attribute[0].ClearField("f")
    both.graph.node[0].attribute[0].ref_attr_name = "other"
    refused(both, "'axis' refers to an attribute of a function")
    text = model([node("Conv", ["x", "x"], ["y"], auto_pad="VALID")])
    text.graph.node[0].attribute[0].s = b"\xff"
    refused(text, "'auto_pad' is not UTF-8 text")


def test_sizes_are_integers_and_biases_have_a_number_for_each_channel():
    floats = [constant(np.array([2, 2], np.float32), "sizes")]
    for name in ("Reshape", "Expand", "Tile", "Unsqueeze", "Squeeze", "Split", "Pad"):
        for opset in (17, 18):
            whole = model([(name, ["x", "sizes"], ["y"])], floats, opset=opset)
            refused(whole, "input 1 is float32; supported: int64")
    refused(model([("Slice", ["x", "sizes", "sizes"], ["y"])], floats), "input 1 is float32; supported: int32, int64")
    parts = [constant(np.ones((3, 2, 1), np.float32), "w"), constant(np.ones(2, np.float32), "b")]
    conv = model([("Conv", ["x", "w", "b"], ["y"])], parts, inputs=[("x", FLOAT, (1, 2, 4))])
    (text,) = jaxdml.onnx.check(conv)
    assert "the bias has shape (2,), and the result has 3 channels" in text


def test_functions_and_subgraphs():
    refused(model([node("Loop", ["", "x"], ["y"], body=relu().graph)]), "Loop", "not supported")
    own = helper.make_function(
        "acme", "Relu", ["a"], ["b"], [node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    proto = model([node("Relu", ["x"], ["y"], domain="acme")], opset_imports=opsets, functions=[own])
    refused(proto, "function of the model", "inline_local_functions")
    assert load(inliner.inline_local_functions(proto))


def test_names_that_are_like_those_of_repacked_weights():
    """An input with the name that repacked weights would have is another value, as either operand of the product."""
    random = np.random.default_rng(0)
    w, zeros = random.integers(0, 255, (4, 4), np.uint8), np.full(4, 3, np.uint8)
    constants = {"w": w, "s": np.float32(0.1), "z": np.uint8(1), "zs": zeros, "ss": np.full(4, 0.1, np.float32)}
    for taken in ("w:prepared", "w:prepared:1", "zs:number", "zs:number:1"):
        inputs = [taken, "s", "z", "w", "ss", "zs", "s", "z"]
        proto = model(
            [("QLinearMatMul", inputs, ["y"])], [constant(value, name) for name, value in constants.items()],
            inputs=[(taken, TensorProto.UINT8, (4, 4))], outputs=[("y", TensorProto.UINT8, (4, 4))],
        )  # fmt: skip
        proto.graph.initializer.append(constant(np.ones((4, 4), np.uint8), "w:prepared" if "zs" in taken else "zs:n"))
        made, x = load(proto), random.integers(0, 255, (4, 4), np.uint8)
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        assert_same_bits(made.apply(made.params, x)["y"], session.run(None, {taken: x})[0])


# Types and tensors ---------------------------------------------------------------------------------------------------


def test_declared_types():
    for kind, name in (
        (TensorProto.STRING, "string"),
        (TensorProto.FLOAT8E4M3FN, "float8e4m3fn"),
        (0, "data type 0"),
        (99, "data type 99"),
    ):
        refused(relu(inputs=[("x", kind)]), "'x'", name)
    for kind, proto in {
        "sequence_type": helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [4])),
        "optional_type": helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [4])),
        "unknown": onnx.TypeProto(),
    }.items():
        broken = relu()
        broken.graph.input[0].type.CopyFrom(proto)
        refused(broken, "'x' is of the kind", kind, "supported: tensors")
    sparse = relu()
    sparse.graph.sparse_initializer.add()
    refused(sparse, "sparse initializers")
    refused(relu(outputs=[("y", TensorProto.INT8)]), "output y: int8[4]")


def test_unknown_sizes_are_no_names():
    """A dimension that a file calls "?" is unknown; two such dimensions need not be equal."""
    both = model([("MatMul", ["x", "w"], ["y"])], inputs=[("x", FLOAT, ("?", 3)), ("w", FLOAT, (3, "?"))])
    both.graph.output[0].CopyFrom(value("y", FLOAT, ("?", "?")))
    made = load(both)
    assert [each.shape for each in (*made.inputs, *made.outputs)] == [(None, 3), (3, None), (None, None)]
    assert made.apply(made.params, np.ones((2, 3), np.float32), np.ones((3, 5), np.float32))["y"].shape == (2, 5)
    named = model([("MatMul", ["x", "w"], ["y"])], inputs=[("x", FLOAT, ("N", 3)), ("w", FLOAT, (3, "N"))])
    made = load(named)
    with pytest.raises(ModelError, match="expected N = 2"):
        made.apply(made.params, np.ones((2, 3), np.float32), np.ones((3, 5), np.float32))


def test_a_size_of_minus_one_is_unknown():
    """The package onnx aborts the process where it infers the shape of a slice of such a size."""
    bounds = [constant(np.array([number]), name) for number, name in ((0, "start"), (5, "end"))]
    whole = model([("Slice", ["x", "start", "end"], ["y"])], bounds, inputs=[("x", FLOAT, (-1, 3))])
    whole.graph.output[0].CopyFrom(value("y", FLOAT, ("N", 3)))
    made = load(whole)
    assert jaxdml.onnx.check(whole) == []
    assert made.apply(made.params, np.ones((2, 3), np.float32))["y"].shape == (2, 3)


def test_a_slice_of_an_image_smaller_than_the_window():
    """The package onnx infers a negative size for the result of the pooling, and aborts at the slice."""
    bounds = [constant(np.array([number]), name) for number, name in ((0, "start"), (5, "end"), (2, "axis"))]
    names, pool = [each.name for each in bounds], node("MaxPool", ["x"], ["p"], kernel_shape=[5, 5])
    whole = model([pool, ("Slice", ["p", *names], ["y"])], bounds, inputs=[("x", FLOAT, (1, 1, 2, 2))])
    made = load(whole)
    assert jaxdml.onnx.check(whole) == []
    assert made.apply(made.params, np.ones((1, 1, 2, 2), np.float32))["y"].shape == (1, 1, 0, 0)


def test_outputs_without_a_type():
    """Their types are those that the model computes."""
    whole = model([("Relu", ["x"], ["a"]), ("Not", ["b"], ["y"]), ("Greater", ["x", "a"], ["b"])])
    whole.graph.output[0].ClearField("type")
    made = load(whole)
    assert str(made.outputs[0]) == "y: bool[...]"
    assert made.apply(made.params, ONES)["y"].dtype == bool
    whole.graph.output[0].type.tensor_type.shape.dim.add(dim_param="N")
    assert str(load(whole).outputs[0]) == "y: bool[N]"
    own = model([node("QuickGelu", ["x"], ["y"], domain="com.microsoft")])
    own.graph.output[0].ClearField("type")
    made = load(own)
    assert (made.outputs[0].shape, made.outputs[0].dtype, str(made.outputs[0])) == (None, None, "y: ?[...]")
    assert made.apply(made.params, ONES)["y"].dtype == np.float32
    assert jaxdml.onnx.check(own) == []
    own.graph.input[0].ClearField("type")
    refused(own, "'x' is of the kind unknown")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"raw_data": bytes(15)}, ["cannot be read"]),
        ({"raw_data": bytes(20)}, ["cannot be read"]),
        ({"raw_data": b""}, ["cannot be read"]),
        ({"dims": [-4]}, ["negative"]),
        ({"dims": [-2, -2]}, ["negative"]),
        ({"dims": [2**62]}, ["bytes", "limit"]),
        ({"dims": [2**32, 2**32]}, ["bytes", "limit"]),
        ({"dims": [2**62, 0]}, ["bytes", "limit"]),
        ({"dims": [1] * 65}, ["cannot be read"]),
        ({"data_type": 0}, ["data type 0"]),
        ({"data_type": 999}, ["data type 999"]),
        ({"data_type": TensorProto.FLOAT8E5M2}, ["float8e5m2", "supported: float32"]),
        ({"data_type": TensorProto.STRING}, ["string"]),
        ({"data_type": TensorProto.COMPLEX64}, ["complex64"]),
    ],
)
def test_tensors(changes, words):
    tensor = constant(ONES, "w")
    for name, each in changes.items():
        tensor.ClearField(name)
        if name == "dims":
            tensor.dims.extend(each)
        else:
            setattr(tensor, name, each)
    refused(with_tensor(tensor), "tensor 'w'", *words)


def test_tensor_in_two_places():
    tensor = TensorProto(name="w", data_type=FLOAT, dims=[4], float_data=[1, 2, 3])
    refused(with_tensor(tensor), "tensor 'w'")
