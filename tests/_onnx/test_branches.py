"""If: one branch of a constant condition, or both and a choice between them, like onnxruntime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import jaxdml.onnx
from helpers.compare import assert_same_bits
from helpers.hostile_models import FLOAT, chain, constant, model, node, refused, value
from jaxdml.errors import ModelError
from jaxdml.onnx import Limits

X = np.array([-2, -1, 0.5, 3], np.float32)
BOOL = TensorProto.BOOL
FLAG = ("flag", BOOL, ())


def branch(nodes, outputs=("t",), initializers=(), inputs=()):
    protos = [each if isinstance(each, onnx.NodeProto) else node(*each) for each in nodes]
    return helper.make_graph(
        protos, "branch", [value(name) for name in inputs], [value(name, FLOAT, None) for name in outputs], initializers
    )


def if_node(condition, then, other, outputs=("y",), **more):
    return node("If", [condition], list(outputs), then_branch=then, else_branch=other, **more)


def relu(name="t", of="x"):
    return branch([("Relu", [of], [name])], [name])


def neg(name="e", of="x"):
    return branch([("Neg", [of], [name])], [name])


def by_both(proto, **inputs):
    """jaxdml's outputs, which have the bits of onnxruntime's, and the operators."""
    made = jaxdml.onnx.load(proto)
    outputs = made.apply(made.params, **inputs)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for name, expected in zip(outputs, session.run(list(outputs), inputs), strict=True):
        assert_same_bits(outputs[name], expected)
    return made.operators


@pytest.mark.parametrize("flag", [True, False])
def test_of_a_constant_condition_one_branch_is_left(flag):
    flags = [constant(np.array(flag), "c"), constant(np.array(True), "true")]
    taken = "Relu" if flag else "Neg"
    proto = model([if_node("c", relu(), neg())], flags)
    assert by_both(proto, x=X) == (taken, "Identity")
    computed = [node("And", ["c", "true"], ["d"]), if_node("d", relu(), neg(), ["z"]), node("Abs", ["z"], ["y"])]
    assert by_both(model(computed, flags), x=X) == (taken, "Abs")
    refusing = branch([("Nonsense", ["x"], ["t"])])
    jaxdml.onnx.load(model([if_node("c", *((relu(), refusing) if flag else (refusing, neg())))], flags))


def test_of_a_computed_condition_both_branches_are_computed():
    proto = model([if_node("flag", relu(), neg())], inputs=[("x",), FLAG])
    for flag in (True, False):
        assert by_both(proto, x=X, flag=np.array(flag)) == ("Relu", "Neg", "If")
    shape = [
        node("Shape", ["x"], ["s"]),
        node("ReduceProd", ["s"], ["p"], keepdims=0),
        node("Equal", ["p", "four"], ["c"]),
    ]
    proto = model([*shape, if_node("c", relu(), neg())], [constant(np.int64(4), "four")], inputs=[("x", FLOAT, ("N",))])
    for size in (3, 4):
        by_both(proto, x=X[:size])


def guarded(squeezed, condition, **more):
    """A file whose branches are a Squeeze of the last axis, and Identity, with the nodes that compute the condition."""
    then = branch([("Squeeze", [squeezed, "last"], ["t"])])
    nodes = [*condition, if_node("c", then, branch([("Identity", [squeezed], ["e"])], ["e"]), ["z"]),
             node("Neg", ["z"], ["y"])]  # fmt: skip
    numbers = [constant(np.array([value], np.int64), name) for name, value in (("last", -1), ("one", 1), ("axis", -1))]
    proto = model(nodes, numbers, **more)
    proto.graph.output[0].ClearField("type")
    return proto


@pytest.mark.parametrize("size", [1, 3])
def test_of_a_condition_on_sizes_one_branch_is_computed(size, tmp_path):
    """Exporters guard a Squeeze, which fails in the branch that is not taken."""
    condition = [node("Relu", ["x"], ["a"]), node("Shape", ["a"], ["s"]), node("Gather", ["s", "axis"], ["d"]),
                 node("Equal", ["d", "one"], ["c"])]  # fmt: skip
    x = np.ones((2, size), np.float32)
    proto = guarded("a", condition, inputs=[("x", FLOAT, ("N", "M"))])
    by_both(proto, x=x)
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    assert {row.name: row.reason for row in jaxdml.onnx.compare(path, x).nodes}["neg_5"] == "equal"
    made = jaxdml.onnx.load(proto)
    (name,) = (name for name in made.value_names if name.startswith("if_4.then."))
    if size == 1:
        assert made.values(made.params, name, x)[name].shape == (2,)
    else:
        with pytest.raises(ModelError, match="squeeze"):
            made.values(made.params, name, x)
    flag = guarded("x", [node("Identity", ["flag"], ["c"])], inputs=[("x", FLOAT, (2, 3)), FLAG])
    why = "both branches of node 'if_1' (If) are computed, because its condition 'c' depends on data: if the input"
    refused(flag, "if_1.then.squeeze_0", "size not equal to one", why)
    behind = [if_node("flag", relu(), neg(), ["z"]), node("Squeeze", ["z", "last"], ["y"])]
    proto = model(behind, [constant(np.array([-1]), "last")], inputs=[("x",), FLAG])
    assert "branches" not in refused(proto, "'squeeze_1'", "size not equal to one")


def test_names_have_scopes():
    """Branches have the same names inside, read values from outside, also those of later nodes, and are nested."""
    inner = branch([("Relu", ["w"], ["a"]), ("Add", ["a", "late"], ["t"])], initializers=[constant(X[::-1], "w")])
    nested = branch([if_node("flag", branch([("Mul", ["a", "x"], ["t"])]), neg("t", "a"), ["u"], name="in"),
                     ("Exp", ["x"], ["a"]), ("Abs", ["u"], ["t"])])  # fmt: skip
    nodes = [if_node("other", inner, nested), node("Sin", ["x"], ["late"])]
    proto = model(nodes, inputs=[("x",), FLAG, ("other", BOOL, ())])
    made = jaxdml.onnx.load(proto)
    for flag, other in ((True, True), (True, False), (False, False)):
        a = np.exp(X)
        expected = np.maximum(X[::-1], 0) + np.sin(X) if other else np.abs(a * X if flag else -a)
        y = made.apply(made.params, X, np.array(flag), np.array(other))["y"]
        np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_a_value_from_outside_and_several_outputs():
    both = branch([("Relu", ["x"], ["t"])], ["t", "w"], [constant(X, "w")])
    others = branch([("Neg", ["x"], ["t"]), ("Identity", ["x"], ["u"])], ["t", "u"])
    nodes = [if_node("flag", both, others, ["y", "z"])]
    proto = model(nodes, inputs=[("x",), FLAG], outputs=[("y",), ("z",)])
    for flag in (True, False):
        by_both(proto, x=X * 2, flag=np.array(flag))


QDQ = """
<ir_version: 9, opset_import: ["" : 17]>
graph (float[1, 4, 6, 6] x) => (float[1, 4, 4, 4] y)
<float s = {0.05}, int8 z = {3}, bool c = {1}> {
    a = QuantizeLinear(x, s, z)
    b = DequantizeLinear(a, s, z)
    d = If (c) <
        then_branch = t () => (float[1, 4, 4, 4] t) { v = DequantizeLinear(w, s) t = Conv(b, v) },
        else_branch = e () => (float[1, 4, 6, 6] e) { e = Identity(x) }
    >
    f = QuantizeLinear(d, s, z)
    y = DequantizeLinear(f, s, z)
}
"""


def test_quantized_operators_in_a_branch_run_on_integers():
    proto, random = onnx.parser.parse_model(QDQ), np.random.default_rng(0)
    proto.graph.initializer.append(constant(random.integers(-50, 50, (4, 4, 3, 3)).astype(np.int8), "w"))
    assert "QLinearConv" in by_both(proto, x=random.standard_normal((1, 4, 6, 6)).astype(np.float32))


# What is refused -----------------------------------------------------------------------------------------------------


def with_flag(*nodes, initializers=(), **more):
    return model(list(nodes), initializers, inputs=[("x",), FLAG], **more)


def test_broken_branches():
    def broken(*words, then=None, other=None, nodes=(), **more):
        refused(with_flag(*nodes, if_node("flag", then or relu(), other or neg(), **more)), *words)

    broken("'if_0.then.'", "1 inputs, expected none", then=branch([("Relu", ["x"], ["t"])], inputs=["a"]))
    broken("'if_0.else.'", "0 outputs, expected 1", other=branch([("Relu", ["x"], ["t"])], []))
    broken("'if_0.then.': no node defines its output 'z'", then=branch([("Relu", ["x"], ["t"])], ["z"]))
    broken("'if_0.then.relu_0' reads 'nothing'", then=relu(of="nothing"))
    broken("'if_0.then.relu_0' defines 'x', which is defined already", then=relu("x"))
    broken("'x', which is defined already", then=branch([("Relu", ["x"], ["t"])], initializers=[constant(X, "x")]))
    broken("defines 't', which is defined already", then=branch([("Relu", ["x"], ["t"]), ("Neg", ["x"], ["t"])]))
    cycle = branch([("Relu", ["b"], ["t"]), ("Add", ["x", "t"], ["b"])])
    broken("branch 'if_0.then.'", "'relu_0', 'add_1' form a cycle", then=cycle)
    broken("'if_0' reads its own result", then=relu(of="y"))
    broken("'if_0.then.nonsense_0'", "not supported", then=branch([("Nonsense", ["x"], ["t"])]))
    broken("imports no opset of the domain 'acme'", then=branch([node("Relu", ["x"], ["t"], domain="acme")]))
    broken(
        "output 0 is float32[1] or float32[4]", "equal types and shapes", then=branch([], ["t"], [constant(X[:1], "t")])
    )
    broken("'more' is not supported", more=1)
    sparse = relu()
    sparse.sparse_initializer.add()
    broken("sparse", then=sparse)
    refused(model([if_node("x", relu(), neg())]), "input 0 is float32; supported: bool")
    refused(
        model([node("If", ["f"], ["y"], then_branch=relu())], [constant(np.array(True), "f")]),
        "'else_branch' is missing",
    )
    two = model([if_node("f", relu(), neg())], inputs=[("x",), ("f", BOOL, (2,))])
    refused(two, "the condition has 2 elements, expected 1")
    more = with_flag(if_node("flag", relu(), neg()))
    more.graph.node[-1].input.append("x")
    refused(more, "(If) has 2 inputs, expected 1")
    through = [if_node("flag", relu(of="b"), neg(), ["a"]), node("Abs", ["a"], ["b"]), node("Neg", ["b"], ["y"])]
    refused(with_flag(*through), "'if_0', 'abs_1' form a cycle")


def test_a_failing_condition_is_said():
    nodes = [node("Reshape", ["c", "s"], ["d"]), if_node("d", relu(), neg())]
    refused(model(nodes, [constant(np.array(True), "c"), constant([3], "s")]), "node 'reshape_0'")


def test_a_large_condition_is_a_limit():
    """The limit applies before the condition is computed."""
    nodes = [
        node("Expand", ["c", "s"], ["d"]),
        node("ReduceMin", ["d"], ["e"], keepdims=0),
        if_node("e", relu(), neg()),
    ]
    proto = model(nodes, [constant(np.array([True]), "c"), constant([5000], "s")], opset=20)
    refused(proto, "limit of 4999", "Expand", limits=Limits(tensor_bytes=4999))
    jaxdml.onnx.load(proto, limits=Limits(tensor_bytes=5000))


def test_deep_branches():
    def nested(depth):
        graph = relu()
        for _ in range(depth):
            graph = branch([if_node("flag", graph, neg(), ["t"])])
        return with_flag(if_node("flag", graph, neg()))

    assert jaxdml.onnx.load(nested(10)).operators.count("If") == 11
    for depth in (16, 20):
        proto = nested(depth)
        with pytest.raises(jaxdml.errors.ModelError, match="more than 16 levels deep"):
            jaxdml.onnx.load(proto)


def test_nodes_of_branches_count():
    proto = with_flag(if_node("flag", branch(chain("Relu", 50, last="t")), neg()))
    assert jaxdml.onnx.load(proto, limits=Limits(nodes=52))
    refused(proto, "52 nodes", "limit of 51", limits=Limits(nodes=51))


@pytest.mark.rare
def test_very_many_branches():
    """In linear time, although each condition is a constant that many nodes compute."""
    count = 3000
    conditions = [node("Not", [f"c{place}"], [f"c{place + 1}"]) for place in range(count)]
    ifs = [
        if_node(f"c{place + 1}", relu(of=f"v{place}"), neg(of=f"v{place}"), [f"v{place + 1}"]) for place in range(count)
    ]
    proto = model([*conditions, *ifs], [constant(np.array(True), "c0")], inputs=[("v0",)], outputs=[(f"v{count}",)])
    assert len(jaxdml.onnx.load(proto).operators) == count + 1
