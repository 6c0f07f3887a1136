// The emulated GPU: one threadgroup at a time, its lanes and SIMD groups, and what the launch asked for.
#pragma once
#include "fiber.h"
#include "memory.h"
#include "msl/abi.h"

namespace emu {

enum class Stop { kNone, kSimdOperation, kThreadgroupBarrier, kFinished };

// As in metal::mem_flags.
constexpr int kOrdersDevice = 1, kOrdersThreadgroup = 2;

struct Lane {
  void* stack_pointer;
  Stop stop;
  int operation;     // of the collective it stopped at
  int memory_flags;  // of the barrier it stopped at
  int line;
  uint32_t thread;  // in the whole grid
  ThreadIds ids;
};

struct SimdGroup {
  // Two sets of values: a lane that resumes early may be one collective ahead of the others, never two.
  unsigned char values[2][kSimdWidth][kExchangeBytes];
  unsigned char result[kExchangeBytes];
  uint32_t sequence;  // collectives so far
  uint32_t resumed;   // the last collective from which a lane resumed, + 1
  uint32_t device_epoch, threadgroup_epoch;
  uint32_t mask;
  int lanes;
  Stop stop;
};

// Where the kernel's library is loaded.
struct Image {
  uintptr_t begin, end;
  bool contains(uintptr_t address) const { return address >= begin && address < end; }
};

struct Machine {
  Launch launch;
  Image image;
  Report* report;  // none between launches
  void* arguments[kMaxBuffers];

  Lane lanes[kMaxThreads];
  SimdGroup groups[kMaxSimdGroups];
  int thread_count, group_count;
  uint32_t first_thread;  // of this threadgroup in the whole grid
  int current;            // the lane that runs
  void* scheduler_stack;

  Stacks stacks;
  DeviceMemory device;
  ThreadgroupMemory threadgroup;
  PendingWrite pending;

  Lane& lane() { return lanes[current]; }
  SimdGroup& group() { return groups[current / kSimdWidth]; }
};

extern Machine machine;

// Records the first error of a launch.
void record(const char* kind, const void* instruction, int line, const char* format, ...)
    __attribute__((format(printf, 4, 5)));

// Records an error of the running lane and leaves every fiber for good; nothing on their stacks needs destruction.
[[noreturn]] void abandon();

#define EMU_FAIL(kind, instruction, line, ...)              \
  do {                                                      \
    ::emu::record(kind, instruction, line, __VA_ARGS__);    \
    ::emu::abandon();                                       \
  } while (0)

// Gives control back to the scheduler until it releases this lane.
void yield();

// Runs one threadgroup to its end, or to the first error.
void run_threadgroup(const uint32_t position[3], const uint32_t threadgroups[3], const uint32_t threadgroup[3],
                     uint32_t index);

}  // namespace emu
