"""QDQ models of convolutions and matrix products."""

from functools import partial

import numpy as np

from helpers.qdq_builder import MICROSOFT, Grid, Value, single

U8, S8, U16 = Grid("u8"), Grid("s8"), Grid("u16")
Y = Grid("u8", 0.0579)
BINARY = 2.0**-6  # a scale whose products with integers are exact, for models that compute in floats
X, W = Value((1, 4, 6, 6), U8), Value((8, 4, 3, 3), Grid("s8", 0.00917, 0), "constant")
EXACT_X, EXACT_W = X.but(scale=BINARY), W.but(scale=2.0**-7)
EACH = {"scale": tuple(np.linspace(0.004, 0.02, 8)), "zero_point": (0,) * 8, "axis": 0}
FLOAT_BIAS = Value((8,), None, "constant")
DIFFERENT = tuple(range(-4, 4))


def product(x, w):
    """The scale of a bias, the product of the operands' scales, rounded to float32."""
    return np.float32(x) * np.float32(w)


STEP = product(0.0213, 0.00917)
EXACT_STEP = product(BINARY, 2.0**-7)
BIAS = Value((8,), Grid("s32", STEP, 0), "constant")
EXACT_BIAS = BIAS.but(scale=EXACT_STEP)


def clip(low, high):
    return ("Clip", None if low is None else np.float32(low), None if high is None else np.float32(high), {})


def conv(*, x=X, w=W, b=None, to=Y, **options):
    return single("Conv", x, w, *([] if b is None else [b]), to=to, **options)


FULL = clip(0.0, 0.0579 * 255)
CONVOLUTIONS = {
    "conv": conv,
    "conv_u8": partial(conv, w=W.but(grid=Grid("u8", 0.00917))),
    "conv_s8": partial(conv, x=EXACT_X.but(dtype="s8"), w=EXACT_W, to=Y.but(dtype="s8")),
    "conv_s8_pairs": partial(conv, x=X.but(grid=S8, by="pair"), to=[Y.but(dtype="s8")]),
    "conv_s8_u8_weight": partial(conv, x=X.but(grid=S8), w=W.but(dtype="u8", zero_point=50), to=Y.but(dtype="s8")),
    "conv_u8_to_s8": partial(conv, x=EXACT_X, w=EXACT_W, to=Y.but(dtype="s8")),
    "conv_u16": partial(conv, x=EXACT_X.but(dtype="u16"), w=EXACT_W, to=Grid("u16", 0.00171)),
    "conv_weight_s16": partial(conv, x=EXACT_X, w=EXACT_W.but(dtype="s16")),
    "conv_weight_s4": partial(conv, x=EXACT_X, w=EXACT_W.but(dtype="s4")),
    "conv_per_channel": partial(conv, w=W.but(**EACH)),
    "conv_per_channel_zero_points": partial(conv, w=W.but(**EACH | {"zero_point": DIFFERENT})),
    "conv_per_channel_wrong_axis": partial(conv, x=EXACT_X, w=W.but(scale=(2.0**-7,) * 4, zero_point=(0,) * 4, axis=1)),
    "conv_per_channel_negative_axis": partial(conv, w=W.but(**EACH | {"axis": -4})),
    "conv_blocked": partial(
        conv,
        x=EXACT_X,
        w=W.but(scale=np.full((8, 2, 3, 3), 2.0**-7), zero_point=np.zeros((8, 2, 3, 3)), axis=1, block_size=2),
    ),
    "conv_per_channel_no_zero_point": partial(conv, w=W.but(**EACH | {"zero_point": None})),
    "conv_input_per_channel": partial(conv, x=X.but(scale=(BINARY,) * 4, zero_point=(9,) * 4, axis=1), w=EXACT_W),
    "conv_scales_of_one_element": partial(conv, x=X.but(scale=(0.0213,), zero_point=(121,), axis=0)),
    "conv_no_zero_points": partial(
        conv, x=EXACT_X.but(zero_point=None), w=EXACT_W.but(zero_point=None, dtype="u8"), to=Y.but(zero_point=None)
    ),
    "conv_float16_scales": partial(
        conv, x=EXACT_X.but(scale_dtype="f16"), w=EXACT_W.but(scale_dtype="f16"), to=Y.but(scale_dtype="f16")
    ),
    "conv_bias": partial(conv, b=BIAS),
    "conv_bias_no_zero_point": partial(conv, b=BIAS.but(zero_point=None)),
    "conv_bias_scale_slightly_wrong": partial(conv, b=BIAS.but(scale=STEP * np.float32(1.003))),
    "conv_bias_scale_very_wrong": partial(conv, x=EXACT_X, w=EXACT_W, b=BIAS.but(scale=2.0**-4)),
    "conv_bias_zero_point": partial(conv, x=EXACT_X, w=EXACT_W, b=EXACT_BIAS.but(zero_point=5)),
    "conv_bias_s8": partial(conv, x=EXACT_X, w=EXACT_W, b=EXACT_BIAS.but(dtype="s8")),
    "conv_bias_per_channel": partial(
        conv, w=W.but(**EACH), b=BIAS.but(**EACH | {"scale": product(0.0213, EACH["scale"])})
    ),
    "conv_bias_per_channel_one_wrong": partial(
        conv,
        x=EXACT_X,
        w=EXACT_W.but(scale=(2.0**-7,) * 8, zero_point=(0,) * 8, axis=0),
        b=EXACT_BIAS.but(scale=(EXACT_STEP,) * 7 + (EXACT_STEP * 2,), zero_point=(0,) * 8, axis=0),
    ),
    "conv_bias_float": partial(conv, b=FLOAT_BIAS),
    "conv_bias_float_per_channel": partial(conv, w=W.but(**EACH), b=FLOAT_BIAS),
    "conv_bias_float_relu": partial(conv, b=FLOAT_BIAS, then=["Relu"], to=Y.but(zero_point=0)),
    "conv_bias_float_no_q": partial(conv, x=EXACT_X, w=EXACT_W, b=FLOAT_BIAS, to=None),
    "conv_bias_float_u16": partial(conv, x=EXACT_X.but(dtype="u16"), w=EXACT_W, b=FLOAT_BIAS, to=Grid("u16", 0.00171)),
    "conv_bias_float_relu_kept": partial(conv, x=EXACT_X, w=EXACT_W, b=FLOAT_BIAS, then=["Relu"]),
    "conv_bias_float_sigmoid": partial(conv, x=EXACT_X, w=EXACT_W, b=FLOAT_BIAS, then=["Sigmoid"]),
    "conv_bias_computed": partial(conv, x=EXACT_X, w=EXACT_W, b=Value((8,))),
    "conv_bias_of_input": partial(conv, b=BIAS.but(by="input")),
    "conv_weight_float": partial(conv, x=EXACT_X, w=Value((8, 4, 3, 3), None, "constant")),
    "conv_bias_scale_tiny": partial(
        conv, x=X.but(scale=2.0**-10), w=W.but(scale=2.0**-13), b=BIAS.but(scale=2.0**-20), to=Y.but(scale=2.0**-13)
    ),
    "conv_weight_of_input": partial(conv, w=W.but(grid=Grid("u8", 0.00917), by="input"), kernel_shape=[3, 3]),
    "conv_weight_of_input_without_sizes": partial(conv, x=EXACT_X, w=EXACT_W.but(dtype="u8", by="input")),
    "conv_weight_of_input_3d": partial(
        conv,
        x=EXACT_X.but(shape=(1, 4, 5, 5, 5)),
        w=EXACT_W.but(dtype="u8", shape=(8, 4, 2, 2, 2), by="input"),
        kernel_shape=[2, 2, 2],
    ),
    "conv_weight_folded": partial(conv, w=W.but(scale=0.0317, dtype="u8", zero_point=98, by="folded")),
    "conv_no_q": partial(conv, x=EXACT_X, w=EXACT_W, to=None),
    "conv_relu": partial(conv, then=["Relu"], to=Y.but(zero_point=0)),
    "conv_relu_zero_point_10": partial(conv, x=EXACT_X, w=EXACT_W, then=["Relu"], to=Y.but(zero_point=10)),
    "conv_relu_no_zero_point": partial(conv, then=["Relu"], to=Y.but(zero_point=None)),
    "conv_relu_s8": partial(conv, x=X.but(grid=S8, by="pair"), then=["Relu"], to=[Y.but(dtype="s8", zero_point=-128)]),
    "conv_relu_u16": partial(conv, x=EXACT_X.but(dtype="u16"), w=EXACT_W, then=["Relu"], to=Grid("u16", 0.00171, 0)),
    "conv_relu_scale_of_one_element": partial(conv, then=["Relu"], to=Y.but(scale=(0.0579,), zero_point=(0,), axis=0)),
    "conv_clip": partial(conv, then=[FULL], to=Y.but(zero_point=0)),
    "conv_clip_wider": partial(conv, then=[clip(-50, 50)]),
    "conv_clip_narrower": partial(conv, x=EXACT_X, w=EXACT_W, then=[clip(0, 6)], to=Y.but(zero_point=0)),
    "conv_clip_no_max": partial(conv, then=[clip(0, None)], to=Y.but(zero_point=0)),
    "conv_clip_no_bounds": partial(conv, then=[clip(None, None)]),
    "conv_clip_0.4_steps_inside": partial(conv, then=[clip(0.4 * 0.0579, 50)], to=Y.but(zero_point=0)),
    "conv_clip_0.5_steps_inside": partial(conv, then=[clip(0.03125, 50)], to=Y.but(scale=0.0625, zero_point=0)),
    "conv_clip_0.6_steps_inside": partial(
        conv, x=EXACT_X, w=EXACT_W, then=[clip(0.6 * 0.0579, 50)], to=Y.but(zero_point=0)
    ),
    "conv_clip_scale_of_one_element": partial(conv, then=[FULL], to=Y.but(scale=(0.0579,), zero_point=(0,), axis=0)),
    "conv_clip_attributes": partial(conv, then=[("Clip", {"min": 0.0, "max": 20.0})], to=Y.but(zero_point=0), opset=10),
    "conv_relu_clip": partial(conv, then=["Relu", FULL], to=Y.but(zero_point=0)),
    "conv_relu_relu": partial(conv, then=["Relu", "Relu"], to=Y.but(zero_point=0)),
    "conv_leaky_relu": partial(conv, x=EXACT_X, w=EXACT_W, then=[("LeakyRelu", {"alpha": 0.125})]),
    "conv_transposed": partial(conv, then=[("Transpose", {"perm": [0, 2, 3, 1]})]),
    "conv_relu_transposed": partial(conv, then=["Relu", ("Transpose", {"perm": [0, 2, 3, 1]})], to=Y.but(zero_point=0)),
    "conv_relu_max_pool": partial(conv, then=["Relu", ("MaxPool", {"kernel_shape": [2, 2]})], to=Y.but(zero_point=0)),
    "conv_of_transposed": partial(conv, before=[("Transpose", {"perm": [0, 1, 3, 2]})]),
    "conv_batch_norm": partial(
        conv,
        x=EXACT_X,
        w=EXACT_W,
        to=Y.but(zero_point=0),
        then=[
            ("BatchNormalization", *(np.full(8, v, np.float32) for v in (1, 0.5, 0.25, 4)), {"epsilon": 0.0}),
            "Relu",
        ],
    ),
    "conv_add_constant": partial(conv, x=EXACT_X, w=EXACT_W, then=[("Add", np.ones((1, 8, 1, 1), np.float32), {})]),
    "conv_1d": partial(conv, x=X.but(shape=(1, 4, 9)), w=W.but(shape=(8, 4, 3))),
    "conv_3d": partial(conv, x=EXACT_X.but(shape=(1, 4, 5, 5, 5)), w=EXACT_W.but(shape=(8, 4, 2, 2, 2))),
    "conv_auto_pad": partial(conv, auto_pad="SAME_UPPER", strides=[2, 2]),
    "conv_pads": partial(conv, pads=[1, 0, 2, 1], dilations=[2, 1], strides=[1, 2]),
    "conv_groups": partial(conv, w=W.but(shape=(8, 1, 3, 3)), group=4),
    "conv_microsoft": partial(conv, domain=MICROSOFT, opset=13),
} | {f"conv_opset_{opset}": partial(conv, opset=opset) for opset in (10, 13, 19, 23, 25)}

A, B = Value((3, 16), U8), Value((16, 8), Grid("s8", 0.00917, 0), "constant")
EXACT_A, EXACT_B = A.but(scale=BINARY), B.but(scale=2.0**-7)
COLUMNS = EACH | {"axis": 1}


def gemm(*, a=A, b=B, c=None, to=Y, **options):
    if options.get("transA"):
        a = a.but(shape=a.shape[::-1])
    if options.get("transB"):
        b = b.but(shape=b.shape[::-1])
    return single("Gemm", a, b, *([] if c is None else [c]), to=to, **options)


FLOATS = {"a": EXACT_A, "b": EXACT_B}
GEMMS = {
    "gemm": gemm,
    "gemm_u8": partial(gemm, b=B.but(dtype="u8", zero_point=50)),
    "gemm_s8": partial(gemm, a=A.but(grid=S8), to=Y.but(dtype="s8")),
    "gemm_s8_u8_weight": partial(gemm, a=EXACT_A.but(dtype="s8"), b=EXACT_B.but(dtype="u8"), to=Y.but(dtype="s8")),
    "gemm_to_s8": partial(gemm, **FLOATS, to=Y.but(dtype="s8")),
    "gemm_u16": partial(gemm, a=EXACT_A.but(dtype="u16"), b=EXACT_B, to=Grid("u16", 0.00171)),
    "gemm_s4": partial(gemm, a=EXACT_A, b=EXACT_B.but(dtype="s4")),
    "gemm_no_q": partial(gemm, to=None),
    "gemm_no_q_bias": partial(gemm, c=BIAS, to=None),
    "gemm_no_q_bias_float": partial(gemm, **FLOATS, c=FLOAT_BIAS, to=None),
    "gemm_no_q_relu": partial(gemm, then=["Relu"], to=None),
    "gemm_bias": partial(gemm, c=BIAS),
    "gemm_bias_scale_slightly_wrong": partial(gemm, c=BIAS.but(scale=STEP * np.float32(1.003))),
    "gemm_bias_scale_very_wrong": partial(gemm, **FLOATS, c=EXACT_BIAS.but(scale=2.0**-4)),
    "gemm_bias_zero_point": partial(gemm, **FLOATS, c=EXACT_BIAS.but(zero_point=5)),
    "gemm_bias_per_channel": partial(
        gemm, b=B.but(**COLUMNS), c=BIAS.but(**EACH | {"scale": product(0.0213, EACH["scale"])})
    ),
    "gemm_bias_row_per_channel": partial(  # as onnxruntime's quantizer writes it; axis 0 has one index
        gemm, b=B.but(**COLUMNS), c=BIAS.but(shape=(1, 8), **EACH | {"scale": product(0.0213, EACH["scale"])})
    ),
    "gemm_bias_given": partial(gemm, c=BIAS.but(by="input")),
    "gemm_bias_row": partial(gemm, c=BIAS.but(shape=(1, 8))),
    "gemm_bias_column": partial(gemm, c=BIAS.but(shape=(3, 1))),
    "gemm_bias_matrix": partial(gemm, c=BIAS.but(shape=(3, 8))),
    "gemm_bias_scalar": partial(gemm, c=BIAS.but(shape=(1,))),
    "gemm_bias_float": partial(gemm, c=FLOAT_BIAS),
    "gemm_bias_float_scalar": partial(gemm, c=FLOAT_BIAS.but(shape=(1,))),
    "gemm_bias_float_row": partial(gemm, **FLOATS, c=FLOAT_BIAS.but(shape=(1, 8))),
    "gemm_bias_float_per_channel": partial(gemm, b=B.but(**COLUMNS), c=FLOAT_BIAS),
    "gemm_bias_float_trans_b_per_channel": partial(gemm, b=B.but(**EACH), c=FLOAT_BIAS, transB=1),
    "gemm_bias_beta": partial(gemm, **FLOATS, c=EXACT_BIAS, beta=0.5),
    "gemm_bias_alpha": partial(gemm, **FLOATS, c=EXACT_BIAS, alpha=0.5),
    "gemm_bias_float_alpha": partial(gemm, **FLOATS, c=FLOAT_BIAS, alpha=0.5),
    "gemm_alpha": partial(gemm, alpha=0.37),
    "gemm_alpha_no_q": partial(gemm, alpha=0.37, to=None),
    "gemm_beta": partial(gemm, beta=0.5),
    "gemm_trans_a": partial(gemm, transA=1),
    "gemm_trans_b": partial(gemm, transB=1),
    "gemm_trans_a_b": partial(gemm, transA=1, transB=1),
    "gemm_per_channel": partial(gemm, b=B.but(**COLUMNS)),
    "gemm_per_channel_trans_b": partial(gemm, b=B.but(**EACH), transB=1),
    "gemm_per_channel_zero_points": partial(gemm, b=B.but(**COLUMNS | {"zero_point": DIFFERENT})),
    "gemm_per_channel_no_zero_point": partial(gemm, a=EXACT_A, b=B.but(scale=(2.0**-7,) * 8, zero_point=None, axis=1)),
    "gemm_per_row": partial(gemm, a=EXACT_A, b=B.but(scale=(2.0**-7,) * 16, zero_point=(0,) * 16, axis=0)),
    "gemm_a_per_row": partial(gemm, a=A.but(scale=(BINARY,) * 3, zero_point=(9,) * 3, axis=0), b=EXACT_B),
    "gemm_no_zero_points": partial(
        gemm, a=A.but(zero_point=None), b=B.but(dtype="u8", zero_point=None), to=Y.but(zero_point=None)
    ),
    "gemm_relu": partial(gemm, then=["Relu"], to=Y.but(zero_point=0)),
    "gemm_relu_zero_point_10": partial(gemm, **FLOATS, then=["Relu"], to=Y.but(zero_point=10)),
    "gemm_clip": partial(gemm, then=[FULL], to=Y.but(zero_point=0)),
    "gemm_weight_of_input": partial(gemm, b=B.but(grid=Grid("u8", 0.00917), by="input")),
    "gemm_weight_float": partial(gemm, a=EXACT_A, b=Value((16, 8), None, "constant")),
    "gemm_weight_only": partial(gemm, a=Value((3, 16)), b=EXACT_B, to=None),
    "gemm_opset_11": partial(gemm, c=BIAS, opset=11),
}


def matmul(*, a=A, b=B, to=Y, **options):
    return single("MatMul", a, b, to=to, **options)


ADD_FLOAT = [("Add", FLOAT_BIAS, {})]
BLOCKS = {"scale": np.full((2, 8), 2.0**-4), "zero_point": np.zeros((2, 8)), "axis": 0, "block_size": 16}
MATMULS = {
    "matmul": matmul,
    "matmul_u8": partial(matmul, b=B.but(dtype="u8", zero_point=50)),
    "matmul_s8": partial(matmul, a=A.but(grid=S8), to=Y.but(dtype="s8")),
    "matmul_s8_pairs": partial(matmul, a=A.but(grid=S8, by="pair"), to=[Y.but(dtype="s8")]),
    "matmul_s8_u8_weight": partial(matmul, a=A.but(grid=S8), b=B.but(dtype="u8", zero_point=50), to=Y.but(dtype="s8")),
    "matmul_to_s8": partial(matmul, **FLOATS, to=Y.but(dtype="s8")),
    "matmul_u16": partial(matmul, a=EXACT_A.but(dtype="u16"), b=EXACT_B, to=Grid("u16", 0.00171)),
    "matmul_s4": partial(matmul, a=EXACT_A, b=EXACT_B.but(dtype="s4")),
    "matmul_s4_blocked": partial(
        matmul, a=EXACT_A.but(shape=(3, 32)), b=B.but(shape=(32, 8), dtype="s4", **BLOCKS)
    ),
    "matmul_float16_scales": partial(
        matmul, a=EXACT_A.but(scale_dtype="f16"), b=EXACT_B.but(scale_dtype="f16"), to=Y.but(scale_dtype="f16")
    ),
    "matmul_no_q": partial(matmul, to=None),
    "matmul_no_q_s8": partial(matmul, a=A.but(grid=S8), to=None),
    "matmul_no_q_s8_pair": partial(matmul, a=A.but(grid=S8, by="pair"), to=None),
    "matmul_no_q_relu": partial(matmul, then=["Relu"], to=None),
    "matmul_no_q_add": partial(matmul, **FLOATS, then=ADD_FLOAT, to=None),
    "matmul_no_q_per_channel": partial(matmul, b=B.but(**COLUMNS), to=None),
    "matmul_no_q_no_zero_points": partial(
        matmul, a=EXACT_A.but(zero_point=None), b=EXACT_B.but(dtype="u8", zero_point=None), to=None
    ),
    "matmul_no_q_u16": partial(matmul, a=EXACT_A.but(dtype="u16"), b=EXACT_B, to=None),
    "matmul_two_computed": partial(matmul, b=B.but(grid=Grid("u8", 0.00917), by="input")),
    "matmul_3d": partial(matmul, a=A.but(shape=(2, 3, 16))),
    "matmul_3d_3d": partial(matmul, a=A.but(shape=(2, 3, 16)), b=B.but(shape=(2, 16, 8), by="input", dtype="u8")),
    "matmul_1d": partial(matmul, a=A.but(shape=(16,))),
    "matmul_by_vector": partial(matmul, b=B.but(shape=(16,))),
    "matmul_by_vector_per_element": partial(
        matmul, a=EXACT_A, b=B.but(shape=(16,), scale=(2.0**-7,) * 16, zero_point=(0,) * 16, axis=0)
    ),
    "matmul_per_channel": partial(matmul, b=B.but(**COLUMNS)),
    "matmul_per_channel_last_axis": partial(matmul, b=B.but(**COLUMNS | {"axis": -1})),
    "matmul_per_row": partial(matmul, a=EXACT_A, b=B.but(scale=(2.0**-7,) * 16, zero_point=(0,) * 16, axis=0)),
    "matmul_a_per_row": partial(matmul, a=A.but(scale=(BINARY,) * 3, zero_point=(9,) * 3, axis=0), b=EXACT_B),
    "matmul_relu": partial(matmul, then=["Relu"], to=Y.but(zero_point=0)),
    "matmul_relu_zero_point_10": partial(matmul, **FLOATS, then=["Relu"], to=Y.but(zero_point=10)),
    "matmul_clip": partial(matmul, then=[clip(-50, 50)]),
    "matmul_add": partial(matmul, then=ADD_FLOAT),
    "matmul_add_relu": partial(matmul, then=[*ADD_FLOAT, "Relu"], to=Y.but(zero_point=0)),
    "matmul_add_3d": partial(matmul, a=A.but(shape=(2, 3, 16)), then=ADD_FLOAT),
    "matmul_add_3d_no_q": partial(matmul, a=EXACT_A.but(shape=(2, 3, 16)), b=EXACT_B, then=ADD_FLOAT, to=None),
    "matmul_add_3d_relu": partial(
        matmul, a=EXACT_A.but(shape=(2, 3, 16)), b=EXACT_B, then=[*ADD_FLOAT, "Relu"], to=Y.but(zero_point=0)
    ),
    "matmul_add_3d_3d": partial(
        matmul, a=A.but(shape=(2, 3, 16)), b=B.but(shape=(2, 16, 8), dtype="u8"), then=ADD_FLOAT
    ),
    "matmul_add_1d": partial(matmul, a=EXACT_A.but(shape=(16,)), b=EXACT_B, then=ADD_FLOAT),
    "matmul_add_two_computed": partial(matmul, a=EXACT_A, b=EXACT_B.but(by="input", dtype="u8"), then=ADD_FLOAT),
    "matmul_add_scalar": partial(matmul, **FLOATS, then=[("Add", FLOAT_BIAS.but(shape=(1,)), {})]),
    "matmul_add_wider": partial(matmul, a=EXACT_A, b=EXACT_B.but(shape=(16, 1)), then=ADD_FLOAT),
    "matmul_add_row": partial(matmul, **FLOATS, then=[("Add", FLOAT_BIAS.but(shape=(1, 8)), {})]),
    "matmul_add_matrix": partial(matmul, **FLOATS, then=[("Add", FLOAT_BIAS.but(shape=(3, 8)), {})]),
    "matmul_add_dequantized": partial(matmul, **FLOATS, then=[("Add", B.but(shape=(8,), scale=2.0**-7), {})]),
    "matmul_weight_float": partial(matmul, a=EXACT_A, b=Value((16, 8), None, "constant")),
    "matmul_input_float": partial(matmul, a=Value((3, 16)), b=EXACT_B),
    "matmul_weight_only": partial(matmul, a=Value((3, 16)), b=EXACT_B, to=None),
}  # fmt: skip
