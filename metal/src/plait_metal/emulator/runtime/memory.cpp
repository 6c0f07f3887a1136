// The check of one access: which memory it belongs to, and whether it may touch it.
#include "memory.h"

#include <string.h>

#include "machine.h"

namespace emu {

namespace {

bool is_write(Access access) { return access == Access::kWrite || access == Access::kAtomicWrite; }
const char* verb(Access access) { return is_write(access) ? "write" : "read"; }

Accessor accessor(Access access, uint32_t epoch, uint32_t first_epoch, uint32_t simd_epoch) {
  const bool atomic = access == Access::kAtomicRead || access == Access::kAtomicWrite;
  return {machine.lane().thread, machine.first_thread, epoch, first_epoch, simd_epoch, atomic};
}

void report_conflict(Conflict conflict, uint32_t writer, const uint8_t* memory, size_t bytes, const void* instruction,
                     const char* name, size_t offset) {
  const uint32_t me = machine.lane().thread;
  if (conflict == Conflict::kReadAfterWrite)
    EMU_FAIL("race", instruction, 0, "read of %s+%zu by thread %u is not ordered after a write by thread %u", name,
             offset, me, writer);
  if (conflict == Conflict::kWriteAfterRead)
    EMU_FAIL("race", instruction, 0, "write of %s+%zu by thread %u is not ordered after a read by another thread", name,
             offset, me);
  machine.pending.expect(memory, bytes, instruction, writer, name, offset);
}

void track(ShadowCell* cells, const uint8_t* memory, size_t bytes, Access access, const Accessor& who,
           const void* instruction, const char* name, size_t offset) {
  const bool check_races = machine.launch.flags & kCheckRaces;
  for (size_t i = 0; i < bytes; ++i) {
    const uint32_t writer = cells[i].writer - 1;
    const Conflict conflict = is_write(access) ? cells[i].write(who) : cells[i].read(who);
    if (conflict != Conflict::kNone && check_races)
      report_conflict(conflict, writer, memory, bytes, instruction, name, offset + i);
  }
}

}  // namespace

bool DeviceMemory::check(uintptr_t address, size_t bytes, Access access, const void* instruction) {
  const uintptr_t offset = address - reinterpret_cast<uintptr_t>(slots_);
  if (offset < count_ * kSlot) {
    check_region(regions_[offset / kSlot], address, bytes, access, instruction);
    return true;
  }
  for (int i = 0; i < count_; ++i) {
    Region& region = regions_[i];
    if (region.kind != kInPlace || address - reinterpret_cast<uintptr_t>(region.data) >= region.bytes) continue;
    check_region(region, address, bytes, access, instruction);
    return true;
  }
  return false;
}

void DeviceMemory::check_region(Region& region, uintptr_t address, size_t bytes, Access access,
                                const void* instruction) {
  const int64_t offset = int64_t(address - reinterpret_cast<uintptr_t>(region.data));
  // An in-place buffer leaves its slot empty, so nothing is right there.
  if (offset < 0 || size_t(offset) + bytes > region.bytes)
    EMU_FAIL("oob", instruction, 0, "%s of %zu bytes at byte offset %lld of %s (%zu bytes)", verb(access), bytes,
             static_cast<long long>(offset), region.name, region.bytes);
  if (!region.shadow) {
    if (is_write(access))
      EMU_FAIL("readonly", instruction, 0, "write to input %s+%lld, which the kernel does not list in `writes`",
               region.name, static_cast<long long>(offset));
    return;
  }
  ShadowCell* cells = region.shadow + offset;
  if (region.kind == kOutput && !is_write(access))
    for (size_t i = 0; i < bytes; ++i)
      if (!cells[i].written())
        EMU_FAIL("uninit", instruction, 0, "read of output %s+%lld before any write", region.name,
                 static_cast<long long>(offset));
  const Accessor who = accessor(access, epoch_, first_epoch_, machine.group().device_epoch);
  track(cells, region.data + offset, bytes, access, who, instruction, region.name, size_t(offset));
}

bool ThreadgroupMemory::check(uintptr_t address, size_t bytes, Access access, const void* instruction) {
  const uintptr_t offset = address - reinterpret_cast<uintptr_t>(arena_);
  if (offset >= kArena) return false;
  for (int i = 0; i < count_; ++i) {
    const Variable& variable = variables_[i];
    if (offset < variable.offset || offset + bytes > variable.offset + variable.bytes) continue;
    ShadowCell* cells = shadow_ + offset;
    if (!is_write(access))
      for (size_t k = 0; k < bytes; ++k)
        if (!cells[k].written())
          EMU_FAIL("uninit", instruction, 0, "read of threadgroup variable %s+%zu before any write", variable.name,
                   offset - variable.offset);
    const Accessor who = accessor(access, epoch_, 0, machine.group().threadgroup_epoch);
    track(cells, arena_ + offset, bytes, access, who, instruction, variable.name, offset - variable.offset);
    return true;
  }
  EMU_FAIL("oob", instruction, 0, "%s of %zu bytes outside every threadgroup variable", verb(access), bytes);
}

void PendingWrite::expect(const uint8_t* address, size_t bytes, const void* instruction, uint32_t other,
                          const char* name, size_t offset) {
  if (address_ || bytes > sizeof before_) return;
  address_ = address;
  bytes_ = bytes;
  memcpy(before_, address, bytes);
  instruction_ = instruction;
  thread_ = machine.lane().thread;
  other_ = other;
  name_ = name;
  offset_ = offset;
}

void PendingWrite::judge() {
  const uint8_t* address = address_;
  address_ = nullptr;
  if (memcmp(address, before_, bytes_) != 0)
    EMU_FAIL("race", instruction_, 0,
             "write of %s+%zu by thread %u is not ordered after a write of another value by thread %u", name_, offset_,
             thread_, other_);
  ++machine.report->benign_conflicts;
}

void count_step(const void* instruction) {
  if (++machine.report->accesses > machine.launch.budget)
    EMU_FAIL("budget", instruction, 0, "more than %llu accesses and branches: an endless loop?",
             static_cast<unsigned long long>(machine.launch.budget));
}

void check_access(const void* address, size_t bytes, Access access, const void* instruction) {
  machine.pending.settle();
  count_step(instruction);
  const uintptr_t place = reinterpret_cast<uintptr_t>(address);
  const int owner = machine.stacks.owner(place);
  if (owner == machine.current) return;
  if (owner >= 0) EMU_FAIL("private", instruction, 0, "%s of another thread's private memory", verb(access));
  if (machine.threadgroup.check(place, bytes, access, instruction)) return;
  if (machine.device.check(place, bytes, access, instruction)) return;
  // Constants of the kernel's program lie in its library.
  if (!is_write(access) && machine.image.contains(place)) return;
  EMU_FAIL("oob", instruction, 0, "%s of %zu bytes at an address that belongs to no buffer", verb(access), bytes);
}

}  // namespace emu
