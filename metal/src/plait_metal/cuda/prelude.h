// Gives CUDA the words of Plait's kernel dialect, so that one body compiles for Metal and for CUDA.
//
// It goes before MLX's own text as the `header` of mx.fast.cuda_kernel. Under NVRTC, MLX makes plain functions device
// functions; nvcc needs the attribute. A reduction is the ascending butterfly (lanes 1, 2, 4, 8, 16 apart), the order
// that Apple GPUs are said to use and that the emulator uses, so that results can be compared bit for bit where the
// body spells out its fused multiply-adds.
#ifdef __CUDACC_RTC__
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned long ulong;
#define METAL_FUNC inline
#else
#define METAL_FUNC __device__ __forceinline__
#endif
typedef unsigned char uchar;
typedef __nv_bfloat16 bfloat;
typedef __nv_bfloat16 bfloat16_t;
typedef __half float16_t;

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#define M_PI_F 3.14159265358979f
#define M_LOG2E_F 1.44269504088896f
#define M_LN2_F 0.69314718055995f

// ---- positions

#define thread_position_in_threadgroup threadIdx
#define threadgroup_position_in_grid blockIdx
#define threads_per_threadgroup blockDim
#define threadgroups_per_grid gridDim
#define thread_position_in_grid                       \
  (uint3{blockIdx.x * blockDim.x + threadIdx.x,       \
         blockIdx.y * blockDim.y + threadIdx.y,       \
         blockIdx.z * blockDim.z + threadIdx.z})
#define thread_index_in_threadgroup (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z))
#define thread_index_in_simdgroup (thread_index_in_threadgroup & 31u)
#define simdgroup_index_in_threadgroup (thread_index_in_threadgroup >> 5)
#define simdgroups_per_threadgroup ((blockDim.x * blockDim.y * blockDim.z + 31u) >> 5)
#define threads_per_simdgroup 32u

// ---- barriers: both order global and shared memory, whatever the flags say

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
METAL_FUNC mem_flags operator|(mem_flags a, mem_flags b) {
  return static_cast<mem_flags>(static_cast<int>(a) | static_cast<int>(b));
}
METAL_FUNC void threadgroup_barrier(mem_flags) { __syncthreads(); }
METAL_FUNC void simdgroup_barrier(mem_flags) { __syncwarp(); }

// ---- SIMD groups: all 32 lanes take part, always

#define PLAIT_ALL_LANES 0xffffffffu

template <class T> METAL_FUNC T simd_shuffle(T value, ushort lane) { return __shfl_sync(PLAIT_ALL_LANES, value, lane); }
template <class T> METAL_FUNC T simd_shuffle_xor(T value, ushort mask) {
  return __shfl_xor_sync(PLAIT_ALL_LANES, value, mask);
}
template <class T> METAL_FUNC T simd_shuffle_down(T value, ushort delta) {
  return __shfl_down_sync(PLAIT_ALL_LANES, value, delta);
}
template <class T> METAL_FUNC T simd_shuffle_up(T value, ushort delta) {
  return __shfl_up_sync(PLAIT_ALL_LANES, value, delta);
}
template <class T> METAL_FUNC T simd_broadcast(T value, ushort lane) { return simd_shuffle(value, lane); }
template <class T> METAL_FUNC T simd_broadcast_first(T value) { return simd_shuffle(value, 0); }

#define PLAIT_REDUCTION(name, expression)                           \
  template <class T> METAL_FUNC T name(T a) {                       \
    _Pragma("unroll") for (int apart = 1; apart < 32; apart <<= 1) { \
      const T b = __shfl_xor_sync(PLAIT_ALL_LANES, a, apart);       \
      a = expression;                                               \
    }                                                               \
    return a;                                                       \
  }
PLAIT_REDUCTION(simd_sum, a + b)
PLAIT_REDUCTION(simd_product, a* b)
PLAIT_REDUCTION(simd_max, a < b ? b : a)
PLAIT_REDUCTION(simd_min, b < a ? b : a)
PLAIT_REDUCTION(simd_and, a& b)
PLAIT_REDUCTION(simd_or, a | b)
PLAIT_REDUCTION(simd_xor, a ^ b)
#undef PLAIT_REDUCTION

METAL_FUNC bool simd_any(bool value) { return __any_sync(PLAIT_ALL_LANES, value); }
METAL_FUNC bool simd_all(bool value) { return __all_sync(PLAIT_ALL_LANES, value); }

template <class T> METAL_FUNC T simd_prefix_inclusive_sum(T value) {
  const int lane = thread_index_in_simdgroup;
  _Pragma("unroll") for (int delta = 1; delta < 32; delta <<= 1) {
    const T below = __shfl_up_sync(PLAIT_ALL_LANES, value, delta);
    if (lane >= delta) value = value + below;
  }
  return value;
}
template <class T> METAL_FUNC T simd_prefix_exclusive_sum(T value) {
  const T below = __shfl_up_sync(PLAIT_ALL_LANES, simd_prefix_inclusive_sum(value), 1);
  return thread_index_in_simdgroup == 0 ? T(0) : below;
}

// ---- mathematics, on float; bodies cast 16-bit values first

namespace metal {
METAL_FUNC float exp(float x) { return ::expf(x); }
METAL_FUNC float exp2(float x) { return ::exp2f(x); }
METAL_FUNC float log(float x) { return ::logf(x); }
METAL_FUNC float log2(float x) { return ::log2f(x); }
METAL_FUNC float sqrt(float x) { return ::sqrtf(x); }
METAL_FUNC float rsqrt(float x) { return ::rsqrtf(x); }
METAL_FUNC float tanh(float x) { return ::tanhf(x); }
METAL_FUNC float sin(float x) { return ::sinf(x); }
METAL_FUNC float cos(float x) { return ::cosf(x); }
METAL_FUNC float pow(float x, float y) { return ::powf(x, y); }
METAL_FUNC float abs(float x) { return ::fabsf(x); }
METAL_FUNC float floor(float x) { return ::floorf(x); }
METAL_FUNC float ceil(float x) { return ::ceilf(x); }
METAL_FUNC float rint(float x) { return ::rintf(x); }
METAL_FUNC float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
METAL_FUNC float max(float a, float b) { return ::fmaxf(a, b); }
METAL_FUNC float min(float a, float b) { return ::fminf(a, b); }
METAL_FUNC int max(int a, int b) { return a < b ? b : a; }
METAL_FUNC int min(int a, int b) { return b < a ? b : a; }
METAL_FUNC uint max(uint a, uint b) { return a < b ? b : a; }
METAL_FUNC uint min(uint a, uint b) { return b < a ? b : a; }
METAL_FUNC float clamp(float x, float low, float high) { return min(max(x, low), high); }
METAL_FUNC bool isnan(float x) { return x != x; }
METAL_FUNC bool isinf(float x) { return ::fabsf(x) == INFINITY; }

namespace precise {
using metal::cos;
using metal::exp;
using metal::exp2;
using metal::log;
using metal::log2;
using metal::pow;
using metal::rsqrt;
using metal::sin;
using metal::sqrt;
using metal::tanh;
}  // namespace precise

namespace fast {
using metal::exp2;
using metal::rsqrt;
using metal::sqrt;
using metal::tanh;
METAL_FUNC float exp(float x) { return __expf(x); }
METAL_FUNC float log(float x) { return __logf(x); }
METAL_FUNC float log2(float x) { return __log2f(x); }
METAL_FUNC float sin(float x) { return __sinf(x); }
METAL_FUNC float cos(float x) { return __cosf(x); }
METAL_FUNC float pow(float x, float y) { return __powf(x, y); }
}  // namespace fast

template <class To, class From> METAL_FUNC To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the bits, so both types have one size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
template <class T> METAL_FUNC T select(T if_false, T if_true, bool condition) { return condition ? if_true : if_false; }
}  // namespace metal

namespace fast = metal::fast;
namespace precise = metal::precise;
using metal::as_type;

// ---- address spaces. These come last: __device__ itself expands to __attribute__((device)), so `device` may only
// vanish after the last device function. `threadgroup` serves declarations; pointers to threadgroup memory are `auto`.
#define device
#define constant const
#define thread
#define threadgroup __shared__
