"""DML_ELEMENT_WISE_QUANTIZED_LINEAR_ADD_OPERATOR_DESC."""

from typing import ClassVar

from jaxdml._directml.data_types import BYTES, FLOAT32
from jaxdml._directml.desc import OperatorDesc, TensorDesc, operator_desc
from jaxdml._directml.feature_levels import FeatureLevel, Same, Support
from jaxdml._directml.fields import INPUT, OUTPUT, tensor
from jaxdml._directml.messages import Remedy
from jaxdml._directml.page import Page
from jaxdml._directml.size_checks import Form, check_form


@operator_desc
class ElementWiseQuantizedLinearAddDesc(OperatorDesc):
    """DML_ELEMENT_WISE_QUANTIZED_LINEAR_ADD_OPERATOR_DESC.

    ATensor, BTensor and OutputTensor have the same sizes. Scales and zero points have one element and ATensor's rank.
    Zero points may be None.

    Source: https://learn.microsoft.com/windows/win32/api/directml/ns-directml-dml_element_wise_quantized_linear_add_operator_desc
    """

    operator: ClassVar[str] = "element_wise_quantized_linear_add"

    a_tensor: TensorDesc | None = tensor(INPUT)
    a_scale_tensor: TensorDesc | None = tensor(INPUT.scale_of("a_tensor"))
    a_zero_point_tensor: TensorDesc | None = tensor(INPUT.zero_point_of("a_tensor"))
    b_tensor: TensorDesc | None = tensor(INPUT)
    b_scale_tensor: TensorDesc | None = tensor(INPUT.scale_of("b_tensor"))
    b_zero_point_tensor: TensorDesc | None = tensor(INPUT.zero_point_of("b_tensor"))
    output_scale_tensor: TensorDesc | None = tensor(INPUT.scale_of("output_tensor"))
    output_zero_point_tensor: TensorDesc | None = tensor(INPUT.zero_point_of("output_tensor"))
    output_tensor: TensorDesc | None = tensor(OUTPUT)


def _check(desc: ElementWiseQuantizedLinearAddDesc) -> None:
    assert desc.a_tensor is not None
    one = Form((1,) * len(desc.a_tensor.sizes), "one value")
    for name in PARAMETERS:
        check_form(desc, name, [one])


def _constant(b: TensorDesc) -> Remedy | None:
    if b.sizes:
        return None
    return Remedy("tensors do not broadcast: write jnp.broadcast_to(b, a.shape)", "give it the sizes of ATensor")


DATA, SCALE, ZERO_POINT = Support((1, 8), BYTES), Support((1, 8), FLOAT32), Support((1, 8), BYTES, optional=True)
TENSORS = ("ATensor", "BTensor", "OutputTensor")
PARAMETERS = tuple(f"{x}{kind}Tensor" for x in ("A", "B", "Output") for kind in ("Scale", "ZeroPoint"))
PAGE = Page(
    desc=ElementWiseQuantizedLinearAddDesc,
    support={
        FeatureLevel.LEVEL_4_0: {
            "ATensor": DATA,
            "AScaleTensor": SCALE,
            "AZeroPointTensor": ZERO_POINT,
            "BTensor": DATA,
            "BScaleTensor": SCALE,
            "BZeroPointTensor": ZERO_POINT,
            "OutputScaleTensor": SCALE,
            "OutputZeroPointTensor": ZERO_POINT,
            "OutputTensor": DATA,
        },
    },
    constraints=(
        Same("dimension_count", (*TENSORS, *PARAMETERS)),
        Same("sizes", TENSORS),
        Same("data_type", ("ATensor", "AZeroPointTensor")),
        Same("data_type", ("BTensor", "BZeroPointTensor")),
        Same("data_type", ("OutputTensor", "OutputZeroPointTensor")),
    ),
    check=_check,
    remedies={("BTensor", "dimension_count"): _constant},
)
