"""Quantized ONNX models whose floats have one answer, and the report of the operators that have no rule."""

import jax
import numpy as np
import onnx.parser
import pytest

import jaxdml as dml
from _onnx.backend_nodes import Prepared, all_cases, operators_of, reason
from helpers.compare import assert_same_bits
from helpers.marks import rest_rarely
from jaxdml._exact.interpreter import problems
from jaxdml._graph.floats import by_xla
from jaxdml._graph.graph import CONVERSIONS
from jaxdml.errors import DescError
from jaxdml.onnx._table import ROWS
from jaxdml.reference import float_sums, floats

ONE = "one answer: the outputs have the same bits on every processor"
X = np.random.default_rng(0).integers(0, 256, (3, 8), np.uint8)
SCALE = np.float32(0.05)


def model_of(nodes, **options):
    """A model of uint8 x, dequantized to f; its nodes compute float y."""
    proto = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        graph (uint8[3, 8] x) => (float y) <float s = {{0.05}}, uint8 z = {{120}}> {{
            f = DequantizeLinear (x, s, z)
            {nodes}
        }}""")
    return dml.onnx.load(proto, **options)


def answer(model):
    return str(model).split("\n\n")[1].splitlines()[1]


@pytest.mark.rare
def test_the_bits_are_those_of_the_rules():
    model = model_of("e = Exp (f)\n y = Softmax (e)", floats="exact")
    x = floats.exp((X.astype(np.float32) - 120) * SCALE)
    e = floats.exp(floats.sub(x, x.max(-1, keepdims=True)))
    expected = floats.div(e, float_sums.reduce_sum(e)[:, None])
    assert_same_bits(model.apply(model.params, X)["y"], expected)
    with jax.disable_jit():
        assert_same_bits(model.apply(model.params, X)["y"], expected)
    assert_same_bits(jax.vmap(lambda x: model.apply(model.params, x)["y"])(X[None])[0], expected)
    assert answer(model) == ONE


def test_onnxruntimes_operators_stay_one_call():
    nodes = "q = com.microsoft.QLinearSoftmax <axis = 1, opset = 13> (x, s, z, s, z)\n y = DequantizeLinear (q, s, z)"
    exact, xla = (model_of(nodes, floats=kind) for kind in ("exact", "xla"))
    assert_same_bits(exact.apply(exact.params, X)["y"], xla.apply(xla.params, X)["y"])
    assert "name=jaxdml_operator" in str(jax.make_jaxpr(exact.apply)(exact.params, X))


def test_a_model_says_whether_it_has_one_answer():
    assert answer(model_of("y = Exp (f)", floats="xla")) == (
        'no single answer is promised: XLA computes the floats of exp_1; write floats="exact"'
    )
    text = "no single answer is promised: XLA computes the floats of {}, for which there is no rule"
    assert answer(model_of("t = Tan (f)\n m = ReduceProd <keepdims = 0> (t)\n y = Atan (m)", floats="exact")) == ONE
    model = model_of("e = Exp (f)\n t = Transpose (e)\n y = MatMul (e, t)", floats="exact")
    assert answer(model) == text.format("matmul_3")
    assert np.isfinite(model.apply(model.params, X)["y"]).all()
    assert text.format("matmul_3") in model._repr_html_()


FLOATS_OF_INDICES = {  # c has floats of indices and shapes
    "a place": "i = ArgMax <axis = 1> (f)\n c = Cast <to = 1> (i)",
    "a shape": "i = Shape (f)\n c = Cast <to = 1> (i)",
    "computed from a shape": "n = Shape (f)\n i = Mul (n, n)\n c = Cast <to = 1> (i)",
    "the type of another": "i = ArgMax <axis = 1> (f)\n c = CastLike (i, s)",
    "a constant": "i = Shape (f)\n c = ConstantOfShape <value = float[1] {1.5}> (i)",
    "the constant 0": "i = Shape (f)\n c = ConstantOfShape (i)",
    "an identity matrix": "c = EyeLike (f)",
    "an identity matrix of indices": "i = ArgMax <axis = 1> (f)\n c = EyeLike <dtype = 1> (i)",
}


@pytest.mark.parametrize("name", FLOATS_OF_INDICES)
def test_floats_of_indices_and_shapes_are_named(name):
    named = model_of(f"{FLOATS_OF_INDICES[name]}\n e = Exp (c)\n m = Mul (c, c)\n y = Sum (e, m)", floats="xla").by_xla
    assert {node.rpartition("_")[0] for node in named} == {"exp", "mul", "sum"}


def test_floats_inside_of_an_operator_on_indices_are_named():
    nodes = "i = ArgMax <axis = 1> (f)\n y = ReduceL2 <keepdims = 0> (i)"
    assert model_of(nodes, floats="xla").by_xla == ("reducel2_2",)


def test_indices_and_shapes_are_not_named():
    model = model_of("""
        i = ArgMax <axis = 1, keepdims = 0> (f)
        n = Shape (i)
        one = ConstantOfShape <value = int64[1] {1}> (n)
        j = Add (i, one)
        axis = Constant <value_int = 0> ()
        k = CumSum (j, axis)
        c = Cast <to = 6> (k)
        y = Mul (c, c)""")
    assert model.by_xla == ()
    assert "floats" not in {node.on for node in model._graph.nodes[1:]}


def test_functions_with_rules_have_one_answer():
    """In one model; each is a node of its own."""
    names = ("Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Sin", "Cos", "Erf")
    nodes = "".join(f"n_{name} = {name} (f)\n" for name in names)
    sums = f"y = Sum ({', '.join(f'n_{name}' for name in names)}, m)"
    assert answer(model_of(f"{nodes} m = Mod <fmod = 1> (f, s)\n {sums}", floats="exact")) == ONE


# Each of t and y computes on float64; what follows the casts does not.
FLOAT64 = """
    d = Cast <to = 11> (f)
    t = Tanh (d)
    one = Constant <value = double[1] {1.5}> ()
    e = Exp (f)
    w = Cast <to = 11> (e)
    p = Mul (w, one)
    s32 = Cast <to = 1> (p)
    t32 = Cast <to = 1> (t)
    y = Add (s32, t32)"""


def test_operators_on_float64_are_named_where_jax_has_float64():
    model = model_of(FLOAT64, floats="exact")
    assert answer(model) == ONE
    with jax.enable_x64(True):
        model = model_of(FLOAT64, floats="exact")
        assert model.by_xla == ("tanh_2", "mul_6")
        assert answer(model) == (
            "no single answer is promised: XLA computes the floats of tanh_2, mul_6, for which there is no rule; turn "
            "jax_enable_x64 off, so that float32 replaces float64 in tanh_2, mul_6"
        )
        assert answer(model_of(FLOAT64, floats="xla")).endswith("float64 in tanh_2, mul_6")


def test_float64_in_branches_is_named():
    nodes = """
        n = Cast <to = 6> (x)
        m = ReduceMax <keepdims = 0> (n)
        i = Cast <to = 9> (m)
        y = If (i) <
            then_branch = one () => (float u) { d = Cast <to = 11> (f) t = Tanh (d) u = Cast <to = 1> (t) },
            else_branch = two () => (float v) { v = Exp (f) }>"""
    with jax.enable_x64(True):
        assert model_of(nodes, floats="exact").by_xla == ("if_4.then.tanh_1",)


CHOSEN = {  # operators that read doubles and compute nothing on them
    "Pow": "c = Constant <value = double[1] {1.5}> () y = Pow (f, c)",
    "Where": (
        "c = Constant <value = double[1] {1.5}> () e = Constant <value = double[1] {2.5}> () b = Cast <to = 9> (f) "
        "w = Where (b, c, e) y = Cast <to = 1> (w)"
    ),
    "CastLike": "c = Constant <value = double[1] {1.5}> () y = CastLike (c, f)",
    "OneHot": """
        n = Constant <value = int64 {2}> ()
        c = Constant <value = double[2] {0.5, 1.5}> ()
        w = OneHot (x, n, c)
        y = Cast <to = 1> (w)""",
    "If": """
        m = ReduceMax <keepdims = 0> (f)
        i = Cast <to = 9> (m)
        w = If (i) <
            then_branch = one () => (double u) { u = Cast <to = 11> (f) },
            else_branch = two () => (double v) { a = Neg (f) v = Cast <to = 11> (a) }>
        y = Cast <to = 1> (w)""",
}


@pytest.mark.parametrize("name", CHOSEN)
def test_choices_between_doubles_have_one_answer(name):
    with jax.enable_x64(True):
        assert model_of(CHOSEN[name], floats="exact").by_xla == ()


@pytest.mark.parametrize("compare", ["Equal (d, d)", "LessOrEqual (d, d)", "IsNaN (d)", "IsInf (d)"])
def test_comparisons_of_doubles_give_no_double(compare):
    """The types of values inside of branches are unknown."""
    nodes = f"""
        m = ReduceMax <keepdims = 0> (f)
        i = Cast <to = 9> (m)
        y = If (i) <
            then_branch = one () => (float u) {{
                d = Cast <to = 11> (f)
                b = {compare}
                w = Where (b, f, f)
                u = Exp (w)
            }},
            else_branch = two () => (float v) {{ v = Exp (f) }}>"""
    with jax.enable_x64(True):
        (named,) = model_of(nodes, floats="exact").by_xla
        assert named.startswith("if_3.then.")
        assert "exp" not in named


UPDATES = np.float32([1e8, 1, -1e8, 3, 0.1, 7, 1e-45, np.nan])
PLACES = np.array([0, 0, 0, 2, 2, 1, 3, 4])
COMBINED = {
    "add": float_sums.scatter_add(np.float32([1, -0.0, 2, -2, 0]), PLACES, UPDATES),
    "max": np.float32([1e8, 7, 3, 0, np.nan]),
    "min": np.float32([-1e8, -0.0, 0.1, -2, np.nan]),
}


@pytest.mark.parametrize("reduction", COMBINED)
@pytest.mark.parametrize("operator", rest_rarely(["ScatterElements", "ScatterND"], 1))
def test_updates_of_one_element_have_one_answer(operator, reduction):
    """Whether the file or the caller gives the arrays; NumPy's sums of constants depend on the order."""
    x = np.float32([1, -0.0, 2, -2, 0])
    places = PLACES if operator == "ScatterElements" else PLACES[:, None]
    given = {"x": x, "places": places, "updates": UPDATES}
    node = onnx.helper.make_node(operator, list(given), ["y"], reduction=reduction)
    arrays = [onnx.numpy_helper.from_array(value, name) for name, value in given.items()]
    for constants, inputs in ((arrays, ()), ([], arrays)):
        values = [onnx.helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in inputs]
        y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [5])
        graph = onnx.helper.make_graph([node], "scatter", values, [y], constants)
        model = dml.onnx.load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)]))
        assert model.by_xla == ()
        got = jax.jit(model.apply)(model.params, *(given[each.name] for each in inputs))["y"]
        assert_same_bits(got, COMBINED[reduction])


def test_products_of_updates_have_no_rule():
    nodes = "i = Constant <value = int64[3, 8] {0}> ()\n y = ScatterElements <reduction = REDUCTION> (f, i, f)"
    (named,) = model_of(nodes.replace("REDUCTION", '"mul"').replace("{0}", "{" + "0, " * 23 + "0}")).by_xla
    assert "scatter" in named


def test_wrong_floats():
    with pytest.raises(DescError, match="floats is 'half', expected 'exact' or 'xla'"):
        model_of("y = Exp (f)", floats="half")


def test_fast_math_is_refused(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    with pytest.raises(DescError, match=r"XLA_FLAGS has --xla_cpu_enable_fast_math=true.*or write floats='xla'"):
        model_of("y = Exp (f)", floats="exact")
    assert model_of("y = Exp (f)", floats="xla").floats == "xla"


@pytest.mark.rare
def test_each_case_of_onnx_that_computes_on_float64_is_named():
    """CastLike and Einsum are always named, although some compute nothing; Cast has a rule, which compares float64."""
    wrong = []
    with jax.enable_x64(True):
        for case in all_cases():
            values = (*case.model.graph.input, *case.model.graph.value_info, *case.model.graph.output)
            is_float64 = any(value.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE for value in values)
            if not is_float64 or reason(case) or operators_of(case) & {"Cast", "CastLike", "Einsum"}:
                continue
            prepared = Prepared(case)
            model, inputs = prepared.model, prepared.inputs
            jaxpr = jax.make_jaxpr(model.apply)(model.params, **inputs).jaxpr
            computes = any(each.primitive != "convert_element_type" for each in problems(jaxpr))
            if computes != bool(by_xla(model._graph.nodes, "exact")):
                wrong.append(case.name)
    assert not wrong


@pytest.mark.rare
@pytest.mark.parametrize("part", range(8))
def test_the_table_says_which_operators_have_no_rule(part):
    """Each of ONNX's own cases: if a program has a primitive without a rule, the model names its node.

    Einsum is always named, although some have no product.
    """
    wrong = {}
    for case in all_cases()[part::8]:
        if reason(case):
            continue
        prepared = Prepared(case)
        model, inputs = prepared.model, prepared.inputs
        jaxpr = jax.make_jaxpr(model.apply)(model.params, **inputs).jaxpr
        found = {each.primitive for each in problems(jaxpr) if each.kind == "rule"}
        if found and not by_xla(model._graph.nodes, "exact"):
            wrong[case.name] = found
    assert not wrong


V = "v = Constant <value_floats = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]> ()\n"
ROWS_3D = "n = Constant <value_ints = [1, 3, 8]> ()\n q = Reshape (f, n)\n"
IDS = "i = Constant <value = int32[1, 3] {0, 2, 1}> ()\n"
ANGLES = "m = Constant <value_ints = [6, 4]> ()\n c = Reshape (f, m)\n at = Constant <value_ints = [1]> ()\n"
# Operators that compute floats and are in none of ONNX's own cases, by domain and name.
MICROSOFT = "com.microsoft"
NODES = {
    ("", "GlobalLpPool"): ROWS_3D + "y = GlobalLpPool (q)",
    ("", "SimplifiedLayerNormalization"): V + "y = SimplifiedLayerNormalization (f, v)",
    (MICROSOFT, "SimplifiedLayerNormalization"): V + "y = com.microsoft.SimplifiedLayerNormalization (f, v)",
    (MICROSOFT, "BiasGelu"): V + "y = com.microsoft.BiasGelu (f, v)",
    **{(MICROSOFT, name): f"y = com.microsoft.{name} (f)" for name in ("FastGelu", "Gelu", "QuickGelu")},
    (MICROSOFT, "SkipLayerNormalization"): V + "y = com.microsoft.SkipLayerNormalization (f, f, v)",
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): V + "y = com.microsoft.SkipSimplifiedLayerNormalization (f, f, v)",
    (MICROSOFT, "MultiHeadAttention"): ROWS_3D + "y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, q, q)",
    (MICROSOFT, "EmbedLayerNormalization"): IDS + V + "y = com.microsoft.EmbedLayerNormalization (i, , f, f, , v, v)",
    (MICROSOFT, "QEmbedLayerNormalization"): IDS + V + """
        w, sw, zw = DynamicQuantizeLinear (f)
        u, su, zu = DynamicQuantizeLinear (v)
        y = com.microsoft.QEmbedLayerNormalization (i, , w, w, , u, u, , sw, sw, , su, su, zw, zw, , zu, zu)""",
    (MICROSOFT, "RotaryEmbedding"): ROWS_3D + ANGLES + "y = com.microsoft.RotaryEmbedding (q, at, c, c)",
    (MICROSOFT, "GroupQueryAttention"): ROWS_3D + """
        ends = Constant <value = int32[1] {2}> ()
        total = Constant <value = int32[1] {3}> ()
        y, k, w = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1> (q, q, q, , , ends, total)""",
}  # fmt: skip


@pytest.mark.rare
@pytest.mark.parametrize("key", NODES)
def test_operators_without_cases_have_rules(key):
    model = model_of(NODES[key])
    assert key[1] in model.operators
    jaxpr = jax.make_jaxpr(model.apply)(model.params, X).jaxpr
    assert not [each.primitive for each in problems(jaxpr) if each.kind == "rule"]


@pytest.mark.rare
def test_each_operator_that_promises_rules_is_tried():
    tried = {
        tuple(name.rpartition(".")[::2]) for case in all_cases() if not reason(case) for name in operators_of(case)
    }
    promised = {
        key for key, rows in ROWS.items() for row in rows
        if row.operator.has_rule and not row.operator.is_quantized and row.operator.kind not in CONVERSIONS
    }  # fmt: skip
    assert promised - tried - NODES.keys() == {(MICROSOFT, "GatherBlockQuantized")}  # one product for each element
