// Threadgroup variables. A macro cannot tell `threadgroup float a[32];` from `threadgroup float* p`, so the launcher
// rewrites declarations of variables to this one, and the qualifier macro drops the rest.
#pragma once
#include "msl/abi.h"

#define MSL_THREADGROUP_VARIABLE(Element, name, extents)            \
  using msl_type_of_##name = Element extents;                       \
  auto& name = *reinterpret_cast<msl_type_of_##name*>(              \
      emu_threadgroup_variable(__COUNTER__, sizeof(msl_type_of_##name), #name));
