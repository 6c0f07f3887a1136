// What the compiled kernel and the runtime say to each other. `launcher.py` mirrors the structs.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace emu {

constexpr int kSimdWidth = 32;
constexpr int kMaxThreads = 1024;  // of one threadgroup
constexpr int kMaxSimdGroups = kMaxThreads / kSimdWidth;
constexpr int kMaxBuffers = 64;
constexpr int kMaxThreadgroupVariables = 64;
constexpr int kExchangeBytes = 16;  // the largest value that lanes exchange

struct ThreadIds {
  uint32_t thread_position_in_grid[3];
  uint32_t thread_position_in_threadgroup[3];
  uint32_t threadgroup_position_in_grid[3];
  uint32_t threads_per_threadgroup[3];           // of this threadgroup: smaller at the grid's edge
  uint32_t dispatch_threads_per_threadgroup[3];  // as asked for
  uint32_t threads_per_grid[3];
  uint32_t threadgroups_per_grid[3];
  uint32_t thread_index_in_threadgroup;
  uint32_t thread_index_in_simdgroup;
  uint32_t simdgroup_index_in_threadgroup;
  uint32_t simdgroups_per_threadgroup;
};

enum BufferKind : int32_t {
  kInput = 0,    // copied in; a write is an error
  kOutput = 1,   // poisoned with NaN bits, copied out; a read before any write is an error
  kInPlace = 2,  // used where it lies
};

struct Buffer {
  void* data;
  uint64_t bytes;
  int32_t kind;
  const char* name;
  uint64_t unwritten;        // out: bytes of an output that no thread wrote
  uint64_t first_unwritten;  // out: offset of the first of them
};

struct Report {
  char kind[32];  // empty: no error
  char message[512];
  uint64_t image_offset;  // of the offending instruction in the kernel's library, or 0
  int32_t line;           // of the kernel's text, where a collective or a check knows it
  ThreadIds ids;
  uint64_t accesses;
  uint64_t benign_conflicts;  // unordered writes of one value to one place
};

enum Flags : uint32_t {
  kCheckRaces = 1,
  kLockstepOrdersMemory = 2,  // SIMD operations also order memory: true of today's hardware, not of the specification
  kFlushDenormals = 4,
};

using Entry = void (*)(void** buffers, const ThreadIds* ids);

struct Launch {
  Entry entry;
  Buffer* buffers;
  uint32_t buffer_count;
  uint32_t grid[3];         // threads
  uint32_t threadgroup[3];  // threads
  uint32_t flags;
  uint32_t order;  // 0: SIMD groups and lanes run in order; n: groups start at the n-th, odd n runs lanes backwards
  uint64_t budget;              // accesses and branches before a loop counts as endless
  uint64_t threadgroup_memory;  // bytes
};

// What a lane learns when every lane of its SIMD group has handed in its value.
struct Exchange {
  const unsigned char (*values)[kExchangeBytes];  // one per lane
  unsigned char* result;                          // shared by the lanes, for what one computes for all
  uint32_t lanes;                                 // bit i: lane i exists
  int32_t lane;
  bool first;  // this lane resumes first: it fills `result`
};

}  // namespace emu

extern "C" {
emu::Exchange emu_exchange(int operation, int line, const void* value, unsigned bytes);
void emu_threadgroup_barrier(int memory_flags, int line);
void emu_simdgroup_barrier(int memory_flags, int line);
void* emu_threadgroup_variable(int id, size_t bytes, const char* name);
void emu_atomic(const void* address, unsigned bytes, bool write);
[[noreturn]] void emu_fail(const char* kind, int line, const char* message);
int emu_launch(const emu::Launch* launch, emu::Report* report);
}
