"""PTX is read, and instructions that saturate or round differently from the formulas are refused."""

import re

import pytest

from accelerators import allowed, ptx, verdict
from accelerators.snippets import MATRIX, kernel


def complaints(body, corrected=()):
    return list(verdict.of_kernels(ptx.kernels(kernel(body)), corrected))


def test_a_kernel_is_read():
    (found,) = ptx.kernels(kernel("st.global.v2.b32 [%rd1+-2047], {%r1, %r2};"))
    assert found.name == "kernel"
    assert found.instructions == [
        ("ld.param::entry.b64", ("%rd1", "[kernel_param_0]")),
        ("mov.b32", ("%r1", "0")),
        ("ld.global.b32", ("{ %r2 }", "[ %rd1 + 0 ]")),
        ("st.global.v2.b32", ("[%rd1+-2047]", "{%r1, %r2}")),
        ("bra", ("$L__BB0_1",)),
        ("ret", ()),
    ]


@pytest.mark.parametrize(
    "text", [".entry kernel() { add.s32 %r1, %r1, %r1; ", kernel("?!;"), kernel("ADD %r1;"), kernel(".hint\nret;")]
)
def test_what_cannot_be_read_is_an_error(text):
    with pytest.raises(ValueError, match=r"not an instruction|not closed"):
        ptx.kernels(text)


@pytest.mark.parametrize("opcode", [
    "div.full.f32", "div.approx.f32", "div.full.ftz.f32", "rcp.approx.ftz.f32", "sqrt.approx.f32", "rsqrt.approx.f32",
    "ex2.approx.ftz.f32", "lg2.approx.f32", "tanh.approx.f32", "fma.rn.f32", "fma.rn.f16", "mul.f32", "add.f32",
    "add.rn.ftz.f32", "mul.rz.f32", "abs.ftz.f32", "max.ftz.f32", "setp.lt.ftz.f32", "cvt.rna.tf32.f32",
    "cvt.rz.bf16x2.f32", "cvt.sat.f32.f32", "cvt.rz.f32.s32", "cvt.rn.ftz.f16.f32", "atom.global.add.f32",
    "red.global.add.f32", "mad.rn.f32", "mul.rn.bf16",
])  # fmt: skip
def test_floats_that_are_not_allowed_are_refused(opcode):
    assert complaints(f"{opcode} %f1, %f2, %f3;") == [opcode]


@pytest.mark.parametrize("opcode", [
    "add.rn.f32", "sub.rn.f32", "mul.rn.f32", "cvt.rn.f32.s32", "cvt.rni.f32.f32", "cvt.rzi.s32.f32", "cvt.f32.f16",
    "cvt.rn.f16x2.f32", "cvt.rn.bf16.f32", "add.rn.bf16",
    "setp.nan.f32", "setp.lt.and.f32", "selp.f32", "min.NaN.f32", "abs.f32", "copysign.f32",
    "div.rn.f32", "add.s32", "mad.lo.s32", "redux.sync.add.s32", "ld.global.nc.v4.b32", "shfl.sync.bfly.b32",
])  # fmt: skip
def test_what_rounds_as_the_formulas_do_is_allowed(opcode):
    assert complaints(f"{opcode} %f1, %f2, %f3;") == []


@pytest.mark.parametrize("opcode", [
    "add.sat.s32", "mad.hi.sat.s32", "call.uni", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.u8.u8.s32", "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16",
])  # fmt: skip
def test_saturation_calls_and_other_matrices_are_refused(opcode):
    assert opcode in complaints(f"mov.b32 %r9, 0; {opcode} {{%r5}}, {{%r6}}, {{%r7}}, {{%r9}};")


FLOATS = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
BYTES = "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32"


@pytest.mark.parametrize(("opcode", "a", "b", "is_right"), [
    (BYTES, "%r1, %r2, %r3, %r4", "%r5, %r6", True),
    (BYTES, "%r1, %r2, %r1, %r2", "%r5, %r6", True),
    (BYTES, "%r1, %r2, %r3, %r4", "%r5, %r5", True),
    (BYTES, "%r1, %r2, %r1, %r2", "%r5, %r5", False),
    (FLOATS, "%r1, %r2, %r3, %r4", "%r5, %r6", True),
    (FLOATS, "%r1, %r2, %r1, %r2", "%r5, %r5", False),
    (FLOATS.replace("k16", "k8"), "%r1, %r2", "%r5", True),
])  # fmt: skip
def test_matrices_are_not_multiplied_twice(opcode, a, b, is_right):
    """As XLA's kernels for int8 do, which load 16 terms for an instruction that multiplies 32."""
    found = complaints(
        f"mov.b32 %r9, {'0f00000000' if 'bf16' in opcode else '0'}; {opcode} {{%r11}}, {{{a}}}, {{{b}}}, {{%r9}};"
    )
    assert found == ([] if is_right else [f"{opcode} that gets terms twice"])


def test_an_approximation_is_allowed_as_the_candidate_that_integers_correct():
    assert complaints("div.full.f32 %f1, %f2, %f3;", corrected={"divide"}) == []
    assert complaints("div.approx.f32 %f1, %f2, %f3;", corrected={"divide"}) == ["div.approx.f32"]
    assert complaints("sqrt.approx.f32 %f1, %f2;", corrected={"sqrt"}) == []
    assert complaints("sqrt.approx.f32 %f1, %f2;", corrected={"divide"}) == ["sqrt.approx.f32"]


@pytest.mark.parametrize(("before", "sums", "is_right"), [
    ("mov.b32 %r36, 0;", "{%r36, %r36};", True),
    ("", "{%r1, %r37};", True),  # sums of an earlier round of the loop
    ("mov.b32 %r36, %r1; mov.b32 %r39, %r36;", "{%r39, %r38};", True),
    ("", "{%r1, %r2};", False),  # loaded
    ("", "{%r1, %r90};", False),  # never written
    ("mov.b32 %r36, 5;", "{%r36, %r36};", False),
    ("mov.b32 %r36, %r2;", "{%r36, %r36};", False),
    ("add.s32 %r37, %r37, %r2;", "{%r37, %r38};", False),
])  # fmt: skip
def test_sums_that_saturate_must_begin_with_zeros(before, sums, is_right):
    found = complaints(f"{before} {MATRIX} {sums}")
    assert [text.endswith("does not begin with zeros") for text in found] == [] if is_right else [True]


def test_every_entry_has_a_reason_and_a_pattern():
    for entry in (*allowed.PTX, *allowed.PTX_MATRICES, *allowed.HLO, *allowed.GPU_STEPS, *allowed.CUSTOM_CALLS):
        assert re.compile(entry.pattern)
        assert entry.reason
