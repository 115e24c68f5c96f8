"""DirectML's pages as plain text: every tensor-support row and every tensor-constraint bullet, copied by hand.

A second transcription, so that one slip in `jaxdml._directml.pages` cannot go unnoticed. This file does not import
jaxdml; data types, levels and tensors have the names on the pages. `spec_tables` reads this text.
"""

from helpers import spec_more_pages

# directml.h
DATA_TYPES = {
    "UNKNOWN": 0,
    "FLOAT32": 1,
    "FLOAT16": 2,
    "UINT32": 3,
    "UINT16": 4,
    "UINT8": 5,
    "INT32": 6,
    "INT16": 7,
    "INT8": 8,
    "FLOAT64": 9,
    "UINT64": 10,
    "INT64": 11,
    "UINT4": 12,
    "INT4": 13,
}
FEATURE_LEVELS = {
    "1_0": 0x1000,
    "2_0": 0x2000,
    "2_1": 0x2100,
    "3_0": 0x3000,
    "3_1": 0x3100,
    "4_0": 0x4000,
    "4_1": 0x4100,
    "5_0": 0x5000,
    "5_1": 0x5100,
    "5_2": 0x5200,
    "6_0": 0x6000,
    "6_1": 0x6100,
    "6_2": 0x6200,
    "6_3": 0x6300,
    "6_4": 0x6400,
    "jaxdml": 0xFFFF,  # not a level of DirectML
}

PAGES = {
    "element_wise_dequantize_linear": {
        "6_2": """
            InputTensor | Input | 1 to 8 | INT32, INT16, INT8, UINT32, UINT16, UINT8
            ScaleTensor | Input | 1 to 8 | FLOAT32, FLOAT16
            ZeroPointTensor | Optional input | 1 to 8 | INT32, INT16, INT8, UINT32, UINT16, UINT8
            OutputTensor | Output | 1 to 8 | FLOAT32, FLOAT16
        """,
        "6_0": """
            InputTensor | Input | 1 to 8 | INT32, INT16, INT8, UINT32, UINT16, UINT8
            ScaleTensor | Input | 1 to 8 | FLOAT32, FLOAT16
            ZeroPointTensor | Input | 1 to 8 | INT32, INT16, INT8, UINT32, UINT16, UINT8
            OutputTensor | Output | 1 to 8 | FLOAT32, FLOAT16
        """,
        "3_0": """
            InputTensor | Input | 1 to 8 | INT32, INT16, INT8, UINT32, UINT16, UINT8
            ScaleTensor | Input | 1 to 8 | FLOAT32
            ZeroPointTensor | Input | 1 to 8 | INT32, INT16, INT8, UINT32, UINT16, UINT8
            OutputTensor | Output | 1 to 8 | FLOAT32
        """,
        "2_1": """
            InputTensor | Input | 4 | INT32, INT16, INT8, UINT32, UINT16, UINT8
            ScaleTensor | Input | 4 | FLOAT32
            ZeroPointTensor | Input | 4 | INT32, INT16, INT8, UINT32, UINT16, UINT8
            OutputTensor | Output | 4 | FLOAT32
        """,
        "1_0": """
            InputTensor | Input | 4 | UINT8
            ScaleTensor | Input | 4 | FLOAT32
            ZeroPointTensor | Input | 4 | UINT8
            OutputTensor | Output | 4 | FLOAT32
        """,
    },
    "element_wise_quantize_linear": {
        # jaxdml's own extension; the page ends at 6_2.
        "jaxdml": """
            InputTensor | Input | 1 to 8 | FLOAT32, FLOAT16, INT32
            ScaleTensor | Input | 1 to 8 | FLOAT32, FLOAT16
            ZeroPointTensor | Optional input | 1 to 8 | INT16, INT8, UINT16, UINT8
            OutputTensor | Output | 1 to 8 | INT16, INT8, UINT16, UINT8
        """,
        "6_2": """
            InputTensor | Input | 1 to 8 | FLOAT32, FLOAT16, INT32
            ScaleTensor | Input | 1 to 8 | FLOAT32, FLOAT16
            ZeroPointTensor | Optional input | 1 to 8 | INT8, UINT8
            OutputTensor | Output | 1 to 8 | INT8, UINT8
        """,
        "6_0": """
            InputTensor | Input | 1 to 8 | FLOAT32, FLOAT16, INT32
            ScaleTensor | Input | 1 to 8 | FLOAT32, FLOAT16
            ZeroPointTensor | Input | 1 to 8 | INT8, UINT8
            OutputTensor | Output | 1 to 8 | INT8, UINT8
        """,
        "3_0": """
            InputTensor | Input | 1 to 8 | FLOAT32, INT32
            ScaleTensor | Input | 1 to 8 | FLOAT32
            ZeroPointTensor | Input | 1 to 8 | INT8, UINT8
            OutputTensor | Output | 1 to 8 | INT8, UINT8
        """,
        "2_1": """
            InputTensor | Input | 4 | FLOAT32, INT32
            ScaleTensor | Input | 4 | FLOAT32
            ZeroPointTensor | Input | 4 | INT8, UINT8
            OutputTensor | Output | 4 | INT8, UINT8
        """,
        "1_0": """
            InputTensor | Input | 4 | FLOAT32
            ScaleTensor | Input | 4 | FLOAT32
            ZeroPointTensor | Input | 4 | UINT8
            OutputTensor | Output | 4 | UINT8
        """,
    },
    "element_wise_quantized_linear_add": {
        "4_0": """
            ATensor | Input | 1 to 8 | INT8, UINT8
            AScaleTensor | Input | 1 to 8 | FLOAT32
            AZeroPointTensor | Optional input | 1 to 8 | INT8, UINT8
            BTensor | Input | 1 to 8 | INT8, UINT8
            BScaleTensor | Input | 1 to 8 | FLOAT32
            BZeroPointTensor | Optional input | 1 to 8 | INT8, UINT8
            OutputScaleTensor | Input | 1 to 8 | FLOAT32
            OutputZeroPointTensor | Optional input | 1 to 8 | INT8, UINT8
            OutputTensor | Output | 1 to 8 | INT8, UINT8
        """,
    },
    "quantized_linear_matrix_multiply": {
        "4_0": """
            ATensor | Input | 2 to 4 | INT8, UINT8
            AScaleTensor | Input | 1 to 4 | FLOAT32
            AZeroPointTensor | Optional input | 1 to 4 | INT8, UINT8
            BTensor | Input | 2 to 4 | INT8, UINT8
            BScaleTensor | Input | 1 to 4 | FLOAT32
            BZeroPointTensor | Optional input | 1 to 4 | INT8, UINT8
            OutputScaleTensor | Input | 1 to 4 | FLOAT32
            OutputZeroPointTensor | Optional input | 1 to 4 | INT8, UINT8
            OutputTensor | Output | 2 to 4 | INT8, UINT8
        """,
        "2_1": """
            ATensor | Input | 4 | INT8, UINT8
            AScaleTensor | Input | 4 | FLOAT32
            AZeroPointTensor | Optional input | 4 | INT8, UINT8
            BTensor | Input | 4 | INT8, UINT8
            BScaleTensor | Input | 4 | FLOAT32
            BZeroPointTensor | Optional input | 4 | INT8, UINT8
            OutputScaleTensor | Input | 4 | FLOAT32
            OutputZeroPointTensor | Optional input | 4 | INT8, UINT8
            OutputTensor | Output | 4 | INT8, UINT8
        """,
    },
    "quantized_linear_convolution": {
        "5_2": """
            InputTensor | Input | 3 to 4 | INT8, UINT8
            InputScaleTensor | Input | 1 to 4 | FLOAT32
            InputZeroPointTensor | Optional input | 1 to 4 | INT8, UINT8
            FilterTensor | Input | 3 to 4 | INT8, UINT8
            FilterScaleTensor | Input | 1 to 4 | FLOAT32
            FilterZeroPointTensor | Optional input | 1 to 4 | INT8, UINT8
            BiasTensor | Optional input | 3 to 4 | INT32
            OutputScaleTensor | Input | 1 to 4 | FLOAT32
            OutputZeroPointTensor | Optional input | 1 to 4 | INT8, UINT8
            OutputTensor | Output | 3 to 4 | INT8, UINT8
        """,
        "4_0": """
            InputTensor | Input | 3 to 4 | INT8, UINT8
            InputScaleTensor | Input | 1 to 4 | FLOAT32
            InputZeroPointTensor | Optional input | 1 to 4 | INT8, UINT8
            FilterTensor | Input | 3 to 4 | INT8, UINT8
            FilterScaleTensor | Input | 3 to 4 | FLOAT32
            FilterZeroPointTensor | Optional input | 1 to 4 | INT8, UINT8
            BiasTensor | Optional input | 3 to 4 | INT32
            OutputScaleTensor | Input | 1 to 4 | FLOAT32
            OutputZeroPointTensor | Optional input | 1 to 4 | INT8, UINT8
            OutputTensor | Output | 3 to 4 | INT8, UINT8
        """,
        "2_1": """
            InputTensor | Input | 4 | INT8, UINT8
            InputScaleTensor | Input | 4 | FLOAT32
            InputZeroPointTensor | Optional input | 4 | INT8, UINT8
            FilterTensor | Input | 4 | INT8, UINT8
            FilterScaleTensor | Input | 4 | FLOAT32
            FilterZeroPointTensor | Optional input | 4 | INT8, UINT8
            BiasTensor | Optional input | 4 | INT32
            OutputScaleTensor | Input | 4 | FLOAT32
            OutputZeroPointTensor | Optional input | 4 | INT8, UINT8
            OutputTensor | Output | 4 | INT8, UINT8
        """,
    },
}

# "This operator was introduced in ..."
INTRODUCED = {
    "element_wise_dequantize_linear": "1_0",
    "element_wise_quantize_linear": "1_0",
    "element_wise_quantized_linear_add": "4_0",
    "quantized_linear_matrix_multiply": "2_1",
    "quantized_linear_convolution": "2_1",
}

# "... must have the same ..."
CONSTRAINTS = {
    "element_wise_dequantize_linear": (
        ("DimensionCount", "InputTensor, OutputTensor, ScaleTensor, ZeroPointTensor"),
        ("Sizes", "InputTensor, OutputTensor, ScaleTensor, ZeroPointTensor"),
        ("DataType", "InputTensor, ZeroPointTensor"),
        ("DataType", "OutputTensor, ScaleTensor"),
    ),
    "element_wise_quantize_linear": (
        ("DimensionCount", "InputTensor, OutputTensor, ScaleTensor, ZeroPointTensor"),
        ("Sizes", "InputTensor, OutputTensor, ScaleTensor, ZeroPointTensor"),
        ("DataType", "OutputTensor, ZeroPointTensor"),
    ),
    "element_wise_quantized_linear_add": (
        (
            "DimensionCount",
            "AScaleTensor, ATensor, AZeroPointTensor, BScaleTensor, BTensor, BZeroPointTensor, OutputScaleTensor, "
            "OutputTensor, OutputZeroPointTensor",
        ),
        ("DataType", "BTensor, BZeroPointTensor"),
        ("DataType", "OutputTensor, OutputZeroPointTensor"),
        ("DataType", "ATensor, AZeroPointTensor"),
        # In prose: "adds every element in ATensor to its corresponding element in BTensor".
        ("Sizes", "ATensor, BTensor, OutputTensor"),
    ),
    "quantized_linear_matrix_multiply": (
        (
            "DimensionCount",
            "AScaleTensor, AZeroPointTensor, BScaleTensor, BZeroPointTensor, OutputScaleTensor, OutputZeroPointTensor",
        ),
        ("DimensionCount", "ATensor, BTensor, OutputTensor"),
        ("DataType", "BTensor, BZeroPointTensor"),
        ("DataType", "OutputTensor, OutputZeroPointTensor"),
        ("DataType", "ATensor, AZeroPointTensor"),
    ),
    "quantized_linear_convolution": (
        ("DimensionCount", "BiasTensor, FilterTensor, InputTensor, OutputTensor"),
        ("DataType", "OutputTensor, OutputZeroPointTensor"),
        ("DataType", "InputTensor, InputZeroPointTensor"),
        ("DataType", "FilterTensor, FilterZeroPointTensor"),
    ),
}

# The seven operators in a separate file.
PAGES |= spec_more_pages.PAGES
INTRODUCED |= spec_more_pages.INTRODUCED
CONSTRAINTS |= spec_more_pages.CONSTRAINTS
SLOTS, TYPES = spec_more_pages.SLOTS, spec_more_pages.TYPES
