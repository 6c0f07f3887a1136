#include "fiber.h"

#include <string.h>
#include <sys/mman.h>

// Only what a called function must preserve is saved; everything else is the caller's loss by the calling convention.
#if defined(__x86_64__)
asm(R"(
.text
.globl emu_switch
.type emu_switch, @function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  retq
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl emu_switch
.type emu_switch, %function
emu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#else
#error "the emulator runs on x86-64 and aarch64"
#endif

namespace emu {

void Stacks::map() {
  if (base_) return;
  base_ = static_cast<uint8_t*>(mmap(nullptr, kMaxThreads * kBytes, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  for (int i = 0; i < kMaxThreads; ++i) mprotect(base_ + i * kBytes, 4096, PROT_NONE);
}

void* Stacks::prepare(int index, void (*function)()) {
  uint8_t* top = base_ + (index + 1) * kBytes;
#if defined(__x86_64__)
  // From the top: a null return address (which also aligns the stack as after a call), the entry, six registers.
  void** stack = reinterpret_cast<void**>(top);
  *--stack = nullptr;
  *--stack = reinterpret_cast<void*>(function);
  for (int i = 0; i < 6; ++i) *--stack = nullptr;
  return stack;
#else
  uint8_t* stack = top - 160;
  memset(stack, 0, 160);
  memcpy(stack + 88, &function, sizeof function);  // x30, the link register
  return stack;
#endif
}

}  // namespace emu
