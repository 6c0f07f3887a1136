// Mathematics on float, half, bfloat and their vectors, in metal::, metal::fast:: and metal::precise::.
//
// fast:: is the host's own libm here: the wider error of a GPU's fast functions is not modelled.
#pragma once
#include "msl/base.h"
#include "msl/small_float.h"
#include "msl/vec.h"

namespace msl {
namespace math {

using metal::vec;

METAL_FUNC float host_rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
METAL_FUNC float host_exp10(float x) { return __builtin_powf(10.0f, x); }
METAL_FUNC float host_fract(float x) { return x - __builtin_floorf(x); }
METAL_FUNC float host_sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x; }
METAL_FUNC float host_saturate(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }
METAL_FUNC float host_divide(float x, float y) { return x / y; }

#define MSL_UNARY(name, host)                                                  \
  inline float name(float x) { return host(x); }                               \
  inline half name(half x) { return half(host(float(x))); }                    \
  inline bfloat name(bfloat x) { return bfloat(host(float(x))); }              \
  template <class T, int N> inline vec<T, N> name(vec<T, N> x) {               \
    for (int i = 0; i < N; ++i) x[i] = name(x[i]);                             \
    return x;                                                                  \
  }
MSL_UNARY(exp, __builtin_expf)
MSL_UNARY(exp2, __builtin_exp2f)
MSL_UNARY(exp10, host_exp10)
MSL_UNARY(log, __builtin_logf)
MSL_UNARY(log2, __builtin_log2f)
MSL_UNARY(log10, __builtin_log10f)
MSL_UNARY(sqrt, __builtin_sqrtf)
MSL_UNARY(rsqrt, host_rsqrt)
MSL_UNARY(sin, __builtin_sinf)
MSL_UNARY(cos, __builtin_cosf)
MSL_UNARY(tan, __builtin_tanf)
MSL_UNARY(asin, __builtin_asinf)
MSL_UNARY(acos, __builtin_acosf)
MSL_UNARY(atan, __builtin_atanf)
MSL_UNARY(sinh, __builtin_sinhf)
MSL_UNARY(cosh, __builtin_coshf)
MSL_UNARY(tanh, __builtin_tanhf)
MSL_UNARY(fabs, __builtin_fabsf)
MSL_UNARY(abs, __builtin_fabsf)
MSL_UNARY(floor, __builtin_floorf)
MSL_UNARY(ceil, __builtin_ceilf)
MSL_UNARY(round, __builtin_roundf)
MSL_UNARY(rint, __builtin_rintf)
MSL_UNARY(trunc, __builtin_truncf)
MSL_UNARY(fract, host_fract)
MSL_UNARY(sign, host_sign)
MSL_UNARY(saturate, host_saturate)
#undef MSL_UNARY

#define MSL_BINARY(name, host)                                                          \
  inline float name(float x, float y) { return host(x, y); }                            \
  inline half name(half x, half y) { return half(host(float(x), float(y))); }           \
  inline bfloat name(bfloat x, bfloat y) { return bfloat(host(float(x), float(y))); }   \
  template <class T, int N> inline vec<T, N> name(vec<T, N> x, vec<T, N> y) {           \
    for (int i = 0; i < N; ++i) x[i] = name(x[i], y[i]);                                \
    return x;                                                                           \
  }
MSL_BINARY(pow, __builtin_powf)
MSL_BINARY(powr, __builtin_powf)
MSL_BINARY(fmod, __builtin_fmodf)
MSL_BINARY(atan2, __builtin_atan2f)
MSL_BINARY(copysign, __builtin_copysignf)
MSL_BINARY(divide, host_divide)
MSL_BINARY(fmin, __builtin_fminf)
MSL_BINARY(fmax, __builtin_fmaxf)
MSL_BINARY(min, __builtin_fminf)
MSL_BINARY(max, __builtin_fmaxf)
#undef MSL_BINARY

#define MSL_FLOATING(T)                                                                                \
  METAL_FUNC T clamp(T x, T low, T high) { return min(max(x, low), high); }                            \
  METAL_FUNC T mix(T a, T b, T t) { return a + (b - a) * t; }                                          \
  METAL_FUNC T fma(T a, T b, T c) { return T(__builtin_fmaf(float(a), float(b), float(c))); }          \
  METAL_FUNC bool isnan(T x) { return __builtin_isnan(float(x)); }                                     \
  METAL_FUNC bool isinf(T x) { return __builtin_isinf(float(x)); }                                     \
  METAL_FUNC bool isfinite(T x) { return __builtin_isfinite(float(x)); }
MSL_FLOATING(float)
MSL_FLOATING(half)
MSL_FLOATING(bfloat)
#undef MSL_FLOATING

template <class T, int N> METAL_FUNC vec<T, N> fma(vec<T, N> a, vec<T, N> b, vec<T, N> c) {
  for (int i = 0; i < N; ++i) a[i] = fma(a[i], b[i], c[i]);
  return a;
}

#define MSL_INTEGER(T)                                         \
  METAL_FUNC T min(T a, T b) { return b < a ? b : a; }         \
  METAL_FUNC T max(T a, T b) { return a < b ? b : a; }         \
  METAL_FUNC T clamp(T x, T low, T high) { return min(max(x, low), high); }
MSL_INTEGER(int)
MSL_INTEGER(uint)
MSL_INTEGER(short)
MSL_INTEGER(ushort)
MSL_INTEGER(char)
MSL_INTEGER(uchar)
MSL_INTEGER(long)
MSL_INTEGER(ulong)
#undef MSL_INTEGER

METAL_FUNC int abs(int x) { return x < 0 ? -x : x; }
METAL_FUNC float ldexp(float x, int exponent) { return __builtin_ldexpf(x, exponent); }
METAL_FUNC float frexp(float x, int& exponent) { return __builtin_frexpf(x, &exponent); }
METAL_FUNC bool signbit(float x) { return __builtin_signbit(x); }
METAL_FUNC uint popcount(uint x) { return uint(__builtin_popcount(x)); }
METAL_FUNC uint clz(uint x) { return x ? uint(__builtin_clz(x)) : 32u; }
METAL_FUNC uint ctz(uint x) { return x ? uint(__builtin_ctz(x)) : 32u; }

}  // namespace math
}  // namespace msl

namespace metal {
using namespace msl::math;
namespace fast {
using namespace msl::math;
}
namespace precise {
using namespace msl::math;
}
}  // namespace metal
