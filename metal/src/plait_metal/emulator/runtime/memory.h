// The memories that a kernel may touch, and the check of every access to them.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "msl/abi.h"
#include "shadow.h"

namespace emu {

enum class Access { kRead, kWrite, kAtomicRead, kAtomicWrite };

// One buffer of the launch, as the kernel sees it.
struct Region {
  uint8_t* data;
  size_t bytes;
  BufferKind kind;
  const char* name;
  ShadowCell* shadow;  // none for inputs
};

// The buffers. Inputs and outputs are copied to the middle of a gigabyte of address space of their own, so that a
// negative or a huge index still tells which buffer was meant; in-place buffers stay where they lie.
class DeviceMemory {
 public:
  static constexpr size_t kSlot = size_t(1) << 30;

  // Records an error if there is no room.
  void open(const Buffer* buffers, int count, void** arguments);
  void close(Buffer* buffers);
  void begin_threadgroup() { first_epoch_ = ++epoch_; }
  void barrier() { ++epoch_; }

  // False if `address` belongs to none of the buffers. Otherwise checks the access.
  bool check(uintptr_t address, size_t bytes, Access access, const void* instruction);

 private:
  void check_region(Region& region, uintptr_t address, size_t bytes, Access access, const void* instruction);

  uint8_t* slots_ = nullptr;
  Region regions_[kMaxBuffers];
  int count_ = 0;
  uint32_t epoch_, first_epoch_;
};

// Threadgroup variables, in an arena with red zones between them, poisoned with NaN bits.
class ThreadgroupMemory {
 public:
  void open(size_t limit);
  void begin_threadgroup();
  void barrier() { ++epoch_; }
  void* variable(int id, size_t bytes, const char* name, const void* instruction);
  bool check(uintptr_t address, size_t bytes, Access access, const void* instruction);

 private:
  static constexpr size_t kArena = 1 << 20, kRedZone = 256;
  struct Variable {
    size_t offset, bytes;
    const char* name;
  };

  uint8_t* arena_ = nullptr;
  ShadowCell* shadow_ = nullptr;
  size_t limit_ = 0, used_ = 0;
  Variable variables_[kMaxThreadgroupVariables];
  int count_ = 0;
  int index_of_[kMaxThreadgroupVariables];  // by the id of the declaration, or -1
  uint32_t epoch_ = 1;
};

// An unordered write over another thread's write. Whether it matters shows only when the store has happened: two
// threads that store the same value do no harm.
class PendingWrite {
 public:
  void clear() { address_ = nullptr; }
  void expect(const uint8_t* address, size_t bytes, const void* instruction, uint32_t other, const char* name,
              size_t offset);
  void settle() {
    if (address_) judge();
  }

 private:
  void judge();

  const uint8_t* address_ = nullptr;
  size_t bytes_;
  uint8_t before_[64];
  const void* instruction_;
  uint32_t thread_, other_;
  const char* name_;
  size_t offset_;
};

// Called before every load and store that is not a register's.
void check_access(const void* address, size_t bytes, Access access, const void* instruction);

// Counts a step of the running lane; an endless loop runs out of budget.
void count_step(const void* instruction);

}  // namespace emu
