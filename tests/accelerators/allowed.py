"""The allowed contents of programs for accelerators, with a reason for each entry. All else with floats is rejected.

An entry's pattern is a regular expression that must match the whole text.
"""

import re
from typing import NamedTuple


class Allowed(NamedTuple):
    pattern: str
    reason: str


INTEGER = r"(?:[su](?:4|8|16|32|64)|pred)"
ORDER = r"(?:eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan)"

# PTX instructions with a float type. Others are refused: .full and .approx err by several units in the last place, .ftz
# flushes subnormals, fma rounds once where the formula rounds twice, and the assembler may fuse a mul and an add
# without .rn into an fma.
PTX = (
    Allowed(r"(?:add|sub|mul)\.rn\.(?:f32|f64)", "rounds once, ties to even; .rn keeps the assembler from fusing it"),
    Allowed(r"(?:add|sub|mul)\.rn\.f16(?:x2)?", "rounds once, ties to even, and keeps subnormals"),
    Allowed(r"(?:add|fma)\.rn\.bf16", "adds, on an A100 with a factor of 1; jaxdml adds bfloat16 only to compare"),
    Allowed(r"(?:div|sqrt)\.rn\.f32", "is rounded correctly, as IEEE 754 says; .rn without .ftz"),
    Allowed(r"(?:abs|neg|copysign)\.(?:f16|f16x2|bf16|f32)", "changes the sign bit only"),
    Allowed(r"(?:min|max)(?:\.NaN)?\.(?:f16|f16x2|f32)", "returns one of its operands"),
    Allowed(rf"setp\.{ORDER}(?:\.(?:and|or|xor))?\.(?:f16|bf16|f32)", "a comparison does not round"),
    Allowed(r"(?:selp|mov)\.(?:f16|f16x2|f32)", "moves bits"),
    Allowed(r"(?:ld|st)\.[\w.:]*f32", "moves bits"),
    Allowed(r"cvt\.rn\.f32\.[su](?:8|16|32|64)", "rounds an integer once, ties to even"),
    Allowed(r"cvt\.rn\.bf16\.s16|sub(?:\.rn)?\.bf16x2", "converts int8 numbers, in steps whose results bfloat16 holds"),
    Allowed(r"cvt\.rni\.f32\.f32", "rounds to an integer, ties to even"),
    Allowed(r"cvt\.r[zmp]i\.[su](?:8|16|32|64)\.f32", "goes to an integer in a direction that its name says"),
    Allowed(r"cvt\.r[zmp]i\.f32\.f32", "goes to an integer in a direction that its name says"),
    Allowed(r"cvt\.f32\.(?:f16|bf16)", "is exact: float32 holds every float16 and every bfloat16"),
    Allowed(r"cvt\.rn\.b?f16(?:x2)?\.f32", "rounds once, ties to even, and keeps subnormals"),
)  # fmt: skip

# PTX of integers is exact modulo 2**32. Saturation, calls of other code, and other matrix instructions are refused.
PTX_MATRICES = (
    Allowed(
        r"mma\.sync\.aligned\.m16n8k(?:16|32)\.row\.col(?:\.satfinite)?\.s32\.s8\.s8\.s32",
        "products of int8 in int32; with .satfinite sums saturate, which none does of at most 131,071 products that "
        "begins with zeros",
    ),
    Allowed(
        r"mma\.sync\.aligned\.m16n8k(?:8|16)\.row\.col\.f32\.bf16\.bf16\.f32",
        "products and sums of integers that float32 holds; NVIDIA documents at least single precision",
    ),
)
INTEGERS_REFUSED = {"sat", "satfinite", "call"}

# HLO: "opcode type" of a result, or "convert to<-from". By XLA's definition, each of these rounds at most once. The
# tests assume that TPUs add, subtract and multiply in this way: their vendor does not document rounding.
HLO = (
    Allowed(r"(?:add|subtract|multiply) f32", "rounds once"),
    Allowed(r"add b?f16", "rounds once; jaxdml adds halves only to compare, where a second rounding changes nothing"),
    Allowed(r"(?:abs|negate) (?:f16|bf16|f32)", "changes the sign bit only"),
    Allowed(r"(?:maximum|minimum|clamp) (?:f16|f32)", "returns one of its operands"),
    Allowed(r"compare pred", "does not round"),
    Allowed(r"is-finite pred", "does not round"),
    Allowed(r"(?:floor|ceil|round-nearest-even) f32", "returns an integer, as its name says"),
    Allowed(rf"convert f32<-{INTEGER}", "rounds an integer once, ties to even"),
    Allowed(rf"convert {INTEGER}<-(?:f16|f32)", "jaxdml converts integral values that the type holds"),
    Allowed(r"convert f32<-(?:f16|bf16)", "is exact: float32 holds every float16 and every bfloat16"),
    Allowed(r"convert b?f16<-f32", "rounds once, ties to even"),
    Allowed(r"reduce-precision f32", "rounds once, ties to even; XLA computes it by integers, or converts to bfloat16"),
    Allowed(r"convert (\w+)<-\1", "moves bits"),
    Allowed(r"bitcast-convert \w+", "moves bits"),
    Allowed(
        r"(?:bitcast|broadcast|concatenate|constant|copy|copy-start|copy-done|dynamic-slice|dynamic-update-slice|gather"
        r"|get-tuple-element|opt-barrier|pad|parameter|reshape|reverse|select|select-and-scatter|slice|transpose|tuple"
        r"|async-start|async-update|async-done|slice-start|slice-done) \w+",
        "moves values",
    ),
    Allowed(r"sort \w+", "moves values, in the order of a function that is read too"),
    Allowed(r"(?:fusion|call|while|conditional) \w+", "its computation is read too"),
    Allowed(r"(?:reduce|reduce-window) \w+", "floats are reduced by one of the functions below"),
)  # fmt: skip
# Functions that may reduce floats: their results do not depend on the order, which the compiler chooses.
REDUCERS = {"maximum": "is associative", "minimum": "is associative"}

# "left x right -> result", with the largest number of products in a sum.
CONTRACTIONS = {
    "s8 x s8 -> s32": (131_071, "131,071 products of at most 2**14 are less than 2**31, in every order"),
    "s8 x s4 -> s32": (131_071, "131,071 products of at most 2**10 are less than 2**31, in every order"),
    "bf16 x bf16 -> f32": (1_024, "1,024 products of int8 numbers, each at most 2**14, are integers up to 2**24"),
}

# The steps that XLA's program for a GPU may have.
GPU_STEPS = (
    Allowed(r"kCustomKernel|kKernel", "its PTX is read"),
    Allowed(r"kCopy|kMemzero|kMemset\w*|kDeviceToDeviceCopy", "moves bits"),
    Allowed(r"kCommandBuffer|kSequential|kWhile|kConditional|kWaitForStreams", "runs other steps, which are read"),
)
# The targets of custom calls.
CUSTOM_CALLS = (
    Allowed("ConcatBitcast", "a TPU's compiler puts arrays side by side, and moves bits"),
    Allowed("AssumeGatherIndicesInBound", "a TPU's compiler marks integers as indices that need no check"),
)


def allows(entries: tuple[Allowed, ...], text: str) -> bool:
    return any(re.fullmatch(entry.pattern, text) for entry in entries)
