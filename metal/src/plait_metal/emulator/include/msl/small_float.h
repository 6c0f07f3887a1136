// half and bfloat: every operation computes in float and rounds once, to nearest even.
//
// That is exact for + - * /, since float has more than twice the digits. The host's own 16-bit types are avoided:
// compilers differ in how long they keep excess precision.
#pragma once
#include "msl/base.h"

namespace msl {

struct HalfCodec {
  static constexpr bool implicit_from_float = true;

  static METAL_FUNC uint16_t encode(float value) {
    const uint32_t bits = bits_as<uint32_t>(value);
    const uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));  // NaN, made quiet
    if (magnitude >= 0x47800000u) return uint16_t(sign | 0x7c00u);  // from 2^16 up: infinity
    if (magnitude >= 0x38800000u) {                                 // from 2^-14 up: normal, or carried to infinity
      const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
      return uint16_t(sign | ((rounded - 0x38000000u) >> 13));
    }
    // Subnormal: adding 0.5 makes the float unit round at the half's last place, 2^-24.
    const float shifted = bits_as<float>(magnitude) + 0.5f;
    return uint16_t(sign | (bits_as<uint32_t>(shifted) - 0x3f000000u));
  }

  static METAL_FUNC float decode(uint16_t bits) {
    const uint32_t sign = uint32_t(bits & 0x8000u) << 16, exponent = (bits >> 10) & 0x1fu, fraction = bits & 0x3ffu;
    if (exponent == 0x1fu) return bits_as<float>(sign | 0x7f800000u | (fraction << 13));
    if (exponent != 0) return bits_as<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
    return bits_as<float>(sign | bits_as<uint32_t>(float(fraction) * 0x1p-24f));
  }
};

struct BfloatCodec {
  static constexpr bool implicit_from_float = false;  // float -> bfloat is explicit in Metal as well

  static METAL_FUNC uint16_t encode(float value) {
    const uint32_t bits = bits_as<uint32_t>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40u);  // NaN, made quiet
    return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }

  static METAL_FUNC float decode(uint16_t bits) { return bits_as<float>(uint32_t(bits) << 16); }
};

// With one of its own kind or an integer a small float stays small; with a float it becomes a float.
#define MSL_OPERATOR(op)                                                                                       \
  friend METAL_FUNC small_float operator op(small_float a, small_float b) { return from(float(a) op float(b)); } \
  friend METAL_FUNC float operator op(small_float a, float b) { return float(a) op b; }                        \
  friend METAL_FUNC float operator op(float a, small_float b) { return a op float(b); }                        \
  friend METAL_FUNC float operator op(small_float a, double b) { return float(a) op float(b); }                \
  friend METAL_FUNC float operator op(double a, small_float b) { return float(a) op float(b); }                \
  template <class I, if_integral<I> = 0> friend METAL_FUNC small_float operator op(small_float a, I b) {       \
    return from(float(a) op float(b));                                                                         \
  }                                                                                                            \
  template <class I, if_integral<I> = 0> friend METAL_FUNC small_float operator op(I a, small_float b) {       \
    return from(float(a) op float(b));                                                                         \
  }                                                                                                            \
  template <class T> METAL_FUNC small_float& operator op##=(T b) { return *this = from(float(*this) op float(b)); }

template <class Codec> struct small_float {
  uint16_t bits;

  small_float() = default;
  template <class T, if_floating<T> = 0, std::enable_if_t<Codec::implicit_from_float && sizeof(T), int> = 0>
  METAL_FUNC small_float(T value) : bits(Codec::encode(float(value))) {}
  template <class T, if_floating<T> = 0, std::enable_if_t<!Codec::implicit_from_float && sizeof(T), int> = 0>
  explicit METAL_FUNC small_float(T value) : bits(Codec::encode(float(value))) {}
  template <class T, if_integral<T> = 0> METAL_FUNC small_float(T value) : bits(Codec::encode(float(value))) {}

  METAL_FUNC operator float() const { return Codec::decode(bits); }
  METAL_FUNC small_float operator-() const { return from(-float(*this)); }
  MSL_OPERATOR(+)
  MSL_OPERATOR(-)
  MSL_OPERATOR(*)
  MSL_OPERATOR(/)

 private:
  static METAL_FUNC small_float from(float value) {
    small_float result;
    result.bits = Codec::encode(value);
    return result;
  }
};
#undef MSL_OPERATOR

}  // namespace msl

typedef msl::small_float<msl::HalfCodec> half;
typedef msl::small_float<msl::BfloatCodec> bfloat;
typedef half float16_t;
typedef bfloat bfloat16_t;

inline half operator""h(long double value) { return half(float(value)); }
inline bfloat operator""bf(long double value) { return bfloat(float(value)); }
