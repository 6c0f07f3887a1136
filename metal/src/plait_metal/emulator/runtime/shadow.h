// Shadow memory: for each byte who wrote and who read it last, and when, so that unordered accesses are found.
//
// Time is counted in epochs. A threadgroup barrier that orders a memory starts a new epoch of that memory; so does each
// new threadgroup, hence an epoch before `Accessor::first_epoch` belongs to an earlier threadgroup, and nothing orders
// two threadgroups. A barrier within a SIMD group starts a new epoch of that group.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace emu {

struct Accessor {
  uint32_t thread;        // in the whole grid
  uint32_t first_thread;  // of this threadgroup
  uint32_t epoch;         // of the memory accessed
  uint32_t first_epoch;   // of this threadgroup
  uint32_t simd_epoch;
  bool atomic;
};

enum class Conflict { kNone, kWriteAfterWrite, kWriteAfterRead, kReadAfterWrite };

struct ShadowCell {
  uint32_t writer : 30;  // thread + 1; 0: never written
  uint32_t atomic_write : 1;
  uint32_t earlier_read : 1;  // an earlier threadgroup read it after the last write
  uint32_t reader : 30;       // thread, or SIMD group for kOneGroup
  uint32_t readers : 2;
  uint32_t write_epoch, write_simd_epoch;
  uint32_t read_epoch, read_simd_epoch;

  enum Readers : uint32_t { kNobody, kOneThread, kOneGroup, kSeveralGroups };

  bool written() const { return writer != 0; }

  Conflict write(const Accessor& who) {
    Conflict conflict = write_conflict(who);
    if (conflict == Conflict::kNone && read_conflict(who)) conflict = Conflict::kWriteAfterRead;
    writer = who.thread + 1;
    atomic_write = who.atomic;
    write_epoch = who.epoch;
    write_simd_epoch = who.simd_epoch;
    earlier_read = 0;
    readers = kNobody;
    return conflict;
  }

  Conflict read(const Accessor& who) {
    const bool conflict = write_conflict(who) != Conflict::kNone;
    if (!who.atomic) remember_reader(who);  // an atomic read conflicts with no atomic write that follows
    return conflict ? Conflict::kReadAfterWrite : Conflict::kNone;
  }

 private:
  static uint32_t group_of(uint32_t thread, const Accessor& who) { return (thread - who.first_thread) / 32; }

  Conflict write_conflict(const Accessor& who) const {
    if (!writer || writer == who.thread + 1 || (who.atomic && atomic_write)) return Conflict::kNone;
    if (write_epoch >= who.first_epoch) {
      if (write_epoch < who.epoch) return Conflict::kNone;
      const bool same_group = group_of(writer - 1, who) == group_of(who.thread, who);
      if (same_group && write_simd_epoch < who.simd_epoch) return Conflict::kNone;
    }
    return Conflict::kWriteAfterWrite;
  }

  bool read_conflict(const Accessor& who) const {
    if (earlier_read) return true;
    if (readers == kNobody || (readers == kOneThread && reader == who.thread)) return false;
    if (read_epoch < who.first_epoch) return true;
    if (read_epoch < who.epoch) return false;
    if (readers == kSeveralGroups) return true;
    const uint32_t group = readers == kOneGroup ? reader : group_of(reader, who);
    return group != group_of(who.thread, who) || read_simd_epoch >= who.simd_epoch;
  }

  void remember_reader(const Accessor& who) {
    const uint32_t mine = group_of(who.thread, who);
    if (readers != kNobody && read_epoch < who.first_epoch) earlier_read = 1;
    const bool replace = readers == kNobody || read_epoch < who.epoch || (readers == kOneThread && reader == who.thread);
    if (replace) {
      readers = kOneThread;
      reader = who.thread;
    } else {
      const bool same = readers == kOneThread  ? group_of(reader, who) == mine
                        : readers == kOneGroup ? reader == mine
                                               : false;
      readers = same ? kOneGroup : kSeveralGroups;
      reader = mine;
    }
    read_epoch = who.epoch;
    read_simd_epoch = who.simd_epoch;
  }
};

// Zeroed cells for `count` bytes; pages that are never touched cost nothing.
ShadowCell* map_shadow(size_t count);
void unmap_shadow(ShadowCell* cells, size_t count);

}  // namespace emu
