"""Calls that cannot work, or would be silently wrong, raise errors that say where and what to do; the remedies work."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdml as dml
from _ptq.quantized import decibels, is_right
from helpers.marks import rest_rarely
from jaxdml.ptq import PtqError, Rule

RANDOM = np.random.default_rng(3)
PARAMS = {
    "first": {"w": RANDOM.standard_normal((6, 12), np.float32), "b": RANDOM.standard_normal(12, np.float32)},
    "last": {"w": RANDOM.standard_normal((12, 4), np.float32)},
}
X = RANDOM.standard_normal((8, 6), np.float32)


def mlp(params, x):
    hidden = jax.nn.relu(x @ params["first"]["w"] + params["first"]["b"][None])
    return hidden @ params["last"]["w"]


def quantize(apply=mlp, params=PARAMS, batches=(X,), **options):
    return dml.ptq.quantize(apply, params, batches, progress=False, **options)


def changed(path, value):
    layer, name = path
    return PARAMS | {layer: PARAMS[layer] | {name: value}}


def with_one(array, value):
    array = array.copy()
    array[1, 1] = value
    return array


def while_alone(params, x):
    return lax.while_loop(lambda x: x[0, 0] < 0, lambda x: jnp.tanh(x @ params["w"]), x)


def scanned_layers(params, x):
    x, _ = lax.scan(lambda h, w: (h @ w, None), x, params["layers"])
    return x @ params["head"]


LARGE = {"layers": np.full((3, 6, 6), 1e20, np.float32), "head": PARAMS["first"]["w"]}


def of_params(params, x):
    return mlp(params, x), params["first"]["b"] * 2


def without_layers(params, x):
    return jnp.tanh(x) * params["first"]["b"][None, :6]


KEY = jax.random.key(3)


def by_keyword(params, *, image):
    return mlp(params, image)


def with_option(params, x, *, train):
    return mlp(params, x)


def with_own_params(x):
    return mlp(PARAMS, x)


class Bound:
    """A module that holds its parameters, and takes two arguments."""

    def __init__(self, params):
        self.params = params

    def __call__(self, x, scale=1.0):
        return mlp(self.params, x * scale)


class Variable:
    """Like keras's, which has the shape and the type of its array."""

    shape, dtype = (6, 12), "float32"

    def __init__(self, value):
        self.value = value


def dropped(x, key):
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)


def with_dropout(params, x):
    return mlp(params, dropped(x, KEY))


def with_dropout_of_a_seed(params, x):
    return mlp(params, dropped(x, jax.random.key(3)))


def with_dropout_by_a_product(params, x):
    return mlp(params, x * jax.random.bernoulli(jax.random.key(3), 0.5, (1, 6)).astype(jnp.float32))


def with_dropout_in_a_scan(params, x):
    key = jax.random.PRNGKey(3)
    return lax.scan(lambda x, w: (dropped(x, key) @ w, None), x, params["layers"])[0] @ params["head"]


QUANTIZE = {  # a wrong call, and words of its error
    "no callable": ({"apply": 3}, "apply is of type int, expected a function: apply(params, *inputs)"),
    "a model in place of a function": ({"apply": PARAMS}, "apply is of type dict, expected a function"),
    "params that are no arrays": (
        {"params": changed(("first", "b"), "zeros")},
        "params['first']['b'] is of type str, expected an array: move other values into apply (equinox: "
        "eqx.partition(model, eqx.is_array))",
    ),
    "one array as batches": ({"batches": X}, "batches is one array, expected an iterable of batches: write [array]"),
    "a batch of lists": ({"batches": [X.tolist()]}, "is a pytree with an input for each number: write np."),
    "batches that are no iterable": ({"batches": 8}, "batches is of type int, expected an iterable of arrays or tup"),
    "no batches": ({"batches": []}, "batches is empty: calibration needs at least one batch"),
    "no batches from a generator": ({"batches": iter(())}, "batches is empty: calibration needs at least one batch"),
    "batches without elements": ({"batches": [X[:0]]}, ": calibration needs batches that are not empty"),
    "NaN in a batch": ({"batches": [X, with_one(X, np.nan)]}, "batch 1: input 0 is already NaN or infinite in the fl"),
    "infinity in a batch": ({"batches": [with_one(X, -np.inf), X]}, "batch 0: input 0 is already NaN or infinite"),
    "labels in batches": (
        {"batches": [(X, np.zeros(8, np.int32))]},
        "batch 0: apply cannot be traced with the inputs (float32[8, 6], int32[8]): TypeError: mlp() takes 2 "
        "positional arguments but 3 were given\nIf a batch is a tuple or list, each of its elements is an input of "
        "apply: leave labels and flags out, and set flags in apply, such as lambda params, x: "
        "apply(params, x, train=False)",
    ),
    "labels in a later batch": (
        {"batches": [X, [X, np.zeros(8, np.int32)]]},
        "batch 1: apply cannot be traced with the inputs (float32[8, 6], int32[8]): TypeError: mlp() takes 2",
    ),
    "inputs by keyword": (
        {"apply": by_keyword},
        "and 'image' is passed only by keyword: write lambda params, x: apply(params, image=x)",
    ),
    "an option by keyword": (
        {"apply": with_option},
        "and 'train' is passed only by keyword: write lambda params, x: apply(params, x, train=...)",
    ),
    "a function without params": (
        {"apply": with_own_params},
        "apply is called with params and the inputs, and takes only 'x'",
    ),
    "a module in place of a function": (
        {"apply": Bound(PARAMS)},
        "Bound is a module that holds its parameters: write a function that takes them, such as lambda params, x: "
        "module.apply(params, x) in flax, nnx.merge(graph, params)(x) in nnx, or jax.vmap(eqx.combine(params, rest))",
    ),
    "a module's method": (
        {"apply": Bound(PARAMS).__call__},
        "Bound is a module that holds its parameters: write a fun",
    ),
    "a function of C, whose arguments Python does not know": (
        {"apply": max},
        "batch 0: apply cannot be traced with the inputs (float32[8, 6]): TypeError: '>' not supported between",
    ),
    "a captured random key": (
        {"apply": with_dropout},
        "apply captures a random key: make the key an input of apply, or turn dropout off",
    ),
    "dropout with a seed": (
        {"apply": with_dropout_of_a_seed},
        "select_n drops elements at random with a key that is not an input, as Dropout in training mode does: each "
        "call would drop the same elements. Quantize apply in inference mode (flax: deterministic=True; equinox: "
        "eqx.nn.inference_mode; keras: training=False), or make the key an input of apply",
    ),
    "dropout by a product": ({"apply": with_dropout_by_a_product}, "mul drops elements at random with a key that is"),
    "dropout in a scan": (
        {"apply": with_dropout_in_a_scan, "params": LARGE},
        "select_n drops elements at random with a key that is not an input",
    ),
    "variables in place of arrays": (
        {"params": [Variable(PARAMS["first"]["w"])], "apply": lambda params, x: x @ params[0].value},
        "params[0] is of type Variable, expected an array: give the arrays, such as [variable.value for variable in",
    ),
    "words in a batch": ({"batches": [np.array(["a", "b"])]}, "batch 0 is not an array of numbers or a pytree"),
    "a batch that is a dict": (
        {"batches": [{"image": X, "label": np.zeros(8, np.int32)}]},
        "batch 0: apply cannot be traced with the inputs (dict(float32[8, 6], int32[8])): TypeError: ",
    ),
    "a batch that is a dict, in words": (
        {"batches": [{"image": X, "label": np.zeros(8, np.int32)}]},
        "A batch that is a dict is one input of apply: write lambda params, batch: apply(params, batch['image'])",
    ),
    "a batch that is a dict, of a function by keyword": (
        {"apply": by_keyword, "batches": [{"image": X}]},
        "A batch that is a dict is one input of apply: write lambda params, batch: apply(params, image=batch['image'])",
    ),
    "a width that differs from that of the first batch": (
        {"batches": [X, X[:, :5]]},
        "got (5,) and (6,).\nThe inputs were (float32[8, 6]) before",
    ),
    "a batch of another width": (
        {"batches": [X, X[:, :5]]},
        "batch 1: apply cannot be traced with the inputs (float32[8, 5]): TypeError: dot_general requires contracting",
    ),
    "values that overflow": (
        {"batches": [X, X, X * np.float32(1e38)], "params": changed(("first", "w"), PARAMS["first"]["w"] * 100)},
        "batch 2: the result of node 'first' (dot_general + add) is already NaN or infinite in the float function; "
        "look for NaN and infinity in the batch and in params, or leave the batch out",
    ),
    "values that overflow in a scan": (
        {"apply": scanned_layers, "params": LARGE},
        "batch 0: the result of node 'scan_1' (scan) is already NaN or infinite in the float function",
    ),
    "values that overflow in a scan alone": (
        {"apply": scanned_layers, "params": LARGE, "rules": [Rule("head", keep="float")]},
        "batch 0: an input of the body of 'scan_1' is already NaN or infinite in the float function",
    ),
    "NaN in weights": (
        {"params": changed(("last", "w"), with_one(PARAMS["last"]["w"], np.nan))},
        "the weights of 'last' hold NaN or infinity: check params",
    ),
    "a rule that matches nothing": (
        {"rules": [Rule("head", keep="float")]},
        "Rule('head') matches no layer; the layers are 'first', 'last'",
    ),
    "one rule": ({"rules": Rule("head", keep="float")}, "rules is a Rule, expected a sequence of rules: write (rule,)"),
    "no rules": ({"rules": ["head"]}, "rules has 'head', expected Rule: write jaxdml.ptq.Rule(pattern, keep='float')"),
    "activations of 16 bits": ({"activations": jnp.uint16}, "uint8 or int8; for 16 bits: Rule('', activ"),
    "activations of no type": ({"activations": "eight"}, "activations is 'eight', expected uint8 or int8"),
    "an unknown observer": (
        {"observer": "max"},
        "observer is 'max', expected one of 'minmax', 'moving_average', 'percentile', 'mse', 'auto', or an Observer",
    ),
    "an observer's class": (
        {"observer": dml.ptq.MinMax},
        "observer is the class MinMax, expected an observer: write MinMax()",
    ),
    "unknown products": ({"products": "row"}, "products is 'row', expected 'mixed' or 'static' or 'dynamic'"),
    "an unknown rounding": ({"rounding": "up"}, "rounding is 'up', expected 'nearest' or 'gptq'"),
    "4 bits without blocks": (
        {"rules": [Rule("last", weights=jnp.int4)]},
        "Rule('last'): weights is int4, which needs blocks: write block_size=32",
    ),
    "nothing to quantize": (
        {"apply": without_layers},
        "there is nothing to quantize: apply has no convolution or matrix product that can run on integers",
    ),
    "all kept in floats": ({"rules": [Rule("", keep="float")]}, "  last: kept in floats by Rule('')"),
    "a loop alone": (
        {"apply": while_alone, "params": {"w": PARAMS["first"]["w"][:, :6]}},
        "  while_1: its body runs in floats: write lax.fori_loop with a number of steps, or quantize a function of one",
    ),
    "state that is returned": (
        {"apply": of_params},
        "output[1] (mul_1) does not depend on the inputs: apply returns state or parameters; write a function that "
        "returns only the results, such as lambda params, x: apply(params, x)[0]",
    ),
}


@pytest.mark.parametrize("name", QUANTIZE)
def test_quantize(name):
    options, words = QUANTIZE[name]
    with pytest.raises(PtqError, match=re.escape(words)) as caught:
        quantize(**options)
    assert not re.search(r"jaxdml\._|<[a-z]|0x", str(caught.value))  # no private names


RULES = {
    "no regular expression": ({"pattern": "head("}, "Rule('head('): the pattern is not a regular expression: mis"),
    "no text": ({"pattern": 3}, "Rule(3): the pattern is not a regular expression"),
    "keeps integers": ({"pattern": "head", "keep": "int8"}, "Rule.keep is 'int8', expected 'float'"),
    "products": ({"pattern": "a", "products": "row"}, "Rule.products is 'row', expected 'static' or 'dynamic'"),
    "changes nothing": (
        {"pattern": "a"},
        "Rule('a') changes nothing: set keep, products, observer, weights, block_size or activations",
    ),
    "weights": ({"pattern": "a", "weights": jnp.int2}, "Rule.weights is int2, expected "),
    "blocks": (
        {"pattern": "a", "block_size": 20},
        "Rule.block_size is 20, expected None or one of 16, 32, 64, 128, 256",
    ),
    "integers in floats": (
        {"pattern": "a", "keep": "float", "activations": jnp.uint16},
        "Rule('a') has keep='float', but a layer in floats reads no integers: leave out keep, or the options for",
    ),
    "blocks of dynamic products": (
        {"pattern": "a", "products": "dynamic", "block_size": 32},
        "Rule('a') has products='dynamic', but products with weights in blocks read floats: leave out products, or",
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_rules(name):
    options, words = RULES[name]
    with pytest.raises(PtqError, match=re.escape(words)):
        Rule(**options)


def test_a_rule_with_an_unknown_observer_is_an_error():
    with pytest.raises(PtqError, match="observer is 'max', expected one of"):
        quantize(rules=[Rule("first", observer="max")])


# Remedies ------------------------------------------------------------------------------------------------------------


def test_remedies_of_quantize():
    assert is_right(quantize(batches=[X]), mlp, PARAMS, X)
    assert is_right(quantize(rules=(Rule("last", keep="float"),)), mlp, PARAMS, X)
    assert is_right(quantize(observer=dml.ptq.MinMax()), mlp, PARAMS, X)
    alone = lambda params, x: of_params(params, x)[0]  # noqa: E731
    assert is_right(quantize(alone), mlp, PARAMS, X)


def test_a_flag_is_set_in_apply():
    apply = lambda params, x, train: mlp(params, -x if train else x)  # noqa: E731
    with pytest.raises(PtqError, match=r"TracerBoolConversionError(.|\n)*such as lambda params, x: apply") as caught:
        quantize(apply, batches=[(X, False)])
    assert is_right(quantize(eval(str(caught.value).rpartition("such as ")[2], {"apply": apply})), mlp, PARAMS, X)


def test_params_without_what_is_no_array():
    class Dense(eqx.Module):
        w: jax.Array
        activation: object

    layer = Dense(jnp.asarray(PARAMS["first"]["w"]), jnp.tanh)
    with pytest.raises(PtqError, match=r"params.activation is of type .*eqx.partition\(model, eqx.is_array\)"):
        quantize(lambda layer, x: layer.activation(x @ layer.w), layer)
    arrays, rest = eqx.partition(layer, eqx.is_array)

    def apply(arrays, x):
        layer = eqx.combine(arrays, rest)
        return layer.activation(x @ layer.w)

    assert is_right(quantize(apply, arrays), apply, arrays, X)


@pytest.mark.rare
def test_dropout_by_a_key_that_is_an_input():
    apply = lambda params, x, key: mlp(params, dropped(x, key))  # noqa: E731
    for key in (KEY, jax.random.PRNGKey(3)):
        model = quantize(apply, batches=[(X, key)])
        assert decibels(model.apply(model.params, X, key), apply(PARAMS, X, key)) > 25


@pytest.mark.rare
def test_numbers_drawn_in_apply_are_no_dropout():
    apply = lambda params, x: mlp(params, x + jax.random.normal(jax.random.key(3), x.shape))  # noqa: E731
    assert is_right(quantize(apply), apply, PARAMS, X)


def test_a_module_that_is_called_by_a_function():
    assert is_right(quantize(lambda params, x: Bound(params)(x)), mlp, PARAMS, X)


@pytest.mark.rare
def test_a_batch_that_is_a_dict():
    for apply in (lambda params, batch: mlp(params, batch["image"]), lambda params, batch: by_keyword(params, **batch)):
        model = quantize(apply, batches=[{"image": X}])
        assert decibels(model.apply(model.params, {"image": X}), mlp(PARAMS, X)) > 25


def test_quantize_inside_of_jit_is_an_error():
    match = "quantize computes with the values of params and batches: call it outside of jax.jit"
    with pytest.raises(PtqError, match=match):
        jax.jit(lambda x: quantize(batches=[x]).apply)(X)


@pytest.mark.parametrize("wrong", rest_rarely(["float32", "s", np.float32, np.array(["a"], object)], 1), ids=repr)
def test_inputs_that_are_not_numbers(wrong):
    with pytest.raises(PtqError, match="batch 1 is not an array of numbers or a pytree"):
        quantize(batches=[X, wrong])
    model = quantize()
    with pytest.raises(PtqError, match="input 0 is not an array of numbers or a pytree"):
        model.apply(model.params, wrong)


def test_a_list_of_numbers_may_be_an_input():
    model = dml.ptq.quantize(lambda w, x, pair: x @ w * pair[0] + pair[1], np.eye(6, 4, dtype=np.float32),
                         [(X[:, :6], [2.0, 0.5])], progress=False)  # fmt: skip
    assert model.apply(model.params, X[:, :6], [2.0, 0.5]).shape == (len(X), 4)


def test_errors_show_the_start_of_many_inputs():
    with pytest.raises(PtqError) as caught:
        dml.ptq.quantize(lambda w, x: x @ w, np.eye(6, dtype=np.float32), [np.ones((90, 90)).tolist()], progress=False)
    assert len(str(caught.value)) < 1500
