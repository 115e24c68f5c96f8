"""HLO is read, and floats, sums and contractions that may differ from the formulas are refused."""

import pytest

from accelerators import hlo, ptx, verdict
from accelerators.snippets import kernel, program
from accelerators.verdict import Compiled

FUSED = """%fused (p: f32[8], q: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %q = f32[8]{0} parameter(1)
  ROOT %divided = f32[8]{0} divide(%p, %q)
}
"""
MANTISSAS = """%lowest = s32[] constant(8388608)
  %lowests = s32[8]{0} broadcast(%lowest), dimensions={}
  %n.1 = s32[8]{0} or(%n, %lowests)
  %m.1 = s32[8]{0} or(%lowests, %m)
  %n.2 = f32[8]{0} convert(%n.1)
  %m.2 = f32[8]{0} convert(%m.1)"""
SCALED = """%scaled = f32[8]{0} multiply(%near, %x)
  ROOT %whole = s32[8]{0} convert(%scaled)"""


def judged(body, parameters="", kind=verdict.of_floats):
    return list(kind(hlo.Program(program(body, parameters))))


def test_a_program_is_read():
    read = hlo.Program(program("ROOT %t = (f32[8]{0}, s32[8]{0:T(8,128)(4,1)}) tuple(%x, /*index=1*/%n)"))
    (root,) = (each for each in read.computations[read.entry] if each.is_root)
    assert (root.opcode, root.types) == ("tuple", [("f32", (8,)), ("s32", (8,))])
    assert [each.name for each in read.operands(root)] == ["x", "n"]
    lowered = hlo.Program(
        "HloModule f\n\nENTRY main.1 {\n  a.1 = f32[8]{0} parameter(0)\n  ROOT b = f32[8]{0} add(a.1, a.1)\n}"
    )
    assert [each.name for each in lowered.operands(lowered.root("main.1"))] == ["a.1", "a.1"]


@pytest.mark.parametrize("text", ["", "ENTRY %main {\n  what is this\n}", "ENTRY %main {\n  %x = (f32[8] add(\n}"])
def test_what_cannot_be_read_is_an_error(text):
    with pytest.raises(ValueError, match=r"without an entry|not an instruction|not closed"):
        hlo.Program(text)


@pytest.mark.parametrize("opcode", [
    "divide", "sqrt", "rsqrt", "cbrt", "exponential", "log", "tanh", "logistic", "power", "remainder", "sine", "erf",
])  # fmt: skip
def test_floats_that_are_not_allowed_are_refused(opcode):
    assert judged(f"ROOT %z = f32[8]{{0}} {opcode}(%x, %y)") == [f"{opcode} f32"]


@pytest.mark.parametrize(("line", "complaint"), [
    ("bf16[8]{0} multiply(%x, %x)", "multiply bf16"),
    ("f16[8]{0} multiply(%x, %x)", "multiply f16"),
    ("f64[8]{0} add(%x, %x)", "add f64"),
    ("s32[8]{0} unheard-of(%x)", "unheard-of s32"),
])  # fmt: skip
def test_other_types_and_unknown_operations_are_refused(line, complaint):
    assert judged(f"ROOT %z = {line}") == [complaint]


@pytest.mark.parametrize("line", [
    "f32[8]{0} add(%x, %y)", "f32[8]{0} multiply(%x, %y)", "f32[8]{0} round-nearest-even(%x)", "f32[8]{0} convert(%n)",
    "f32[8]{0} reduce-precision(%x), exponent_bits=5, mantissa_bits=10",
    "s32[8]{0} convert(%x)", "f16[8]{0} convert(%x)", "bf16[8]{0} convert(%x)",
    "pred[8]{0} compare(%x, %y), direction=LT", "s32[8]{0} divide(%n, %m)",
])  # fmt: skip
def test_what_rounds_as_the_formulas_do_is_allowed(line):
    assert judged(f"ROOT %z = {line}") == []


@pytest.mark.parametrize(("line", "fused"), [("divide(%n.2, %m.2)", ""), ("fusion(%n.2, %m.2), calls=%fused", FUSED)])
def test_a_division_of_mantissas_that_gives_an_integer_is_the_candidate_that_integers_correct(line, fused):
    body = f"{MANTISSAS}\n  %near = f32[8]{{0}} {line}\n  {SCALED}"
    assert judged(body, fused) == []
    assert verdict.corrected(hlo.Program(program(body, fused))) == {"divide"}


def test_a_square_root_of_a_shifted_mantissa_that_gives_an_integer_is_a_candidate_too():
    body = f"""{MANTISSAS}
  %n.3 = s32[8]{{0}} shift-left(%n.1, %m)
  %n.4 = f32[8]{{0}} convert(%n.3)
  %near = f32[8]{{0}} sqrt(%n.4)
  {SCALED}"""
    assert judged(body) == []
    assert verdict.corrected(hlo.Program(program(body))) == {"sqrt"}


@pytest.mark.parametrize("root", ["%x", "%n.2", "%n.3"])  # of any float, of an unshifted mantissa, of any integer
def test_any_other_square_root_is_refused(root):
    body = f"""{MANTISSAS}
  %n.3 = f32[8]{{0}} convert(%n)
  %near = f32[8]{{0}} sqrt({root})
  {SCALED}"""
    assert judged(body) == ["sqrt f32"]
    assert verdict.corrected(hlo.Program(program(body))) == set()


@pytest.mark.parametrize(("divided", "then"), [
    ("%x, %m.2", SCALED),  # not of integers
    ("%n.3, %m.2", SCALED),  # of any integers
    ("%n.5, %m.2", SCALED),  # of a shifted mantissa
    ("%n.2, %zeros", SCALED),  # by a constant that is not a mantissa
    ("%n.2, %m.2", "ROOT %z = f32[8]{0} round-nearest-even(%near)"),
    ("%n.2, %m.2", "ROOT %z = f32[8]{0} multiply(%near, %x)"),  # to a float
    ("%n.2, %m.2", f"%other = f32[8]{{0}} add(%near, %x)\n  {SCALED}"),  # and is also used elsewhere
])  # fmt: skip
def test_any_other_division_is_refused(divided, then):
    body = f"""{MANTISSAS}
  %n.3 = f32[8]{{0}} convert(%n)
  %n.4 = s32[8]{{0}} shift-left(%n.1, %m)
  %n.5 = f32[8]{{0}} convert(%n.4)
  %zeros = f32[8]{{0}} broadcast(%zero), dimensions={{}}
  %near = f32[8]{{0}} divide({divided})
  {then}"""
    assert judged(body) == ["divide f32"]
    assert verdict.corrected(hlo.Program(program(body))) == set()


def test_without_a_division_none_is_corrected():
    assert verdict.corrected(hlo.Program(program("ROOT %z = f32[8]{0} add(%x, %y)"))) == set()


@pytest.mark.parametrize(("line", "complaints"), [
    ("f32[] reduce(%x, %zero), dimensions={0}, to_apply=%largest", []),
    ("f32[] reduce(%x, %zero), dimensions={0}, to_apply=%sum", ["reduce f32 by add"]),
    ("s32[8]{0} custom-call(%n), custom_call_target=\"__cublas$gemm\"", ["custom-call __cublas$gemm"]),
])  # fmt: skip
def test_sums_of_floats_and_calls_are_refused(line, complaints):
    assert judged(f"ROOT %z = {line}", kind=verdict.of_reductions) == complaints


DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"


@pytest.mark.parametrize(("lines", "complaints"), [
    (f"s32[4,4]{{1,0}} dot(%a, %b), {DOT}", ["dot of 200,000 products, at most 131,071"]),
    ("s32[4,4]{1,0} convolution(%a, %b), dim_labels=bf_io->bf", ["convolution of 200,000 products, at most 131,071"]),
    ("s32[4,4]{1,0} dot(%a, %a), lhs_contracting_dims={0}, rhs_contracting_dims={0}", []),
    ("f32[] dot(%x, %y), lhs_contracting_dims={0}, rhs_contracting_dims={0}", ["dot f32 x f32 -> f32"]),
    ("s32[] dot(%n, %m), lhs_contracting_dims={0}, rhs_contracting_dims={0}", ["dot s32 x s32 -> s32"]),
])  # fmt: skip
def test_contractions_are_of_int8_and_of_few_products(lines, complaints):
    assert judged(f"ROOT %z = {lines}", kind=verdict.of_contractions) == complaints


SIXTEEN = "lhs_contracting_dims={0}, rhs_contracting_dims={0}"


@pytest.mark.parametrize(("left", "right", "depth", "complaints"), [
    ("s8", "s8", 1024, []),
    ("s4", "s8", 1024, []),
    ("s8", "s8", 1025, ["dot of 1,025 products, at most 1,024"]),
    ("s16", "s8", 1024, ["dot f32 of other than int8 numbers"]),
    ("f32", "s8", 1024, ["dot f32 of other than int8 numbers"]),
])  # fmt: skip
def test_products_of_bfloat16_are_of_few_int8_numbers(left, right, depth, complaints):
    body = f"""%p = {left}[{depth}] parameter(6)
  %q = {right}[{depth}] parameter(7)
  %p.1 = bf16[{depth}] convert(%p)
  %q.1 = bf16[{depth}] convert(%q)
  ROOT %z = f32[] dot(%p.1, %q.1), {SIXTEEN}"""
    read = hlo.Program(program(body))
    assert [*verdict.of_contractions(read), *verdict.of_float_products(read)] == complaints


@pytest.mark.parametrize(("summed", "is_right"), [
    ("%p.1 = f32[1024] convert(%p)\n  %q.1 = f32[1024] convert(%q)\n  %s = f32[1024] multiply(%p.1, %q.1)", True),
    ("%p.1 = f32[1024] convert(%p)\n  %q.1 = f32[1024] convert(%q)\n  %s = f32[1024] add(%p.1, %q.1)", False),
    ("%p.1 = f32[1024] convert(%p)\n  %q.1 = f32[1024] convert(%n)\n  %s = f32[1024] multiply(%p.1, %q.1)", False),
    ("%p.1 = bf16[32,32] convert(%p)\n  %q.1 = bf16[32,32] convert(%q)\n"
     "  %s = f32[32] dot(%p.1, %q.1), lhs_contracting_dims={0}, rhs_contracting_dims={0}", True),
    ("%p.1 = bf16[64,32] convert(%p)\n  %q.1 = bf16[64,32] convert(%q)\n"
     "  %s = f32[32] dot(%p.1, %q.1), lhs_contracting_dims={0}, rhs_contracting_dims={0}", False),
])  # fmt: skip
@pytest.mark.parametrize("start", [0, 0.5])
def test_a_sum_of_floats_is_of_few_products_of_int8_numbers(summed, is_right, start):
    """XLA adds the parts of a product that it splits, and turns a product with one row into such a sum."""
    body = f"""%p = s8[1024] parameter(6)
  %q = s8[1024] parameter(7)
  %zero.1 = f32[] constant({start})
  {summed}
  ROOT %z = f32[] reduce(%s, %zero.1), dimensions={{0}}, to_apply=%sum"""
    assert judged(body, kind=verdict.of_reductions) == ([] if is_right and start == 0 else ["reduce f32 by add"])


@pytest.mark.parametrize(("size", "start", "is_right"), [(1, "-0", True), (1, "0", False), (2, "-0", False)])
def test_a_sum_of_one_number_from_minus_zero_moves_it(size, start, is_right):
    """+0 would turn -0 into +0."""
    body = f"""%p = f32[8,{size}] parameter(6)
  %start = f32[] constant({start})
  ROOT %z = f32[8] reduce(%p, %start), dimensions={{1}}, to_apply=%sum"""
    assert judged(body, kind=verdict.of_reductions) == ([] if is_right else ["reduce f32 by add"])


BY_KEYS = """%before (p: f32[], q: f32[]) -> pred[] {{
  %p = f32[] parameter(0)
  %q = f32[] parameter(1)
  %is_number = pred[] compare(%p, %p), direction=EQ
  %i = s32[] bitcast-convert(%p)
  %j = s32[] bitcast-convert(%q)
  ROOT %less = pred[] compare({}), direction=LT
}}
"""


@pytest.mark.parametrize(("compared", "is_stable", "complaints"), [
    ("%i, %j", "true", []),
    ("%i, %j", "false", ["sort that is not stable"]),
    ("%p, %q", "true", ["sort by floats"]),  # NaN is neither before nor after another number
])  # fmt: skip
def test_sorts_are_stable_and_compare_integers(compared, is_stable, complaints):
    line = f"ROOT %z = f32[8]{{0}} sort(%x), dimensions={{0}}, is_stable={is_stable}, to_apply=%before"
    read = hlo.Program(program(line, BY_KEYS.format(compared)))
    assert list(verdict.complaints(Compiled(read, read, [], [], 0.0, None), is_gpu=False)) == complaints


@pytest.mark.parametrize(("x", "f", "rest", "depth"), [
    ("2,32,16,16", "48,32,3,3", "window={size=3x3}, dim_labels=bf01_oi01->bf01", 288),
    ("2,32,16,16", "48,8,3,3", "window={size=3x3}, dim_labels=bf01_oi01->bf01, feature_group_count=4", 72),
    ("2,32,2,16", "48,32,3,3", "window={size=3x3 pad=1_1x0_0}, dim_labels=bf01_oi01->bf01", 192),
    ("4,64,128", "4,128,96", "window={size=4 stride=3 lhs_dilate=4}, dim_labels=0bf_0io->0bf", 128),  # batches
    ("8,131071,1", "131071,2,2", "window={size=2 pad=1_1 rhs_reversal=1}, dim_labels=bf0_i0o->b0f", 131_071),
    ("1,8,40", "8,8,5", "window={size=5 lhs_dilate=2 rhs_dilate=3}, dim_labels=bf0_oi0->bf0", 40),
])  # fmt: skip
def test_the_products_of_a_convolution_are_counted(x, f, rest, depth):
    body = f"%p = s8[{x}] parameter(6)\n  %q = s8[{f}] parameter(7)\n  ROOT %z = s32[1] convolution(%p, %q), {rest}"
    read = hlo.Program(program(body))
    assert hlo.depth(read, read.root(read.entry)) == depth


def test_bytes_are_those_of_operands_and_results():
    assert hlo.entry_bytes(hlo.Program(program("ROOT %z = f32[8]{0} add(%x, %y)"))) == 3 * 32


@pytest.mark.parametrize(("steps", "complaints"), [
    ([("kCustomKernel", "kernel"), ("kCopy", "kCopy")], []),
    ([("kCustomKernel", "kernel"), ("kGemm", "gemm")], ["step kGemm gemm"]),
    ([("kCustomKernel", "another")], ["no PTX of another"]),
    ([], ["no steps"]),
])  # fmt: skip
def test_a_step_on_a_gpu_whose_ptx_is_not_read_is_refused(steps, complaints):
    read = hlo.Program(program("ROOT %z = f32[8]{0} add(%x, %y)"))
    made = Compiled(read, read, ptx.kernels(kernel("")), steps, 0.0, None)
    assert list(verdict.complaints(made, is_gpu=True)) == complaints


def test_the_program_before_the_compiler_is_judged_too():
    """A compiler may or may not split a long sum."""
    long, short = (hlo.Program(program(f"ROOT %z = {text}")) for text in (
        f"s32[4,4]{{1,0}} dot(%a, %b), {DOT}", "s32[8]{0} add(%n, %m)",
    ))  # fmt: skip
    assert verdict.complaints(Compiled(long, short, [], [], 0.0, None), is_gpu=False)
    assert not verdict.complaints(Compiled(short, short, [], [], 0.0, None), is_gpu=False)
