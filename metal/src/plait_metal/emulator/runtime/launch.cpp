// One launch of a kernel: the grid, threadgroup after threadgroup.
#include <link.h>
#include <string.h>

#include "machine.h"

namespace emu {

namespace {

// The loaded library that holds the kernel.
Image find_image(Entry entry) {
  struct Search {
    uintptr_t entry;
    Image found;
  } search = {reinterpret_cast<uintptr_t>(entry), {0, 0}};
  dl_iterate_phdr(
      [](dl_phdr_info* library, size_t, void* data) {
        auto* search = static_cast<Search*>(data);
        Image image = {library->dlpi_addr, library->dlpi_addr};
        for (int i = 0; i < library->dlpi_phnum; ++i) {
          const auto& part = library->dlpi_phdr[i];
          const uintptr_t end = library->dlpi_addr + part.p_vaddr + part.p_memsz;
          if (part.p_type == PT_LOAD && end > image.end) image.end = end;
        }
        if (!image.contains(search->entry)) return 0;
        search->found = image;
        return 1;
      },
      &search);
  return search.found;
}

// Makes the host flush denormals to zero while it lives, as a GPU may.
class DenormalFlush {
 public:
  explicit DenormalFlush(bool flush) : before_(get()) {
    if (flush) set(before_ | kFlush);
  }
  ~DenormalFlush() { set(before_); }

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kFlush = 0x8040;  // flush-to-zero, denormals-are-zero
  static uint64_t get() { return __builtin_ia32_stmxcsr(); }
  static void set(uint64_t bits) { __builtin_ia32_ldmxcsr(static_cast<unsigned>(bits)); }
#else
  static constexpr uint64_t kFlush = 1ull << 24;
  static uint64_t get() {
    uint64_t bits;
    asm volatile("mrs %0, fpcr" : "=r"(bits));
    return bits;
  }
  static void set(uint64_t bits) { asm volatile("msr fpcr, %0" : : "r"(bits)); }
#endif
  uint64_t before_;
};

void run_grid() {
  uint32_t threadgroup[3], count[3], index = 0;
  for (int i = 0; i < 3; ++i) {
    const uint32_t grid = machine.launch.grid[i], asked = machine.launch.threadgroup[i];
    threadgroup[i] = asked < grid ? asked : grid;  // as MLX does
    count[i] = (grid + threadgroup[i] - 1) / threadgroup[i];
  }
  for (uint32_t z = 0; z < count[2]; ++z)
    for (uint32_t y = 0; y < count[1]; ++y)
      for (uint32_t x = 0; x < count[0]; ++x) {
        const uint32_t position[3] = {x, y, z};
        run_threadgroup(position, count, threadgroup, index++);
        if (machine.report->kind[0]) return;
      }
}

}  // namespace
}  // namespace emu

using namespace emu;

int emu_launch(const Launch* launch, Report* report) {
  memset(report, 0, sizeof *report);
  machine.launch = *launch;
  machine.report = report;
  machine.image = find_image(launch->entry);
  machine.pending.clear();
  machine.stacks.map();
  machine.device.open(launch->buffers, int(launch->buffer_count), machine.arguments);
  machine.threadgroup.open(launch->threadgroup_memory);
  if (!report->kind[0]) {
    DenormalFlush flush(launch->flags & kFlushDenormals);
    run_grid();
  }
  machine.device.close(launch->buffers);
  machine.report = nullptr;
  return report->kind[0] != 0;
}
