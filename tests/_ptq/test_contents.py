"""Values computed from params and sizes: along which axes elements are equal, and whether sizes change the elements."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.ad_checkpoint import checkpoint_name

import jaxdml as dml
from _ptq.quantized import decibels, in_floats
from helpers.compare import assert_same_bits
from jaxdml.ptq._trace.contents import contents_of
from jaxdml.ptq._trace.equations import program_of
from jaxdml.ptq._trace.fixed import FixedValues

W = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)


def traced(make, count):
    """The program of make(W, count), and the name of its result."""
    program = program_of(lambda w, x: make(w, x.shape[0]), W, (jax.ShapeDtypeStruct((count,), np.float32),))
    return program, program.outputs[0]


def text_of(program, result):
    return contents_of(program, FixedValues(program))[result]


def repeated(w, count):
    return jnp.broadcast_to(w, (count, *w.shape))


EQUAL = {  # arrays of equal matrices, and arrays computed from such arrays
    "softmax": lambda t: jax.nn.softmax(t),
    "name": lambda t: checkpoint_name(t, "t"),
    "product with a matrix": lambda t: t @ W,
    "product of matrices": lambda t: jnp.matmul(t, t.swapaxes(1, 2)),
    "columns": lambda t: jnp.matmul(t, t[0, :, 0]),
    "einsum": lambda t: jnp.einsum("bij,bkj->bik", t, t * 2),
    "heads": lambda t: t.reshape(len(t), 6, 2, 3).transpose(0, 2, 1, 3),
    "slice": lambda t: t[:, 1:5:2],
    "split": lambda t: jnp.split(t, 3, -1)[1],
    "rev": lambda t: t[:, ::-1],
    "pad": lambda t: jnp.pad(t, ((0, 0), (1, 0), (0, 2))),
    "concatenate": lambda t: jnp.concatenate([t, t[:, :2]], 1),
    "tile": lambda t: jnp.tile(t, (1, 2, 1)),
    "sort": lambda t: jnp.sort(t, 1),
    "argmax": lambda t: jnp.argmax(t, 1),
    "cumsum": lambda t: jnp.cumsum(t, 1),
    "prod": lambda t: t.prod(2),
    "any": lambda t: (t > 1).any(1),
    "mean and deviation": lambda t: (t - t.mean(-1, keepdims=True)) / t.std(-1, keepdims=True),
    "mask": lambda t: jnp.where(jnp.tril(jnp.ones((6, 6), bool)), t, -1e9),
    "gather": lambda t: jnp.take(W, jnp.broadcast_to(jnp.arange(4), (len(t), 4)), axis=0),
    "outer sum": lambda t: t[:, :, None, :] + t[:, None, :, :],
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", EQUAL)
def test_equal_elements_along_the_batch_axis_are_known_for_any_batch(name):
    def make(w, count):
        return EQUAL[name](repeated(w, count))

    program, result = traced(make, 3)
    varying, value = FixedValues(program).varying(result), np.asarray(make(W, 3))
    for axis in range(value.ndim):
        is_equal = (value == value.take([0], axis)).all()
        assert is_equal or axis in varying
    assert 0 not in varying
    texts = [text_of(*traced(make, count)) for count in (1, 2, 3)]
    assert texts == texts[:1] * 3


VARYING = {  # arrays that vary along the axis 0, though their inputs do not
    "concatenate": lambda t: jnp.concatenate([t, t + 1]),
    "pad": lambda t: jnp.pad(t, ((1, 0), (0, 0), (0, 0))),
    "cumsum": lambda t: jnp.cumsum(t, 0),
    "iota": lambda t: lax.broadcasted_iota(np.float32, t.shape, 0),
    "gather": lambda t: jnp.take(W, jnp.arange(len(t)), axis=0),
    "gather of each": lambda t: jnp.take_along_axis(t, jnp.arange(len(t))[:, None, None], 1),
    "gather of each matrix": lambda t: jnp.take_along_axis(t[0], jnp.zeros((6, 1), int), 1, mode="clip"),
    "dynamic": lambda t: t.at[0].set(0),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", VARYING)
def test_what_varies_along_the_batch_axis_is_known(name):
    program, result = traced(lambda w, count: VARYING[name](repeated(w, count)), 3)
    assert 0 in FixedValues(program).varying(result)


def turned(t, count):
    """A row in blocks: down the columns, along the rows, or both."""
    return jnp.broadcast_to(t[0, 0].reshape(count, 6 // count), (6, 6))


def copies(t, count):
    return jnp.concatenate([jnp.broadcast_to(t[0, 0] + n, (size, 6)) for n, size in enumerate((count, 8 - count))])


def shifted(t, count):
    """A matrix between matrices of zeros, of which one is left."""
    return lax.pad(t[:1], np.float32(0), [(count, -count, 0), (0, 0, 0), (0, 0, 0)])


def filled(t, count):
    matrices = jnp.broadcast_to(t[0], (count, 6, 6))
    return matrices.at[np.uint32([0, 1, 2])].get(mode="fill", fill_value=0)


def cut(t, sizes):
    numbers = lax.GatherDimensionNumbers((0, 1), (), (0, 1))
    return lax.gather(t[0], np.int32([0, 0]), numbers, sizes, mode="clip").reshape(6)


DIFFERENT = {  # functions of an array whose axis 0 has equal elements; the functions of a pair have different results
    "axis of a sum": (lambda t: t + t[:, :, :1], lambda t: t + t[:, :, 0][:, None]),
    "transpose": (lambda t: t, lambda t: t.swapaxes(1, 2)),
    "contraction": (lambda t: t @ W, lambda t: t @ W.T),
    "contracted axis": (lambda t: t @ W, lambda t: jnp.einsum("bji,jk->bik", t, W)),
    "batch axis": (
        lambda t: jnp.einsum("bij,bij->bi", t, t + 1),
        lambda t: jnp.einsum("bij,bji->bi", t, t + 1),
    ),
    "batch axis of one operand": (
        lambda t: jnp.einsum("bij,bjk->bik", t, t.at[0].set(0)),
        lambda t: jnp.einsum("bij,bjk->bik", t, t),
    ),
    "start": (lambda t: t[:, :4], lambda t: t[:, 2:]),
    "stride": (lambda t: t[:, :5:2], lambda t: t[:, :3]),
    "part": (lambda t: jnp.split(t, 2, 1)[0], lambda t: jnp.split(t, 2, 1)[1]),
    "axis of parts": (lambda t: jnp.split(t, [1], 1)[0][:, 0], lambda t: jnp.split(t, [1], 2)[0][..., 0]),
    "direction": (lambda t: t[:, ::-1], lambda t: t[:, :, ::-1]),
    "padding": (lambda t: jnp.pad(t, ((0, 0), (1, 0), (0, 0))), lambda t: jnp.pad(t, ((0, 0), (0, 1), (0, 0)))),
    "copies": (lambda t: copies(t, 3), lambda t: copies(t, 5)),
    "padding of one": (lambda t: shifted(t, 0), lambda t: shifted(t, 1)),
    "merged axes": (
        lambda t: jnp.broadcast_to(t[0, 0], (6, 6)).reshape(36),
        lambda t: jnp.broadcast_to(t[0, 0][:, None], (6, 6)).reshape(36),
    ),
    "scattered": (lambda t: turned(t, 6).at[0].set(0), lambda t: turned(t, 1).at[0].set(0)),
    "taken": (
        lambda t: jnp.take(turned(t, 6), np.uint32([0, 2]), 0, mode="clip"),
        lambda t: jnp.take(turned(t, 1), np.uint32([0, 2]), 0, mode="clip"),
    ),
    "filled": (lambda t: filled(t, 3), lambda t: filled(t, 2)),
    "slices": (lambda t: cut(t, (1, 6)), lambda t: cut(t, (6, 1))),
    "order": (lambda t: jnp.concatenate([t, t + 1], 1), lambda t: jnp.concatenate([t + 1, t], 1)),
    "tile": (lambda t: jnp.tile(t, (1, 2, 1)), lambda t: jnp.repeat(t, 2, 1)),
    "sorted axis": (lambda t: jnp.sort(t, 1), lambda t: jnp.sort(t, 2)),
    "reduced axis": (lambda t: t.max(1), lambda t: t.max(2)),
    "reduced size": (lambda t: t.sum(0), lambda t: t[:2].sum(0)),
    "accumulated axis": (lambda t: jnp.cumsum(t, 1), lambda t: jnp.cumsum(t, 2)),
    "accumulated from": (lambda t: jnp.cumsum(t, 1), lambda t: lax.cumsum(t, 1, reverse=True)),
    "size": (lambda t: jnp.cumsum(t, 0), lambda t: jnp.cumsum(t[:2], 0)),
    "reshape": (lambda t: t.reshape(-1, 9, 4), lambda t: t.reshape(-1, 4, 9)),
    "indices": (lambda t: jnp.take(t, np.array([0, 1]), 1), lambda t: jnp.take(t, np.array([1, 0]), 1)),
    "cast": (lambda t: t.astype(np.int8), lambda t: t.astype(np.int16)),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", DIFFERENT)
def test_different_elements_have_different_texts(name):
    programs = [traced(lambda w, count, f=f: f(repeated(w, count)), 3) for f in DIFFERENT[name]]
    values = [np.asarray(f(repeated(W, 3))) for f in DIFFERENT[name]]
    assert values[0].dtype != values[1].dtype or not np.array_equal(*values)
    one, other = (text_of(*program) for program in programs)
    assert one != other


def attended(p, queries, x):
    return jax.nn.softmax(queries @ p["q"] @ jnp.swapaxes(x @ p["k"], 1, 2)) @ (x @ p["v"])


def decoder(p, queries, x):
    """Learned queries attend to each other, then to the data, as those of a detector."""
    return attended(p["cross"], attended(p["own"], queries, queries), x)


def normal(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def parts():
    return {name: {part: normal(8, 8) / 4 for part in "qkv"} for name in ("own", "cross")} | {"queries": normal(5, 8)}


def squashed(x):
    square = (x * x).sum(-1, keepdims=True)
    return x * square / (1 + square) / jnp.sqrt(square + 1e-6)


def capsules(p, x):
    """Routing by agreement; each input has its copy of the matrices."""
    matrices = jnp.tile(p["queries"].reshape(1, 5, 2, 4), (x.shape[0], 1, 1, 1))  # [N, 5, 2, 4]
    predicted, scores = jnp.einsum("niof,nif->nio", matrices, x[:, :5, :4]), jnp.zeros((x.shape[0], 5))
    for _ in range(2):
        found = squashed(jnp.einsum("ni,nio->no", jax.nn.softmax(scores), predicted))
        scores += jnp.einsum("nio,no->ni", predicted, found)
    return found


LEARNED = {  # functions with matrices that are computed from params, and that have a copy for each input
    "queries": lambda p, x: decoder(p, jnp.broadcast_to(p["queries"], (x.shape[0], 5, 8)), x),
    "tiled": lambda p, x: decoder(p, jnp.tile(p["queries"][None], (x.shape[0], 1, 1)), x),
    "joined": lambda p, x: decoder(
        p, jnp.concatenate([jnp.broadcast_to(each, (x.shape[0], 5, 8)) for each in (p["queries"], -p["queries"])], 1), x
    ),
    "embedded": lambda p, x: decoder(p, p["queries"][jnp.broadcast_to(jnp.arange(4), (x.shape[0], 4))], x),
    "capsules": capsules,
}


@pytest.mark.rare
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", LEARNED)
def test_matrices_with_a_copy_for_each_input_are_held_once(name):
    x, p, apply = normal(4, 6, 8), parts(), LEARNED[name]
    model = dml.ptq.quantize(apply, p, [x], progress=False)
    expected = model.apply(model.params, x)
    assert decibels(expected, in_floats(apply, p, x)) > 20
    for size in (1, 3):
        assert_same_bits(model.apply(model.params, x[:size]), expected[:size])
    if name != "tiled":  # jnp.tile takes no symbolic sizes
        (size,) = export.symbolic_shape("batch")
        shape = jax.ShapeDtypeStruct((size, 6, 8), np.float32)
        assert jax.eval_shape(model.apply, model.params, shape).shape == (size, *expected.shape[1:])


@pytest.mark.rare
def test_other_weights_computed_for_a_batch_have_a_remedy():
    def apply(p, x):
        queries = jnp.broadcast_to(p["queries"], (x.shape[0], *p["queries"].shape))
        return decoder(p, queries.at[:, 0].set(0), x)

    x, p = normal(4, 6, 8), parts()
    model = dml.ptq.quantize(apply, p, [x], progress=False)
    with pytest.raises(
        dml.ptq.PtqError, match=r"under jax\.vmap, if only the batch size differs: lambda params, x: jax"
    ):
        model.apply(model.params, x[:2])
    remedy = lambda params, x: jax.vmap(lambda one: apply(params, one[None])[0])(x)  # noqa: E731
    model = dml.ptq.quantize(remedy, p, [x], progress=False)
    for batch in (x, x[:2], x[:1]):
        assert decibels(model.apply(model.params, batch), apply(p, batch)) > 30


def by_batch(p, x):
    return turned(p["w"], len(x))


TURNED = {  # the batch size decides whether the elements of a matrix lie along its rows or its columns
    "product": lambda p, x: x @ by_batch(p, x),
    "bias": lambda p, x: jnp.einsum("bi,ijk->bjk", x, p["t"]) + by_batch(p, x)[None],
    "scale": lambda p, x: jnp.einsum("bi,ijk->bjk", x, p["t"]) * by_batch(p, x)[None],
    "outputs": lambda p, x: jnp.einsum(
        "bi,ijk->bjk", x, jnp.broadcast_to(jnp.expand_dims(p["t"][0], 1 + len(x) % 2), (6, 6, 6))
    ),
    "scan": lambda p, x: lax.scan(lambda h, c: (h @ c @ by_batch(p, x), None), x, p["t"][:2])[0],
    "around a scan": lambda p, x: scanned(p, x, by_batch(p, x)),
}


def scanned(p, x, w):
    return lax.scan(lambda h, c: (h @ c @ w, None), x, p["t"][:2])[0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TURNED)
def test_axes_of_values_may_not_depend_on_sizes(name):
    p = {"t": normal(6, 6, 6), "w": W[None]}
    model = dml.ptq.quantize(TURNED[name], p, [normal(1, 6)], progress=False)
    with pytest.raises(dml.ptq.PtqError, match="depend on the sizes of the inputs"):
        model.apply(model.params, normal(6, 6))


def looped(step, h, *, count=3):
    return lax.scan(lambda h, _: (step(h), None), h, None, length=count)[0]


def total(count):
    return jnp.arange(count, dtype=np.float32).sum()


def times(count):
    return lambda v: np.float32(count) * np.asarray(v)


def doubled(v):
    return 2 * np.asarray(v)


def called(f, v):
    return jax.pure_callback(f, jax.ShapeDtypeStruct(v.shape, v.dtype), v)


def while_below(step, h):
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, step(c[1])), (0, h))[1]


def reciprocal(h, count):
    return lax.custom_linear_solve(lambda y: count * y, h, lambda _, y: y / count)


IN_BODIES = {  # functions of params and the batch size, which is inside of a loop, a branch or a callback
    "iota in a scan": lambda p, count: looped(lambda h: h + total(count), p["v"]),
    "broadcast in a scan": lambda p, count: looped(lambda h: h + jnp.broadcast_to(h[:1], (count,)).sum(), p["v"]),
    "slice in a scan": lambda p, count: looped(lambda h: jnp.tanh(h) + p["w"][:count].sum(0), p["v"]),
    "dynamic slice in a scan": lambda p, count: looped(
        lambda h: h + lax.dynamic_slice(p["w"], (h[0].astype(int), 0), (count, 6)).sum(0), p["v"]
    ),
    "reshape in a scan": lambda p, count: looped(
        lambda h: h + jnp.cumsum(p["w"].reshape(count, -1)[:, :6], 0)[0], p["v"]
    ),
    "iota in a while loop": lambda p, count: while_below(lambda h: h + total(count), p["v"]),
    "iota in a branch": lambda p, count: lax.cond(p["v"][0] > -9, lambda h: h + total(count), lambda h: h, p["v"]),
    "iota in a map": lambda p, count: lax.map(lambda row: row + total(count), p["w"][:1])[0],
    "literal of a jitted function": lambda p, count: looped(jax.jit(lambda h: h * float(count)), p["v"]),
    "array of a jitted function": lambda p, count: looped(jax.jit(lambda h: h + np.full(6, count, np.float32)), p["v"]),
    "cast in a scan": lambda p, count: looped(
        lambda h: (100 * h).astype(np.int8 if count == 3 else np.int16).astype(np.float32), p["v"]
    ),
    "iota of a linear function": lambda p, count: reciprocal(p["v"], 1 + total(count)),
    "callback": lambda p, count: called(times(count), p["v"]),
    "callback in a scan": lambda p, count: looped(lambda h: called(times(count), h), p["v"]),
}
READERS = {  # how integers hold a value: the product has the batch's rows
    "bias": lambda p, x, value: x @ p["w"] + value[None],
    "scale": lambda p, x, value: x @ p["w"] * value[None],
    "weights": lambda p, x, value: x @ (p["w"] * value[None]),
}


def parts_of_bodies():
    return {"w": W / 4, "v": 1 + normal(6) ** 2}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", IN_BODIES)
def test_values_that_integers_hold_may_not_depend_on_sizes_in_bodies(name, reader):
    def apply(p, x):
        return READERS[reader](p, x, IN_BODIES[name](p, len(x)))

    p, x = parts_of_bodies(), normal(6, 6)
    model = dml.ptq.quantize(apply, p, [x[:3]], progress=False)
    assert decibels(model.apply(model.params, x[:3]), in_floats(apply, p, x[:3])) > 25
    with pytest.raises(dml.ptq.PtqError, match="depend on the sizes of the inputs"):
        model.apply(model.params, x)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", IN_BODIES)
def test_floats_may_depend_on_sizes_in_bodies(name):
    def apply(p, x):
        return jnp.tanh(x @ p["w"]) + jnp.sin(IN_BODIES[name](p, len(x))).sum()

    p, x = parts_of_bodies(), normal(6, 6)
    model = dml.ptq.quantize(apply, p, [x[:3]], progress=False)
    for batch in (x, x[:2], x[:1]):
        assert decibels(model.apply(model.params, batch), in_floats(apply, p, batch)) > 25


KEY = jax.random.key(3)
WITHOUT_SIZES = {  # bodies that hold functions, but no sizes
    "activation": lambda h: jax.nn.relu(h) + jax.nn.logsumexp(h),
    "reduction": lambda h: lax.reduce(h, np.float32(0), lambda a, b: a + 2 * b, (0,)) / 9 + h,
    "random": lambda h: h + jax.random.normal(jax.random.key(3), h.shape),
    "key of a jitted function": jax.jit(lambda h: h + jax.random.normal(KEY, h.shape)),
    "search": lambda h: jnp.searchsorted(jnp.sort(h), h).astype(np.float32),
    "checkpoint": jax.checkpoint(jnp.tanh),
    "callback": lambda h: called(doubled, h),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WITHOUT_SIZES)
def test_functions_in_bodies_do_not_depend_on_sizes(name):
    def apply(p, x):
        return x @ p["w"] + looped(WITHOUT_SIZES[name], p["v"])[None]

    p, x = parts_of_bodies(), normal(6, 6)
    model = dml.ptq.quantize(apply, p, [x[:3]], progress=False)
    for batch in (x, x[:1]):
        assert decibels(model.apply(model.params, batch), in_floats(apply, p, batch)) > 25
