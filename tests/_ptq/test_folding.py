"""Affine operations after a contraction are folded into its weights: random chains, and the function of each."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxdml._graph.evaluate import evaluate
from jaxdml.ptq._build.conversions import build
from jaxdml.ptq._trace.equations import program_of
from jaxdml.ptq._trace.scans import bound

BATCHES, CHAINS = 20, 20
CONTRACTIONS = ("conv", "dot")
STARTS = ("nchw", "nhwc", "depthwise", "dense", "swapped", "two_axes")
SIZES = {"N": 2, "I": 3, "O": 4, "H": 5, "W": 6, "P": 7, "Q": 2}  # batch, inputs, outputs, space, further axes


class Chain:
    """A random contraction, followed by equations that are affine in its result, and by moves of axes.

    `run(params, x)` computes the chain; `steps` describes it.
    """

    def __init__(self, seed):
        self.random = np.random.default_rng([14, seed])
        self.params, self.steps = {}, []
        self.start = getattr(self, STARTS[seed % len(STARTS)])  # so that each batch has them all
        self.shape = self.start()  # letters of the result's axes; "1" for one element
        self.x = jnp.asarray(self.random.standard_normal([SIZES[letter] for letter in self.of_x]), jnp.float32)
        self.axes, length = list(self.shape), self.random.integers(1, 8)
        while len([step for step in self.steps if step[0] not in ("transpose", "expand", "squeeze")]) < length:
            name = self.random.choice(["affine"] * 6 + ["neg", "transpose", "expand", "squeeze"])
            getattr(self, f"add_{name}")()

    def param(self, *shape, least=0.5, most=2.0):
        """Positive or negative numbers, none of which is small."""
        name = f"p{len(self.params)}"
        sign = self.random.choice([-1.0, 1.0], shape) if least > 0 else 1.0
        self.params[name] = jnp.asarray(sign * self.random.uniform(least, most, shape), jnp.float32)
        return name

    # Contractions ------------------------------------------------------------------------------------------------

    def nchw(self):
        self.of_x, w = "NIHW", self.param(SIZES["O"], SIZES["I"], 3, 2)
        self.contract = lambda p, x: lax.conv_general_dilated(x, p[w], (1, 2), "SAME")
        return ("N", "O", "h", "w")

    def nhwc(self):
        self.of_x, w = "NHWI", self.param(2, 3, SIZES["I"], SIZES["O"])
        numbers = ("NHWC", "HWIO", "NHWC")
        self.contract = lambda p, x: lax.conv_general_dilated(x, p[w], (1, 1), "VALID", dimension_numbers=numbers)
        return ("N", "h", "w", "O")

    def depthwise(self):
        self.of_x, w = "NIHW", self.param(2 * SIZES["I"], 1, 3, 3)
        self.contract = lambda p, x: lax.conv_general_dilated(x, p[w], (1, 1), "SAME", feature_group_count=SIZES["I"])
        return ("N", "O", "h", "w")

    def dense(self):
        self.of_x, w = self.random.choice(["NI", "NHI", "NHWI"]), self.param(SIZES["I"], SIZES["O"])
        self.contract = lambda p, x: x @ p[w]
        return (*self.of_x[:-1], "O")

    def swapped(self):
        self.of_x, w = "NI", self.param(SIZES["O"], SIZES["I"])
        self.contract = lambda p, x: p[w] @ x.T
        return ("O", "N")

    def two_axes(self):
        self.of_x, w = "NHI", self.param(SIZES["I"], SIZES["P"], SIZES["Q"])
        order = self.random.choice(["nhpq", "nphq", "qnhp"])
        self.contract = lambda p, x: jnp.einsum(f"nhi,ipq->{order}", x, p[w])
        return tuple(order.upper())

    # Steps -------------------------------------------------------------------------------------------------------

    def add_affine(self):
        word, kind = self.random.choice(["add", "sub", "mul", "div", "from"]), self.random.integers(5)
        sizes = jax.eval_shape(self.run, self.params, self.x).shape
        is_channel = [axis in "OPQ" for axis in self.axes]
        shape = [size if of else 1 for size, of in zip(sizes, is_channel, strict=True)]
        if kind == 0:
            number = float(self.random.uniform(0.5, 2) * self.random.choice([-1, 1]))
            self.steps.append((word, lambda p, y: jnp.asarray(number, y.dtype)))
        elif kind == 1:
            name = self.param()
            self.steps.append((word, lambda p, y: p[name]))
        elif kind == 2:
            name = self.param(*shape, least=0.0, most=4.0)
            self.steps.append((word, lambda p, y: jnp.broadcast_to(lax.rsqrt(p[name] + 0.25), y.shape)))
        elif kind == 3:  # a vector along the channels
            places = [axis for axis, of in enumerate(is_channel) if of]
            name = self.param(*(sizes[axis] for axis in places))
            self.steps.append((word, lambda p, y: lax.broadcast_in_dim(p[name], y.shape, places)))
        else:
            name, other = self.param(*shape), self.param()
            self.steps.append((word, lambda p, y: jnp.broadcast_to(jnp.abs(p[name]) * p[other], y.shape)))

    def add_neg(self):
        self.steps.append(("neg", None))

    def add_transpose(self):
        order = self.random.permutation(len(self.axes)).tolist()
        self.axes = [self.axes[axis] for axis in order]
        self.steps.append(("transpose", order))

    def add_expand(self):
        if len(self.axes) < 5:
            place = int(self.random.integers(len(self.axes) + 1))
            self.axes.insert(place, "1")
            self.steps.append(("expand", place))

    def add_squeeze(self):
        if "1" in self.axes:
            place = self.axes.index("1")
            del self.axes[place]
            self.steps.append(("squeeze", place))

    def run(self, params, x):
        y = self.contract(params, x)
        for word, value in self.steps:
            if word in ("transpose", "expand", "squeeze"):
                moved = {"transpose": jnp.transpose, "expand": jnp.expand_dims, "squeeze": jnp.squeeze}
                y = moved[word](y, value)
            elif word == "neg":
                y = -y
            elif word == "from":
                y = value(params, y) - y
            else:
                y = getattr(lax, word)(y, jnp.broadcast_to(value(params, y), y.shape))
        return y


def folded(chain):
    """The chain's graph, and the weights and biases that it became."""
    made = build(program_of(chain.run, chain.params, (chain.x,)))
    graph = made.graph()
    constants = {**graph.constants, **made.constants(jax.tree.leaves(chain.params))}
    return bound(graph.nodes, made.program), graph, constants


def left_over(graph):
    """The kinds of nodes that are neither the contraction, nor its bias, nor movers."""
    kinds = collections.Counter(node.operator.kind for node in graph.nodes if node.operator.kind != "mover")
    assert sum(kinds.pop(kind, 0) for kind in CONTRACTIONS) == 1
    makers = graph.producers()
    for node in graph.nodes:
        is_bias = node.operator.kind == "add" and node.inputs[1].endswith(":bias")
        if is_bias and makers[node.inputs[0]].operator.kind == "dot":
            kinds["add"] -= 1
    return {kind for kind, count in kinds.items() if count}


@pytest.mark.parametrize("batch", [0, *(pytest.param(batch, marks=pytest.mark.rare) for batch in range(1, BATCHES))])
def test_chains_are_one_contraction_that_computes_what_they_do(batch):
    chains = [Chain(batch * CHAINS + number) for number in range(CHAINS)]
    made = [folded(chain) for chain in chains]
    assert [left_over(graph) for _, graph, _ in made] == [set()] * CHAINS
    starts = [chain.start.__name__ for chain in chains]

    @jax.jit
    def computed(constants, inputs):
        values = [
            evaluate(nodes, {**given, graph.inputs[0]: x})[graph.outputs[0]]
            for (nodes, graph, _), given, x in zip(made, constants, inputs, strict=True)
        ]
        exact = [chain.run(chain.params, x) for chain, x in zip(chains, inputs, strict=True)]
        return values, exact

    received, expected = jax.device_get(computed([constants for *_, constants in made], [c.x for c in chains]))
    for start, one, other in zip(starts, received, expected, strict=True):
        assert one.shape == other.shape, start
        assert np.abs(one - other).max() <= 1e-5 * np.abs(other).max(), start
    assert set(starts) == set(STARTS)


def test_what_is_not_affine_along_channels_is_not_folded():
    """The random chains would not show that everything is folded, whatever it varies along."""
    x, w = jnp.ones((2, 3, 5, 5)), jnp.ones((4, 3, 3, 3))
    along_width = jnp.arange(1.0, 6.0)

    def of(behind):
        def run(params, x):
            return behind(params, lax.conv_general_dilated(x, params["w"], (1, 1), "SAME"))

        return program_of(run, {"w": w, "v": along_width}, (x,))

    cases = {
        "mul": lambda p, y: y * p["v"][None, None, None],
        "add": lambda p, y: y + p["v"][None, None, :, None],
        "div": lambda p, y: jnp.float32(1) / y,
    }
    for word, behind in cases.items():
        kinds = [node.operator.name for node in build(of(behind)).graph().nodes]
        assert word in [name.replace("multiply", "mul") for name in kinds], kinds


def test_a_result_that_is_read_twice_keeps_what_is_behind_it():
    """The result is also an output, so nothing is folded into its weights."""

    def run(params, x):
        y = x @ params["w"]
        return y, y * params["scale"][None]

    params = {"w": jnp.ones((3, 4)), "scale": jnp.arange(4.0)}
    graph = build(program_of(run, params, (jnp.ones((2, 3)),))).graph()
    assert [node.operator.kind for node in graph.nodes if node.operator.kind == "element_wise"]
