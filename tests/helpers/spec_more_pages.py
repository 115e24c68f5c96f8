"""The pages of seven more operators, copied by hand like those in `spec_pages`, which adds these to its own."""

PAGES = {
    "matrix_multiply_integer": {
        "5_2": """
            ATensor | Input | 2 to 4 | INT8, UINT8
            AZeroPointTensor | Optional input | 1 to 4 | INT8, UINT8
            BTensor | Input | 2 to 4 | INT8, UINT8
            BZeroPointTensor | Optional input | 1 to 4 | INT8, UINT8
            OutputTensor | Output | 2 to 4 | INT32
        """,
        "4_0": """
            ATensor | Input | 2 to 4 | INT8, UINT8
            AZeroPointTensor | Optional input | 1 to 4 | INT8, UINT8
            BTensor | Input | 2 to 4 | INT8, UINT8
            BZeroPointTensor | Optional input | 2 to 4 | INT8, UINT8
            OutputTensor | Output | 2 to 4 | INT32
        """,
        "2_1": """
            ATensor | Input | 4 | INT8, UINT8
            AZeroPointTensor | Optional input | 4 | INT8, UINT8
            BTensor | Input | 4 | INT8, UINT8
            BZeroPointTensor | Optional input | 4 | INT8, UINT8
            OutputTensor | Output | 4 | INT32
        """,
    },
    "convolution_integer": {
        "4_0": """
            InputTensor | Input | 3 to 4 | INT8, UINT8
            InputZeroPointTensor | Optional input | 1 to 4 | INT8, UINT8
            FilterTensor | Input | 3 to 4 | INT8, UINT8
            FilterZeroPointTensor | Optional input | 1 to 4 | INT8, UINT8
            OutputTensor | Output | 3 to 4 | INT32
        """,
        "2_1": """
            InputTensor | Input | 4 | INT8, UINT8
            InputZeroPointTensor | Optional input | 4 | INT8, UINT8
            FilterTensor | Input | 4 | INT8, UINT8
            FilterZeroPointTensor | Optional input | 4 | INT8, UINT8
            OutputTensor | Output | 4 | INT32
        """,
    },
    "dynamic_quantize_linear": {
        "4_0": """
            InputTensor | Input | 1 to 8 | FLOAT32, FLOAT16
            OutputTensor | Output | 1 to 8 | INT8, UINT8
            OutputScaleTensor | Output | 1 to 8 | FLOAT32
            OutputZeroPointTensor | Output | 1 to 8 | INT8, UINT8
        """,
    },
    "matrix_multiply_integer_to_float": {
        "6_2": """
            ATensor | Input | 2 to 4 | INT32, INT16, INT8, UINT32, UINT16, UINT8
            AScaleTensor | Input | 1 to 4 | FLOAT32, FLOAT16
            AZeroPointTensor | Optional input | 1 to 4 | INT32, INT16, INT8, UINT32, UINT16, UINT8
            BTensor | Input | 2 to 4 | INT32, INT16, INT8, UINT32, UINT16, UINT8
            BScaleTensor | Input | 1 to 4 | FLOAT32, FLOAT16
            BZeroPointTensor | Optional input | 1 to 4 | INT32, INT16, INT8, UINT32, UINT16, UINT8
            BiasTensor | Optional input | 2 to 4 | FLOAT32, FLOAT16
            OutputTensor | Output | 2 to 4 | FLOAT32, FLOAT16
        """,
    },
    "quantized_linear_average_pooling": {
        "6_2": """
            InputTensor | Input | 4 to 5 | INT8, UINT8
            InputScaleTensor | Input | 1 to 5 | FLOAT32
            InputZeroPointTensor | Optional input | 1 to 5 | INT8, UINT8
            OutputScaleTensor | Input | 1 to 5 | FLOAT32
            OutputZeroPointTensor | Optional input | 1 to 5 | INT8, UINT8
            OutputTensor | Output | 4 to 5 | INT8, UINT8
        """,
    },
    "quantize": {
        "6_3": """
            InputTensor | Input | 1 to 8 | FLOAT32, FLOAT16
            QuantizationTensors | Array of inputs | 1 to 8 | FLOAT32, FLOAT16, INT8, INT4, UINT8, UINT4
            OutputTensor | Output | 1 to 8 | INT8, INT4, UINT8, UINT4
        """,
    },
    "dequantize": {
        "6_3": """
            InputTensor | Input | 1 to 8 | INT8, INT4, UINT8, UINT4
            QuantizationTensors | Array of inputs | 1 to 8 | FLOAT32, FLOAT16, INT8, INT4, UINT8, UINT4
            OutputTensor | Output | 1 to 8 | FLOAT32, FLOAT16
        """,
    },
}

INTRODUCED = {
    "matrix_multiply_integer": "2_1",
    "convolution_integer": "2_1",
    "dynamic_quantize_linear": "4_0",
    "matrix_multiply_integer_to_float": "6_2",
    "quantized_linear_average_pooling": "6_2",
    "quantize": "6_3",
    "dequantize": "6_3",
}

CONSTRAINTS = {
    "matrix_multiply_integer": (
        ("DimensionCount", "ATensor, BTensor, OutputTensor"),
        ("DataType", "BTensor, BZeroPointTensor"),
        ("DataType", "ATensor, AZeroPointTensor"),
    ),
    "convolution_integer": (
        ("DimensionCount", "FilterZeroPointTensor, InputZeroPointTensor"),
        ("DimensionCount", "FilterTensor, InputTensor, OutputTensor"),
        ("DataType", "InputTensor, InputZeroPointTensor"),
        ("DataType", "FilterTensor, FilterZeroPointTensor"),
    ),
    "dynamic_quantize_linear": (
        ("DimensionCount", "InputTensor, OutputScaleTensor, OutputTensor, OutputZeroPointTensor"),
        ("DataType", "OutputTensor, OutputZeroPointTensor"),
        # From the formula: each value of Output is computed from the value of Input at the same position.
        ("Sizes", "InputTensor, OutputTensor"),
    ),
    "matrix_multiply_integer_to_float": (
        ("DimensionCount", "AScaleTensor, AZeroPointTensor, BScaleTensor, BZeroPointTensor"),
        ("DimensionCount", "ATensor, BiasTensor, BTensor, OutputTensor"),
        ("Sizes", "BiasTensor, OutputTensor"),
        # The page has one bullet for "ATensor, AZeroPointTensor, BTensor, BZeroPointTensor". Devices do not enforce it:
        # ONNX Runtime's tests on devices pass A and B of different 8-bit types, as in MatMulIntegerToFloat_FP16_U8S8.
        ("DataType", "ATensor, AZeroPointTensor"),
        ("DataType", "BTensor, BZeroPointTensor"),
        ("DataType", "AScaleTensor, BiasTensor, BScaleTensor, OutputTensor"),
    ),
    "quantized_linear_average_pooling": (
        ("DimensionCount", "InputTensor, OutputTensor"),
        ("DataType", "InputTensor, InputZeroPointTensor"),
        ("DataType", "OutputTensor, OutputZeroPointTensor"),
    ),
    # The pages of these two operators have only the first bullet. The second is from WebNN, which was modeled on them.
    # No bullet can say which types QuantizationTensors have, or that their sizes divide the others.
    "quantize": (
        ("DimensionCount", "InputTensor, OutputTensor, QuantizationTensors"),
        ("Sizes", "InputTensor, OutputTensor"),
    ),
    "dequantize": (
        ("DimensionCount", "InputTensor, OutputTensor, QuantizationTensors"),
        ("Sizes", "InputTensor, OutputTensor"),
    ),
}

# The structs of directml.h, field by field.
FIELDS = {
    "matrix_multiply_integer": "ATensor, AZeroPointTensor, BTensor, BZeroPointTensor, OutputTensor",
    "convolution_integer": (
        "InputTensor, InputZeroPointTensor, FilterTensor, FilterZeroPointTensor, OutputTensor, DimensionCount, "
        "Strides, Dilations, StartPadding, EndPadding, GroupCount"
    ),
    "dynamic_quantize_linear": "InputTensor, OutputTensor, OutputScaleTensor, OutputZeroPointTensor",
    "matrix_multiply_integer_to_float": (
        "ATensor, AScaleTensor, AZeroPointTensor, BTensor, BScaleTensor, BZeroPointTensor, BiasTensor, OutputTensor"
    ),
    "quantized_linear_average_pooling": (
        "InputTensor, InputScaleTensor, InputZeroPointTensor, OutputScaleTensor, OutputZeroPointTensor, OutputTensor, "
        "DimensionCount, Strides, WindowSize, StartPadding, EndPadding, Dilations, IncludePadding"
    ),
    "quantize": "InputTensor, QuantizationType, QuantizationTensorCount, QuantizationTensors, OutputTensor",
    "dequantize": "InputTensor, QuantizationType, QuantizationTensorCount, QuantizationTensors, OutputTensor",
}
# DML_QUANTIZATION_TYPE. directml.h gives no explicit values, so the order determines them.
QUANTIZATION_TYPES = {"NONE": 0, "SCALE": 1, "SCALE_ZERO_POINT": 2}
# The tensors of an array, by their names in errors (SLOTS), and the tensor with whose type each agrees (TYPES). For
# SLOTS, the pages mention only QuantizationType; for TYPES, they have only the row of all types.
SLOTS = {"QuantizationTensors": ("QuantizationTensors[0]", "QuantizationTensors[1]")}
TYPES = {
    "quantize": (("InputTensor", "QuantizationTensors[0]"), ("OutputTensor", "QuantizationTensors[1]")),
    "dequantize": (("OutputTensor", "QuantizationTensors[0]"), ("InputTensor", "QuantizationTensors[1]")),
}
