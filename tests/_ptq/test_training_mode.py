"""BatchNorm in training mode raises an error in each framework; normalization of one image does not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax import lax

import jaxdml as dml
from _ptq import frameworks as ptq_frameworks
from _ptq.quantized import decibels, is_right, network
from jaxdml.ptq import PtqError

IMAGES = ptq_frameworks.make_inputs(16, seed=2)[0]


def batch_statistics(axes):
    def apply(params, x):
        y = lax.conv_general_dilated(x, params["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        mean, var = (functools.partial(each, axis=axes, keepdims=True) for each in (jnp.mean, jnp.var))
        y = (y - mean(y)) * lax.rsqrt(var(y) + 1e-5)
        return jnp.mean(jax.nn.relu(y), (1, 2)) @ params["head"]

    random = np.random.default_rng(0)
    params = {"w": random.standard_normal((3, 3, 3, 8), np.float32), "head": random.standard_normal((8, 4), np.float32)}
    return apply, params


@pytest.mark.parametrize("axes", [(0, 1, 2), (0,)])
def test_batch_norm_in_training_mode_written_by_hand(axes):
    with pytest.raises(PtqError, match=r"takes the mean over the first axis of an array of shape .*as BatchNorm in tr"):
        dml.ptq.quantize(*batch_statistics(axes), [IMAGES], progress=False)


def test_batch_norm_of_rows_and_deviations_of_an_ensemble():
    """A batch may be flattened before its statistics; the members of an ensemble are no batch."""
    w, x = np.ones((5, 8, 3), np.float32), np.random.default_rng(0).standard_normal((8, 4, 8), np.float32)

    def of_rows(w, x):
        y = (x @ w[0]).reshape(-1, 3)
        return y - y.mean(0)[None]

    with pytest.raises(PtqError, match=r"first axis of an array of shape \[32, 3\]"):
        dml.ptq.quantize(of_rows, w, [x], progress=False)
    assert is_right(dml.ptq.quantize(of_members, w, [x], progress=False), of_members, w, x)


def of_members(w, x):
    y = jax.vmap(lambda each: x @ each)(w * np.arange(1, 6, dtype=np.float32)[:, None, None])
    return y - y.mean(0)[None]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("axes", [(1, 2), (3,), (1, 2, 3)])
def test_normalization_of_each_image_is_no_training_mode(axes):
    apply, params = batch_statistics(axes)
    assert is_right(dml.ptq.quantize(apply, params, [IMAGES], progress=False), apply, params, IMAGES, 20)


def test_batch_norm_of_linen_in_training_mode():
    module = ptq_frameworks.LinenNetwork()
    variables = network("linen").params

    def train(variables, x):
        return module.apply(variables, x, train=True, mutable=["batch_stats"])

    for apply in (train, lambda variables, x: train(variables, x)[0]):
        with pytest.raises(PtqError, match=r"as BatchNorm in training mode does.*\(flax: use_running_average=True; eq"):
            dml.ptq.quantize(apply, variables, [IMAGES], progress=False)
    for params in (variables["params"], {"params": variables["params"]}):
        with pytest.raises(PtqError, match=r"\nparams must have all collections .*'batch_stats': \.\.\.}; flax's init"):
            dml.ptq.quantize(module.apply, params, [IMAGES], progress=False)
    with pytest.raises(PtqError, match=r"\napply updates variables\. If BatchNorm ") as caught:
        dml.ptq.quantize(functools.partial(module.apply, train=True), variables, [IMAGES], progress=False)
    apply = suggested(caught.value, "inference mode, such as ", module)
    model = dml.ptq.quantize(apply, variables, [IMAGES], progress=False)
    assert is_right(model, module.apply, variables, IMAGES, 20)


def test_params_alone_of_a_module_without_submodules():
    module, x = nn.Dense(4), np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    variables = module.init(jax.random.key(0), x)
    with pytest.raises(PtqError, match=r"\nparams must have all collections .*'batch_stats': \.\.\.}; flax's init"):
        dml.ptq.quantize(module.apply, variables["params"], [x], progress=False)
    params = {"params": variables["params"]}
    assert is_right(dml.ptq.quantize(module.apply, params, [x], progress=False), module.apply, variables, x)


@pytest.mark.rare
def test_a_cache_of_linen_is_an_input():
    module = nn.MultiHeadDotProductAttention(num_heads=2, decode=True)
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32)
    variables = module.init(jax.random.key(0), x, x)
    step = x[:, :1]
    with pytest.raises(PtqError, match=r"\nA cache must be an input, such as ") as caught:
        dml.ptq.quantize(lambda variables, x: module.apply(variables, x, x), variables, [step], progress=False)
    text = str(caught.value).replace("}, x, mutable", "}, x, x, mutable")  # attention takes queries, and keys
    apply = suggested(text, "an input, such as ", module)
    model = dml.ptq.quantize(apply, variables["params"], [(variables["cache"], step)], progress=False)
    assert "6 of 6" in str(model)
    found, cache = model.apply(model.params, variables["cache"], step)
    expected, _ = apply(variables["params"], variables["cache"], step)
    assert decibels(found, expected) > 20
    assert cache["cache"]["cache_index"] == 1


def suggested(error, before, module):
    """The function that an error suggests after the words `before`."""
    return eval(str(error).partition(before)[2].partition("\n")[0], {"module": module})


@pytest.mark.rare
def test_batch_norm_of_nnx_in_training_mode():
    apply, state, _ = network("nnx")
    with jax.numpy_dtype_promotion("standard"):
        module = nnx.eval_shape(lambda: ptq_frameworks.NnxNetwork(nnx.Rngs(0)))
    module.train()
    graph = nnx.split(module)[0]

    def train(state, x):
        return nnx.merge(graph, state)(x)

    with pytest.raises(PtqError, match="as BatchNorm in training mode does"):
        dml.ptq.quantize(train, state, [IMAGES], progress=False)
    assert is_right(dml.ptq.quantize(apply, state, [IMAGES], progress=False), apply, state, IMAGES, 20)


@pytest.mark.rare
def test_random_keys_of_nnx_are_an_input():
    net = nnx.Sequential(nnx.Linear(8, 8, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1)))
    net.eval()
    x = np.random.default_rng(0).standard_normal((4, 8), np.float32)
    graph, state = nnx.split(net)
    with pytest.raises(
        PtqError, match=r"write graph, params, rest = nnx\.split\(module, nnx\.Not\(nnx.*, and pass rest as"
    ):
        dml.ptq.quantize(lambda state, x: nnx.merge(graph, state)(x), state, [x], progress=False)
    graph, params, rest = nnx.split(net, nnx.Not(nnx.RngState), ...)
    apply = lambda params, x, rest: nnx.merge(graph, params, rest)(x)  # noqa: E731
    model = dml.ptq.quantize(apply, params, [(x, rest)], progress=False)
    assert decibels(model.apply(model.params, x, rest), apply(params, x, rest)) > 30
