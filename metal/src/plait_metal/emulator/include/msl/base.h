// Types, constants and traits that the other headers build on.
#pragma once
#include <float.h>
#include <stddef.h>
#include <stdint.h>
#include <limits>
#include <type_traits>

#define METAL_FUNC inline __attribute__((always_inline))
#define __METAL__ 1
#define __METAL_VERSION__ 310
#define __HAVE_BFLOAT__ 1

// For functions of ours that touch the runtime's memory: their accesses are not the kernel's.
#define MSL_UNCHECKED __attribute__((noinline, no_sanitize("thread"), no_sanitize("undefined")))

// The line of the kernel's text on which a collective stands, taken where it is called.
#define MSL_LINE int line = __builtin_LINE()

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

#undef INFINITY
#undef NAN
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define MAXFLOAT FLT_MAX
#define M_PI_F 3.14159265358979f
#define M_E_F 2.71828182845905f
#define M_LOG2E_F 1.44269504088896f
#define M_LN2_F 0.69314718055995f
#define M_SQRT2_F 1.41421356237310f

namespace msl {

template <class T> using if_integral = std::enable_if_t<std::is_integral_v<T>, int>;
template <class T> using if_floating = std::enable_if_t<std::is_floating_point_v<T>, int>;
template <class T> using if_number = std::enable_if_t<std::is_convertible_v<T, float>, int>;

template <class To, class From> METAL_FUNC To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the bits, so both types have one size");
  return __builtin_bit_cast(To, from);
}

}  // namespace msl

namespace metal {

using std::conditional_t;
using std::enable_if;
using std::enable_if_t;
using std::false_type;
using std::is_convertible_v;
using std::is_floating_point_v;
using std::is_integral_v;
using std::is_same;
using std::is_same_v;
using std::numeric_limits;
using std::true_type;

template <class To, class From> METAL_FUNC To as_type(From from) { return msl::bits_as<To>(from); }
template <class T> METAL_FUNC T select(T if_false, T if_true, bool condition) { return condition ? if_true : if_false; }

}  // namespace metal
