"""DML_QUANTIZE_OPERATOR_DESC."""

from typing import ClassVar

from jaxdml._directml.data_types import FLOATS, NIBBLES_AND_BYTES
from jaxdml._directml.desc import OperatorDesc, TensorDesc, operator_desc
from jaxdml._directml.feature_levels import FeatureLevel, Same, Support
from jaxdml._directml.fields import INPUT, OUTPUT, choice, count, tensor, tensors
from jaxdml._directml.page import Page
from jaxdml._directml.quantization import QuantizationType, check_quantization


@operator_desc
class QuantizeDesc(OperatorDesc):
    """DML_QUANTIZE_OPERATOR_DESC.

    QuantizationTensors holds a scale, or a scale and a zero point, as QuantizationType specifies. All tensors have the
    same rank. Scale and zero point have one value for each block of the input, so their sizes divide the input's.

    Source: https://learn.microsoft.com/windows/ai/directml/api/ns-directml-dml_quantize_operator_desc
    """

    operator: ClassVar[str] = "quantize"

    input_tensor: TensorDesc | None = tensor(INPUT)
    quantization_type: QuantizationType | None = choice(QuantizationType, "DML_QUANTIZATION_TYPE_")
    quantization_tensor_count: int | None = count(1, "the number of QuantizationTensors")
    quantization_tensors: tuple[TensorDesc, ...] | None = tensors(
        INPUT.scale_of("output_tensor"), INPUT.zero_point_of("output_tensor"), parameters=("scale", "zero_point")
    )
    output_tensor: TensorDesc | None = tensor(OUTPUT)


def _check(desc: QuantizeDesc) -> None:
    check_quantization(desc, floats="InputTensor", integers="OutputTensor")


PAGE = Page(
    desc=QuantizeDesc,
    support={
        FeatureLevel.LEVEL_6_3: {
            "InputTensor": Support((1, 8), FLOATS),
            "QuantizationTensors": Support((1, 8), FLOATS + NIBBLES_AND_BYTES),
            "OutputTensor": Support((1, 8), NIBBLES_AND_BYTES),
        },
    },
    constraints=(
        Same("dimension_count", ("InputTensor", "OutputTensor", "QuantizationTensors")),
        Same("sizes", ("InputTensor", "OutputTensor")),
    ),
    check=_check,
)
