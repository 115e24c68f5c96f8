// Answers each cpuid that without_avx512.py has made a trap: as the processor does, without AVX-512, AVX-VNNI and AMX.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <ucontext.h>

// AVX512 F, DQ, IFMA, CD, BW, VL; VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ; VP2INTERSECT, AMX-BF16, FP16, AMX-TILE, AMX-INT8
static const uint32_t kB0 = 0xd0230000, kC0 = 0x00005842, kD0 = 0x03c00100;
// AVX-VNNI, AVX512-BF16, AMX-FP16, AVX-IFMA; AVX-VNNI-INT8, AMX-COMPLEX, AVX-VNNI-INT16, AVX10
static const uint32_t kA1 = 0x00a00030, kD1 = 0x00080510;

static void on_trap(int number, siginfo_t *info, void *context) {
  (void)number, (void)info;
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  if (*(const uint8_t *)registers[REG_RIP] != 0x90) abort();  // the rest of a trap; else it is not ours
  const uint32_t leaf = (uint32_t)registers[REG_RAX], part = (uint32_t)registers[REG_RCX];
  uint32_t a, b, c, d;
  __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(leaf), "c"(part));
  if (leaf == 7 && part == 0) b &= ~kB0, c &= ~kC0, d &= ~kD0;
  if (leaf == 7 && part == 1) a &= ~kA1, d &= ~kD1;
  registers[REG_RAX] = a;
  registers[REG_RBX] = b;
  registers[REG_RCX] = c;
  registers[REG_RDX] = d;
}

__attribute__((constructor)) static void install(void) {
  struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigaction(SIGTRAP, &action, 0);
}
