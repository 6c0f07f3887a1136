// The machine itself, its error report, and the ways out of a lane.
#include "machine.h"

#include <stdarg.h>
#include <stdio.h>

namespace emu {

Machine machine;

void record(const char* kind, const void* instruction, int line, const char* format, ...) {
  Report& report = *machine.report;
  if (report.kind[0]) return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(report.message, sizeof report.message, format, arguments);
  va_end(arguments);
  snprintf(report.kind, sizeof report.kind, "%s", kind);
  const uintptr_t place = reinterpret_cast<uintptr_t>(instruction);
  report.image_offset = machine.image.contains(place) ? place - machine.image.begin : 0;
  report.line = line;
  report.ids = machine.lane().ids;
}

void abandon() {
  void* unused;
  emu_switch(&unused, machine.scheduler_stack);
  __builtin_unreachable();
}

void yield() {
  machine.pending.settle();
  emu_switch(&machine.lane().stack_pointer, machine.scheduler_stack);
}

}  // namespace emu
