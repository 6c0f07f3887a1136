// Fibers: one per GPU thread, switched by hand. ucontext would cost two system calls a switch.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "msl/abi.h"

namespace emu {

// Saves the running context's stack pointer in *save and continues the context whose stack pointer is `load`.
extern "C" void emu_switch(void** save, void* load);

// The stacks of all fibers, in one mapping. The lowest page of each is a guard.
class Stacks {
 public:
  static constexpr size_t kBytes = 128 << 10;  // of one stack

  void map();

  // A stack pointer from which emu_switch enters `function` on the stack of fiber `index`. `function` never returns.
  void* prepare(int index, void (*function)());

  // The fiber whose stack holds `address`, or -1.
  int owner(uintptr_t address) const {
    const uintptr_t offset = address - reinterpret_cast<uintptr_t>(base_);
    return offset < kMaxThreads * kBytes ? int(offset / kBytes) : -1;
  }

 private:
  uint8_t* base_ = nullptr;
};

}  // namespace emu
