// A look-alike of <metal_stdlib> for a host compiler: the parts that compute kernels use.
//
// The qualifier macros come last; `device`, `thread` and the like are ordinary words in the standard headers.
#pragma once
#include "msl/abi.h"
#include "msl/base.h"
#include "msl/small_float.h"
#include "msl/vec.h"
#include "msl/math.h"
#include "msl/barrier.h"
#include "msl/simd.h"
#include "msl/simdgroup_matrix.h"
#include "msl/atomic.h"
#include "msl/threadgroup.h"

using namespace metal;

#define device
#define constant
#define threadgroup
#define thread
#define kernel
