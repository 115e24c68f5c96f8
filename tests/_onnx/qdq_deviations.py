"""Where jaxdml fuses differently from onnxruntime, and why; docs/onnx_fusing.md has the same reasons."""

from collections.abc import Mapping
from dataclasses import dataclass, field

DISABLED = "optimization.disable_specified_optimizers"
FILE = "as in the file"
SHORT = {"Q": "QuantizeLinear", "DQ": "DequantizeLinear", "ToFloat": "MatMulIntegerToFloat"}


@dataclass(frozen=True)
class Deviation:
    """A reason, and the models of `qdq_graphs` to which it applies.

    Attributes:
      reason: a line of the documentation.
      models: by name, the operators that jaxdml runs; None where onnxruntime runs the same ones with other settings.
      settings: the settings of that onnxruntime session.
    """

    reason: str
    models: Mapping[str, str | None]
    settings: Mapping[str, str] = field(default_factory=dict)

    def operators(self, name, model):
        """The operators that a model must have, in alphabetical order; None where they are onnxruntime's."""
        words = self.models[name]
        if words is None:
            return None
        if words == FILE:
            return sorted(node.op_type for node in model.graph.node)
        return sorted(SHORT.get(word, word) for word in words.split())


def _with(settings, reason, names):
    return Deviation(reason, dict.fromkeys(names.split()), settings)


def _as_in_file(reason, names):
    return Deviation(reason, dict.fromkeys(names.split(), FILE))


DEVIATIONS = (
    _with(
        {"session.qdqisint8allowed": "1"},
        "int8 activations are fused",
        "conv_s8 matmul_s8 matmul_no_q_s8 add_s8_pair_and_constant residual_s8 two_dequantized_s8",
    ),
    _with(
        {"session.disable_double_qdq_remover": "1"},
        "Consecutive pairs are not merged",
        "q_dq_q_dq_other q_dq_q_dq_s8 q_dq_q_dq_u16 q_dq_three_pairs two_convolutions_two_other_pairs",
    ),
    _with(
        {DISABLED: "WeightBiasQuantization"},
        "Constants of operators that stay in floats are not quantized",
        "gemm_bias_float_alpha conv_weight_float gemm_weight_float",
    ),
    _with(
        {DISABLED: "WeightBiasQuantization;ConvActivationFusion"},
        "Activation functions remain separate operators",
        "conv_bias_float_relu_kept conv_bias_float_sigmoid conv_relu_zero_point_10 conv_clip_narrower "
        "conv_clip_0.6_steps_inside conv_leaky_relu fan_out_relu_float fan_out_relu_output",
    ),
    _with(
        {DISABLED: "MatMulAddFusion"},
        "A product followed by an Add that is not a bias runs on integers",
        "matmul_no_q_add matmul_add_3d_no_q matmul_add_row matmul_add_matrix matmul_add_dequantized "
        "matmul_add_two_computed",
    ),
    Deviation(
        "A product of integers may return floats to any operator",
        {
            "gemm_to_s8": "QGemm Q",
            "gemm_relu_zero_point_10": "QGemm Relu Q",
            "matmul_to_s8": "ToFloat Q",
            "matmul_relu_zero_point_10": "ToFloat Relu Q",
            "fan_out_product_two_q": "ToFloat Q Q",
            "fan_out_product_float": "ToFloat Q Abs",
            "fan_out_product_output": "ToFloat Q",
        },
    ),
    Deviation(
        "QGemm takes operands of any rank",
        {"matmul_add_3d": "QGemm", "matmul_add_1d": "QGemm", "matmul_add_3d_relu": "QGemm"},
    ),
    Deviation(
        "uint8 weights are fused with int8 activations",
        {"conv_s8_u8_weight": "QLinearConv", "gemm_s8_u8_weight": "QGemm", "matmul_s8_u8_weight": "QLinearMatMul"},
    ),
    Deviation(
        "More operators move integers",
        {
            "max_pool_u16": "MaxPool",
            "max_pool_opset_11": "MaxPool",
            "reduce_max_u16": "ReduceMax",
            "reduce_max_opset_11": "ReduceMax",
            "reduce_min_u16": "ReduceMin",
            "pad_same": "Pad",
            "resize_u16": "Resize",
            "depth_to_space_u16": "DepthToSpace",
            "space_to_depth_same": "SpaceToDepth",
            "space_to_depth_u16": "SpaceToDepth",
            "transpose_u4": "Q Transpose DQ",
            "argmax_u16": "ArgMax",
            "argmin": "ArgMin",
            "split_other": "Split DQ Q",
            "split_to_s8": "Split DQ DQ Q Q",
            "split_one_unused": "Split",
            "split_one_float": "Split DQ",
        },
    ),
    Deviation(
        "An absent zero point counts as 0, and a scale of one element as a scalar",
        {
            "conv_clip_scale_of_one_element": "QLinearConv",
            "gemm_per_channel_no_zero_point": "QGemm",
            "relu_of_float_no_zero_point": "Q",
            "transpose_one_zero_point_absent": "Transpose",
        },
    ),
    Deviation("A redundant clamp is removed at the graph's input, too", {"clip_of_float": "Q"}),
    Deviation(
        "Operators on constants are computed when the model is loaded",
        {"gather_constant": "", "gather_constant_dq": "DQ"},
    ),
    _as_in_file(
        "Operators that onnxruntime fuses and then fails to run stay in floats",
        "conv_per_channel_wrong_axis conv_blocked conv_input_per_channel average_pool_dilations",
    ),
    _as_in_file("The bias of Gemm must have the product's scale", "gemm_bias_scale_very_wrong gemm_bias_zero_point"),
    _as_in_file("The bias of Conv must have the product's scale within 1 percent", "conv_bias_scale_tiny"),
    _as_in_file(
        "Products of floats by quantized weights that are not in blocks run in floats",
        "gemm_weight_only matmul_weight_only",
    ),
    Deviation(
        "Products and convolutions of 16 by 8 bits run on integers",
        {"gemm_u16": "ToFloat Q", "matmul_u16": "ToFloat Q", "matmul_no_q_u16": "ToFloat"}
        | dict.fromkeys(("conv_u16", "conv_bias_float_u16", "conv_relu_u16"), "ConvInteger Q"),
    ),
    Deviation(
        "Products and convolutions by 4-bit constants that are not in blocks run on integers",
        {"conv_weight_s4": "QLinearConv", "gemm_s4": "QGemm", "matmul_s4": "QLinearMatMul"},
    ),
    Deviation(
        "Products by weights in blocks are fused with any first operand", {"matmul_s4_blocked": "DQ MatMulNBits Q"}
    ),
    _as_in_file("The operator Where stays in floats", "where where_s8 where_float_scalar"),
    _as_in_file(
        "DequantizeLinear of an integer graph input needs a zero point, which gives the input's type",
        "conv_no_zero_points matmul_no_q_no_zero_points add_no_zero_points sigmoid_no_zero_point "
        "reshape_no_zero_point_dq",
    ),
    _as_in_file("Scales and zero points must be constants", "scale_given"),
    _as_in_file("Scales of movers must be positive", "transpose_negative_scale"),
    _as_in_file("Images must have at most two spatial dimensions", "conv_3d conv_weight_of_input_3d"),
    _as_in_file(
        "If weights are computed, an attribute must give the number of spatial dimensions",
        "conv_weight_of_input_without_sizes",
    ),
    _as_in_file("Scales must be float32", "conv_float16_scales matmul_float16_scales"),
    Deviation(
        "Operators that change nothing may remain",
        {
            "identity_other": FILE,
            "identity_dq": FILE,
            "identity_q": FILE,
            "dq_q": FILE,
            "dq_q_u16": FILE,
            "relu_same": "DQ Q",
            "clip_wider_same": "DQ Q",
            "hardswish_stays": FILE,
        },
    ),
)
OF = {name: deviation for deviation in DEVIATIONS for name in deviation.models}
assert len(OF) == sum(len(each.models) for each in DEVIATIONS), "a model has two reasons"
