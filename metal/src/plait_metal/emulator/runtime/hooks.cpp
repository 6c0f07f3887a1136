// What a compiler's sanitizers call. The kernel is compiled with -fsanitize=thread and a few of -fsanitize=undefined,
// and linked with these functions in place of the sanitizers' own libraries: so each of its loads and stores comes
// here before it happens, whatever pointers the text uses.
#include <string.h>

#include "machine.h"

using emu::Access;
using emu::check_access;

#define CALLER __builtin_return_address(0)

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define EMU_SIZED(bytes)                                                                                         \
  void __tsan_read##bytes(void* p) { check_access(p, bytes, Access::kRead, CALLER); }                            \
  void __tsan_write##bytes(void* p) { check_access(p, bytes, Access::kWrite, CALLER); }                          \
  void __tsan_unaligned_read##bytes(void* p) { check_access(p, bytes, Access::kRead, CALLER); }                  \
  void __tsan_unaligned_write##bytes(void* p) { check_access(p, bytes, Access::kWrite, CALLER); }                \
  void __tsan_read_write##bytes(void* p) {                                                                       \
    check_access(p, bytes, Access::kRead, CALLER);                                                               \
    check_access(p, bytes, Access::kWrite, CALLER);                                                              \
  }                                                                                                              \
  void __tsan_unaligned_read_write##bytes(void* p) {                                                             \
    check_access(p, bytes, Access::kRead, CALLER);                                                               \
    check_access(p, bytes, Access::kWrite, CALLER);                                                              \
  }
EMU_SIZED(1)
EMU_SIZED(2)
EMU_SIZED(4)
EMU_SIZED(8)
EMU_SIZED(16)

void __tsan_read_range(void* p, unsigned long bytes) { check_access(p, bytes, Access::kRead, CALLER); }
void __tsan_write_range(void* p, unsigned long bytes) { check_access(p, bytes, Access::kWrite, CALLER); }

void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  check_access(from, bytes, Access::kRead, CALLER);
  check_access(to, bytes, Access::kWrite, CALLER);
  return memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, size_t bytes) {
  check_access(from, bytes, Access::kRead, CALLER);
  check_access(to, bytes, Access::kWrite, CALLER);
  return memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
  check_access(to, bytes, Access::kWrite, CALLER);
  return memset(to, value, bytes);
}

// One call per branch: a loop that touches no memory ends as well. A library's own start-up code comes here too.
void __sanitizer_cov_trace_pc() {
  if (emu::machine.report) emu::count_step(CALLER);
}

void emu_atomic(const void* address, unsigned bytes, bool write) {
  check_access(address, bytes, write ? Access::kAtomicWrite : Access::kAtomicRead, CALLER);
}

// The first argument of an undefined-behaviour handler starts with the place in the source.
struct SourceLocation {
  const char* file;
  uint32_t line, column;
};

#define EMU_UNDEFINED(handler, text)                                                    \
  void __ubsan_handle_##handler(SourceLocation* where, void*, void*) {                  \
    EMU_FAIL("ub", CALLER, static_cast<int>(where->line), "%s", text);                  \
  }
EMU_UNDEFINED(out_of_bounds, "index out of the bounds of an array")
EMU_UNDEFINED(shift_out_of_bounds, "shift by more bits than the type has, or by a negative number")
EMU_UNDEFINED(divrem_overflow, "integer division by zero, or overflow of a division")
EMU_UNDEFINED(add_overflow, "signed integer overflow in +")
EMU_UNDEFINED(sub_overflow, "signed integer overflow in -")
EMU_UNDEFINED(mul_overflow, "signed integer overflow in *")
EMU_UNDEFINED(negate_overflow, "signed integer overflow in a negation")
EMU_UNDEFINED(float_cast_overflow, "float does not fit the integer type it is cast to")

}  // extern "C"
