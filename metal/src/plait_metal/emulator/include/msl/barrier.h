// Barriers. Which memory a barrier orders is part of what the runtime checks.
#pragma once
#include "msl/abi.h"
#include "msl/base.h"

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
METAL_FUNC mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }

METAL_FUNC void threadgroup_barrier(mem_flags flags, MSL_LINE) { emu_threadgroup_barrier(int(flags), line); }
METAL_FUNC void simdgroup_barrier(mem_flags flags, MSL_LINE) { emu_simdgroup_barrier(int(flags), line); }

}  // namespace metal
