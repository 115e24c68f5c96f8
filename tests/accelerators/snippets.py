"""Outputs of compilers for the tests: a kernel, and programs."""

KERNEL = """
.version 8.8
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 memory[];  // not defined here
.func (.param .b32 result) elsewhere (.param .b32 x);

.visible .entry kernel(
	.param .u64 .ptr .align 16 kernel_param_0
)
.reqntid 64, 1, 1
{
	.reg .pred 	%p<2>;
	.reg .b32 	%r<95>;
	.loc	1 10 20
	ld.param::entry.b64 	%rd1, [kernel_param_0];
	mov.b32 	%r1, 0;
$L__BB0_1:
	// begin inline asm
	{ .reg .pred q; @!%p1 ld.global.b32 { %r2 }, [ %rd1 + 0 ]; }
	// end inline asm
	BODY
	@%p1 bra 	$L__BB0_1;
	ret;
}
"""
MATRIX = "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32 {%r37, %r38}, {%r27, %r28}, {%r35}, "


def kernel(body: str) -> str:
    return KERNEL.replace("BODY", body)


def program(body: str, parameters: str = "") -> str:
    """A module of one computation, in which x and y are float32, a and b int8, n and m int32."""
    return f"""HloModule jit_f, entry_computation_layout={{(f32[8]{{0}})->f32[8]{{0}}}}

FileNames
1 "/a/file.py"

%sum (l: f32[], r: f32[]) -> f32[] {{
  %l = f32[] parameter(0)
  %r = f32[] parameter(1)
  ROOT %add.0 = f32[] add(%l, %r)
}}

%largest (l.1: f32[], r.1: f32[]) -> f32[] {{
  %l.1 = f32[] parameter(0)
  %r.1 = f32[] parameter(1)
  ROOT %maximum.0 = f32[] maximum(%l.1, %r.1)
}}

{parameters}
ENTRY %main.1 (x: f32[8], y: f32[8], a: s8[4,200000], b: s8[200000,4], n: s32[8], m: s32[8]) -> f32[8] {{
  %x = f32[8]{{0:T(256)}} parameter(0), metadata={{op_name="x"}}
  %y = f32[8]{{0}} parameter(1)
  %a = s8[4,200000]{{1,0:T(8,128)(4,1)S(1)}} parameter(2)
  %b = s8[200000,4]{{1,0}} parameter(3)
  %n = s32[8]{{0}} parameter(4)
  %m = s32[8]{{0}} parameter(5)
  %zero = f32[] constant(0)
  {body}
}}
"""
