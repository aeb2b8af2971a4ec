// Preloaded, it has a process find no more than AVX2 on this machine: `cpuid` is answered without
// AVX-512, AVX10, AVX-VNNI, AMX and GFNI. Linux traps the instruction on request where the processor
// can (arch_prctl(2), ARCH_CPUID; "cpuid_fault" in /proc/cpuinfo), for a thread and those that it
// starts. Where that is refused the process ends: it would be timed with what it should not have.
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_SET_CPUID 0x1012

// Leaf 7, and its first subleaf: what is left of each register.
static const uint32_t left_ebx = ~(1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 |
                                   1u << 30 | 1u << 31);
static const uint32_t left_ecx = ~(1u << 1 | 1u << 6 | 1u << 8 | 1u << 11 | 1u << 12 | 1u << 14);
static const uint32_t left_edx = ~(1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 |
                                   1u << 25);

static void answer(int number, siginfo_t *info, void *context) {
  (void)info;
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  const uint8_t *code = (const uint8_t *)registers[REG_RIP];
  if (code[0] != 0x0F || code[1] != 0xA2) {
    signal(number, SIG_DFL); // another fault: again, and for good
    return;
  }
  const uint32_t leaf = (uint32_t)registers[REG_RAX], subleaf = (uint32_t)registers[REG_RCX];
  uint32_t eax, ebx, ecx, edx;
  syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1);
  __cpuid_count(leaf, subleaf, eax, ebx, ecx, edx);
  syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
  if (leaf == 7 && subleaf == 0) {
    ebx &= left_ebx, ecx &= left_ecx, edx &= left_edx;
  } else if (leaf == 7) {
    eax = edx = 0;
  }
  registers[REG_RAX] = eax, registers[REG_RBX] = ebx;
  registers[REG_RCX] = ecx, registers[REG_RDX] = edx;
  registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void hide(void) {
  struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
  unsetenv("LD_PRELOAD"); // of this process, not of those that it starts
  if (sigaction(SIGSEGV, &action, NULL) || syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0)) {
    fputs("error: this processor, or its host, cannot hide what it has\n", stderr);
    _exit(1);
  }
}
