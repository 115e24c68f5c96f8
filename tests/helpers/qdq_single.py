"""QDQ models of one operator other than convolutions and matrix products: elementwise operators, pools, movers."""

from functools import partial

import numpy as np

from helpers.qdq_builder import MICROSOFT, Grid, Value, single

U8, S8, U16, S16 = Grid("u8"), Grid("s8"), Grid("u16"), Grid("s16")
OTHER = Grid("u8", 0.0317, 99)
X = Value((1, 4, 6, 6), U8)
FLOATS = Value((1, 4, 6, 6))
MATRIX = Value((2, 4), U8)
RELU = {"then": ["Relu"], "to": U8.but(zero_point=0)}
HALF = Grid("u8", 1 / 256, 0)


def binary(op, a=U8, b=U8, to=OTHER, *, second=None, **options):
    one, other = MATRIX.but(grid=a), MATRIX.but(grid=b.but(scale=0.0171))
    return single(op, one, other if second is None else second, to=to, **options)


BINARY = {
    "add": partial(binary, "Add"),
    "add_s8": partial(binary, "Add", S8, S8, S8),
    "add_s8_pairs": partial(
        single, "Add", MATRIX.but(grid=S8, by="pair"), MATRIX.but(grid=S8, by="pair"), to=[Grid("s8", 0.0317)]
    ),
    "add_s8_constant": partial(binary, "Add", S8, S8, S8, second=MATRIX.but(grid=S8, by="constant")),
    "add_s8_pair_and_constant": partial(
        single, "Add", MATRIX.but(grid=S8, by="pair"), MATRIX.but(grid=S8, by="constant"), to=[Grid("s8", 0.0317)]
    ),
    "add_mixed": partial(binary, "Add", U8, S8),
    "add_to_s8": partial(binary, "Add", U8, U8, S8),
    "add_u16": partial(binary, "Add", U16, U16, U16),
    "add_broadcast": partial(binary, "Add", second=MATRIX.but(shape=(4,))),
    "add_constant": partial(binary, "Add", second=MATRIX.but(by="constant", zero_point=99)),
    "add_scalar": partial(binary, "Add", second=MATRIX.but(shape=(), by="constant")),
    "add_float_constant": partial(binary, "Add", second=Value((2, 4), None, "constant")),
    "add_no_q": partial(binary, "Add", to=None),
    "add_relu": partial(binary, "Add", then=["Relu"], to=OTHER.but(zero_point=0)),
    "add_relu_zero_point_10": partial(binary, "Add", then=["Relu"], to=OTHER.but(zero_point=10)),
    "add_per_channel": partial(
        binary, "Add", U8, U8, second=MATRIX.but(scale=(0.0213,) * 4, zero_point=(9,) * 4, axis=1)
    ),
    "add_no_zero_points": partial(
        single, "Add", MATRIX.but(zero_point=None), MATRIX.but(zero_point=None, scale=0.01), to=Grid("u8", 0.0317, None)
    ),
    "mul": partial(binary, "Mul"),
    "mul_s8_pairs": partial(
        single, "Mul", MATRIX.but(grid=S8, by="pair"), MATRIX.but(grid=S8, by="pair"), to=[Grid("s8", 0.0317)]
    ),
    "mul_relu": partial(binary, "Mul", then=["Relu"], to=OTHER.but(zero_point=0)),
    "mul_u16": partial(binary, "Mul", U16, U16, U16),
    **{op.lower(): partial(binary, op) for op in ("Sub", "Div", "Min", "Max")},
}

UNARY_OPERATORS = {
    "average_pool": ("AveragePool", X, {"kernel_shape": [2, 2]}),
    "global_average_pool": ("GlobalAveragePool", X, {}),
    "leaky_relu": ("LeakyRelu", X, {"alpha": 0.1}),
    "sigmoid": ("Sigmoid", X, {}),
    "softmax": ("Softmax", X, {}),
}
UNARY = {
    f"{name}_{word}": partial(single, op, x.but(grid=of), to=to, **attributes)
    for name, (op, x, attributes) in UNARY_OPERATORS.items()
    for word, of, to in (
        ("u8", U8, HALF if name in ("sigmoid", "softmax") else Grid("u8", 0.0131)),
        ("s8", S8, Grid("s8", 1 / 256, -128) if name in ("sigmoid", "softmax") else Grid("s8", 0.0131)),
        ("u16", U16, Grid("u16", 0.0131)),
        ("to_s8", U8, Grid("s8", 0.0131)),
    )
} | {
    "average_pool_pads": partial(single, "AveragePool", X, to=OTHER, kernel_shape=[3, 2], pads=[1, 0, 1, 1]),
    "average_pool_include_pad": partial(
        single, "AveragePool", X, to=OTHER, kernel_shape=[3, 2], pads=[1, 0, 1, 1], count_include_pad=1
    ),
    "average_pool_ceil": partial(single, "AveragePool", X, to=OTHER, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    "average_pool_auto_pad": partial(single, "AveragePool", X, to=OTHER, kernel_shape=[2, 2], auto_pad="SAME_UPPER"),
    "average_pool_dilations": partial(single, "AveragePool", X, to=OTHER, kernel_shape=[2, 2], dilations=[2, 2]),
    "average_pool_1d": partial(single, "AveragePool", X.but(shape=(1, 4, 6)), to=OTHER, kernel_shape=[2]),
    "average_pool_3d": partial(single, "AveragePool", X.but(shape=(1, 4, 4, 4, 4)), to=OTHER, kernel_shape=[2, 2, 2]),
    "average_pool_relu": partial(
        single, "AveragePool", X, then=["Relu"], to=OTHER.but(zero_point=0), kernel_shape=[2, 2]
    ),
    "average_pool_opset_11": partial(single, "AveragePool", X, to=OTHER, kernel_shape=[2, 2], opset=11),
    "global_average_pool_3d": partial(single, "GlobalAveragePool", X.but(shape=(1, 4, 4, 4, 4)), to=OTHER),
    "softmax_axis_1": partial(single, "Softmax", X, to=HALF, axis=1),
    "softmax_opset_11": partial(single, "Softmax", X, to=HALF, opset=11),
    "softmax_opset_11_axis_2": partial(single, "Softmax", X, to=HALF, opset=11, axis=2),
    "softmax_other_scale": partial(single, "Softmax", X, to=Grid("u8", 0.0173, 3)),
    "softmax_per_channel": partial(
        single, "Softmax", X.but(scale=(0.0213,) * 4, zero_point=(121,) * 4, axis=1), to=HALF
    ),
    "softmax_scale_0": partial(single, "Softmax", X.but(scale=0.0), to=HALF),
    "softmax_negative_scale": partial(single, "Softmax", X.but(scale=-0.0213), to=HALF, opset=11),
    "sigmoid_relu": partial(single, "Sigmoid", X, then=["Relu"], to=HALF),
    "sigmoid_no_zero_point": partial(single, "Sigmoid", X.but(zero_point=None), to=Grid("u8", 1 / 256, None)),
    "leaky_relu_alpha_2": partial(single, "LeakyRelu", X, to=OTHER, alpha=2.0),
    **{f"{op.lower()}_stays": partial(single, op, X, to=OTHER) for op in ("Tanh", "Elu", "Exp", "Abs", "HardSwish")},
    "reduce_mean_stays": partial(single, "ReduceMean", X, to=OTHER, opset=13, axes=[2, 3]),
    "global_max_pool_stays": partial(single, "GlobalMaxPool", X, to=OTHER),
    "relu": partial(single, "Relu", X, to=U8.but(zero_point=0)),
    "relu_same": partial(single, "Relu", X.but(zero_point=0), to=U8.but(zero_point=0)),
    "relu_zero_point_10": partial(single, "Relu", X, to=U8.but(zero_point=10)),
    "relu_u16": partial(single, "Relu", X.but(grid=U16), to=U16.but(zero_point=0)),
    "relu_s16": partial(single, "Relu", X.but(grid=S16), to=S16.but(zero_point=-32768)),
    "relu_of_float": partial(single, "Relu", FLOATS, to=U8.but(zero_point=0)),
    "relu_of_float_no_zero_point": partial(single, "Relu", FLOATS, to=U8.but(zero_point=None)),
    "relu_of_float_s8": partial(single, "Relu", FLOATS, to=S8.but(zero_point=0)),
    "relu_u4": partial(single, "Relu", X.but(grid=Grid("u4"), by="pair"), to=[Grid("u4", 0.1, 0)]),
    "relu_microsoft": partial(single, "Relu", X, to=U8.but(zero_point=0), domain=MICROSOFT, opset=13),
    "clip_wider": partial(single, "Clip", X, np.float32(-9), np.float32(9), to=OTHER),
    "clip_narrower": partial(single, "Clip", X, np.float32(0), np.float32(1), to=OTHER),
    "clip_wider_same": partial(single, "Clip", X, np.float32(-9), np.float32(9), to=U8),
    "clip_of_float": partial(single, "Clip", FLOATS, np.float32(-9), np.float32(9), to=U8),
    "clip_of_abs": partial(single, "Clip", FLOATS, np.float32(-9), np.float32(9), before=["Neg"], to=U8),
    "layer_normalization_stays": partial(
        single, "LayerNormalization", MATRIX, Value((4,), None, "constant"), Value((4,), None, "constant"), to=OTHER
    ),
}  # fmt: skip


def integers(*values):
    return np.asarray(values, np.int64)


DOUBLED = np.asarray([1, 1, 2, 2], np.float32)
MOVER_OPERATORS = {
    "reshape": ("Reshape", [integers(4, 36)], {}),
    "transpose": ("Transpose", [], {"perm": [0, 2, 3, 1]}),
    "flatten": ("Flatten", [], {}),
    "squeeze": ("Squeeze", [integers(0)], {}),
    "unsqueeze": ("Unsqueeze", [integers(0)], {}),
    "gather": ("Gather", [integers(1, 0)], {"axis": 1}),
    "gather_elements": ("GatherElements", [np.zeros((1, 4, 6, 6), np.int64)], {"axis": 1}),
    "slice": ("Slice", [integers(1), integers(3), integers(1)], {}),
    "expand": ("Expand", [integers(2, 4, 6, 6)], {}),
    "tile": ("Tile", [integers(1, 2, 1, 1)], {}),
    "max_pool": ("MaxPool", [], {"kernel_shape": [2, 2]}),
    "reduce_max": ("ReduceMax", [integers(2)], {}),
    "reduce_min": ("ReduceMin", [integers(2)], {}),
    "resize": ("Resize", [None, DOUBLED], {"mode": "nearest"}),
    "depth_to_space": ("DepthToSpace", [], {"blocksize": 2}),
    "space_to_depth": ("SpaceToDepth", [], {"blocksize": 2}),
    "identity": ("Identity", [], {}),
}
MOVERS = {
    f"{name}_{word}": partial(single, op, x, *others, to=to, **attributes)
    for name, (op, others, attributes) in MOVER_OPERATORS.items()
    for word, x, to in (
        ("same", X, U8),
        ("other", X, OTHER),
        ("dq", X, None),
        ("q", FLOATS, U8),
        ("u16", X.but(grid=U16), U16),
    )
}
ONE_ELEMENT = Grid("u8", (0.0213,), (121,), 0)
TRANSPOSE, POOL = partial(single, "Transpose", perm=[0, 2, 3, 1]), partial(single, "MaxPool", kernel_shape=[2, 2])
RESIZE = partial(single, "Resize", X, None, DOUBLED, to=U8)
RESHAPE = partial(single, "Reshape", X, integers(4, 36))
MOVERS |= {
    "transpose_s8": partial(TRANSPOSE, X.but(grid=S8), to=S8),
    "transpose_s8_pair": partial(TRANSPOSE, X.but(grid=S8, by="pair"), to=[S8]),
    "transpose_to_s8": partial(TRANSPOSE, X, to=S8),
    "transpose_no_zero_points": partial(TRANSPOSE, X.but(zero_point=None), to=U8.but(zero_point=None)),
    "transpose_one_zero_point_absent": partial(TRANSPOSE, X.but(zero_point=0), to=U8.but(zero_point=None)),
    "transpose_zero_points_differ": partial(TRANSPOSE, X.but(zero_point=1), to=U8.but(zero_point=2)),
    "transpose_scales_of_one_element": partial(
        TRANSPOSE, X.but(grid=ONE_ELEMENT), to=ONE_ELEMENT
    ),
    "transpose_per_channel": partial(
        TRANSPOSE, X.but(scale=(0.0213,) * 4, zero_point=(9,) * 4, axis=1),
        to=U8.but(scale=(0.0213,) * 4, zero_point=(9,) * 4, axis=3),
    ),
    "transpose_negative_scale": partial(TRANSPOSE, X.but(scale=-0.0213), to=U8.but(scale=-0.0213)),
    "transpose_u4": partial(TRANSPOSE, X.but(grid=Grid("u4"), by="pair"), to=[Grid("u4")]),
    "transpose_relu": partial(TRANSPOSE, X.but(zero_point=0), then=["Relu"], to=U8.but(zero_point=0)),
    "transpose_microsoft": partial(TRANSPOSE, X, to=U8, domain=MICROSOFT, opset=13),
    "transpose_opset_10": partial(TRANSPOSE, X, to=U8, opset=10),
    "transpose_opset_25": partial(TRANSPOSE, X, to=U8, opset=25),
    "max_pool_s8": partial(POOL, X.but(grid=S8), to=S8),
    "max_pool_pads": partial(POOL, X, to=U8, pads=[1, 1, 1, 1]),
    "max_pool_dilations": partial(POOL, X, to=U8, dilations=[2, 2]),
    "max_pool_negative_scale": partial(POOL, X.but(scale=-0.0213), to=U8.but(scale=-0.0213)),
    "max_pool_relu": partial(POOL, X.but(zero_point=0), then=["Relu"], to=U8.but(zero_point=0)),
    "max_pool_opset_11": partial(POOL, X, to=U8, opset=11),
    "reduce_max_negative_scale": partial(
        single, "ReduceMax", X.but(scale=-0.0213), integers(2), to=U8.but(scale=-0.0213)
    ),
    "reduce_max_opset_11": partial(single, "ReduceMax", X, to=U8, axes=[2], opset=11),
    "resize_asymmetric": partial(RESIZE, mode="nearest", coordinate_transformation_mode="asymmetric"),
    "resize_align_corners": partial(RESIZE, mode="nearest", coordinate_transformation_mode="align_corners"),
    "resize_crop": partial(
        single,
        "Resize",
        X,
        np.asarray([0, 0, -0.5, -0.5, 1, 1, 1.5, 1.5], np.float32),
        DOUBLED,
        to=U8,
        mode="nearest",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=0.5,
    ),
    "resize_sizes": partial(single, "Resize", X, None, None, integers(1, 4, 12, 9), to=U8, mode="nearest"),
    "resize_opset_10": partial(single, "Resize", X, DOUBLED, to=U8, opset=10),
    "depth_to_space_crd": partial(single, "DepthToSpace", X, to=U8, blocksize=2, mode="CRD"),
    "pad_same": partial(single, "Pad", X, integers(0, 0, 1, 1, 0, 0, 1, 1), to=U8),
    "pad_stays": partial(single, "Pad", X, integers(0, 0, 1, 1, 0, 0, 1, 1), to=U8.but(scale=0.05)),
    "reshape_transpose": partial(RESHAPE, then=[("Transpose", {"perm": [1, 0]})], to=U8),
    "reshape_transpose_dq": partial(RESHAPE, then=[("Transpose", {"perm": [1, 0]})], to=None),
    "reshape_abs_dq": partial(RESHAPE, then=["Abs"], to=None),
    "abs_reshape_q": partial(single, "Reshape", FLOATS, integers(4, 36), before=["Abs"], to=U8),
    "reshape_no_zero_point_dq": partial(single, "Reshape", X.but(zero_point=None), integers(4, 36), to=None),
    "gather_constant": partial(single, "Gather", X.but(shape=(9, 5), by="constant"), integers(1, 3), to=U8),
    "gather_constant_dq": partial(single, "Gather", X.but(shape=(9, 5), by="constant"), integers(1, 3), to=None),
    "argmax": partial(single, "ArgMax", X, axis=1, to="s64"),
    "argmax_s8": partial(single, "ArgMax", X.but(grid=S8), axis=1, to="s64"),
    "argmax_u16": partial(single, "ArgMax", X.but(grid=U16), axis=1, to="s64"),
    "argmax_no_zero_point": partial(single, "ArgMax", X.but(zero_point=None), axis=1, to="s64"),
    "argmin": partial(single, "ArgMin", X, axis=1, to="s64"),
}  # fmt: skip
