// Where buffers and threadgroup variables lie, and how they begin and end a launch.
#include <string.h>
#include <sys/mman.h>

#include "machine.h"
#include "memory.h"

namespace emu {

namespace {

constexpr size_t kPage = 4096;
size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) & ~(kPage - 1); }

void* reserve(size_t bytes, int protection) {
  void* memory = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

// Null if this machine grants no such address space.
ShadowCell* map_shadow(size_t count) {
  return static_cast<ShadowCell*>(reserve(whole_pages(count * sizeof(ShadowCell) + 1), PROT_READ | PROT_WRITE));
}

void unmap_shadow(ShadowCell* cells, size_t count) { munmap(cells, whole_pages(count * sizeof(ShadowCell) + 1)); }

void DeviceMemory::open(const Buffer* buffers, int count, void** arguments) {
  if (!slots_) slots_ = static_cast<uint8_t*>(reserve(kMaxBuffers * kSlot, PROT_NONE));
  count_ = count;
  epoch_ = first_epoch_ = 0;
  for (int i = 0; i < count; ++i) {
    Region& region = regions_[i];
    region = {static_cast<uint8_t*>(buffers[i].data), buffers[i].bytes, BufferKind(buffers[i].kind), buffers[i].name,
              nullptr};
    if (region.kind != kInPlace) {
      region.data = slots_ + i * kSlot + kSlot / 2;
      mprotect(region.data, whole_pages(region.bytes), PROT_READ | PROT_WRITE);
    }
    if (region.kind == kInput) memcpy(region.data, buffers[i].data, region.bytes);
    if (region.kind == kOutput) memset(region.data, 0xff, region.bytes);  // NaN in every float type
    if (region.kind != kInput && !(region.shadow = map_shadow(region.bytes)))
      record("memory", nullptr, 0, "no address space to watch the %zu bytes of %s", region.bytes, region.name);
    arguments[i] = region.data;
  }
}

void DeviceMemory::close(Buffer* buffers) {
  for (int i = 0; i < count_; ++i) {
    Region& region = regions_[i];
    if (region.kind == kOutput) {
      memcpy(buffers[i].data, region.data, region.bytes);
      buffers[i].unwritten = 0;
      for (size_t k = region.bytes; k-- > 0;) {
        if (region.shadow[k].written()) continue;
        ++buffers[i].unwritten;
        buffers[i].first_unwritten = k;
      }
    }
    if (region.shadow) unmap_shadow(region.shadow, region.bytes);
    if (region.kind == kInPlace) continue;
    madvise(region.data, whole_pages(region.bytes), MADV_DONTNEED);
    mprotect(region.data, whole_pages(region.bytes), PROT_NONE);
  }
  count_ = 0;
}

void ThreadgroupMemory::open(size_t limit) {
  if (!arena_) {
    arena_ = static_cast<uint8_t*>(reserve(kArena, PROT_READ | PROT_WRITE));
    shadow_ = map_shadow(kArena);
  }
  limit_ = limit;
}

void ThreadgroupMemory::begin_threadgroup() {
  used_ = 0;
  count_ = 0;
  for (int& index : index_of_) index = -1;
}

void* ThreadgroupMemory::variable(int id, size_t bytes, const char* name, const void* instruction) {
  if (id >= kMaxThreadgroupVariables)
    EMU_FAIL("tgmem", instruction, 0, "more than %d threadgroup variables", kMaxThreadgroupVariables);
  if (index_of_[id] >= 0) return arena_ + variables_[index_of_[id]].offset;
  if (used_ + bytes > limit_)
    EMU_FAIL("tgmem", instruction, 0, "threadgroup variable %s brings the threadgroup's memory to %zu of %zu bytes",
             name, used_ + bytes, limit_);
  // The first thread to pass lays the variable out. Red zones lie outside the limit.
  size_t offset = kRedZone;
  if (count_ > 0) offset = (variables_[count_ - 1].offset + variables_[count_ - 1].bytes + 2 * kRedZone) & ~(kRedZone - 1);
  memset(arena_ + offset, 0xff, bytes);
  memset(static_cast<void*>(shadow_ + offset), 0, bytes * sizeof(ShadowCell));
  variables_[count_] = {offset, bytes, name};
  index_of_[id] = count_++;
  used_ += bytes;
  return arena_ + offset;
}

}  // namespace emu
