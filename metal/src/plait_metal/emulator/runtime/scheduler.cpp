// Runs a threadgroup: SIMD group by SIMD group, lane by lane, each until it meets a collective.
#include <stdlib.h>

#include "machine.h"

namespace emu {

namespace {

const char* describe(Stop stop) {
  switch (stop) {
    case Stop::kSimdOperation: return "at a SIMD-group operation";
    case Stop::kThreadgroupBarrier: return "at a threadgroup barrier";
    case Stop::kFinished: return "finished";
    default: return "running";
  }
}

void lane_main() {
  machine.launch.entry(machine.arguments, &machine.lane().ids);
  machine.lane().stop = Stop::kFinished;
  yield();
  abort();  // a finished lane is never resumed
}

void set(uint32_t to[3], const uint32_t from[3]) {
  for (int i = 0; i < 3; ++i) to[i] = from[i];
}

void prepare_groups() {
  machine.group_count = (machine.thread_count + kSimdWidth - 1) / kSimdWidth;
  for (int g = 0; g < machine.group_count; ++g) {
    SimdGroup& group = machine.groups[g];
    const int rest = machine.thread_count - g * kSimdWidth;
    group.lanes = rest < kSimdWidth ? rest : kSimdWidth;
    group.mask = group.lanes == kSimdWidth ? ~0u : (1u << group.lanes) - 1;
    group.sequence = 0;
    group.resumed = ~0u;
    group.device_epoch = group.threadgroup_epoch = 0;
    group.stop = Stop::kNone;
  }
}

void prepare_lanes(const uint32_t position[3], const uint32_t threadgroups[3], const uint32_t asked[3],
                   const uint32_t origin[3], const uint32_t size[3]) {
  for (int t = 0; t < machine.thread_count; ++t) {
    Lane& lane = machine.lanes[t];
    lane = {machine.stacks.prepare(t, lane_main), Stop::kNone, 0, 0, 0, machine.first_thread + t, {}};
    const uint32_t inside[3] = {t % size[0], t / size[0] % size[1], t / size[0] / size[1]};
    ThreadIds& ids = lane.ids;
    set(ids.thread_position_in_threadgroup, inside);
    for (int i = 0; i < 3; ++i) ids.thread_position_in_grid[i] = origin[i] + inside[i];
    set(ids.threadgroup_position_in_grid, position);
    set(ids.threads_per_threadgroup, size);
    set(ids.dispatch_threads_per_threadgroup, asked);
    set(ids.threads_per_grid, machine.launch.grid);
    set(ids.threadgroups_per_grid, threadgroups);
    ids.thread_index_in_threadgroup = t;
    ids.thread_index_in_simdgroup = t % kSimdWidth;
    ids.simdgroup_index_in_threadgroup = t / kSimdWidth;
    ids.simdgroups_per_threadgroup = machine.group_count;
  }
}

// Resumes every lane of the group that may run; false after an error.
bool run_lanes(int g) {
  const SimdGroup& group = machine.groups[g];
  for (int i = 0; i < group.lanes; ++i) {
    const int t = g * kSimdWidth + (machine.launch.order & 1 ? group.lanes - 1 - i : i);
    if (machine.lanes[t].stop != Stop::kNone) continue;
    machine.current = t;
    emu_switch(&machine.scheduler_stack, machine.lanes[t].stack_pointer);
    if (machine.report->kind[0]) return false;
  }
  return true;
}

// Lanes of a group move in step: all must have stopped at the same operation on the same line.
bool agree(int g) {
  const Lane& first = machine.lanes[g * kSimdWidth];
  for (int i = 1; i < machine.groups[g].lanes; ++i) {
    const Lane& other = machine.lanes[g * kSimdWidth + i];
    if (other.stop == first.stop && other.operation == first.operation && other.line == first.line) continue;
    if (other.stop == first.stop && first.stop == Stop::kFinished) continue;  // wherever their last collective was
    machine.current = g * kSimdWidth + i;
    record("divergence", nullptr, other.stop == Stop::kFinished ? first.line : other.line,
           "SIMD group %d: lane 0 is %s (line %d) but lane %d is %s (line %d)", g, describe(first.stop), first.line, i,
           describe(other.stop), other.line);
    return false;
  }
  return true;
}

// Lets the group go on; what its lanes did to the memories in `orders` now lies before what they will do.
void release(int g, int orders) {
  SimdGroup& group = machine.groups[g];
  if (orders & kOrdersDevice) ++group.device_epoch;
  if (orders & kOrdersThreadgroup) ++group.threadgroup_epoch;
  group.stop = Stop::kNone;
  for (int i = 0; i < group.lanes; ++i) machine.lanes[g * kSimdWidth + i].stop = Stop::kNone;
}

// Runs the group to its end or to a threadgroup barrier; false after an error.
bool run_group(int g) {
  SimdGroup& group = machine.groups[g];
  while (group.stop == Stop::kNone) {
    if (!run_lanes(g) || !agree(g)) return false;
    const Lane& lane = machine.lanes[g * kSimdWidth];
    if (lane.stop != Stop::kSimdOperation) {
      group.stop = lane.stop;
      continue;
    }
    ++group.sequence;
    // By the specification, operations other than barriers order no memory.
    const bool lockstep = machine.launch.flags & kLockstepOrdersMemory;
    release(g, lockstep ? kOrdersDevice | kOrdersThreadgroup : lane.memory_flags);
  }
  return true;
}

// All groups wait at a threadgroup barrier or have finished. Opens the barrier; false after an error.
bool open_barrier(int waiting) {
  const Lane& first = machine.lanes[waiting * kSimdWidth];
  for (int g = 0; g < machine.group_count; ++g) {
    const Lane& other = machine.lanes[g * kSimdWidth];
    const bool finished = machine.groups[g].stop == Stop::kFinished;
    if (!finished && other.line == first.line) continue;
    machine.current = g * kSimdWidth;
    record("divergence", nullptr, first.line,
           "the threadgroup barrier at line %d is reached by SIMD group %d, but SIMD group %d %s (line %d)", first.line,
           waiting, g, finished ? "has finished" : "waits at another barrier", other.line);
    return false;
  }
  const int orders = first.memory_flags;
  if (orders & kOrdersDevice) machine.device.barrier();
  if (orders & kOrdersThreadgroup) machine.threadgroup.barrier();
  for (int g = 0; g < machine.group_count; ++g) release(g, orders);
  return true;
}

int first_waiting() {
  for (int g = 0; g < machine.group_count; ++g)
    if (machine.groups[g].stop == Stop::kThreadgroupBarrier) return g;
  return -1;
}

}  // namespace

void run_threadgroup(const uint32_t position[3], const uint32_t threadgroups[3], const uint32_t threadgroup[3],
                     uint32_t index) {
  // Threadgroups at the grid's edge are smaller, as Metal makes them.
  uint32_t origin[3], size[3];
  for (int i = 0; i < 3; ++i) {
    origin[i] = position[i] * threadgroup[i];
    const uint32_t rest = machine.launch.grid[i] - origin[i];
    size[i] = rest < threadgroup[i] ? rest : threadgroup[i];
  }
  machine.thread_count = size[0] * size[1] * size[2];
  machine.first_thread = index * threadgroup[0] * threadgroup[1] * threadgroup[2];
  machine.device.begin_threadgroup();
  machine.threadgroup.begin_threadgroup();
  prepare_groups();
  prepare_lanes(position, threadgroups, threadgroup, origin, size);
  while (true) {
    for (int k = 0; k < machine.group_count; ++k)
      if (!run_group((k + machine.launch.order) % machine.group_count)) return;
    const int waiting = first_waiting();
    if (waiting < 0 || !open_barrier(waiting)) return;
  }
}

}  // namespace emu
