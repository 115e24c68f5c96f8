"""ONNX's own cases of each operator, how they are run, and which are left out."""

import functools
import warnings
from fnmatch import fnmatchcase

import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

import jaxdml.onnx
from helpers.compare import assert_same_values
from jaxdml.onnx._table import FIRST_OPSET, ROWS, find

# Operators that are left out, by reason.
OPERATORS = {
    "are loops or recurrences": "GRU Loop RNN Scan LinearAttention",
    "have sequences, optional values, strings or files": (
        "ImageDecoder OptionalGetElement OptionalHasElement RegexFullMatch SequenceEmpty SequenceInsert SequenceLength "
        "SequenceMap SplitToSequence StringConcat StringNormalizer StringSplit TfIdfVectorizer"
    ),
    "are random": "Bernoulli RandomUniformLike",
    "give results whose shapes depend on data": "NonMaxSuppression Unique",
    "are about training": (
        "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss ai.onnx.preview.training.Adagrad "
        "ai.onnx.preview.training.Adam ai.onnx.preview.training.Momentum"
    ),
    "are no part of neural networks": (
        "ai.onnx.ml.ArrayFeatureExtractor ai.onnx.ml.Binarizer ai.onnx.ml.LabelEncoder ai.onnx.ml.TreeEnsemble"
    ),
    "are about signals": "BlackmanWindow DFT HammingWindow HannWindow MelWeightMatrix STFT",
    "are in no network that onnxruntime's quantizer writes": (
        "AffineGrid BitCast CausalConvWithState CenterCropPad Col2Im DeformConv Det GridSample MaxUnpool "
        "ReverseSequence RoiAlign Shrink SwiGLU TensorScatter ai.onnx.preview.FlexAttention"
    ),
    "ended before opset 10": "Upsample",
}

# Cases of other operators that are left out, by reason; a star stands for any characters.
CASES = {
    "floats of 8 and 4 bits and integers of 2 bits are no types of this library": (
        "*FLOAT8* *FLOAT4* *INT2* *e4m3* *e5m2* *float4e2m1 *int2"
    ),
    "the type is that of strings": "test_equal_string*",
    "it has a sequence or an optional value": "test_identity_sequence test_identity_opt test_if_seq test_if_opt",
    "branches read sizes, which `Prepared` does not make initializers": "test_affine_grid_*_expanded",
    "training is left out": "test_batchnorm_*_training_mode test_training_dropout*",
    "scales of QLinearMatMul are float32": "test_qlinearmatmul_*_float16",
    "softmax is float32": "test_attention_local_window_gqa_rank4_mask",
    "Resize interpolates by cubics, or without aliases": "test_resize_*cubic* test_resize_*antialias*",
}

# Cases that expect onnxruntime's results, not ONNX's: a masked score is the least float in onnxruntime, and -inf in
# ONNX; the last pixel is that of an output of an integer size in onnxruntime, and of size 2.4 in ONNX.
LIKE_ONNXRUNTIME = (
    "test_attention_4d_with_past_and_present_qk_matmul_bias_?d_mask_causal",
    "test_resize_downsample_scales_linear_align_corners",
)


@functools.cache
def all_cases():
    """Every case that onnx has for single operators; making them takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx's expected NaN and infinities make NumPy warn
        return tuple(load_model_tests(kind="node"))


def operators_of(case):
    return {_full_name(node) for node in case.model.graph.node}


def reason(case):
    """Why a case is left out; None if it is not."""
    operators = operators_of(case)
    for text, names in OPERATORS.items():
        if operators.intersection(names.split()):
            return text
    for text, patterns in CASES.items():
        if any(fnmatchcase(case.name, pattern) for pattern in patterns.split()):
            return text
    return None


class Prepared:
    """A case in its usual form: values that JAX needs at trace time are initializers, not inputs."""

    def __init__(self, case):
        (inputs, outputs), *others = case.data_sets
        assert not others, case.name
        self.case = case
        proto = _since_first_opset(case.model)
        known = _known_values(proto)
        values = {value.name: _array(array) for value, array in zip(proto.graph.input, inputs, strict=True)}
        self.inputs = {name: array for name, array in values.items() if name not in known}
        self.outputs = {value.name: _array(array) for value, array in zip(proto.graph.output, outputs, strict=True)}
        if any(fnmatchcase(case.name, pattern) for pattern in LIKE_ONNXRUNTIME):
            self.outputs = _by_onnxruntime(proto, values)
        proto.graph.initializer.extend(numpy_helper.from_array(values[name], name) for name in known & values.keys())
        left = [value for value in proto.graph.input if value.name not in known]
        del proto.graph.input[:]
        proto.graph.input.extend(left)
        self.model = jaxdml.onnx.load(proto)

    def computed(self):
        return self.model.apply(self.model.params, **self.inputs)

    def check(self, computed):
        """Compares as ONNX does; 16-bit floats may be two steps apart."""
        assert computed.keys() == self.outputs.keys()
        for name, expected in self.outputs.items():
            array = np.asarray(computed[name])
            assert (array.dtype, array.shape) == (expected.dtype, expected.shape), self.case.name
            if jnp.issubdtype(array.dtype, jnp.floating):
                rtol = max(self.case.rtol, 2 * float(jnp.finfo(array.dtype).eps))
                wide = (each.astype(np.float64) for each in (array, expected))
                np.testing.assert_allclose(*wide, rtol=rtol, atol=self.case.atol, err_msg=self.case.name)
            else:
                assert_same_values(array, expected, self.case.name)


def _full_name(node):
    return f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def _by_onnxruntime(model, values):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, values), strict=True))


def is_supported(name):
    domain, _, operator = name.rpartition(".")
    return (domain, operator) in ROWS


def _opsets(model):
    return {entry.domain: entry.version for entry in model.opset_import}


def _array(value):
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return value if isinstance(value, list) else np.asarray(value)


def _since_first_opset(model):
    """A copy; if its opset is too old and its operators have not changed since, it gets the oldest supported opset."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for entry in copy.opset_import:
        same = (
            onnx.defs.get_schema(node.op_type, FIRST_OPSET).since_version <= entry.version for node in copy.graph.node
        )
        if entry.domain == "" and entry.version < FIRST_OPSET and all(same):
            entry.version = FIRST_OPSET
    return copy


def _known_values(model):
    """The values that shapes, axes and the like are computed from."""
    known, opsets = set(), _opsets(model)
    for node in reversed(model.graph.node):
        mode = next((attribute.s.decode() for attribute in node.attribute if attribute.name == "mode"), None)
        row = find(node.domain, node.op_type, opsets.get(node.domain, 0), "directml", mode)
        if row is None or row.operator.gives_shape:
            continue
        if known.intersection(node.output):
            known.update(node.input)
        known.update(node.input[place] for place in row.operator.known if place < len(node.input))
    return known
