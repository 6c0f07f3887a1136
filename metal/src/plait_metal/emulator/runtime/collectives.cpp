// Where the lanes of a SIMD group or of a threadgroup meet.
#include <string.h>

#include "machine.h"

namespace emu {

namespace {

constexpr int kBarrierOperation = 1000;  // apart from every msl::Operation

void stop(Stop why, int operation, int memory_flags, int line) {
  Lane& lane = machine.lane();
  lane.stop = why;
  lane.operation = operation;
  lane.memory_flags = memory_flags;
  lane.line = line;
  yield();
}

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" {

Exchange emu_exchange(int operation, int line, const void* value, unsigned bytes) {
  SimdGroup& group = machine.group();
  const int lane = machine.current % kSimdWidth;
  auto& values = group.values[group.sequence & 1];
  memcpy(values[lane], value, bytes);
  count_step(__builtin_return_address(0));
  stop(Stop::kSimdOperation, operation, 0, line);
  const bool first = group.resumed != group.sequence;
  group.resumed = group.sequence;
  return {values, group.result, group.mask, lane, first};
}

void emu_simdgroup_barrier(int memory_flags, int line) {
  stop(Stop::kSimdOperation, kBarrierOperation, memory_flags, line);
}

void emu_threadgroup_barrier(int memory_flags, int line) {
  stop(Stop::kThreadgroupBarrier, kBarrierOperation, memory_flags, line);
}

void* emu_threadgroup_variable(int id, size_t bytes, const char* name) {
  return machine.threadgroup.variable(id, bytes, name, __builtin_return_address(0));
}

void emu_fail(const char* kind, int line, const char* message) {
  EMU_FAIL(kind, static_cast<const void*>(nullptr), line, "%s", message);
}

}  // extern "C"
